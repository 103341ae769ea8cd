"""Services of the bus: partitions, handlers beside each other, and a stop that has a limit."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus import Response
from penstock.errors import (
    HandlerError,
    InputError,
    NoRespondersError,
)
from tests.live.bus_peers import WINDOWS, reached, read


async def test_parts_share_the_partitions(bus_pair):
    """Parts of a service serve ranges of the partitions, together all of them."""
    async with bus_pair(6) as bus:

        def handler(part: int):
            async def answer(request, sender):
                await sender.respond(Response(data=str(part).encode()))

            return answer

        serve = bus.serving.serve
        async with serve(bus.queue, handler(1), parts=2, part=1) as one, serve(bus.queue, handler(2), parts=2, part=2):
            assert one.partitions == range(3)
            parts = [(await bus.request(partition=number)).response.data for number in range(6)]
        assert parts == [b"1"] * 3 + [b"2"] * 3


async def test_more_parts_than_partitions(bus_pair, caplog):
    """The last partition is served where there are more parts than partitions; a part without any serves nothing."""
    async with bus_pair(2) as bus:

        async def handler(request, sender):
            await sender.respond(Response())

        async with bus.served(handler, parts=5, part=2), bus.served(handler, parts=5, part=5) as idle:
            assert (await bus.request(partition=1)).response.status == 200
            assert len(idle.partitions) == 0
            with pytest.raises(NoRespondersError):
                await bus.request(partition=0)
    assert "nothing is left" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_handlers_of_a_partition(bus_pair, concurrency: int):
    """Handlers of one partition run beside each other as far as they may; with 1 they run in turn."""
    async with bus_pair() as bus:
        running = most = 0
        go = asyncio.Event()

        async def handler(request, sender):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go.wait()
            await sender.respond(Response(data=request.resource.encode()))
            running -= 1

        async with bus.served(handler, concurrency=concurrency) as service:
            tasks = [asyncio.create_task(bus.request(resource=str(number))) for number in range(12)]
            await reached(lambda: service.active + service.waiting == 12)
            await reached(lambda: running == service.active == concurrency)
            go.set()
            assert [(await task).response.data.decode() for task in tasks] == [str(number) for number in range(12)]
        assert most == concurrency


async def test_a_busy_service_says_so(bus_pair):
    """Requests past the backlog are answered with 503 at once, never dropped."""
    async with bus_pair() as bus:
        go = asyncio.Event()

        async def handler(request, sender):
            await go.wait()
            await sender.respond(Response())

        async with bus.served(handler, concurrency=2, backlog=3) as service:
            tasks = [asyncio.create_task(bus.request()) for _ in range(5)]
            await reached(lambda: service.active + service.waiting == 5)
            reply = await bus.request()
            assert reply.response.status == 503
            assert b"busy" in reply.response.data
            go.set()
            assert {(await task).response.status for task in tasks} == {200}


async def test_stop_lets_handlers_end(bus_pair):
    """Stopping takes no new requests and lets the handlers at work, and the requests that wait, come to their end."""
    async with bus_pair() as bus:
        go = asyncio.Event()

        async def handler(request, sender):
            await go.wait()
            await sender.respond(Response())

        service = await bus.serving.serve(bus.queue, handler, concurrency=1)
        tasks = [asyncio.create_task(bus.request()) for _ in range(3)]
        await reached(lambda: service.active + service.waiting == 3)
        stopping = asyncio.create_task(service.stop(20))
        await reached(lambda: service._served[0].subscription.ended)
        with pytest.raises(NoRespondersError):
            await bus.request()
        assert not stopping.done()
        go.set()
        await stopping
        assert {(await task).response.status for task in tasks} == {200}
        await service.stop()


@WINDOWS
async def test_stop_has_a_limit(bus_pair, window: int):
    """Handlers that do not end in time are cancelled: the requester gets 503, or the error after its sections."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            if request.resource == "response":
                await asyncio.Event().wait()
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")
                await asyncio.Event().wait()

        service = await bus.serving.serve(bus.queue, handler)
        single = asyncio.create_task(bus.request(resource="response"))
        sectioned = asyncio.create_task(read(await bus.request()))
        await reached(lambda: service.active == 2)
        await service.stop(0.1)
        assert (await single).response == Response(503, "text/plain", b"the service was stopped")
        with pytest.raises(HandlerError, match="the service was stopped"):
            await sectioned
        assert service.active == 0


async def test_a_closed_bus(bus_pair):
    """A bus that was closed says so; a service that was never started can be stopped."""
    async with bus_pair() as bus:
        service = bus.serving.serve(bus.queue, read)
        await service.stop()
        await bus.asking.close()
        with pytest.raises(InputError, match="closed"):
            await bus.request()
