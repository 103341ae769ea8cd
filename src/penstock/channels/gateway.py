"""`Gateway`: serves the protocol of NATS Streaming from JetStream, so that its clients go on unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from types import TracebackType
from typing import Any, Self

from penstock.channels.lease import Lease
from penstock.channels.link import Link
from penstock.channels.monitoring import Monitor
from penstock.channels.options import GatewayOptions
from penstock.channels.service import Service
from penstock.channels.state import State
from penstock.connection import Connection, connect
from penstock.contexts import load_options
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LinkError,
    NoRespondersError,
    OptionError,
)
from penstock.options import ConnectionOptions
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["Gateway"]

log = logging.getLogger("penstock.channels")

_OLDEST = (2, 12)  # atomic batches
_START = 30.0
_GOODBYE = 2.0
_AGAIN = 1.0
_SOON = 0.1


class Gateway:
    """A NATS Streaming server without a store of its own: channels are JetStream streams.

    `url` is an address, `ConnectionOptions`, or nothing, as for `penstock.connect`. Further options are the fields of
    `GatewayOptions`. `start()`, or `async with`, serves; with `standby` it waits where another gateway serves.
    """

    def __init__(self, url: str | ConnectionOptions | None = None, **options: Any) -> None:
        known = GatewayOptions.__dataclass_fields__
        for name in options:
            if name not in known:
                raise OptionError(
                    f"A gateway has no option {name!r}.", remedy=f"Known: {', '.join(sorted(known))}.", option=name
                )
        self.options = GatewayOptions(**options)
        self.identity = secrets.token_hex(11)
        given = url if isinstance(url, ConnectionOptions) else load_options(url)
        # A gateway outlives any outage of its server.
        self._given = given.replace(reconnect_attempts=-1, reconnect_wait=min(given.reconnect_wait, 0.25))
        self._front: Connection | None = None
        self._back: Connection | None = None
        self._link: Link | None = None
        self._service: Service | None = None
        self._monitor: Monitor | None = None
        self._task: asyncio.Task[None] | None = None
        self._leading = asyncio.Event()

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this gateway serves the cluster now."""
        return self._leading.is_set()

    @property
    def monitor_url(self) -> str | None:
        """Where the monitoring pages are, if anywhere."""
        return self._monitor.url if self._monitor is not None else None

    @property
    def service(self) -> Service | None:
        """What is served while this gateway leads."""
        return self._service if self.leading else None

    # -- starting and stopping ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> Self:
        """Connect, and serve; with `standby`, come back at once and serve when it is our turn.

        A JetStream that is not ready yet gets half a minute. Raises ServerError where somebody else serves the cluster,
        InputError where the server is too old.
        """
        if self._task is not None:
            return self
        try:
            self._front = await connect(self._given, on_reconnect=self._reconnected, on_close=self._closed)
            self._back = await connect(self._given, on_disconnect=self._disconnected, on_close=self._closed)
            _check_version(self._front)
            self._link = Link(self._back, self.options.timeout)
            await self._link.start()
            if self.options.monitor is not None:
                self._monitor = Monitor(self, self.options.monitor)
                await self._monitor.start()
            self._task = asyncio.get_running_loop().create_task(self._supervise(self._front, self._link))
            if not self.options.standby:
                await self.wait_leading()
        except BaseException:
            await self.stop()
            raise
        return self

    async def wait_leading(self) -> None:
        """Wait until this gateway serves; raises what ended it, if it ended first."""
        assert self._task is not None, "the gateway was started"
        leading = asyncio.ensure_future(self._leading.wait())
        try:
            await asyncio.wait([leading, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
        if self._task.done():
            self._task.result()

    async def wait(self) -> None:
        """Wait until the gateway ends by itself, and raise what ended it."""
        assert self._task is not None, "the gateway was started"
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop serving, let a standby take over, and close the connections; clients and positions stay stored."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # wait() is who hears of it
                await task
        if self._monitor is not None:
            await self._monitor.stop()
            self._monitor = None
        for client in (self._front, self._back):
            if client is not None:
                await client.close()
        self._front = self._back = self._link = None

    # -- leading -----------------------------------------------------------------------------------------------------

    async def _supervise(self, front: Connection, link: Link) -> None:
        loop = asyncio.get_running_loop()
        state = State(link, self.options.cluster_id, replicas=self.options.replicas)
        lease = Lease(self.options, front, state)
        patient, until = self.options.standby, loop.time() + _START
        while True:
            service = await self._begin(front, link, state, lease, patient=patient, late=loop.time() > until)
            if service is None:
                await asyncio.sleep(_AGAIN if patient else _SOON)
                continue
            patient = True  # what once served outlives any outage
            work: list[asyncio.Task[None]] = []
            try:
                work = [loop.create_task(job) for job in (state.run(), lease.renew(), service.run())]
                self._leading.set()
                log.info("Channels: serving %s.", self.options.cluster_id)
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # an error ends the gateway; without one, somebody else leads
            except asyncio.CancelledError:
                await self._leave(service, state, lease)
                raise
            finally:
                self._leading.clear()
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                await service.stop()
                self._service = None
            await asyncio.sleep(_AGAIN)  # whoever leads now may not answer for the cluster yet

    async def _begin(
        self, front: Connection, link: Link, state: State, lease: Lease, *, patient: bool, late: bool
    ) -> Service | None:
        """Become the leader and take up its work; None where that must be tried again.

        Who is `patient` tries until it goes well. A first start does so for what passes by itself, until it is `late`.
        """
        service = None
        try:
            if not state.ready:
                await state.create()
            await lease.take()
            service = self._service = Service(self.options, front, link, state, lease)
            state.on_lost = lease.end
            await service.start()
        except BaseException as error:
            if service is not None:
                await service.stop()
                self._service = None
            endless = patient and state.ready and isinstance(error, LinkError | DeadlineError | JetStreamError)
            if not endless and (late or not _passes(error, ready=state.ready)):
                raise
            log.warning("Channels: not serving yet: %s", error)
            return None
        return service

    async def _leave(self, service: Service, state: State, lease: Lease) -> None:
        """Go in order: nothing new comes in, what is known is stored, a standby may take over."""
        await service.stop()
        try:
            async with asyncio.timeout(_GOODBYE):
                await state.flush()
                await lease.release()
        except TimeoutError:
            log.warning("Channels: JetStream did not take the last of the state in time.")

    # -- the connections ---------------------------------------------------------------------------------------------

    async def _reconnected(self) -> None:
        service = self._service
        if service is not None:
            for channel in service.channels.values():
                channel.wake()

    async def _disconnected(self) -> None:
        if self._link is not None:
            self._link.disconnected()

    async def _closed(self) -> None:
        if self._task is not None and not self._task.done():
            log.error("Channels: %s", DisconnectedError("The connection to NATS was given up."))
            self._task.cancel()


def _passes(error: BaseException, *, ready: bool) -> bool:
    """Tell whether a start that failed may go well a moment later.

    A cluster that chooses its leaders does not answer, and for some milliseconds not every node knows a new stream.
    """
    if isinstance(error, NoRespondersError):
        return ready  # before the state stream is there, it means that JetStream is off
    return may_ask_again(error)


def _check_version(client: Connection) -> None:
    text = str(client.connected_server_version)
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if numbers < _OLDEST:
        raise InputError(
            f"The NATS server is of version {text}.", remedy="Channels need 2.12 or newer, for its atomic batches."
        )
