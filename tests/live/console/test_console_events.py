"""Open pages that stay fresh, over a real connection: what is told, to how many, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.console import Console, Settings
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.browser import client_of
from tests.live.visitor import Visitor
from tests.support import eventually

Unique = Callable[..., str]


class Listener:
    """One who listens to a page; `status` is how the console answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.head = ""

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    async def event(self) -> tuple[str, Any]:
        """Give the next event."""
        async with asyncio.timeout(60):
            await self.reader.readuntil(b"event: ")  # the size of a piece stands before it
            kind = await self.reader.readuntil(b"\n")
            data = await self.reader.readuntil(b"\n\n")
        return kind.decode().strip(), json.loads(data.decode().removeprefix("data: "))

    async def event_of(self, kind: str) -> Any:
        """Give the next event of a kind."""
        while True:
            found, data = await self.event()
            if found == kind:
                return data


@asynccontextmanager
async def listening(console: Console, path: str, method: str = "GET") -> AsyncIterator[Listener]:
    """Ask for a page as events."""
    place = console.address.removeprefix("http://")
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    try:
        request = f"{method} {path} HTTP/1.1\r\nHost: {place}\r\nAccept: text/event-stream\r\n"
        writer.write(f"{request}Authorization: Bearer {console.access.token}\r\n\r\n".encode())
        made = Listener(reader, writer)
        async with asyncio.timeout(60):
            made.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        yield made
    finally:
        writer.close()


async def test_an_open_page_is_told_what_changes(server: Server, unique: Unique):
    """The page's own address tells the page once, and then only the part in which something happened."""
    name = unique("TOLD")
    async with client_of(server.url) as client, Console(ConnectionOptions(server.url)) as console:
        await assets.add_stream(client, Stream(name=name, subjects=[name]))
        async with listening(console, f"/streams/{name}") as listener:
            assert listener.status == 200
            assert "text/event-stream" in listener.head
            kind, data = await listener.event()
            assert (kind, data["title"]) == ("page", f"{name} · Penstock")
            assert data["main"].startswith("<main")
            await client.jetstream().publish(name, b"<b>news</b>")
            told = ""
            while "news" not in told:
                changed = await listener.event_of("parts")
                assert "configuration" not in changed, "what stays is not sent again"
                told = changed.get("last", "")
            assert "&lt;b&gt;news" in told
            await assets.delete_stream(client, name)
            assert f"no stream {name}" in (await listener.event_of("failed"))["what"]
        async with listening(console, "/about") as listener:
            assert "text/html" in listener.head, "a page that stays as it is has no events"
        async with listening(console, "/streams", "HEAD") as listener:
            assert "text/html" in listener.head


async def test_open_pages_leave_room_for_those_who_ask(server: Server):
    """Half of the connections may be listeners; one more is refused in a sentence, and the end waits for none."""
    async with (
        Console(ConnectionOptions(server.url), Settings(connections=6)) as console,
        listening(console, "/streams") as one,
        listening(console, "/streams?sort=-messages") as two,
        listening(console, "/consumers") as three,
    ):
        for listener in (one, two, three):
            assert (await listener.event())[0] == "page"
        async with listening(console, "/streams") as more:
            assert more.status == 503
            assert b"Too many pages are open" in await more.reader.readuntil(b"}")
        three.writer.close()

        async def room() -> bool:
            async with listening(console, "/streams") as again:
                return again.status == 200

        await eventually(room, "room for another one", timeout=60)
        await console.stop()
        for listener in (one, two):
            async with asyncio.timeout(60):
                await listener.reader.read()
            assert listener.reader.at_eof()


async def test_who_takes_nothing_is_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A browser that reads nothing is let go when what waits for it has filled its connection for a while."""
    monkeypatch.setattr("penstock.console.console._TAKES", 0.2)
    async with Console(ConnectionOptions(server.url)) as console:
        place = console.address.removeprefix("http://").split(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (place[0], int(place[1])))
            head = f"Host: {place[0]}\r\nAuthorization: Bearer {console.access.token}\r\n"
            # Many questions behind each other, and none of the answers is taken.
            await loop.sock_sendall(deaf, f"GET /about HTTP/1.1\r\n{head}\r\n".encode() * 400)
            assert console._server is not None
            connections = console._server.server_state.connections
            await eventually(lambda: any(item.flow.write_paused for item in connections), "the connection filling up")
            await eventually(lambda: not connections, "the end of the connection", timeout=60)


async def test_a_name_that_is_too_long_never_reaches_nats(visitor: Visitor):
    """A name of 5,000 letters is refused in a sentence that is short, and the connection of the others stays."""
    nats = await visitor.nats()
    long = "x" * 5000
    for path in (f"/streams/{long}", f"/streams/S/consumers/{long}", f"/streams/{long}/messages/1"):
        data = await visitor.twin(path, 400)
        assert "too long" in data["error"]["what"]
        assert len(data["error"]["what"]) < 300
    assert await visitor.nats() is nats
    assert nats.is_connected
