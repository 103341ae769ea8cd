"""The small HTTP server of pages that programs read: what it holds is bounded, whoever asks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from penstock import http_pages
from penstock.http_pages import OK, TEXT, HttpAnswer, HttpPages, HttpRequest
from tests.support import eventually

BODY = b"x" * 32 * 1024 * 1024  # more than the system takes for a peer that reads nothing


async def answer(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(OK, TEXT, BODY)


async def test_a_peer_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch):
    """When its time is over its connection is gone, with what was not sent, and makes room for another."""
    monkeypatch.setattr(http_pages, "_SECONDS", 0.3)
    monkeypatch.setattr(http_pages, "_AT_ONCE", 1)
    pages, loop = HttpPages("The pages", "127.0.0.1", 0, answer), asyncio.get_running_loop()
    await pages.start()
    silent = socket.create_connection(("127.0.0.1", pages.port))
    try:
        silent.setblocking(False)
        await loop.sock_sendall(silent, b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: pages.connections == 1, "the request")
        await eventually(lambda: pages.connections == 0, "the end of its time")
        got = 0
        async with asyncio.timeout(20):
            while data := await loop.sock_recv(silent, 1 << 20):
                got += len(data)
        assert got < len(BODY), "the rest was kept for it"
    finally:
        silent.close()
        await pages.stop()


async def test_a_peer_that_reads_gets_all_of_it():
    """An answer is sent to its last byte before the connection is closed."""
    pages = HttpPages("The pages", "127.0.0.1", 0, answer)
    await pages.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.read(-1)).endswith(b"\r\n\r\n" + BODY)
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: pages.connections == 0, "the end")
    finally:
        await pages.stop()


async def test_an_answer_that_leaves_in_pieces_is_counted_off():
    """If the last bytes go out after the answer was given, the connection ends once, and makes room for another."""
    little = b"x" * 48 * 1024  # less than the streams wait for, and more than the system takes here

    async def answer_little(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(OK, TEXT, little)

    wrong: list[Any] = []
    pages, loop = HttpPages("The pages", "127.0.0.1", 0, answer_little), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: wrong.append(about))
    await pages.start()
    assert pages._server is not None
    pages._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    try:
        for _ in range(3):
            with socket.socket() as late:
                late.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                late.setblocking(False)
                await loop.sock_connect(late, ("127.0.0.1", pages.port))
                await loop.sock_sendall(late, b"GET / HTTP/1.1\r\n\r\n")
                got = await loop.sock_recv(late, 1)
                assert pages.connections == 1, "it waits for us to read the rest"
                async with asyncio.timeout(20):
                    while data := await loop.sock_recv(late, 1 << 20):
                        got += data
                assert got.endswith(b"\r\n\r\n" + little)
            await eventually(lambda: pages.connections == 0, "the end")
    finally:
        await pages.stop()
    assert wrong == []
