"""How much a receiver holds at most, and what it holds now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from penstock.errors import OptionError

__all__ = ["CHUNK_COST", "MESSAGE_COST", "Full", "Limits", "Room"]

CHUNK_COST = 128
"""Bytes of bookkeeping that a chunk is counted with, so that a flood of tiny chunks fills the room, too."""
MESSAGE_COST = 1024
"""The same for a message."""


def _refuse(option: str, value: Any, remedy: str) -> NoReturn:
    raise OptionError(f"{option} is {value!r}.", remedy=remedy, option=option, value=value)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The options of an `Assembler` that bound it, checked. `docs/reference/chunks.md` says what each one means."""

    timeout: float = 30.0
    max_message_bytes: int | None = None
    max_total_bytes: int = 1024**3
    max_messages: int = 1024
    max_chunks: int = 262_144
    spool_dir: str | os.PathLike[str] | None = None
    spool_above: int | None = None
    max_spool_bytes: int = 64 * 1024**3
    concurrency: int = 1
    flow: bool = True

    def __post_init__(self) -> None:
        timeout = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            _refuse("timeout", timeout, "Give seconds above zero.")
        for name in ("max_total_bytes", "max_messages", "max_chunks", "max_spool_bytes", "concurrency"):
            self._check_count(name, 1)
        if self.max_message_bytes is not None:
            self._check_count("max_message_bytes", 1)
        if self.spool_above is not None:
            self._check_count("spool_above", 0)
        if self.folder is not None and not (self.folder.is_dir() and os.access(self.folder, os.W_OK | os.X_OK)):
            _refuse("spool_dir", str(self.spool_dir), "Name a folder that exists and can be written.")

    def _check_count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            _refuse(name, value, f"Give a whole number from {least}.")

    @property
    def folder(self) -> Path | None:
        """The folder for files, None for the machine's own."""
        return None if self.spool_dir is None else Path(self.spool_dir)

    def largest(self, *, streamed: bool) -> int:
        """Give the size of the largest message that is taken."""
        if self.max_message_bytes is not None:
            return self.max_message_bytes
        if streamed:
            return 2**64 - 1  # it passes through; what waits for its reader is bounded apart
        return self.max_total_bytes if self.spool_above is None else self.max_spool_bytes


class Full(NamedTuple):
    """What is full: the disk, or else the memory."""

    disk: bool
    text: str


class Room:
    """The memory and the disk space that messages take, from their first chunk to the end of their handler."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.memory = 0
        self.disk = 0

    def lacks(self, memory: int, disk: int) -> Full | None:
        """Say what is full if so much were added, or None."""
        if memory > 0 and self.memory + memory > self._limits.max_total_bytes:
            return Full(False, f"the {self._limits.max_total_bytes} bytes of max_total_bytes are taken")
        if disk > 0 and self.disk + disk > self._limits.max_spool_bytes:
            return Full(True, f"the {self._limits.max_spool_bytes} bytes of max_spool_bytes are taken")
        return None

    def change(self, memory: int, disk: int) -> None:
        """Count more, or less."""
        self.memory += memory
        self.disk += disk
