"""The descriptions of a bucket's objects: looked at, and replaced, each behind the one that was seen."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import chunk_subject, description_subject, name_of, stream_of_objects
from penstock.buckets.object_writing import purge_chunks
from penstock.connection.asking import insist
from penstock.connection.stored import find_last
from penstock.errors import (
    ConditionError,
    DeniedError,
    InputError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.times import parse_time
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.verdicts import Verdict, judge, may_ask_again
from penstock.wire.patience import Patience

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Descriptions", "Seen", "chunks_of", "no_bucket"]

log = logging.getLogger("penstock.buckets")

_TIMES = 100  # that a description is tried before somebody who is always faster is told of


class Seen(NamedTuple):
    """What is there under a name: a description, None if there is none or a broken one, and its sequence or 0."""

    info: ObjectInfo | None
    sequence: int

    @property
    def is_object(self) -> bool:
        """Whether there is anything that is not deleted, if only a description that cannot be read."""
        return self.sequence > 0 and not (self.info is not None and self.info.deleted)


class Descriptions:
    """The descriptions of `bucket`; those of a mirror stand under the subjects of its origin, which is `held`."""

    def __init__(self, nc: Connection, bucket: str, *, held: str, timeout: float) -> None:
        self._nc, self._bucket, self._timeout, self.held = nc, bucket, timeout, held
        self._stream = stream_of_objects(bucket)
        self._denied = False  # whether the leader may not be asked

    async def get(self, name: str) -> ObjectInfo | None:
        """Ask the leader how an object is described; None if it is not. RemoteProtocolError for a broken one."""
        found = await self._last(name)
        return None if found is None else self.read(found.subject, found.payload, _time(found), found.sequence)

    async def look(self, name: str) -> Seen:
        """Look at what a description would replace."""
        found = await self._last(name)
        if found is None:
            return Seen(None, 0)
        try:
            return Seen(self.read(found.subject, found.payload, _time(found), found.sequence), found.sequence)
        except RemoteProtocolError as error:
            log.warning("%s", error.what)
            return Seen(None, found.sequence)

    async def _last(self, name: str) -> Found | None:
        subject = description_subject(self.held, name)
        try:
            if not self._denied:
                try:
                    return await find_last(self._nc, self._stream, subject, direct=False)
                except DeniedError:
                    self._denied = True  # other clients ask any replica, and permissions may be made for them
            try:
                return await find_last(self._nc, self._stream, subject, direct=True)
            except DeniedError as error:
                if error.subject is not None and names.message_get(self._stream) in error.subject:
                    return None  # a replica knows of none, and nobody else may be asked
                raise
        except NotFoundError as error:
            raise no_bucket(self._bucket, error) from None

    def read(self, subject: str, payload: bytes, time: datetime | None, sequence: int | None) -> ObjectInfo:
        """Read a message that describes an object."""
        name = name_of(self.held, subject)
        if name is None:
            what = f"Bucket {self._bucket} describes an object on {subject}, which is not the subject of any object."
            raise RemoteProtocolError(what, remedy=f"Purge that subject of stream {self._stream}.")
        return ObjectInfo.from_message(self._bucket, name, payload, time=time, sequence=sequence)

    async def replace(
        self, info: ObjectInfo, seen: Seen, *, expected: int | None = None, chunks: bool = False
    ) -> ObjectInfo:
        """Publish a description in the place of the one that was seen, or of a newer one if none is `expected`.

        With `chunks` it has brought some: they are purged if it is surely not stored, and those of what it replaces if
        it is. ConditionError if what is expected is not there any more.
        """
        doubts: list[PenstockError] = []
        try:
            for _ in range(_TIMES):
                try:
                    sequence = await self._publish(info, seen.sequence, doubts)
                    break
                except ConditionError as error:
                    if expected is not None:
                        raise self.other(info.name, expected, error.actual) from None
                    seen = await self.look(info.name)
            else:
                what = f"Object {info.name!r} of bucket {self._bucket} was changed by others {_TIMES} times meanwhile."
                raise JetStreamError(what, remedy="Find out what else writes it, and try again.")
        except PenstockError as error:
            # If nobody knows, it may still come, and would be without its bytes.
            if chunks and not doubts and judge(error) is not Verdict.UNKNOWN:
                await self.purge(info)
            raise
        time = await self._check_there(info.name, sequence)
        if chunks and seen.info is not None and seen.is_object:
            await self.purge(seen.info)
        return info.changed(sequence=sequence, time=time)

    async def _check_there(self, name: str, sequence: int) -> datetime:
        """See to it that a description is where others look for it, and give its time."""
        there = await self._last(name)
        if there is None or there.sequence < sequence:
            subject = description_subject(self._bucket, name)
            raise JetStreamError(
                f"Stream {self._stream} acknowledged the description of object {name!r}, and does not hold it on "
                f"{subject}: it was purged, or is stored under another subject.",
                remedy="Look at the limits and the subject transform of the stream, and the mappings of the account.",
            )
        return (_time(there) if there.sequence == sequence else None) or datetime.now(UTC)

    async def purge(self, info: ObjectInfo) -> None:
        """Remove the chunks of an object that nobody describes any more; a link, or one that names none, has none."""
        if info.is_link:
            return
        try:
            subject = chunks_of(info)
        except RemoteProtocolError as error:
            log.warning("%s", error.what)
            return
        await purge_chunks(self._nc, self._stream, subject)

    async def _publish(self, info: ObjectInfo, expected: int, doubts: list[PenstockError]) -> int:
        """Publish a description behind the one that is expected, and give its sequence.

        `doubts` gets the errors after which nobody knows whether it is stored.
        """
        subject, payload = description_subject(self._bucket, info.name), info.encode()
        headers = {names.ROLLUP: "sub", names.EXPECTED_LAST_SUBJECT_SEQUENCE: str(expected)}
        patience = Patience(self._timeout)
        while True:
            try:
                reply = await insist(self._nc, subject, payload, self._timeout, headers)
                return confirm(reply.data, reply.status, self._stream, self._nc.options.domain).sequence
            except PenstockError as error:
                if isinstance(error, ConditionError):
                    # An attempt whose ack was lost may have been stored: then this one could not be.
                    there = await self._last(info.name)
                    if there is not None and there.payload == payload:
                        return there.sequence
                    raise
                if judge(error) is Verdict.UNKNOWN:
                    doubts.append(error)
                if not may_ask_again(error) or self._nc.is_closed:
                    raise
                await asyncio.sleep(patience.pause(error))

    def other(self, name: str, expected: int, actual: int | str | None) -> ConditionError:
        """Give the error of a description that is not the one that was expected."""
        now = f"is described by message {actual}" if actual else "is not there"
        what = f"Object {name!r} of bucket {self._bucket} {now}, and {expected or 'none'} was expected"
        return ConditionError(
            f"{what}: nothing is changed.",
            remedy="Somebody else was faster: look at what is there now, and decide anew.",
            subject=description_subject(self._bucket, name),
            expected=expected,
            actual=actual,
        )


def _time(found: Found) -> datetime | None:
    try:
        return parse_time(found.time) if found.time else None
    except InputError:
        raise RemoteProtocolError(f"Message {found.sequence} has the time {found.time[:40]!r}.") from None


def chunks_of(info: ObjectInfo, held: str | None = None) -> str:
    """Give the subject of an object's chunks; RemoteProtocolError if its description names none."""
    try:
        return chunk_subject(held or info.bucket, info.nuid)
    except InputError:
        what = f"Object {info.name!r} of bucket {info.bucket} does not say where its bytes are: {info.nuid[:40]!r}."
        raise RemoteProtocolError(what, remedy="Put it again, or delete it.") from None


def no_bucket(bucket: str, error: NotFoundError) -> NotFoundError:
    """Say that there is no bucket, as the server found out."""
    what = f"There is no object bucket {bucket}."
    return NotFoundError(what, remedy="`penstock object ls` shows those that are there.", **error.facts)
