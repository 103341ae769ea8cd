"""A channel that is served: its stream, its newest messages, its subscribers and the deliveries to them.

A group's delivery reads ahead what its members shall get, sends it, and again when nobody acknowledges. The rules are
in `delivery`; here are the clock, the reading and the sending.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from penstock.channels.client_writer import ClientWriter
from penstock.channels.delivery import Group, Member
from penstock.channels.encoded import Encoded
from penstock.channels.messages import ChannelMessage, ChannelStream
from penstock.channels.recent import Recent, RecentRoom
from penstock.channels.state import State
from penstock.channels.store import Store
from penstock.channels.subscribers import Subscribers
from penstock.channels.wire import again
from penstock.connection.tasks import end, heed
from penstock.errors import PenstockError
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["Channel", "GroupDelivery", "Shared"]

log = logging.getLogger("penstock.channels")

_AHEAD = 1000  # messages that one read asks for; the store bounds their bytes, too
_LOW = 512 * 1024  # with fewer bytes than this read ahead the next read begins, while these go out
_HELD = 128 * 1024 * 1024  # read ahead by all groups together; beyond it each reads one message at a time
_RECENT = 64 * 1024 * 1024  # bytes of the newest messages of all channels together
_FULL = 0.01  # until the server may have caught up
_RETRY = 0.1
_REFUSED = 1.0
_TELL = 10.0  # seconds between two words in the log on what a group could not get


class Shared:
    """What the deliveries of all groups share: writer, store, state, and bounds on what they read at the same time."""

    def __init__(self, writer: ClientWriter, store: Store, state: State) -> None:
        self.writer = writer
        self.store = store
        self.state = state
        self.reads = asyncio.Semaphore(16)
        self.held = 0  # bytes that all have read ahead
        self.recent = RecentRoom(_RECENT)
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the side; it ends when `close` is called."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        heed(task, lambda error: log.error("Channels: work on the side failed: %s", error, exc_info=error))

    async def close(self) -> None:
        """End what runs on the side."""
        await end(list(self._tasks))


class GroupDelivery:
    """Delivers one group's messages."""

    def __init__(self, shared: Shared, channel: Channel, group: Group) -> None:
        self.shared = shared
        self.channel = channel
        self.group = group
        self._ahead: deque[Encoded] = deque()
        self._ahead_bytes = 0
        self._nothing = (0, 0)  # a read from the one sequence up to the other that gave nothing
        self._reading = False
        self._redelivering = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._missed = 0  # messages that were gone before they could go out, and are not told yet
        self._telling: asyncio.TimerHandle | None = None
        self._ended = False

    def end(self) -> None:
        """Stop for good."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()
            self._tell()
        self._hold(-self._ahead_bytes)
        self._ahead.clear()

    def _hold(self, size: int) -> None:
        self._ahead_bytes += size
        self.shared.held += size

    # -- what is gone ------------------------------------------------------------------------------------------------

    def _pass_over(self, last: int) -> None:
        """Move over messages up to `last`, which the channel no longer has."""
        self._miss(last - self.group.last)
        self.group.skip_to(last)

    def _miss(self, count: int) -> None:
        """Count what a group cannot get any more; it is told at once, and then now and then."""
        if count > 0:
            self._missed += count
            if self._telling is None:
                self._tell()

    def _tell(self) -> None:
        self._telling = None
        if self._missed:
            log.warning(
                "Channels: %d messages are gone from %s before %s acknowledged them (a limit, a purge, a deletion).",
                self._missed,
                self.channel.name,
                self.group.title,
            )
            self._missed = 0
            if not self._ended:
                self._telling = self._loop.call_later(_TELL, self._tell)

    # -- new messages ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send every new message that may go out now."""
        writer, group = self.shared.writer, self.group
        if self._ended or not writer.up:
            self._arm()
            return
        stream, recent, now = self.channel.stream, self.channel.recent, self._loop.time()
        before, limit = group.last, min(stream.last, group.reserved)
        while group.last < limit and (member := group.choose()) is not None:
            sequence = group.last + 1
            if sequence < stream.first:
                self._pass_over(stream.first - 1)
                continue
            if writer.full:
                self._loop.call_later(_FULL, writer.wake, self)
                break
            piece = recent.find(sequence) or self._next_ahead()
            if piece is None:
                self._read_ahead()
                break
            self._send(member, piece, limit, now)
        group.waits = group.reserved <= group.last < stream.last
        if group.last != before or group.waits:
            self.shared.state.touch(group)
        if self._ahead and self._ahead_bytes < _LOW and self.shared.held < _HELD:
            self._read_ahead()
        self._arm()

    def _send(self, member: Member, piece: Encoded, limit: int, now: float) -> None:
        """Send a member new messages out of a piece, as many as it may have; those missing in between are gone.

        None is beyond `limit`. Those that are in doubt go out one by one, each with its mark.
        """
        group = self.group
        place = piece.place(group.last + 1)
        first = piece.sequence(place)
        if first != group.last + 1:
            self._pass_over(first - 1)
            if first > limit:  # what was missing in between led beyond what the state says
                return
        if first <= group.doubt:
            content = piece.get(first)
            assert content is not None, "its sequence stands there"
            self._send_marked(member, first, content, group.assign_in_doubt(member, first, now))
            return
        most = min(member.max_in_flight - len(member.pending), limit - first + 1)
        count = 1 if group.queue else piece.run(place, most)
        sent = self.shared.writer.deliver(member.inbox, piece, place, place + count) - place
        if group.queue or not sent:
            group.assign(member, first, now)
        else:
            group.assign_run(member, first, first + sent - 1, now)
        if not sent:
            self._skip(member, first)

    def _send_marked(self, member: Member, sequence: int, content: bytes, count: int) -> None:
        """Send a message that was sent before, or may have been."""
        whole = again(content, count)
        if len(whole) > self.shared.writer.connection.max_payload:
            self._skip(member, sequence)
        else:
            self.shared.writer.deliver_again(member.inbox, whole)

    def _skip(self, member: Member, sequence: int) -> None:
        """Move over a message that somebody wrote to the stream directly, and that no subscriber could ever receive."""
        log.error(
            "Channels: message %d of %s is larger than the server carries, and is skipped.", sequence, self.channel.name
        )
        self.group.drop(member, sequence)

    def _next_ahead(self) -> Encoded | None:
        """Give what was read ahead and not sent yet."""
        ahead, group = self._ahead, self.group
        while ahead and ahead[0].last <= group.last:
            self._hold(-ahead.popleft().size)
        return ahead[0] if ahead else None

    def _read_ahead(self) -> None:
        if self._reading or self._ended:
            return
        start = (self._ahead[-1].last if self._ahead else self.group.last) + 1
        if self._ahead and self._nothing == (start, self.channel.stream.last):
            return
        if start <= self.channel.stream.last and start not in self.channel.recent:
            self._reading = True
            self.shared.spawn(self._read(start))

    async def _read(self, start: int) -> None:
        stream = self.channel.stream
        known = stream.last
        try:
            async with self.shared.reads:
                most = _AHEAD if self.shared.held < _HELD else 1
                found = await self.shared.store.read_encoded(stream, start, most)
            if self._ended:
                return
            if found.count:
                self._ahead.append(found)
                self._hold(found.size)
            else:
                self._nothing = (start, known)
            if not found.count and not self._ahead and self.group.last + 1 == start:
                self._pass_over(known)  # everything up to there is gone
        except PenstockError as error:
            await self._rest(error)
        finally:
            self._reading = False
        self.shared.writer.wake(self)

    async def _rest(self, error: PenstockError) -> None:
        """Wait a little after a read that failed; longer if the server refuses it."""
        brief = may_ask_again(error)
        log.log(logging.DEBUG if brief else logging.WARNING, "Channels: reading %s: %s", self.channel.name, error)
        await asyncio.sleep(_RETRY if brief else _REFUSED)

    # -- going out again ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Set the clock for what expires next."""
        due = self.group.next_due()
        if due is None or self._ended:
            return
        if self._timer is not None:
            if self._timer.when() <= due and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._ended or self._redelivering:
            return
        writer = self.shared.writer
        if not writer.up or writer.full or self.group.hold:
            self._timer = self._loop.call_later(_RETRY, self._ring)
            return
        due = self.group.due(self._loop.time())
        if due:
            self._redelivering = True
            self.shared.spawn(self._redeliver(due))
        else:
            self._arm()

    async def _redeliver(self, due: list[tuple[Member, int]]) -> None:
        try:
            await self._send_again(due, stay=False)
        finally:
            self._redelivering = False
        self.shared.writer.wake(self)

    async def _send_again(self, due: list[tuple[Member, int]], *, stay: bool) -> None:
        """Send messages once more, a bounded part at a time."""
        recent = self.channel.recent
        place = 0
        while place < len(due):
            await self._room()
            member, sequence = due[place]
            if sequence >= self.channel.stream.first and (content := recent.get(sequence)) is not None:
                self._send_one_again(member, sequence, content, stay=stay)
                place += 1
                continue
            end = place + 1
            while end < len(due) and due[end][1] not in recent:
                end += 1
            async for member, item in self._stored(due[place:end]):
                self._send_one_again(member, item.sequence, item.encode(self.channel.name), stay=stay)
            place = end

    def _send_one_again(self, member: Member, sequence: int, content: bytes, *, stay: bool) -> None:
        if self._ended or not member.online or not self.shared.writer.up:
            return
        sent = self.group.redeliver(member, sequence, self._loop.time(), stay=stay)
        if sent is not None:
            target, count = sent
            self._send_marked(target, sequence, content, count)
            if target is not member:
                self.shared.state.touch(self.group)

    async def _stored(self, pending: list[tuple[Member, int]]) -> AsyncIterator[tuple[Member, ChannelMessage]]:
        """Read messages, a bounded part at a time, until all were read; settle those that the channel no longer has."""
        while pending:
            await self._room()
            try:
                async with self.shared.reads:
                    wanted = [sequence for _, sequence in pending[:_AHEAD]]
                    found, done = await self.shared.store.fetch(self.channel.stream, wanted)
            except PenstockError as error:
                await self._rest(error)
                continue
            for member, sequence in pending[:done]:
                if sequence in found:
                    yield member, found[sequence]
                else:
                    self.group.drop(member, sequence)
                    self._miss(1)
                    self.shared.state.touch(self.group)
            pending = pending[done:]

    async def _room(self) -> None:
        """Wait while the server is slow to take what we send."""
        writer = self.shared.writer
        while writer.full and writer.up and not self._ended:  # noqa: ASYNC110  # the socket's buffer tells nobody
            await asyncio.sleep(_FULL)

    # -- coming back -------------------------------------------------------------------------------------------------

    def resume(self, member: Member) -> None:
        """Send a durable that came back all it had pending, then let new messages flow."""
        self.shared.spawn(self._catch_up([member], self._send_waiting))

    def restore(self) -> None:
        """Take up the work after a restart: what expired while nobody was there goes out first."""
        self.group.hold = any(member.pending for member in self.group.members)
        self.shared.spawn(self._catch_up(list(self.group.members), self._restore_member))

    async def _catch_up(self, members: list[Member], bring: Callable[[Member], Awaitable[None]]) -> None:
        try:
            for member in members:
                if member.online:
                    await bring(member)
        finally:
            self.group.hold = False
        self.shared.writer.wake(self)

    async def _send_waiting(self, member: Member) -> None:
        waiting = self.group.waiting(member, self._loop.time())
        await self._send_again([(member, sequence) for sequence in waiting], stay=True)

    async def _restore_member(self, member: Member) -> None:
        """Find out when each pending message expires: one ack wait after its time; send what has expired."""
        async for _, item in self._stored([(member, sequence) for sequence in sorted(member.pending)]):
            now = self._loop.time()
            if item.sequence in member.pending:
                # The time of the message is another machine's: a clock that is behind it must not make anybody wait
                # longer than if the message had gone out just now.
                expiry = now + min(member.ack_wait, item.time / 1e9 + member.ack_wait - time.time())
                member.pending[item.sequence] = max(expiry, now)
                if expiry <= now:
                    self._send_one_again(member, item.sequence, item.encode(self.channel.name), stay=True)
        member.sort_pending()


class Channel:
    """One channel that the gateway serves."""

    def __init__(self, shared: Shared, stream: ChannelStream, now: float) -> None:
        self.shared = shared
        self.stream = stream
        self.recent = Recent(shared.recent)
        self.subscribers = Subscribers()
        self.last_used = now
        self._deliveries: dict[Group, GroupDelivery] = {}

    @property
    def name(self) -> str:
        """The channel's name, as it was first written."""
        return self.stream.channel

    def delivery(self, group: Group) -> GroupDelivery:
        """Give the delivery of a group, a new one if it has none."""
        found = self._deliveries.get(group)
        if found is None:
            found = self._deliveries[group] = GroupDelivery(self.shared, self, group)
        return found

    def stored(self, pieces: list[Encoded]) -> None:
        """Take note of new messages."""
        self.recent.drop_before(self.stream.first)
        for piece in pieces:
            self.recent.add(piece)

    def wake(self) -> None:
        """Let every delivery look for what it can send."""
        for delivery in self._deliveries.values():
            self.shared.writer.wake(delivery)

    def pump(self) -> None:
        """Let every delivery send what it can, now."""
        for delivery in list(self._deliveries.values()):
            delivery.pump()

    def remove(self, member: Member, now: float, *, unsubscribe: bool) -> None:
        """Take a member off the channel, and remember that."""
        group = member.group
        assert group is not None, "only members of a group are removed"
        if self.subscribers.remove(member, now, unsubscribe=unsubscribe):
            self.shared.state.forget(group, member)
        else:
            self.shared.state.remember(group, member)
        if group.online:
            self.shared.writer.wake(self.delivery(group))
        elif (delivery := self._deliveries.pop(group, None)) is not None:
            delivery.end()

    def end(self) -> None:
        """Stop every delivery, and let go of the messages."""
        for delivery in self._deliveries.values():
            delivery.end()
        self._deliveries.clear()
        self.recent.close()
