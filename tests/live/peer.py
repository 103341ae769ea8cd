"""A peer that is no NATS server, and says to each client exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

INFO = {"server_id": "PEER", "version": "2.15.1", "proto": 1, "max_payload": 1024 * 1024, "headers": True}


def info(**fields: Any) -> bytes:
    """Write an INFO as a server does, with some fields of one's own."""
    return b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n"


class Talk:
    """One client that came; `number` counts them from 1, `heard` is all that it said."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number, self.heard = number, bytearray()
        self._reader, self._writer = reader, writer
        self._read_to = 0

    async def say(self, *content: bytes) -> None:
        """Send bytes, all in one piece."""
        self._writer.write(b"".join(content))
        await self._writer.drain()

    async def hear(self, words: bytes) -> None:
        """Read until the client has said this, after what was heard before."""
        while (found := self.heard.find(words, self._read_to)) < 0:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionResetError("the client left")
            self.heard += data
        self._read_to = found + len(words)

    async def welcome(self, *more: bytes, **fields: Any) -> None:
        """Greet and let in, with `more` in one piece with the answer to the login's PING."""
        await self.say(info(**fields))
        await self.hear(b"PING\r\n")
        await self.say(b"PONG\r\n", *more)

    async def serve(self) -> None:
        """Answer pings until the client leaves."""
        while True:
            await self.hear(b"PING\r\n")
            await self.say(b"PONG\r\n")

    def abort(self) -> None:
        """Break the connection."""
        self._writer.transport.abort()


@asynccontextmanager
async def peer(script: Callable[[Talk], Awaitable[None]]) -> AsyncIterator[tuple[str, list[Talk]]]:
    """Listen on loopback and play the script to each client; one that ends hangs up. Gives the URL and the talks."""
    talks: list[Talk] = []
    tasks: set[asyncio.Task[None]] = set()
    failures: list[Exception] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        talk = Talk(len(talks) + 1, reader, writer)
        talks.append(talk)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await script(talk)
        except Exception as error:
            failures.append(error)
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}", talks
    finally:
        listener.close()
        await asyncio.sleep(0)  # whoever came at the last moment has begun
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not failures, failures
