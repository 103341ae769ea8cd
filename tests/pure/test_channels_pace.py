"""Which way of storing a gateway finds the quicker one, and what it costs to find out."""

from __future__ import annotations

import pytest

from penstock.channels.store import StoringPace


def store(pace: StoringPace, count: int, each: float, batch: float) -> tuple[float, list[bool]]:
    """Store so many messages at these costs; give the seconds, and which parts were atomic batches."""
    seconds, ways = 0.0, []
    while count:
        atomic, part, trial = pace.choose(count)
        assert 0 < part <= count
        took = batch + part * 8e-6 if atomic else part * each
        pace.took(part, took, atomic=atomic, trial=trial)
        seconds, count = seconds + took, count - part
        ways.append(atomic)
    return seconds, ways


@pytest.mark.parametrize("count", [100, 250, 1000])
@pytest.mark.parametrize(("each", "atomic"), [(0.001, True), (6e-6, False)])
def test_the_quicker_way_is_found(count, each, atomic):
    """A server that syncs each message gets atomic batches, any other one single messages; trials cost little."""
    pace = StoringPace()
    for _ in range(50):
        store(pace, count, each, 0.004)
    found = [store(pace, count, each, 0.004) for _ in range(1000)]
    assert sum(way is atomic for _, ways in found for way in ways) > 0.97 * sum(len(ways) for _, ways in found)
    best = 1000 * (0.004 + count * 8e-6 if atomic else count * each)
    assert sum(seconds for seconds, _ in found) < 1.2 * best


def test_what_changes_is_noticed():
    """If the server begins to sync each message, the way changes at once; if it stops, a trial finds out."""
    pace = StoringPace()
    for each, atomic in ((6e-6, False), (0.001, True), (6e-6, False)):
        for _ in range(5000):
            store(pace, 250, each, 0.004)
        ways = [way for _ in range(10) for way in store(pace, 250, each, 0.004)[1]]
        assert ways.count(atomic) > 8


def test_few_messages_are_stored_one_by_one():
    """One message at a time is never an atomic batch, which would take longer than a sync of it."""
    pace = StoringPace()
    assert not any(way for _ in range(100) for way in store(pace, 1, 0.0005, 0.004)[1])
