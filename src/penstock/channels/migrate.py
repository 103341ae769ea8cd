"""Copies channels of a NATS Streaming server into streams, resumably, and compares the two at the end.

The messages come from the server while it runs, by an ordinary subscription, or from the folder in which it kept them.
A copied message has the sequence that it had, its time and that sequence in headers, and its payload untouched. The
source is only read. What is in the stream already is not copied again, so a copy that was broken off goes on, and a
later run fetches what came since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.channels.client import Client
from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelStream, more_lines
from penstock.channels.publishes import NewMessages
from penstock.channels.store import MOST, Store
from penstock.channels.subscription import Message
from penstock.errors import DataLossError, DeadlineError, DisconnectedError, InputError
from penstock.wire.jetstream.answers import number

__all__ = ["ChannelSource", "Copied", "RunningServer", "copy_channel", "verify_channel"]

_SILENCE = 2.0  # a channel that sends nothing for this long has nothing to send
_STALL = 30.0
_IN_FLIGHT = 256  # messages that wait here, each as large as the server carries at most
_BATCH_BYTES = 4 * 1024 * 1024
# The gateway puts its own limits on the stream when it first writes to it.
UNLIMITED = ChannelLimits(max_msgs=0, max_bytes=0)

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Copied:
    """What became of a channel: it holds `[first, end)` now, of which this run copied `copied`."""

    channel: str
    stream: str
    first: int
    end: int
    copied: int


class SourceMessage(Protocol):
    """A message as a source gives it."""

    @property
    def sequence(self) -> int:
        """Its place in the channel."""

    @property
    def data(self) -> bytes:
        """Its payload."""

    @property
    def reply(self) -> str:
        """Where its publisher wanted answers."""

    @property
    def timestamp(self) -> int:
        """When it was stored, in nanoseconds since 1970."""


class ChannelSource(Protocol):
    """Where channels are copied from."""

    async def ends(self, channel: str) -> tuple[int, int] | None:
        """Find the first and the last message of a channel; None if it has none."""

    def read(self, channel: str, start: int, last: int) -> AsyncIterator[Sequence[SourceMessage]]:
        """Give a channel's messages from `start` to `last`, in batches, each once and in order."""


class RunningServer:
    """A NATS Streaming server that runs, asked as one of its clients."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ends(self, channel: str) -> tuple[int, int] | None:
        """Find the first and the last message of a channel; None if it has none."""
        first = await self._find(channel, start="First")
        last = None if first is None else await self._find(channel, start="LastReceived")
        return None if first is None or last is None else (first, last)

    async def _find(self, channel: str, **where: Any) -> int | None:
        """Give the sequence of the first message from a start position on; None if nothing comes."""
        subscription = await self._client.subscribe(channel, max_in_flight=1, manual_acks=True, **where)
        try:
            return (await subscription.next(_SILENCE)).sequence
        except TimeoutError:
            return None
        finally:
            await subscription.unsubscribe()

    async def read(self, channel: str, start: int, last: int) -> AsyncIterator[list[Message]]:
        """Give a channel's messages from `start` to `last`, in batches, each once and in order."""
        subscription = await self._client.subscribe(
            channel, sequence=start, max_in_flight=_IN_FLIGHT, ack_wait=_STALL, manual_acks=True
        )
        reached = start - 1
        batch: list[Message] = []
        size = 0
        try:
            while reached < last:
                try:
                    message = await subscription.next(_STALL)
                except TimeoutError:
                    raise DeadlineError(
                        f"The source sent nothing of {channel} after {reached} for {_STALL:g} s.",
                        remedy="Run it again: it goes on where it stopped.",
                        seconds=_STALL,
                    ) from None
                message.ack()
                if message.sequence > last:
                    break  # the source dropped the rest meanwhile
                if message.sequence <= reached:
                    continue  # sent again
                gap = message.sequence != reached + 1
                if gap and await self._find(channel, sequence=reached + 1) != message.sequence:
                    raise DisconnectedError(
                        f"Messages of {channel} after {reached} were lost on the way from the source.",
                        remedy="Run it again: it goes on where it stopped.",
                    )
                reached = message.sequence
                batch.append(message)
                size += len(message.data)
                if len(batch) == MOST or size > _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch
        finally:
            await subscription.unsubscribe()


async def _target(store: Store, channel: str, first: int) -> ChannelStream:
    stream = await store.find(channel, UNLIMITED)
    if stream is None:
        return await store.create(channel, UNLIMITED, first=first)
    stream.in_step = True  # whatever limits the stream has, they are not ours to change
    if stream.count:
        await store.clear_gaps(stream)
        newest = await store.read_on(stream, stream.last, 1)
        if newest and newest[0].origin != newest[0].sequence:
            raise InputError(
                f"The stream {stream.name} holds messages that were not copied from {channel}.",
                remedy="Publishers write to it already: copy to another cluster id, or delete the stream.",
            )
    return stream


async def copy_channel(
    source: ChannelSource, store: Store, channel: str, ends: tuple[int, int], advance: Advance
) -> Copied:
    """Copy one channel from its first to its last message, `ends`, as the source gave them."""
    first, last = ends
    stream = await _target(store, channel, first)
    copied = 0
    start = max(first, stream.last + 1)
    advance(start - first)
    if start <= last:
        async for batch in source.read(channel, start, last):
            await _append(store, stream, batch)
            copied += len(batch)
            advance(len(batch))
    return Copied(channel, stream.name, stream.first, stream.last + 1, copied)


async def _append(store: Store, stream: ChannelStream, batch: Sequence[SourceMessage]) -> None:
    run = NewMessages()
    for message in batch:
        if message.sequence != stream.last + len(run) + 1:  # the source lost some in between
            if run:
                await store.append(stream, run)
                run = NewMessages()
            await store.skip(stream, message.sequence - 1)
        reply = message.reply.encode()
        run.add(message.data, reply, message.timestamp, more_lines(reply=reply, origin=message.sequence))
    await store.append(stream, run)


async def verify_channel(
    source: ChannelSource, store: Store, channel: str, ends: tuple[int, int], advance: Advance
) -> int:
    """Compare every message at the source with its copy; give how many are the same.

    Raises DataLossError at the first one that is missing, different, or not at the source. What is before the sequence
    with which the stream was made is not compared: the files of a source may still hold messages that its limits had
    dropped by then.
    """
    stream = await store.find(channel, UNLIMITED)
    if stream is None:
        raise DataLossError(f"The channel {channel} was not copied.", stream=channel, start=ends[0], end=ends[1] + 1)
    made_at = number((await store.describe(channel))["config"], "first_seq", 1)
    same = reached = 0
    async for batch in source.read(channel, max(ends[0], made_at), ends[1]):
        waiting = deque(batch)
        start = reached + 1 if reached else batch[0].sequence
        reached = batch[-1].sequence
        async for copy in store.scan(stream, start, reached + 1):
            message = waiting[0]
            if copy.sequence < message.sequence:
                raise _loss(stream, copy.sequence, f"is in {stream.name} and not at the source")
            if copy.sequence > message.sequence:
                break
            if (copy.data, copy.time, copy.reply) != (message.data, message.timestamp, message.reply):
                raise _loss(stream, message.sequence, f"differs in {stream.name}")
            waiting.popleft()
        if waiting:
            raise _loss(stream, waiting[0].sequence, f"is missing in {stream.name}")
        same += len(batch)
        advance(len(batch))
    return same


def _loss(stream: ChannelStream, sequence: int, what: str) -> DataLossError:
    return DataLossError(
        f"Message {sequence} of {stream.channel} {what}.",
        remedy="Delete the stream and copy the channel again.",
        stream=stream.name,
        start=sequence,
        end=sequence + 1,
        first=stream.first,
        last=stream.last,
    )
