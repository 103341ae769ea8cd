"""`Gateway`: serves the protocol of NATS Streaming from JetStream, so that its clients go on unchanged."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from penstock.channels.lease import Lease
from penstock.channels.limits import HEADER_ROOM, PAYLOAD
from penstock.channels.monitoring import Monitor
from penstock.channels.options import GatewayOptions
from penstock.channels.service import Service
from penstock.channels.state import State
from penstock.connection import Connection, connect
from penstock.connection.tasks import end
from penstock.contexts import load_options
from penstock.errors import (
    DataLossError,
    DeadlineError,
    DeniedError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LinkError,
    NoRespondersError,
    NotFoundError,
    OptionError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.options import ConnectionOptions
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["Gateway"]

log = logging.getLogger("penstock.channels")

_OLDEST = (2, 12)  # atomic batches
_START = 30.0
_STOP = 3.5  # seconds that a stop takes at most, and its parts: the state, the goodbye, what is on its way
_FLUSH = 1.5
_GOODBYE = 1.0
_CLOSE = 0.5
_AGAIN = 1.0
_SOON = 0.1


class Gateway:
    """A NATS Streaming server without a store of its own: channels are JetStream streams.

    `url` is an address, `ConnectionOptions`, or nothing, as for `penstock.connect`. Further options are the fields of
    `GatewayOptions`. `start()`, or `async with`, serves; with `standby` it waits if another gateway serves.
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
        self._given = given.replace(
            reconnect=True, reconnect_attempts=-1, reconnect_wait=min(given.reconnect_wait, 0.25)
        )
        # Three connections: back pressure on the one to the clients, which stops the reading, must not stop the answers
        # of JetStream on the second one; and the pulse has nothing to wait behind.
        self._front: Connection | None = None
        self._back: Connection | None = None
        self._pulse: Connection | None = None
        self._state: State | None = None
        self._lease: Lease | None = None
        self._service: Service | None = None
        self._monitor: Monitor | None = None
        self._task: asyncio.Task[None] | None = None
        self._work: list[asyncio.Task[None]] = []
        self._leading = asyncio.Event()
        self._served = False  # whether it ever led
        self._stopping = asyncio.Lock()

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

    async def __aexit__(self, *about: object) -> None:
        await self.stop()

    async def start(self) -> Self:
        """Connect, and serve; with `standby`, come back at once and serve when it is our turn.

        A JetStream that is not ready yet gets half a minute. Raises ServerError if somebody else serves the cluster,
        InputError if the server is too old, DeniedError if our login lacks a permission.
        """
        if self._task is not None:
            return self
        try:
            self._front = await connect(self._given, on_reconnect=self._reconnected)
            self._back = await connect(self._given, request_timeout=self.options.timeout)
            _check_version(self._front)
            _tell_largest(self._front)
            self._pulse = await connect(self._given, request_timeout=self.options.timeout)
            options = self.options
            self._state = State(self._back, options.cluster_id, replicas=options.replicas, pulse=self._pulse)
            self._lease = Lease(self.options, self._front, self._state)
            if self.options.monitor is not None:
                self._monitor = Monitor(self, self.options.monitor)
                await self._monitor.start()
            self._task = asyncio.get_running_loop().create_task(self._supervise(self._state, self._lease))
            if not self.options.standby:
                await self.wait_leading()
        except BaseException:
            await self.stop()
            raise
        return self

    async def wait_leading(self) -> None:
        """Wait until this gateway serves; raises what ended it, if it ended first."""
        assert self._task is not None, "the gateway was started"
        task = self._task
        leading = asyncio.ensure_future(self._leading.wait())
        try:
            await asyncio.wait([leading, task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
        if task.cancelled():
            raise DisconnectedError("The gateway was stopped before it could serve.")
        if task.done():
            task.result()

    async def wait(self) -> None:
        """Wait until the gateway ends by itself, and raise what ended it; come back when it is stopped."""
        assert self._task is not None, "the gateway was started"
        task = self._task
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def stop(self) -> None:
        """Stop serving, let a standby take over, and close the connections; clients and positions stay stored.

        It takes a few seconds at most, whatever JetStream does meanwhile.
        """
        async with self._stopping:
            deadline = Deadline(_STOP)
            service, lease = self.service, self._lease
            if service is not None:
                async with _in_time(
                    deadline.within(_FLUSH), logging.WARNING, "JetStream did not take the last of the state in time."
                ):
                    await service.stop()
                    await service.state.flush()
            if self._task is not None:
                await end([self._task], within=max(_CLOSE, deadline.left))  # what ended it is for `wait` to tell
                self._task = None
            async with _in_time(deadline.within(_GOODBYE), logging.WARNING, "something of it does not end."):
                await self._step_down()
            if lease is not None and lease.valid and self._pulse is not None and self._pulse.is_connected:
                async with _in_time(deadline.within(_GOODBYE), logging.DEBUG, "the goodbye did not get through."):
                    await lease.release()  # a standby takes over at once
            if self._monitor is not None:
                await self._monitor.stop()
                self._monitor = None
            connections = [connection for connection in (self._front, self._back, self._pulse) if connection]
            await asyncio.gather(*(connection.close(within=_CLOSE) for connection in connections))
            self._front = self._back = self._pulse = self._state = self._lease = None

    async def _step_down(self) -> None:
        """End everything that runs while we lead; what is ended already stays so."""
        self._leading.clear()
        await end(self._work)
        self._work.clear()
        if self._service is not None:
            try:
                await self._service.stop()
            finally:
                self._service.close()
            self._service = None

    # -- leading -----------------------------------------------------------------------------------------------------

    async def _supervise(self, state: State, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _START
        while True:
            service = await self._begin(state, lease, late=loop.time() > until)
            if service is None:
                await asyncio.sleep(_AGAIN if self._served or self.options.standby else _SOON)
                continue
            self._served = True
            jobs = (state.run(), lease.renew(), service.serve(), service.look_around())
            self._work = [loop.create_task(job) for job in jobs]
            self._leading.set()
            log.info("Channels: serving %s.", self.options.cluster_id)
            done, _ = await asyncio.wait(self._work, return_when=asyncio.FIRST_COMPLETED)
            await self._step_down()
            try:
                for task in done:
                    task.result()  # without an error, somebody else leads
            except PenstockError as error:
                if not self._may_begin_again(error, ready=True, late=True):
                    raise
                log.warning("Channels: not serving any more: %s", error)
            await asyncio.sleep(_AGAIN)  # whoever leads now may not answer for the cluster yet

    async def _begin(self, state: State, lease: Lease, *, late: bool) -> Service | None:
        """Become the leader and take up its work; None if that must be tried again."""
        assert self._front is not None
        try:
            if not state.ready:
                await state.create()
            await lease.take()
            self._service = Service(self.options, self._front, state, lease)
            state.on_lost = lease.end
            await self._service.start()
        except Exception as error:
            await self._step_down()
            if not self._may_begin_again(error, ready=state.ready, late=late):
                raise
            if not (state.ready and isinstance(error, NotFoundError) and await state.notice_gone()):
                log.warning("Channels: not serving yet: %s", error)
            return None
        return self._service

    def _may_begin_again(self, error: Exception, *, ready: bool, late: bool) -> bool:
        """Tell whether to try again after a beginning that failed.

        A gateway that stands by, or has served, tries until it can serve. A first start does so for what passes
        by itself, until it is `late`: a cluster that chooses its leaders does not answer, and for some milliseconds not
        every node knows a new stream. A permission that was missing from the start is not waited for.
        """
        if isinstance(error, DeniedError) and not self._served:
            return False
        if (self._served or self.options.standby) and ready:
            # What an answer must not say is no fault of ours, and need not be in the next one.
            known = LinkError | DeadlineError | JetStreamError | DataLossError | RemoteProtocolError
            return isinstance(error, known)
        if isinstance(error, NoRespondersError) and not ready:
            return False  # before the state stream is there, it means that JetStream is off
        return may_ask_again(error) and not late

    # -- the connections ---------------------------------------------------------------------------------------------

    async def _reconnected(self) -> None:
        service = self._service
        if service is not None:
            for channel in service.channels.values():
                channel.wake()


@asynccontextmanager
async def _in_time(deadline: Deadline, level: int, failure: str) -> AsyncIterator[None]:
    """Give what is done last only so much time, however JetStream stands."""
    try:
        async with asyncio.timeout(deadline.left):
            yield
    except TimeoutError:
        log.log(level, "Channels: %s", failure)


def _tell_largest(client: Connection) -> None:
    """Say that the server takes less than the old one did, with what is stored beside a message."""
    if client.max_payload < PAYLOAD:
        log.warning(
            "Channels: messages of more than %d bytes are refused, because the server takes %d with all that is stored "
            "beside them; set its max_payload to %d for messages as large as NATS Streaming took by default.",
            client.max_payload - HEADER_ROOM,
            client.max_payload,
            PAYLOAD,
        )


def _check_version(client: Connection) -> None:
    text = str(client.connected_server_version)
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if numbers < _OLDEST:
        raise InputError(
            f"The NATS server is of version {text}.", remedy="Channels need 2.12 or newer, for its atomic batches."
        )
