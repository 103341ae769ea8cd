"""How subscriptions and connections end: drained, closed, in the middle of a callback, by two at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.connection import Connection, Msg, connect
from penstock.connection.subscription import served
from penstock.errors import DeadlineError, DisconnectedError, LocalProtocolError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.connecting import nothing_left_open
from tests.live.reloading import reload
from tests.support import eventually

COUNT = 2000


def at_leisure(got: list[bytes], every: int = 100) -> Callable[[Msg], Any]:
    """Give a callback that is slower than what comes."""

    async def received(message: Msg) -> None:
        if len(got) % every == 0:
            await asyncio.sleep(0)
        got.append(message.data)

    return received


# -- draining ----------------------------------------------------------------------------------------------------------


async def test_draining_a_subscription_loses_nothing(server: Server, unique: Callable[..., str]):
    """What was published before `drain` of a subscription is handled when it is done, and nothing after it is."""
    subject, got = unique("drain"), []
    async with await connect(server.url) as nc, await connect(server.url) as other:
        subscription = await nc.subscribe(subject, cb=at_leisure(got))
        await nc.flush()
        for number in range(COUNT):
            await other.publish(subject, b"%d" % number)
        await other.flush()
        await subscription.drain()
        assert got == [b"%d" % number for number in range(COUNT)]
        await other.publish(subject, b"late")
        await other.flush()
        await nc.flush()
        assert len(got) == COUNT
        await subscription.drain()  # again: nothing happens
        await nc.publish(subject, b"the connection stays")
        await nc.flush()


async def test_draining_a_subscription_that_is_read_leaves_what_came(server: Server, unique: Callable[..., str]):
    """After `drain` the messages that had come can still be read; then the subscription says that it is over."""
    subject = unique("drain")
    async with await connect(server.url) as nc:
        one, other = await nc.subscribe(subject), await nc.subscribe(subject)
        for number in range(10):
            await nc.publish(subject, b"%d" % number)
        await asyncio.gather(one.drain(), other.drain())
        assert [(await one.next_msg(timeout=0)).data for _ in range(10)] == [b"%d" % number for number in range(10)]
        with pytest.raises(DisconnectedError, match="was unsubscribed: no message comes any more"):
            await one.next_msg(timeout=10)
        assert [message.data async for message in other.messages] == [b"%d" % number for number in range(10)]


async def test_draining_a_connection_loses_nothing(server: Server, unique: Callable[..., str]):
    """Everything that had arrived is handled, and what its callbacks publish is sent, before the connection closes."""
    subject, answers, closed = unique("drain"), unique("answers"), []
    got: list[bytes] = []

    async def on_close() -> None:
        closed.append(len(got))

    async with await connect(server.url) as other:
        collected = await other.subscribe(answers)
        await other.flush()
        nc = await connect(server.url, closed_cb=on_close)

        async def answer(message: Msg) -> None:
            await asyncio.sleep(0)
            got.append(message.data)
            await nc.publish(answers, message.data)

        await nc.subscribe(subject, cb=answer)
        await nc.subscribe(subject, queue="group", cb=answer, max_msgs=COUNT)
        await nc.flush()
        for number in range(COUNT):
            await other.publish(subject, b"%d" % number)
        await other.flush()
        await nc.drain()
        assert nc.is_closed
        assert closed == [2 * COUNT]
        await other.flush()
        assert collected.pending_msgs == 2 * COUNT
        for kind in set(got):
            assert got.count(kind) == 2
        with pytest.raises(DisconnectedError):
            await nc.publish(subject)


@pytest.mark.parametrize("refused", [{"subject": "a b"}, {"subject": "a", "queue": "a b"}, {"subject": "x" * 5000}])
async def test_a_subscription_that_cannot_be_leaves_nothing_to_drain(server: Server, refused: dict[str, str]):
    """What is refused before it is asked for has no callback that a later end would wait for."""
    told: list[Exception] = []

    async def tell(error: Exception) -> None:
        told.append(error)

    async def take(message: Msg) -> None:
        raise AssertionError("nothing comes")

    nc = await connect(server.url, error_cb=tell)
    with pytest.raises(LocalProtocolError):
        await nc.subscribe(cb=take, **refused)
    assert not nc.pumps
    async with asyncio.timeout(10):
        await nc.drain()
    assert told == []


async def test_what_is_being_drained_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    """A lasting subscription that the server has ended is left alone once the connection is being drained."""
    monkeypatch.setattr("penstock.connection.subscription.AGAIN", 0.5)
    go_on, came = asyncio.Event(), asyncio.Event()
    may, may_not = 'subscribe: {deny: "nothing"}', 'subscribe: {deny: "kept"}'
    users = f"{{user: reader, password: pw, permissions: {{{may}}}}}, {{user: all, password: pw}}"

    async def slow(message: Msg) -> None:
        came.set()
        await go_on.wait()

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with relay(server) as wire:
            url = wire.url.replace("@", "reader:pw@")
            nc = await connect(url)
            await served(await nc.subscribe("slow", cb=slow), await nc.tap("kept", lambda *message: None, lasting=True))
            await nc.publish("slow", b"")
            await came.wait()
            await asyncio.to_thread(reload, server, may, may_not)
            await eventually(lambda: nc.asking_again, "the end of it")
            wire.record = True
            draining = asyncio.create_task(nc.drain())
            await eventually(lambda: nc.is_draining, "the beginning")
            await asyncio.to_thread(reload, server, may_not, may)
            await eventually(lambda: not nc.asking_again, "the end of asking")
            go_on.set()
            await draining
            assert b"UNSUB" in wire.sent
            assert b"\r\nSUB" not in b"\r\n" + wire.sent


async def test_draining_says_how_far_it_is(server: Server, unique: Callable[..., str]):
    """While it drains a connection takes no new subscription, but publishes and asks; then it is closed."""
    subject, service, seen = unique("drain"), unique("service"), []
    go_on = asyncio.Event()
    async with await connect(server.url) as other:

        async def serve(message: Msg) -> None:
            await message.respond(b"answer to " + message.data)

        await other.subscribe(service, cb=serve)
        await other.flush()
        nc = await connect(server.url)

        async def slow(message: Msg) -> None:
            await go_on.wait()
            with pytest.raises(DisconnectedError, match="is being drained"):
                await nc.subscribe(unique("late"))
            seen.append((nc.is_draining, nc.is_draining_pubs, nc.is_connected, nc.is_closed))
            seen.append((await nc.request(service, b"a first question", timeout=10)).data)

        await nc.subscribe(subject, cb=slow)
        await nc.publish(subject)
        await nc.flush()
        draining = asyncio.create_task(nc.drain())
        await eventually(lambda: nc.is_draining, "the draining beginning")
        await nc.drain()  # the second one leaves it to the first
        assert not nc.is_closed
        go_on.set()
        await draining
        assert seen == [(True, False, True, False), b"answer to a first question"]
        assert (nc.is_draining, nc.is_draining_pubs, nc.is_connected, nc.is_closed) == (False, False, False, True)


async def test_a_callback_that_never_ends_is_told(server: Server, unique: Callable[..., str]):
    """Draining a subscription whose callback hangs raises DeadlineError; draining the connection tells and closes."""
    told: list[Exception] = []

    async def on_error(error: Exception) -> None:
        told.append(error)

    async def forever(message: Msg) -> None:
        await asyncio.Event().wait()

    async with nothing_left_open():
        nc = await connect(server.url, error_cb=on_error, drain_timeout=0.2)
        for subject in (unique("hangs"), unique("hangs")):
            subscription = await nc.subscribe(subject, cb=forever)
            await nc.publish(subject)
        await nc.flush()
        with pytest.raises(DeadlineError, match=f"The callback of {subscription.subject} has not handled all"):
            await subscription.drain()
        await nc.drain()
        assert nc.is_closed
        assert isinstance(told[-1], TimeoutError)


async def test_draining_while_the_connection_is_gone(server: Server, unique: Callable[..., str]):
    """A subscription that is drained during an outage is not made again; a break while it drains is told."""
    subject = unique("drain")
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as nc:
        first, second = await nc.subscribe(subject), await nc.subscribe(subject)
        await nc.flush()
        wire.hold()
        draining = asyncio.create_task(first.drain())
        await asyncio.sleep(0)
        wire.refuse = True
        wire.cut()
        with pytest.raises(DisconnectedError):
            await draining
        await eventually(lambda: nc.is_reconnecting, "the outage")
        await second.drain()
        wire.release()
        wire.refuse = False
        await nc.flush(20)
        await nc.publish(subject, b"anybody?")
        await nc.flush()
        assert (first.delivered, second.delivered, nc.stats["in_msgs"]) == (0, 0, 0)


# -- closing from within -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "drain"])
async def test_a_subscription_may_end_its_connection(server: Server, unique: Callable[..., str], how: str):
    """`close` and `drain` in a callback return to it, and at once."""
    subject, after = unique("end"), asyncio.Event()
    began = time.monotonic()
    async with nothing_left_open():
        nc = await connect(server.url)

        async def last(message: Msg) -> None:
            await getattr(nc, how)()
            assert nc.is_closed
            after.set()

        await nc.subscribe(subject, cb=last)
        await nc.subscribe(subject, cb=last)
        await nc.publish(subject)
        async with asyncio.timeout(20):
            await after.wait()
    assert time.monotonic() - began < 4, "nobody waited for somebody who waits"


@pytest.mark.parametrize("which", ["error_cb", "disconnected_cb", "reconnected_cb", "closed_cb"])
async def test_a_callback_of_the_connection_may_close_it(server: Server, unique: Callable[..., str], which: str):
    """`close` in any of the connection's own callbacks returns to it, and at once."""
    after, made = asyncio.Event(), []
    began = time.monotonic()

    async def end(*_: Exception) -> None:
        await made[0].close()
        after.set()

    async def fails(message: Msg) -> None:
        raise ValueError("on purpose")

    async with relay(server) as wire, nothing_left_open():
        made.append(await connect(wire.url, reconnect_wait=0.02, **{which: end}))
        subject = unique("end")
        await made[0].subscribe(subject, cb=fails)
        await made[0].publish(subject)
        await made[0].flush()
        if which == "closed_cb":
            await made[0].close()
        elif which != "error_cb":
            wire.cut()
        async with asyncio.timeout(20):
            await after.wait()
        assert made[0].is_closed
    assert time.monotonic() - began < 4


async def test_callbacks_that_run_are_cancelled_by_close(server: Server, unique: Callable[..., str]):
    """Close does not wait for callbacks, of ended subscriptions neither: they get a cancellation, as nats-py's do."""
    cancelled = []

    async def slow(message: Msg) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.subject)
            raise

    async with nothing_left_open():
        nc = await connect(server.url)
        subjects = [unique("slow") for _ in range(3)]
        subscriptions = [
            await nc.subscribe(subject, cb=slow, max_msgs=number % 2) for number, subject in enumerate(subjects)
        ]
        for subject in subjects:
            await nc.publish(subject)
        await nc.flush()
        await subscriptions[0].unsubscribe()
        await nc.close()
        assert sorted(cancelled) == sorted(subjects)


async def test_closing_twice_and_at_once(server: Server):
    """Several that close a connection are all done when it is closed, and the callback is called once."""
    closed = []

    async def on_close() -> None:
        closed.append(1)

    nc = await connect(server.url, closed_cb=on_close)
    await asyncio.gather(*(nc.close() for _ in range(5)), nc.drain())
    await nc.close()
    assert closed == [1]
    assert nc.is_closed
    assert "closed" in repr(nc)


async def test_a_close_that_is_cancelled_goes_on(server: Server):
    """Whoever gives up waiting for the end does not stop it."""
    async with relay(server) as wire, nothing_left_open():
        nc = await connect(wire.url)
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await nc.close()
        assert nc.is_closed


# -- what is closed ----------------------------------------------------------------------------------------------------


async def _call(nc: Connection, name: str) -> Any:
    calls: dict[str, Callable[[], Any]] = {
        "publish": lambda: nc.publish("a"),
        "subscribe": lambda: nc.subscribe("a"),
        "tap": lambda: nc.tap("a", print),
        "request": lambda: nc.request("a"),
        "flush": nc.flush,
        "rtt": nc.rtt,
        "confirm": lambda: nc.confirm(nc.stretch),
        "standing": lambda: nc.standing(5),
        "stream_info": lambda: nc.jetstream().stream_info("S"),
    }
    return await calls[name]()


@pytest.mark.parametrize(
    "name", ["publish", "subscribe", "tap", "request", "flush", "rtt", "confirm", "standing", "stream_info"]
)
async def test_a_closed_connection_says_so(server: Server, name: str):
    """Every call on a closed connection raises DisconnectedError at once."""
    nc = await connect(server.url)
    await nc.close()
    began = time.monotonic()
    with pytest.raises(DisconnectedError) as caught:
        await _call(nc, name)
    assert time.monotonic() - began < 3
    assert caught.value.urls is not None


async def test_a_closed_connection_keeps_quiet_otherwise(server: Server, unique: Callable[..., str]):
    """Posting says False, sending raises, waiting for writes returns, states and figures can still be read."""
    nc = await connect(server.url)
    subscription = await nc.subscribe(unique("x"))
    await nc.publish(subscription.subject, b"12345")
    await nc.flush()
    await nc.close()
    assert nc.post(b"PUB a 0\r\n\r\n") is False
    with pytest.raises(DisconnectedError):
        nc.send("a")
    await nc.written()
    await nc.close()
    await nc.drain()
    await subscription.unsubscribe()
    await subscription.drain()
    assert (await subscription.next_msg()).data == b"12345", "what had come can be read"
    with pytest.raises(DisconnectedError, match="The connection was closed: no message comes any more"):
        await subscription.next_msg()
    assert (nc.stats["in_msgs"], nc.stats["out_msgs"], nc.stats["out_bytes"]) == (1, 1, 5)
    assert (nc.connected_url, dict(nc.server_info), nc.unsent, nc.pending_data_size) == (None, {}, 0, 0)
    assert (nc.is_connected, nc.is_reconnecting, nc.is_connecting, nc.is_draining) == (False, False, False, False)


async def test_whoever_waits_is_told_of_the_end(server: Server, unique: Callable[..., str]):
    """A request, a reader, an iteration and a future that wait when the connection closes do not wait any longer."""
    subject = unique("wait")
    nc = await connect(server.url)
    silent, read = await nc.subscribe(subject), await nc.subscribe(unique("x"))
    wanted: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    await nc.subscribe(unique("y"), future=wanted)

    async def iterate() -> list[Msg]:
        return [message async for message in read.messages]

    waiting = [
        asyncio.create_task(nc.request(subject, timeout=60)),
        asyncio.create_task(read.next_msg(timeout=60)),
        asyncio.create_task(read.next_msg(timeout=None)),
        asyncio.create_task(iterate()),
    ]
    await eventually(lambda: silent.pending_msgs == 1, "the question arriving")
    async with asyncio.timeout(20):
        await nc.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DisconnectedError, DisconnectedError, DisconnectedError, list]
    assert outcomes[3] == []
    assert wanted.cancelled()
