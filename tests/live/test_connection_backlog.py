"""What was received ahead of what is read: first in, first out, over memory and files, also when the disk is full."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from penstock.connection import backlog
from penstock.connection.backlog import BLOCK, Backlog


def put(waiting: Backlog, number: int, size: int = BLOCK) -> None:
    waiting.room[:size] = bytes([number]) * size
    waiting.received(size)


def rest(waiting: Backlog) -> bytes:
    """Give the numbers that come out, each once."""
    found: list[int] = []
    while piece := bytes(waiting.take()):
        found += [number for number in dict.fromkeys(piece) if number not in found[-1:]]
    return bytes(found)


def test_bytes_come_out_as_they_came_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory first, then files, and memory again once there is room; short pieces keep their place."""
    monkeypatch.setattr(backlog, "FILE", 2 * BLOCK)
    waiting = Backlog(tmp_path, 3 * BLOCK)
    for number in range(8):
        put(waiting, number, BLOCK if number % 2 else 1000)
    assert waiting.size == 4 * BLOCK + 4000
    assert waiting.disk > 0
    assert bytes(waiting.take())[:1] == b"\0"
    put(waiting, 8)
    assert rest(waiting) == bytes(range(1, 9))
    assert (waiting.size, waiting.disk, bool(waiting)) == (0, 0, False)
    put(waiting, 9)
    assert waiting.disk == 0
    waiting.close()


def test_a_disk_that_takes_nothing_costs_no_byte(tmp_path: Path) -> None:
    """What was received when the disk failed waits in memory; nothing more is wanted until all of it was read."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        waiting = Backlog(Path(folder), 2 * BLOCK)
    put(waiting, 0)
    assert not waiting.full
    put(waiting, 1)
    assert waiting.full
    assert isinstance(waiting.error, FileNotFoundError)
    assert rest(waiting) == b"\0\1"
    assert not waiting.full
