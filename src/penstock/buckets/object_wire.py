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
import secrets
from typing import Final

from penstock.buckets.key_wire import check_bucket
from penstock.errors import InputError

__all__ = [
    "CHUNK_SIZE",
    "DIGEST",
    "check_object",
    "chunk_subject",
    "chunk_subjects",
    "description_subject",
    "description_subjects",
    "format_digest",
    "name_of",
    "new_nuid",
    "read_digest",
    "stream_of_objects",
]

CHUNK_SIZE: Final = 128 * 1024
DIGEST: Final = "SHA-256="

_NUID = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 2_700  # bytes of a name: in base64, with the bucket before it, it fits into the line of a message
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def stream_of_objects(bucket: str) -> str:
    """Give the name of an object bucket's stream."""
    return f"OBJ_{check_bucket(bucket)}"


def check_object(name: str) -> str:
    """Give the name of an object back; refuse what cannot be one."""
    if not isinstance(name, str) or not name:
        raise InputError("An object has no name.", remedy="Give one; any text will do.")
    if any("\ud800" <= char <= "\udfff" for char in name):
        raise InputError(f"The name {name[:80]!r} is not Unicode.", remedy="Take lone surrogates out.")
    if len(name.encode()) > _LONGEST:
        what = f"The name {name[:40]!r}… has {len(name.encode()):,} bytes."
        raise InputError(what, remedy=f"Use {_LONGEST:,} at most.")
    return name


def description_subject(bucket: str, name: str) -> str:
    """Give the subject on which an object is described."""
    encoded = base64.urlsafe_b64encode(check_object(name).encode()).decode()
    return f"$O.{check_bucket(bucket)}.M.{encoded}"


def description_subjects(bucket: str) -> str:
    """Give the subjects of all descriptions."""
    return f"$O.{check_bucket(bucket)}.M.>"


def chunk_subject(bucket: str, nuid: str) -> str:
    """Give the subject of an object's chunks."""
    if not _NUID.fullmatch(nuid):
        raise InputError(f"{nuid!r} cannot be the id of an object's chunks.", remedy="Use letters and digits.")
    return f"$O.{check_bucket(bucket)}.C.{nuid}"


def new_nuid() -> str:
    """Make up an id for the chunks of one write, of the form that other clients use."""
    return "".join(secrets.choice(_DIGITS) for _ in range(22))


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
    """Read a digest of a description; None if it is not one that we know."""
    if text[: len(DIGEST)].upper() != DIGEST:
        return None
    try:
        found = base64.b64decode(text[len(DIGEST) :], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == 32 else None
