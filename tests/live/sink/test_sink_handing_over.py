"""Few rows, which tasks hand to the driver: stored at once, and as safely as those that tasks store."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from penstock.errors import DisconnectedError, FencedError, MarkerError
from penstock.spark.handing_over import MANY_TASKS, MOST_BYTES, MOST_ROWS, MOST_TASKS, hand_over
from penstock.spark.messages import Messages
from penstock.spark.sink_options import SinkOptions
from penstock.wire.arrow import HEADERS
from tests.live.sinking import Crash, Writer, as_messages, cut, numbered, stored

MANY = 20  # partitions


@pytest.fixture
def writer(server, stream) -> Writer:
    """A query whose tasks may hand rows over."""
    return Writer(server.url, stream, rows=400)


def last_sequence(bulk, stream) -> int:
    return bulk.api(f"STREAM.INFO.{stream}")["state"]["last_seq"]


def handed(writer, parts) -> list:
    return [writer.hand_over(rows, partition=number) for number, rows in enumerate(parts)]


def test_few_rows_in_many_partitions_use_up_few_sequences(writer, bulk, stream):
    """Two hundred rows of twenty tasks cost three sequences more, whatever the number of tasks."""
    rows = numbered(200)
    before = last_sequence(bulk, stream)
    writer.commit(handed(writer, [rows[number::MANY] for number in range(MANY)]))
    assert stored(bulk, stream) == Counter(rows)
    assert last_sequence(bulk, stream) - before == 203


def test_more_rows_than_fit_at_once(writer, bulk, stream):
    """A thousand rows of two hundred tasks are stored as those of one task, and a task that comes late is shut out."""
    rows = numbered(1000)
    parts = [rows[number::200] for number in range(200)]
    before = last_sequence(bulk, stream)
    writer.commit(handed(writer, parts))
    assert stored(bulk, stream) == Counter(rows)
    assert last_sequence(bulk, stream) - before - len(rows) == 2 + writer.sink.in_flight + 3 + 1
    with pytest.raises(FencedError):
        writer.attempt(rows[:5], task=9)
    writer.commit(handed(writer, cut(rows, 30, random.Random(5))), run="r2")
    assert stored(bulk, stream) == Counter(rows)


def test_a_batch_that_was_stored_at_once_is_not_stored_again(writer, bulk, stream):
    """A replay of it adds nothing, in whatever partitions, handed over or not, and the next batch follows."""
    rows = [*numbered(40), b"same", b"same"]
    writer.commit(handed(writer, [rows[:10], [], rows[10:]]))
    writer.commit(handed(writer, cut(rows, 3, random.Random(1))), run="r2")
    assert writer.whole_batch(cut(rows, 2, random.Random(2)), run="r3") == 0
    assert stored(bulk, stream) == Counter(rows)
    writer.commit(handed(writer, [numbered(5, "next")]), batch=1, run="r4")
    writer.commit(handed(writer, [[], []]), batch=2, run="r5")
    assert stored(bulk, stream) == Counter([*rows, *numbered(5, "next")])


def test_rows_that_were_missing_are_added(writer, bulk, stream):
    """A batch that was stored at once and is planned anew with more rows gets just those."""
    rows = numbered(30)
    writer.commit(handed(writer, [rows[:20]]))
    writer.commit(handed(writer, [rows[25:], rows[:25]]), run="r2")
    assert stored(bulk, stream) == Counter(rows)


def test_a_batch_that_lacks_rows_is_told(writer, bulk, stream):
    """A replay without rows that are stored contradicts them, as it does when tasks store them."""
    rows = numbered(30)
    writer.commit(handed(writer, [rows]))
    with pytest.raises(MarkerError, match="1 of the 30 rows"):
        writer.commit(handed(writer, [rows[1:]]), run="r2")
    with pytest.raises(MarkerError, match="was computed again with other rows"):
        writer.commit(handed(writer, [rows]), run="r3")


def test_tasks_that_store_and_tasks_that_hand_over_share_a_batch(writer, bulk, stream):
    """Where one task has begun the batch, the driver stores what the others handed over as they would have."""
    rows = numbered(600)
    large = writer.attempt(rows[:500], partition=1, task=7)
    writer.commit([*handed(writer, [rows[500:550]]), large, writer.hand_over(rows[550:], partition=2)])
    assert stored(bulk, stream) == Counter(rows)
    writer.commit(handed(writer, cut(rows, 5, random.Random(3))), run="r2")
    assert stored(bulk, stream) == Counter(rows)


def test_an_attempt_that_stored_and_one_that_handed_over(writer, bulk, stream):
    """Of two attempts at a task one stores some of its rows, and Spark takes the other: each row is there once."""
    rows = numbered(40)
    writer.sink = SinkOptions(stream=stream, atomic_rows=100, in_flight=2, patience=20.0)
    outcome = writer.hand_over(rows, partition=3, task=5)
    with pytest.raises(Crash):
        writer.attempt(rows, partition=3, task=6, crash_after=20)
    writer.commit([outcome])
    assert stored(bulk, stream) == Counter(rows)


def test_a_task_that_comes_late_stores_nothing(writer, bulk, stream):
    """An attempt of the same run that joins when the batch is done finds all of it stored."""
    rows = numbered(30)
    writer.commit(handed(writer, [rows]))
    assert writer.attempt(rows, task=9).stored == 0
    assert stored(bulk, stream) == Counter(rows)


def test_a_lost_ack_repeats_nothing(writer, bulk, stream):
    """The batch is stored and its ack is lost: the driver finds its own head."""
    lost = []

    def lose(bulk) -> None:
        settle = bulk.settle

        def once(*given):
            found = settle(*given)
            if not lost:
                lost.append(found)
                raise DisconnectedError("The connection is gone.")
            return found

        bulk.settle = once

    rows = numbered(30)
    writer.commit(handed(writer, [rows]), around=lose)
    assert lost
    assert stored(bulk, stream) == Counter(rows)
    writer.commit(handed(writer, [numbered(3, "next")]), batch=1, run="r2")


def test_of_two_drivers_one_stores_the_batch(writer, bulk, stream):
    """A driver of an earlier start is stopped, and so is one whose batch does not follow."""
    rows = numbered(30)
    writer.start = "s1"
    writer.commit(handed(writer, [rows]))
    writer.start = "s2"
    writer.commit(handed(writer, [numbered(10, "b1")]), batch=1, run="r2")
    writer.start = "s1"
    with pytest.raises(FencedError):
        writer.commit(handed(writer, [numbered(10, "b1")]), batch=1, run="r3")
    writer.start = "s2"
    with pytest.raises(MarkerError, match="now comes 3"):
        writer.commit(handed(writer, [rows]), batch=3, run="r4")
    with pytest.raises(MarkerError, match="holds batch 1"):
        writer.commit(handed(writer, [rows]), run="r5")
    assert stored(bulk, stream) == Counter([*rows, *numbered(10, "b1")])


@pytest.mark.parametrize("batch", [0, 1])
def test_a_driver_that_looked_before_another_one_stored_adds_nothing(writer, server, bulk, stream, batch):
    """Two drivers find the same head, and one stores the batch before the other one sends it: it is there once."""
    wanted = Counter[bytes]()
    for number in range(batch):
        wanted.update(rows := numbered(10, f"b{number}"))
        writer.commit(handed(writer, [rows]), batch=number, run=f"earlier-{number}")
    rows = numbered(30)
    other = Writer(server.url, stream, rows=400)
    overtaken = []

    def overtake(bulk) -> None:
        post = bulk.post

        def after_the_other(*given):
            if not overtaken:
                overtaken.append(True)
                other.commit(handed(other, [rows]), batch=batch, run="r2")
            return post(*given)

        bulk.post = after_the_other

    writer.commit(handed(writer, [rows]), batch=batch, run="r1", around=overtake)
    assert overtaken
    assert stored(bulk, stream) == wanted + Counter(rows)


def test_a_message_id_that_is_known_is_not_stored_again(writer, bulk, stream):
    """A batch that has such a row is stored row by row where it must be, and that row is not."""
    ids = [[("Nats-Msg-Id", [f"id-{number}"])] for number in range(9)]

    def message(number: int) -> Messages:
        subjects, data = pa.array([f"{stream}.rows"]), pa.array([b"row-%d" % number], pa.binary())
        return Messages(subjects, data, pa.array([ids[number]], HEADERS))

    writer.messages = lambda rows, step: map(message, rows)
    writer.commit(handed(writer, [[0, 1, 2]]))
    writer.commit(handed(writer, [[3, 4], [1, 5]]), batch=1, run="r2")
    assert stored(bulk, stream) == Counter(b"row-%d" % number for number in range(6))


def test_many_rows_are_not_handed_over(stream):
    """What is too much for the driver, by rows, by bytes or by the number of tasks, is left to the task, whole."""
    options = SinkOptions(stream=stream)
    for rows, partition in (
        (numbered(MOST_ROWS + 1), 0),
        ([b"x" * MOST_BYTES], 0),
        (numbered(3), MOST_TASKS),
        ([b"x" * (MOST_BYTES // 16)], MANY_TASKS),
    ):
        given, rest = hand_over(as_messages(stream, rows, 7), options, partition, 1)
        assert given is None
        assert [data for messages in rest for data in messages.data.to_pylist()] == rows


@pytest.mark.parametrize("seed", range(6))
def test_any_history_with_rows_handed_over_ends_with_each_row_once(server, stream, bulk, seed):
    """Runs, partitions, attempts and crashes at random, some tasks storing and some handing over."""
    dice = random.Random(seed)
    writer = Writer(server.url, stream, rows=dice.choice([10, 60, 400]))
    wanted: Counter[bytes] = Counter()
    for batch in range(3):
        rows = [*numbered(dice.randrange(60), f"b{batch}"), *[b"same"] * dice.randrange(3)]
        wanted.update(rows)
        for run in range(dice.randrange(1, 4)):
            name, outcomes = f"{batch}-{run}", []
            for number, part in enumerate(cut(rows, dice.randrange(1, 5), dice)):
                outcome = None
                for task in range(dice.randrange(1, 4)):
                    if dice.random() < 0.6 and len(part) <= writer.sink.atomic_rows:
                        outcome = outcome or writer.hand_over(part, partition=number, task=task)
                        continue
                    try:
                        crash = dice.choice([None, dice.randrange(len(part) + 1)])
                        found = writer.attempt(
                            part, batch=batch, run=name, partition=number, task=task, crash_after=crash
                        )
                        outcome = outcome or found
                    except Crash:
                        continue
                outcomes.append(outcome)
            if None not in outcomes and dice.random() < 0.7:
                writer.commit(outcomes, batch=batch, run=name)
        writer.commit(handed_or_stored(writer, cut(rows, 2, dice), batch, dice), batch=batch, run=f"{batch}-last")
        assert stored(bulk, stream) == wanted


def handed_or_stored(writer, parts, batch, dice) -> list:
    return [
        writer.hand_over(part, partition=number)
        if len(part) <= writer.sink.atomic_rows and dice.random() < 0.5
        else writer.attempt(part, batch=batch, run=f"{batch}-last", partition=number)
        for number, part in enumerate(parts)
    ]
