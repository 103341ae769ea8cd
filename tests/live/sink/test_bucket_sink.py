"""The exactly-once sink of key-value buckets against a real server: no key ends with an old value."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from penstock.buckets.key_stream import bucket_stream
from penstock.errors import DisconnectedError, FencedError, InputError, JetStreamError, MarkerError, RowError
from penstock.spark.bucket_task import KeyTask
from penstock.spark.connections import TaskConnection
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.live.keying import KeyWriter, current, history, make_bucket, put, while_sending
from tests.live.sinking import Crash


@pytest.fixture
def bucket(bulk, unique):
    name = unique("PRICES")
    make_bucket(bulk, name)
    return name


@pytest.fixture
def keys(server, bucket):
    return KeyWriter(server.url, bucket)


def versions(batch, count, keys=8):
    """Rows of which each is newer than those before; keys come again and again."""
    return [(f"k{number % keys}", b"%d.%d" % (batch, number)) for number in range(count)]


def in_order(rows):
    """Give the values of each key in the order of the rows."""
    return {key: [value for name, value in rows if name == key] for key, _ in rows}


def test_the_last_row_of_a_key_is_its_value(keys, bulk, bucket):
    """Rows of a key are stored in their order, however many batches are under way."""
    rows = versions(0, 300, keys=7)
    keys.asked(atomic_rows=5)
    keys.whole_batch([rows])
    assert history(bulk, bucket) == in_order(rows)


def test_a_lost_connection_does_not_change_the_order_of_a_key(keys, bulk, bucket):
    """Batches whose fate is unknown are sent again, and no row of a key comes after a later one."""
    rows = versions(0, 200, keys=50)
    tasks = []

    def cut(number):
        if number in (3, 9, 10, 21):
            tasks[0].bulk.wire.close()

    def around(task):
        tasks.append(task)
        while_sending(cut)(task)

    keys.whole_batch([rows], around=around)
    assert history(bulk, bucket) == in_order(rows)


def test_without_waiting_an_old_value_comes_last(keys, bulk, bucket, eventually, monkeypatch):
    """These tests can fail: where batches under way may share a key, a lost one is stored after a later one."""
    post = TaskConnection.post
    lost = []

    def losing(self, content, *given):
        if b"$KV." not in content:
            return post(self, content, *given)
        if not lost:
            lost.append(given)
            raise DisconnectedError("The first batch of rows does not get through.")
        before = history(bulk, bucket)
        ticket = post(self, content, *given)
        eventually(lambda: history(bulk, bucket) != before)
        return ticket

    monkeypatch.setattr(TaskConnection, "post", losing)
    rows = versions(0, 12, keys=1)
    keys.whole_batch([rows])
    assert history(bulk, bucket) == in_order(rows)
    lost.clear()
    monkeypatch.setattr(KeyTask, "must_wait", lambda *given: False)
    keys.whole_batch([rows], batch=1, run="r2")
    assert history(bulk, bucket)["k0"][-1] == b"0.3"


def test_a_replay_does_not_bring_a_value_back_over_that_of_another_writer(keys, bulk, bucket, eventually):
    """A service writes a key after the batch stored it; the batch comes again, and the service's value stays."""
    rows = [(f"k{number}", b"batch") for number in range(20)]
    keys.whole_batch([rows[:10], rows[10:]])
    put(bulk, bucket, "k3", b"service")
    assert keys.whole_batch([rows[::-1]], run="r2") == 0
    with pytest.raises(Crash):
        keys.attempt([(key, b"next") for key, _ in rows], batch=1, run="r3", crash_after=12)
    eventually(lambda: current(bulk, bucket)["k0"] == b"next")  # the unfinished batch has stored this one
    put(bulk, bucket, "k0", b"service")
    keys.whole_batch([[(key, b"next") for key, _ in rows]], batch=1, run="r4")
    assert current(bulk, bucket) == {**{key: b"next" for key, _ in rows}, "k0": b"service"}
    assert history(bulk, bucket)["k3"] == [b"batch", b"service", b"next"]


def test_a_zombie_does_not_bring_a_value_back(keys, bulk, bucket):
    """A task that wakes up when a later batch has changed its keys stores nothing."""
    rows = versions(0, 40)

    def sleep(number):
        if number == 1:
            keys.whole_batch([rows], run="r2")
            keys.whole_batch([versions(1, 8)], batch=1, run="r3")

    with pytest.raises(FencedError):
        keys.attempt(rows, around=while_sending(sleep))
    assert current(bulk, bucket) == dict(versions(1, 8))


@pytest.mark.parametrize("seed", range(3))
def test_any_history_ends_with_the_newest_values(server, bulk, unique, seed):
    """Runs, partitions, attempts, crashes and other writers at random: each row is stored once, a key's in order."""
    bucket = unique("PRICES")
    make_bucket(bulk, bucket)
    dice = random.Random(seed)
    keys = KeyWriter(server.url, bucket, rows=dice.choice([1, 3, 20]))
    wanted: dict[str, list[bytes]] = {}
    for batch in range(3):
        names = [f"k{number}" for number in range(dice.randrange(1, 12))]
        rows = [(dice.choice(names), b"%d.%d" % (batch, number)) for number in range(dice.randrange(1, 60))]
        for key, value in rows:
            wanted.setdefault(key, []).append(value)

        def spread(rows=rows):
            count = dice.randrange(1, 4)
            return [[row for row in rows if crc32(row[0].encode()) % count == part] for part in range(count)]

        def meddle(number, names=names):
            if dice.random() < 0.1:
                put(bulk, bucket, dice.choice(names), b"service")

        for run in range(dice.randrange(3)):
            for number, part in enumerate(spread()):
                for task in range(dice.randrange(3)):
                    try:
                        crash = dice.choice([None, dice.randrange(len(part) + 1)])
                        keys.attempt(
                            part,
                            batch=batch,
                            run=f"{batch}-{run}",
                            partition=number,
                            task=task,
                            crash_after=crash,
                            step=3,
                            around=while_sending(meddle),
                        )
                    except Crash:
                        continue
        for again in range(2):
            before = history(bulk, bucket)
            keys.whole_batch(spread(), batch=batch, run=f"{batch}-last-{again}", around=while_sending(meddle))
            found = history(bulk, bucket)
            if again:
                assert before == found
            ours = {key: [value for value in values if value != b"service"] for key, values in found.items()}
            assert {key: values for key, values in ours.items() if values} == wanted


# -- which row is the last ---------------------------------------------------------------------------------------------


def test_a_key_in_two_partitions_is_refused(keys, bulk, bucket):
    """Which of two partitions stores last nobody knows: the batch is not done, at no start, unless any may be last."""
    parts = [[("same", b"1"), ("a", b"1")], [("same", b"2")]]
    for run in ("r1", "r2"):
        with pytest.raises(MarkerError, match="has rows of one key in more than one partition"):
            keys.whole_batch(parts, run=run)
    keys.asked(on_repeated_keys="any")
    assert keys.whole_batch(parts, run="r3") == 0
    keys.asked(on_repeated_keys="fail")
    assert keys.whole_batch([[("same", b"3")]], batch=1, run="r4") == 1


def test_rows_that_were_stored_in_another_order_are_refused(keys, bulk, bucket):
    """A key's rows were stored by two partitions in the wrong order: joined in one, that is noticed before a write."""
    with pytest.raises(MarkerError, match="more than one partition"):
        keys.whole_batch([[("same", b"2")], [("same", b"1"), ("other", b"1")]])
    with pytest.raises(MarkerError, match="Rows of one key in partition 0 of batch 0 were stored by an earlier"):
        keys.whole_batch([[("same", b"1"), ("other", b"1"), ("same", b"2")]], run="r2")
    with pytest.raises(Crash):
        keys.attempt([("late", b"2")], batch=0, run="r3", crash_after=1)


def test_an_earlier_row_is_not_stored_after_a_later_one(keys, bulk, bucket):
    """Of a key's two rows an earlier run stored the second, from another partition: the first would come after it."""
    keys.asked(atomic_rows=1)
    with pytest.raises(Crash):
        keys.attempt([("k", b"2")], partition=1, crash_after=1)
    with pytest.raises(MarkerError, match="in another order"):
        keys.whole_batch([[("k", b"1"), ("k", b"2")]], run="r2")
    assert current(bulk, bucket) == {"k": b"2"}


# -- deletes and revisions ---------------------------------------------------------------------------------------------


def test_keys_are_put_deleted_and_purged(keys, bulk, bucket):
    """A row says what becomes of its key, several times in a batch, too; a replay changes nothing."""
    keys.whole_batch([[("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1")]])
    rows = [
        ("a", None, "DEL"),
        ("b", b"ignored", "PURGE"),
        ("c", b"2", "PUT"),
        ("c", None, "PURGE"),
        ("c", b"3", None),
        ("d", b"2", "PUT"),
        ("d", None, "DEL"),
        ("d", None, "PURGE"),
    ]
    keys.asked(atomic_rows=100)
    for run in ("r2", "r3"):
        keys.whole_batch([rows], batch=1, run=run)
        assert history(bulk, bucket) == {"a": [b"1", None], "b": [None], "c": [None, b"3"], "d": [None]}
    keys.asked(on_null_value="delete")
    keys.whole_batch([[("a", b"2"), ("c", None)]], batch=2, run="r4")
    assert current(bulk, bucket) == {"a": b"2"}


def test_a_row_is_stored_if_its_key_has_the_revision(keys, bulk, bucket):
    """Revisions are compared by the server; a row that the batch itself stored is no conflict when it comes again."""
    keys.asked(revision_column="revision", atomic_rows=3)
    keys.whole_batch([[("a", b"1", None, 0), ("b", b"1", None, None)]])
    revision = {key: bulk.last(f"KV_{bucket}", f"$KV.{bucket}.{key}").sequence for key in "ab"}
    rows = [("a", b"2", None, revision["a"]), ("b", b"2", None, None), ("new", b"2", None, 0)]
    with pytest.raises(Crash):
        keys.attempt(rows, batch=1, run="r2", crash_after=3)
    assert keys.whole_batch([rows], batch=1, run="r3") == 0
    assert current(bulk, bucket) == {"a": b"2", "b": b"2", "new": b"2"}
    with pytest.raises(RowError, match=f"revision expects revision {revision['a']} of a, which has"):
        keys.attempt([("b", b"3", None, None), ("a", b"3", None, revision["a"])], batch=2, run="r4")
    assert current(bulk, bucket)["a"] == b"2"


def test_a_key_that_was_deleted_can_be_created(keys, bulk, bucket):
    """Revision 0 means that the key is not there, whether it never was or was deleted; one that is there is refused."""
    keys.whole_batch([[("gone", b"1"), ("purged", b"1"), ("there", b"1")]])
    keys.whole_batch([[("gone", None, "DEL"), ("purged", None, "PURGE")]], batch=1, run="r2")
    keys.asked(revision_column="revision")
    rows = [(key, b"2", None, 0) for key in ("gone", "purged", "never")]
    assert keys.whole_batch([rows], batch=2, run="r3") == 3
    with pytest.raises(RowError, match="expects revision 0 of there"):
        keys.whole_batch([[("there", b"2", None, 0)]], batch=3, run="r4")
    assert current(bulk, bucket) == {"gone": b"2", "purged": b"2", "never": b"2", "there": b"1"}


def test_rows_that_do_not_match_can_be_buried(keys, bulk, bucket):
    """With dead letters, the rows that match are stored and the others told, each once over all replays."""
    keys.asked(revision_column="revision", atomic_rows=100)
    buried = []
    keys.bury = lambda messages, reasons: buried.extend(zip(messages.data.to_pylist(), reasons, strict=True))
    put(bulk, bucket, "taken", b"service")
    rows = [("a", b"1", None, 0), ("taken", b"1", None, 0), ("b", b"1", None, 7_000), ("a", b"2", None, 0)]
    for run in ("r1", "r2", "r3"):
        keys.whole_batch([rows], run=run)
        assert [data for data, _ in buried] == [b"1", b"1", b"2"]
        assert current(bulk, bucket) == {"a": b"1", "taken": b"service"}
    assert "expects revision 7000 of b, which has none" in {reason for _, reason in buried}


# -- the bucket itself -------------------------------------------------------------------------------------------------


def test_a_bucket_is_prepared_or_says_what_it_lacks(server, bulk, unique):
    """A bucket that another client made lacks two things, which the sink changes if it may."""
    name = unique("PLAIN")
    with pytest.raises(InputError, match=f"no bucket {name}.*penstock kv add {name}"):
        prepare(bulk, SinkOptions(bucket=name))
    bulk.api(f"STREAM.CREATE.KV_{name}", {"name": f"KV_{name}", "subjects": ["elsewhere.>"]})
    with pytest.raises(InputError, match="it is not a bucket to write to"):
        prepare(bulk, SinkOptions(bucket=name))
    bulk.api(f"STREAM.DELETE.KV_{name}")
    make_bucket(bulk, name, history=1, ttl="1h")
    assert prepare(bulk, SinkOptions(bucket=name)).keep
    subject = f"$KV.{name}.dead"
    with pytest.raises(InputError, match="deadLetterSubject is one of the bucket's own"):
        prepare(bulk, SinkOptions(bucket=name, dead_letter_subject=subject))


def test_a_bucket_that_keeps_one_value_a_key(server, bulk, unique):
    """Neither the history of 1 nor a limit of bytes takes what a replay needs."""
    name = unique("ONE")
    make_bucket(bulk, name, history=1, max_bytes=2**20)
    keys = KeyWriter(server.url, name)
    rows = [(f"k{number}", b"x") for number in range(40)]
    with pytest.raises(Crash):
        keys.attempt(rows, crash_after=20)
    keys.whole_batch([rows], run="r2")
    put(bulk, name, "k1", b"service")
    keys.whole_batch([rows], run="r3")
    assert current(bulk, name) == {**dict(rows), "k1": b"service"}


def test_a_mirror_of_a_bucket_takes_no_rows(bulk, bucket, unique):
    """A bucket that mirrors another one is refused."""
    name = unique("MIRROR")
    stream = bucket_stream(name, mirror=bucket)
    bulk.api(f"STREAM.CREATE.{stream.name}", stream.to_json())
    with pytest.raises(InputError, match="is a mirror"):
        prepare(bulk, SinkOptions(bucket=name, prepare=True))


def test_a_bucket_that_was_made_anew_is_noticed(keys, bulk, bucket):
    """Another bucket of the name does not know the query: nothing is written, between batches and within one."""
    keys.whole_batch([versions(0, 10)])
    bulk.api(f"STREAM.DELETE.KV_{bucket}")
    make_bucket(bulk, bucket)
    with pytest.raises(MarkerError, match="knows nothing of this query"):
        keys.whole_batch([versions(1, 10)], batch=1, run="r2")
    keys.whole_batch([versions(0, 10)], run="r3")

    def replace_bucket(number):
        if number == 1:
            bulk.api(f"STREAM.DELETE.KV_{bucket}")
            make_bucket(bulk, bucket)

    with pytest.raises(MarkerError, match=r"dropped markers|made anew"):
        keys.attempt(versions(1, 40), batch=1, run="r4", around=while_sending(replace_bucket))


def test_a_full_bucket_is_named_and_the_batch_finished_later(server, bulk, unique):
    """A bucket refuses what is new at its limit: that is told, and with more room the rest is stored."""
    name = unique("FULL")
    make_bucket(bulk, name, max_bytes=40_000)
    keys = KeyWriter(server.url, name)
    rows = [(f"k{number}", b"x" * 1000) for number in range(60)]
    with pytest.raises(JetStreamError, match=rf"KV_{name} could not be stored.*maximum bytes") as full:
        keys.whole_batch([rows])
    assert "max_bytes" in str(full.value)
    config = bulk.api(f"STREAM.INFO.KV_{name}")["config"]
    bulk.api(f"STREAM.UPDATE.KV_{name}", {**config, "max_bytes": 400_000})
    put(bulk, name, "k0", b"service")
    keys.whole_batch([rows], run="r2")
    assert current(bulk, name) == {**dict(rows), "k0": b"service"}


def test_a_bucket_that_another_client_edits_says_what_it_lacks(keys, bulk, bucket):
    """A client that knows nothing of the sink takes its subject away with an edit: told, and mended by preparing."""
    keys.whole_batch([versions(0, 10)])
    bulk.api(f"STREAM.UPDATE.KV_{bucket}", bucket_stream(bucket, history=64).to_json())
    with pytest.raises(InputError, match=r"it lacks allow_atomic and subjects.*penstock stream edit"):
        prepare(bulk, SinkOptions(bucket=bucket))
    prepare(bulk, SinkOptions(bucket=bucket, prepare=True))
    keys.whole_batch([versions(1, 10)], batch=1, run="r2")
    assert current(bulk, bucket) == dict(versions(1, 10))
