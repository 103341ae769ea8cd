"""What options are legal, how much a receiver holds at most, and for how long."""

from __future__ import annotations

import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from penstock.errors import InputError, OptionError

__all__ = ["CHUNK_COST", "MESSAGE_COST", "Limits", "Remembered", "check_count", "check_seconds", "check_subject"]

CHUNK_COST = 128
"""Bytes of bookkeeping that a chunk is counted with, so that a flood of tiny chunks fills the room, too."""
MESSAGE_COST = 1024
"""The same for a message."""
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.*>]+(?:\.[^\s\x00-\x20\x7f.*>]+)*")


def check_count(option: str, value: Any, least: int = 1) -> int:
    """Refuse what is not a whole number, or is below the least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(option, value, f"Give a whole number from {least}.")
    return value


def check_seconds(option: str, value: Any, least: float = 0.0) -> float:
    """Refuse what is not a number of seconds above zero, or is below the least."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf or not value:
        raise _wrong(option, value, f"Give seconds, {least:g} at least." if least else "Give seconds above zero.")
    return float(value)


def _wrong(option: str, value: Any, remedy: str) -> OptionError:
    return OptionError(f"{option} is {value!r}.", remedy=remedy, option=option, value=value)


def check_subject(subject: str) -> str:
    """Refuse what is not a subject to publish on."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise InputError(
            f"{subject!r} is not a subject to publish on.", remedy="Write words joined by dots, without wildcards."
        )
    return subject


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
        check_seconds("timeout", self.timeout)
        for name in ("max_total_bytes", "max_messages", "max_chunks", "max_spool_bytes", "concurrency"):
            check_count(name, getattr(self, name))
        if self.max_message_bytes is not None:
            check_count("max_message_bytes", self.max_message_bytes)
        if self.spool_above is not None:
            check_count("spool_above", self.spool_above, 0)
        if self.folder is not None and not (self.folder.is_dir() and os.access(self.folder, os.W_OK | os.X_OK)):
            raise _wrong("spool_dir", str(self.spool_dir), "Name a folder that exists and can be written.")

    @classmethod
    def of(cls, whose: str, known: Iterable[str], **given: Any) -> Self:
        """Take options, and refuse those that are not among the known ones."""
        for name in given:
            if name not in known:
                raise OptionError(
                    f"{whose} has no option {name!r}.", remedy=f"Known: {', '.join(sorted(known))}.", option=name
                )
        return cls(**given)

    @property
    def folder(self) -> Path | None:
        """The folder for files, None for the machine's own."""
        return None if self.spool_dir is None else Path(self.spool_dir)

    def spools(self, size: int) -> bool:
        """Tell whether so much of a payload is kept on disk."""
        return self.spool_above is not None and size > self.spool_above

    def largest(self, *, streamed: bool) -> int:
        """Give the size of the largest message that is taken."""
        if self.max_message_bytes is not None:
            return self.max_message_bytes
        if streamed:
            return 2**64 - 1  # it passes through; what waits for its reader is bounded apart
        return self.max_total_bytes if self.spool_above is None else self.max_spool_bytes


class Remembered:
    """Remembers things for `seconds`, by their hashes; beyond `most` of them the oldest is forgotten early."""

    def __init__(self, seconds: float, most: int = 100_000) -> None:
        self._seconds, self._most = seconds, most
        self._until: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, thing: object) -> bool:
        return self._until.get(hash(thing), 0.0) > time.monotonic()

    def add(self, thing: object) -> None:
        self._until[hash(thing)] = time.monotonic() + self._seconds
        self._until.move_to_end(hash(thing))
        while len(self._until) > self._most:
            self._until.popitem(last=False)

    def forget(self) -> None:
        """Drop what is old enough."""
        now = time.monotonic()
        while self._until and next(iter(self._until.values())) < now:
            self._until.popitem(last=False)
