"""Which rows of a bulk publish are stored, put together from their acks."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import JetStreamError, PublishError
from penstock.wire.bulk.publishing import Ack, AckedRows, Job
from penstock.wire.patience import Deadline


def acked(*rows: tuple[int, int]) -> AckedRows:
    """Note the acks of single rows, each with its sequence."""
    found = AckedRows("S")
    for row, sequence in rows:
        found.add_row(row, sequence, False)
    return found


def test_neighbours_are_one_ack():
    """Rows that follow each other in number and in sequence are one ack, in whatever order the acks came."""
    assert acked((0, 7), (1, 8), (2, 9)).acks == (Ack(0, 3, 9),)
    assert acked((2, 9), (0, 7), (1, 8)).acks == (Ack(0, 3, 9),)
    assert acked((0, 7), (1, 9), (2, 10)).acks == (Ack(0, 1, 7), Ack(1, 2, 10))


def test_a_refused_row_is_not_stored():
    """A row between others that were stored one after the other is not taken for stored, nor is one for missing."""
    found = acked((0, 1), (1, 2), (3, 3), (4, 4))
    assert found.acks == (Ack(0, 2, 2), Ack(3, 2, 4))
    assert found.failure("row 2 was refused").stored == ((0, 2), (3, 5))


def test_what_does_not_join():
    """Repeats, batches with others' messages between their own, and acks that were lost stand for themselves."""
    found = acked((0, 1))
    found.add(1, 2, 3, duplicate=True)
    found.add(3, 2, 5, contiguous=False)
    found.add(5, 1, 6)
    found.add(6, 1, None)
    found.add(7, 1, 7)
    assert found.acks == (
        Ack(0, 1, 1),
        Ack(1, 2, 3, True, True),
        Ack(3, 2, 5, False),
        Ack(5, 1, 6),
        Ack(6, 1, None),
        Ack(7, 1, 7),
    )
    assert found.failure("x").stored == ((0, 8),)


def test_acks_that_contradict_each_other():
    """Two rows with one sequence, a row before an earlier one, or fewer messages than rows: the stream was replaced."""
    acked((0, 5), (1, 6), (2, 9)).check_sequences(ordered=True, counted=True)
    acked((0, 9), (1, 6), (2, 7)).check_sequences(ordered=False, counted=True)  # the first one was sent again
    for found, ordered in ((acked((0, 5), (1, 6), (2, 5)), False), (acked((0, 9), (1, 6)), True)):
        with pytest.raises(PublishError, match="replaced or restored from an older copy"):
            found.check_sequences(ordered=ordered, counted=False)
    lost = AckedRows("S")
    lost.add(0, 500, None, contiguous=False)  # a batch whose end was never heard of
    lost.add(500, 100, 100, contiguous=False)
    lost.check_sequences(ordered=True, counted=False)  # rows with ids of their own may be repeats of each other
    with pytest.raises(PublishError, match=r"row 599 is its message 100, and cannot be before 600"):
        lost.check_sequences(ordered=True, counted=True)


def test_an_id_that_a_leader_holds_back():
    """Rows whose ids stay in process until the time is over are named, with what to do when the window is over."""
    job: Any = object.__new__(Job)
    job.ids, job.timeout, job.deadline, job.acked = b"id.", 60.0, Deadline(0.0), acked((0, 5), (2, 7))
    stuck = JetStreamError("The server refused: duplicate message id is in process (10158).", err_code=10158)
    with pytest.raises(PublishError, match=r"no progress for 60 s; rows .* may or may not be") as told:
        job.check(stuck, "", [(1, 2)])
    assert "duplicate window" in told.value.remedy
    assert told.value.unknown == ((1, 2),)
    with pytest.raises(PublishError) as other:
        job.check(JetStreamError("The server refused: no leader (10008).", err_code=10008), "", [(1, 2)])
    assert "duplicate window" not in other.value.remedy
