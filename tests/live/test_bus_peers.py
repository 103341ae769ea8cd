"""The bus with peers of the reference, simulated from their bytes, in both of its revisions."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest

from penstock.bus import Bus, Request, Response
from penstock.errors import (
    DeadlineError,
    HandlerError,
    NoConsumerError,
    RemoteProtocolError,
    SlowConsumerError,
)
from tests.live.bus_peers import (
    GO_ON,
    NO_CONSUMER,
    REVISIONS,
    SLOW_CONSUMER,
    raw_handler,
    raw_request,
    reached,
    read,
)

revisions = pytest.mark.parametrize("revision", REVISIONS)
MAP = b'\x02\x02\x0aclassifier\x012\x06secMap\x03id1{"fld1":"fld1Val"}'
ARRAY = b'\x03\x00\x06secArr"arr\\u003cEl1\\u003e"'
OBJECT = b'\x04\x01\x04meta\x06secObj{"total":1}'


@pytest.fixture
async def asking(bus_connections, unique):
    """Our requester, offering a window that the reference does not know."""
    async with Bus(bus_connections[0], {unique("q"): 2}) as bus:
        yield bus
        assert bus.conversations == 0


@pytest.fixture
def queue(asking) -> str:
    return next(iter(asking.options.queues))


# -- their handler, our requester -------------------------------------------------------------------------------------


async def test_their_response(asking, queue, bus_connections):
    """A response of the reference is read, a second one is lost without harm, and so is a sectioned reply after it."""
    async with raw_handler(bus_connections[1], f"{queue}1") as handler:
        task = asyncio.create_task(asking.request(Request(queue, 1, "POST", "resp", 1, {"A": "b"}, body=b"{}")))
        talk = await handler.accept()
        assert json.loads(talk.body) == {
            "Method": 1,
            "QueueID": queue,
            "WSID": 1,
            "PartitionNumber": 1,
            "Header": {"A": ["b"]},
            "Resource": "resp",
            "Body": "e30=",
        }
        await talk.publish(b'\x00\x10application/json\xc8\x00{"a":1}')
        await talk.publish(b"\x00\x00\x94\x01")
        assert (await task).response == Response(200, "application/json", b'{"a":1}')
        await talk.open()  # sections after a response: nobody reads them, and the handler is told
        assert await talk.signal() == NO_CONSUMER


@revisions
async def test_their_sections(asking, queue, bus_connections, revision):
    """A sectioned reply of the reference is read with one GoOn for each element, none for the inbox and the close."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()

        async def answer() -> None:
            await talk.open()
            for packet in (OBJECT, MAP, b"\x05\x03id2raw<&>", ARRAY, b"\x0542"):
                await talk.send(packet)
            await talk.publish(b"\x01test error")
            with pytest.raises(TimeoutError):
                await talk.signal(timeout=0.2)

        answering = asyncio.create_task(answer())
        reply, seen = await task, []
        assert not reply.windowed

        async def reader() -> None:
            async for section in reply.sections():
                seen.append((section.kind, section.type, section.path, [(e.name, e.data) async for e in section]))

        with pytest.raises(HandlerError, match="test error"):
            await reader()
        await answering
        assert seen == [
            ("object", "secObj", ("meta",), [(None, b'{"total":1}')]),
            ("map", "secMap", ("classifier", "2"), [("id1", b'{"fld1":"fld1Val"}'), ("id2", b"raw<&>")]),
            ("array", "secArr", (), [(None, b'"arr\\u003cEl1\\u003e"'), (None, b"42")]),
        ]


async def test_their_go_on_comes_when_the_element_is_taken(asking, queue, bus_connections):
    """GoOn waits for the reader: a packet that arrived, and was not taken, is not answered."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()
        await talk.open()
        await talk.publish(ARRAY)
        reply = await task
        await reached(lambda: reply._units)
        await bus_connections[0].flush()
        with pytest.raises(TimeoutError):
            await talk.signal(timeout=0.1)
        async for section in reply.sections():
            await anext(section)
            assert await talk.signal() == GO_ON
            break
        assert await talk.signal() == NO_CONSUMER


async def test_their_odd_packets_are_passed_over(asking, queue, bus_connections):
    """A response in mid-stream and packets of unknown types are passed over, and answered with GoOn."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()

        async def answer() -> None:
            await talk.open()
            for packet in (ARRAY, b"\x00\x00\xc8\x00late", b"\x2aunknown", b"\x05next"):
                await talk.send(packet)
            await talk.publish(b"\x01")

        answering = asyncio.create_task(answer())
        assert [len(elements) for *_, elements in await read(await task)] == [2]
        await answering


async def test_their_lone_close(asking, queue, bus_connections):
    """A close as the only packet is an empty reply, and with a text an error after no sections."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        for packet in (b"\x01", b"\x01oh no"):
            task = asyncio.create_task(asking.request(Request(queue)))
            await (await handler.accept()).publish(packet)
            reply = await task
            if packet == b"\x01":
                assert await read(reply) == []
            else:
                with pytest.raises(HandlerError, match="oh no"):
                    await read(reply)


@pytest.mark.parametrize(
    ("packets", "words"),
    [
        ([b"\x0542"], "before the first section"),
        ([b"\x02\x09"], "ends too early"),
        ([OBJECT, b"\x05late"], "after an object"),
        ([ARRAY, b""], "empty packet"),
        ([b"\x06_INBOX.again"], "INBOX"),
        ([b"\x05x"] * 40, "without waiting|before the first section"),
    ],
)
async def test_their_broken_packets(asking, queue, bus_connections, packets, words):
    """Packets that are broken, or come when they may not, end the reply with an error; the handler is told."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()
        await talk.open()
        reply = await task
        reading = asyncio.create_task(read(reply))
        signals = []
        for packet in packets:
            await talk.publish(packet)
            if packet in (OBJECT, ARRAY):
                signals.append(await talk.signal())
        with pytest.raises(RemoteProtocolError, match=words):
            await reading
        signals.append(await talk.signal())
        assert signals[-1] == NO_CONSUMER


@pytest.mark.parametrize("packet", [b"\x00\x09", b"\x00\x00\x01", b"\x05x", MAP, b"\x2a", b""])
async def test_their_broken_first_packet(asking, queue, bus_connections, packet):
    """A first packet that cannot begin a reply is an error, not a crash and not a timeout."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:

        async def whole() -> None:
            await read(await asking.request(Request(queue)))

        task = asyncio.create_task(whole())
        await (await handler.accept()).publish(packet)
        with pytest.raises(RemoteProtocolError):
            await task


@revisions
async def test_their_handler_when_we_are_slow(asking, queue, bus_connections, revision):
    """A reader that is too slow says SlowConsumer, in time; that revision "head" takes it for an error is its own."""
    async with (
        raw_handler(bus_connections[1], f"{queue}0") as handler,
        Bus(bus_connections[0], {queue: 2}, grace=0.3) as hasty,
    ):
        task = asyncio.create_task(hasty.request(Request(queue)))
        talk = await handler.accept()
        await talk.open()
        await talk.publish(ARRAY)
        reply = await task
        assert await talk.signal() == SLOW_CONSUMER
        if revision == "seed":
            await talk.publish(b"\x01section is processed too slow")  # it always closes; nobody listens any more
        with pytest.raises(SlowConsumerError):
            await read(reply)


async def test_their_handler_when_it_is_late(asking, queue, bus_connections):
    """A handler that is silent in mid-stream gets NoConsumer, the reader the error."""
    async with raw_handler(bus_connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue), timeout=0.6))
        talk = await handler.accept()
        await talk.open()
        reply = await task
        reading = asyncio.create_task(read(reply))
        await talk.send(ARRAY)
        with pytest.raises(DeadlineError):
            await reading
        assert await talk.signal() == NO_CONSUMER


# -- our handler, their requester -------------------------------------------------------------------------------------


@pytest.fixture
def serving(bus_connections, unique):
    """Make our service for the reference's requesters; gives the queue and what its handler raised."""

    def make(handler, **options):
        queue, caught = unique("q"), []

        async def kept(request, sender):
            try:
                await handler(request, sender)
            except Exception as error:
                caught.append(error)
                raise

        return queue, caught, Bus(bus_connections[1], {queue: 2}, **options).serve(queue, kept)

    return make


async def sections(request, sender) -> None:
    async with sender.sections() as out:
        out.map("empty")
        await out.object("secObj", {"total": 1}, path=["meta"])
        out.map("secMap", path=["classifier", "2"])
        await out.send({"fld1": "fld1Val"}, name="id1")
        await out.send(None, name="nothing")
        await out.send(b"raw<&>", name="id2")
        out.array("secArr")
        await out.send("arr<El1>")
        await out.send(42.0)
        if request.resource == "fail":
            raise ValueError("test error")


@revisions
@pytest.mark.parametrize("resource", ["fine", "fail"])
async def test_our_bytes(serving, bus_connections, revision, resource):
    """Our handler writes the reference's bytes, in its order, and waits for GoOn before each next one."""
    queue, _, service = serving(sections)
    async with service, raw_request(bus_connections[0], queue, 1, Resource=resource) as requester:
        first, *packets = await requester.read_all()
    assert first[:1] == b"\x06"
    assert packets == [
        OBJECT,
        MAP,
        b"\x05\x03id2raw<&>",
        ARRAY,
        b"\x0542",
        b"\x01test error" if resource == "fail" else b"\x01",
    ]


async def test_our_single_bytes(serving, bus_connections):
    """Our single responses, good and bad, are the reference's bytes."""

    async def handler(request, sender):
        if request.resource == "panic":
            raise RuntimeError("boom")
        await sender.respond(Response(data=b'{"a":1}') if request.resource == "r" else Response(404, ""))

    queue, _, service = serving(handler)
    async with service:
        for resource, packet in (
            ("r", b'\x00\x10application/json\xc8\x00{"a":1}'),
            ("none", b"\x00\x00\x94\x01"),
            ("panic", b"\x00\x0atext/plain\xf4\x01boom"),
        ):
            async with raw_request(bus_connections[0], queue, Resource=resource) as requester:
                assert await requester.packet() == packet


@pytest.mark.parametrize(
    ("signal", "kind"),
    [(NO_CONSUMER, NoConsumerError), (SLOW_CONSUMER, SlowConsumerError), (b"\x2a", RemoteProtocolError)],
)
@pytest.mark.parametrize("when", ["first", "next", "between"])
async def test_their_signals(serving, bus_connections, signal, kind, when):
    """NoConsumer, SlowConsumer (revision "seed" only) and an unknown byte reach the handler as errors of their own.

    After the first two, no close follows: the requester has ended the conversation.
    """
    between = asyncio.Event()

    async def handler(request, sender):
        async with sender.sections() as out:
            out.array("a")
            await out.send(b"1")
            if when == "between":
                await between.wait()
            await out.send(b"2")
            await out.send(b"3")

    queue, caught, service = serving(handler)
    async with service, raw_request(bus_connections[0], queue) as requester:
        await requester.packet()
        assert await requester.packet() == b"\x03\x00\x01a1"
        if when != "first":
            await requester.say(GO_ON)
            if when == "next":
                assert await requester.packet() == b"\x052"
        await requester.say(signal)
        await bus_connections[0].flush()
        await bus_connections[1].flush()
        between.set()
        await reached(lambda: caught)
        assert isinstance(caught[0], kind)
        if kind is RemoteProtocolError:
            assert (await requester.packet())[:1] == b"\x01"
        else:
            with pytest.raises(TimeoutError):
                await requester.packet(timeout=0.1)


@revisions
async def test_their_requester_gives_no_sign(serving, bus_connections, revision):
    """A requester that gives no sign in the time of the formula is a timeout for the handler; a late GoOn is void.

    Revision "head" never says SlowConsumer: it lets the handler wait, which looks the same.
    """

    async def handler(request, sender):
        async with sender.sections() as out:
            out.array("a")
            await out.send(b"1")
            with pytest.raises(DeadlineError) as first:
                await out.send(b"2")
            await requester.say(GO_ON)
            await bus_connections[0].flush()
            await bus_connections[1].flush()
            with pytest.raises(DeadlineError) as second:
                await out.send(b"3")
            assert second.value is first.value

    queue, caught, service = serving(handler, grace=0.1)
    async with service, raw_request(bus_connections[0], queue) as requester:
        await requester.packet()
        await requester.packet()
        await requester.say(GO_ON)
        assert await requester.packet() == b"\x052"
        assert (await requester.packet()).startswith(b"\x01The requester gave no sign")
    assert not caught


async def test_a_go_on_too_many_is_not_saved_up(serving, bus_connections):
    """A signal that came unasked for does not count for a later element."""
    sent = 0

    async def handler(request, sender):
        nonlocal sent
        async with sender.sections() as out:
            out.array("a")
            for _ in range(3):
                await out.send(b"1")
                sent += 1
                await asyncio.sleep(0.05)

    queue, caught, service = serving(handler)
    async with service, raw_request(bus_connections[0], queue) as requester:
        await requester.packet()
        await requester.packet()
        await requester.say(GO_ON)
        await requester.say(GO_ON)
        await requester.packet()
        await reached(lambda: sent == 1)
        with pytest.raises(TimeoutError):
            await requester.packet(timeout=0.2)
        assert sent == 1
        await requester.say(NO_CONSUMER)
        await reached(lambda: caught)


# -- peers on another client ------------------------------------------------------------------------------------------


@pytest.fixture
async def stranger(server):
    """A client of nats-py, for peers that have nothing of ours."""
    client = await nats.connect(server.url)
    yield client
    await client.close()


async def test_a_handler_on_another_client(asking, queue, stranger):
    """Our requester and a handler of the reference on nats-py's client understand each other."""
    async with raw_handler(stranger, f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()

        async def answer() -> None:
            await talk.open()
            for packet in (MAP, b"\x05\x03id2raw", OBJECT):
                await talk.send(packet)
            await talk.publish(b"\x01")

        answering = asyncio.create_task(answer())
        assert await read(await task) == [
            ("map", "secMap", ["classifier", "2"], [("id1", b'{"fld1":"fld1Val"}'), ("id2", b"raw")]),
            ("object", "secObj", ["meta"], [(None, b'{"total":1}')]),
        ]
        await answering


async def test_a_requester_on_another_client(serving, stranger):
    """Our handler waits for each GoOn of a requester of the reference on nats-py's client, and hears when it leaves."""

    async def handler(request, sender):
        async with sender.sections() as out:
            out.array("a")
            for number in range(3 if request.resource == "r" else 1000):
                await out.send(number)

    queue, caught, service = serving(handler)
    async with service:
        async with raw_request(stranger, queue) as requester:
            packets = await requester.read_all()
        assert packets[1:] == [b"\x03\x00\x01a0", b"\x051", b"\x052", b"\x01"]
        async with raw_request(stranger, queue, Resource="endless") as requester:
            await requester.packet()
            assert await requester.packet() == b"\x03\x00\x01a0"
            await requester.say(NO_CONSUMER)
            await reached(lambda: caught)
    assert isinstance(caught[0], NoConsumerError)
