"""NATS over WebSocket: frames of the library `websockets` in the place of a TCP connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.connection.tasks import cut
from penstock.errors import InputError, UnreachableError

if TYPE_CHECKING:
    from penstock.connection.transport import Wire

__all__ = ["connect"]

_FRAME = 64 * 1024 * 1024  # the largest frame that is taken; nats-server sends far smaller ones
_UNSENT = 1024 * 1024


async def connect(wire: Wire, context: Callable[[], ssl.SSLContext]) -> None:
    """Open a WebSocket to the address of the wire's session, and let the wire use it."""
    url, options = wire.session.url, wire.session.options
    try:
        from websockets.asyncio.client import connect as open_websocket
        from websockets.exceptions import WebSocketException
    except ImportError:
        raise InputError(
            f"{url} is a WebSocket address, and the library websockets is not installed.",
            remedy="Run: pip install 'penstock[websocket]'.",
        ) from None

    class OpenStraight(open_websocket):
        """Follows nobody elsewhere: the login is for the address that was given."""

        def process_redirect(self, exc: Exception) -> Exception:
            """Let what was answered be an error, wherever it leads."""
            return exc

    through: dict[str, Any] = {}
    if (proxy := options.proxy) is not None:
        from penstock.connection.proxy import connect_through

        parts = urlsplit(url)
        through["sock"] = await connect_through(proxy, parts.hostname or "", parts.port or 80, options.urls)
    try:
        socket = await OpenStraight(
            url,
            ssl=context() if url.startswith("wss:") else None,
            max_size=_FRAME,
            max_queue=16,
            compression=None,
            ping_interval=None,  # NATS has pings of its own
            open_timeout=None,  # our own deadline holds
            close_timeout=1.0,
            proxy=None,
            **through,
        )
    except WebSocketException:
        raise UnreachableError(
            f"What answers at {url} is not the WebSocket port of a NATS server.",
            remedy="Does the server's configuration have a websocket block, with this port?",
            urls=options.urls,
        ) from None
    wire.attach(_WebSocketTransport(wire, socket))


class _WebSocketTransport:
    """A WebSocket with the face of an asyncio transport."""

    def __init__(self, wire: Wire, socket: Any) -> None:
        self._wire, self._socket = wire, socket
        self._unsent: list[bytes] = []
        self._size = 0
        self._news, self._reading = asyncio.Event(), asyncio.Event()
        self._reading.set()
        self._closing = self._lost = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._send())]

    async def _receive(self) -> None:
        from websockets.exceptions import ConnectionClosed

        error: Exception | None = None
        try:
            while True:
                data = await self._socket.recv()
                self._wire.received(data.encode() if isinstance(data, str) else data)
                await self._reading.wait()
        except ConnectionClosed:
            pass
        except Exception as found:  # whatever it is, as with TCP: the connection is over, and that is told
            error = found
        self._end(error)

    async def _send(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                while self._unsent:
                    data = b"".join(self._unsent)
                    self._unsent.clear()
                    await self._socket.send(data)
                    self._size -= len(data)
                    self._wire.resume_writing()
                if self._closing:
                    await self._socket.close()
                    return
                self._news.clear()
                await self._news.wait()
        except (ConnectionClosed, OSError):
            return  # the receiving side tells it
        except Exception as error:  # as with receiving: writers must not wait for what nobody sends any more
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._closing = True
        self._news.set()
        if not self._lost:
            self._lost = True
            self._wire.connection_lost(error)  # first: whatever becomes of the rest, nobody waits for this wire
            self._cut()

    def _cut(self) -> None:
        cut(self._socket.transport, self._socket.connection_lost_waiter)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent.append(bytes(data))
        self._size += len(data)
        self._news.set()
        if self._size > _UNSENT:
            self._wire.pause_writing()

    def close(self) -> None:
        self._closing = True
        self._news.set()

    def abort(self) -> None:
        self._closing = True
        self._cut()
        asyncio.get_running_loop().call_soon(self._end, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_extra_info(self, name: str) -> Any:
        return self._socket.transport.get_extra_info(name)
