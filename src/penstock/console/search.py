"""A look through a stream for messages that fit: bounded, upwards or downwards, and to be gone on with.

One step looks at so many messages, fetches so many bytes or takes so many seconds, and says how far it came. A stream
that keeps messages by limits is read through a consumer in memory, for the step alone: many messages at a time, without
their bodies if only headers count. Any other stream, and one that lets no consumer be made, is read message by message,
always from the leader, which alone knows what is gone.

The server finds the next message, never the one before. So downwards a block of sequences is read upwards, and the
last of it is shown first; blocks without a message cost one look, however large they are.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.connection import Connection
from penstock.console.backend import Backend, Data, if_there, iso
from penstock.console.criteria import MessageCriteria
from penstock.console.payload import preview
from penstock.errors import DeadlineError, DeniedError, JetStreamError, NotFoundError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.jetstream.scan import scan_messages
from penstock.model import Message
from penstock.spark.markers import is_marker
from penstock.wire.jetstream.direct import read_headers

__all__ = ["SearchStep", "row", "search"]

_BLOCK = 256  # sequences of the first block downwards
_LARGEST = 4096
_ONE_BY_ONE = 512  # the same, if each message is asked for
_SPARSE = 8  # how much larger the next block is behind one without a message
_WAIT = 2.0  # seconds without a message after which a look at the stream itself says why


@dataclass
class SearchStep:
    """What one step found, and how far it came."""

    rows: list[Data] = field(default_factory=list)
    markers: int = 0
    """Markers of the Spark sink that were passed over."""
    looked: int = 0
    """How many messages were looked at."""
    bytes: int = 0
    start: int = 0
    """The range [start, end) of sequences is known now."""
    end: int = 0
    next: int | None = None
    """Where to go on; None at the end of what there is."""


def row(backend: Backend, message: Message) -> Data:
    """Give what a table says of a message."""
    return {
        "sequence": message.sequence,
        "time": iso(message.time),
        "subject": backend.mask.plain(message.subject),
        "size": len(message.data),
        "headers": len(message.headers),
        "preview": preview(backend.mask.data(message.data)),
        "marker": is_marker(message.subject),
    }


async def search(
    backend: Backend, client: Connection, info: StreamInfo, criteria: MessageCriteria, *, lowest: int = 1
) -> SearchStep:
    """Look for messages that fit, as far as one step goes, and not below the sequence `lowest`."""
    looking = _Search(backend, client, info, criteria)
    first, last = max(lowest, 1, info.first_sequence), info.last_sequence
    if not info.messages:
        return looking.step
    if criteria.start:
        return await looking.upwards(max(first, await _beginning(client, info, criteria)), last)
    return await looking.downwards(first, last + 1 if criteria.before is None else min(criteria.before, last + 1))


async def _beginning(client: Connection, info: StreamInfo, criteria: MessageCriteria) -> int:
    """Give the sequence that a place in the stream means."""
    position = criteria.position
    assert position is not None
    if position.sequence is not None:
        return position.sequence
    moment = position.at(datetime.now(UTC))
    if moment is None:
        return {"all": 1, "last": info.last_sequence, "new": info.last_sequence + 1}[position.kind]
    found = await if_there(assets.get_message(client, info.name, since=moment))
    return info.last_sequence + 1 if found is None or found.sequence is None else found.sequence


class _Search:
    def __init__(self, backend: Backend, client: Connection, info: StreamInfo, criteria: MessageCriteria) -> None:
        self.backend, self.client, self.info, self.criteria = backend, client, info, criteria
        self.step = SearchStep()
        # A consumer on another stream would change what is kept there; and few messages need none.
        self.scans = info.config.retention == "limits" and (criteria.is_search or not criteria.start)
        self.until = time.monotonic() + backend.settings.search_seconds
        self.room = backend.settings.search_bytes if criteria.text else backend.settings.message_bytes

    @property
    def spent(self) -> bool:
        settings, step = self.backend.settings, self.step
        over = step.looked >= settings.search_messages or step.bytes >= self.room
        return over or time.monotonic() > self.until

    async def upwards(self, start: int, last: int) -> SearchStep:
        """Look from a sequence on."""
        step, count = self.step, self.backend.settings.messages
        step.start = step.end = start
        rows: list[Data] = []
        most = self.backend.settings.search_messages
        async with contextlib.aclosing(self._read(start, last + 1, most)) as found:
            async for message in found:
                step.end = message.sequence + 1 if message.sequence else step.end
                if self._is_passed_over(message):
                    step.markers += 1
                elif self._fits(message):
                    rows.append(self._row(message))
                if len(rows) == count or self.spent:
                    break
            else:
                if step.looked < most:
                    step.end = last + 1
        step.rows = await self._filled(rows)
        step.next = step.end if step.end <= last else None
        return step

    async def downwards(self, first: int, place: int) -> SearchStep:
        """Look below a sequence, block by block."""
        step, count = self.step, self.backend.settings.messages
        step.end = max(place, first)
        size, rows = _BLOCK, list[Data]()
        largest = _LARGEST if self.scans else _ONE_BY_ONE
        while place > first and len(rows) < count and not self.spent:
            start = await self._next(max(first, place - size))
            if start is None or start >= place:
                place, size = max(first, place - size), size * _SPARSE
            elif place - start > largest:
                size = max(largest, (place - start) // _SPARSE)
            else:
                kept, passed = await self._block(start, place, count - len(rows))
                rows += reversed(kept)
                place = kept[0]["sequence"] if len(rows) == count else start
                step.markers += sum(sequence > place for sequence in passed)
                size = min(2 * size, largest)
        step.start = max(place, first)
        step.rows = await self._filled(rows)
        step.next = step.start if step.start > first else None
        return step

    async def _block(self, start: int, end: int, most: int) -> tuple[list[Data], list[int]]:
        """Give the last ones that fit of a block, and the sequences of markers that were passed over."""
        kept: deque[Data] = deque(maxlen=most)
        passed = []
        async with contextlib.aclosing(self._read(start, end, end - start)) as found:
            async for message in found:
                if self._is_passed_over(message):
                    passed.append(message.sequence or 0)
                elif self._fits(message):
                    kept.append(self._row(message))
        return list(kept), passed

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _next(self, start: int) -> int | None:
        """Find the next message of the subject from a sequence on."""
        subject = self.criteria.subject or ">"
        found = await if_there(assets.get_stored(self.client, self.info.name, start, next_for=subject))
        return None if found is None else int(found["seq"])

    async def _read(self, start: int, end: int, most: int) -> AsyncGenerator[Message]:
        """Give the messages of the subject in a range, `most` at most, without bodies if nobody looks into them."""
        if self.scans:
            try:
                async with contextlib.aclosing(self._scan(start, end, most)) as found:
                    async for message in found:
                        start = (message.sequence or start) + 1
                        yield message
                return
            except NotFoundError:
                raise
            except (JetStreamError, DeniedError):
                self.scans = False  # no consumer can be made here: a limit, or a permission
        async with contextlib.aclosing(self._one_by_one(start, end, most)) as found:
            async for message in found:
                yield message

    async def _scan(self, start: int, end: int, most: int) -> AsyncGenerator[Message]:
        name, subject = self.info.name, self.criteria.subject or None
        bare = not self.criteria.text
        given, last, done = 0, start - 1, False
        async with contextlib.aclosing(
            scan_messages(self.client, name, subject=subject, start=start, most=most, headers_only=bare, wait=_WAIT)
        ) as found:
            async for delivery in found:
                place = delivery.place
                if place.sequence >= end:
                    return
                given, last, done = given + 1, place.sequence, place.pending == 0
                yield Message(
                    subject=delivery.subject,
                    data=delivery.data,
                    headers=read_headers(delivery.header_block or b""),
                    sequence=place.sequence,
                    time=place.time,
                )
        if not done and given < most:
            following = await self._next(last + 1)
            if following is not None and following < end:
                raise DeadlineError(
                    f"Stream {name} gave no message for {_WAIT:g} s.", remedy="The server may be busy. Look again."
                )

    async def _one_by_one(self, start: int, end: int, most: int) -> AsyncGenerator[Message]:
        subject = self.criteria.subject or ">"
        for _ in range(most):
            found = await if_there(assets.get_message(self.client, self.info.name, start, next_for=subject))
            if found is None or found.sequence is None or found.sequence >= end:
                return
            yield found
            start = found.sequence + 1

    # -- judging ---------------------------------------------------------------------------------------------------

    def _is_passed_over(self, message: Message) -> bool:
        """Count a message that is looked at; tell whether it is a marker that nobody asked for."""
        self.step.looked += 1
        self.step.bytes += len(message.data)
        return not self.criteria.markers and is_marker(message.subject)

    def _fits(self, message: Message) -> bool:
        return self.criteria.matches(self.backend.mask, message.headers, message.data)

    def _row(self, message: Message) -> Data:
        if self.scans and not self.criteria.text:
            return {"sequence": message.sequence}  # without its body; those that are shown are fetched
        return row(self.backend, message)

    async def _filled(self, rows: list[Data]) -> list[Data]:
        """Fetch the messages that came without bodies, as many as a page may; one that is gone by now is left out."""
        filled: list[Data] = []
        left = self.room
        for item in rows:
            if len(item) > 1:
                filled.append(item)
                continue
            if left <= 0:
                break
            found = await if_there(assets.get_message(self.client, self.info.name, item["sequence"]))
            if found is not None:
                filled.append(row(self.backend, found))
                left -= len(found.data)
        else:
            return filled
        # The page ends with the last that was fetched.
        last = filled[-1]["sequence"]
        if self.criteria.start:
            self.step.end = last + 1
        else:
            self.step.start = last
        return filled
