"""The bus when the server goes away and comes back, under many requests at once, and with a reader that pauses."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.bus import Bus, Request, Response
from penstock.errors import DeadlineError, DisconnectedError, LinkError, NoConsumerError
from penstock.server import Server
from tests.live.bus_peers import WINDOWS, reached
from tests.live.cable import relay

FAST = {"reconnect_wait": 0.05}


@asynccontextmanager
async def ring(
    server: Server, options: dict[str, Any] | None = None, *, asking_at: str = "", **bus: Any
) -> AsyncIterator[tuple[Bus, Bus]]:
    """Give a requester and a handler with connections of their own, which come back quickly."""
    one, other = [await penstock.connect(url, **(options or FAST)) for url in (asking_at or server.url, server.url)]
    try:
        async with Bus(one, {"ring": 4}, **bus) as asking, Bus(other, {"ring": 4}, **bus) as serving:
            yield asking, serving
    finally:
        await one.close()
        await other.close()


def subscriptions(server: Server, client: Any) -> int:
    """Ask the server how many subscriptions a connection has."""
    parts = urlsplit(server.monitor_urls[0])
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    try:
        connection.request("GET", f"{parts.path}/connz?cid={client.client_id}")
        return json.loads(connection.getresponse().read())["connections"][0]["subscriptions"]
    finally:
        connection.close()


def connected(*buses: Bus) -> bool:
    return all(bus._mail.nc.is_connected for bus in buses)


@WINDOWS
async def test_server_restarts_between_elements(window: int):
    """A server that restarts in mid-stream, between two elements, does not break the reply."""
    with Server(sync="2m") as server:
        async with ring(server, window=window) as (asking, serving):
            half, go = asyncio.Event(), asyncio.Event()

            async def handler(request, sender):
                async with sender.sections() as out:
                    out.array("a")
                    for number in range(10):
                        if number == 5:
                            half.set()
                            await go.wait()
                        await out.send(number)

            async with serving.serve("ring", handler):
                reply, seen = await asking.request(Request("ring")), []

                async def reader() -> None:
                    async for section in reply.sections():
                        async for element in section:
                            seen.append(element.json())

                reading = asyncio.create_task(reader())
                await half.wait()
                await reached(lambda: len(seen) == 5)
                await asyncio.to_thread(server.nodes[0].stop)
                await reached(lambda: not asking._mail.nc.is_connected and not serving._mail.nc.is_connected)
                await asyncio.to_thread(server.nodes[0].start)
                await reached(lambda: connected(asking, serving))
                await asking._mail.nc.flush()  # both have subscribed again
                await serving._mail.nc.flush()
                go.set()
                await reading
                assert seen == list(range(10))


async def test_server_is_killed_at_full_speed():
    """With a window, a server that is killed at full speed costs nothing: what was lost is sent again, once each."""
    count = 30_000
    with Server(sync="2m") as server:
        async with ring(server) as (asking, serving):

            async def handler(request, sender):
                async with sender.sections() as out:
                    out.array("a")
                    for number in range(count):
                        await out.send(number.to_bytes(8, "big") + bytes(500))

            async with serving.serve("ring", handler):
                reply, seen = await asking.request(Request("ring")), []

                async def reader() -> None:
                    async for section in reply.sections():
                        async for element in section:
                            seen.append(int.from_bytes(element.data[:8], "big"))

                reading = asyncio.create_task(reader())
                for goal in (2000, 8000):
                    await reached(lambda goal=goal: len(seen) > goal)
                    assert len(seen) < count, "the reply ended before the server was killed"
                    await asyncio.to_thread(server.nodes[0].kill)
                    await asyncio.to_thread(server.nodes[0].start)
                    await reached(lambda: connected(asking, serving))
                await reading
                assert seen == list(range(count))


async def test_requester_is_cut_off_at_full_speed(server: Server, caplog):
    """With a window, elements that are sent while the requester is cut off are sent again, and read once each."""
    caplog.set_level("INFO", "penstock.bus")
    lost = 0
    async with relay(server) as wire, ring(server, asking_at=wire.url) as (asking, serving):

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                number = 0
                while not enough.is_set():
                    await out.send(number.to_bytes(8, "big") + bytes(500))
                    number += 1
                    if number % 16 == 0:
                        await asyncio.sleep(0)  # let what was sent travel, rather than wait for the window to fill
                await out.object("count", number)

        enough = asyncio.Event()
        async with serving.serve("ring", handler):
            reply, seen, count = await asking.request(Request("ring")), [], []

            async def reader() -> None:
                async for section in reply.sections():
                    async for element in section:
                        if section.kind == "object":
                            count.append(element.json())
                        else:
                            seen.append(int.from_bytes(element.data[:8], "big"))

            reading = asyncio.create_task(reader())
            for _ in range(20):
                goal = len(seen) + 500
                await reached(lambda goal=goal: len(seen) > goal)
                before = asking._mail.nc.stretch
                wire.cut()
                await reached(lambda before=before: asking._mail.nc.stretch > before)
                lost = caplog.text.count("asking for it again")
                if lost >= 2:
                    break
            goal = len(seen) + 500
            await reached(lambda: len(seen) > goal)
            enough.set()
            await reading
    assert lost, "nothing was lost in twenty cuts: the test shows nothing"
    assert seen == list(range(count[0]))


async def test_server_is_gone_for_good(caplog):
    """Where the connection is lost for good, the reader and the handler both get an error that says so."""
    with Server(sync="2m") as server:
        async with ring(server, {"reconnect": False}, window=0, grace=0.5) as (asking, serving):
            caught = []

            async def handler(request, sender):
                try:
                    async with sender.sections() as out:
                        out.array("a")
                        while True:
                            await out.send(b"1")
                except Exception as error:
                    caught.append(error)
                    raise

            async with serving.serve("ring", handler):
                reply, count = await asking.request(Request("ring"), timeout=1.0), 0

                async def reader() -> None:
                    nonlocal count
                    async for section in reply.sections():
                        async for _ in section:
                            count += 1

                reading = asyncio.create_task(reader())
                await reached(lambda: count > 10)
                await asyncio.to_thread(server.nodes[0].kill)
                with pytest.raises(DisconnectedError):
                    await reading
                await reached(lambda: caught)
                assert isinstance(caught[0], LinkError | DeadlineError)
                with pytest.raises(LinkError):
                    await asking.request(Request("ring"))


async def soak(server: Server, count: int, at_once: int) -> None:
    """Ask for responses and sections, some to the end, some cancelled, some left, over all partitions."""
    chance = random.Random(7)
    async with ring(server) as (asking, serving), Bus(asking._mail.nc, {"ring": 4}, window=0) as plain:
        done = dict.fromkeys(("response", "sections", "plain", "left", "cancelled", "forgotten"), 0)

        async def handler(request, sender):
            if request.resource == "response":
                await sender.respond(Response(data=request.body))
                return
            async with sender.sections() as out:
                out.map("m", path=["p"])
                for number in range(10):
                    await out.send(request.body, name=str(number))

        async def ask(way: str, number: int) -> None:
            body = str(number).encode()
            bus = plain if way == "plain" else asking
            reply = await bus.request(Request("ring", number % 4, resource=way, body=body), timeout=60)
            if way == "response":
                assert reply.response.data == body
            elif way == "forgotten":
                await reply.close()
            else:
                count = 0
                async for section in reply.sections():
                    async for element in section:
                        assert (element.name, element.data) == (str(count), body)
                        count += 1
                        if way == "left" and count == 3:
                            break
                    if way == "left":
                        break
                    if way == "cancelled":
                        raise asyncio.CancelledError
                assert count == (3 if way == "left" else 10)

        async def limited(way: str, number: int) -> None:
            async with gate:
                try:
                    await ask(way, number)
                except asyncio.CancelledError:
                    assert way == "cancelled"
                done[way] += 1

        gate = asyncio.Semaphore(at_once)
        before = subscriptions(server, asking._mail.nc)
        async with serving.serve("ring", handler, concurrency=at_once) as service:
            ways = [chance.choice(list(done)) for _ in range(count)]
            await asyncio.gather(*(limited(way, number) for number, way in enumerate(ways)))
            await reached(lambda: not asking.conversations and not serving.conversations and not service.active, 60)
            assert sum(done.values()) == count
            await asking._mail.nc.flush()
            # One for each bus on this connection, however many requests there were; four partitions and one there.
            assert subscriptions(server, asking._mail.nc) - before <= 2
            assert subscriptions(server, serving._mail.nc) == 5
        await plain.close()
        await asking.close()
        await serving.close()
        for bus in (asking, serving):
            await bus._mail.nc.flush()
            assert subscriptions(server, bus._mail.nc) == 0


async def test_many_requests_leave_nothing_behind(server: Server):
    """Some thousand requests, hundreds at once, however they end, leave no subscription and no conversation."""
    await soak(server, 3000, 300)


@pytest.mark.heavy
async def test_very_many_requests_leave_nothing_behind(server: Server):
    """The same with many more."""
    await soak(server, 60_000, 2000)


async def pause(server: Server, seconds: float) -> None:
    """A reader takes half, waits, and takes the rest."""
    async with ring(server, grace=seconds + 30) as (asking, serving):
        made = 0

        async def handler(request, sender):
            nonlocal made
            async with sender.sections() as out:
                out.array("a")
                for number in range(1000):
                    made = number
                    await out.send(number)

        async with serving.serve("ring", handler) as service:
            reply, seen = await asking.request(Request("ring")), []
            async for section in reply.sections():
                async for element in section:
                    seen.append(element.json())
                    if len(seen) == 500:
                        await reached(lambda: made == 564)
                        until = asyncio.get_running_loop().time() + seconds
                        while asyncio.get_running_loop().time() < until:
                            await asyncio.sleep(0.1)
                            assert made == 564, "the handler went on"
                            assert len(reply._units) == 64, "what waits for the reader grew"
                            assert service.active == 1
            assert seen == list(range(1000))


async def test_a_reader_that_pauses(server: Server):
    """While a reader pauses the handler waits, nothing piles up, and nothing is lost."""
    await pause(server, 3.0)


@pytest.mark.heavy
async def test_a_reader_that_pauses_for_a_minute(server: Server):
    """The same for longer than a minute."""
    await pause(server, 65.0)


async def test_a_requester_that_vanishes(server: Server):
    """A requester whose connection ends without a word is a timeout for the handler, which is free again."""
    async with ring(server, grace=0.2) as (_, serving):
        caught = []

        async def handler(request, sender):
            try:
                async with sender.sections() as out:
                    out.array("a")
                    while True:
                        await out.send(b"1")
            except Exception as error:
                caught.append(error)
                raise

        async with serving.serve("ring", handler) as service:
            client = await penstock.connect(server.url)
            reply = await Bus(client, {"ring": 4}).request(Request("ring"))
            await client.close()
            await reached(lambda: caught)
            await reached(lambda: not service.active)
            assert isinstance(caught[0], DeadlineError | NoConsumerError)
            del reply
        assert serving.conversations == 0
