"""How long something may take, and how often it is tried again."""

from __future__ import annotations

import pytest

from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LocalProtocolError,
    LoginError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
    UnreachableError,
)
from penstock.wire import patience
from penstock.wire.patience import PAUSE, PAUSE_MOST, Deadline, Patience


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    return made


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_deadline_counts_down_to_zero(clock: Clock):
    """What is left grows smaller, and never negative; the check raises from the moment on."""
    deadline = Deadline(2.0)
    assert (deadline.seconds, deadline.left) == (2.0, 2.0)
    deadline.check()
    clock.now += 1.5
    assert deadline.left == 0.5
    deadline.check()
    clock.now += 0.5
    assert deadline.left == 0.0
    with pytest.raises(DeadlineError, match="No answer within 2 s") as caught:
        deadline.check()
    assert caught.value.seconds == 2.0
    clock.now += 100
    assert deadline.left == 0.0


def test_a_shorter_deadline_within_one(clock: Clock):
    """What is within a deadline ends with it at the latest."""
    deadline = Deadline(10.0)
    assert deadline.within(3.0).left == 3.0
    clock.now += 8.0
    inner = deadline.within(3.0)
    assert (inner.left, inner.seconds) == (2.0, 2.0)
    clock.now += 3.0
    assert deadline.within(3.0).left == 0.0


def test_no_time_at_all():
    """A deadline of nothing is over at once."""
    with pytest.raises(DeadlineError):
        Deadline(0.0).check()
    with pytest.raises(DeadlineError):
        Deadline(-1.0).check()


# -- patience ----------------------------------------------------------------------------------------------------------

PASSES: list[PenstockError] = [
    DisconnectedError("gone"),
    DeadlineError("late"),
    UnreachableError("away"),
    JetStreamError("no leader", code=503, err_code=10008),
    JetStreamError("busy", code=429, err_code=10167),
]
STAYS: list[PenstockError] = [
    LoginError("no"),
    DeniedError("no"),
    InputError("no"),
    LocalProtocolError("no"),
    RemoteProtocolError("no"),
    NotFoundError("no", code=404, err_code=10059),
    JetStreamError("full", code=503, err_code=10077),
    NoRespondersError("nobody"),
]


@pytest.mark.parametrize("error", PASSES, ids=lambda error: f"{type(error).__name__} {error}")
def test_what_passes_is_waited_out(error: PenstockError, clock: Clock):
    """A failure that passes by itself gives a pause, until the time is over; then it is raised."""
    patient = Patience(5.0)
    assert 0 < patient.pause(error) <= 5.0
    clock.now += 5.0
    with pytest.raises(type(error)) as caught:
        patient.pause(error)
    assert caught.value is error


@pytest.mark.parametrize("error", STAYS, ids=lambda error: f"{type(error).__name__} {error}")
def test_what_stays_is_raised_at_once(error: PenstockError):
    """A refusal will be one again: nobody waits for it."""
    with pytest.raises(type(error)) as caught:
        Patience(1000.0).pause(error)
    assert caught.value is error


def test_nobody_may_come():
    """Where nobody listens nobody will, unless the caller knows better."""
    assert Patience(5.0, nobody=True).pause(NoRespondersError("nobody")) > 0
    with pytest.raises(LoginError):
        Patience(5.0, nobody=True).pause(LoginError("no"))


def test_no_patience_at_all():
    """With no time to wait every failure is raised."""
    with pytest.raises(DeadlineError):
        Patience(0.0).pause(DeadlineError("late"))


def test_pauses_grow_and_are_spread():
    """Each pause is about twice the one before, up to the most, and none is quite like another."""
    error = DeadlineError("late")
    runs = []
    for _ in range(50):
        patient = Patience(1000.0)
        runs.append([patient.pause(error) for _ in range(10)])
    for number in range(10):
        middle = min(PAUSE * 2**number, PAUSE_MOST)
        found = [run[number] for run in runs]
        assert 0.75 * middle <= min(found) <= max(found) <= 1.25 * middle
        assert len(set(found)) > 40


def test_the_last_pause_ends_with_the_time(clock: Clock):
    """Nobody sleeps longer than there is time."""
    patient = Patience(100.0)
    for _ in range(10):
        patient.pause(DeadlineError("late"))
    clock.now += 99.99
    assert patient.pause(DeadlineError("late")) == pytest.approx(0.01)


def test_what_moved_begins_anew(clock: Clock):
    """Patience is for standing still: after something went well, time and pauses begin anew."""
    patient = Patience(10.0)
    for _ in range(10):
        patient.pause(DeadlineError("late"))
    clock.now += 9.0
    patient.moved()
    clock.now += 9.0
    assert patient.pause(DeadlineError("late")) <= PAUSE * 1.25
    clock.now += 1.0
    with pytest.raises(DeadlineError):
        patient.pause(DeadlineError("late"))
