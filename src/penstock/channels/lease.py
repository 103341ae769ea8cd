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
import secrets
from typing import TYPE_CHECKING

from penstock.channels.link import status_of
from penstock.channels.store import IN_PROCESS, WRONG_LAST
from penstock.channels.wire import ConnectRequest
from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, LinkError, ServerError

if TYPE_CHECKING:
    from penstock.channels.options import GatewayOptions
    from penstock.channels.state import State
    from penstock.connection import Connection

__all__ = ["Lease"]

log = logging.getLogger("penstock.channels")

_PROBE = 0.25
_RETRY = 0.1


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
        """Become the leader: at once where nobody serves the cluster, else when its leader is gone.

        Raises ServerError where somebody serves it and we are not to stand by.
        """
        while True:
            if not self._front.is_connected:
                raise DisconnectedError("There is no connection to NATS.", remedy="It is being made again.")
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
                await self._state.beat()
                self._until = began + self._options.lease
                self._renewed.set()
                return
            await asyncio.sleep(_PROBE)  # whoever was quicker may not answer for the cluster yet

    async def _somebody_serves(self) -> bool:
        reply = f"{self._front.options.inbox_prefix}.{secrets.token_hex(11)}"
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def receive(subject: bytes, _: bytes, data: bytes, header: bytes | None) -> None:
            if not answer.done():
                answer.set_result(status_of(header) != 503)  # NATS says at once that nobody listens

        tap = await self._front.tap(reply, receive)
        try:
            content = ConnectRequest(clientID=self._options.cluster_id).SerializeToString()
            subject = f"{self._options.discover_prefix}.{self._options.cluster_id}"
            await self._front.publish(subject, content, reply=reply)
            async with asyncio.timeout(_PROBE):
                return await answer
        except TimeoutError:
            return False
        finally:
            await tap.unsubscribe()

    async def _until_silent(self) -> None:
        """Watch the leader's pulse until it stands still for a lease, or says goodbye."""
        seen, since = 0, self._loop.time()
        while True:
            try:
                sequence, content = await self._state.last("beat")
            except (LinkError, DeadlineError, JetStreamError) as error:
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
        while True:
            began = self._loop.time()
            try:
                await self._state.beat()
            except JetStreamError as error:
                if error.err_code == WRONG_LAST:
                    self.end()
                    log.error("Channels: somebody else leads %s now.", self._options.cluster_id)
                    return
                if error.err_code != IN_PROCESS:
                    log.error("Channels: the server refuses the pulse: %s", error)
                await asyncio.sleep(_RETRY)
            except (LinkError, DeadlineError) as error:
                log.warning("Channels: no pulse: %s", error)
                await asyncio.sleep(_RETRY)
            else:
                self._until = began + self._options.lease
                self._renewed.set()
                await asyncio.sleep(self._options.lease / 4)

    def end(self) -> None:
        """Lead no more."""
        self._until = 0.0

    async def release(self) -> None:
        """Let a standby take over at once."""
        self.end()
        try:
            await self._state.beat(released=True)
        except (JetStreamError, LinkError, DeadlineError) as error:
            log.debug("Channels: the goodbye did not get through: %s", error)
