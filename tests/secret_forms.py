"""Looks for secrets in whatever was written, in the forms in which they could stand there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

__all__ = ["files_in", "forms", "leaks", "leaks_in_files"]

_TELLING = 16  # a piece that is shorter may stand somewhere by chance


def forms(secret: str) -> set[bytes]:
    """Give a secret as it is, quoted, in hexadecimal, and in base64 at each place that it may have in a larger text."""
    pieces = {line for line in secret.splitlines() if len(line) >= _TELLING and not line.startswith(("---", "***"))}
    found: set[bytes] = set()
    for piece in pieces or {secret}:
        raw = piece.encode()
        found |= {raw, quote(piece, safe="").encode(), json.dumps(piece)[1:-1].encode(), raw.hex().encode()}
        for before in range(3):
            coded = base64.b64encode(bytes(before) + raw).rstrip(b"=")
            inner = coded[(0, 2, 3)[before] : -1]
            found |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


def leaks(content: bytes | str, secrets: Iterable[str]) -> list[str]:
    """Give what stands around each secret that is in a content."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return list(_found(data, secrets))


def _found(data: bytes, secrets: Iterable[str]) -> Iterator[str]:
    for secret in secrets:
        for form in forms(secret):
            if (place := data.find(form)) >= 0:
                yield f"{secret[:12]}… after {data[max(0, place - 120) : place].decode(errors='replace')!r}"


def files_in(folder: Path) -> list[Path]:
    """Give all files of a folder; AssertionError if there are none, as a search of nothing proves nothing."""
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    assert found, f"nothing was written to {folder}"
    return found


def leaks_in_files(folder: Path, secrets: Iterable[str]) -> list[str]:
    """Look through all files of a folder, of which there must be some."""
    kept = list(secrets)
    return [
        f"{file.relative_to(folder)}: {leak}" for file in files_in(folder) for leak in leaks(file.read_bytes(), kept)
    ]
