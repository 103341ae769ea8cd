"""How an object bucket is a stream: its name, the subjects of an object, and the JSON that describes one. Pure.

    stream      OBJ_<bucket>
    described   $O.<bucket>.M.<name>    the last message describes the object; name in URL-safe base64 with padding
    chunks      $O.<bucket>.C.<nuid>    the bytes in order, a message each; a new nuid for every write
    digest      SHA-256=<base64>        URL-safe with padding, over all bytes

A description replaces the one before it (`Nats-Rollup: sub`). A deleted object is described as such, without chunks; a
link has a bucket, and a name unless it links to the whole bucket.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from penstock.buckets.key_wire import check_bucket
from penstock.errors import InputError

__all__ = [
    "CHUNK_SIZE",
    "DIGEST",
    "chunk_subject",
    "chunk_subjects",
    "description_subject",
    "description_subjects",
    "format_digest",
    "name_of",
    "read_digest",
    "stream_of_objects",
]

CHUNK_SIZE: Final = 128 * 1024
DIGEST: Final = "SHA-256="

_NUID = re.compile(r"[A-Za-z0-9_-]+")


def stream_of_objects(bucket: str) -> str:
    """Give the name of an object bucket's stream."""
    return f"OBJ_{check_bucket(bucket)}"


def description_subject(bucket: str, name: str) -> str:
    """Give the subject on which an object is described."""
    if not name:
        raise InputError("An object has no name.", remedy="Give one; any text will do.")
    encoded = base64.urlsafe_b64encode(name.encode()).decode()
    return f"$O.{check_bucket(bucket)}.M.{encoded}"


def description_subjects(bucket: str) -> str:
    """Give the subjects of all descriptions."""
    return f"$O.{check_bucket(bucket)}.M.>"


def chunk_subject(bucket: str, nuid: str) -> str:
    """Give the subject of an object's chunks."""
    if not _NUID.fullmatch(nuid):
        raise InputError(f"{nuid!r} cannot be the id of an object's chunks.", remedy="Use letters and digits.")
    return f"$O.{check_bucket(bucket)}.C.{nuid}"


def chunk_subjects(bucket: str) -> str:
    """Give the subjects of all chunks."""
    return f"$O.{check_bucket(bucket)}.C.>"


def name_of(bucket: str, subject: str) -> str | None:
    """Give the object that a subject describes; None if it describes none."""
    head = f"$O.{bucket}.M."
    if not subject.startswith(head):
        return None
    try:
        return base64.b64decode(subject[len(head) :], altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def format_digest(digest: bytes) -> str:
    """Write a SHA-256 digest as descriptions have it."""
    return DIGEST + base64.urlsafe_b64encode(digest).decode()


def read_digest(text: str) -> bytes | None:
    """Read a digest of a description; None if it is none."""
    if text[: len(DIGEST)].upper() != DIGEST:
        return None
    try:
        found = base64.b64decode(text[len(DIGEST) :], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == 32 else None
