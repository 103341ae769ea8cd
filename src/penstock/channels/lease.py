"""Who serves a cluster: the one who writes to the state stream.

A gateway that wants to serve asks first, as the old server did, whether anybody answers for the cluster. If nobody
listens there, or if the state stream stands still for a lease, it writes itself down as the leader, on condition that
nobody did so since it looked. From then on its predecessor can write no state. The leader's own clock tells it when its
lease may have run out; it then does nothing until it has shown, by a write that JetStream takes, that it still leads.
So it does when its connection to the clients is back: while that was down, nobody listened.

Whatever the leader writes is a sign of life. When it has nothing to write it shows a pulse, an eighth of the lease
after the last sign: seven of them may be late or lost.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from penstock.channels.options import GatewayOptions
from penstock.channels.state import State
from penstock.channels.wire import ConnectRequest, frame, is_nobody
from penstock.connection import Connection
from penstock.errors import DeadlineError, PenstockError, ServerError
from penstock.json_text import load_json
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["Lease"]

log = logging.getLogger("penstock.channels")

_PROBE = 0.25
_PULSES = 8  # for each lease
_SURELY = 3  # times that something was written while we looked: somebody lives


def _read_beat(content: bytes) -> dict[str, Any]:
    """Read the last sign of life; one that cannot be read says nothing, and does not release the lease."""
    try:
        fields = load_json(content) if content else {}
    except ValueError:
        fields = {}
    return fields if isinstance(fields, dict) else {}


class Lease:
    """The right to serve a cluster."""

    def __init__(self, options: GatewayOptions, front: Connection, state: State) -> None:
        self._options = options
        self._front = front
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._stretch = front.stretch
        self._since = 0.0  # what was shown before does not count
        self.slowest = 0.0  # the longest time from one sign of life until the next one was taken
        self._renewed = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether we surely still lead."""
        self._notice()
        return self._loop.time() < self._until

    def _notice(self) -> None:
        """Notice that the connection to the clients was away: a rival may have seen nobody, what we showed is void."""
        if self._front.stretch != self._stretch:
            self._stretch, self._since, self._until = self._front.stretch, self._loop.time(), 0.0
            self._hurry.set()

    async def wait_valid(self) -> None:
        """Wait until we surely lead."""
        while not self.valid:
            self._renewed.clear()
            await self._renewed.wait()

    async def take(self) -> None:
        """Become the leader: at once if nobody serves the cluster, else when its leader is gone.

        Raises ServerError if somebody serves it and we are not to stand by.
        """
        while True:
            before, _ = await self._state.last("lead")
            if await self._somebody_serves():
                if not self._options.standby:
                    raise ServerError(
                        f"The cluster {self._options.cluster_id} is served by somebody else on this NATS.",
                        remedy="Stop that one, choose another cluster id, or stand by (--standby).",
                    )
                log.info("Channels: standing by for %s.", self._options.cluster_id)
                before = await self._until_silent()
            began = self._loop.time()
            if await self._state.lead(before):
                self._renew(began)
                self._state.on_written = self._renew
                return
            await asyncio.sleep(_PROBE)  # whoever was quicker may not answer for the cluster yet

    def _renew(self, began: float) -> None:
        self._notice()
        lease = self._options.lease
        if self._until > 0.0:
            silent = self._loop.time() - (self._until - lease)
            if silent > lease / 2 and silent > self.slowest:
                log.warning("Channels: a sign of life took %.1f s, of a lease of %g s: too little time?", silent, lease)
            self.slowest = max(self.slowest, silent)
        if began >= self._since:
            self._until = max(self._until, began + lease)
            self._renewed.set()

    async def _somebody_serves(self) -> bool:
        """Tell whether anybody serves the cluster; one who listens and does not answer may be slow, or just dead.

        It is slow if it writes on. Something that a dead one wrote can come late, so once is not enough.
        """
        until, seen, changes = self._loop.time() + self._options.lease, await self._state.end(), 0
        while True:
            heard = await self._probe()
            if heard is not None:
                return heard
            sequence = await self._state.end()
            changes, seen = changes + (sequence != seen), sequence
            if changes >= _SURELY:
                return True
            if self._loop.time() > until:
                return False

    async def _probe(self) -> bool | None:
        """Ask who serves the cluster: whether somebody answers, False if nobody listens, None if nothing comes."""
        subject = f"{self._options.discover_prefix}.{self._options.cluster_id}"
        content = ConnectRequest(clientID=self._options.cluster_id).SerializeToString()
        heard: list[bytes | None] = []

        def hear(payload: bytes, header: bytes | None) -> bool:
            heard.append(header)
            return True

        try:
            await self._front.exchange(
                lambda reply: frame(subject.encode(), content, reply), hear, (subject,), timeout=_PROBE
            )
        except DeadlineError:
            return None
        return not is_nobody(heard[0])  # NATS says at once that nobody listens

    async def _until_silent(self) -> int:
        """Watch what the leader writes until nothing comes for a lease, or until it says goodbye.

        Gives the sequence of its message on `lead`: nobody but its successor may take over.
        """
        seen, since, content, leader = 0, self._loop.time(), b"", 0
        while True:
            try:
                sequence = await self._state.end()
                if sequence != seen:
                    leader, _ = await self._state.last("lead")
                    _, content = await self._state.last("beat")
            except PenstockError as error:
                if not may_ask_again(error):
                    raise
                # We cannot see it; that does not mean that it is gone.
                log.debug("Channels: watching the leader: %s", error)
                since = self._loop.time()
            else:
                fields = _read_beat(content)
                if fields.get("released") and fields.get("lead", leader) == leader:  # gateways before us did not say it
                    return leader
                if sequence != seen:
                    seen, since = sequence, self._loop.time()
                elif self._loop.time() - since > self._options.lease:
                    return leader
            await asyncio.sleep(min(0.25, self._options.lease / 8))

    async def renew(self) -> None:
        """Keep showing that we lead, by a pulse if nothing else is written, until we lead no more."""
        lease = self._options.lease
        while True:
            left = self._until - lease * (1 - 1 / _PULSES) - self._loop.time()
            if left > 0:
                self._hurry.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._hurry.wait()
                continue
            began = await self._state.beat()
            if began is None:
                break
            self._renew(began)
        self.end()
        log.error("Channels: somebody else leads %s now.", self._options.cluster_id)

    def end(self) -> None:
        """Lead no more."""
        self._until = 0.0

    async def release(self) -> None:
        """Let a standby take over at once."""
        self.end()
        await self._state.beat(released=True)
