"""Both forms of the store's inner modules, compiled and plain, and a small writer of the formats that they read."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import store
from penstock.store import checksums, decoding, entries, records, s2

GOLDEN = Path(__file__).resolve().parent / "golden" / "stores"
PLAIN = SimpleNamespace(**store.load_plain(), form="plain")
COMPILED = SimpleNamespace(
    checksums=checksums, s2=s2, decoding=decoding, records=records, entries=entries, form="compiled"
)
FORMS = [pytest.param(PLAIN, id="plain"), pytest.param(COMPILED, id="compiled" if store.compiled else "as installed")]


def unpack_golden(version: str, folder: Path) -> None:
    """Unpack the store and the backups that a server of that version wrote."""
    # Python 3.11 knows filters from 3.11.4 on, and wants to be told of one from 3.12 on.
    how: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(GOLDEN / f"{version}.tar.xz") as archive:
        archive.extractall(folder, **how)


def number(value: int) -> bytes:
    """Write a number of variable length."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes(written) + bytes([value])


def record(
    stream: str,
    block: int,
    sequence: int,
    subject: bytes = b"a.b",
    payload: bytes = b"",
    headers: bytes = b"",
    time: int = 1_700_000_000_000_000_000,
    flags: int = 0,
) -> bytes:
    """Write a record of a block."""
    head = (sequence | flags << 62).to_bytes(8, "little") + time.to_bytes(8, "little")
    size = 22 + len(subject) + (4 + len(headers) if headers else 0) + len(payload) + 8
    key = hashlib.sha256(f"{stream}-{block}".encode()).digest()
    checksum = checksums.Highway(key).of(head + subject + headers + payload).to_bytes(8, "little")
    return (
        (size | (1 << 31 if headers else 0)).to_bytes(4, "little")
        + head
        + len(subject).to_bytes(2, "little")
        + subject
        + (len(headers).to_bytes(4, "little") + headers if headers else b"")
        + payload
        + checksum
    )


def piece(content: bytes, kind: int = 1, body: bytes | None = None) -> bytes:
    """Write a piece of an S2 stream: as it is, or the compressed block that stands for it."""
    crc = checksums.crc32c(content)
    masked = ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
    inside = masked.to_bytes(4, "little") + (content if body is None else body)
    return bytes([kind]) + len(inside).to_bytes(3, "little") + inside


BEGIN = b"\xff\x06\x00\x00S2sTwO"


def entry(name: bytes, sequence: int, headers: bytes = b"", payload: bytes = b"", time: int = 0) -> bytes:
    """Write an entry of a backup."""
    sizes = number(len(name)) + number(time << 1) + number(sequence) + number(len(headers)) + number(len(payload))
    return sizes + name + headers + payload
