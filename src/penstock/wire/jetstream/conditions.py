"""Conditions of a publish: what the server says of one that does not hold, and what had been expected. Pure.

A message may say what its stream, or its subject, must end with. The server's refusal names what there is instead::

    10071  wrong last sequence: 7       of the subject or of the stream, whichever the message named
    10070  wrong last msg ID: order-7   of the stream
    10164  wrong last sequence          another write is under way, so that nobody can tell
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from penstock.errors import ConditionError
from penstock.wire.jetstream import names
from penstock.wire.numbers import read_count

__all__ = ["FAILED", "explained", "read_actual"]

FAILED = names.CONDITION_FAILED | {names.WRONG_LAST_ID}

Headers = Mapping[str, str | Iterable[str]]
Failure = TypeVar("Failure", bound=BaseException)

_SEQUENCE = re.compile(r"wrong last sequence: ([0-9]{1,20})")
_ID = re.compile(r"wrong last msg ID: (.*)", re.DOTALL)


def read_actual(err_code: int | None, description: str) -> int | str | None:
    """Read what there is instead of what was expected; None if the server does not say."""
    if err_code == names.WRONG_LAST_SEQUENCE and (found := _SEQUENCE.fullmatch(description)):
        return int(found[1])
    if err_code == names.WRONG_LAST_ID and (found := _ID.fullmatch(description)):
        return found[1]
    return None


def explained(error: Failure, subject: str, headers: Headers) -> Failure | ConditionError:
    """Say of a condition that failed what was expected, as the headers of the message have it; give others as is."""
    if not isinstance(error, ConditionError) or error.expected is not None:
        return error
    said = {name: values if isinstance(values, str) else "".join(values) for name, values in headers.items()}
    where, expected = _meant(error, subject, said)
    if expected is None:
        return error
    whose, remedy = where or "The stream", "Somebody else was faster: look at what is there now, and decide anew."
    if error.err_code == names.WRONG_LAST_ID:
        there = f"with the id {error.actual!r}" if error.actual else "without an id"
        what = f"The last message of the stream is one {there}, and {expected!r} was expected"
    elif error.actual is None:
        still = f"ends with {expected}" if expected else "holds no message"
        what = f"{whose} is just being written to, so that nobody can tell whether it still {still}"
        remedy = "Somebody else writes there, or the batch itself: look at what is there in a moment, and decide anew."
    else:
        there = f"ends with sequence {error.actual}" if error.actual else "holds no message"
        what = f"{whose} {there}, and {expected or 'no message'} was expected"
        if isinstance(expected, int) and isinstance(error.actual, int) and error.actual < expected:
            remedy = "What was expected was removed, or never there: look at what is there now, and decide anew."
    return ConditionError(
        f"{what}: the message was not stored ({error.err_code}).",
        remedy=remedy,
        **{**error.facts, "subject": where, "expected": expected},
    )


def _meant(error: ConditionError, subject: str, said: Mapping[str, str]) -> tuple[str | None, int | str | None]:
    """Tell which condition of a message failed: whose last sequence it means, and which one."""
    if error.err_code == names.WRONG_LAST_ID:
        return None, said.get(names.EXPECTED_LAST_ID)
    of_subject, of_stream = (
        read_count(said.get(name, "")) for name in (names.EXPECTED_LAST_SUBJECT_SEQUENCE, names.EXPECTED_LAST_SEQUENCE)
    )
    if of_subject is not None and of_stream is not None:
        return None, None  # the server does not say which
    if of_subject is None:
        return None, of_stream
    return said.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject), of_subject
