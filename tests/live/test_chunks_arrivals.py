"""Chunks as they come from the socket: each in its turn, none dropped, none kept that was only lent.

Nothing is left of a subscription that ended, and whoever reads is told when nothing can come any more.
"""

from __future__ import annotations

import asyncio

import nats
import pytest

import penstock
from penstock.chunks import Archive, Assembler, Counts, Publisher, Reason
from penstock.errors import AssemblyError, DisconnectedError, InputError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.chunks import receiving
from tests.support import eventually

DATA = bytes(range(256)) * 40  # 10240 bytes


@pytest.fixture
def subject(unique) -> str:
    return unique("chunks")


async def flood(server: Server, subject: str) -> None:
    sender = await penstock.connect(server.url)
    try:
        for number in range(200):
            headers = {"X-Msg-Id": "m", "X-Offset": str(1000 * number), "X-Flags": "0"}
            await sender.publish(subject, bytes(1000), headers=headers)
        await sender.flush()
    finally:
        await sender.close()


async def test_no_chunk_is_dropped(server, subject):
    """No queue stands between that could overflow: what the server sent is taken, each in its turn."""
    async with receiving(server, subject, timeout=60.0) as receiver:
        await flood(server, subject)
        await receiver.chunk(b"", 200_000, 200_000)
        assert await receiver.wait() == [("m", bytes(200_000), subject)]
        assert receiver.assembler.counts.chunks == 201
        assert not receiver.errors


def test_a_count_that_says_nothing_any_more_says_so():
    """`dropped` stays readable for programs that look at it, with a warning."""
    with pytest.warns(DeprecationWarning, match="always 0"):
        assert Counts().dropped == 0


async def test_a_peer_of_nats_py_sends_and_receives(server, subject):
    """Chunks of another client arrive as ours do, and ours at a client that knows nothing of us."""
    peer = await nats.connect(server.url)
    heard = await peer.subscribe(f"{subject}.back")
    await peer.flush()
    try:
        async with receiving(server, subject) as receiver:
            headers = {"X-Msg-Id": "m", "X-Flags": "0", "X-Offset": "0"}
            await peer.publish(subject, b"abc", headers=headers)
            last = {"X-Msg-Id": "m", "X-Flags": "1", "X-Offset": "3", "X-Total-Size": "6"}
            await peer.publish(subject, b"def", headers=last)
            assert await receiver.wait() == [("m", b"abcdef", subject)]
            await Publisher(receiver.nc, 4).publish(f"{subject}.back", b"abcdef", message_id="n")
            first, second = [await heard.next_msg(timeout=10) for _ in range(2)]
            assert (first.data, first.headers) == (b"abcd", {"X-Flags": "0", "X-Msg-Id": "n", "X-Offset": "0"})
            about = {"X-Flags": "1", "X-Msg-Id": "n", "X-Offset": "4", "X-Total-Size": "6"}
            assert (second.data, second.headers) == (b"ef", about)
    finally:
        await peer.close()


async def test_a_client_of_nats_py_is_refused_as_ours(server, subject):
    """What stands on our connection says at once that another client will not do, and what will."""
    client = await nats.connect(server.url)
    try:
        for make in (
            lambda: Publisher(client),
            lambda: Publisher.persistent(client, "STREAM"),
            lambda: Assembler(client, handler=lambda message_id, data: None),
            lambda: Archive(client, "STREAM", subject),
        ):
            with pytest.raises(InputError, match=r"nats\.aio\.client\.Client is not a connection.*penstock\.connect"):
                make()
        with pytest.raises(InputError, match="not a connection of Penstock"):
            await Archive.create(client, "STREAM", subject)
    finally:
        await client.close()


async def test_a_subscription_can_be_ended(server, subject):
    """Whoever got the subscription may unsubscribe: later chunks do not come, and the assembler closes as ever."""
    nc = await penstock.connect(server.url)
    heard = []
    try:
        async with Assembler(nc, handler=lambda message_id, data: heard.append(data)) as assembler:
            subscription = await assembler.subscribe(subject)
            assert subscription.subject == subject
            await Publisher(nc).publish(subject, DATA)
            await eventually(lambda: heard, "the first message")
            await subscription.unsubscribe()
            await Publisher(nc).publish(subject, DATA)
            await nc.flush()
        assert heard == [DATA]
    finally:
        await nc.close()


async def test_a_subscription_that_fails_leaves_nothing(server, subject):
    """Where the connection breaks before the server confirms a subscription, there is none; it may be tried again."""
    heard = []
    async with relay(server) as wire:
        nc = await penstock.connect(wire.url, reconnect_wait=0.05)
        async with Assembler(nc, handler=lambda message_id, data: heard.append(data)) as assembler:
            wire.cut_up_at = 0
            with pytest.raises(DisconnectedError):
                await assembler.subscribe(subject)
            assert not nc._subscriptions
            await eventually(lambda: nc.is_connected, "the connection")
            await assembler.subscribe(subject)
            await Publisher(nc).publish(subject, DATA)
            await eventually(lambda: heard == [DATA], "one delivery")
        await nc.close()


async def test_large_chunks_that_come_early_are_kept(server, subject):
    """A large chunk is lent for as long as it is handled: what waits for its turn is a copy, and stays what it was."""
    pieces = [bytes([number]) * 300_000 for number in range(5)]
    async with receiving(server, subject) as receiver:
        for number in (4, 2, 3, 1, 2, 0):
            total = 1_500_000 if number == 4 else None
            await receiver.chunk(pieces[number], 300_000 * number, total)
        assert await receiver.wait() == [("m", b"".join(pieces), subject)]
        assert receiver.assembler.counts.duplicates == 1


async def test_a_connection_that_is_closed_ends_what_is_read(server, subject, unique):
    """A reader that waits for a message, or for the rest of one, is told at once that nothing comes any more."""
    nc = await penstock.connect(server.url)
    errors, other = [], unique("chunks")
    headers = {"X-Msg-Id": "m", "X-Offset": "0", "X-Flags": "0"}
    assembler = Assembler(nc, 3600.0, handler=lambda message_id, data: None, on_error=errors.append)
    await assembler.subscribe(other)
    async with assembler.open(subject) as inbox:
        await nc.publish(subject, b"abc", headers=headers)
        await nc.publish(other, b"abc", headers=headers)
        message = await anext(inbox)
        assert await message.read(3) == b"abc"
        waiting = asyncio.ensure_future(anext(inbox))
        reading = asyncio.ensure_future(message.read(3))
        await eventually(lambda: assembler.unfinished == 2, "both messages")
        async with asyncio.timeout(20):
            await nc.close()
            with pytest.raises(DisconnectedError, match="closed"):
                await waiting
            with pytest.raises(AssemblyError) as caught:
                await reading
            assert caught.value.reason is Reason.CLOSED
            await eventually(lambda: len(errors) == 2, "both reports")
    assert {error.reason for error in errors} == {Reason.CLOSED}
    await assembler.close()


async def test_what_is_given_up_for_its_age_is_given_up_in_time(server, subject):
    """However long the assembler had nothing to watch over, a message is given up when its own time is over."""
    async with receiving(server, subject, timeout=0.4) as receiver:
        await receiver.settle()
        loop = asyncio.get_running_loop()
        for number in range(3):
            began = loop.time()
            await receiver.chunk(b"abc", 0, message_id=f"m{number}")
            await receiver.error(Reason.TIMEOUT, number + 1)
            assert loop.time() - began >= 0.4
