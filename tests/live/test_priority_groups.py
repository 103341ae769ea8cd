"""Priority groups: one client at a time, overflow and order, in Python and on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import InputError
from penstock.jetstream import Deliveries, Publisher, Worker, assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke

QUICK = {"expires": 2.0, "heartbeat": 0.5}


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as client:
        yield client


@pytest.fixture
def made(nc: Connection, unique: Callable[..., str]) -> Any:
    """Make a stream with numbered messages, and a consumer `c` that serves group `g` as is said."""

    async def make(policy: str, count: int = 10, **fields: Any) -> str:
        name = unique("GR")
        await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
        consumer = Consumer(durable="c", priority_policy=policy, priority_groups=["g"], **fields)
        await assets.add_consumer(nc, name, consumer)
        await fill(nc, name, count)
        return name

    return make


async def fill(nc: Connection, stream: str, count: int) -> None:
    async with Publisher(nc, stream) as publisher:
        for number in range(1, count + 1):
            await publisher.send(f"{stream}.x", str(number).encode())


async def taken(deliveries: Deliveries, count: int, wait: float = 10.0) -> list[int]:
    found = await deliveries.take(count, wait=wait)
    for delivery in found:
        await delivery.ack_sync()
    return [delivery.sequence for delivery in found]


async def test_one_client_of_a_pinned_group_gets_messages(nc: Connection, made: Any):
    """The first reader is pinned, says so, and gets everything; the other one waits, and goes on when it leaves."""
    stream = await made("pinned_client")
    async with Deliveries(nc, stream, "c", group="g", batch=4, **QUICK) as second:
        async with Deliveries(nc, stream, "c", group="g", batch=4, **QUICK) as first:
            assert await taken(first, 6) == [1, 2, 3, 4, 5, 6]
            (group,) = (await assets.consumer_info(nc, stream, "c")).groups
            assert (group.name, group.pin) == ("g", first.pin)
            assert group.since is not None
            assert (await taken(second, 1, wait=0.2), second.pin) == ([], None)
        # It gives back what it has not read, and the pin: the consumer's two minutes are not waited for.
        rest = await taken(second, 4)
        assert sorted(rest) == [7, 8, 9, 10]
        assert second.pin is not None
    assert (await assets.consumer_info(nc, stream, "c")).groups[0].pin is None


async def test_a_pin_that_is_lost_is_told_and_taken_up_again(
    nc: Connection, made: Any, caplog: pytest.LogCaptureFixture
):
    """Somebody takes the pin away while messages come: that is logged, and reading goes on with another pin."""
    stream = await made("pinned_client", 3)
    async with Deliveries(nc, stream, "c", group="g", batch=100, **QUICK) as deliveries:
        assert await taken(deliveries, 3) == [1, 2, 3]
        old = deliveries.pin
        await assets.unpin_consumer(nc, stream, "c", "g")
        await fill(nc, stream, 250)
        assert await taken(deliveries, 250) == list(range(4, 254))
        assert deliveries.pin not in (None, old)
    assert f"The pin of group g of consumer c of {stream} was taken away; waiting for it." in caplog.messages


async def test_a_worker_in_a_group(nc: Connection, made: Any):
    """A worker takes the same options, and handles everything once."""
    stream = await made("pinned_client", 20)
    handled: list[int] = []

    async def handle(delivery: Any) -> None:
        handled.append(delivery.sequence)

    counts = await Worker(nc, stream, "c", handle, group="g", limit=20, **QUICK).run()
    assert (counts.handled, sorted(handled)) == (20, list(range(1, 21)))


async def test_the_next_message_of_a_group(nc: Connection, made: Any):
    """An ack that asks for more names the group, and goes on with its pin."""
    stream = await made("pinned_client", 3)
    async with Deliveries(nc, stream, "c", group="g", batch=1, limit=1, **QUICK) as deliveries:
        one = await anext(deliveries)
        two = await one.ack_next(group="g", wait=5)
        assert two is not None
        assert two.sequence == 2
        await two.ack_sync()


async def test_overflow(nc: Connection, made: Any):
    """A reader with min_pending gets messages only while so many wait."""
    stream = await made("overflow", 2)
    async with Deliveries(nc, stream, "c", group="g", min_pending=3, batch=1, **QUICK) as deliveries:
        assert await taken(deliveries, 1, wait=0.2) == []
        await fill(nc, stream, 2)
        assert len(await taken(deliveries, 4, wait=0.4)) == 2


async def test_those_with_a_lower_priority_come_first(nc: Connection, made: Any):
    """While both wait, the reader with priority 1 gets what comes, and the one with 5 nothing."""
    stream = await made("prioritized", 0)
    async with (
        Deliveries(nc, stream, "c", group="g", priority=5, batch=10, **QUICK) as later,
        Deliveries(nc, stream, "c", group="g", priority=1, batch=10, **QUICK) as first,
    ):
        waiting = [asyncio.ensure_future(taken(item, 3, wait=0.4)) for item in (later, first)]
        while (await assets.consumer_info(nc, stream, "c")).waiting < 2:
            await asyncio.sleep(0.01)
        await fill(nc, stream, 3)
        assert [await item for item in waiting] == [[], [1, 2, 3]]


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("overflow", {}, "serves priority groups. Give group, one of g"),
        ("overflow", {"group": "h"}, "serves no group h. Give one of g"),
        ("overflow", {"group": "g", "priority": 1}, "as overflow: priority means nothing"),
        ("prioritized", {"group": "g", "min_pending": 1}, "as prioritized: min_pending means nothing"),
        ("overflow", {"min_pending": 1}, "mean nothing without a priority group"),
        ("overflow", {"group": "g", "min_ack_pending": 0}, "min_ack_pending is 0"),
        ("prioritized", {"group": "g", "priority": 10}, "priority is 10"),
        (None, {"group": "g"}, "serves no priority groups"),
    ],
)
async def test_groups_that_make_no_sense(
    nc: Connection, made: Any, policy: str | None, options: dict[str, Any], words: str
):
    """What the consumer cannot do with a group is said before anything is pulled."""
    stream = await made(policy or "overflow", 0)
    consumer = "c"
    if policy is None:
        consumer = "plain"
        await assets.add_consumer(nc, stream, Consumer(durable="plain"))
    with pytest.raises(InputError, match=words):
        async with Deliveries(nc, stream, consumer, **options):
            pass


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pinned(server: Server, unique: Callable[..., str], peer: Peer) -> str:
    """A stream with five messages and a consumer `c` that pins its group `g`."""
    name = unique("GR")
    for words in (
        ["stream", "add", name, "--subjects", f"{name}.>", "--defaults"],
        ["consumer", "add", name, "c", "--pinned-groups", "g", "--defaults"],
    ):
        assert invoke(server.url, *words).status == 0
    peer.publish(f"{name}.x", *(str(number).encode() for number in range(1, 6)))
    return name


async def reader(client: Connection, stream: str) -> Deliveries:
    """Take one message, and keep the pin."""
    deliveries = Deliveries(client, stream, "c", group="g", batch=1, limit=1, **QUICK)
    await deliveries.open()
    await taken(deliveries, 1)
    return deliveries


def test_next_in_a_group(server: Server, peer: Peer, pinned: str):
    """`consumer next` reads in a group, time after time; who holds the pin meanwhile is named, and can lose it."""

    def run(*words: str, status: int = 0, **further: Any) -> Done:
        done = invoke(server.url, "consumer", *words, **further)
        assert done.status == status, done.stderr
        return done

    assert run("next", pinned, "c", "--group", "g", "--raw").stdout == "1\n"
    assert run("next", pinned, "c", "--group", "g", "--count", "2", "--raw").stdout == "2\n3\n"
    assert "Give group, one of g" in run("next", pinned, "c", status=2).stderr
    assert "No client holds the pin" in run("unpin", pinned, "c", "-f", status=2).stderr
    holder = peer.do(reader(peer.client, pinned))
    error = run("next", pinned, "c", "--group", "g", "--wait", "200ms", status=1).stderr
    assert f"client {holder.pin} holds the pin of group g" in error
    assert f"Priority Group g: pinned {holder.pin}" in run("state", pinned, "c").stdout
    assert json.loads(run("find", pinned, "--pinned", "--json").stdout) == ["c"]
    assert "Really take the pin" in run("unpin", pinned, "c", "g", stdin="n\n", status=2).stderr
    done = run("unpin", pinned, "c", "g", "-f")
    assert done.stdout == f"Client {holder.pin} lost the pin of {pinned} > c > g.\n"
    assert run("next", pinned, "c", "--group", "g", "--raw").stdout == "5\n"
    peer.do(holder.close())


def test_sub_waits_for_its_turn(server: Server, peer: Peer, pinned: str):
    """`consumer sub` in a group that another client is pinned to goes on when that one leaves."""
    holder = peer.do(reader(peer.client, pinned))

    def leave(talk: Talk) -> None:
        talk.wait_for("Reading")
        peer.do(holder.close())

    words = ("consumer", "sub", pinned, "c", "--group", "g", "--count", "1", "--raw")
    done = invoke(server.url, *words, beside=leave)
    assert (done.status, done.stdout) == (0, "2\n"), done.stderr
