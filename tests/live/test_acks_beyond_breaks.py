"""Acks that wait for their confirmation, and a connection that breaks before it comes: acks name only sequences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.connection import Connection, connect
from penstock.connection.asking import api_request
from penstock.errors import DeadlineError, DisconnectedError
from penstock.jetstream import Deliveries, Delivery, assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.relay import Relay, relayed


@pytest.fixture
async def shaky(server: Server) -> AsyncIterator[tuple[Relay, Connection]]:
    """Give a client whose connection can be cut, and what cuts it."""
    with relayed(server) as relay:
        async with await connect(relay.url(server), reconnect_wait=0.05, request_timeout=5.0) as client:
            yield relay, client


async def filled(nc: Connection, name: str, message: bytes) -> None:
    """Make a stream with one message, and a consumer of it."""
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
    await assets.add_consumer(nc, name, Consumer(durable="c", ack_wait=60.0))
    await nc.jetstream().publish(f"{name}.x", message)


async def one(client: Connection, name: str) -> Delivery:
    """Give the next message."""
    async with Deliveries(client, name, "c", limit=1) as deliveries:
        return await anext(deliveries)


async def broken(relay: Relay, client: Connection) -> None:
    """Break the connection, and wait until it stands again."""
    stretch = client.stretch
    relay.cut()
    async with asyncio.timeout(20):
        while client.stretch == stretch:
            await asyncio.sleep(0.01)


async def unacknowledged(nc: Connection, name: str) -> int:
    """Ask the server how many messages it waits for."""
    return int((await api_request(nc, f"CONSUMER.INFO.{name}.c"))["num_ack_pending"])


async def test_an_ack_beyond_a_break_is_not_taken_for_another_message(nc, shaky: Any, unique: Callable[..., str]):
    """A stream that was made anew has another message under the sequence: that one stays unacknowledged."""
    relay, client = shaky
    await filled(nc, name := unique("ACK"), b"old")
    delivery = await one(client, name)
    await broken(relay, client)
    await assets.delete_stream(nc, name)
    await filled(nc, name, b"new")
    other = await one(nc, name)
    assert (delivery.sequence, other.sequence, other.data) == (1, 1, b"new")
    await delivery.ack_sync(timeout=10.0)
    assert await unacknowledged(nc, name) == 1
    await other.ack_sync()
    assert await unacknowledged(nc, name) == 0


@pytest.mark.parametrize("when", ["as it breaks", "while it is away", "after it is back"])
async def test_a_plain_answer_is_not_taken_for_another_message(nc, shaky: Any, unique: Callable[..., str], when: str):
    """An ack without a confirmation that was not written before the break is dropped: the message comes again."""
    relay, client = shaky
    await filled(nc, name := unique("ACK"), b"old")
    delivery = await one(client, name)
    await assets.delete_stream(nc, name)
    await filled(nc, name, b"new")
    other = await one(nc, name)
    assert (delivery.sequence, other.sequence, other.data) == (1, 1, b"new")
    lost, stretch = client.broken, client.stretch
    if when == "as it breaks":
        client._lifeline.wire.abort()  # which is noticed in the next turn, before what waits is written
        await delivery.ack()
    else:
        relay.cut()
    async with asyncio.timeout(20):
        await lost
        if when == "while it is away":
            await delivery.ack()
        while client.stretch == stretch:
            await asyncio.sleep(0.01)
        if when == "after it is back":
            await delivery.ack()
            second = Delivery.of(delivery)
            second._stretch = stretch
            with pytest.raises(DisconnectedError, match="It comes again"):
                await second.ack_next(wait=1.0)
        await client.flush()
    assert await unacknowledged(nc, name) == 1
    await other.ack_sync()


async def test_an_ack_beyond_a_break_is_heard(nc, shaky: Any, unique: Callable[..., str]):
    """If the stream still has the message, it is acknowledged as if nothing had happened."""
    relay, client = shaky
    await filled(nc, name := unique("ACK"), b"old")
    delivery = await one(client, name)
    await broken(relay, client)
    await delivery.ack_sync(timeout=10.0)
    assert await unacknowledged(nc, name) == 0


async def test_a_message_that_is_gone_is_not_answered_for(nc, shaky: Any, unique: Callable[..., str]):
    """It does not come again, so there is nothing to wait for; a stream that is gone is an error."""
    relay, client = shaky
    await filled(nc, name := unique("ACK"), b"old")
    delivery = await one(client, name)
    await broken(relay, client)
    await assets.purge_stream(nc, name)
    await delivery.in_progress(sync=True, timeout=10.0)
    await assets.delete_stream(nc, name)
    with pytest.raises(DeadlineError, match="may be delivered again"):
        await delivery.in_progress(sync=True, timeout=10.0)


async def test_a_login_that_may_not_look_lets_the_message_come_again(unique: Callable[..., str]):
    """Without a look nobody knows whose sequence it is: the ack is not repeated, and that is told."""
    name = unique("ACK")
    users = (
        'authorization { users: [ {user: "all", password: "x"}, {user: "some", password: "x", '
        f'permissions: {{publish: {{deny: ["$JS.API.STREAM.MSG.GET.{name}"]}}}}}} ] }}\n'
    )
    with Server(auth=False, config=users) as server, relayed(server) as relay:
        admin = server.url.replace("nats://", "nats://all:x@")
        limited = f"nats://some:x@{urlsplit(relay.url(server)).netloc.rpartition('@')[2]}"
        async with await connect(admin) as nc, await connect(limited, reconnect_wait=0.05) as client:
            await filled(nc, name, b"old")
            delivery = await one(client, name)
            await broken(relay, client)
            with pytest.raises(DeadlineError, match="may be delivered again"):
                await delivery.ack_sync(timeout=10.0)
            assert await unacknowledged(nc, name) == 1
