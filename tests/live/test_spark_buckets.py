"""Key-value buckets as Spark reads them in batch, without a JVM: the state at one sequence, each key once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, StringStartsWith

from penstock.errors import DataLossError, InputError, MessageError, OptionError
from penstock.spark.bucket_survey import BucketSurvey
from penstock.spark.connections import TaskConnection
from penstock.spark.source_options import SourceOptions
from tests.live.bucketing import Changes, brief, bucket_reader, read_rows, rows_of


def test_the_keys_of_a_bucket_are_rows(server, buckets, unique):
    """Each key has one row with its current value; what was deleted is a row only if that is asked for."""
    name = buckets.make(unique("B"), max_msgs_per_subject=5)
    buckets.put(name, a=b"1", b=b"2", c__d=b"3")
    buckets.put(name, a=b"4")
    buckets.delete(name, "b")
    buckets.purge(name, "c.d")
    buckets.put(name, e=b"")
    assert brief(read_rows(server.url, bucket=name)) == [("a", b"4", 4), ("e", b"", 7)]
    every = read_rows(server.url, bucket=name, includeDeleted="true", minPartitions="3")
    assert brief(every) == [("a", b"4", 4), ("b", "DEL", 5), ("c.d", "PURGE", 6), ("e", b"", 7)]
    assert {row["value"] for row in every if row["operation"] != "PUT"} == {None}
    assert all(row["time"].tzinfo for row in every)


def test_filters_of_keys_reach_the_server(server, buckets, unique):
    """Only keys that match are listed and sent."""
    name = buckets.make(unique("F"))
    buckets.write(name, *((f"{kind}.{number}.total", b"x") for kind in ("orders", "users") for number in range(20)))
    buckets.put(name, x__y=b"1", x__z__w=b"2", other=b"3")
    reader = bucket_reader(server.url, bucket=name, keys="orders.*.total,x.>", minPartitions="4")
    tasks = reader.partitions()
    assert len(tasks) == 4
    assert tasks[0].subjects == (f"$KV.{name}.orders.*.total", f"$KV.{name}.x.>")
    keys = [row["key"] for row in rows_of(reader, tasks)]
    assert sorted(keys) == sorted([f"orders.{number}.total" for number in range(20)] + ["x.y", "x.z.w"])


def test_filters_of_a_query_reach_the_server(server, buckets, unique):
    """Filters on the key become those of the server, those on revision and time leave keys out of the plan."""
    name = buckets.make(unique("Q"), max_msgs_per_subject=2)
    buckets.put(name, a__x=b"1", a__y=b"2", b=b"3", c=b"4")
    buckets.put(name, a__x=b"5")

    def found(*filters, **options):
        reader = bucket_reader(server.url, bucket=name, pushDown="true", **options)
        assert reader.pushFilters(list(filters)) == list(filters)  # Spark applies them, too
        tasks = reader.partitions()
        return [row["key"] for row in rows_of(reader, tasks)], tasks

    keys, tasks = found(StringStartsWith(("key",), "a."))
    assert (keys, tasks[0].subjects) == (["a.y", "a.x"], (f"$KV.{name}.a.>",))
    assert found(In(("key",), ("b", "c", "no key")))[0] == ["a.y", "b", "c", "a.x"]  # not of the server's making
    assert found(In(("key",), ("b", "c")))[0] == ["b", "c"]
    assert found(EqualTo(("key",), "b"), keys="a.*") == ([], [])
    assert found(GreaterThan(("revision",), 3))[0] == ["c", "a.x"]
    assert found(LessThan(("revision",), 5), GreaterThan(("revision",), 2))[0] == ["b", "c"]
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert found(LessThan(("time",), long_ago))[0] == []
    assert len(found(GreaterThan(("time",), long_ago))[0]) == 4


def test_a_value_that_is_overwritten_before_its_task_comes_is_the_newer_one(server, buckets, unique):
    """A bucket without history has lost the old value; its key still is one row, with the newer value."""
    name = buckets.make(unique("O"))
    buckets.put(name, a=b"1", b=b"2", c=b"3")
    reader = bucket_reader(server.url, bucket=name, minPartitions="2")
    tasks = reader.partitions()
    buckets.put(name, a=b"4", d=b"5")
    buckets.delete(name, "c")
    assert brief(rows_of(reader, tasks)) == [("b", b"2", 2), ("a", b"4", 4)]


def test_many_values_that_are_overwritten_are_found_together(server, buckets, unique, monkeypatch):
    """If more keys changed than are asked for one by one, what was stored since is read; each key is one row still."""
    monkeypatch.setattr("penstock.spark.bucket_reader.FEW", 5)
    name = buckets.make(unique("L"))
    buckets.write(name, *((f"k{number}", b"old") for number in range(30)))
    reader = bucket_reader(server.url, bucket=name, minPartitions="2")
    tasks = reader.partitions()
    buckets.write(name, *((f"k{number}", b"new") for number in range(20)), ("k3", b"newest"))
    buckets.delete(name, "k0")
    found = {row["key"]: row["value"] for row in rows_of(reader, tasks)}
    expected = {f"k{number}": b"new" if number < 20 else b"old" for number in range(1, 30)} | {"k3": b"newest"}
    assert found == expected
    assert len(rows_of(reader, tasks)) == 29


def test_with_history_the_state_is_that_of_one_sequence(server, buckets, unique):
    """Where the old values are kept, nothing that comes after the plan shows."""
    name = buckets.make(unique("H"), max_msgs_per_subject=3)
    buckets.put(name, a=b"1", b=b"2")
    reader = bucket_reader(server.url, bucket=name)
    tasks = reader.partitions()
    buckets.put(name, a=b"3", c=b"4")
    buckets.delete(name, "b")
    assert brief(rows_of(reader, tasks)) == [("a", b"1", 1), ("b", b"2", 2)]


@pytest.mark.parametrize("few", [1000, 10])
def test_each_key_is_a_row_once_while_all_are_written(server, buckets, unique, monkeypatch, few):
    """Keys that are there throughout are rows exactly once, however often they are overwritten meanwhile."""
    monkeypatch.setattr("penstock.spark.bucket_reader.FEW", few)
    name = buckets.make(unique("W"))
    keys = [f"k{number}" for number in range(300)]
    buckets.write(name, *((key, b"0") for key in keys))
    stop, failed = threading.Event(), []

    def write() -> None:
        async def rewrite(nc):
            import asyncio

            stream, number = nc.jetstream(timeout=30), 0
            while not stop.is_set():
                number += 1
                hot = [*keys[: 100 + number % 200], *(keys[0] for _ in range(50))]
                await asyncio.gather(*(stream.publish(f"$KV.{name}.{key}", b"%d" % number) for key in hot))

        try:
            buckets.call(rewrite)
        except BaseException as error:
            failed.append(error)
            raise

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for round_ in range(6):
            filters = {"keys": ">"} if round_ % 2 else {}
            rows = read_rows(server.url, bucket=name, minPartitions="3", batchRows="50", **filters)
            assert sorted(row["key"] for row in rows) == sorted(keys)
    finally:
        stop.set()
        writer.join()
    assert not failed


def test_a_replica_that_lags_shows_no_old_value(server, buckets, unique, monkeypatch):
    """What a replica still has and the leader has overwritten is not taken for the value of its key."""
    name = buckets.make(unique("LAG"))
    buckets.put(name, a=b"1", b=b"2")
    scan = BucketSurvey.scan
    first = [batch for batch in _scanned(server, name, scan) if batch.num_rows]
    buckets.put(name, a=b"3")
    monkeypatch.setattr(BucketSurvey, "scan", lambda self, *given, **more: [*first, *scan(self, *given, **more)])
    assert brief(read_rows(server.url, bucket=name)) == [("b", b"2", 2), ("a", b"3", 3)]


def _scanned(server, name, scan):
    with TaskConnection(bucket_reader(server.url, bucket=name).connection) as bulk:
        survey = BucketSurvey(bulk, SourceOptions.parse({"bucket": name}))
        return list(scan(survey, 1, survey.next))


def test_names_come_in_pages_that_may_move(server, buckets, unique, monkeypatch):
    """Keys that go away while names are listed page by page hide no other key."""
    name = buckets.make(unique("P"))
    there = {f"$KV.{name}.k{number:03}": 1 for number in range(50)}
    with TaskConnection(bucket_reader(server.url, bucket=name).connection) as bulk:
        left, asked = dict(there), []

        def ask(method, body):
            asked.append(body["offset"])
            names = sorted(left)[body["offset"] : body["offset"] + 10]
            if len(asked) == 2:  # ten keys of pages that were read go away
                for gone in list(left)[:10]:
                    del left[gone]
            return {"state": {"subjects": dict.fromkeys(names, 1)}, "total": len(left)}

        monkeypatch.setattr(bulk, "ask", ask)
        monkeypatch.setattr("penstock.spark.connections.STEP_BACK", 4)
        assert bulk.totals(f"KV_{name}", ">").keys() == there.keys()
        assert asked != sorted(asked)


def test_the_state_at_a_revision_or_a_time(server, buckets, unique):
    """`end` gives the state before a sequence or at a time, as long as the history has it."""
    name = buckets.make(unique("A"), max_msgs_per_subject=3)
    buckets.put(name, a=b"1", b=b"2")
    buckets.delete(name, "a")  # 3
    buckets.put(name, a=b"4", c=b"5")
    at = [row["time"] for row in sorted(read_rows(server.url, bucket=name), key=lambda row: row["revision"])]
    assert brief(read_rows(server.url, bucket=name, end="1")) == []
    assert brief(read_rows(server.url, bucket=name, end="3")) == [("a", b"1", 1), ("b", b"2", 2)]
    assert brief(read_rows(server.url, bucket=name, end="4")) == [("b", b"2", 2)]
    assert brief(read_rows(server.url, bucket=name, end="99")) == [("b", b"2", 2), ("a", b"4", 4), ("c", b"5", 5)]
    assert brief(read_rows(server.url, bucket=name, end=at[1].isoformat().replace("+00:00", "Z"))) == [("b", b"2", 2)]
    assert brief(read_rows(server.url, bucket=name, end="4", keys="a,c", includeDeleted="true")) == [("a", "DEL", 3)]


@pytest.mark.parametrize("what", ["trimmed", "purged", "emptied", "aged", "removed"])
def test_a_past_that_is_not_known_is_an_error(server, buckets, unique, what):
    """A history that does not reach back is told, for every way in which it went."""
    config = {"max_age": 3600 * 10**9, "allow_msg_ttl": True} if what == "aged" else {}
    name = buckets.make(unique("U"), max_msgs_per_subject=2, **config)
    buckets.put(name, a=b"1", b=b"2")
    if what == "trimmed":
        buckets.write(name, ("a", b"3"), ("a", b"4"))
    elif what == "purged":
        buckets.purge(name, "a")
    elif what == "emptied":
        buckets.api(f"STREAM.PURGE.KV_{name}")
        buckets.put(name, c=b"3")
    elif what == "removed":
        buckets.api(f"STREAM.PURGE.KV_{name}", {"filter": f"$KV.{name}.a"})
        buckets.put(name, c=b"3")
    else:
        buckets.api(f"STREAM.MSG.DELETE.KV_{name}", {"seq": 1})
        buckets.put(name, c=b"3")
    with pytest.raises(DataLossError, match=f"What the bucket {name} held before 3 is not known"):
        read_rows(server.url, bucket=name, end="3")
    rows = brief(read_rows(server.url, bucket=name, end="3", failOnDataLoss="false"))
    assert rows == ([] if what == "emptied" else [("b", b"2", 2)])


def test_a_past_that_goes_while_it_is_read_is_an_error(server, buckets, unique):
    """A value that is overwritten between the plan and the task is no newer one if a revision was asked for."""
    name = buckets.make(unique("G"), max_msgs_per_subject=2)
    buckets.put(name, a=b"1", b=b"2", c=b"3")
    reader = bucket_reader(server.url, bucket=name, end="3")
    tasks = reader.partitions()
    buckets.write(name, ("a", b"4"), ("a", b"5"))
    with pytest.raises(DataLossError, match="the key a held before 3 was overwritten"):
        rows_of(reader, tasks)


def test_a_bucket_that_is_replaced_under_a_read_is_told(server, buckets, unique):
    """Another bucket of the name is not taken for the one that was planned."""
    name = buckets.make(unique("R"))
    buckets.put(name, a=b"1")
    reader = bucket_reader(server.url, bucket=name)
    tasks = reader.partitions()
    buckets.api(f"STREAM.DELETE.KV_{name}")
    buckets.make(name)
    buckets.put(name, a=b"2")
    with pytest.raises(DataLossError, match="was made anew"):
        rows_of(reader, tasks)


def test_a_bucket_that_is_purged_under_a_read_is_told(server, buckets, unique):
    """Keys that go without a marker while they are read are no smaller bucket; those that expire are gone by right."""
    name, aged = buckets.make(unique("V")), buckets.make(unique("AGED"), max_age=3600 * 10**9)
    for bucket in (name, aged):
        buckets.put(bucket, a=b"1", b=b"2")
        reader = bucket_reader(server.url, bucket=bucket)
        tasks = reader.partitions()
        buckets.api(f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.a"})
        if bucket == name:
            with pytest.raises(DataLossError, match="the key a held before 3 was removed without a marker"):
                rows_of(reader, tasks)
        else:
            assert brief(rows_of(reader, tasks)) == [("b", b"2", 2)]


def test_a_mirror_has_the_keys_of_its_origin(server, buckets, unique, eventually):
    """A bucket that mirrors another one keeps its subjects, and shows the same keys."""
    origin, copy = buckets.make(unique("ORIGIN")), unique("COPY")
    buckets.put(origin, a=b"1", b=b"2")
    buckets.delete(origin, "b")
    buckets.make(copy, mirror={"name": f"KV_{origin}"}, mirror_direct=True)
    eventually(lambda: buckets.info(copy)["state"]["last_seq"] == 3)
    assert brief(read_rows(server.url, bucket=copy)) == [("a", b"1", 1)]
    assert brief(read_rows(server.url, bucket=copy, keys="b", includeDeleted="true")) == [("b", "DEL", 3)]
    changes = Changes(server.url, bucket=copy)
    assert brief(changes.batch()) == [("a", b"1", 1), ("b", "DEL", 3)]
    changes.stop()


def test_buckets_that_are_none(server, buckets, unique):
    """A bucket that does not exist and a stream that is no bucket are told by name."""
    name = buckets.make(unique("N"))
    with pytest.raises(InputError, match=r"The bucket nowhere does not exist at .*") as told:
        bucket_reader(server.url, bucket="nowhere").partitions()
    assert name in str(told.value)
    plain = buckets.make(unique("PLAIN"), max_msgs_per_subject=-1)
    with pytest.raises(InputError, match="is not a bucket: it keeps every message"):
        bucket_reader(server.url, bucket=plain).partitions()
    assert read_rows(server.url, bucket=name) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bucket": "A", "stream": "B"}, "stream and bucket are given together"),
        ({"bucket": "A", "objects": "B"}, "bucket and objects are given together"),
        ({"bucket": "A", "backup": "/x"}, "bucket cannot be read from a backup"),
        ({"bucket": "A.B"}, "is 'A.B', which is not a name of a bucket"),
        ({"bucket": "A", "keys": "a..b"}, "holds 'a..b', which matches no key"),
        ({"bucket": "A", "keys": "*.b,a.*"}, "overlap"),
        ({"stream": "A", "keys": "a"}, "The option keys cannot be used here"),
        ({"stream": "A", "content": "none"}, "The option content cannot be used here"),
        ({"stream": "A", "includeDeleted": "true"}, "The option includeDeleted cannot be used here"),
        ({"bucket": "A", "subjects": "a"}, "The option subjects cannot be used here"),
        ({"bucket": "A", "includeHeaders": "false"}, "The option includeHeaders cannot be used here"),
        ({"bucket": "A", "end": '{"KV_A": 3}'}, "is an object, and one bucket is read"),
        ({"objects": "A", "end": "3"}, "The option end cannot be used here"),
    ],
)
def test_options_of_buckets_are_checked_before_anything_is_opened(options, sentence):
    """What makes no sense together is one sentence."""
    with pytest.raises(OptionError, match=sentence):
        SourceOptions.parse(options)


def test_what_is_for_batches_and_for_streams():
    """Options that only one of the two understands are refused by the other."""
    with pytest.raises(OptionError, match="The option start cannot be used here"):
        SourceOptions.parse({"bucket": "A", "start": "new"}).check_batch()
    for options in (
        {"bucket": "A", "includeDeleted": "true"},
        {"objects": "A", "maxBytesPerTrigger": "1m"},
        {"bucket": "A", "end": "3"},
    ):
        with pytest.raises(OptionError, match="cannot be used here"):
            SourceOptions.parse(options).check_stream()


def test_values_of_json_are_columns(server, buckets, unique):
    """Fields of values are columns beside the others; a bad value is told in its row, and a deleted key has none."""
    name = buckets.make(unique("J"), max_msgs_per_subject=5)
    buckets.put(name, a=b'{"id": 1, "tags": ["x"]}', b=b"no JSON", c=b'{"id": "?"}', d=b"{}")
    buckets.delete(name, "d")
    given = {"bucket": name, "format": "json", "jsonSchema": "id BIGINT, tags ARRAY<STRING>"}
    rows = read_rows(server.url, includeDeleted="true", **given)
    assert [(row["key"], row["id"], row["_error"]) for row in rows] == [
        ("a", 1, None),
        ("b", None, "the payload is not JSON"),
        ("c", None, "id is a string, not bigint"),
        ("d", None, None),
    ]
    assert (rows[0]["value"], rows[0]["tags"], rows[3]["operation"]) == (b'{"id": 1, "tags": ["x"]}', ["x"], "DEL")
    told = f"Revision 2 of key b of bucket {name} cannot be read: the payload is not JSON"
    with pytest.raises(MessageError, match=told):
        read_rows(server.url, **given, onBadJson="fail")
    inside = {**given, "jsonColumn": "found", "includeDeleted": "true"}
    assert [row["found"] and row["found"]["id"] for row in read_rows(server.url, **inside)] == [1, None, None, None]
    declared = {"bucket": name, "format": "json", "columns": "id BIGINT, operation STRING", "keys": "a"}
    assert read_rows(server.url, **declared) == [{"id": 1, "operation": "PUT"}]
    assert read_rows(server.url, **{**declared, "columns": "revision BIGINT"}) == [{"revision": 1}]


def test_values_of_text_are_strings(server, buckets, unique):
    """With format=text the value is a string, null for a deleted key; what is no text stops, or is escaped."""
    name = buckets.make(unique("T"), max_msgs_per_subject=5)
    buckets.put(name, a="é".encode())
    buckets.delete(name, "b")
    given = {"bucket": name, "format": "text", "includeDeleted": "true"}
    assert [row["value"] for row in read_rows(server.url, **given)] == ["é", None]
    buckets.put(name, c=b"\xff")
    with pytest.raises(MessageError, match=r"Revision 3 of key c .*not UTF-8"):
        read_rows(server.url, **given)
    assert [row["value"] for row in read_rows(server.url, **given, invalidText="escape")] == ["é", None, "\\xff"]
