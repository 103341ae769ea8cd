"""A relay that keeps what both sides say."""

from __future__ import annotations

import asyncio

__all__ = ["Recorder"]


class Recorder:
    """Passes bytes on, and keeps what the server sends and what the client says on each connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.heard: list[bytearray] = []
        self.said: list[bytearray] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; give the port."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        heard, said = bytearray(), bytearray()
        self.heard.append(heard)
        self.said.append(said)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
            while data := await source.read(65536):
                kept.extend(data)
                sink.write(data)
                await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, back, said), pump(there, writer, heard), return_exceptions=True)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
