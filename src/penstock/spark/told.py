"""Fields of what Spark tells of its queries, read with care. Pure.

A field that is not there, or null, is zero, nothing or empty, unless it must be there. One of another kind than it
should be is a RemoteProtocolError that names it; never does a KeyError, TypeError or ValueError get out of here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import InputError, RemoteProtocolError
from penstock.json_text import load_json
from penstock.times import parse_time

__all__ = ["count", "counts", "moment", "number", "part", "parts", "read_told", "word"]

_LARGEST = 2**64  # Java counts in 64 bits


def read_told(content: str | bytes) -> dict[str, Any]:
    """Read a JSON object that Spark wrote."""
    try:
        found = load_json(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"Spark tells what is not a JSON object: {content[:40]!r}.", place=0)
    return found


def part(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Give an object."""
    found = content.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _wrong(name, "an object")
    return found


def parts(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Give a list of objects."""
    found = content.get(name)
    if found is None:
        return []
    if not isinstance(found, list | tuple) or not all(isinstance(item, Mapping) for item in found):
        raise _wrong(name, "a list of objects")
    return list(found)


def number(content: Mapping[str, Any], name: str) -> float:
    """Give a number; one that is not finite, such as the rate of an empty batch, is zero."""
    found = content.get(name)
    if found is None:
        return 0.0
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _wrong(name, "a number")
    if isinstance(found, float) and not math.isfinite(found):
        return 0.0
    if not -_LARGEST < found < _LARGEST:
        raise _wrong(name, "a number of 64 bits")
    return float(found)


def count(content: Mapping[str, Any], name: str, default: int | None = 0) -> int:
    """Give a whole number; without a default it must be there."""
    found = content.get(name, default)
    if found is None and default is not None:
        return default
    if type(found) is not int or not -_LARGEST < found < _LARGEST:
        raise _wrong(name, "a whole number of 64 bits")
    return found


def counts(content: Mapping[str, Any], name: str) -> list[int]:
    """Give a list of whole numbers."""
    found = content.get(name)
    if found is None:
        return []
    if not isinstance(found, list | tuple) or not all(type(item) is int for item in found):
        raise _wrong(name, "a list of whole numbers")
    return list(found)


def word(content: Mapping[str, Any], name: str, *, needed: bool = False) -> str:
    """Give a text; if it is needed it must be there."""
    found = content.get(name)
    if found is None and not needed:
        return ""
    if not isinstance(found, str):
        raise _wrong(name, "a text")
    return found


def moment(content: Mapping[str, Any], name: str) -> float:
    """Give a time, in seconds since 1970; it must be there."""
    try:
        return parse_time(word(content, name, needed=True)).timestamp()
    except InputError:
        raise _wrong(name, "a time") from None


def _wrong(name: str, kind: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"Spark tells a field {name!r} that is not {kind}.", place=0)
