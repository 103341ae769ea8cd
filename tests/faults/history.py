"""What was done: every operation of every client, a line of JSON each, written before it is done and after.

A line has the time (of the clock that all processes of a machine share), the client, its life, and what happened:

    invoke   an operation begins        ok       it was acknowledged
    fail     it was refused: nothing of it was done     unknown  nobody knows
    told     an error that named a change of the world  stopped  the client ended with an error that it shows
    begin    the client is there        end      it left in order
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIZES = (0, 64, 64, 64, 700, 9000)  # bytes that follow the name of an operation in its payload


def content(op: str, bare: bool = False) -> bytes:
    """Give the payload of an operation: its name, and bytes that follow from it."""
    if bare:
        return op.encode()
    size = SIZES[zlib.crc32(op.encode()) % len(SIZES)]
    seed = hashlib.sha256(op.encode()).hexdigest().encode()
    return op.encode() + b"|" + (seed * (size // 64 + 1))[:size]


def op_of(data: bytes, bare: bool = False) -> str | None:
    """Give the operation whose payload this is; None for bytes that none of them has."""
    op = data.partition(b"|")[0].decode(errors="replace")
    return op if content(op, bare) == data else None


class Told(Exception):
    """A client ends because of an error that something else carried, such as Spark: its name and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class Ledger:
    """Writes the lines of one life of a client; each is with the system before the next step, whatever kills us."""

    def __init__(self, path: Path, client: str, life: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._about = {"client": client, "life": life}

    def note(self, what: str, op: str = "", **facts: Any) -> None:
        """Write one line."""
        line = {"t": round(time.monotonic(), 4), "is": what, **({"op": op} if op else {}), **self._about, **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")


@dataclass
class Operation:
    """One operation from begin to end."""

    op: str
    client: str
    life: int
    invoked: float
    facts: dict[str, Any] = field(default_factory=dict)
    ended: float | None = None
    outcome: str = "unknown"
    """ok, fail or unknown; an operation whose end nobody wrote down is unknown."""


@dataclass
class History:
    """All that was done, and what clients said beside."""

    operations: list[Operation] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def of(self, prefix: str) -> History:
        """Give what clients of one kind did; the name of a client begins with its kind."""
        mine = [one for one in self.operations if one.client.startswith(prefix)]
        return History(mine, [note for note in self.notes if note["client"].startswith(prefix)])

    def said(self, what: str) -> list[dict[str, Any]]:
        """Give the lines of one sort."""
        return [note for note in self.notes if note["is"] == what]


def sorts_since(file: Path, place: int, moment: float) -> set[str]:
    """Give the sorts of lines that a client wrote after a moment; its file is read from a place on."""
    if not file.exists():
        return set()
    with file.open("rb") as lines:
        lines.seek(place)
        found = set()
        for text in lines.read().split(b"\n"):
            with contextlib.suppress(ValueError):  # a line of which only a part is there
                line = json.loads(text)
                if isinstance(line, dict) and line.get("t", 0.0) > moment:
                    found.add(line["is"])
        return found


def read_history(files: Iterable[Path]) -> History:
    """Put the lines of all clients together."""
    history = History()
    for file in sorted(files):
        known: dict[tuple[int, str], Operation] = {}
        for text in file.read_bytes().split(b"\n"):
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the last line of a client that was killed while it wrote
            what, op, life = line["is"], line.get("op"), line["life"]
            rest = {key: value for key, value in line.items() if key not in ("t", "is", "op", "client", "life")}
            if what == "invoke":
                known[life, op] = made = Operation(op, line["client"], life, line["t"], rest)
                history.operations.append(made)
            elif what in ("ok", "fail", "unknown") and (life, op) in known:
                known[life, op].ended, known[life, op].outcome = line["t"], what
                known[life, op].facts |= rest
            else:
                history.notes.append(line)
    return history
