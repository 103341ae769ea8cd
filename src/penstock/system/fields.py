"""Fields of what servers say of themselves, read with care. Pure.

A field that is not there is what Go leaves out: zero, nothing, or empty. One of another kind than it should be is a
RemoteProtocolError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.errors import InputError, RemoteProtocolError
from penstock.json_text import load_json
from penstock.times import parse_time

__all__ = ["fields", "figure", "moment", "read_object", "rows", "seconds", "switch", "texts", "word"]

_NANO = 1_000_000_000
_LARGEST = 2**64  # Go counts in 64 bits; and nothing is infinite


def read_object(payload: bytes) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        answer = load_json(str(payload, "utf-8"))
    except ValueError:
        raise RemoteProtocolError(f"A server's answer is not JSON: {payload[:40]!r}.", place=0) from None
    if not isinstance(answer, dict):
        raise RemoteProtocolError(f"A server's answer is not an object: {payload[:40]!r}.", place=0)
    return answer


def fields(content: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Give the object at the end of a path."""
    found: Any = content
    for name in path:
        found = found.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise _wrong(name, "an object")
    return dict(found)


def rows(content: Mapping[str, Any], *path: str) -> list[dict[str, Any]]:
    """Give the list of objects at the end of a path."""
    found = fields(content, *path[:-1]).get(path[-1]) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise _wrong(path[-1], "a list of objects")
    return found


def figure(content: Mapping[str, Any], *path: str) -> Any:
    """Give the number at the end of a path."""
    found = fields(content, *path[:-1]).get(path[-1]) or 0
    if isinstance(found, bool) or not isinstance(found, int | float) or not -_LARGEST < found < _LARGEST:
        raise _wrong(path[-1], "a number")
    return found


def seconds(content: Mapping[str, Any], *path: str) -> float:
    """Give a time that is written in nanoseconds."""
    return float(figure(content, *path)) / _NANO


def texts(content: Mapping[str, Any], *path: str) -> list[str]:
    """Give the list of texts at the end of a path."""
    found = fields(content, *path[:-1]).get(path[-1]) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise _wrong(path[-1], "a list of texts")
    return found


def word(content: Mapping[str, Any], *path: str) -> str:
    """Give the text at the end of a path."""
    found = fields(content, *path[:-1]).get(path[-1]) or ""
    if not isinstance(found, str):
        raise _wrong(path[-1], "text")
    return found


def switch(content: Mapping[str, Any], *path: str) -> bool:
    """Give whether something is so."""
    return bool(fields(content, *path[:-1]).get(path[-1]))


def moment(content: Mapping[str, Any], *path: str) -> datetime | None:
    """Give the time at the end of a path; none for Go's zero."""
    written = word(content, *path)
    if not written or written.startswith("0001-01-01"):
        return None
    try:
        time = parse_time(written)
    except InputError:
        raise _wrong(path[-1], "a time") from None
    if not 1 < time.year < 9999:  # beyond, there are clocks on which it cannot be shown
        raise _wrong(path[-1], "a time")
    return time


def _wrong(name: str, kind: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"The field {name!r} of a server's answer is not {kind}.", place=0)
