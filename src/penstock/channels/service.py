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
from collections.abc import Awaitable, Callable
from dataclasses import replace

from penstock.channels import requests
from penstock.channels.arrivals import RESERVED, AckEntry, ArrivingAcks, RequestQueue
from penstock.channels.channel import Channel, Shared
from penstock.channels.client_writer import ClientWriter
from penstock.channels.clients import Clients, Connected
from penstock.channels.delivery import Group, Member
from penstock.channels.disk import Disk
from penstock.channels.lease import Lease
from penstock.channels.messages import ChannelStream
from penstock.channels.names import CHANNEL, is_inbox
from penstock.channels.options import GatewayOptions
from penstock.channels.requests import Refusal
from penstock.channels.state import State
from penstock.channels.state_records import GroupRecord, MemberRecord, decode_state
from penstock.channels.store import MOST, Store
from penstock.channels.wire import Ack, Ping, PingResponse, Text, ack_start, decode
from penstock.connection import Connection
from penstock.connection import Subscription as TapSubscription
from penstock.errors import DataLossError, JetStreamError, PenstockError, RemoteProtocolError

__all__ = ["Handle", "Service"]

log = logging.getLogger("penstock.channels")

_LOOK_AROUND = 1.0
_QUEUE_BYTES = 64 * 1024 * 1024

Handle = Callable[["Service", bytes, bytes], Awaitable[None]]
"""What handles a request, given the subject for the answer and the content."""


class Service:
    """Serves one cluster's clients, from the state that it loads to the moment it stops leading."""

    def __init__(self, options: GatewayOptions, front: Connection, state: State, lease: Lease) -> None:
        self.options = options
        self.front = front
        self.state = state
        self.disk = None if options.synced_store is None else Disk(options.synced_store)
        self.store = Store(
            state.connection,
            options.cluster_id,
            prefix=options.subject_prefix,
            replicas=options.replicas,
            disk=self.disk,
        )
        state.disk = self.disk
        self.writer = ClientWriter(front, lambda: lease.valid)
        self.lease = lease
        self.shared = Shared(self.writer, self.store, state)
        state.on_reserved = self._reserved
        self.clients = Clients(options, self.writer, front.options.inbox_prefix, self._expire)
        self.channels: dict[str, Channel] = {}
        self.connecting: set[str] = set()  # ids of which we find out whether they are taken
        self.in_messages = 0
        self.in_bytes = 0
        self._acks = ArrivingAcks(self._settled, self._other_ack)
        self.ack_inbox = ""
        self.numbers = itertools.count(1)  # for subscriptions and groups
        self.queue = RequestQueue(_QUEUE_BYTES, front.after_reading)
        self._taps: list[TapSubscription] = []
        self._loop = asyncio.get_running_loop()

    # -- beginning and ending ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is remembered, and listen.

        DeniedError if we may not listen to what clients send, InputError if we shall sync a store that is not there.
        """
        if self.disk is not None:
            await self.disk.sync(self.state.stream, grown=False)  # else the folder is not the server's store
        remembered = await self.state.load()
        self.ack_inbox = remembered.get("info", b"").decode()
        if not self.ack_inbox:
            self.ack_inbox = f"{self.front.options.inbox_prefix}.{secrets.token_hex(11)}"
            self.state.put("info", self.ack_inbox.encode())
        for name, described in (await self.store.streams()).items():
            if CHANNEL in (described["config"].get("metadata") or {}):
                self._add(await self.store.open(name, described, self.options.limits.of(name)))
        await self._recall(remembered)
        cluster, prefix = self.options.cluster_id, self.options.discover_prefix
        handlers: dict[str, Handle] = {f"{prefix}.{cluster}": requests.connect}
        handlers |= {f"_STAN.{name}.{cluster}": handle for name, handle in requests.HANDLERS.items()}
        taps = {subject: self._queueing(handle) for subject, handle in handlers.items()}
        taps |= {f"_STAN.pub.{cluster}.>": self.queue.publish}
        taps |= {f"{self.ack_inbox}.*": self._acks.take, f"{self.clients.inbox}.*": self.clients.answered}
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

    async def _recall(self, remembered: dict[str, bytes]) -> None:
        """Take up the clients, subscriptions and positions that are remembered."""
        clients, members, positions = decode_state(remembered)
        if self.state.forgot:
            clients = []  # what they did since is forgotten: they hear of it at their next ping, and begin anew
            log.error(
                "Channels: the state of %s was purged or put back from an older copy. Clients have to connect again; "
                "durables that it does not know begin anew.",
                self.options.cluster_id,
            )
        elif self.state.fresh and self.channels:
            log.warning(
                "Channels: %s has %d channels, and knows of no subscription: durables begin anew.",
                self.options.cluster_id,
                len(self.channels),
            )
        self.state.fresh = False
        for client in clients:
            self.clients.add(client)
        self.numbers = itertools.count(max([0, *members, *positions]) + 1)
        groups: dict[int, Group] = {}
        for number, record in members.items():
            online = record.online and record.client in self.clients.by_id
            if not (online or record.keep):
                self.state.put(f"sub.{number}", b"")  # there is nothing left for it
                continue
            channel = self.channels.get(record.channel) or await self._make_again(record.channel, members, positions)
            group = groups.get(record.group)
            if group is None:
                group = Group(record.group, record.channel, record.durable, record.queue, record.keep)
                groups[record.group] = group
            where = record.client, record.inbox, record.ack_inbox
            member = Member(number, *where, record.max_in_flight, record.ack_wait, online)
            self.attach(channel, group, member)
        for number, group in groups.items():
            self._place(group, positions.get(number))
        for left in positions.keys() - groups.keys():
            self.state.put(f"pos.{left}", b"")

    async def _make_again(
        self, name: str, members: dict[int, MemberRecord], positions: dict[int, GroupRecord]
    ) -> Channel:
        """Make the stream of a channel that somebody deleted; its sequences go on, so that no position is wrong."""
        groups = {record.group for record in members.values() if record.channel == name}
        known = [positions[number] for number in groups if number in positions]
        first = max((position.last for position in known), default=0) + 1
        limits = self.options.limits.of(name)
        stream = await self.store.find(name, limits)
        if stream is None:
            stream = await self.store.create(name, limits, first=first)
            log.warning("Channels: the stream %s was deleted; it is made again, from sequence %d.", stream.name, first)
            for number in groups & positions.keys():
                positions[number] = replace(positions[number], created=stream.created)
        return self._add(stream)

    def _place(self, group: Group, position: GroupRecord | None) -> None:
        """Put a group where it was; if nobody knows, or its stream is not the same, where it can miss nothing.

        What it may have got before, and gets again, is in doubt.
        """
        stream = self.channels[group.channel].stream
        before, wrong = stream.first - 1, ""
        group.doubt = stream.last
        if position is None:
            wrong = "is lost: it gets all messages again"
        elif position.created and position.created != stream.created:
            wrong = "is one in another stream, which was replaced: it gets all messages of the new one"
            if not stream.restored:
                group.doubt = 0  # messages of another stream are new ones; those of a backup may be known
        elif position.last > stream.last and not position.created:
            wrong = f"is past the end at {stream.last}: it gets all messages again"
        elif position.last > stream.last:
            before = stream.last
            wrong = f"is past the end at {before}: the stream was put back from an older copy, and what comes is new"
        if wrong:
            log.error("Channels: the position of %s in %s %s.", group.title, group.channel, wrong)
            group.last = before
            self.state.touch(group)
        elif position is not None:
            group.last = position.last
            group.reserved = max(position.last, position.sent)
            if not self.state.forgot:
                group.doubt = min(group.reserved, stream.last)
            if position.sent > position.last:
                self.state.touch(group)  # what is stored from now on is not in doubt
        for member in group.members:
            pending = position.pending.get(member.number, ()) if position is not None else ()
            member.pending = {sequence: 0.0 for sequence in pending if sequence <= group.last}
        offline = [member for member in group.members if not member.online]
        for member in offline if group.online else offline[1:]:
            group.leave(member, self._loop.time())  # of a queue, which goes on without it
            self.state.forget(group, member)

    async def stop(self) -> None:
        """Stop listening and sending; what is stored stays."""
        for tap in self._taps:
            await tap.unsubscribe()
        self._taps.clear()
        self.queue.release()
        self.writer.end()
        groups = (group for channel in self.channels.values() for group in channel.subscribers.groups)
        self.state.settle(group for group in groups if group.reserved > group.last)
        self.clients.end()
        for channel in self.channels.values():
            channel.end()
        await self.shared.close()

    def close(self) -> None:
        """Let go of the disk, after the last of the state was written."""
        if self.disk is not None:
            self.disk.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _queueing(self, handle: Handle) -> Callable[..., Awaitable[object] | None]:
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

    def _settled(self, entry: AckEntry) -> None:
        """Go on with a subscription that acknowledged something."""
        channel, group = entry.channel, entry.member.group
        self.state.touch(group)
        if group.last < channel.stream.last:
            self.writer.wake(channel.delivery(group))

    def _other_ack(self, entry: AckEntry, data: bytes) -> int | None:
        """Read an ack that is not written as nearly all are; None if it is not an ack, or not for the channel."""
        try:
            ack = decode(Ack, data)
        except RemoteProtocolError as error:
            log.warning("Channels: bytes on the subject for acks are not an ack: %s", error)
            return None
        return ack.sequence if ack.subject == entry.channel.name else None

    def _pinged(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if not data:
            return
        try:
            ping = decode(Ping, data)
        except RemoteProtocolError:
            return  # as the old server: no answer at all
        if reply[:1] == RESERVED:
            return
        client = self.clients.by_conn.get(ping.connID)
        if client is not None:
            self.clients.pinged(client)
        answer = PingResponse(error=Text.REPLACED) if client is None else PingResponse()
        self.writer.send(reply, answer.SerializeToString())

    def _expire(self, client: Connected) -> None:
        log.warning("Channels: client %s misses heartbeats and is closed.", client.record.id)
        self.queue.add(requests.expire, b"", client.record.id.encode())

    def _reserved(self, group: Group) -> None:
        channel = self.channels.get(group.channel)
        if channel is not None and group in channel.subscribers.groups:
            self.writer.wake(channel.delivery(group))

    # -- channels and members ----------------------------------------------------------------------------------------

    def _add(self, stream: ChannelStream) -> Channel:
        channel = Channel(self.shared, stream, self._loop.time())
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

    def may_send_to(self, inbox: str) -> bool:
        """Tell whether a client may have something sent there; not if it became a message of a channel."""
        return is_inbox(inbox) and all(channel.stream.subject != inbox for channel in self.channels.values())

    def attach(self, channel: Channel, group: Group, member: Member) -> None:
        """Make a member part of its channel, its client and the acks."""
        channel.subscribers.add(group, member)
        group.stream = channel.stream
        client = self.clients.by_id.get(member.client)
        if member.online and client is not None:
            client.members[member] = channel
            self._acks.entries[member.ack_inbox.encode()] = AckEntry(channel, member, ack_start(channel.name))

    def detach(self, channel: Channel, member: Member, *, unsubscribe: bool) -> None:
        """Take a member off its channel, its client and the acks."""
        self._acks.entries.pop(member.ack_inbox.encode(), None)
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
        self._loop.call_later(seconds, self.queue.add, requests.delete_channel, b"", channel.name.encode())

    async def look_around(self) -> None:
        """Notice now and then, until cancelled, what JetStream clients and Spark write to the streams.

        Raises DeniedError if we may not listen any more to what clients send: permissions can change. Raises
        DataLossError if a stream is not the one that we know: everything must be taken up anew.
        """
        while True:
            await asyncio.sleep(max(_LOOK_AROUND, len(self.channels) / 100))
            self._check_listening()
            for channel in list(self.channels.values()):
                self.store.check_same(channel.stream)
                if not channel.subscribers.active:
                    continue
                known = channel.stream.last
                try:
                    await self.store.look(channel.stream)
                except DataLossError:
                    raise
                except PenstockError as error:
                    log.debug("Channels: looking at %s: %s", channel.name, error)
                    continue
                if channel.stream.last > known:
                    channel.wake()
