"""Channels as JetStream streams: create, append, read, find by time, trim, delete.

A stream's sequences are the channel's. What is appended names the sequence that it follows, so it is stored at the
place that was foreseen or not at all, and after a lost answer we can tell which.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.channels.limits import ChannelLimits
from penstock.channels.link import Link, frame_with
from penstock.channels.messages import Stored, encode, parse_stored, quote_reply
from penstock.channels.names import channel_of, stream_name, subject_name
from penstock.connection import api_request
from penstock.errors import DeadlineError, InputError, JetStreamError, LinkError, NotFoundError
from penstock.jetstream.assets import patiently
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["BATCH", "IN_PROCESS", "WRONG_LAST", "Entry", "Log", "Store"]

_log = logging.getLogger("penstock.channels")

BATCH = 1000  # the most that JetStream takes as one atomic batch
WRONG_LAST = 10071
IN_PROCESS = 10164  # replicas are still busy with another message that has the same condition
_RETRY = 0.05
_REFUSALS = 20
_CHUNK_BYTES = 1024 * 1024
_RUN = 256
_AT_ONCE = 64  # requests to delete a message
_NANO = 1_000_000_000


@dataclass(slots=True)
class Entry:
    """A message to append."""

    data: bytes
    reply: str = ""
    time: int | None = None
    origin: int | None = None
    gap: bool = False


@dataclass(slots=True)
class Log:
    """One channel's stream, as far as we know it."""

    channel: str
    stream: str
    subject: bytes
    limits: ChannelLimits
    first: int = 1
    last: int = 0
    last_time: int = 0
    bytes_so_far: int = 0  # of all messages up to `last`, as delivered
    bytes_before: int = 0  # of those before `first`
    in_step: bool = True  # whether the stream's configuration has these limits
    oldest: deque[tuple[int, int]] = field(default_factory=deque)  # sequences at the front and their `bytes_so_far`

    @property
    def count(self) -> int:
        """How many messages there are, where nothing is missing between the first and the last."""
        return max(0, self.last - self.first + 1)


class _Pace:
    """Which way of storing a batch is quicker here: message by message, or as one atomic batch.

    An atomic batch costs a few milliseconds to set up and is synced to disk once; single messages cost next to nothing
    each, unless the server syncs each of them. We measure both, and try the slower one again now and then.
    """

    def __init__(self) -> None:
        self.each = 0.0005
        self.batch = 0.010
        self._turn = 0

    def choose_atomic(self, count: int) -> bool:
        self._turn += 1
        atomic = count * self.each > self.batch
        return atomic != (count >= 16 and self._turn % 32 == 0)

    def took(self, count: int, seconds: float, *, atomic: bool) -> None:
        if atomic:
            self.batch += 0.2 * (seconds - self.batch)
        else:
            self.each += 0.2 * (seconds / count - self.each)


@dataclass(frozen=True, slots=True)
class _Made:
    """Frames for a reply subject, and what they store: the bytes of deliveries, and their times."""

    frames: Callable[[bytes], bytes]
    encoded: list[bytes]
    times: list[int]


def _frames(log: Log, entries: Sequence[Entry], batch: str, expected: int, *, atomic: bool) -> _Made:
    """Write messages that follow the sequence `expected`.

    Without an atomic batch each message names the one it follows, so after one that was not stored none is. Either way
    the answer to the last one tells of all of them.
    """
    now = time.time_ns()
    made = _Made(lambda reply: b"".join(_framed(reply)), [], [])
    heads: list[bytes] = []
    so_far, stamp, final = log.bytes_so_far, log.last_time, len(entries)
    for place, entry in enumerate(entries, start=1):
        stamp = max(stamp, now if entry.time is None else entry.time)
        content = encode(log.channel, expected + place, entry.data, stamp, entry.reply)
        so_far += len(content)
        made.encoded.append(content)
        made.times.append(stamp)
        lines = f"NATS/1.0\r\nPenstock-Time: {stamp}\r\nPenstock-Bytes: {so_far}\r\n"
        if atomic:
            lines += f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {place}\r\n"
            if place == final:
                lines += "Nats-Batch-Commit: 1\r\n"
        else:
            lines += f"Penstock-Batch: {batch}\r\n"
        if place == 1 or not atomic:
            lines += f"Nats-Expected-Last-Sequence: {expected + place - 1}\r\n"
        if entry.reply:
            lines += f"Penstock-Reply: {quote_reply(entry.reply)}\r\n"
        if entry.origin is not None:
            lines += f"Penstock-Sequence: {entry.origin}\r\n"
        if entry.gap:
            lines += "Penstock-Gap: 1\r\n"
        heads.append(f"{lines}\r\n".encode())

    def _framed(reply: bytes) -> Iterator[bytes]:
        for place, (head, entry) in enumerate(zip(heads, entries, strict=True), start=1):
            yield frame_with(head, log.subject, entry.data, reply if place == final else b"")

    return made


class Store:
    """The channels of one cluster in JetStream."""

    def __init__(self, link: Link, cluster: str, *, prefix: str = "", replicas: int = 1) -> None:
        self.link = link
        self.cluster = cluster
        self.prefix = prefix
        self.replicas = replicas
        self._pace = _Pace()

    # -- streams -----------------------------------------------------------------------------------------------------

    async def streams(self) -> list[dict[str, Any]]:
        """Give the streams of this cluster's channels, as the server describes them."""
        found: list[dict[str, Any]] = []
        offset = 0
        while True:
            page = await api_request(self.link.client, "STREAM.LIST", {"offset": offset}, timeout=self.link.timeout)
            streams = page.get("streams") or []
            found += [item for item in streams if channel_of(self.cluster, item["config"]["name"]) is not None]
            offset += len(streams)
            if not streams or offset >= page.get("total", 0):
                return found

    async def describe(self, channel: str) -> dict[str, Any] | None:
        """Give a channel's stream as the server describes it, None where there is none."""
        try:
            described: dict[str, Any] = await api_request(
                self.link.client, f"STREAM.INFO.{stream_name(self.cluster, channel)}", timeout=self.link.timeout
            )
        except NotFoundError:
            return None
        return described

    def _config(self, log: Log, first: int | None = None) -> dict[str, Any]:
        limits = log.limits
        config: dict[str, Any] = {
            "name": log.stream,
            "subjects": [log.subject.decode()],
            "description": f"Channel {log.channel} of NATS Streaming cluster {self.cluster}",
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": limits.max_msgs or -1,
            "max_age": round(limits.max_age * _NANO),
            "num_replicas": self.replicas,
            "allow_direct": True,
            "allow_atomic": True,
            "metadata": {"penstock.cluster": self.cluster, "penstock.channel": log.channel},
        }
        if 0 < limits.max_age < 120:
            config["duplicate_window"] = config["max_age"]  # the server wants it within the age
        if first is not None and first > 1:
            config["first_seq"] = first
        return config

    def log(self, channel: str, limits: ChannelLimits) -> Log:
        """Describe a channel's stream; nothing is asked or made."""
        subject = subject_name(self.prefix, channel).encode()
        return Log(channel, stream_name(self.cluster, channel), subject, limits)

    async def create(self, channel: str, limits: ChannelLimits, *, first: int | None = None) -> Log:
        """Make a channel's stream."""
        log = self.log(channel, limits)
        await self._take_state(log, await self._create(log, first))
        return log

    async def _create(self, log: Log, first: int | None) -> dict[str, Any]:
        config = self._config(log, first)

        async def make() -> dict[str, Any]:
            answer: dict[str, Any] = await api_request(
                self.link.client, f"STREAM.CREATE.{log.stream}", config, timeout=self.link.timeout, again=True
            )
            return answer

        return await patiently(make, self.link.timeout)

    async def open(self, described: dict[str, Any], limits: ChannelLimits) -> Log:
        """Take over a stream that is there, as `streams` described it."""
        config = described["config"]
        channel = channel_of(self.cluster, config["name"])
        assert channel is not None, "streams gives channels only"
        log = Log(channel, config["name"], config["subjects"][0].encode(), limits)
        if not config.get("allow_atomic") or not config.get("allow_direct"):
            raise InputError(
                f"The stream {log.stream} has the name of a channel, but not allow_atomic and allow_direct.",
                remedy="Edit the stream, or rename it.",
            )
        wanted = self._config(log)
        log.in_step = all(config.get(name) == wanted[name] for name in ("max_msgs", "max_age"))
        await self._take_state(log, described)
        return log

    async def _take_state(self, log: Log, described: dict[str, Any]) -> None:
        state = described["state"]
        log.first, log.last = state["first_seq"], state["last_seq"]
        if log.last == 0:
            log.first = 1
        if not state["messages"]:
            return
        newest = await self.read_on(log, log.last, 1)
        oldest = await self.read_on(log, log.first, 1)
        if newest:
            log.last_time = newest[-1].time
        if oldest and oldest[0].bytes_so_far is not None:
            log.bytes_before = oldest[0].bytes_so_far - len(oldest[0].encode(log.channel))
        counted = newest[-1].bytes_so_far if newest else None
        # Where somebody else wrote last, the server's own count is the best that there is.
        log.bytes_so_far = log.bytes_before + state["bytes"] if counted is None else counted

    async def refresh(self, log: Log) -> dict[str, Any]:
        """Ask the stream's leader for its first and last sequence."""
        answer: dict[str, Any] = await api_request(
            self.link.client, f"STREAM.INFO.{log.stream}", timeout=self.link.timeout
        )
        state = answer["state"]
        log.first = max(log.first, state["first_seq"])
        log.last = max(log.last, state["last_seq"])
        return answer

    async def delete(self, log: Log) -> None:
        """Delete a channel's stream."""
        try:
            await api_request(self.link.client, f"STREAM.DELETE.{log.stream}", timeout=self.link.timeout)
        except NotFoundError:
            return

    # -- appending ---------------------------------------------------------------------------------------------------

    async def append(self, log: Log, entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
        """Store messages, at most a batch of them, and give their sequences and the bytes of their deliveries.

        It goes on trying while JetStream is out of reach, because what became of an attempt is found out first. Raises
        JetStreamError where the server refuses.
        """
        if not log.in_step:
            await api_request(
                self.link.client, f"STREAM.UPDATE.{log.stream}", self._config(log), timeout=self.link.timeout
            )
            log.in_step = True
        stored: list[tuple[int, bytes]] = []
        attempts: set[str] = set()
        refusals = 0
        while entries:
            expected, batch = log.last, secrets.token_hex(6)
            attempts.add(batch)
            atomic = self._pace.choose_atomic(len(entries))
            made = _frames(log, entries, batch, expected, atomic=atomic)
            began = time.perf_counter()
            kept: list[tuple[bytes, int]] = []
            try:
                await self.link.publish(made.frames)
                kept = list(zip(made.encoded, made.times, strict=True))
                self._pace.took(len(entries), time.perf_counter() - began, atomic=atomic)
            except (DeadlineError, LinkError):
                kept = await self._find_stored(log, attempts, expected, len(entries))
            except JetStreamError as error:
                if error.err_code != WRONG_LAST and not may_ask_again(error):
                    raise
                # Somebody else wrote to the stream, perhaps in the middle of what we wrote; or it has no leader now.
                kept = await self._find_stored(log, attempts, expected, len(entries))
                refusals = 0 if log.last > expected else refusals + 1
                if refusals > _REFUSALS:
                    raise
                await asyncio.sleep(_RETRY if refusals else 0)
            for sequence, (content, stamp) in enumerate(kept, start=expected + 1):
                stored.append((sequence, content))
                log.bytes_so_far += len(content)
                log.last_time = stamp
            log.last = max(log.last, expected + len(kept))
            entries = entries[len(kept) :]
        if log.limits.max_msgs:
            log.first = max(log.first, log.last - log.limits.max_msgs + 1)
        if log.limits.max_bytes:
            await self._trim(log)
        return stored

    async def _find_stored(self, log: Log, attempts: set[str], expected: int, count: int) -> list[tuple[bytes, int]]:
        """Find out how much of these attempts was stored, as deliveries and times.

        What was stored stands right behind `expected`. An earlier attempt counts as well as the last one: the server
        may have been slow to take it, and what it took must not be stored twice.
        """
        while True:
            try:
                await self.refresh(log)
                kept: list[tuple[bytes, int]] = []
                while len(kept) < count and expected + len(kept) < log.last:
                    found = await self.read_on(log, expected + len(kept) + 1, count - len(kept))
                    for item in found:
                        if item.sequence != expected + len(kept) + 1 or item.batch not in attempts:
                            return kept
                        kept.append((item.encode(log.channel), item.time))
                    if not found:
                        break
                return kept
            except NotFoundError:
                await self.make_again(log)
            except (DeadlineError, LinkError):
                await asyncio.sleep(_RETRY)
            except JetStreamError as error:
                if not may_ask_again(error):
                    raise
                await asyncio.sleep(_RETRY)

    async def make_again(self, log: Log) -> None:
        """Make a stream that somebody deleted again; its sequences go on, so that no position means another message."""
        first = log.last + 1
        await self._create(log, first)
        _log.warning("Channels: the stream %s was deleted; it is made again, from sequence %d.", log.stream, first)
        log.first = max(log.first, first)
        log.bytes_before = log.bytes_so_far
        log.oldest.clear()
        log.in_step = True

    async def _trim(self, log: Log) -> None:
        """Drop the oldest messages until the rest fits; the newest stays whatever its size."""
        limit, first = log.limits.max_bytes, log.first
        while log.bytes_so_far - log.bytes_before > limit and log.first < log.last:
            if not log.oldest:
                for item in await self.read(log, log.first, 256):
                    size = item.bytes_so_far or log.bytes_before + len(item.encode(log.channel))
                    log.oldest.append((item.sequence, size))
                if not log.oldest:
                    break
            sequence, so_far = log.oldest.popleft()
            if sequence < log.first:
                log.bytes_before = max(log.bytes_before, so_far)
                continue
            if sequence >= log.last:
                break
            log.bytes_before = so_far
            log.first = sequence + 1
        if log.first > first:
            await api_request(
                self.link.client, f"STREAM.PURGE.{log.stream}", {"seq": log.first}, timeout=self.link.timeout
            )

    async def skip(self, log: Log, upto: int) -> None:
        """Leave out the sequences up to `upto`: they are written empty, marked as gaps, and deleted."""
        while log.last < upto:
            count = min(BATCH, upto - log.last)
            first = log.last + 1
            # Their time must not be later than that of what follows.
            await self.append(log, [Entry(b"", time=log.last_time, gap=True)] * count)
            await self._remove(log, range(first, log.last + 1))

    async def clear_gaps(self, log: Log) -> None:
        """Delete what a `skip` that was broken off left at the end."""
        start = max(log.first, log.last - BATCH + 1)
        while start <= log.last and (found := await self.read_on(log, start, BATCH)):
            await self._remove(log, [item.sequence for item in found if item.gap])
            start = found[-1].sequence + 1

    async def _remove(self, log: Log, sequences: Sequence[int]) -> None:
        for place in range(0, len(sequences), _AT_ONCE):
            await asyncio.gather(
                *(
                    api_request(
                        self.link.client,
                        f"STREAM.MSG.DELETE.{log.stream}",
                        {"seq": sequence, "no_erase": True},
                        timeout=self.link.timeout,
                    )
                    for sequence in sequences[place : place + _AT_ONCE]
                )
            )

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, log: Log, start: int, count: int) -> list[Stored]:
        """Read up to `count` messages from `start` on; fewer where fewer are there or where they are large."""
        request: dict[str, Any] = {"seq": max(start, 1), "next_by_subj": ">"}
        if count > 1:
            request |= {"batch": count, "max_bytes": _CHUNK_BYTES}
        return [parse_stored(*answer) for answer in await self.link.get(log.stream, request)]

    async def read_on(self, log: Log, start: int, count: int) -> list[Stored]:
        """Read from `start` on, knowing that the channel goes up to `log.last`; nothing where the rest is gone.

        Any replica may answer a read, also one that is behind. An empty answer means that, or that the messages are
        gone, and the leader knows which.
        """
        while start <= log.last:
            found = await self.read(log, start, count)
            if found:
                return found
            await self.refresh(log)
            if log.first > start:
                start = log.first
            elif not await self._leader_has(log, start):
                return []
            else:
                await asyncio.sleep(_RETRY)
        return []

    async def _leader_has(self, log: Log, start: int) -> bool:
        request = {"seq": start, "next_by_subj": ">"}
        try:
            await api_request(self.link.client, f"STREAM.MSG.GET.{log.stream}", request, timeout=self.link.timeout)
        except NotFoundError:
            return False
        return True

    async def fetch(self, log: Log, sequences: Sequence[int]) -> tuple[dict[int, Stored], int]:
        """Read particular messages, in this order, as many as fit a bound of bytes.

        Gives those that are there, and how many of `sequences` were looked at, at least one: of these, what is missing
        in the result is gone.
        """
        found: dict[int, Stored] = {}
        place = size = 0
        while place < len(sequences) and size < _CHUNK_BYTES:
            start, end = sequences[place], place + 1
            while end < len(sequences) and sequences[end] == start + end - place and end - place < _RUN:
                end += 1
            items = await self.read_on(log, start, end - place)
            for item in items:
                size += len(item.data)
                found[item.sequence] = item
            if items and items[-1].sequence < sequences[end - 1]:
                place += max(items[-1].sequence - start + 1, 1)  # the read was cut short by its size
            else:
                place = end
        wanted = sequences[:place]
        return {sequence: found[sequence] for sequence in wanted if sequence in found}, place

    async def find_time(self, log: Log, moment: int) -> int:
        """Give the first sequence whose message is not older than `moment`; one past the last where all are."""
        low, high = log.first, log.last + 1
        while low < high:
            middle = (low + high) // 2
            found = await self.read_on(log, middle, 1)
            if not found or found[0].time >= moment:
                high = middle
            else:
                low = found[0].sequence + 1
        return low
