"""How many bytes a message takes in a stream's store. Pure.

A record of the file store is

    length (4) + sequence (8) + time (8) + subject length (2) + subject + payload + hash (8)

and with headers also their length (4) and themselves. The memory store counts subject, headers and payload, and 16
bytes for sequence and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import InputError

__all__ = ["Estimate", "estimate", "record_size"]

FIXED = 4 + 8 + 8 + 2 + 8
HEADER_LENGTH = 4
FIXED_IN_MEMORY = 16


def record_size(subject: int, payload: int, headers: int = 0, *, storage: Literal["file", "memory"] = "file") -> int:
    """Give the bytes of one message from the lengths of its subject, payload and header block, all in bytes."""
    if subject < 1 or payload < 0 or headers < 0:
        raise InputError(
            "A message has a subject, and no length is negative.", remedy="Give lengths in bytes, 0 or more."
        )
    if storage == "memory":
        return FIXED_IN_MEMORY + subject + payload + headers
    return FIXED + subject + payload + (HEADER_LENGTH + headers if headers else 0)


@dataclass(frozen=True)
class Estimate:
    """What many equal messages take."""

    messages: int
    record: int
    """Bytes of one message in the store."""
    payload: int
    """Bytes of one message that are payload."""

    @property
    def total(self) -> int:
        """Bytes of all of them in the store."""
        return self.messages * self.record

    @property
    def overhead(self) -> float:
        """The share of the store that is not payload."""
        return 1 - self.payload / self.record


def estimate(
    messages: int, payload: int, subject: str, headers: int = 0, *, storage: Literal["file", "memory"] = "file"
) -> Estimate:
    """Say what a number of equal messages takes."""
    if messages < 0:
        raise InputError(f"{messages} messages cannot be stored.", remedy="Give 0 or more.")
    return Estimate(messages, record_size(len(subject.encode()), payload, headers, storage=storage), payload)
