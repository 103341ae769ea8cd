"""What `flush` promises: the server has everything that was sent before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.errors import DisconnectedError
from penstock.server import Server
from tests.live.cable import relay


@asynccontextmanager
async def tapped(url: str) -> AsyncIterator[tuple[str, bytearray]]:
    """Stand between a client and the server, and keep what the client sends."""
    parts, sent, tasks = urlsplit(url), bytearray(), set()

    async def pass_on(reader, writer, keep: bytearray | None) -> None:
        while data := await reader.read(65536):
            if keep is not None:
                keep += data
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader, writer) -> None:
        far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        for task in (pass_on(reader, far_writer, sent), pass_on(far_reader, writer, None)):
            tasks.add(asyncio.create_task(task))

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield f"nats://{parts.username}@127.0.0.1:{port}", sent
    finally:
        listener.close()
        await asyncio.wait(tasks, timeout=5)
        await listener.wait_closed()


async def test_flush_confirms_what_was_sent_before_it(server: Server, unique):
    """The ping of a flush follows the subscriptions and messages before it, so that its answer confirms them."""
    async with tapped(server.url) as (url, sent):
        client = await penstock.connect(url)
        try:
            first, second, third = unique("flush"), unique("flush"), unique("flush")
            await client.subscribe(first)
            await client.subscribe(second)
            await client.publish(third, b"data")
            await client.flush()
            last_ping = sent.rindex(b"PING\r\n")
            for subject in (first, second, third):
                assert 0 < sent.find(subject.encode()) < last_ping, subject
        finally:
            await client.close()


async def test_a_flush_that_is_given_up_does_no_harm(server: Server):
    """A flush that is cancelled, at whatever moment, leaves a connection that still works."""
    client = await penstock.connect(server.url)
    given_up = 0
    try:
        for turns in range(12):
            task = asyncio.create_task(client.flush())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            given_up += isinstance(outcome, asyncio.CancelledError)
            await client.flush()
        assert given_up >= 3
        assert await client.rtt() > 0
    finally:
        await client.close()


async def test_a_flush_of_a_connection_that_is_closed_is_told_at_once(server: Server):
    """Who waits in flush or confirm, or for a connection, when somebody closes it, gets DisconnectedError, and soon."""
    async with relay(server) as wire:
        client = await penstock.connect(wire.url)
        wire.hold()
        waiting = [asyncio.create_task(client.flush(60)), asyncio.create_task(client.confirm(client.stretch, 60))]
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await client.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DisconnectedError, DisconnectedError]


async def test_a_flush_at_a_break_is_told_at_once(server: Server):
    """A flush whose stretch breaks raises DisconnectedError, not a deadline; the next one waits for the connection."""
    async with relay(server) as wire:
        client = await penstock.connect(wire.url, reconnect_wait=0.05)
        wire.hold()
        waiting = asyncio.create_task(client.flush(60))
        await asyncio.sleep(0)
        wire.cut()
        async with asyncio.timeout(30):
            with pytest.raises(DisconnectedError, match="is gone"):
                await waiting
            wire.release()
            await client.flush(30)
        assert client.stretch == 2
        await client.close()
