"""`MetricsServer`: the page `/metrics` by itself, with a survey of its own, for Prometheus to ask."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from penstock.addresses import is_address
from penstock.connection import Connection, connect
from penstock.errors import DisconnectedError, PenstockError
from penstock.http_pages import NOT_FOUND, OK, TEXT, UNAVAILABLE, HttpAnswer, HttpPages, HttpRefused, HttpRequest
from penstock.metrics.families import exposition
from penstock.metrics.text import CONTENT_TYPE
from penstock.options import ConnectionOptions
from penstock.survey import Survey, SurveySettings

if TYPE_CHECKING:
    from penstock.metrics.programs import Program
    from penstock.pipelines.project import Project

__all__ = ["MetricsServer"]


class MetricsServer:
    """Surveys an account and serves what it sees: `async with MetricsServer(options) as server`, then `server.url`.

    With a `token`, whoever asks must show it as a bearer token. `names` are host names under which it may be asked for,
    beside addresses and `localhost`. `programs` are things that run in this process (see `exposition`).
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = (),
        token: str | None = None,
        settings: SurveySettings | None = None,
        pipelines: Sequence[Project] = (),
        programs: Mapping[str, Program] | None = None,
    ) -> None:
        self.survey = Survey(self._connected, settings, pipelines=pipelines, scrub=options.scrub)
        self._pages = HttpPages("Metrics", host, port, self._answer)
        self._options = options
        self._names = {name.lower() for name in (*names, host, "localhost")}
        self._token = token
        self._programs = dict(programs or {})
        self._client: Connection | None = None
        self._surveying: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the figures are."""
        return f"{self._pages.url}/metrics"

    async def start(self) -> Self:
        """Listen, and begin to survey; NATS need not be there yet."""
        await self._pages.start()
        self._surveying = asyncio.create_task(self.survey.run())
        return self

    async def stop(self) -> None:
        """Listen no more, and leave NATS."""
        await self._pages.stop()
        if self._surveying is not None:
            self._surveying.cancel()
            await asyncio.gather(self._surveying, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *about: object) -> None:
        await self.stop()

    async def problem(self) -> PenstockError | None:
        """Wait for the first round, and give the error if NATS does not answer."""
        while not self.survey.snapshot.covered.rounds and self.survey.error is None:
            await self.survey.next()
        return self.survey.error

    async def _connected(self) -> Connection:
        """Give the connection; it is made again by itself, and anew if it was closed for good."""
        if self._client is None or self._client.is_closed:
            self._client = await connect(self._options)
        if not self._client.is_connected:
            raise DisconnectedError(
                f"The connection to {self._options.url} is being made again.", remedy="Is the server still running?"
            )
        return self._client

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        # Another name may be somebody's who wants a browser on this machine to read for him.
        if not is_address(host.strip("[]")) and host.lower() not in self._names:
            raise HttpRefused("421 Misdirected Request", "Not known under that name; --name lets another name in.")
        path = request.parts.path
        if path == "/healthz":
            return self._health()
        if path not in ("/metrics", "/"):
            raise HttpRefused(NOT_FOUND, "There is /metrics, and /healthz.")
        shown = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token is not None and not hmac.compare_digest(shown, self._token.encode()):
            raise HttpRefused("401 Unauthorized", "Send the header Authorization: Bearer TOKEN.")
        if path == "/":
            return HttpAnswer(OK, TEXT, b"The figures are at /metrics.\n")
        # With many consumers that is a lot of text: nobody else waits for it.
        return HttpAnswer(OK, CONTENT_TYPE, await asyncio.to_thread(exposition, self.survey, self._programs))

    def _health(self) -> HttpAnswer:
        snapshot = self.survey.snapshot
        if snapshot.problem is None and snapshot.covered.rounds:
            return HttpAnswer(OK, TEXT, b"ok\n")
        return HttpAnswer(UNAVAILABLE, TEXT, f"{snapshot.problem or 'The first round is under way.'}\n".encode())
