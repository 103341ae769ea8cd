"""What a query takes from elsewhere than the server: a backup, the store of a stopped server, or an archive.

The past of a stream ends at a sequence, and the server goes on behind it. That is only true if both are of the same
stream: names are used again, and streams are made anew. What can be known is compared, and what cannot is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import DataLossError, InputError
from penstock.store.files import open_folder
from penstock.store.history import open_backup, open_store
from penstock.store.s2 import Broken
from penstock.wire.subjects import overlaps

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.survey import Survey

__all__ = ["Past", "PastMessage", "PastPart", "check_same", "last_messages", "open_past", "past_stream"]

MOST_COMPARED = 16  # messages that are looked for on the server until one is there, too


class PastPart(Protocol):
    """Some of the messages of a past, one behind the other; it is carried to tasks."""

    @property
    def first(self) -> int:
        """The first sequence that may be in it."""

    @property
    def last(self) -> int:
        """The last sequence that may be in it."""

    @property
    def size(self) -> int:
        """About how many bytes it has."""

    @property
    def messages(self) -> int:
        """How many messages are in it; if nobody counted, how many there can be."""

    def batches(self, stream: str, start: int = 0, end: int = 1 << 62, **options: Any) -> Iterator[pa.RecordBatch]:
        """Give its messages whose sequences are in [start, end)."""


class Past(Protocol):
    """The messages of a stream up to a sequence, kept where no server is."""

    @property
    def name(self) -> str:
        """The stream."""

    @property
    def source(self) -> str:
        """Where it is, for people."""

    @property
    def config(self) -> dict[str, Any]:
        """What is known of the stream: its configuration, and `Created`, as a store has it."""

    @property
    def first(self) -> int:
        """The first sequence that it speaks of."""

    @property
    def last(self) -> int:
        """The last sequence that it speaks of."""

    @property
    def next(self) -> int:
        """The sequence behind the last one."""

    @property
    def parts(self) -> Sequence[PastPart]:
        """Its messages, in order."""

    @property
    def damage(self) -> Sequence[Any]:
        """What of it cannot be read."""

    def at_time(self, time: datetime) -> int | None:
        """Give the first sequence stored at a time or later; None if there is none."""


def open_past(uri: str, stream: str | None) -> Past:
    """Open what is kept of a stream, whatever kind it is of."""
    from penstock.spark.archive_files import open_archive
    from penstock.spark.archive_folder import is_archive

    names = open_folder(uri).names()
    if is_archive(names):
        return open_archive(uri, stream)
    if any(name in names for name in ("backup.json", "stream.arc.s2", "stream.tar.s2")):
        return open_backup(uri, stream)
    return open_store(uri, stream)


def past_stream(uri: str) -> str:
    """Give the name of the stream of a backup or an archive, without looking through it."""
    from penstock.spark.archive_folder import is_archive, read_identity
    from penstock.store.backups import archive_of

    folder = open_folder(uri)
    if is_archive(folder.names()):
        return read_identity(uri).stream
    return str(archive_of(folder)[1]["config"]["name"])


# -- whether it is the past of this stream -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PastMessage:
    """What is compared of a message; times as Arrow has them, without nanoseconds."""

    sequence: int
    time: datetime
    subject: str
    digest: bytes

    @classmethod
    def of(cls, sequence: int, time: datetime, subject: str, data: bytes) -> PastMessage:
        """Take a message in."""
        return cls(sequence, time, subject, hashlib.blake2b(data, digest_size=16).digest())


def last_messages(past: Past, below: int, count: int) -> list[PastMessage]:
    """Give the last messages of a past below a sequence, the last one first."""
    found: list[PastMessage] = []
    for part in reversed(past.parts):
        if part.first >= below:
            continue
        tail: list[PastMessage] = []
        try:
            for batch in part.batches(past.name, 0, below, headers=False, escape=True):
                for row in batch.slice(max(0, batch.num_rows - count)).to_pylist():
                    tail.append(PastMessage.of(row["sequence"], row["time"], row["subject"], row["data"]))
                del tail[:-count]
        except (Broken, DataLossError):  # what cannot be read is told when it is wanted
            pass
        found += reversed(tail)
        if len(found) >= count:
            break
    return found[:count]


def first_time(past: Past) -> datetime | None:
    """Give when the first message of a past was stored."""
    for part in past.parts:
        for batch in part.batches(past.name, headers=False, escape=True):
            if batch.num_rows:
                time: datetime = batch.column("time")[0].as_py()
                return time
    return None


def check_same(past: Past, live: Survey) -> None:
    """Refuse a past that is not of the stream which the server has, as far as that can be known.

    The last message that both hold decides: streams that parted at some sequence differ from there on. If they hold
    none in common, both must say the same time of creation. Backups of servers from 2.15 on say none: then the stream
    must be older than all of the past, and what it holds be younger.
    """
    if live.last < past.last:
        raise _other(past, live, f"the stream ends with {live.last} and {past.source} with {past.last}")
    for message in last_messages(past, past.next, MOST_COMPARED):
        found = live.bulk.at(live.name, message.sequence) if message.sequence >= live.head else None
        if found is None:
            continue
        if _read(found) != message:
            raise _other(past, live, f"message {message.sequence} is another one in {past.source}")
        return
    created = past.config.get("Created")
    if created:
        if created != live.created:
            what = f"the stream was made at {live.created}, and the one of {past.source} at {created}"
            raise _other(past, live, f"{what}, and no message is in both")
        return
    _check_times(past, live)


def _check_times(past: Past, live: Survey) -> None:
    """Compare what is left if nothing names the stream and no message is in both."""
    from penstock.model import parse_time
    from penstock.spark.survey import CLOCK_MARGIN

    nothing = "no message is in both, and this backup does not say when its stream was made"
    old, new = tuple(past.config.get("subjects") or ()), tuple(live.config.get("subjects") or ())
    if old and new and not any(overlaps(one, other) for one in old for other in new):
        raise _other(past, live, f"{nothing}; the subjects have nothing in common")
    began = first_time(past)
    if began is None:
        return
    if began < parse_time(live.created) and not live.config.get("mirror"):
        raise _other(past, live, f"{nothing}; its first message is older than the stream, made at {live.created}")
    ended = last_messages(past, past.next, 1)
    first = live.bulk.following(live.name, ">", live.head) if live.messages else None
    if ended and first is not None and parse_time(first.time) < ended[0].time - CLOCK_MARGIN:
        raise _other(past, live, f"{nothing}; the stream's first message is older than the last one of the backup")


def _read(found: Any) -> PastMessage:
    from penstock.model import parse_time

    return PastMessage.of(found.sequence, parse_time(found.time), found.subject, found.payload)


def _other(past: Past, live: Survey, why: str) -> InputError:
    return InputError(
        f"{past.source} is not the past of the stream {live.name} at {live.bulk.options.url}: {why}.",
        remedy="The stream was made anew or set back since, or it is another one of that name. Name a backup of this "
        "stream, or leave the option out.",
    )
