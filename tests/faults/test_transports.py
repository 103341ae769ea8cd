"""What the checker says of ids and names that are used a second time: one payload or the other, never a mixture."""

from __future__ import annotations

from typing import Any

from tests.faults import checker
from tests.faults.checker import Taken
from tests.faults.clients.chunks import digest, other, payload
from tests.faults.transport_parts import check_payloads, check_told, in_time

OP = "stored-sender-1-6"
FIRST, SECOND = (OP, digest(payload(OP))), (OP, digest(other(OP)))


def kinds(got: list[tuple[str, str]], free: set[str], **tried: Any) -> list[str]:
    """Give the kinds of what is found, with one try to use the id again."""
    again = [{"op": OP}, {"op": OP, **tried}] if tried else []
    return [finding.kind for finding in check_payloads("stored", got, {OP}, again, free)]


def test_the_second_payload_of_an_id_differs() -> None:
    """As many bytes, and others."""
    assert len(payload(OP)) == len(other(OP))
    assert FIRST != SECOND


def test_an_id_is_one_payload_while_that_is_there() -> None:
    """Other bytes under it must be refused, and must not come to anybody."""
    assert kinds([FIRST], set(), why="ConflictError: belongs to another") == []
    assert kinds([FIRST, SECOND], set(), why="ConflictError: belongs to another") == [checker.PAYLOAD]
    assert kinds([FIRST], set(), stored=True) == [checker.ALIEN]


def test_an_id_that_is_free_again_may_be_another_payload_and_never_a_mixture() -> None:
    """If a change took the first one, the second may be there, whole."""
    assert kinds([FIRST, SECOND], {OP}, stored=True) == []
    assert kinds([(OP, digest(payload(OP)[:5] + other(OP)[5:]))], {OP}, stored=True) == [checker.PAYLOAD]
    assert kinds([SECOND], {OP}) == [checker.PAYLOAD]


def test_a_gateway_that_was_there_says_that_its_stream_was_set_back() -> None:
    """One that began since, or whose stream lost nothing, need not; one word of it is enough."""
    back = [Taken("S", 10.0, begun=9.0)]
    begun = [{"t": 1.0}]
    assert [one.kind for one in check_told(back, begun, "serving")] == [checker.SILENT]
    assert check_told(back, begun, "The stream S is another stream now") == []
    assert check_told([], begun, "serving") == []
    assert check_told(back, [{"t": 1.0}, {"t": 9.5}], "serving") == []


def test_what_came_to_a_life_that_slept_is_not_newer_than_the_next_one() -> None:
    """It had come before the next one began, and is read when the first one wakes."""
    begun = [{"t": 1.0, "life": 1}, {"t": 5.0, "life": 2}]
    heard = [{"t": 2.0, "life": 1}, {"t": 6.0, "life": 2}, {"t": 7.0, "life": 1}]
    assert in_time(heard, begun) == heard[:2]
