"""A small HTTP server for a few pages that programs read: GET and HEAD, one request a connection, all of it bounded."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.connection.tasks import cut
from penstock.errors import InputError, PenstockError

__all__ = ["JSON", "NOT_FOUND", "OK", "TEXT", "UNAVAILABLE", "HttpAnswer", "HttpPages", "HttpRefused", "HttpRequest"]

log = logging.getLogger("penstock.http")

OK, NOT_FOUND, UNAVAILABLE = "200 OK", "404 Not Found", "503 Service Unavailable"
_BAD_REQUEST = "400 Bad Request"
JSON, TEXT = "application/json", "text/plain"
_REQUEST_BYTES = 16 * 1024
_SECONDS = 10.0  # for a request and its answer
_AT_ONCE = 100  # connections; those beyond are closed


class HttpRequest(NamedTuple):
    """What is asked for: a path with its query, and the headers with names in small letters."""

    target: str
    headers: dict[str, str]

    @property
    def parts(self) -> SplitResult:
        """The parts of the target; HttpRefused if it is not an address."""
        try:
            return urlsplit(self.target)
        except ValueError:  # a host in brackets that is not an address
            raise HttpRefused(_BAD_REQUEST, "This is not the address of a page.") from None


class HttpAnswer(NamedTuple):
    """What a request gets: a status of HTTP, the kind of content, and the content."""

    status: str
    kind: str
    body: bytes


class HttpRefused(Exception):
    """There is no page to show: a status of HTTP, and a line of text."""


class HttpPages:
    """Listens at an address and answers with what `answer` gives, until `stop`; `what` names it in an error."""

    def __init__(self, what: str, host: str, port: int, answer: Callable[[HttpRequest], Awaitable[HttpAnswer]]) -> None:
        self.host, self.port = host, port
        """Where it listens; a port of 0 is replaced by the one that was free."""
        self._what, self._answer = what, answer
        self._server: asyncio.Server | None = None
        self.connections = 0
        """How many are open."""

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Listen; InputError if the port is taken or the address is not ours."""
        try:
            self._server = await asyncio.get_running_loop().create_server(self._visit, self.host, self.port)
        except OSError as error:
            # asyncio puts words of its own around those of the system.
            number = error.errno or 0
            reason = os.strerror(number).lower() if number > 0 else error.strerror or error
            raise InputError(
                f"{self._what} cannot be at {self.host}:{self.port}: {reason}.",
                remedy="Choose another port, or 0 for a free one."
                if number == errno.EADDRINUSE
                else "Choose an address of this machine and a port that you may use.",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _visit(self) -> _Visit:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return _Visit(lambda reader, writer: self._serve(reader, writer, gone), gone)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Future[None]
    ) -> None:
        self.connections += 1
        try:
            if self.connections > _AT_ONCE:
                return
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                try:
                    answer = await self._answer(_read(head))
                except HttpRefused as refused:
                    answer = HttpAnswer(refused.args[0], TEXT, f"{refused.args[1]}\n".encode())
                except PenstockError as error:
                    answer = HttpAnswer(UNAVAILABLE, TEXT, f"{error}\n".encode())
                writer.write(
                    f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.kind}\r\n"
                    f"Content-Length: {len(answer.body)}\r\nCache-Control: no-store\r\n"
                    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n".encode()
                )
                if not head.startswith(b"HEAD"):
                    writer.write(answer.body)
                await writer.drain()
                writer.close()  # when all of it is sent, and not before
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("A request broke off: %r", error)
        finally:
            self.connections -= 1
            cut(writer.transport, gone)  # a peer that reads nothing would keep its answer in memory


class _Visit(asyncio.StreamReaderProtocol):
    """One connection as two streams; `gone` is done when it is over."""

    def __init__(
        self,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        gone: asyncio.Future[None],
    ) -> None:
        super().__init__(asyncio.StreamReader(limit=_REQUEST_BYTES), serve)
        self._gone = gone

    def connection_lost(self, error: Exception | None) -> None:
        """Note that it is over."""
        self._gone.set_result(None)
        super().connection_lost(error)


def _read(head: bytes) -> HttpRequest:
    first, *rest = head.decode("latin-1").rstrip().split("\r\n")
    words = first.split()
    if len(words) != 3 or words[0] not in ("GET", "HEAD"):
        raise HttpRefused("405 Method Not Allowed", "Only GET.")
    pairs = (line.partition(":") for line in rest)
    return HttpRequest(words[1], {name.strip().lower(): value.strip() for name, _, value in pairs})
