"""Copies channels from a running NATS Streaming server into streams, resumably, and compares the two at the end.

A copied message has the sequence that it had, its time and that sequence in headers, and its payload untouched. The
source is only read, by an ordinary subscription. What is in the stream already is not copied again, so a copy that was
broken off goes on, and a later run fetches what came since.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from penstock.channels.client import Client
from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelStream, more_lines
from penstock.channels.publishes import NewMessages
from penstock.channels.store import MOST, Store
from penstock.channels.subscription import Message
from penstock.errors import DataLossError, DeadlineError, DisconnectedError, InputError, UnreachableError

__all__ = ["Copied", "copy_channel", "find_ends", "names_from_monitor", "verify_channel"]

_SILENCE = 2.0  # a channel that sends nothing for this long has nothing to send
_STALL = 30.0
_IN_FLIGHT = 256  # messages that wait here, each as large as the server carries at most
_BATCH_BYTES = 4 * 1024 * 1024
# The gateway puts its own limits on the stream when it first writes to it.
_UNLIMITED = ChannelLimits(max_msgs=0, max_bytes=0)

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Copied:
    """What became of a channel: it holds `[first, end)` now, of which this run copied `copied`."""

    channel: str
    stream: str
    first: int
    end: int
    copied: int


async def names_from_monitor(url: str) -> list[str]:
    """Ask the monitoring page of a NATS Streaming server for its channels."""

    def ask() -> bytes:
        with urllib.request.urlopen(f"{url.rstrip('/')}/streaming/channelsz?limit=100000", timeout=10) as page:  # noqa: S310  # the scheme was checked
            content: bytes = page.read()
            return content

    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a monitoring page.", remedy="Write it as http://host:8222.")
    try:
        names = json.loads(await asyncio.to_thread(ask)).get("names") or []
    except (OSError, ValueError) as error:
        raise UnreachableError(
            f"The monitoring page at {url} does not answer: {error}.",
            remedy="Is monitoring on (-m 8222)? Else name the channels.",
        ) from None
    return [str(name) for name in names]


async def find_ends(source: Client, channel: str) -> tuple[int, int] | None:
    """Find the first and the last message of a channel at the source; None if it has none."""
    first = await _find(source, channel, start="First")
    last = None if first is None else await _find(source, channel, start="LastReceived")
    return None if first is None or last is None else (first, last)


async def _find(source: Client, channel: str, **where: Any) -> int | None:
    """Give the sequence of the first message from a start position on; None if nothing comes."""
    subscription = await source.subscribe(channel, max_in_flight=1, manual_acks=True, **where)
    try:
        return (await subscription.next(_SILENCE)).sequence
    except TimeoutError:
        return None
    finally:
        await subscription.unsubscribe()


async def _read(source: Client, channel: str, start: int, last: int) -> AsyncIterator[list[Message]]:
    """Give a channel's messages from `start` to `last`, in batches, each once and in order."""
    subscription = await source.subscribe(
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
            if gap and await _find(source, channel, sequence=reached + 1) != message.sequence:
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
    stream = await store.find(channel, _UNLIMITED)
    if stream is None:
        return await store.create(channel, _UNLIMITED, first=first)
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


async def copy_channel(source: Client, store: Store, channel: str, ends: tuple[int, int], advance: Advance) -> Copied:
    """Copy one channel from its first to its last message, `ends`, as `find_ends` gave them."""
    first, last = ends
    stream = await _target(store, channel, first)
    copied = 0
    start = max(first, stream.last + 1)
    advance(start - first)
    if start <= last:
        async for batch in _read(source, channel, start, last):
            await _append(store, stream, batch)
            copied += len(batch)
            advance(len(batch))
    return Copied(channel, stream.name, stream.first, stream.last + 1, copied)


async def _append(store: Store, stream: ChannelStream, batch: list[Message]) -> None:
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


async def verify_channel(source: Client, store: Store, channel: str, ends: tuple[int, int], advance: Advance) -> int:
    """Compare every message at the source with its copy; give how many are the same.

    Raises DataLossError at the first one that is missing, different, or not at the source.
    """
    stream = await store.find(channel, _UNLIMITED)
    if stream is None:
        raise DataLossError(f"The channel {channel} was not copied.", stream=channel, start=ends[0], end=ends[1] + 1)
    same = reached = 0
    async for batch in _read(source, channel, ends[0], ends[1]):
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
