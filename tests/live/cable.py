"""A wire between a client and a server that a test can record and cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from penstock.server import Server

_PIECE = 65536
_LITTLE = 1024


class Relay:
    """Carries bytes between clients and a server; `cut` breaks every connection, `refuse` lets no new one in.

    What the server sends is held up for `delay` seconds, and altogether while `flows` is not set.
    """

    def __init__(self, server: Server) -> None:
        self._target = urlsplit(server.url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = bytearray()
        self.up = 0
        self.down = 0
        self.record = False
        self.refuse = False
        self.cut_up_at: int | None = None
        self.cut_down_at: int | None = None
        self.cuts = 0
        self.delay = 0.0
        self.piece = _PIECE
        self.flows = asyncio.Event()
        self.flows.set()
        self.url = ""
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.refuse:
                return
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers |= {writer, back}
            try:
                await asyncio.gather(self._carry(reader, back, True), self._carry(there, writer, False))
            except (ConnectionError, OSError):
                pass
            finally:
                back.close()
        finally:
            writer.close()
            self._writers -= {writer}
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool) -> None:
        while data := await reader.read(_PIECE if up else self.piece):
            await self._flowing.wait()
            if up:
                self.up += len(data)
                if self.record:
                    self.sent += data
                if self.cut_up_at is not None and self.up >= self.cut_up_at:
                    self.cut_up_at = None
                    self.cut()
                    return
            else:
                await self.flows.wait()
                await asyncio.sleep(self.delay)
                self.down += len(data)
                if self.cut_down_at is not None and self.down >= self.cut_down_at:
                    self.cut_down_at = None
                    self.cut()
                    return
            writer.write(data)
            await writer.drain()
        writer.close()

    def slow(self, seconds: float) -> None:
        """Carry a little every so many seconds of what the server sends; 0 is as fast as it comes."""
        self.delay, self.piece = seconds, _LITTLE if seconds else _PIECE

    def hold(self) -> None:
        """Carry nothing until `release`, both ways: a peer that is there, and neither reads nor writes."""
        self._flowing.clear()

    def release(self) -> None:
        """Carry on."""
        self._flowing.set()

    def cut(self) -> None:
        """Break every connection as a pulled cable would: what is on the way is lost."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()

    async def end(self) -> None:
        self.flows.set()
        self.release()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def relay(server: Server) -> AsyncIterator[Relay]:
    """Open a wire to the server; `url` is where clients connect."""
    wire = Relay(server)
    listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    parts = urlsplit(server.url)
    wire.url = f"nats://{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
    try:
        yield wire
    finally:
        listener.close()
        await wire.end()
        await listener.wait_closed()
