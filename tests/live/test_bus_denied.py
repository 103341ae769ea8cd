"""What the server does not permit is told at once, with the subject, to whichever side of the bus it concerns.

So is the end of the connection: nobody waits for a deadline to learn it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest

import penstock
from penstock.bus import Bus, Request, Response
from penstock.connection import Connection
from penstock.errors import DeniedError, DisconnectedError, InputError
from penstock.server import Server
from tests.live.bus_peers import WINDOWS, reached, read

QUEUES = {"secret": 3, "open": 3}
# Each user may do everything but one thing.
DENIED = {
    "asker": ("publish", "secret1"),
    "server": ("subscribe", "secret1"),
    "deaf": ("subscribe", "_INBOX.>"),
    "mute": ("publish", "_INBOX.>"),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    users = ['{user: all, password: pw, permissions: {publish: ">", subscribe: ">"}}']
    for name, (operation, subject) in DENIED.items():
        users.append(f'{{user: {name}, password: pw, permissions: {{{operation}: {{deny: "{subject}"}}}}}}')
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as running:
        yield running


@pytest.fixture
def by(guarded: Server) -> Any:
    """Connect as one of the users."""

    @asynccontextmanager
    async def connected(user: str, **options: Any) -> AsyncIterator[Connection]:
        nc = await penstock.connect(guarded.url, user=user, password="pw", **options)
        try:
            async with asyncio.timeout(15):  # nothing here waits for a deadline: those have a minute
                yield nc
        finally:
            await nc.close()

    return connected


async def answer(request: Any, sender: Any) -> None:
    await sender.respond(Response(data=request.resource.encode()))


async def ask(bus: Bus, queue: str = "open", partition: int = 0, **fields: Any) -> Any:
    return await bus.request(Request(queue, partition, **fields), timeout=60.0)


async def test_a_request_to_a_partition_that_is_denied(by: Any) -> None:
    """The requester gets the error with the subject; the other partitions are served as ever, and nothing is left."""
    async with by("asker") as nc, by("all") as other, Bus(nc, QUEUES) as asking, Bus(other, QUEUES) as serving:
        async with serving.serve("secret", answer):
            asked = [asyncio.ensure_future(ask(asking, "secret", number % 3)) for number in range(9)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            for number, reply in enumerate(found):
                if number % 3 == 1:
                    assert isinstance(reply, DeniedError)
                    assert (reply.operation, reply.subject) == ("publish", "secret1")
                else:
                    assert reply.response.status == 200
        assert asking.conversations == 0


async def test_a_partition_that_may_not_be_served(by: Any) -> None:
    """A service that could serve some of its partitions only does not begin, and says which one is denied."""
    async with by("server") as nc, by("all") as other, Bus(nc, QUEUES) as serving, Bus(other, QUEUES) as asking:
        service = serving.serve("secret", answer)
        with pytest.raises(DeniedError, match="secret1") as caught:
            await service
        assert (caught.value.operation, caught.value.subject) == ("subscribe", "secret1")
        assert len(nc._subscriptions) == 1, "only the inbox of the bus is left"
        async with serving.serve("secret", answer, parts=3, part=1):
            assert (await ask(asking, "secret", resource="here")).response.data == b"here"


async def test_a_bus_that_may_not_listen(by: Any) -> None:
    """Without an inbox neither side can work: both are told at once, each time, and the bus closes as ever."""
    async with by("deaf") as nc, Bus(nc, QUEUES) as bus:
        for _ in range(2):
            with pytest.raises(DeniedError, match="_INBOX") as caught:
                await ask(bus)
            assert caught.value.operation == "subscribe"
            with pytest.raises(DeniedError, match="_INBOX"):
                async with bus.serve("open", answer):
                    pytest.fail("it is served")
        assert bus.conversations == 0
        assert not nc._subscriptions


@WINDOWS
async def test_a_handler_that_may_not_answer(by: Any, window: int) -> None:
    """A handler learns with its first packet that nothing of its reply gets out, not when its reader is given up."""
    caught: list[BaseException] = []

    async def handler(request: Any, sender: Any) -> None:
        try:
            async with sender.sections() as out:
                out.array("a")
                while True:
                    await out.send(b"1")
        except DeniedError as error:
            caught.append(error)
            raise

    async with (
        by("mute") as nc,
        by("all") as other,
        Bus(nc, QUEUES, grace=60.0) as serving,
        Bus(other, QUEUES, window=window) as asking,
        serving.serve("open", handler) as service,
    ):
        asked = asyncio.ensure_future(ask(asking))
        await reached(lambda: caught)
        assert isinstance(caught[0], DeniedError)
        assert caught[0].operation == "publish"
        await reached(lambda: not service.active)
        assert serving.conversations == 0
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


@WINDOWS
async def test_a_reader_that_may_not_say_go_on(by: Any, window: int) -> None:
    """A reader whose signals are denied gets the error as it reads, and does not wait for what will never come."""

    async def handler(request: Any, sender: Any) -> None:
        async with sender.sections() as out:
            out.array("a")
            for number in range(1000):
                await out.send(number)

    async with (
        by("mute") as nc,
        by("all") as other,
        Bus(nc, QUEUES, window=window) as asking,
        Bus(other, QUEUES, grace=0.1) as serving,
        serving.serve("open", handler),
    ):
        reply = await ask(asking)
        with pytest.raises(DeniedError) as caught:
            await read(reply)
        assert caught.value.operation == "publish"
        assert asking.conversations == 0


# -- the end of the connection ----------------------------------------------------------------------------------------


@WINDOWS
async def test_a_connection_that_is_closed_ends_its_conversations(by: Any, window: int) -> None:
    """Whoever waits for a first packet, for the next element, or for a reader, is told when the connection closes."""
    caught: list[BaseException] = []
    forever = asyncio.Event()

    async def handler(request: Any, sender: Any) -> None:
        if request.resource == "silent":
            await forever.wait()
        try:
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")
                if request.resource == "one":
                    await forever.wait()
                while True:
                    await out.send(b"2")
        except DisconnectedError as error:
            caught.append(error)
            raise

    async with by("all") as nc, by("all") as other:
        asking, serving = Bus(nc, QUEUES, window=window, grace=60), Bus(other, QUEUES, grace=60)
        await serving.serve("open", handler)
        waiting = asyncio.ensure_future(ask(asking, resource="silent"))
        reading = asyncio.ensure_future(read(await ask(asking, resource="one")))
        held = await ask(asking, resource="many")
        await reached(lambda: reading.done() or asking.conversations == 3)
        await nc.close()
        for task in (waiting, reading):
            with pytest.raises(DisconnectedError, match="closed"):
                await task
        assert isinstance(held.error, DisconnectedError)
        assert asking.conversations == 0
        with pytest.raises(DisconnectedError):
            await ask(asking)
        await asking.close()
        await other.close()
        await reached(lambda: caught)
        forever.set()
        await serving.close(timeout=0.1)


async def test_waiting_requests_are_answered_when_a_service_gives_up(by: Any) -> None:
    """A stop that is over its time answers those that no handler has begun, and those that it cancels."""

    async def stuck(request: Any, sender: Any) -> None:
        await asyncio.Event().wait()

    async with by("all") as nc, Bus(nc, QUEUES) as bus:
        service = await bus.serve("open", stuck, concurrency=1)
        asked = [asyncio.ensure_future(ask(bus)) for _ in range(4)]
        await reached(lambda: service.active + service.waiting == 4)
        await service.stop(0.1)
        for task in asked:
            assert (await task).response == Response(503, "text/plain", b"the service was stopped")
        assert service.waiting == service.active == 0


async def test_a_handler_that_is_cancelled_may_finish_what_it_does_last(by: Any) -> None:
    """One cancellation is enough for a handler that takes a moment to clean up: it is not disturbed in that."""
    cleaned: list[int] = []

    async def handler(request: Any, sender: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            cleaned.append(1)

    async with by("all") as nc, Bus(nc, QUEUES) as bus:
        service = await bus.serve("open", handler)
        asked = asyncio.ensure_future(ask(bus))
        await reached(lambda: service.active)
        await service.stop(0.05)
        assert cleaned == [1]
        assert (await asked).response.status == 503


async def test_a_client_of_nats_py_is_refused(server: Server) -> None:
    """A bus says at once that another client will not do, and what will."""
    client = await nats.connect(server.url)
    try:
        with pytest.raises(InputError, match=r"nats\.aio\.client\.Client is not a connection.*penstock\.connect"):
            Bus(client, QUEUES)
    finally:
        await client.close()
