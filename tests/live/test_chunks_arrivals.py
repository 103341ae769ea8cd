"""Chunks on their way in: lent by our client, queued by nats-py's own; nothing is left of a subscription that ended."""

from __future__ import annotations

import re

import nats
import pytest

import penstock
from penstock.chunks import Assembler, Publisher, Reason
from penstock.errors import DeadlineError
from penstock.server import Server
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


async def test_chunks_that_the_client_drops_are_reported(server, subject, monkeypatch):
    """Where this process is too slow and nats-py's own client drops chunks, an error says how many."""
    monkeypatch.setattr("penstock.chunks.arrivals.PENDING_BYTES", 1500)
    async with receiving(server, subject, plain=True, timeout=1.0) as receiver:
        # One write of many messages: the client parses those that it read before any callback has its turn.
        await flood(server, subject)
        dropped = await receiver.error(Reason.SLOW_CONSUMER)
        assert receiver.assembler.counts.dropped > 0
        assert re.search(r"dropped [0-9]+ chunks", str(dropped))
        await receiver.error(Reason.TIMEOUT)


async def test_our_client_drops_no_chunk(server, subject):
    """A connection of ours has no queue that could overflow: what the server sent is taken, each in its turn."""
    async with receiving(server, subject, timeout=60.0) as receiver:
        await flood(server, subject)
        await receiver.chunk(b"", 200_000, 200_000)
        assert await receiver.wait() == [("m", bytes(200_000), subject)]
        assert receiver.assembler.counts.dropped == 0
        assert not receiver.errors


async def test_a_subscription_can_be_ended(server, subject):
    """Whoever got the subscription may unsubscribe: later chunks do not come, and the assembler closes as ever."""
    nc = await penstock.connect(server.url)
    heard = []
    try:
        async with Assembler(nc, handler=lambda message_id, data: heard.append(data)) as assembler:
            subscription = await assembler.subscribe(subject)
            await Publisher(nc).publish(subject, DATA)
            await eventually(lambda: heard, "the first message")
            await subscription.unsubscribe()
            await Publisher(nc).publish(subject, DATA)
            await nc.flush()
        assert heard == [DATA]
    finally:
        await nc.close()


@pytest.mark.parametrize("plain", [False, True], ids=["ours", "nats-py"])
async def test_a_subscription_that_fails_leaves_nothing(server, subject, plain, monkeypatch):
    """Where the server does not confirm a subscription, there is none, and the assembler may try again."""
    nc = await (nats.connect(server.url) if plain else penstock.connect(server.url))

    async def silence(timeout: int = 10) -> None:
        raise nats.errors.TimeoutError

    heard = []
    try:
        async with Assembler(nc, handler=lambda message_id, data: heard.append(data)) as assembler:
            with monkeypatch.context() as patch:
                patch.setattr(nc, "flush", silence)
                with pytest.raises(DeadlineError):
                    await assembler.subscribe(subject)
            assert not nc._subs
            await assembler.subscribe(subject)
            await Publisher(nc).publish(subject, DATA)
            await eventually(lambda: heard == [DATA], "one delivery")
    finally:
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
