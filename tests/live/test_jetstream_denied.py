"""What a user may not do in JetStream is said at once, and the error names the subject."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.connection import Connection, connect
from penstock.errors import DeniedError
from penstock.jetstream import Deliveries, Outgoing, Publisher, Samples, assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.inprocess import invoke

CONFIG = """
authorization { users: [
    { user: all, password: p }
    { user: mute, password: p, permissions: { publish: { deny: ["$JS.ACK.>", "$JS.API.CONSUMER.UNPIN.>"] } } }
    { user: some, password: p, permissions: {
        publish: { deny: ["S.secret.>", "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.API.DIRECT.GET.>"] }
        subscribe: { deny: ["$JS.EVENT.ADVISORY.>"] }
    } }
] }
"""
AT_ONCE = 3.0  # seconds; patience is many times that


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with Server(config=CONFIG, auth=False, sync="2m") as server:
        yield server.nodes[0].address


@pytest.fixture
async def nc(guarded: str) -> AsyncIterator[Connection]:
    async with await connect(f"nats://all:p@{guarded}") as admin:
        await assets.add_stream(
            admin, Stream(name="S", subjects=["S.>"], allow_atomic=True, allow_batched=True, num_replicas=1)
        )
        await assets.add_consumer(admin, "S", Consumer(durable="c"))
    async with await connect(f"nats://some:p@{guarded}") as client:
        yield client


async def test_a_publisher(nc: Connection):
    """A message on a subject that is denied fails at once; others go on, before it and behind it."""
    async with asyncio.timeout(AT_ONCE):
        async with Publisher(nc, "S") as publisher:
            first = await publisher.publish("S.open", b"1")
            with pytest.raises(DeniedError, match=r"S\.secret\.x") as caught:
                await publisher.publish("S.secret.x", b"2")
            assert (caught.value.subject, caught.value.operation) == ("S.secret.x", "publish")
            second = await publisher.publish("S.open", b"3")
            await publisher.send("S.secret.y", b"4")
            with pytest.raises(DeniedError, match=r"S\.secret\.y"):
                await publisher.flush()
    assert second.sequence == first.sequence + 1


@pytest.mark.parametrize("how", ["atomic", "fast"])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_batch(nc: Connection, how: str, count: int):
    """A batch on a subject that is denied fails at once, and stores nothing."""
    before = (await assets.stream_info(nc, "S")).last_sequence
    async with asyncio.timeout(AT_ONCE), Publisher(nc, "S") as publisher:
        with pytest.raises(DeniedError, match=r"S\.secret\.x"):
            await publisher.publish_batch([Outgoing("S.secret.x", b"x")] * count, how)
    assert (await assets.stream_info(nc, "S")).last_sequence == before


async def test_stored_messages(nc: Connection):
    """Who may not read directly is told at once, and is given by the leader what may be read there."""
    js = nc.jetstream()
    ack = await js.publish("S.open", b"1")
    async with asyncio.timeout(AT_ONCE):
        with pytest.raises(DeniedError, match=r"DIRECT\.GET\.S"):
            await js.get_last_msg("S", "S.open", direct=True)
        with pytest.raises(DeniedError, match=r"DIRECT\.GET\.S"):
            [message async for message in js.get_last_msgs("S", ["S.open"])]
        assert (await js.get_last_msg("S", "S.open")).sequence == ack.sequence
        found = [message.sequence async for message in js.get_last_msgs("S", ["S.open"], direct=False)]
        assert found == [ack.sequence]


async def test_deliveries(nc: Connection):
    """Who may not pull is told at once."""
    async with asyncio.timeout(AT_ONCE), Deliveries(nc, "S", "c") as deliveries:
        with pytest.raises(DeniedError, match=r"CONSUMER\.MSG\.NEXT\.S\.c"):
            await anext(deliveries)


async def test_samples(nc: Connection):
    """Who may not hear advisories is told when listening begins, and does not wait for what never comes."""
    async with asyncio.timeout(AT_ONCE):
        with pytest.raises(DeniedError, match=r"\$JS\.EVENT\.ADVISORY"):
            async with Samples(nc, "S", "c"):
                pass


def test_commands_say_so_at_once(guarded: str):
    """Who may not pull, or not ack, is told in a sentence and without a longer wait; nothing ends with 0."""
    admin = f"nats://all:p@{guarded}"
    for words in (
        ["stream", "add", "CLI", "--subjects", "CLI.>", "--defaults"],
        ["consumer", "add", "CLI", "c", "--defaults"],
        ["consumer", "add", "CLI", "sole", "--pinned-groups", "g", "--defaults"],
        ["pub", "CLI.x", "hello"],
    ):
        assert invoke(admin, *words).status == 0
    for user, denied, words in (
        ("some", "CONSUMER.MSG.NEXT.CLI.c", ["next", "CLI", "c"]),
        ("some", "CONSUMER.MSG.NEXT.CLI.c", ["sub", "CLI", "c"]),
        ("mute", "$JS.ACK.CLI.c", ["next", "CLI", "c"]),
        ("mute", "$JS.ACK.CLI.c", ["sub", "CLI", "c", "--count", "1"]),
        ("mute", "$JS.ACK.CLI.sole", ["next", "CLI", "sole", "--group", "g"]),
    ):
        invoke(admin, "consumer", "reset", "CLI", "c", "-f")
        began = time.monotonic()
        done = invoke(f"nats://{user}:p@{guarded}", "consumer", *words)
        assert time.monotonic() - began < AT_ONCE
        assert done.status == 1, words
        assert denied in done.stderr.splitlines()[-1]
        assert done.stderr.count("Permissions Violation") <= 2, done.stderr
