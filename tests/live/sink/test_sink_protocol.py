"""The exactly-once protocol of the sink, step by step against a real server: what is tried twice is stored once."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from penstock.errors import FencedError, MarkerError, PenstockError
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import MARKER_ROOT, origin_subject
from tests.live.sinking import Crash, Writer, cut, make_stream, numbered, stored


def markers(bulk: TaskConnection, stream: str) -> dict[str, int]:
    state = bulk.api(f"STREAM.INFO.{stream}", {"subjects_filter": f"{MARKER_ROOT}.>"})["state"]
    return state.get("subjects") or {}


def test_the_markers_of_a_batch_stay_until_the_next_begins(writer, bulk, stream):
    """After a batch the stream holds its rows and what a replay of it needs; after the next, nothing of the first."""
    rows = numbered(50)
    assert writer.whole_batch([rows[:20], rows[20:]]) == 50
    assert stored(bulk, stream) == Counter(rows)
    kept = markers(bulk, stream)
    assert {origin_subject(stream): 1, writer.subjects.anchor: 1, writer.subjects.head: 2}.items() <= kept.items()
    writer.whole_batch([[], []], batch=1, run="r2")
    assert markers(bulk, stream) == {origin_subject(stream): 1, writer.subjects.anchor: 1, writer.subjects.head: 1}


def test_a_write_that_nothing_follows_leaves_one_marker(writer, bulk, stream):
    """A write that is no query has no next batch: once it is done, one message says so."""
    writer.series = False
    writer.whole_batch([numbered(20)])
    assert markers(bulk, stream) == {origin_subject(stream): 1, writer.subjects.head: 1}


def test_a_finished_batch_is_not_written_again(writer, bulk, stream):
    """A replay of a batch that was finished before Spark wrote it down adds nothing, in whatever partitions."""
    rows = [*numbered(20), b"same", b"same"]
    writer.whole_batch([rows])
    for again in range(3):
        parts = cut(rows, 3, random.Random(again))
        assert writer.whole_batch(parts, run=f"again-{again}") == 0
    assert stored(bulk, stream) == Counter(rows)


def test_a_finished_batch_that_was_planned_anew_gets_the_rows_that_are_missing(writer, bulk, stream):
    """A checkpoint that lost its last batch plans it again with more rows: just those are stored."""
    rows = [*numbered(40), b"same", b"same"]
    writer.whole_batch([rows[:10], rows[10:30]])
    assert writer.whole_batch(cut(rows, 3, random.Random(4)), run="r2") == 12
    assert writer.whole_batch([rows, [b"more"]], run="r3") == 1
    assert stored(bulk, stream) == Counter([*rows, b"more"])
    assert writer.whole_batch([numbered(5, "next")], batch=1, run="r4") == 5


def test_rows_that_an_unfinished_plan_added_are_not_forgotten(writer, bulk, stream):
    """A finished batch is planned anew with more rows and not finished; planned as at first it lacks them: told."""
    writer.whole_batch([numbered(20)])
    assert writer.attempt(numbered(40)[::-1], run="r2").stored == 20
    with pytest.raises(MarkerError, match="20 of the 40 rows that were stored before are not in it any more"):
        writer.whole_batch([numbered(20)], run="r3")  # with the next batch the others would come again


def test_batches_follow_each_other(writer, bulk, stream):
    """The same row in two batches is two messages."""
    for batch in range(4):
        writer.whole_batch([numbered(12)], batch=batch, run=f"r{batch}")
    assert stored(bulk, stream) == Counter(numbered(12) * 4)


def test_a_second_attempt_goes_on_in_any_order(writer, bulk, stream):
    """An attempt that finds rows of an earlier one stores the rest, though the order of the rows differs."""
    rows = numbered(60) + [b"same"] * 9
    with pytest.raises(Crash):
        writer.attempt(rows, crash_after=32, task=1)
    again = random.Random(1).sample(rows, len(rows))
    outcome = writer.attempt(again, task=2)
    assert outcome.found > 0
    assert outcome.found + outcome.stored == len(rows)
    writer.commit([outcome])
    assert stored(bulk, stream) == Counter(rows)


def test_a_replay_finds_its_rows_in_other_partitions(writer, bulk, stream):
    """A batch replayed by another run with other partitions adds only what is missing, equal rows counted."""
    rows = numbered(80) + [b"same"] * 10 + [b"twice", b"twice"]
    dice = random.Random(2)
    for number, part in enumerate(cut(rows, 4, dice)):
        with pytest.raises(Crash):
            writer.attempt(part, partition=number, task=number, crash_after=len(part) // 2)
    assert 0 < writer.whole_batch(cut(rows, 3, dice), run="r2") < len(rows)
    assert stored(bulk, stream) == Counter(rows)


@pytest.mark.parametrize("seed", range(8))
def test_any_history_of_a_batch_ends_with_each_row_once(server, bulk, unique, seed):
    """Runs, partitions, orders, attempts and crashes at random, before and after the batch is done, which then comes
    again with the same rows or with more: in the end each row is there once.
    """
    stream = unique("SINK")
    make_stream(bulk, stream)
    dice = random.Random(seed)
    writer = Writer(server.url, stream, rows=dice.choice([1, 2, 7, 50]))
    everything: Counter[bytes] = Counter()
    for batch in range(2):
        rows = [f"{dice.randrange(40)}".encode() for _ in range(dice.randrange(1, 90))]
        for plan in range(dice.randrange(1, 3)):
            if plan:
                rows += [f"{dice.randrange(60)}".encode() for _ in range(dice.randrange(30))]
            for history in range(dice.randrange(1, 4)):
                run = f"{batch}-{plan}-{history}"
                writer.asked(in_flight=dice.choice([2, 4]))
                for number, part in enumerate(cut(rows, dice.randrange(1, 5), dice)):
                    for task in range(dice.randrange(0, 3)):
                        crash = dice.choice([None, dice.randrange(len(part) + 1)])
                        shuffled = dice.sample(part, len(part))
                        try:
                            writer.attempt(
                                shuffled, batch=batch, run=run, partition=number, task=task, crash_after=crash, step=3
                            )
                        except Crash:
                            continue
            for again in range(dice.randrange(1, 3)):
                parts = cut(rows, dice.randrange(1, 5), dice)
                writer.whole_batch(parts, batch=batch, run=f"{batch}-{plan}-last-{again}")
                assert stored(bulk, stream) == everything + Counter(rows)
        everything.update(rows)


@pytest.mark.parametrize("seed", range(4))
def test_a_history_that_contradicts_itself_is_known_from_then_on(server, bulk, unique, seed):
    """Whatever rows a run computes, and however far it gets: once a contradiction was told, no start adds a row; kept,
    the next batch follows.
    """
    stream = unique("SINK")
    make_stream(bulk, stream)
    dice = random.Random(seed)
    writer = Writer(server.url, stream, rows=dice.choice([2, 7]))
    rows = numbered(dice.randrange(10, 40))
    lost = dice.sample(rows, dice.randrange(1, len(rows)))
    if dice.random() < 0.5:
        writer.whole_batch(cut([*rows, *lost], 2, dice))
    else:
        with pytest.raises(Crash):
            writer.attempt([*lost, *lost, *rows], crash_after=2 * len(lost) + 8)
    later = [*rows, *numbered(dice.randrange(5), "more")]
    with pytest.raises(MarkerError, match="are not in it any more"):
        writer.whole_batch(cut(later, 3, dice), run="r2")
    before = stored(bulk, stream)
    assert before > Counter(later)
    for run in ("r3", "r4"):
        with pytest.raises(MarkerError, match="Nothing was written by this start"):
            writer.whole_batch(cut([*rows, *numbered(4, run)], dice.randrange(1, 4), dice), run=run)
    assert stored(bulk, stream) == before
    writer.asked(on_changed_rows="keep")
    assert writer.whole_batch(cut(numbered(9, "r5"), 2, dice), run="r5") == 0
    writer.asked(on_changed_rows="fail")
    assert writer.whole_batch([later], run="r6") == 0  # what the stream was told to keep is no contradiction any more
    assert stored(bulk, stream) == before
    assert writer.whole_batch([numbered(3, "next")], batch=1, run="r7") == 3


@pytest.mark.parametrize("seed", range(4))
def test_attempts_that_run_at_the_same_time_store_each_row_once(server, bulk, unique, seed):
    """Attempts of one partition race: some are fenced, and what they stored together is each row once."""
    stream = unique("SINK")
    make_stream(bulk, stream)
    dice = random.Random(seed)
    writer = Writer(server.url, stream, rows=3, lanes=3)
    rows = [f"{number % 70}".encode() for number in range(120)]
    outcomes, failures = race(
        [lambda task=task: writer.attempt(dice.sample(rows, len(rows)), task=task, step=2) for task in range(4)]
    )
    assert all(isinstance(error, FencedError) for error in failures), failures
    outcome = writer.attempt(rows, task=99)
    writer.commit([*outcomes, outcome])
    assert stored(bulk, stream) == Counter(rows)


@pytest.mark.parametrize("seed", range(4))
def test_drivers_that_run_at_the_same_time_store_each_row_once(server, bulk, unique, seed):
    """A driver that was replaced while its tasks ran cannot store a row any more once its successor has begun."""
    stream = unique("SINK")
    make_stream(bulk, stream)
    dice = random.Random(seed)
    writer = Writer(server.url, stream, rows=3, lanes=2)
    rows = [f"{number % 50}".encode() for number in range(90)]

    def drive(run: str) -> None:
        parts = cut(rows, dice.randrange(1, 4), dice)
        outcomes = [
            writer.attempt(part, run=run, partition=number, task=number, step=2) for number, part in enumerate(parts)
        ]
        writer.commit(outcomes, run=run)

    _, failures = race([lambda run=run: drive(f"r{run}") for run in range(3)])
    assert all(isinstance(error, FencedError) for error in failures), failures
    writer.whole_batch(cut(rows, 2, dice), run="last")
    assert stored(bulk, stream) == Counter(rows)


def race(actions):
    """Do things at the same time; give their results and their failures."""
    results, failures = [], []

    def act(action):
        try:
            results.append(action())
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=act, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results, failures
