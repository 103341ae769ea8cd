"""Chunks that no object has: what a program left in a bucket that was killed while it put, replaced or deleted.

A put that is under way looks the same, until it publishes its description. So only chunks count whose last one is older
than some age, and only those are removed that were seen. A client that goes on with such a put after
all does not find its chunks and says so. Which chunks are described is read to the very end of the bucket, after the
chunks: an object that gets another name meanwhile is not missed under both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.buckets.object_watch import ObjectWatch
from penstock.buckets.object_wire import chunk_subject, chunk_subjects, description_subjects, stream_of_objects
from penstock.connection.stored import find_last
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, InputError
from penstock.jetstream import assets
from penstock.jetstream.ordered import OrderedRead
from penstock.wire.jetstream.direct import read_headers
from penstock.wire.jetstream.names import MSG_SIZE

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Orphan", "check_age", "find_orphans", "purge_orphan"]

YOUNGEST = 60.0  # seconds: what is younger may be a put that waits for its next chunk
_ROUNDS = 1000  # looks at a bucket whose descriptions change all the time
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Orphan:
    """Chunks that no object has."""

    nuid: str
    """Their id."""
    chunks: int
    """How many there are."""
    size: int
    """How many bytes they have."""
    time: datetime
    """When the last one was stored."""
    sequence: int
    """The sequence of the last one."""


def check_age(older_than: str | float, option: str = "older_than") -> float:
    """Give an age in seconds; refuse one that a put may have which is under way."""
    age = parse_duration(older_than, option=option)
    if age < YOUNGEST:
        what = f"{option} is {older_than!r}, and a put that is under way may be as old."
        raise InputError(what, remedy=f"Give {YOUNGEST:g} seconds or more; a day is on the safe side.")
    return age


async def find_orphans(nc: Connection, bucket: str, older_than: str | float) -> list[Orphan]:
    """Give the chunks that no object has, and whose last one is older than that, in the order of storing."""
    limit = datetime.now(UTC) - timedelta(seconds=check_age(older_than))
    stored = await _stored(nc, bucket)
    old = {nuid: item for nuid, item in stored.items() if item.time <= limit}
    described = await _described(nc, bucket) if old else set()
    return sorted((item for nuid, item in old.items() if nuid not in described), key=lambda item: item.sequence)


async def purge_orphan(nc: Connection, bucket: str, orphan: Orphan) -> int:
    """Remove chunks that were found, and none that came later; give how many."""
    subject = chunk_subject(bucket, orphan.nuid)
    return await assets.purge_stream(nc, stream_of_objects(bucket), subject=subject, sequence=orphan.sequence + 1)


async def _stored(nc: Connection, bucket: str) -> dict[str, Orphan]:
    """Give all chunks that are there, by their ids."""
    found: dict[str, Orphan] = {}
    chunks = chunk_subjects(bucket)
    async with OrderedRead(nc, stream_of_objects(bucket), filters=[chunks], headers_only=True) as read:
        async for message in read.current():
            nuid = message.subject[len(chunks) - 1 :].decode("utf-8", "replace")
            size = read_headers(message.header_block or b"").get(MSG_SIZE, ["0"])[-1]
            time = _EPOCH + timedelta(microseconds=message.nanoseconds // 1000)
            before = found.get(nuid)
            count, bytes_ = (before.chunks, before.size) if before is not None else (0, 0)
            found[nuid] = Orphan(nuid, count + 1, bytes_ + int(size), time, message.sequence)
    return found


async def _described(nc: Connection, bucket: str) -> set[str]:
    """Give the ids that objects have, and some that one had a moment ago.

    A description that cannot be read is an error: nobody knows what it describes.
    """
    found: set[str] = set()
    async with ObjectWatch(nc, bucket, held=bucket) as watch:
        async for info in watch.current():
            if not info.deleted:
                found.add(info.nuid)
        for _ in range(_ROUNDS):
            # Whoever is described now was described before the last message, and was seen.
            last = await find_last(nc, stream_of_objects(bucket), description_subjects(bucket), direct=False)
            if last is None or last.sequence <= watch.sequence:
                return found
            while watch.sequence < last.sequence:
                info = await anext(watch)
                if not info.deleted:
                    found.add(info.nuid)
    what = f"The objects of bucket {bucket} change faster than they can be read."
    raise DeadlineError(what, remedy="Try again when less is written.")
