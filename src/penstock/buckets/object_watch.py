"""`ObjectWatch`: what is said of the objects of a bucket, and then every change of it, in order and nothing missed.

It reads the bucket's descriptions in order (`jetstream.ordered`), so a lost connection, a change of leaders and a
consumer that is gone are survived. A bucket that is deleted, replaced or put back to an older state ends it with an
error. Each description replaces the one before it: of an object that changes twice while nobody can be told, the last
one comes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from penstock.buckets.object_describing import no_bucket
from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import description_subjects, name_of, stream_of_objects
from penstock.errors import InputError, NotFoundError
from penstock.jetstream.ordered import OrderedRead

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.wire.jetstream.ordered import OrderedMessage

__all__ = ["ObjectWatch"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ObjectWatch:
    """Descriptions of objects, for `async for`. Use it with `async with`.

    First come those of the objects that are there, then every change, deletes too. `is_current` turns true with the
    last one of those that were there when the watch began; `current()` gives these and ends.
    """

    def __init__(
        self,
        nc: Connection,
        bucket: str,
        *,
        held: str,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        resume_from: int | None = None,
        patience: float = 60.0,
    ) -> None:
        if updates_only and resume_from is not None:
            raise InputError("A watch is for updates only, and has resume_from.", remedy="Leave one of them out.")
        self._bucket, self._held, self._ignore_deletes = bucket, held, ignore_deletes
        self._read = OrderedRead(
            nc,
            stream_of_objects(bucket),
            filters=[description_subjects(held)],
            policy="new" if updates_only else "last_per_subject",
            start=resume_from,
            patience=patience,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._read.open()
        except NotFoundError as error:
            raise no_bucket(self._bucket, error) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._read.close()

    @property
    def is_current(self) -> bool:
        """Whether everything was given that was there when the watch began; true at once for updates only."""
        return self._read.is_current

    @property
    def sequence(self) -> int:
        """The last sequence that came, to resume from the next one."""
        return self._read.last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectInfo:
        while True:
            info = self._info(await anext(self._read))
            if not (self._ignore_deletes and info.deleted):
                return info

    async def current(self) -> AsyncIterator[ObjectInfo]:
        """Give what was there when the watch began; the iteration ends when all of it was given."""
        async for message in self._read.current():
            info = self._info(message)
            if not (self._ignore_deletes and info.deleted):
                yield info

    def _info(self, message: OrderedMessage) -> ObjectInfo:
        name = name_of(self._held, message.subject.decode("utf-8", "replace"))
        time = _EPOCH + timedelta(microseconds=message.nanoseconds // 1000)
        # One that names no object describes none, whatever it says.
        return ObjectInfo.from_message(self._bucket, name or "", message.data, time=time, sequence=message.sequence)
