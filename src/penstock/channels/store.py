"""Channels as JetStream streams: create, append, read, find by time, trim, delete.

A stream's sequences are the channel's. What is appended names the sequence that it follows, so it is stored at the
place that was foreseen or not at all, and after a lost answer we can tell which.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from penstock.channels.arrivals import SOON
from penstock.channels.disk import Disk
from penstock.channels.encoded import Encoded
from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import (
    ChannelMessage,
    ChannelStream,
    more_lines,
    read_encoded,
    read_message,
    write_frames,
)
from penstock.channels.names import CHANNEL, CLUSTER, channel_of, stream_name, subject_name
from penstock.channels.publishes import NewMessages
from penstock.connection import Connection, api_request
from penstock.connection.asking import direct_get, patiently, store_frames
from penstock.connection.waiter import Lookout
from penstock.errors import (
    DataLossError,
    InputError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire.jetstream import direct, names
from penstock.wire.jetstream.answers import check_done, check_stream_answer, number, parts
from penstock.wire.jetstream.atomic import MOST, new_id, together
from penstock.wire.jetstream.names import WRONG_LAST_SEQUENCE
from penstock.wire.jetstream.verdicts import Verdict, judge, may_ask_again

__all__ = ["MOST", "Store", "StoringPace"]

log = logging.getLogger("penstock.channels")

_RETRY = 0.05
_REFUSALS = 20
_PART_BYTES = 1024 * 1024  # what one read gives at most, or one message
_RUN = 256
_TRIAL, _SELDOM = 8, 4096  # batches between two trials of the slower way, at first and in the end
_FEW, _MANY = 32, 16  # messages that are tried one by one at most, and as an atomic batch at least
_AT_ONCE = 64  # requests to delete a message
_SHORT = 2.0  # seconds for which a leader that does not know yet that it is none may say less than we know


class StoringPace:
    """Which way of storing a batch is quicker here: message by message, or as one atomic batch.

    An atomic batch costs a few milliseconds to set up and is synced to disk once; single messages cost next to nothing
    each, unless the server syncs each of them. We measure both, and try the slower one again now and then, ever less
    often while it stays the slower one; single messages only a few at a time, because a sync for each may take long.
    """

    def __init__(self) -> None:
        self.each = 0.0005
        self.batch = 0.010
        self._turns = 0
        self._trial = _TRIAL

    def choose(self, count: int) -> tuple[bool, int, bool]:
        """Tell whether to store as an atomic batch, how many of `count` messages, and whether that is a trial."""
        atomic = count * self.each > self.batch
        self._turns += 1
        if self._turns < self._trial or (not atomic and count < _MANY):
            return atomic, count, False
        self._turns = 0
        self._trial = min(2 * self._trial, _SELDOM)
        return not atomic, min(count, _FEW) if atomic else count, True

    def took(self, count: int, seconds: float, *, atomic: bool, trial: bool) -> None:
        """Note how long it took."""
        weight = 1.0 if trial else 0.2  # what was measured long ago says little
        if atomic:
            self.batch += weight * (seconds - self.batch)
        else:
            self.each += weight * (seconds / count - self.each)


class Store:
    """The channels of one cluster in JetStream; how long an answer may take is an option of the connection."""

    def __init__(
        self, connection: Connection, cluster: str, *, prefix: str = "", replicas: int = 1, disk: Disk | None = None
    ) -> None:
        self.connection = connection
        self.cluster = cluster
        self.prefix = prefix
        self.replicas = replicas
        self._pace = StoringPace()
        self._watch = Lookout(SOON)
        self._disk = disk  # if the server leaves the syncing to us

    async def _ask(self, method: str, body: object = None, **how: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await api_request(self.connection, method, body, **how)
        return answer

    async def _do(self, method: str, body: object = None, **how: Any) -> None:
        check_done(await self._ask(method, body, **how))

    # -- streams -----------------------------------------------------------------------------------------------------

    async def streams(self) -> dict[str, dict[str, Any]]:
        """Give the streams of this cluster's channels, by channel, as the server describes them."""
        found: dict[str, dict[str, Any]] = {}
        offset = 0
        while True:
            page = await self._ask("STREAM.LIST", {"offset": offset})
            streams = parts(page, "streams")
            for item in map(check_stream_answer, streams):
                config = item["config"]
                noted = (config.get("metadata") or {}).get(CHANNEL, "")
                if (channel := channel_of(self.cluster, config["name"], noted)) is not None:
                    found[channel] = item
            offset += len(streams)
            if not streams or offset >= number(page, "total", 0):
                return found

    async def describe(self, channel: str) -> dict[str, Any]:
        """Give a channel's stream as the server describes it; NotFoundError if there is none."""
        try:
            return check_stream_answer(await self._ask(names.stream_info(stream_name(self.cluster, channel))))
        except NotFoundError:
            what = f"There is no channel {channel} in the cluster {self.cluster}."
            raise NotFoundError(what, remedy="`penstock channels ls` lists them.", code=404) from None

    def _config(self, stream: ChannelStream, first: int | None = None) -> dict[str, Any]:
        limits = stream.limits
        config: dict[str, Any] = {
            "name": stream.name,
            "subjects": [stream.subject],
            "description": f"Channel {stream.channel} of NATS Streaming cluster {self.cluster}",
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": limits.max_msgs or -1,
            "max_age": round(limits.max_age * 1e9),
            "num_replicas": self.replicas,
            "allow_direct": True,
            "allow_atomic": True,
            "metadata": {CLUSTER: self.cluster, CHANNEL: stream.channel},
        }
        if 0 < limits.max_age < 120:
            config["duplicate_window"] = config["max_age"]  # the server wants it within the age
        if first is not None and first > 1:
            config["first_seq"] = first
        return config

    async def create(self, channel: str, limits: ChannelLimits, *, first: int | None = None) -> ChannelStream:
        """Make a channel's stream."""
        stream = ChannelStream(channel, stream_name(self.cluster, channel), subject_name(self.prefix, channel), limits)
        await self._take_state(stream, await self._create(stream, first))
        return stream

    async def _create(self, stream: ChannelStream, first: int | None) -> dict[str, Any]:
        if self._disk is not None:
            self._disk.forget(stream.name)
        method, config = names.stream_create(stream.name), self._config(stream, first)
        patience = self.connection.options.request_timeout
        return check_stream_answer(await self._ask(method, config, again=True, patience=patience))

    async def find(self, channel: str, limits: ChannelLimits) -> ChannelStream | None:
        """Take over a channel's stream if it is there."""
        try:
            return await self.open(channel, await self.describe(channel), limits)
        except NotFoundError:
            return None

    async def open(self, channel: str, described: dict[str, Any], limits: ChannelLimits) -> ChannelStream:
        """Take over a stream that is there, as the server described it."""
        config = described["config"]
        if not config.get("subjects"):
            raise InputError(
                f"The stream {config['name']} has the name of a channel, but no subject: is it a mirror?",
                remedy="Rename it, or make the channel's stream again.",
            )
        stream = ChannelStream(channel, config["name"], config["subjects"][0], limits)
        if not config.get("allow_atomic") or not config.get("allow_direct"):
            raise InputError(
                f"The stream {stream.name} has the name of a channel, but not allow_atomic and allow_direct.",
                remedy="Edit the stream, or rename it.",
            )
        wanted = self._config(stream)
        stream.in_step = all(config.get(name) == wanted[name] for name in ("max_msgs", "max_age"))
        await self._take_state(stream, described)
        return stream

    async def _take_state(self, stream: ChannelStream, described: dict[str, Any]) -> None:
        state = described["state"]
        stream.created, stream.replaced, stream.short_since = described["created"], "", None
        stream.first, stream.last = state["first_seq"], state["last_seq"]
        if stream.last == 0:
            stream.first = 1
        if not state["messages"]:
            return
        newest = await self.read_on(stream, stream.last, 1)
        oldest = await self.read_on(stream, stream.first, 1)
        if newest:
            stream.last_time = newest[-1].time
        stream.restored = bool(oldest) and oldest[0].time < (direct.nanoseconds(stream.created) or 0)
        if oldest and oldest[0].bytes_so_far is not None:
            stream.bytes_before = oldest[0].bytes_so_far - len(oldest[0].encode(stream.channel))
        counted = newest[-1].bytes_so_far if newest else None
        # If somebody else wrote last, the server's own count is the best that there is.
        stream.bytes_so_far = stream.bytes_before + state["bytes"] if counted is None else counted

    async def refresh(self, stream: ChannelStream) -> dict[str, Any]:
        """Ask the stream's leader for its first and last sequence; DataLossError if it is not the stream we know."""
        known = stream.last  # while we ask, more may be stored than the answer knows
        answer = check_stream_answer(await self._ask(names.stream_info(stream.name)))
        state = answer["state"]
        stream.replaced = answer["created"] if answer["created"] != stream.created else ""
        if state["last_seq"] >= known:
            stream.short_since = None
        elif stream.short_since is None:
            stream.short_since = time.monotonic()
        self.check_same(stream)
        stream.first = max(stream.first, state["first_seq"])
        stream.last = max(stream.last, state["last_seq"])
        return answer

    def check_same(self, stream: ChannelStream, patience: float = _SHORT) -> None:
        """Raise DataLossError if a stream was replaced, or has ended for some time before what we stored in it."""
        if stream.replaced:
            what = f"The stream {stream.name} is another stream now, made at {stream.replaced}."
            raise DataLossError(what, stream=stream.name)
        if stream.short_since is not None and time.monotonic() - stream.short_since >= patience:
            what = f"The stream {stream.name} ends before sequence {stream.last}: it was put back from an older copy."
            raise DataLossError(what, stream=stream.name)

    async def delete(self, stream: ChannelStream) -> None:
        """Delete a channel's stream."""
        with suppress(NotFoundError):
            await self._do(names.stream_delete(stream.name), again=True)
        if self._disk is not None:
            self._disk.forget(stream.name)

    # -- appending ---------------------------------------------------------------------------------------------------

    async def append(self, stream: ChannelStream, messages: NewMessages) -> list[Encoded]:
        """Store messages, at most a batch of them, and give them encoded for delivery, with their sequences.

        It goes on trying while JetStream is out of reach, because what became of an attempt is found out first. Raises
        JetStreamError if the server refuses, DeniedError if we may not write to the stream's subject.
        """
        if not stream.in_step:
            await self._ask(names.stream_update(stream.name), self._config(stream), again=True)
            stream.in_step = True
        stored: list[Encoded] = []
        attempts: set[str] = set()
        done = refusals = 0
        while done < len(messages):
            expected, batch, count = stream.last, new_id(), len(messages) - done
            attempts.add(batch)
            atomic, count, trial = self._pace.choose(count) if self._disk is None else (False, count, False)
            how: Any = {"atomic": atomic, "first": done, "end": done + count}
            frames = write_frames(stream, messages, batch, now=time.time_ns(), **how)
            began = time.perf_counter()
            try:
                [ack] = await store_frames(
                    self.connection, frames.make, (stream.subject,), watch=self._watch if count == 1 else None
                )
                if ack.stream != stream.name:
                    raise DataLossError(
                        f"The stream {ack.stream} takes the subject {stream.subject} now, and not {stream.name}.",
                        remedy="Give the subject back to the channel's stream.",
                        stream=stream.name,
                    )
                if atomic:
                    together(ack, batch, count)
            except PenstockError as error:
                wrong_place = isinstance(error, JetStreamError) and error.err_code == WRONG_LAST_SEQUENCE
                in_doubt = may_ask_again(error) or isinstance(error, RemoteProtocolError)
                if not wrong_place and not in_doubt:
                    raise
                # Somebody else wrote to the stream, perhaps in the middle of what we wrote; or nobody knows.
                kept = [await self._find_stored(stream, attempts, expected, count)]
                moved = stream.last > expected
                refusals = 0 if moved or judge(error) is Verdict.UNKNOWN else refusals + 1
                if refusals > _REFUSALS:
                    self.check_same(stream, patience=0.0)
                    raise
                await asyncio.sleep(0 if moved else _RETRY)
            else:
                kept = frames.encoded
                self._pace.took(count, time.perf_counter() - began, atomic=atomic, trial=trial)
            for piece in kept:
                if piece.count:
                    stored.append(piece)
                    done += piece.count
                    stream.bytes_so_far += piece.size
                    stream.last_time = piece.last_time
                    stream.last = max(stream.last, piece.last)
        if self._disk is not None and stored:
            await self._disk.sync(stream.name)
        if stream.limits.max_msgs:
            stream.first = max(stream.first, stream.last - stream.limits.max_msgs + 1)
        if stream.limits.max_bytes:
            await self._trim(stream)
        return stored

    async def _find_stored(self, stream: ChannelStream, attempts: set[str], expected: int, count: int) -> Encoded:
        """Find out how much of these attempts was stored, encoded for delivery, however long JetStream is away.

        What was stored stands right behind `expected`. An earlier attempt counts as well as the last one: the server
        may have been slow to take it, and what it took must not be stored twice.
        """

        async def look() -> Encoded:
            await self.look(stream)
            kept = Encoded(stream.field)
            async for item in self.scan(stream, expected + 1, expected + 1 + count):
                if item.sequence != expected + kept.count + 1 or item.batch not in attempts:
                    break
                kept.add(item.sequence, item.data, 0, len(item.data), item.time, item.reply.encode())
            return kept

        return await patiently(look, math.inf, self.connection, nobody=True)

    async def look(self, stream: ChannelStream) -> None:
        """Refresh what is known of a stream. One that somebody deleted is made again.

        Its sequences go on, so that no position means another message.
        """
        try:
            await self.refresh(stream)
        except NotFoundError:
            first = stream.last + 1
            stream.created = (await self._create(stream, first))["created"]
            log.warning("Channels: the stream %s was deleted; it is made again, from sequence %d.", stream.name, first)
            stream.first = max(stream.first, first)
            stream.bytes_before = stream.bytes_so_far
            stream.oldest.clear()
            stream.in_step = True

    async def _trim(self, stream: ChannelStream) -> None:
        """Drop the oldest messages until the rest fits; the newest stays whatever its size."""
        limit, first = stream.limits.max_bytes, stream.first
        try:
            while stream.bytes_so_far - stream.bytes_before > limit and stream.first < stream.last:
                if not stream.oldest:
                    for item in await self.read(stream, stream.first, 256):
                        size = item.bytes_so_far or stream.bytes_before + len(item.encode(stream.channel))
                        stream.oldest.append((item.sequence, size))
                    if not stream.oldest:
                        break
                sequence, so_far = stream.oldest.popleft()
                if sequence < stream.first:
                    stream.bytes_before = max(stream.bytes_before, so_far)
                    continue
                if sequence >= stream.last:
                    break
                stream.bytes_before = so_far
                stream.first = sequence + 1
            if stream.first > first:
                await self._do(names.stream_purge(stream.name), {"seq": stream.first}, again=True)
        except PenstockError as error:
            # What was appended is stored, and its publishers are to know; the next append drops what this one left.
            log.warning("Channels: the oldest messages of %s stay for now: %s", stream.channel, error)

    async def skip(self, stream: ChannelStream, upto: int) -> None:
        """Leave out the sequences up to `upto`: they are written empty, marked as gaps, and deleted."""
        while stream.last < upto:
            count = min(MOST, upto - stream.last)
            first = stream.last + 1
            gaps = NewMessages()
            for _ in range(count):  # their time must not be later than that of what follows
                gaps.add(b"", time=stream.last_time, lines=more_lines(gap=True))
            await self.append(stream, gaps)
            await self._remove(stream, range(first, stream.last + 1))

    async def clear_gaps(self, stream: ChannelStream) -> None:
        """Delete what a `skip` that was broken off left at the end."""
        newest = self.scan(stream, stream.last - MOST + 1, stream.last + 1)
        await self._remove(stream, [item.sequence async for item in newest if item.gap])

    async def _remove(self, stream: ChannelStream, sequences: Sequence[int]) -> None:
        method = names.message_delete(stream.name)
        for place in range(0, len(sequences), _AT_ONCE):
            part = sequences[place : place + _AT_ONCE]
            await asyncio.gather(*(self._do(method, {"seq": sequence, "no_erase": True}) for sequence in part))

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _answers(self, stream: ChannelStream, start: int, count: int) -> list[tuple[bytes, bytes | None]]:
        batch, most = (count, _PART_BYTES) if count > 1 else (None, None)
        body = direct.question(max(start, 1), subject=">", batch=batch, max_bytes=most)
        return await direct_get(self.connection, stream.name, body)

    async def read(self, stream: ChannelStream, start: int, count: int) -> list[ChannelMessage]:
        """Read up to `count` messages from `start` on; fewer if fewer are there or if they are large."""
        return [read_message(*answer) for answer in await self._answers(stream, start, count)]

    async def read_on(self, stream: ChannelStream, start: int, count: int) -> list[ChannelMessage]:
        """Read from `start` on, knowing that the channel goes up to `stream.last`; nothing if the rest is gone."""
        return [read_message(*answer) for answer in await self._answers_on(stream, start, count)]

    async def read_encoded(self, stream: ChannelStream, start: int, count: int) -> Encoded:
        """Read as `read_on` does what goes to subscribers as it is, encoded for delivery."""
        return read_encoded(stream, await self._answers_on(stream, start, count))

    async def _answers_on(self, stream: ChannelStream, start: int, count: int) -> list[tuple[bytes, bytes | None]]:
        """Read from `start` on, knowing that the channel goes up to `stream.last`.

        Any replica may answer a read, also one that is behind. An empty answer means that, or that the messages are
        gone, and the leader knows which.
        """
        while start <= stream.last:
            found = await self._answers(stream, start, count)
            if found:
                return found
            await self.refresh(stream)
            if stream.first > start:
                start = stream.first
            elif not await self._leader_has(stream, start):
                return []
            else:
                await asyncio.sleep(_RETRY)
        return []

    async def scan(self, stream: ChannelStream, start: int, end: int) -> AsyncIterator[ChannelMessage]:
        """Give the messages `[start, end)`, those that are there."""
        start = max(start, stream.first)
        while start < end and (found := await self.read_on(stream, start, min(MOST, end - start))):
            for item in found:
                if item.sequence < end:
                    yield item
            start = found[-1].sequence + 1

    async def _leader_has(self, stream: ChannelStream, start: int) -> bool:
        try:
            await self._ask(names.message_get(stream.name), direct.question(start, subject=">"))
        except NotFoundError:
            return False
        return True

    async def fetch(self, stream: ChannelStream, sequences: Sequence[int]) -> tuple[dict[int, ChannelMessage], int]:
        """Read particular messages, in this order, as many as fit a bound of bytes.

        Gives those that are there, and how many of `sequences` were looked at, at least one: of these, what is missing
        in the result is gone.
        """
        found: dict[int, ChannelMessage] = {}
        place = size = 0
        while place < len(sequences) and size < _PART_BYTES:
            start, end = sequences[place], place + 1
            while end < len(sequences) and sequences[end] == start + end - place and end - place < _RUN:
                end += 1
            items = await self.read_on(stream, start, end - place)
            for item in items:
                size += len(item.data)
                found[item.sequence] = item
            if items and items[-1].sequence < sequences[end - 1]:
                place += max(items[-1].sequence - start + 1, 1)  # the read was cut short by its size
            else:
                place = end
        wanted = sequences[:place]
        return {sequence: found[sequence] for sequence in wanted if sequence in found}, place

    async def find_time(self, stream: ChannelStream, moment: int) -> int:
        """Give the first sequence whose message is not older than `moment`; one past the last if all are."""
        low, high = stream.first, stream.last + 1
        while low < high:
            middle = (low + high) // 2
            found = await self.read_on(stream, middle, 1)
            if not found or found[0].time >= moment:
                high = middle
            else:
                low = found[0].sequence + 1
        return low
