"""Cancellations at the worst moment: never swallowed, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from penstock.connection import Connection, Msg, api_request, connect
from penstock.connection.asking import insist
from penstock.errors import NoRespondersError, NotFoundError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.connecting import nothing_left_open, works
from tests.live.peer import Talk, peer
from tests.support import eventually

Unique = Callable[..., str]
TURNS = range(40)  # of the event loop, before the cancellation comes


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[Connection]:
    """A connection that must work when the test is over, with nothing of it left, and nothing unheard."""
    unheard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    before = asyncio.all_tasks()
    async with await connect(server.url) as made:
        yield made
        assert await works(made)
        await eventually(lambda: not made._requests._waiting, "every request being forgotten")
    mine = {asyncio.current_task()}
    await eventually(lambda: not asyncio.all_tasks() - before - mine, "every task ending", timeout=5)
    gc.collect()  # a future whose exception nobody asked for complains when it goes
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert unheard == []


async def cancelled_at_every_turn(action: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """Begin an action again and again and cancel it after more and more turns; give how often it was done before."""
    done = 0
    for turns in TURNS:
        task = asyncio.create_task(action())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            async with asyncio.timeout(10):
                await asyncio.wait({task})
            assert task.cancelled(), f"after {turns} turns the cancellation was swallowed"
        else:
            task.result()
            done += 1
    return done


async def test_flush(nc: Connection):
    """A flush that is cancelled at any moment is cancelled, and the next one waits for its own answer."""
    await cancelled_at_every_turn(nc.flush)
    await nc.flush()
    assert not nc._lifeline._pongs


async def test_request(nc: Connection, unique: Unique):
    """A request that is cancelled while it is sent, under way, answered or refused is cancelled."""
    subject = unique("service")

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    async def ask(asked: str) -> None:
        with contextlib.suppress(NoRespondersError):
            await nc.request(asked, b"x", timeout=20)

    await nc.subscribe(subject, cb=answer)
    for asked in (subject, unique("nobody")):
        await cancelled_at_every_turn(lambda asked=asked: ask(asked))
    assert (await nc.request(subject, b"mine", timeout=10)).data == b"mine"


async def test_questions_to_jetstream(nc: Connection, unique: Unique):
    """A question that is asked again until its time is over is cancelled all the same; so is one with patience."""

    async def ask(method: str, patience: float) -> None:
        with contextlib.suppress(NotFoundError):
            await api_request(nc, method, timeout=20, patience=patience)

    for method, patience in (("INFO", 0.0), (f"STREAM.INFO.{unique('S')}", 0.0), ("INFO", 5.0)):
        await cancelled_at_every_turn(lambda method=method, patience=patience: ask(method, patience))


async def test_next_msg_loses_nothing(nc: Connection, unique: Unique):
    """A reader that is cancelled as its message comes leaves it to the next one: each is read once."""
    subscription = await nc.subscribe(unique("read"))
    sent, got = 0, []

    async def read() -> None:
        got.append((await subscription.next_msg(timeout=None)).data)

    for turns in range(60):
        readers = [asyncio.create_task(read()) for _ in range(3)]
        for _ in range(2):
            await nc.publish(subscription.subject, b"%d" % sent)
            sent += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        hit = readers[turns % 3].cancel()
        await nc.flush()
        await asyncio.sleep(0)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        assert not hit or readers[turns % 3].cancelled()
    while subscription.pending_msgs:
        await read()
    assert sorted(map(int, got)) == list(range(sent))
    assert not subscription._waiters


async def test_a_timeout_around_next_msg_loses_nothing(nc: Connection, unique: Unique):
    """The same with a deadline: a message that comes as the time is over is there for the next call."""
    subscription = await nc.subscribe(unique("read"))
    got, sent = [], 300

    async def publish() -> None:
        for number in range(sent):
            await nc.publish(subscription.subject, b"%d" % number)
            await asyncio.sleep(0.001)

    publishing = asyncio.create_task(publish())
    while len(got) < sent:
        try:
            got.append((await subscription.next_msg(timeout=0.001)).data)
        except TimeoutError:
            assert not (publishing.done() and subscription.delivered == sent and not subscription.pending_msgs)
    assert got == [b"%d" % number for number in range(sent)]
    await publishing


async def test_polling_a_quiet_subscription_piles_up_nothing(nc: Connection, unique: Unique):
    """A program that asks again and again whether something came leaves nothing behind each time."""
    subscription = await nc.subscribe(unique("quiet"))
    for _ in range(50):
        with pytest.raises(TimeoutError):
            await subscription.next_msg(timeout=0.0001)
    assert len(subscription._waiters) == 0


async def test_an_iteration(nc: Connection, unique: Unique):
    """An `async for` that is cancelled at any moment is cancelled, and what it did not get is still there."""
    subscription = await nc.subscribe(unique("iterate"))
    got: list[bytes] = []

    async def iterate() -> None:
        async for message in subscription.messages:
            got.append(message.data)
            await asyncio.sleep(0)

    sent = 0
    for turns in TURNS:
        task = asyncio.create_task(iterate())
        for _ in range(3):
            await nc.publish(subscription.subject, b"%d" % sent)
            sent += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    await nc.flush()
    while subscription.pending_msgs:
        got.append((await subscription.next_msg()).data)
    assert got == [b"%d" % number for number in range(sent)]


async def test_drain_of_a_subscription(nc: Connection, unique: Unique):
    """A drain that is cancelled leaves no subscription behind, here or at the server."""

    async def drained() -> None:
        subscription = await nc.subscribe(unique("drain"), cb=_quiet)
        await nc.publish(subscription.subject)
        await subscription.drain()

    await cancelled_at_every_turn(drained)
    await nc.flush()
    assert nc._subscriptions == {} or all(item.subject.startswith("_INBOX") for item in nc._subscriptions.values())


async def _quiet(message: Msg) -> None:
    await asyncio.sleep(0)


async def test_publish_to_a_server_that_takes_no_more():
    """A publisher that waits for room is cancelled; its message counts as published."""

    async def deaf(talk: Talk) -> None:
        await talk.welcome()
        await asyncio.Event().wait()

    async with peer(deaf) as (url, talks):
        nc = await connect(url, reconnect=False)
        while nc.unsent < 1024 * 1024:
            nc.send("flood", bytes(100_000))
            await asyncio.sleep(0)
        assert await cancelled_at_every_turn(lambda: nc.publish("flood", bytes(10))) == 0
        assert await cancelled_at_every_turn(nc.written) == 0
        talks[0].abort()
        await nc.close()


async def test_waiting_for_a_connection(server: Server, unique: Unique):
    """Who waits for a connection to come back can be cancelled; the connection comes back all the same."""
    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=0.02)
        wire.refuse = True
        wire.cut()
        await eventually(lambda: nc.is_reconnecting, "the break")
        for action in (lambda: nc.standing(20), lambda: nc.flush(20), lambda: api_request(nc, "INFO", timeout=20)):
            assert await cancelled_at_every_turn(action) == 0
        wire.refuse = False
        assert await works(nc)
        await nc.close()


async def test_connecting(server: Server, unique: Unique):
    """An attempt to connect that is cancelled at any moment leaves no connection, here or at the server."""
    names = []

    async def attempt() -> None:
        names.append(unique("cancelled"))
        nc = await connect(server.url, name=names[-1])
        await nc.close()

    async with nothing_left_open():
        done = await cancelled_at_every_turn(attempt)
    assert done < len(TURNS)
    async with await connect(server.url) as nc:
        await nc.flush()


async def test_connecting_with_delays(server: Server, unique: Unique):
    """The same in time: whatever the attempt waits for, the cancellation comes through and nothing is left open."""
    async with nothing_left_open():
        for milliseconds in range(0, 20, 2):
            task = asyncio.create_task(connect(server.url))
            await asyncio.sleep(milliseconds / 1000)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task.result().close()


async def test_a_task_group_ends_them_all(nc: Connection, unique: Unique):
    """One that fails ends the others at once, whatever they wait for."""
    subject = unique("silent")
    subscription = await nc.subscribe(subject)

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("on purpose")

    async def together() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(nc.request(subject, timeout=60))
                group.create_task((await nc.subscribe(unique("x"))).next_msg(timeout=60))
                group.create_task(insist(nc, subject, b"", 60))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await together()
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert subscription.delivered == 20
