"""A gateway while it leads: everything it knows, and the one queue from which requests are handled.

Clients rely on the order in which they send: what is published or acknowledged before a close counts, what is
subscribed after a publish does not see it. So all requests go through one queue, in the order in which NATS delivered
them, whatever subject they came on. Acks and pings take effect at once, as they arrive, and so before anything that
was sent after them. Publishes that follow each other are stored together.

The queue is bounded: when it is full we stop reading, and NATS holds the senders back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.channels import requests
from penstock.channels.channel import Channel, Shared
from penstock.channels.client_writer import ClientWriter
from penstock.channels.clients import Clients, Connected
from penstock.channels.delivery import Group, Member
from penstock.channels.lease import Lease
from penstock.channels.messages import ChannelStream
from penstock.channels.options import GatewayOptions
from penstock.channels.requests import Refusal
from penstock.channels.state import State
from penstock.channels.state_records import decode_state
from penstock.channels.store import MOST, Store
from penstock.channels.wire import Ack, Ping, PingResponse, Text, ack_start, decode, sequence_in
from penstock.connection import Connection
from penstock.connection import Subscription as TapSubscription
from penstock.errors import JetStreamError, PenstockError, RemoteProtocolError

__all__ = ["Handle", "RequestQueue", "Service"]

log = logging.getLogger("penstock.channels")

_RECENT_BYTES = 64 * 1024 * 1024  # for all channels together
_RECENT_EACH = 2 * 1024 * 1024
_LOOK_AROUND = 1.0
_QUEUE_BYTES = 64 * 1024 * 1024
_REQUEST_BYTES = 64  # that a request costs us beside its content

Handle = Callable[["Service", bytes, bytes], Awaitable[None]]
"""What handles a request, given the subject for the answer and the content."""
Item = tuple["Handle | None", bytes, bytes]


class RequestQueue:
    """Requests that wait to be handled: who handles each, where its answer goes, its content.

    A publish has no handler: those that follow each other are taken together.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: Handle | None, reply: bytes, content: bytes) -> Awaitable[object] | None:
        """Add a request; what is returned, if anything, is to be awaited before more is read."""
        self._items.append((handle, reply, content))
        self._bytes += len(content) + _REQUEST_BYTES
        self._arrived.set()
        if self._bytes <= _QUEUE_BYTES:
            return None
        self._room.clear()
        return self._room.wait()

    async def arrival(self) -> None:
        """Wait until there is a request."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> Item:
        """Take the first request."""
        item = self._items.popleft()
        self._bytes -= len(item[2]) + _REQUEST_BYTES
        if self._bytes <= _QUEUE_BYTES // 2:
            self._room.set()
        return item

    def take_publishes(self, most: int) -> list[tuple[bytes, bytes]]:
        """Take the publishes that stand in front of everything else: subjects for the answers, and contents."""
        found: list[tuple[bytes, bytes]] = []
        while self._items and self._items[0][0] is None and len(found) < most:
            found.append(self.take()[1:])
        return found

    def release(self) -> None:
        """Let whoever waits for room go: nobody will take anything any more."""
        self._room.set()


class Service:
    """Serves one cluster's clients, from the state that it loads to the moment it stops leading."""

    def __init__(self, options: GatewayOptions, front: Connection, state: State, lease: Lease) -> None:
        self.options = options
        self.front = front
        self.state = state
        self.store = Store(
            state.connection, options.cluster_id, prefix=options.subject_prefix, replicas=options.replicas
        )
        self.writer = ClientWriter(front, lambda: lease.valid)
        self.lease = lease
        self.shared = Shared(self.writer, self.store, state)
        self.clients = Clients(options, self.writer, front.options.inbox_prefix, self._expire)
        self.channels: dict[str, Channel] = {}
        self.connecting: set[str] = set()  # ids of which we find out whether they are taken
        self.in_messages = 0
        self.in_bytes = 0
        self._acks: dict[bytes, tuple[Channel, Member, bytes]] = {}
        self.ack_inbox = ""
        self.numbers = itertools.count(1)  # for subscriptions and groups
        self.queue = RequestQueue()
        self._taps: list[TapSubscription] = []
        self._loop = asyncio.get_running_loop()

    # -- beginning and ending ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is remembered, and listen; DeniedError if we may not listen to what clients send."""
        remembered = await self.state.load()
        self.ack_inbox = remembered.get("info", b"").decode()
        if not self.ack_inbox:
            self.ack_inbox = f"{self.front.options.inbox_prefix}.{secrets.token_hex(11)}"
            self.state.put("info", self.ack_inbox.encode())
        for name, described in (await self.store.streams()).items():
            if "penstock.channel" in described["config"]["metadata"]:
                self._add(await self.store.open(name, described, self.options.limits.of(name)))
        self._recall(remembered)
        cluster, prefix = self.options.cluster_id, self.options.discover_prefix
        handlers: dict[str, Handle | None] = {f"{prefix}.{cluster}": requests.connect, f"_STAN.pub.{cluster}.>": None}
        handlers |= {f"_STAN.{name}.{cluster}": handle for name, handle in requests.HANDLERS.items()}
        taps = {subject: self._queueing(handle) for subject, handle in handlers.items()}
        taps |= {f"{self.ack_inbox}.*": self._acked, f"{self.clients.inbox}.*": self.clients.answered}
        taps |= {f"{prefix}.{cluster}.pings": self._pinged}
        for subject, tap in taps.items():
            self._taps.append(await self.front.tap(subject, tap))
        await self.front.flush()
        self._check_listening()
        for channel in self.channels.values():
            for group in channel.subscribers.groups:
                if group.online:
                    channel.delivery(group).restore()
            self.watch_activity(channel)

    def _check_listening(self) -> None:
        for tap in self._taps:
            if tap.error is not None:
                raise tap.error

    def _recall(self, remembered: dict[str, bytes]) -> None:
        clients, members, positions = decode_state(remembered)
        for client in clients:
            self.clients.add(client)
        self.numbers = itertools.count(max([0, *members, *positions]) + 1)
        groups: dict[int, Group] = {}
        for number, record in members.items():
            channel, position = self.channels.get(record.channel), positions.get(record.group)
            online = record.online and record.client in self.clients.by_id
            if channel is None or position is None or not (online or record.keep):
                self.state.put(f"sub.{number}", b"")  # there is nothing left for it
                continue
            new = Group(record.group, record.channel, record.durable, record.queue, record.keep, position.last)
            group = groups.setdefault(record.group, new)
            pending = dict.fromkeys(position.pending.get(number, ()), 0.0)
            where = record.client, record.inbox, record.ack_inbox
            member = Member(number, *where, record.max_in_flight, record.ack_wait, online, pending)
            self.attach(channel, group, member)
        for left in positions.keys() - groups.keys():
            self.state.put(f"pos.{left}", b"")

    async def stop(self) -> None:
        """Stop listening and sending; what is stored stays."""
        for tap in self._taps:
            await tap.unsubscribe()
        self._taps.clear()
        self.queue.release()
        self.writer.end()
        self.clients.end()
        for channel in self.channels.values():
            channel.end()
        await self.shared.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _queueing(self, handle: Handle | None) -> Callable[..., Awaitable[object] | None]:
        def arrived(subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> Awaitable[object] | None:
            return self.queue.put(handle, reply, data)

        return arrived

    async def serve(self) -> None:
        """Handle requests until cancelled."""
        while True:
            await self.queue.arrival()
            await self.lease.wait_valid()
            if publishes := self.queue.take_publishes(MOST):
                await requests.publish(self, publishes)
                continue
            handle, reply, data = self.queue.take()
            assert handle is not None, "publishes were taken before"
            try:
                await handle(self, reply, data)
            except PenstockError as error:
                log.error("Channels: a request failed: %s", error)

    # -- what takes effect at once -----------------------------------------------------------------------------------

    def _acked(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        found = self._acks.get(subject)
        if found is None:
            return
        channel, member, start = found
        sequence = sequence_in(data[len(start) :]) if data.startswith(start) else None
        if sequence is None:
            try:
                ack = decode(Ack, data)
            except RemoteProtocolError as error:
                log.warning("Channels: bytes on the subject for acks are no ack: %s", error)
                return
            if ack.subject != channel.name:
                return
            sequence = ack.sequence
        group = member.group
        if group is None or not group.ack(member, sequence):
            return
        self.state.touch(group)
        if group.last < channel.stream.last:
            self.writer.wake(channel.delivery(group))

    def _pinged(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if not data:
            return
        try:
            ping = decode(Ping, data)
        except RemoteProtocolError:
            return  # as the old server: no answer at all
        client = self.clients.by_conn.get(ping.connID)
        if client is not None:
            self.clients.pinged(client)
        answer = PingResponse(error=Text.REPLACED) if client is None else PingResponse()
        self.writer.send(reply, answer.SerializeToString())

    def _expire(self, client: Connected) -> None:
        log.warning("Channels: client %s misses heartbeats and is closed.", client.record.id)
        self.queue.put(requests.expire, b"", client.record.id.encode())

    # -- channels and members ----------------------------------------------------------------------------------------

    def _add(self, stream: ChannelStream) -> Channel:
        share = min(_RECENT_EACH, _RECENT_BYTES // (len(self.channels) + 1))
        channel = Channel(self.shared, stream, share, self._loop.time())
        for other in self.channels.values():
            other.recent.limit = min(other.recent.limit, share)
        self.channels[stream.channel] = channel
        return channel

    async def channel(self, name: str) -> Channel:
        """Give a channel, a new one if there is none; Refusal if there may be none."""
        found = self.channels.get(name)
        if found is not None:
            return found
        for other in self.channels:
            if other.lower() == name.lower():
                raise Refusal(Text.case_clash(name, other))
        if 0 < self.options.limits.channels <= len(self.channels):
            raise Refusal(Text.TOO_MANY_CHANNELS)
        try:
            limits = self.options.limits.of(name)
            # Somebody may have copied it here while we served.
            stream = await self.store.find(name, limits) or await self.store.create(name, limits)
        except JetStreamError as error:
            raise Refusal(f"the channel's stream cannot be made: {error.description}") from error
        channel = self._add(stream)
        self.watch_activity(channel)
        return channel

    def attach(self, channel: Channel, group: Group, member: Member) -> None:
        """Make a member part of its channel, its client and the acks."""
        channel.subscribers.add(group, member)
        client = self.clients.by_id.get(member.client)
        if member.online and client is not None:
            client.members[member] = channel
            self._acks[member.ack_inbox.encode()] = (channel, member, ack_start(channel.name))

    def detach(self, channel: Channel, member: Member, *, unsubscribe: bool) -> None:
        """Take a member off its channel, its client and the acks."""
        self._acks.pop(member.ack_inbox.encode(), None)
        client = self.clients.by_id.get(member.client)
        if client is not None:
            client.members.pop(member, None)
        channel.remove(member, self._loop.time(), unsubscribe=unsubscribe)
        self.watch_activity(channel)

    # -- inactivity, and what others write ---------------------------------------------------------------------------

    def watch_activity(self, channel: Channel) -> None:
        """Delete a channel in time, if nobody uses it until then."""
        seconds = channel.stream.limits.max_inactivity
        if seconds and not channel.subscribers.active:
            channel.last_used = self._loop.time()
            self.delete_later(channel, seconds)

    def delete_later(self, channel: Channel, seconds: float) -> None:
        """Look after so many seconds whether a channel is to be deleted."""
        self._loop.call_later(seconds, self.queue.put, requests.delete_channel, b"", channel.name.encode())

    async def look_around(self) -> None:
        """Notice now and then, until cancelled, what JetStream clients and Spark write to the streams.

        Raises DeniedError if we may not listen any more to what clients send: permissions can change.
        """
        while True:
            await asyncio.sleep(max(_LOOK_AROUND, len(self.channels) / 100))
            self._check_listening()
            for channel in list(self.channels.values()):
                if not channel.subscribers.active:
                    continue
                known = channel.stream.last
                try:
                    await self.store.look(channel.stream)
                except PenstockError as error:
                    log.debug("Channels: looking at %s: %s", channel.name, error)
                    continue
                if channel.stream.last > known:
                    channel.wake()
