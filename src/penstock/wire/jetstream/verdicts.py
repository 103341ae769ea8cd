"""One verdict on every failure: is it done, refused, passing, or does nobody know? Pure.

`codes.tsv` holds every error code of nats-server 2.15 with its verdict. Each was decided by where the server sends it,
not by its HTTP code: 10077 is a 503 and a refusal, 10176 is a 400 and passes. docs/why/verdicts.md tells how.
"""

from __future__ import annotations

import enum
import functools
import pkgutil
from dataclasses import dataclass

from penstock.errors import (
    DeadlineError,
    JetStreamError,
    LinkError,
    LoginError,
    NoRespondersError,
    TlsError,
    UnreachableError,
)

__all__ = ["ErrorCode", "Verdict", "error_codes", "judge", "judge_code", "may_ask_again"]

_BUSY = (429, 503)  # HTTP's words for "later", believed if the server adds no code that we know


class Verdict(enum.Enum):
    """What became of something that was asked for."""

    STORED = "stored"
    """It is done."""
    REFUSED = "refused"
    """The server said no, and will say so again: somebody has to change something."""
    PASSING = "passing"
    """It was not done, and the same may be taken a moment later."""
    UNKNOWN = "unknown"
    """Nobody knows whether it was done."""


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One line of the table: an error of the server, and what it means to whoever asked."""

    err_code: int
    code: int
    """As in HTTP."""
    constant: str
    """Its name in the server's source."""
    verdict: Verdict
    says: str = ""
    """Some errors only carry the text of another one: if it says this, the verdict is `then`."""
    then: Verdict | None = None
    why: str = ""


@functools.cache
def error_codes() -> dict[int, ErrorCode]:
    """Give the whole table by `err_code`. It is read when the first error is judged, so that a start costs nothing."""
    content = pkgutil.get_data(__package__, "codes.tsv")
    assert content is not None  # package data, also in a zip
    found = {}
    for line in content.decode().splitlines()[1:]:
        number, code, constant, verdict, says, then, why = (line.split("\t") + [""] * 3)[:7]
        found[int(number)] = ErrorCode(
            int(number), int(code), constant, Verdict(verdict), says, Verdict(then) if then else None, why
        )
    return found


def judge_code(code: int | None, err_code: int | None, description: str | None = "") -> Verdict:
    """Judge an error answer: `code` as in HTTP, `err_code` exact, and what the server says besides.

    A code that is not in the table comes from a newer server. Then 503 (not available) and 429 (too many) are believed
    to pass; everything else is taken for a refusal, also 500, because an error that is repeated tells more than one
    that is hidden behind attempts.
    """
    known = error_codes().get(err_code) if isinstance(err_code, int) else None
    if known is None:
        return Verdict.PASSING if code in _BUSY else Verdict.REFUSED
    if known.then is not None and known.says in str(description).lower():
        return known.then
    return known.verdict


# The first that fits decides.
_KINDS: tuple[tuple[type[BaseException], Verdict], ...] = (
    (NoRespondersError, Verdict.PASSING),  # a leader is being chosen, or JetStream starts
    (DeadlineError, Verdict.UNKNOWN),
    (LoginError, Verdict.REFUSED),
    (TlsError, Verdict.REFUSED),
    (UnreachableError, Verdict.PASSING),
    (LinkError, Verdict.UNKNOWN),
)


def judge(error: BaseException) -> Verdict:
    """Judge a failure. What is not known to pass, or to leave a doubt, is a refusal."""
    if isinstance(error, JetStreamError):
        return judge_code(error.code, error.err_code, error.description)
    return next((verdict for kind, verdict in _KINDS if isinstance(error, kind)), Verdict.REFUSED)


def may_ask_again(error: BaseException) -> bool:
    """Tell a failure after which it is worth asking again what may be done twice."""
    return judge(error) in (Verdict.PASSING, Verdict.UNKNOWN)
