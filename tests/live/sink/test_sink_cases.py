"""The hard cases of writing exactly once: lost connections, limits, restores, strangers, neighbours."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from penstock.errors import FencedError, JetStreamError, MarkerError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from penstock.spark.exactly_once import Task
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE as EXPECTED
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT as EXPECTED_SUBJECT
from tests.live.sinking import Crash, Writer, cut, make_stream, numbered, row_subjects, stored


def torn(seed: int, share: float):
    """Cut the connection of a task now and then, with batches under way whose acks never come."""
    dice = random.Random(seed)

    def wrap(task: Task) -> None:
        settle = task.bulk.settle

        def unsteady(*given):
            if dice.random() < share:
                task.bulk.wire.close()
            return settle(*given)

        task.bulk.settle = unsteady

    return wrap


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_connection_repeats_nothing(writer, bulk, stream, seed):
    """A task that loses its connection finds out what was stored, and sends the rest again."""
    rows = numbered(150) + [b"same"] * 20
    outcome = writer.attempt(rows, around=torn(seed, 0.2))
    assert outcome.stored == len(rows)
    writer.commit([outcome])
    assert stored(bulk, stream) == Counter(rows)


def test_more_than_a_thousand_rows(server, bulk, stream):
    """A partition of many rows is stored in many batches of the largest size, and a replay still adds nothing."""
    writer = Writer(server.url, stream, rows=999, lanes=4)
    rows = numbered(4500)
    with pytest.raises(Crash):
        writer.attempt(rows, step=1000, crash_after=3000)
    outcome = writer.attempt(rows[::-1], step=1000, run="r2")
    assert outcome.found >= 999
    writer.commit([outcome], run="r2")
    assert stored(bulk, stream) == Counter(rows)


def test_a_zombie_cannot_write(writer, bulk, stream):
    """An attempt that wakes up after another took its place stores nothing more, and is told so."""
    rows = numbered(40)
    zombie = []

    def sleepy(task: Task) -> None:
        send = task._send

        def later(*given):
            if not zombie:
                zombie.append(writer.attempt(rows, task=2))
            return send(*given)

        task._send = later

    with pytest.raises(FencedError):
        writer.attempt(rows, task=1, around=sleepy)
    writer.commit(zombie)
    assert stored(bulk, stream) == Counter(rows)


def test_a_zombie_of_a_finished_batch_cannot_write(writer, bulk, stream):
    """A task that wakes up when its batch is long done, its markers purged, stores nothing."""
    rows = numbered(40)

    def sleepy(task: Task) -> None:
        send = task._send

        def later(*given):
            task._send = send
            writer.whole_batch([rows], run="r2")
            writer.whole_batch([numbered(5, "next")], batch=1, run="r3")
            return send(*given)

        task._send = later

    with pytest.raises(FencedError):
        writer.attempt(rows, around=sleepy)
    assert stored(bulk, stream) == Counter(rows + numbered(5, "next"))


def test_a_replaced_driver_cannot_finish_a_batch(writer, bulk, stream):
    """The commit of a driver that was replaced is refused, and so is its next attempt at a task."""
    rows = numbered(30)
    old = writer.attempt(rows, run="old")
    new = writer.attempt(rows, run="new")
    assert (new.stored, new.found) == (0, 30)
    with pytest.raises(FencedError):
        writer.commit([old], run="old")
    with pytest.raises(FencedError):
        writer.attempt(rows, run="old", task=2)
    writer.commit([new], run="new")
    assert stored(bulk, stream) == Counter(rows)


def test_without_the_fence_a_zombie_repeats_rows(writer, bulk, stream, monkeypatch):
    """These tests can fail: with the fence taken out of the batches, a zombie stores its rows again."""
    post = TaskConnection.post

    def unfenced(self, content, batch_id, number, subject, headers, payload):
        loose = {name: value for name, value in headers.items() if name not in (EXPECTED, EXPECTED_SUBJECT)}
        return post(self, content, batch_id, number, subject, loose if content else headers, payload)

    monkeypatch.setattr(TaskConnection, "post", unfenced)
    rows = numbered(40)
    woken = []

    def sleepy(task: Task) -> None:
        send = task._send

        def later(*given):
            if not woken:
                woken.append(writer.attempt(rows, task=2))
            return send(*given)

        task._send = later

    writer.attempt(rows, task=1, around=sleepy)
    assert stored(bulk, stream) != Counter(rows)


def test_strangers_write_into_the_same_stream(writer, bulk, stream):
    """Messages of others between the batches change nothing."""
    rows = numbered(60)
    foreign = []

    def busy(task: Task) -> None:
        send = task._send

        def later(*given):
            foreign.append(b"foreign-%d" % len(foreign))
            bulk.request(f"{stream}.rows", foreign[-1])
            return send(*given)

        task._send = later

    with pytest.raises(Crash):
        writer.attempt(rows, crash_after=30, around=busy)
    writer.commit([writer.attempt(rows, run="r2", around=busy)], run="r2")
    assert stored(bulk, stream) == Counter(rows + foreign)


def test_two_queries_write_the_same_rows_into_one_stream(server, bulk, stream):
    """Queries do not know of each other: the same row of both is two messages, also after replays of both."""
    rows = numbered(30)
    writers = [Writer(server.url, stream, query=name) for name in ("one", "two")]
    for writer in writers:
        with pytest.raises(Crash):
            writer.attempt(rows, crash_after=16)
    for writer in writers:
        writer.whole_batch(cut(rows, 2, random.Random(3)), run="r2")
    assert stored(bulk, stream) == Counter(rows * 2)


def test_a_checkpoint_older_than_the_stream_is_refused(writer, bulk, stream):
    """A restored checkpoint would plan other batches under the same numbers: nothing is written."""
    for batch in range(3):
        writer.whole_batch([numbered(5, f"b{batch}")], batch=batch, run=f"r{batch}")
    before = stored(bulk, stream)
    with pytest.raises(MarkerError, match="holds batch 2 of this query, and this run wants to write batch 1"):
        writer.whole_batch([numbered(9, "b1")], batch=1, run="restored")
    assert stored(bulk, stream) == before


def test_the_last_batch_of_a_restored_checkpoint_adds_nothing(writer, bulk, stream):
    """A backup taken before the last batch was noted as done replays that batch, which is known, and goes on."""
    for batch in range(2):
        writer.whole_batch([numbered(5, f"b{batch}")], batch=batch, run=f"r{batch}")
    assert writer.whole_batch([numbered(5, "b1")], batch=1, run="restored") == 0
    writer.whole_batch([numbered(5, "b2")], batch=2, run="next")
    assert stored(bulk, stream) == Counter(numbered(5, "b0") + numbered(5, "b1") + numbered(5, "b2"))


def test_lost_markers_are_noticed(writer, bulk, stream):
    """A query that is not new and of which the stream knows nothing stops, unless told to start from here."""
    writer.whole_batch([numbered(5)])
    bulk.api(f"STREAM.PURGE.{stream}")
    with pytest.raises(MarkerError, match="knows nothing of this query"):
        writer.whole_batch([numbered(5)], batch=1, run="r2")
    assert not stored(bulk, stream)
    writer.asked(on_missing_markers="start")
    assert writer.whole_batch([numbered(5)], batch=1, run="r3") == 5


def test_a_stream_older_than_the_checkpoint_is_noticed(writer, bulk, stream):
    """Where the stream lacks whole batches that the checkpoint has, or the end of one, the query stops."""
    writer.whole_batch([numbered(5)])
    with pytest.raises(MarkerError, match="up to batch 0, and now comes 2"):
        writer.attempt(numbered(5), batch=2, run="r2")
    with pytest.raises(Crash):
        writer.attempt(numbered(20), batch=1, run="r3", crash_after=12)
    with pytest.raises(MarkerError, match="Batch 1 of this query is unfinished"):
        writer.attempt(numbered(5), batch=2, run="r4")


@pytest.mark.parametrize("limit", [{"max_msgs": 40}, {"max_bytes": 6000}])
def test_a_limit_that_takes_the_markers_of_a_batch_is_noticed(server, bulk, unique, limit):
    """Where the stream dropped journals of an unfinished batch, a replay cannot know what was stored and stops."""
    name = unique("SINK")
    make_stream(bulk, name, **limit)
    writer = Writer(server.url, name)
    writer.whole_batch([numbered(3)])
    with pytest.raises(Crash):
        writer.attempt(numbered(30), batch=1, run="r2", crash_after=12)
    for number in range(60):
        bulk.request(f"{name}.rows", b"%d" % number)
    with pytest.raises(MarkerError, match=r"dropped markers|knows nothing"):
        writer.attempt(numbered(30), batch=1, run="r3")
    writer.asked(on_missing_markers="start")
    assert writer.whole_batch([numbered(5)], batch=1, run="r4") == 5


def test_one_message_a_subject_is_enough(server, bulk, unique):
    """A stream that keeps the last message of each subject, as a table does, keeps what a replay needs."""
    name = unique("SINK")
    make_stream(bulk, name, max_msgs_per_subject=1)
    writer = Writer(server.url, name, rows=4)
    rows = numbered(40)
    with pytest.raises(Crash):
        writer.attempt(rows, crash_after=24)
    outcome = writer.attempt(rows, run="r2")
    assert outcome.found >= 12
    assert outcome.found + outcome.stored == 40


def test_markers_outlive_the_age_of_messages(server, bulk, unique, eventually):
    """Where messages expire, markers stay: a query that slept longer than that goes on."""
    name = unique("SINK")
    make_stream(bulk, name, max_age=1_000_000_000, duplicate_window=1_000_000_000, allow_msg_ttl=True)
    writer = Writer(server.url, name)
    writer.keep = True
    assert writer.whole_batch([numbered(5)]) == 5
    eventually(lambda: not row_subjects(bulk, name))
    assert writer.whole_batch([numbered(5)], batch=1, run="r2") == 5


def test_replays_past_the_duplicate_window_add_nothing(server, bulk, unique):
    """No duplicate window is involved: a replay long after it adds nothing."""
    name = unique("SINK")
    make_stream(bulk, name, duplicate_window=100_000_000)
    writer = Writer(server.url, name)
    with pytest.raises(Crash):
        writer.attempt(numbered(30), crash_after=20)
    time.sleep(0.3)  # the window is what is being waited for
    writer.whole_batch([numbered(30)], run="r2")
    assert stored(bulk, name) == Counter(numbered(30))


def test_rows_that_a_replay_does_not_have_are_noticed(writer, bulk, stream):
    """A query that computes other rows the second time is found out: the driver sees that rows belong to nobody."""
    with pytest.raises(Crash):
        writer.attempt(numbered(30, "first"), crash_after=20)
    with pytest.raises(MarkerError, match="are not in it any more"):
        writer.whole_batch([numbered(30, "second")], run="r2")


def test_an_attempt_whose_rows_changed_is_stopped(writer):
    """Within one run a partition has the same rows every time; where it has not, the attempt fails."""
    with pytest.raises(Crash):
        writer.attempt(numbered(30, "first"), crash_after=20)
    with pytest.raises(MarkerError, match="lacks"):
        writer.attempt(numbered(30, "second"), task=2)


def test_an_empty_batch_counts(writer, bulk, stream):
    """A batch without rows is known as done, so that the next one follows on it."""
    assert writer.whole_batch([[], []]) == 0
    assert writer.whole_batch([numbered(3)], batch=1, run="r2") == 3


def test_a_server_that_is_away_for_a_while(unique, tmp_path):
    """A task outlives a server that is killed and started again, and stores each row once."""
    with Server(sync="2m") as server:
        bulk = TaskConnection(ConnectionOptions(server.url))
        name = unique("SINK")
        make_stream(bulk, name)
        bulk.close()
        writer = Writer(server.url, name)
        rows = numbered(200)
        settled = []

        def shaken(task: Task) -> None:
            settle = task.bulk.settle

            def count(*given):
                settled.append(1)
                if len(settled) in (5, 20):
                    server.nodes[0].kill()
                    server.nodes[0].start()
                return settle(*given)

            task.bulk.settle = count

        outcome = writer.attempt(rows, around=shaken)
        writer.commit([outcome])
        bulk = TaskConnection(ConnectionOptions(server.url))
        assert stored(bulk, name) == Counter(rows)
        bulk.close()


def test_a_stream_without_the_switch_refuses(server, bulk, unique):
    """A stream that does not allow atomic batches stores nothing of them."""
    name = unique("SINK")
    make_stream(bulk, name)
    config = bulk.api(f"STREAM.INFO.{name}")["config"]
    bulk.api(f"STREAM.UPDATE.{name}", {**config, "allow_atomic": False})
    with pytest.raises(JetStreamError, match="10174"):
        Writer(server.url, name).attempt(numbered(3))
    assert not stored(bulk, name)
