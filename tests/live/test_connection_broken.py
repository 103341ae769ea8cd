"""Connections that break under way: what is kept and sent then, what is told at once, what may have been lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.connection import Connection, Msg, api_request, connect
from penstock.errors import DeadlineError, DisconnectedError, LocalProtocolError
from penstock.server import Server
from tests.live.cable import Relay, relay
from tests.live.peer import Talk, info, peer
from tests.support import eventually

Unique = Callable[..., str]


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[Relay]:
    async with relay(server) as made:
        yield made


@pytest.fixture
async def nc(wire: Relay) -> AsyncIterator[Connection]:
    async with await connect(wire.url, reconnect_wait=0.02) as made:
        yield made


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as made:
        yield made


async def break_off(nc: Connection, wire: Relay) -> None:
    """Cut the wire, let nobody in, and wait until the connection has noticed."""
    wire.refuse = True
    wire.cut()
    await eventually(lambda: nc.is_reconnecting, "the break being noticed")


# -- publishing meanwhile ----------------------------------------------------------------------------------------------


async def test_what_is_published_meanwhile_is_kept_and_sent(nc: Connection, wire: Relay, other: Connection, unique):
    """Messages that are published while the connection is away arrive, once and in order, when it is back."""
    subscription = await other.subscribe(unique("kept"))
    await other.flush()
    await break_off(nc, wire)
    for number in range(1000):
        await nc.publish(subscription.subject, b"%d" % number, headers={"N": str(number)} if number % 2 else None)
    assert nc.pending_data_size > 10_000
    await nc.written()  # nothing to wait for
    wire.refuse = False
    await nc.flush(20)
    await other.flush()
    assert [(await subscription.next_msg()).data for _ in range(1000)] == [b"%d" % number for number in range(1000)]
    assert (nc.stretch, nc.pending_data_size) == (2, 0)


async def test_only_so_much_is_kept(nc: Connection, wire: Relay, other: Connection, unique):
    """Up to 8 MiB wait for the connection; what is more is refused, and said so; what was kept arrives."""
    subscription = await other.subscribe(unique("kept"))
    await other.flush()
    await break_off(nc, wire)
    kept = 8 * 1024 * 1024 // 100_100
    for _ in range(kept):
        await nc.publish(subscription.subject, bytes(100_000))
    with pytest.raises(DisconnectedError, match="bytes wait already for it to come back") as caught:
        await nc.publish(subscription.subject, bytes(100_000))
    assert "Is the server still running?" in caught.value.remedy
    assert nc.pending_data_size <= 8 * 1024 * 1024
    await nc.publish(subscription.subject, b"a small one still fits")
    with pytest.raises(DisconnectedError):
        await nc.request(subscription.subject, bytes(100_000), timeout=10)
    wire.refuse = False
    await nc.flush(20)
    await other.flush()
    assert subscription.delivered == kept + 1


async def test_sizes_are_checked_against_the_server_that_was_there(other: Connection):
    """While there is no connection the limit is that of the last server, not a guess; a new INFO changes it."""
    change = asyncio.Event()

    async def play(talk: Talk) -> None:
        if talk.number == 1:
            await talk.welcome(max_payload=4_000_000)
            await change.wait()
            await talk.say(info(max_payload=500_000))
            await talk.hear(b"PING\r\n")
            await talk.say(b"PONG\r\n")

    async with peer(play) as (url, _):
        nc = await connect(url, reconnect_wait=0.05)
        assert nc.max_payload == 4_000_000
        await nc.publish("large", bytes(3_999_999))
        change.set()
        await eventually(lambda: nc.max_payload == 500_000, "the new limit")
        with pytest.raises(LocalProtocolError, match=r"larger than the server takes \(500000\)"):
            await nc.publish("large", bytes(500_001))
        await nc.flush()
        await eventually(lambda: nc.is_reconnecting, "the break")
        assert nc.max_payload == 500_000
        with pytest.raises(LocalProtocolError, match=r"larger than the server takes \(500000\)"):
            await nc.publish("large", bytes(500_001))
        await nc.close()


async def test_posted_frames_are_of_one_wire_only(nc: Connection, wire: Relay, other: Connection, unique):
    """Frames that were posted and not yet written when the wire broke are gone; published ones beside them are not."""
    subject = unique("posted")
    subscription = await other.subscribe(subject)
    await other.flush()
    name = subject.encode()
    nc.send(subject, b"sent 1")
    assert nc.post(b"PUB %b 6\r\nposted\r\n" % name)
    nc.send(subject, b"sent 2")
    assert nc.post(b"PUB %b 6\r\nposted\r\nPUB %b 6\r\nposted\r\n" % (name, name))
    nc.send(subject, b"sent 3")
    wire.refuse = True
    nc._lifeline.wire._transport.abort()  # before this turn of the loop ends, which would write them
    nc._lifeline.wire.connection_lost(None)
    assert nc.is_reconnecting
    assert nc.post(b"PUB %b 6\r\nposted\r\n" % name) is False
    wire.refuse = False
    await nc.flush(20)
    await other.flush()
    assert [(await subscription.next_msg()).data for _ in range(3)] == [b"sent 1", b"sent 2", b"sent 3"]
    assert subscription.pending_msgs == 0


async def test_a_subscription_that_ends_meanwhile_is_not_made_again(
    nc: Connection, wire: Relay, other: Connection, unique
):
    """What was unsubscribed while the connection was away stays so; what was subscribed then begins with it."""
    subject = unique("meanwhile")
    ended, kept = await nc.subscribe(subject), await nc.subscribe(subject)
    await nc.flush()
    fresh = await nc.subscribe(subject)
    wire.refuse = True
    nc._lifeline.wire._transport.abort()  # with the last SUB not yet written
    nc._lifeline.wire.connection_lost(None)
    late, gone = await nc.subscribe(subject), fresh
    await gone.unsubscribe()
    await ended.unsubscribe()
    wire.refuse = False
    await nc.flush(20)
    await other.publish(subject, b"x")
    await other.flush()
    await nc.flush()
    assert (ended.delivered, gone.delivered, kept.delivered, late.delivered) == (0, 0, 1, 1)
    assert nc.stats["in_msgs"] == 2, "the server knows of no other"


async def test_a_limit_counts_over_a_break(nc: Connection, wire: Relay, other: Connection, unique):
    """A subscription that ends after so many messages has had some of them before the break, and gets the rest."""
    subject = unique("limit")
    subscription = await nc.subscribe(subject, max_msgs=5)
    await nc.flush()
    for number in range(2):
        await other.publish(subject, b"%d" % number)
    await eventually(lambda: subscription.delivered == 2, "the first ones")
    wire.cut()
    await eventually(lambda: nc.stretch == 2, "the connection coming back")
    await nc.flush(20)
    for number in range(2, 9):
        await other.publish(subject, b"%d" % number)
    assert [message.data async for message in subscription.messages] == [b"0", b"1", b"2", b"3", b"4"]
    await other.flush()
    await nc.flush()
    assert nc.stats["in_msgs"] == 5, "the server stopped, too"


# -- stretches ---------------------------------------------------------------------------------------------------------


async def test_a_stretch_is_confirmed_or_broken(nc: Connection, wire: Relay, unique):
    """`confirm` of a stretch that is over raises at once; `broken` is done with the reason when a stretch ends."""
    first, broken = nc.stretch, nc.broken
    await nc.publish(unique("x"), b"x")
    await nc.confirm(first)
    assert not broken.done()
    wire.hold()
    waiting = asyncio.create_task(nc.confirm(first, 60))
    with pytest.raises(DeadlineError, match=r"did not confirm what was sent within 0\.05 s"):
        await nc.confirm(first, 0.05)
    await break_off(nc, wire)
    with pytest.raises(DisconnectedError, match="is gone"):
        await waiting
    assert isinstance(await asyncio.shield(broken), DisconnectedError)
    assert nc.broken is broken, "the next stretch has not begun"
    with pytest.raises(DisconnectedError, match="broke since this was sent"):
        await nc.confirm(first)
    with pytest.raises(DeadlineError, match=r"did not come back within 0\.1 s"):
        await nc.standing(0.1)
    with pytest.raises(DeadlineError):
        await nc.flush(0.1)
    wire.release()
    wire.refuse = False
    await nc.standing(20)
    assert nc.stretch == first + 1
    assert nc.broken is not broken
    assert not nc.broken.done()
    await nc.confirm(nc.stretch)
    with pytest.raises(DisconnectedError, match="broke since this was sent"):
        await nc.confirm(first)


async def test_a_stretch_that_ends_in_garbage_is_disconnected():
    """Whatever ends a stretch, what was under way in it gets DisconnectedError, with the reason as its cause."""

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"PING\r\n")
        await talk.say([b"NONSENSE\r\n", info(max_payload="much"), b"MSG a b c\r\n"][talk.number - 1])
        await talk.hear(b"never")

    async with peer(play) as (url, _):
        nc = await connect(url, reconnect_wait=0.02)
        for number, says in enumerate(("An unknown command", "its INFO has max_payload as str", "not a number"), 1):
            broken = nc.broken
            with pytest.raises(DisconnectedError, match=f"broke: .*{says}") as caught:
                await nc.flush(20)
            assert caught.value.__cause__ is not None
            assert (await asyncio.shield(broken)) is caught.value
            if number < 3:
                await eventually(lambda wanted=number: nc.stretch == wanted + 1, "the next stretch")
        assert nc.last_error is not None
        await nc.close()


async def test_requests_survive_a_break_if_the_answer_does(nc: Connection, wire: Relay, other: Connection, unique):
    """An answer that is sent after the connection is back reaches who asked; the inbox is subscribed again."""
    subject, go_on = unique("service"), asyncio.Event()

    async def answer(message: Msg) -> None:
        await go_on.wait()
        await message.respond(b"late, and here")

    await other.subscribe(subject, cb=answer)
    await other.flush()
    asking = asyncio.create_task(nc.request(subject, timeout=30))
    await eventually(lambda: other.stats["in_msgs"] == 1, "the question arriving")
    wire.cut()
    await eventually(lambda: nc.stretch == 2, "the connection coming back")
    await nc.flush(20)
    go_on.set()
    assert (await asking).data == b"late, and here"


async def test_a_question_is_asked_again_after_a_break(nc: Connection, wire: Relay):
    """What only asks is asked again on the new connection at once; what changes something is not."""
    assert "streams" in await api_request(nc, "INFO")
    wire.hold()
    asking = asyncio.create_task(api_request(nc, "INFO", timeout=60))
    changing = asyncio.create_task(api_request(nc, "STREAM.PURGE.NONE", timeout=1))
    await asyncio.sleep(0.01)
    wire.cut()
    wire.release()
    async with asyncio.timeout(20):
        assert "streams" in await asking
    with pytest.raises(DeadlineError, match=r"in time \(1 s\)"):
        await changing


async def test_a_question_tells_the_whole_time(nc: Connection, unique, monkeypatch):
    """A question that was asked several times says how long all of them took, not only the last one."""
    monkeypatch.setattr("penstock.wire.jetstream.questions.AGAIN", 0.1)
    async with await connect(nc.options.replace(api_prefix=unique("silent"), token=nc.options.token)) as asker:
        silent = await asker.subscribe(f"{asker.options.js_prefix}.>")
        with pytest.raises(DeadlineError, match=r"STREAM.INFO.S in time \(0.35 s\)") as caught:
            await api_request(asker, "STREAM.INFO.S", timeout=0.35)
        assert caught.value.seconds == 0.35
        await asker.flush()
        assert silent.delivered == 4


async def test_pings_find_a_server_that_is_silent():
    """A server that answers no ping counts as gone after two of them; one that answers is kept."""

    async def play(talk: Talk) -> None:
        await talk.welcome()
        if talk.number == 1:
            await talk.hear(b"never")
        await talk.serve()

    async with peer(play) as (url, talks):
        nc = await connect(url, ping_interval=0.05, reconnect_wait=0.01)
        await eventually(lambda: nc.stretch == 2, "the silent one being left")
        assert bytes(talks[0].heard).count(b"PING") == 3, "the login's, and two"
        assert "left 2 pings unanswered" in str(nc.last_error)
        await eventually(lambda: bytes(talks[1].heard).count(b"PING") > 8, "a few pings")
        assert nc.stretch == 2
        await nc.close()


async def test_a_server_that_closes_at_once_is_not_stormed():
    """A server that lets in and hangs up again and again is tried with a pause, not as fast as it goes."""

    async def play(talk: Talk) -> None:
        await talk.welcome()

    loop = asyncio.get_running_loop()
    async with peer(play) as (url, talks):
        nc = None
        while nc is None:
            try:
                nc = await connect(url, reconnect_wait=0.2)
            except DisconnectedError:
                talks.clear()
        began = loop.time()
        await eventually(lambda: len(talks) >= 6, "some attempts")
        assert loop.time() - began > 0.5
        await nc.close()


@pytest.mark.parametrize("size", [0, 10, 1000, 100_000, 1_000_000])
async def test_messages_that_come_in_pieces(size: int):
    """However the bytes of messages and of what lies between them are cut, the same messages arrive."""
    import random

    chance = random.Random(size)
    payload = chance.randbytes(size)
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    stream = b"".join(
        [
            b"MSG a 1 %d\r\n%b\r\n" % (size, payload),
            b"PING\r\n",
            b"HMSG a 1 reply %d %d\r\n%b%b\r\n" % (len(block), len(block) + size, block, payload),
            b"+OK\r\nPONG\r\n",
            b"MSG gone 77 %d\r\n%b\r\n" % (size, payload),
            b"msg\ta  1\treply   %d\r\n%b\r\n" % (size, payload),
            info(),
            b"MSG a 1 %d\r\n%b\r\n" % (size, payload),
        ]
    )

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"SUB a 1\r\n")
        place = 0
        while place < len(stream):
            step = chance.choice([1, 2, 7, 100, 5000, 300_000]) if size > 1000 else chance.choice([1, 2, 7, 30])
            await talk.say(stream[place : place + step])
            await asyncio.sleep(0)
            place += step
        await talk.serve()

    async with peer(play) as (url, talks):
        nc = await connect(url)
        subscription = await nc.subscribe("a")
        got = [await subscription.next_msg(timeout=20) for _ in range(4)]
        assert [message.data == payload for message in got] == [True] * 4
        assert [message.reply for message in got] == ["", "reply", "reply", ""]
        assert [message.headers for message in got] == [None, {"A": "b"}, None, None]
        await nc.flush()
        assert b"PONG\r\n" in talks[0].heard
        assert (nc.stretch, nc.stats["in_msgs"]) == (1, 4)
        await nc.close()
