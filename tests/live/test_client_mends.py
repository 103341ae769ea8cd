"""Where a client can trip over its own feet, ours goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import penstock
from penstock.connection import lifeline
from penstock.errors import DisconnectedError
from tests.live.cable import relay
from tests.live.connecting import listed
from tests.support import eventually


async def test_a_cancelled_flush_does_not_stop_the_reading(server, unique):
    """The answer to a ping that nobody waits for any more is passed by, and messages still arrive."""
    nc, subject, got = await penstock.connect(server.url), unique("mends"), []

    async def received(message) -> None:
        got.append(message.data)

    await nc.subscribe(subject, cb=received)
    for _ in range(5):
        flush = asyncio.ensure_future(nc.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
    await nc.publish(subject, b"still here")
    await nc.flush(5)
    await eventually(lambda: got == [b"still here"], "the message")
    await nc.close()


async def test_a_closed_connection_does_not_come_back(server, unique, monkeypatch):
    """A reconnection that misses its cancellation, as Python's own wait_for lets it, ends all the same."""
    reached, name = asyncio.Event(), unique("mends")
    attempts, opening = [], lifeline.open_wire

    async def deaf(*given: object) -> None:
        attempts.append(asyncio.current_task())
        reached.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await opening(*given)

    async with relay(server) as wire:
        nc = await penstock.connect(wire.url, name=name, reconnect_wait=0.05)
        monkeypatch.setattr(lifeline, "open_wire", deaf)
        wire.cut()
        async with asyncio.timeout(20):
            await reached.wait()
            await nc.close()
        assert nc.is_closed
        assert not nc.is_connected
        assert [task.done() for task in attempts] == [True]
        await eventually(lambda: name not in [item.get("name") for item in listed(server)], "the server forgetting it")
        with pytest.raises(DisconnectedError):
            await nc.publish(name)


async def test_closing_a_connection_that_just_broke_raises_nothing(server, unique):
    """Bytes that can no longer be sent are no reason for close to fail, however the break and the end coincide."""
    async with relay(server) as wire:
        for turns in range(12):
            nc = await penstock.connect(wire.url, reconnect_wait=0.05)
            for _ in range(8):
                await nc.publish(unique("mends"), bytes(500_000))
            wire.cut()
            await nc.publish(unique("mends"), bytes(500_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            await nc.close()
            assert nc.is_closed
