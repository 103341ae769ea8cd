"""`Console`: serves the pages from this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import uvicorn

from penstock.console.access import Access, Role
from penstock.console.app import build_app
from penstock.console.audit import Audit
from penstock.console.backend import Backend
from penstock.console.masking import Mask
from penstock.console.monitor import check_monitor
from penstock.console.prometheus import Prometheus
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.errors import InputError, PenstockError
from penstock.options import ConnectionOptions
from penstock.survey import Survey

if TYPE_CHECKING:
    from penstock.console.protobuf import ProtobufTypes
    from penstock.pipelines.project import Project

__all__ = ["Console"]

_START = 10.0  # seconds until it must listen
_TAKES = 60.0  # seconds in which a browser must take some of what it is sent
_GOODBYE = 2  # seconds that pages in the making may take at the end


class _Quiet(uvicorn.Server):
    """uvicorn's server, which leaves signals to us."""

    def __init__(self, config: uvicorn.Config, idle: float) -> None:
        super().__init__(config)
        self.idle = idle
        self.listening = asyncio.Event()
        self._since: dict[Any, float] = {}
        self._full: dict[Any, float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def on_tick(self, counter: int) -> bool:
        """Hang up on whoever asks for nothing, or takes nothing: uvicorn lets them stay, and room is bounded."""
        now = time.monotonic()
        silent = [item for item in self.server_state.connections if _is_silent(item)]
        self._since = {item: self._since.get(item, now) for item in silent}
        for item, since in self._since.items():
            if now - since > self.idle:
                item.transport.close()
        # Whoever takes nothing of what is sent: what waits for them cannot be sent before the end, either.
        full = [item for item in self.server_state.connections if _is_full(item)]
        self._full = {item: self._full.get(item, now) for item in full}
        for item, since in self._full.items():
            if now - since > _TAKES:
                item.transport.abort()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_full(connection: Any) -> bool:
    """Tell whether somebody does not take what is sent to him; every protocol of uvicorn for requests keeps that."""
    return bool(connection.flow.write_paused)


def _is_silent(connection: Any) -> bool:
    """Tell whether a connection has no request in hand, and uvicorn's own timer for such ones does not run."""
    cycle = connection.cycle
    return (cycle is None or cycle.response_complete) and connection.timeout_keep_alive_task is None


class Console:
    """The web console of one NATS account: `async with Console(options) as console`, then `console.url`.

    It only reads, unless `write` lets those act who show another token, `write_token`. Whoever wants to see it must
    show its token, which `url` carries. NATS need not be there: the pages say so until it is.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        settings: Settings | None = None,
        *,
        token: str | None = None,
        pipelines: Sequence[Project] = (),
        protobuf: ProtobufTypes | None = None,
        system: ConnectionOptions | None = None,
        monitors: Sequence[str] = (),
        prometheus: str | None = None,
        write: bool = False,
        write_token: str | None = None,
        audit: str | Path | None = None,
    ) -> None:
        self.settings = settings or Settings()
        names = (*self.settings.names, self.settings.host)
        self.access = Access(token, names=names, write=write, write_token=write_token)
        self._audit = Audit(None if audit is None else Path(audit))
        self._upstream = Upstream(options, timeout=self.settings.timeout)
        mask, projects = Mask(options), tuple(pipelines)
        self._system = None if system is None else Upstream(system, timeout=self.settings.timeout)
        self._survey = Survey(self._upstream.client, pipelines=projects, scrub=mask.text)
        self._backend = Backend(
            self.settings,
            self._upstream,
            mask,
            self._survey,
            projects,
            protobuf=protobuf,
            system=self._system,
            monitors=tuple(check_monitor(url) for url in monitors),
            write=write,
            prometheus=None if prometheus is None else Prometheus(prometheus),
        )
        self._surveying: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self._place: tuple[str, int] | None = None
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where it listens, without the token; known from its start on."""
        if self._place is None:
            raise PenstockError("The console was not started.", remedy="Use it with `async with`, or call start().")
        host, port = self._place
        if self.settings.host == "localhost":
            host = "localhost"
        elif host in ("0.0.0.0", "::"):  # noqa: S104  # not bound here: an address that nobody can go to is replaced
            host = socket.gethostname() if socket.gethostname() in self.settings.names else "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def url(self) -> str:
        """The address with the token: whoever has it may look."""
        return f"{self.address}/?{urlencode({'token': self.access.token})}"

    @property
    def write_url(self) -> str | None:
        """The address with the token for acting: whoever has it may look and act. None if nobody may."""
        token = self.access.write_token
        return None if token is None else f"{self.address}/?{urlencode({'token': token})}"

    def url_once(self) -> str:
        """Give an address that lets one browser in, once, within a minute, to act if somebody may: for a program."""
        role: Role = "read" if self.access.write_token is None else "write"
        return f"{self.address}/?{urlencode({'code': self.access.code(role)})}"

    async def problem(self) -> PenstockError | None:
        """Try NATS, and give the error where it does not answer."""
        try:
            await self._upstream.client()
        except PenstockError as error:
            return error
        return None

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Listen; InputError if the port is taken or the address is not ours. A console starts once."""
        if self._place is not None:
            raise PenstockError("This console was started before.", remedy="Make a new one with the same options.")
        self._socket = _listen(self.settings)
        self._place = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            build_app(self._backend, self.access, self._audit),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # it would write the token
            server_header=False,
            proxy_headers=False,
            limit_concurrency=self.settings.connections,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=_GOODBYE,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._server = _Quiet(config, self.settings.idle)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        listening = asyncio.create_task(self._server.listening.wait())
        try:
            await asyncio.wait([self._task, listening], timeout=_START, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                why = self._task.exception() if self._task.done() else f"it does not listen after {_START:g} s"
                raise PenstockError(f"The console did not start: {why}.")
        except BaseException:
            await self.stop()
            raise
        finally:
            listening.cancel()
        self._surveying = asyncio.create_task(self._survey.run())
        return self

    async def stop(self) -> None:
        """Let pages in the making end, stop listening, and leave NATS."""
        self._backend.closing.set()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._surveying is not None:
            self._surveying.cancel()
            await asyncio.gather(self._surveying, return_exceptions=True)
            self._surveying = None
        if self._socket is not None:
            self._socket.close()
        await self._backend.runs.close()
        self._backend.disk.shutdown(wait=False, cancel_futures=True)
        await self._upstream.close()
        if self._system is not None:
            await self._system.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *about: object) -> None:
        await self.stop()


def _listen(settings: Settings) -> socket.socket:
    where = f"{settings.host}, port {settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise InputError(
            f"{settings.host} is not an address of this machine: {error.strerror}.", remedy="Leave --host out."
        ) from None
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise InputError(
            f"The console cannot listen on {where}: {(error.strerror or str(error)).lower()}.",
            remedy="Name another port, or 0 for one that is free."
            if error.errno == errno.EADDRINUSE
            else "Name an address of this machine and a port that you may use.",
        ) from None
    return made
