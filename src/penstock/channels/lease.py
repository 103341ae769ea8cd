"""Who serves a cluster: the one whose pulse is in the state stream.

A gateway that wants to serve asks first, as the old server did, whether anybody answers for the cluster. If nobody
does, or if the leader's pulse stands still for a lease, it writes itself down as the leader, on condition that nobody
did so since it looked. From then on its predecessor can write no state. The leader's own clock tells it when its lease
may have run out; it then does nothing until it has shown, by a pulse that JetStream takes, that it still leads.
"""

from __future__ import annotations

import asyncio
import json
import logging

from penstock.channels.options import GatewayOptions
from penstock.channels.state import State
from penstock.channels.wire import ConnectRequest, frame, is_nobody
from penstock.connection import Connection
from penstock.errors import DeadlineError, PenstockError, ServerError
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["Lease"]

log = logging.getLogger("penstock.channels")

_PROBE = 0.25


class Lease:
    """The right to serve a cluster."""

    def __init__(self, options: GatewayOptions, front: Connection, state: State) -> None:
        self._options = options
        self._front = front
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._renewed = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether we surely still lead."""
        return self._loop.time() < self._until

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
            if await self._somebody_serves():
                if not self._options.standby:
                    raise ServerError(
                        f"The cluster {self._options.cluster_id} is served by somebody else on this NATS.",
                        remedy="Stop that one, choose another cluster id, or stand by (--standby).",
                    )
                log.info("Channels: standing by for %s.", self._options.cluster_id)
                await self._until_silent()
            began = self._loop.time()
            if await self._state.lead():
                self._renew(began)
                return
            await asyncio.sleep(_PROBE)  # whoever was quicker may not answer for the cluster yet

    def _renew(self, began: float) -> None:
        self._until = began + self._options.lease
        self._renewed.set()

    async def _somebody_serves(self) -> bool:
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
            return False
        return not is_nobody(heard[0])  # NATS says at once that nobody listens

    async def _until_silent(self) -> None:
        """Watch the leader's pulse until it stands still for a lease, or says goodbye."""
        seen, since = 0, self._loop.time()
        while True:
            try:
                sequence, content = await self._state.last("beat")
            except PenstockError as error:
                if not may_ask_again(error):
                    raise
                # We cannot see it; that does not mean that it is gone.
                log.debug("Channels: watching the leader: %s", error)
                since = self._loop.time()
            else:
                if content and json.loads(content).get("released"):
                    return
                if sequence != seen:
                    seen, since = sequence, self._loop.time()
                elif self._loop.time() - since > self._options.lease:
                    return
            await asyncio.sleep(min(0.25, self._options.lease / 8))

    async def renew(self) -> None:
        """Keep showing a pulse until we lead no more."""
        while (began := await self._state.beat()) is not None:
            self._renew(began)
            await asyncio.sleep(self._options.lease / 4)
        self.end()
        log.error("Channels: somebody else leads %s now.", self._options.cluster_id)

    def end(self) -> None:
        """Lead no more."""
        self._until = 0.0

    async def release(self) -> None:
        """Let a standby take over at once."""
        self.end()
        await self._state.beat(released=True)
