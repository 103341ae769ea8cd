"""A group at work: reads ahead what its members shall get, sends it, and sends it again when nobody acknowledges.

The rules are in `delivery`; here are the clock, the reading and the sending.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.channels.delivery import Group, Member
from penstock.channels.wire import again
from penstock.errors import DeadlineError, LinkError, PenstockError

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.outlet import Outlet
    from penstock.channels.state import State
    from penstock.channels.store import Store

__all__ = ["Desk", "Feed"]

log = logging.getLogger("penstock.channels")

_AHEAD = 512  # messages that one read asks for; the store bounds their bytes, too
_LOW = 128  # with fewer than this read ahead, the next read begins
_LOOK = 32  # messages between two looks at whether the server still takes what we send
_RETRY = 0.1
_REFUSED = 1.0


class Desk:
    """What all feeds share: the outlet, the store, the state, and a bound on reads at the same time."""

    def __init__(self, outlet: Outlet, store: Store, state: State) -> None:
        self.outlet = outlet
        self.store = store
        self.state = state
        self.reads = asyncio.Semaphore(16)
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the side; it ends with the desk."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Channels: work on the side failed: %s", error, exc_info=error)

    async def close(self) -> None:
        """Cancel what runs on the side."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Feed:
    """Delivers one group's messages."""

    def __init__(self, desk: Desk, channel: Channel, group: Group) -> None:
        self.desk = desk
        self.channel = channel
        self.group = group
        self._ahead: deque[tuple[int, bytes]] = deque()
        self._reading = False
        self._redelivering = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def end(self) -> None:
        """Stop for good."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._ahead.clear()

    # -- new messages ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send every new message that may go out now."""
        outlet, group = self.desk.outlet, self.group
        if self._ended or not outlet.up:
            return
        records, recent, now = self.channel.log, self.channel.recent, self._loop.time()
        before = group.last
        while group.ready and group.last < records.last:
            sequence = group.last + 1
            if sequence < records.first:
                group.skip_to(records.first - 1)
                continue
            if sequence % _LOOK == 0 and outlet.full:
                outlet.later(self)
                break
            content = recent.get(sequence)
            if content is None:
                content = self._next_ahead()
                if content is None:
                    self._read_ahead()
                    break
                sequence = group.last + 1
            member = group.assign(sequence, now)
            if member is None:
                break
            self._send(member, sequence, content)
        if group.last != before:
            self.desk.state.touch(group)
        if self._ahead and len(self._ahead) < _LOW:
            self._read_ahead()
        self.arm()

    def _send(self, member: Member, sequence: int, content: bytes) -> None:
        if len(content) > self.desk.outlet.client.max_payload:
            # Somebody wrote it to the stream directly, and no subscriber could ever receive it.
            log.error(
                "Channels: message %d of %s is larger than the server carries, and is skipped.",
                sequence,
                self.channel.name,
            )
            self.group.drop(member, sequence)
            return
        self.desk.outlet.deliver(member.inbox, content)

    def _next_ahead(self) -> bytes | None:
        """Take the next message out of what was read ahead; where some are missing in between, move over them."""
        ahead, group = self._ahead, self.group
        while ahead and ahead[0][0] <= group.last:
            ahead.popleft()
        if not ahead:
            return None
        sequence, content = ahead.popleft()
        group.skip_to(sequence - 1)
        return content

    def _read_ahead(self) -> None:
        if self._reading or self._ended:
            return
        start = (self._ahead[-1][0] if self._ahead else self.group.last) + 1
        if start <= self.channel.log.last and start not in self.channel.recent:
            self._reading = True
            self.desk.spawn(self._read(start))

    async def _read(self, start: int) -> None:
        records = self.channel.log
        known = records.last
        try:
            async with self.desk.reads:
                found = await self.desk.store.read_on(records, start, _AHEAD)
            if found:
                self._ahead.extend((item.sequence, item.encode(self.channel.name)) for item in found)
            elif not self._ahead and self.group.last + 1 == start:
                self.group.skip_to(known)  # everything up to there is gone
        except PenstockError as error:
            await self._rest(error)
        finally:
            self._reading = False
        self.desk.outlet.wake(self)

    async def _rest(self, error: PenstockError) -> None:
        """Wait a little after a read that failed; longer where the server refuses it."""
        brief = isinstance(error, LinkError | DeadlineError)
        log.log(logging.DEBUG if brief else logging.WARNING, "Channels: reading %s: %s", self.channel.name, error)
        await asyncio.sleep(_RETRY if brief else _REFUSED)

    # -- going out again ---------------------------------------------------------------------------------------------

    def arm(self) -> None:
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
        outlet = self.desk.outlet
        if not outlet.up or outlet.full or self.group.hold:
            self._timer = self._loop.call_later(_RETRY, self._ring)
            return
        due = self.group.due(self._loop.time())
        if due:
            self._redelivering = True
            self.desk.spawn(self._redeliver(due))
        else:
            self.arm()

    async def _redeliver(self, due: list[tuple[Member, int]]) -> None:
        try:
            for place in range(0, len(due), _AHEAD):
                await self._send_again(due[place : place + _AHEAD], stay=False)
        finally:
            self._redelivering = False
        self.desk.outlet.wake(self)

    async def _send_again(self, due: list[tuple[Member, int]], *, stay: bool) -> None:
        contents = await self._contents([sequence for _, sequence in due])
        now = self._loop.time()
        for member, sequence in due:
            content = contents.get(sequence)
            if content is None:
                self.group.drop(member, sequence)
                self.desk.state.touch(self.group)
                continue
            if self._ended or not member.online or not self.desk.outlet.up:
                continue
            sent = self.group.redeliver(member, sequence, now, stay=stay)
            if sent is not None:
                target, count = sent
                self._send(target, sequence, again(content, count))
                if target is not member:
                    self.desk.state.touch(self.group)

    async def _contents(self, sequences: list[int]) -> dict[int, bytes]:
        """Find messages among the recent ones, and read the others."""
        records, recent = self.channel.log, self.channel.recent
        found = {
            sequence: content
            for sequence in sequences
            if sequence >= records.first and (content := recent.get(sequence)) is not None
        }
        missing = [sequence for sequence in sequences if sequence not in found]
        while missing:
            try:
                async with self.desk.reads:
                    read = await self.desk.store.fetch(records, missing)
            except PenstockError as error:
                await self._rest(error)
                continue
            found |= {sequence: item.encode(self.channel.name) for sequence, item in read.items()}
            break
        return found

    # -- coming back -------------------------------------------------------------------------------------------------

    def resume(self, member: Member) -> None:
        """Send a durable that came back all it had pending, then let new messages flow."""
        self.desk.spawn(self._resume(member))

    async def _resume(self, member: Member) -> None:
        try:
            waiting = self.group.waiting(member, self._loop.time())
            for place in range(0, len(waiting), _AHEAD):
                await self._send_again([(member, item) for item in waiting[place : place + _AHEAD]], stay=True)
        except PenstockError as error:
            log.error("Channels: what %s had pending could not be read: %s", member.client, error)
        finally:
            self.group.hold = False
        self.desk.outlet.wake(self)

    def restore(self) -> None:
        """Take up the work after a restart: what expired while nobody was there goes out first."""
        self.group.hold = any(member.pending for member in self.group.members)
        self.desk.spawn(self._restore())

    async def _restore(self) -> None:
        try:
            for member in list(self.group.members):
                if member.online:
                    await self._restore_member(member)
        finally:
            self.group.hold = False
        self.desk.outlet.wake(self)

    async def _restore_member(self, member: Member) -> None:
        shift = self._loop.time() - time.time()
        waiting = sorted(member.pending)
        for place in range(0, len(waiting), _AHEAD):
            part = waiting[place : place + _AHEAD]
            times = await self._times(part)
            now = self._loop.time()
            due = []
            for sequence in part:
                if sequence in times and sequence in member.pending:
                    member.pending[sequence] = expiry = times[sequence] / 1e9 + member.ack_wait + shift
                    if expiry <= now:
                        member.pending[sequence] = now
                        due.append((member, sequence))
                elif sequence in member.pending:
                    self.group.drop(member, sequence)
                    self.desk.state.touch(self.group)
            await self._send_again(due, stay=True)
        member.pending = dict(sorted(member.pending.items(), key=lambda item: (item[1], item[0])))

    async def _times(self, sequences: list[int]) -> dict[int, int]:
        while True:
            try:
                async with self.desk.reads:
                    read = await self.desk.store.fetch(self.channel.log, sequences)
            except PenstockError as error:
                await self._rest(error)
                continue
            return {sequence: item.time for sequence, item in read.items()}
