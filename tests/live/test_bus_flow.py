"""Readers that are slow, leave or are cancelled, handlers that are late, and the window that is beyond the seed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from penstock.bus import Request, Response
from penstock.bus.window import Offer
from penstock.errors import (
    DeadlineError,
    HandlerError,
    InputError,
    LocalProtocolError,
    NoConsumerError,
    SlowConsumerError,
)
from tests.live.bus_peers import WINDOWS, reached, read


async def test_first_packet_times_out(bus_pair):
    """Where the first packet does not come in time the request fails; the late handler learns that nobody reads."""
    async with bus_pair() as bus:
        late = asyncio.Event()

        async def handler(request, sender):
            await late.wait()
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")

        async with bus.served(handler):
            with pytest.raises(DeadlineError, match=r"nothing for 0\.3 s"):
                await bus.request(timeout=0.3)
            late.set()
            await reached(lambda: bus.caught)
        assert isinstance(bus.caught[0], NoConsumerError)


async def test_each_request_ends_at_its_own_time(bus_pair):
    """One timer serves all that wait, and each is told at its own deadline, in whatever order they were sent."""
    async with bus_pair() as bus:
        stop, ended = asyncio.Event(), []

        async def handler(request, sender):
            await stop.wait()
            await sender.respond(Response())

        async def ask(timeout: float) -> None:
            try:
                assert (await bus.request(timeout=timeout)).response is not None
            except DeadlineError as error:
                ended.append(error.seconds)

        async with bus.served(handler):
            asking = [asyncio.create_task(ask(timeout)) for timeout in (60.0, 0.9, 0.3, 0.6)]
            await reached(lambda: len(ended) == 3)
            stop.set()
            await asyncio.gather(*asking)
        assert ended == [0.3, 0.6, 0.9]
        assert bus.asking.conversations == 0


async def test_an_element_that_is_waited_for_is_taken_as_it_comes(bus_pair):
    """Who waits for an element takes it as it comes; who does not wait holds the handler, one ahead at most."""
    async with bus_pair(asking_window=0) as bus:
        sent = 0

        async def handler(request, sender):
            nonlocal sent
            async with sender.sections() as out:
                out.array("a")
                for sent in range(1, 6):
                    await out.send(b"%d" % sent)

        async with bus.served(handler):
            reply = await bus.request()
            async for section in reply.sections():
                for number in range(1, 6):
                    waiting = asyncio.create_task(anext(section))
                    assert (await waiting).data == b"%d" % number
                    await bus.asking._mail.nc.flush()
                    await bus.serving._mail.nc.flush()
                    assert sent <= number + 1


@WINDOWS
async def test_a_later_packet_times_out(bus_pair, window: int):
    """Where a packet in mid-stream does not come in time the reader gets the error, and the handler NoConsumer."""
    async with bus_pair(asking_window=window) as bus:
        late = asyncio.Event()

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")
                await late.wait()
                for _ in range(200):
                    await out.send(b"2")

        async with bus.served(handler):
            reply, seen = await bus.request(timeout=0.6), []

            async def reader() -> None:
                async for section in reply.sections():
                    async for element in section:
                        seen.append(element.data)

            with pytest.raises(DeadlineError):
                await reader()
            late.set()
            await reached(lambda: bus.caught)
        assert seen == [b"1"]
        assert isinstance(bus.caught[0], NoConsumerError)


@WINDOWS
@pytest.mark.parametrize("kind", ["array", "map"])
async def test_cancelling_the_reader(bus_pair, window: int, kind: str):
    """A reader that is cancelled while it waits for the next element of a section tells the handler."""
    async with bus_pair(asking_window=window) as bus:
        late, seen = asyncio.Event(), asyncio.Event()

        async def handler(request, sender):
            async with sender.sections() as out:
                getattr(out, kind)("s")
                name = "n" if kind == "map" else None
                await out.send(b"1", name=name)
                await late.wait()
                while True:
                    await out.send(b"2", name=name)

        async def reader() -> None:
            async for section in (await bus.request()).sections():
                async for _ in section:
                    seen.set()

        async with bus.served(handler):
            task = asyncio.create_task(reader())
            await seen.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            late.set()
            await reached(lambda: bus.caught)
        assert isinstance(bus.caught[0], NoConsumerError)


@WINDOWS
@pytest.mark.parametrize("way", ["break", "close", "with", "raise", "bus", "before"])
async def test_leaving_early(bus_pair, window: int, way: str):
    """However a reader leaves early, the handler gets NoConsumer, and every later send raises it again."""
    async with bus_pair(asking_window=window) as bus:
        again = []

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                try:
                    while True:
                        await out.send(b"1")
                except NoConsumerError as error:
                    with pytest.raises(NoConsumerError) as caught:
                        await out.send(b"2")
                    again.append(caught.value is error)
                    raise

        async with bus.served(handler):
            reply = await bus.request()
            if way == "break":
                async for section in reply.sections():
                    await anext(section)
                    break
            elif way == "close":
                async for section in reply.sections():
                    await anext(section)
                    await reply.close()
                    assert [item async for item in section] == []
            elif way == "with":
                async with reply:
                    pass
            elif way == "raise":
                with suppress(KeyError):
                    async for _ in reply.sections():
                        raise KeyError
            elif way == "bus":
                await bus.asking.close()
            else:
                await reply.close()
            await reached(lambda: bus.caught)
        assert isinstance(bus.caught[0], NoConsumerError)
        assert again == [True]


@WINDOWS
@pytest.mark.parametrize("kind", ["object", "array", "map", "next"])
async def test_slow_reader(bus_pair, window: int, kind: str):
    """A reader slower than the formula allows gets the error, and the handler SlowConsumer.

    With K = 400, 50 bytes a millisecond, and next to no grace, as in the reference's own tests.
    """
    async with bus_pair(asking_window=window, asking_kbits=400, asking_grace=0.05) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                if kind == "object":
                    for _ in range(100):
                        await out.object("o", b"x" * 1000)
                else:
                    getattr(out, "array" if kind == "next" else kind)("s")
                    for _ in range(100):
                        await out.send(b"x" * 1000, name="n" if kind == "map" else None)

        async with bus.served(handler):
            reply = await bus.request()

            async def reader() -> None:
                async for section in reply.sections():
                    if kind == "next":
                        await anext(section)
                    await reached(lambda: bus.caught)
                    async for _ in section:
                        pass

            with pytest.raises(SlowConsumerError, match="too slowly") as caught:
                await reader()
            await reached(lambda: bus.caught)
        assert isinstance(bus.caught[0], SlowConsumerError)
        size = caught.value.size
        assert 1000 <= size <= 1010
        assert caught.value.seconds == pytest.approx(size / 50_000 + 0.05)


@WINDOWS
async def test_a_reader_more_patient_than_the_handler(bus_pair, window: int):
    """A handler that gives a silent reader up says so in Close: the reader gets what was sent, then the reason."""
    async with bus_pair(asking_window=window, asking_grace=60, grace=0.1) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                for number in range(500):
                    await out.send(number)

        async with bus.served(handler):
            reply, seen = await bus.request(timeout=60), []

            async def reader() -> None:
                async for section in reply.sections():
                    async for element in section:
                        seen.append(element.json())
                        if len(seen) == 100:
                            await reached(lambda: bus.caught)

            with pytest.raises(HandlerError, match="gave no sign"):
                await reader()
        assert isinstance(bus.caught[0], DeadlineError)
        assert seen == list(range(len(seen)))
        assert len(seen) == 100 + max(window, 1)


@pytest.mark.parametrize("taken", [2, 5])
async def test_the_end_of_the_block_means_that_all_was_taken(bus_pair, taken: int):
    """With a window too, a handler that leaves its block without an error knows that every element was taken."""
    async with bus_pair() as bus:
        left = asyncio.Event()

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                for number in range(5):
                    await out.send(number)
            left.set()

        async with bus.served(handler) as service:
            reply = await bus.request()
            async for section in reply.sections():
                for number in range(taken):
                    assert (await anext(section)).json() == number
                assert not left.is_set() or taken == 5
                break
            await reached(lambda: not service.active)
        assert left.is_set() == (taken == 5)
        assert [type(error) for error in bus.caught] == ([] if taken == 5 else [NoConsumerError])


@WINDOWS
async def test_a_forgotten_reply_ends_by_itself(bus_pair, window: int):
    """A reply that nobody reads is given up when its time is over; nothing stays behind."""
    async with bus_pair(asking_window=window, asking_grace=0.1) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                for _ in range(1000):
                    await out.send(b"1")

        async with bus.served(handler):
            reply = await bus.request()
            await reached(lambda: bus.caught and not bus.asking.conversations)
        assert isinstance(bus.caught[0], SlowConsumerError)
        assert isinstance(reply.error, SlowConsumerError)


async def test_two_readers(bus_pair):
    """Two tasks that read one reply are told so."""
    async with bus_pair() as bus:
        stop = asyncio.Event()

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")
                await stop.wait()

        async with bus.served(handler):
            reply = await bus.request()
            first = asyncio.create_task(read(reply))
            await reached(lambda: reply._waiter is not None)
            with pytest.raises(InputError, match="Two readers"):
                await read(reply)
            stop.set()
            await first


# -- beyond the seed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serving", [0, 8, 200])
async def test_window_bounds_what_is_in_flight(bus_pair, serving: int):
    """The handler runs ahead of a paused reader by the smaller window of both, and not further; nothing is lost."""
    async with bus_pair(asking_window=32, window=serving) as bus:
        sent, ahead = 0, min(32, serving)

        async def handler(request, sender):
            nonlocal sent
            async with sender.sections() as out:
                out.array("a")
                for number in range(500):
                    await out.send(number)
                    sent += 1

        async with bus.served(handler) as service:
            reply, seen = await bus.request(), []
            async for section in reply.sections():
                async for element in section:
                    seen.append(element.json())
                    if len(seen) == 100:
                        await reached(lambda: sent == 100 + ahead or not serving)
                        await bus.serving._mail.nc.flush()
                        await bus.asking._mail.nc.flush()
                        # In the plain protocol an element counts as sent when it was taken.
                        assert sent <= 100 + ahead
                        assert len(reply._units) <= max(ahead, 1)
                        assert service.active == 1
            assert seen == list(range(500))
            assert reply.windowed == bool(serving)


async def test_window_bounds_bytes(bus_pair):
    """The bytes in flight are bounded, too."""
    async with bus_pair(asking_window=1000, asking_window_bytes=64 * 1024) as bus:
        sent = 0

        async def handler(request, sender):
            nonlocal sent
            async with sender.sections() as out:
                out.array("a")
                for _ in range(100):
                    await out.send(bytes(10_000))
                    sent += 1

        async with bus.served(handler):
            reply, count = await bus.request(), 0
            async for section in reply.sections():
                async for _ in section:
                    count += 1
                    if count == 10:
                        await reached(lambda: sent >= 16)
                        await bus.asking._mail.nc.flush()
                        assert sum(map(len, reply._units)) <= 64 * 1024
            assert count == 100


@pytest.mark.parametrize("size", [256 * 1024, 1 << 20, 5_000_000])
async def test_large_elements_travel_in_pieces(bus_pair, bus_connections, size: int):
    """Elements larger than a message may be travel in pieces, between small ones, whatever kind of section."""
    big = bytes(range(256)) * (size // 256) + b"end"
    assert bus_connections[0].max_payload == 1 << 20
    async with bus_pair() as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                await out.object("o", big, path=["p"])
                out.map("m")
                await out.send(big, name="big")
                await out.send(b"small", name="small")
                await out.send(big + b"!", name="big")
                out.array("a")
                await out.send(big)

        async with bus.served(handler):
            assert await read(await bus.request()) == [
                ("object", "o", ["p"], [(None, big)]),
                ("map", "m", [], [("big", big), ("small", b"small"), ("big", big + b"!")]),
                ("array", "a", [], [(None, big)]),
            ]


async def test_elements_that_are_too_large(bus_pair):
    """What the other side cannot take is refused before anything of it is sent; the reply goes on."""
    async with bus_pair(asking_max_element=1 << 20) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                with pytest.raises(LocalProtocolError, match="max_element"):
                    await out.send(bytes(2 << 20))
                await out.send(b"fits")

        async with bus.served(handler):
            assert await read(await bus.request()) == [("array", "a", [], [(None, b"fits")])]
        assert not bus.caught
    async with bus_pair(asking_window=0) as bus:

        async def plain(request, sender):
            if request.resource == "response":
                with pytest.raises(LocalProtocolError, match="as sections"):
                    await sender.respond(Response(data=bytes(2 << 20)))
                await sender.respond(Response(data=b"fits"))
                return
            async with sender.sections() as out:
                out.array("a")
                with pytest.raises(LocalProtocolError, match="in pieces"):
                    await out.send(bytes(2 << 20))
                await out.send(b"fits")

        async with bus.served(plain):
            assert await read(await bus.request()) == [("array", "a", [], [(None, b"fits")])]
            assert (await bus.request(resource="response")).response.data == b"fits"
            with pytest.raises(LocalProtocolError, match="the server takes"):
                await bus.request(body=bytes(1 << 20))
        assert not bus.caught


async def test_offer_is_in_a_header(bus_pair, bus_connections):
    """The window is offered in a header and nowhere else; without a window there is no header at all."""
    for window in (0, 64):
        async with bus_pair(asking_window=window) as bus:
            watch = await bus_connections[1].subscribe(f"{bus.queue}0")
            await bus_connections[1].flush()
            with pytest.raises(DeadlineError):
                await bus.request(timeout=0.05)
            message = await watch.next_msg(timeout=5)
            await watch.unsubscribe()
            assert message.data == Request(bus.queue).encode()
            offer = {"Penstock-Bus": Offer(64, 1 << 20, 64 << 20).encode()}
            assert message.headers == (offer if window else None)


async def test_all_windows_together_are_bounded(bus_pair):
    """However many replies wait to be read, their windows together stay below what a server holds for a connection."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                while True:
                    await out.send(bytes(50_000))

        async with bus.served(handler, concurrency=200):
            replies = [await bus.request() for _ in range(200)]
            sizes = [reply._window.size for reply in replies]
            assert (max(sizes), min(sizes)) == (1 << 20, 64 * 1024)
            assert sum(sizes) == bus.asking._mail.reserved <= (32 << 20) + 200 * 64 * 1024
            for reply in replies:
                await reply.close()
            await reached(lambda: len(bus.caught) == 200)
        assert bus.asking._mail.reserved == 0
