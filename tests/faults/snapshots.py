"""Backup and restore of a stream by JetStream's API, by the plain client: nothing of what is under test does it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.faults.plain import Plain, PlainError

PIECE = 128 * 1024


@dataclass(frozen=True)
class Backup:
    """A stream and its consumers as they were: what the server said of it, and the pieces of its archive."""

    config: dict[str, Any]
    state: dict[str, Any]
    pieces: tuple[bytes, ...]

    @property
    def last(self) -> int:
        """The last sequence that is in it."""
        return int(self.state["last_seq"])


def take_backup(plain: Plain, stream: str) -> Backup:
    """Read a stream as the server packs it; it ends with a message without data."""
    inbox = f"{plain.inbox}.backup.{time.monotonic_ns()}"
    told = plain.api(f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, "chunk_size": PIECE})
    pieces = []
    while (message := plain.next(plain.timeout)) is not None:
        if message.subject != inbox:
            continue
        if not message.data:
            if message.status >= 400:
                raise PlainError(f"backup of {stream}: {message.headers!r}", message.status)
            return Backup(told["config"], told["state"], tuple(pieces))
        pieces.append(message.data)
        if message.reply:
            plain.post(message.reply)
    raise PlainError(f"backup of {stream}: no end of it came")


def restore(plain: Plain, stream: str, backup: Backup) -> None:
    """Make the stream anew from its backup; each piece is answered before the next one goes."""
    subject = plain.api(f"STREAM.RESTORE.{stream}", {"config": backup.config, "state": backup.state})["deliver_subject"]
    for piece in backup.pieces:
        if answer := plain.request(subject, piece):
            raise PlainError(f"restore of {stream}: {answer!r}")
    done = json.loads(plain.request(subject))
    if error := done.get("error"):
        raise PlainError(f"restore of {stream}: {error.get('description')}", int(error.get("err_code", 0)))
