"""Peers that take up the extension of the bus and then break its rules, played with raw messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.bus import Bus, Request
from penstock.errors import DeadlineError, NoConsumerError, RemoteProtocolError, SlowConsumerError
from tests.live.bus_peers import NO_CONSUMER, RawConversation, raw_handler, reached, read

ARRAY = b"\x03\x00\x01a0"


def run(number: int, *units: bytes) -> bytes:
    """A run, written by hand."""
    parts = [len(unit).to_bytes(4, "little") + unit for unit in units]
    return b"\x07" + number.to_bytes(8, "little") + b"".join(parts)


def count(number: int) -> bytes:
    return b"\x00" + number.to_bytes(8, "little")


@asynccontextmanager
async def begun(
    connections: Any, queue: str, *, window: int = 4, size: int = 65536, **options: Any
) -> AsyncIterator[tuple[Any, RawConversation]]:
    """Our requester's reply from a raw handler that has taken up the window."""
    asking = Bus(connections[0], {queue: 1}, window=4, window_bytes=65536, **options)
    async with asking, raw_handler(connections[1], f"{queue}0") as handler:
        task = asyncio.create_task(asking.request(Request(queue)))
        talk = await handler.accept()
        assert talk.headers["Penstock-Bus"].startswith("1; window=4; bytes=65536; element=")
        accepted = {"Penstock-Bus": f"1; window={window}; bytes={size}; element=1048576"}
        await connections[1].publish(talk.reply, b"\x06" + talk.inbox.encode(), headers=accepted)
        yield await task, talk
        assert asking.conversations == 0


async def told(talk: RawConversation, number: int) -> None:
    """Wait for GoOn with this count; smaller ones may come before it."""
    while (signal := await talk.signal()) != count(number):
        assert signal[:1] == b"\x00"
        assert int.from_bytes(signal[1:], "little") < number


async def test_runs_by_hand(bus_connections, unique):
    """Units come once and in order, whatever comes twice, too early or not at all; lost ones are asked for."""
    async with begun(bus_connections, unique("q")) as (reply, talk):
        reading = asyncio.create_task(read(reply))
        await talk.publish(run(0, ARRAY, b"\x051"))
        await told(talk, 2)
        await talk.publish(run(3, b"\x053"))
        assert await talk.signal() == b"\x03" + (2).to_bytes(8, "little"), "unit 2 is missing"
        await talk.publish(run(0, ARRAY, b"\x051"))
        assert await talk.signal() == count(2), "known already"
        await talk.publish(run(1, b"\x051", b"\x052", b"\x053"))
        await told(talk, 4)
        await talk.publish(run(4))
        assert await talk.signal() == count(4), "a probe"
        await talk.publish(run(4, b"\x08\x05pie", b"\x09ces"))
        await told(talk, 6)
        await talk.publish(run(6, b"\x01"))
        await told(talk, 7)
        assert await reading == [("array", "a", [], [(None, data) for data in (b"0", b"1", b"2", b"3", b"pieces")])]


@pytest.mark.parametrize(
    ("packets", "words"),
    [
        ([ARRAY], "where a run was due"),
        ([b"\x07\x00"], "where a run was due"),
        ([run(0, ARRAY)[:-1]], "cut or empty"),
        ([run(0, b"")], "cut or empty"),
        ([run(0, b"\x0542")], "before the first section"),
        ([run(0, b"\x08\x03\x00", b"\x01")], "breaks off"),
        ([run(0, ARRAY, *[b"\x051"] * 9)], "more than the window"),
        ([run(0, *[b"\x08" + bytes(60_000)] * 3)], "more than the window"),
        ([run(0, b"\x06_INBOX.x")], "INBOX"),
        ([""], "empty packet"),
    ],
)
async def test_handlers_that_break_the_rules(bus_connections, unique, packets, words: str):
    """A handler that breaks the rules of the window ends the reply with an error, and is told."""
    async with begun(bus_connections, unique("q")) as (reply, talk):
        reading = asyncio.create_task(read(reply))
        for packet in packets:
            await talk.publish(packet or b"")
        with pytest.raises(RemoteProtocolError, match=words):
            await reading
        while await talk.signal() != NO_CONSUMER:
            pass


async def test_a_handler_with_an_endless_element(bus_connections, unique):
    """Pieces without end are refused at the size that the requester named."""
    async with begun(bus_connections, unique("q"), max_element=200_000) as (reply, talk):
        reading = asyncio.create_task(read(reply))
        number = 0
        while not reading.done():
            await talk.publish(run(number, b"\x08\x03\x00" + bytes(50_000)))
            number += 1
            signal = await talk.signal()
            if signal == NO_CONSUMER:
                break
            assert signal == count(number)
        assert number == 5
        with pytest.raises(RemoteProtocolError, match="more than 200,000 bytes"):
            await reading


@pytest.mark.parametrize(("window", "size"), [(5, 65536), (4, 65537)])
async def test_a_handler_that_takes_more_than_was_offered(bus_connections, unique, window: int, size: int):
    """A handler may take a smaller window than it was offered, never a larger one."""
    async with begun(bus_connections, unique("q"), window=window, size=size) as (reply, talk):
        with pytest.raises(RemoteProtocolError, match="larger window"):
            await read(reply)
        assert await talk.signal() == NO_CONSUMER


@pytest.mark.parametrize(
    ("signal", "kind"),
    [
        (b"\x01", NoConsumerError),
        (b"\x02", SlowConsumerError),
        (b"\x00", RemoteProtocolError),
        (b"", RemoteProtocolError),
        (count(99), RemoteProtocolError),
        (b"\x03" + (99).to_bytes(8, "little"), RemoteProtocolError),
        (None, DeadlineError),
    ],
)
async def test_requesters_that_break_the_rules(bus_connections, unique, signal: bytes | None, kind: type[Exception]):
    """What a requester says wrongly, or does not say, reaches the handler as an error; nothing stays behind."""
    queue, caught = unique("q"), []

    async def handler(request, sender):
        try:
            async with sender.sections() as out:
                out.array("a")
                for number in range(50):
                    await out.send(number)
        except Exception as error:
            caught.append(error)
            raise

    serving = Bus(bus_connections[1], {queue: 1}, grace=0.1)
    async with serving, serving.serve(queue, handler):
        client = bus_connections[0]
        inbox = client.new_inbox()
        packets = await client.subscribe(inbox)
        offer = {"Penstock-Bus": "1; window=4; bytes=65536; element=1048576"}
        await client.publish(f"{queue}0", Request(queue).encode(), reply=inbox, headers=offer)
        opened = await packets.next_msg(timeout=5)
        assert opened.headers == offer
        first = await packets.next_msg(timeout=5)
        assert first.data == run(0, ARRAY, b"\x051", b"\x052", b"\x053"), "as much as the window holds, in one message"
        if signal is not None:
            await client.publish(opened.data[1:].decode(), signal)
        await reached(lambda: caught)
        assert isinstance(caught[0], kind)
        await reached(lambda: not serving.conversations)
        await packets.unsubscribe()


async def test_a_requester_that_lost_everything(bus_connections, unique):
    """A handler that hears nothing asks with a probe, and sends again what it is asked for."""
    queue = unique("q")

    async def handler(request, sender):
        async with sender.sections() as out:
            out.array("a")
            for number in range(3):
                await out.send(number)

    serving = Bus(bus_connections[1], {queue: 1})
    async with serving, serving.serve(queue, handler):
        client = bus_connections[0]
        inbox = client.new_inbox()
        packets = await client.subscribe(inbox)
        offer = {"Penstock-Bus": "1; window=64; bytes=65536; element=1048576"}
        await client.publish(f"{queue}0", Request(queue).encode(), reply=inbox, headers=offer)
        misc = (await packets.next_msg(timeout=5)).data[1:].decode()
        whole = run(0, ARRAY, b"\x051", b"\x052", b"\x01")
        assert (await packets.next_msg(timeout=5)).data == whole
        assert (await packets.next_msg(timeout=5)).data == run(4), "a probe"
        await client.publish(misc, b"\x03" + bytes(8))
        assert (await packets.next_msg(timeout=5)).data == whole
        await client.publish(misc, count(3))
        await reached(lambda: not serving.conversations)
        await packets.unsubscribe()
