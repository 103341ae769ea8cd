"""What a connection makes of a peer that lets it in and misbehaves, or that is not the server it was before."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.connection import Msg, connect
from penstock.errors import DeadlineError, DisconnectedError, LinkError, UnreachableError
from tests.live.peer import Talk, info, peer
from tests.support import eventually


async def test_a_server_that_hangs_up_as_it_lets_us_in():
    """A wire that is gone before its opening was noticed does not count as one that stands."""

    async def play(talk: Talk) -> None:
        await talk.welcome()
        if talk.number > 2:
            await talk.serve()

    async with peer(play) as (url, talks), asyncio.timeout(20):
        failed: list[type[Exception]] = []
        while True:  # whether the end comes with the answer or a moment later is chance
            try:
                nc = await connect(url, reconnect_wait=0.05)
                break
            except LinkError as error:
                failed.append(type(error))
        await eventually(lambda: len(talks) == 3 and nc.is_connected, "the third one being found")
        await nc.flush(10)
        assert set(failed) <= {DisconnectedError}
        await nc.close()


async def test_garbage_right_behind_the_login_is_told():
    """Bytes that are no protocol, in one piece with the answer to our login, fail the attempt."""

    async def play(talk: Talk) -> None:
        await talk.welcome(b"NONSENSE\r\n")
        await talk.hear(b"never")

    async with peer(play) as (url, _):
        with pytest.raises(UnreachableError, match="is not a NATS server: An unknown command"):
            await connect(url)


@pytest.mark.parametrize("when", ["before the greeting", "before the login", "before the answer"])
async def test_messages_of_a_peer_that_has_not_let_us_in_reach_nobody(when):
    """Whoever stands in the server's place at a reconnection cannot hand us messages before it took our login."""
    forged = b"MSG news 1 6\r\nforged\r\n"

    async def play(talk: Talk) -> None:
        if talk.number == 2:
            if when == "before the greeting":
                await talk.say(forged, info())
            elif when == "before the login":
                await talk.say(info(), forged)
            else:
                await talk.say(info())
                await talk.hear(b"PING\r\n")
                await talk.say(forged, b"PONG\r\n")
            await talk.hear(b"never")
        await talk.welcome()
        await talk.hear(b"SUB news 1\r\n")
        if talk.number == 1:
            return
        await talk.say(b"MSG news 1 7\r\ngenuine\r\n")
        await talk.serve()

    failures: list[str] = []

    async def failed(error: Exception) -> None:
        failures.append(str(error))

    async with peer(play) as (url, talks):
        nc = await connect(url, reconnect_wait=0.02, error_cb=failed)
        news = await nc.subscribe("news")
        assert (await news.next_msg(timeout=10)).data == b"genuine"
        assert news.delivered == 1
        assert len(talks) == 3
        assert "is not a NATS server" in failures[-1]
        await nc.close()


async def test_a_reading_that_is_held_up_is_no_dead_server():
    """Pings that cannot be answered because a tap holds up the reading do not count against the server."""
    release = asyncio.Event()

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"SUB held 1\r\n")
        await talk.say(b"MSG held 1 3\r\none\r\nMSG held 1 3\r\ntwo\r\n")
        await talk.serve()

    got: list[bytes] = []

    def taker(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> object:
        got.append(payload)
        return release.wait()

    async with peer(play) as (url, talks):
        nc = await connect(url, ping_interval=0.05)
        await nc.tap("held", taker)
        await eventually(lambda: got == [b"one"], "the first message")
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.4  # eight intervals
        while loop.time() < until:
            await asyncio.sleep(0.02)
            assert nc.is_connected
        release.set()
        await eventually(lambda: got == [b"one", b"two"], "the second message")
        await nc.flush(10)
        assert (nc.stretch, len(talks)) == (1, 1)
        await nc.close()


# -- a peer that does not read -----------------------------------------------------------------------------------------


async def deaf(talk: Talk) -> None:
    """Let in, and read nothing more."""
    await talk.welcome()
    await asyncio.Event().wait()


async def test_publishing_waits_for_a_peer_that_does_not_read():
    """What is published and not taken stays bounded, whether a program publishes in a loop or now and then."""
    async with peer(deaf) as (url, talks):
        nc = await connect(url)
        published = 0

        async def publish(turns: bool) -> None:
            nonlocal published
            while True:
                await nc.publish("flood", bytes(10_000))
                published += 1
                if turns:
                    await asyncio.sleep(0)

        publishers = [asyncio.create_task(publish(number % 2 == 0)) for number in range(8)]
        before = -1
        while before != published:  # until nobody gets any further
            before = published
            await asyncio.sleep(0.1)
        assert published > 100
        assert nc.unsent < 2 * 1024 * 1024
        assert nc.pending_data_size < 128 * 1024
        for task in publishers:
            task.cancel()
        outcomes = await asyncio.gather(*publishers, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        talks[-1].abort()  # closing would wait for it to read
        await nc.close()


async def test_answering_waits_for_a_peer_that_does_not_read():
    """A service whose answers are not taken does not pile them up: its callback waits, and messages in its queue."""

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"SUB service 1\r\n")
        for _ in range(2000):
            await talk.say(b"MSG service 1 answers 2\r\nhi\r\n")
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async with peer(play) as (url, talks):
        nc = await connect(url, reconnect=False)

        async def serve(message: Msg) -> None:
            await message.respond(bytes(10_000))

        service = await nc.subscribe("service", cb=serve)
        await eventually(lambda: service.delivered == 2000, "all requests")
        assert nc.unsent < 2 * 1024 * 1024
        assert service.pending_msgs > 1000
        talks[-1].abort()
        await nc.close()


async def test_what_waits_for_a_peer_that_does_not_read_keeps_its_deadline():
    """A request and a flush end in time, and a publisher goes on when the connection breaks."""
    async with peer(deaf) as (url, talks):
        nc = await connect(url, reconnect_wait=0.05)
        while nc.unsent < 1024 * 1024:
            nc.send("flood", bytes(100_000))
            await asyncio.sleep(0)
        publishing = asyncio.create_task(nc.publish("flood", b"x"))
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineError, match="No answer on service in time"):
                await nc.request("service", bytes(100_000), timeout=0.2)
            with pytest.raises(DeadlineError, match="did not confirm"):
                await nc.flush(0.2)
            assert not publishing.done()
            talks[0].abort()
            await publishing
            await eventually(lambda: nc.stretch == 2, "the connection being made again")
        talks[-1].abort()  # closing would wait for it to read
        await nc.close()


# -- a peer that talks without end -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'odd'\r\n",
        b"MSG x 9 1\r\nx\r\n",
        info(connect_urls=["a.example:1"]),
    ],
    ids=["PING", "PONG", "+OK", "-ERR", "MSG", "INFO"],
)
async def test_a_flood_keeps_nobody_from_their_turn(line: bytes, caplog: pytest.LogCaptureFixture):
    """While a server says something without end, timers fire, deadlines are kept, and the log is not filled."""
    caplog.set_level(logging.WARNING, logger="penstock.connection")

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"PUB service")
        while True:
            await talk.say(line * 2000)

    async with peer(play) as (url, talks):
        nc = await connect(url, reconnect=False)
        loop = asyncio.get_running_loop()
        longest, last, begun = 0.0, loop.time(), loop.time()
        asking = asyncio.create_task(nc.request("service", timeout=0.5))
        while not asking.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, loop.time() - last), loop.time()
        with pytest.raises(DeadlineError):
            await asking
        assert loop.time() - begun < 3
        assert longest < 0.5
        assert nc.is_connected
        assert len(caplog.records) < 150
        talks[0].abort()
        await nc.close()


async def test_errors_that_are_not_logged_are_counted(caplog: pytest.LogCaptureFixture):
    """A server that complains without end fills no log; how much was left out is said; the callback gets them all."""
    caplog.set_level(logging.WARNING, logger="penstock.connection")
    told: list[Exception] = []

    async def on_error(error: Exception) -> None:
        told.append(error)

    go_on = asyncio.Event()

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.say(b"-ERR 'odd'\r\n" * 500)
        await go_on.wait()
        await talk.say(b"-ERR 'last'\r\n")
        await talk.serve()

    async with peer(play) as (url, _):
        nc = await connect(url, error_cb=on_error)
        await eventually(lambda: len(told) == 500, "all of them")
        assert caplog.text.count("odd") == 20
        assert nc.stats["errors_received"] == 500
        nc._logging_since -= 1.0  # as if the second had passed for which the log is bounded
        go_on.set()
        await eventually(lambda: len(told) == 501, "the last one")
        assert "480 more errors were not logged." in caplog.text
        assert "last" in caplog.text
        await nc.close()
