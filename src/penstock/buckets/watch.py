"""`Watch`: the entries of a bucket as they stand, and then every change, in order and with nothing missed.

It reads the bucket's stream in order (`jetstream.ordered`), so a lost connection, a change of leaders and a consumer
that is gone are survived. A bucket that is deleted, replaced or put back to an older state ends it with an error. So
does one that is purged as a whole: the server says nothing of that to anybody, so values of a few keys that were given,
and that nothing came after, are looked for from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Self

from penstock.buckets.entry import Entry, entry_of_ordered
from penstock.buckets.key_stream import Addresses
from penstock.buckets.key_wire import PUT
from penstock.connection.tasks import end, heed
from penstock.errors import DataLossError, InputError, NotFoundError, PenstockError
from penstock.jetstream import assets
from penstock.jetstream.ordered import OrderedRead
from penstock.wire.jetstream.verdicts import may_ask_again

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import Stream
    from penstock.wire.jetstream.ordered import OrderedMessage

__all__ = ["Watch"]

_LOOK = 5.0  # seconds between two looks at the bucket
_CANARIES = 64  # keys whose values are looked for: a purge is missed only if all of them were written again since


class Watch:
    """Entries of a bucket, for `async for`. Use it with `async with`.

    First come the entries that are there, then every change. `is_current` turns true with the last one of those that
    were there when the watch began; `current()` gives these and ends.
    """

    def __init__(
        self,
        client: Connection,
        bucket: str,
        addresses: Addresses,
        filters: Sequence[str],
        *,
        history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
        patience: float = 60.0,
    ) -> None:
        if updates_only and (history or resume_from is not None):
            other = "history" if history else "resume_from"
            raise InputError(f"A watch is for updates only, and has {other}.", remedy="Leave one of them out.")
        self._client, self._bucket, self._kept = client, bucket, addresses.kept.encode()
        self._ignore_deletes = ignore_deletes
        self._read = OrderedRead(
            client,
            addresses.stream,
            filters=filters,
            policy="new" if updates_only else "all" if history else "last_per_subject",
            start=resume_from,
            headers_only=meta_only,
            patience=patience,
        )
        self._canaries: dict[bytes, int] = {}  # subjects, and the revisions of their values, which should be there
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin to watch."""
        try:
            await self._read.open()
        except NotFoundError as error:
            raise self._gone(error) from None
        if _keeps(self._read.info.config):
            self._looking = asyncio.ensure_future(self._look())
            heed(self._looking, self._failed)

    async def close(self) -> None:
        """Stop watching; nothing is left at the server."""
        if self._looking is not None:
            await end([self._looking])
        await self._read.close()

    @property
    def is_current(self) -> bool:
        """Whether everything was given that was there when the watch began; true at once for updates only."""
        return self._read.is_current

    @property
    def revision(self) -> int:
        """The last revision that came, to resume from the next one."""
        return self._read.last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        read = self._read
        while True:
            message = read.take()
            if message is None:
                try:
                    await read.wait()
                except NotFoundError as error:
                    raise self._gone(error) from None
            elif (entry := self._entry(message)) is not None:
                return entry

    async def current(self) -> AsyncIterator[Entry]:
        """Give the entries that were there when the watch began; the iteration ends when all of them were given."""
        read = self._read
        while not read.is_current:
            message = read.take()
            if message is not None:
                if (entry := self._entry(message)) is not None:
                    yield entry
            elif not read.is_current:
                try:
                    await read.wait()
                except NotFoundError as error:
                    raise self._gone(error) from None

    def _entry(self, message: OrderedMessage) -> Entry | None:
        subject, kept, canaries = message.subject, self._kept, self._canaries
        if not subject.startswith(kept):
            return None  # a stream may have been given other subjects, too
        entry = entry_of_ordered(self._bucket, subject[len(kept) :].decode("utf-8", "replace"), message)
        if entry.operation != PUT:
            canaries.pop(subject, None)
            return None if self._ignore_deletes else entry
        if len(canaries) < _CANARIES or subject in canaries:
            canaries[subject] = message.sequence
        return entry

    def _gone(self, error: NotFoundError) -> NotFoundError:
        """Say of the bucket what was said of its stream."""
        what = error.what.replace(f"stream {self._read.stream}", f"bucket {self._bucket}")
        what = what.replace(f"Stream {self._read.stream}", f"Bucket {self._bucket}")
        return NotFoundError(what, remedy="`penstock kv ls` shows those that are there.", **error.facts)

    # -- a purge ---------------------------------------------------------------------------------------------------

    @property
    def _canary(self) -> tuple[bytes, int] | None:
        """The oldest value that should be there."""
        return min(self._canaries.items(), key=lambda item: item[1], default=None)

    def _failed(self, error: BaseException) -> None:
        # Nobody would notice a purge any more.
        self._read.fail(PenstockError(f"The watch of bucket {self._bucket} failed: {error!r}."))

    async def _look(self) -> None:
        """Notice that what was given is gone, and that nothing came in its place."""
        suspected: tuple[tuple[bytes, int], int, int] | None = None  # of which value, and how far things were then
        while True:
            await asyncio.sleep(_LOOK)
            canary = self._canary
            if canary is None or self._read.waiting:
                continue
            try:
                there = await assets.stream_info(self._client, self._read.stream)
            except PenstockError as error:
                if may_ask_again(error) or isinstance(error, NotFoundError):
                    continue  # the read finds out
                self._read.fail(error)
                return
            if there.first_sequence <= canary[1] or self._canary != canary or not _keeps(there.config):
                suspected = None
            elif suspected is None or suspected[0] != canary:
                suspected = (canary, there.last_sequence, self._read.idle)
            elif self._read.last < suspected[1] and self._read.idle == suspected[2]:
                continue  # what took its place may be on its way
            else:
                self._read.fail(
                    DataLossError(
                        f"Bucket {self._bucket} was purged: the values up to {there.first_sequence - 1} are gone.",
                        remedy="Forget what was read, and begin to watch again.",
                        stream=self._read.stream,
                        start=canary[1],
                        end=there.first_sequence,
                        first=there.first_sequence,
                        last=there.last_sequence,
                    )
                )
                return


def _keeps(config: Stream) -> bool:
    """Tell whether a value stays until another one or a marker comes in its place, unless somebody purges the bucket.

    Age takes values away without a word, unless markers tell of it; so does a bound at which the oldest ones go.
    """
    told = bool(config.subject_delete_marker_ttl)
    ages = (config.max_age or config.allow_msg_ttl) and not told
    return not ages and (config.discard == "new" or config.max_bytes < 0)
