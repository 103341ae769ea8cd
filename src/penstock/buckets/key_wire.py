"""How a key-value bucket is a stream: its name, the subject of a key, and what a stored message says. Pure.

    stream      KV_<bucket>
    subject     $KV.<bucket>.<key>                  a key is one token or several, joined by dots
    bucket      letters, digits, - and _
    key         letters, digits, and - / _ = . ; not empty, no dot at an end, no two dots in a row
    value       a message without the header KV-Operation; its sequence in the stream is the key's revision
    deleted     KV-Operation: DEL                   earlier values of the key may still be read
    purged      KV-Operation: PURGE, Nats-Rollup: sub
    ended       Nats-Marker-Reason: MaxAge, Purge (as purged) or Remove (as deleted), written by the server itself

A bucket that mirrors another one keeps the subjects of its origin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from penstock.errors import InputError
from penstock.wire.jetstream.names import MARKER_REASON

__all__ = [
    "DELETE",
    "KV_OPERATION",
    "PURGE",
    "PUT",
    "Operation",
    "check_bucket",
    "check_key",
    "check_key_filter",
    "key_of",
    "key_subject",
    "key_subjects",
    "marker_reason",
    "operation_of",
    "stream_of_bucket",
]

Operation = Literal["PUT", "DEL", "PURGE"]
PUT: Final = "PUT"
DELETE: Final = "DEL"
PURGE: Final = "PURGE"
KV_OPERATION: Final = "KV-Operation"

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*")
_FILTER = re.compile(r"(?:(?:[-/_=A-Za-z0-9]+|\*)\.)*(?:[-/_=A-Za-z0-9]+|\*|>)")
_REASONS: Final[Mapping[str, Operation]] = {"MaxAge": PURGE, "Purge": PURGE, "Remove": DELETE}


def check_bucket(name: str) -> str:
    """Give the name of a bucket back; refuse what cannot be one."""
    if not _BUCKET.fullmatch(name):
        raise InputError(f"{name!r} cannot be the name of a bucket.", remedy="Use letters, digits, - and _.")
    return name


def check_key(key: str) -> str:
    """Give a key back; refuse what cannot be one."""
    if not _KEY.fullmatch(key):
        remedy = "Use letters, digits, - / _ = and dots between them."
        raise InputError(f"{key!r} cannot be a key.", remedy=remedy)
    return key


def check_key_filter(pattern: str) -> str:
    """Give a pattern of keys back, in which `*` is one token and `>` all the rest; refuse what cannot be one."""
    if not _FILTER.fullmatch(pattern):
        remedy = "Write keys, with * for one token and > for all the rest, such as orders.*.total."
        raise InputError(f"{pattern!r} cannot match any key.", remedy=remedy)
    return pattern


def stream_of_bucket(bucket: str) -> str:
    """Give the name of a bucket's stream."""
    return f"KV_{check_bucket(bucket)}"


def key_subject(bucket: str, key: str) -> str:
    """Give the subject that holds a key's values."""
    return f"$KV.{check_bucket(bucket)}.{check_key(key)}"


def key_subjects(bucket: str, pattern: str = ">") -> str:
    """Give the subjects of all keys that match a pattern."""
    return f"$KV.{check_bucket(bucket)}.{check_key_filter(pattern)}"


def key_of(bucket: str, subject: str) -> str | None:
    """Give the key that a subject of the bucket names; None if it names none."""
    head = f"$KV.{bucket}."
    return subject[len(head) :] if subject.startswith(head) and len(subject) > len(head) else None


def operation_of(headers: Mapping[str, Sequence[str]]) -> Operation:
    """Say what a stored message did to its key; names of headers are compared as they are."""
    said = next(iter(headers.get(KV_OPERATION, ())), "")
    if said == DELETE:
        return DELETE
    if said == PURGE:
        return PURGE
    return _REASONS.get(marker_reason(headers) or "", PUT)


def marker_reason(headers: Mapping[str, Sequence[str]]) -> str | None:
    """Say why the server itself ended a key; None if a client wrote the message."""
    return next(iter(headers.get(MARKER_REASON, ())), None)
