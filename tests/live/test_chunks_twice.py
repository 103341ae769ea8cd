"""One id, two payloads; one payload, two ways: what the world around a receiver can mix up, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.chunks import Assembler, Publisher, Reason
from penstock.errors import AssemblyError, DisconnectedError, OptionError, UnfinishedError
from penstock.server import Server
from tests.live.chunks import receiving
from tests.live.test_chunks_denied import reload
from tests.support import eventually

MB = 1024 * 1024


@pytest.fixture
def subject(unique: Any) -> str:
    return unique("twice")


async def test_an_id_that_is_used_again_for_another_payload_is_told(server, subject):
    """The second one is not delivered, since late chunks of the first must begin nothing, and on_error hears of it."""
    async with receiving(server, subject) as receiver:
        publisher = Publisher(receiver.nc, 4)
        await publisher.publish(subject, b"first one", message_id="m")
        await receiver.wait()
        await publisher.publish(subject, b"first one", message_id="m")  # a repetition says nothing new
        await receiver.settle()
        assert not receiver.errors
        await publisher.publish(subject, b"other one", message_id="m")
        error = await receiver.error(Reason.CONFLICT)
        assert "same id within 30 s" in str(error)
        await receiver.settle()
        assert [item[1] for item in receiver.got] == [b"first one"]
        assert receiver.assembler.counts.failures["conflict"] == 1, "once"


async def test_two_publishers_of_one_id_are_told_even_where_the_mixture_looks_whole(server, subject):
    """Without a digest nobody can see it before; the chunk that comes too late gives it away. With one it is seen."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"AAAA", 0)
        await receiver.chunk(b"bbbb", 4, 8)  # the end of another payload: whole
        await receiver.chunk(b"bbbb", 0)
        error = await receiver.error(Reason.CONFLICT)
        assert "mixture of two" in str(error)
        publishers = [Publisher(receiver.nc, 4, digest=True) for _ in range(2)]
        payloads = [bytes([number]) * 40 for number in range(2)]
        sending = (item.publish(subject, data, message_id="d") for item, data in zip(publishers, payloads, strict=True))
        await asyncio.gather(*sending)
        await eventually(lambda: "d" in {error.message_id for error in receiver.errors}, "the other report")
        assert {item[1] for item in receiver.got if item[0] == "d"} <= set(payloads)


async def test_a_mapping_that_scatters_a_payload_is_told(subject):
    """Chunks that a server sends to different subjects make no payload; a receiver of all of them says so in time."""
    mapping = '"scattered": [{destination: "all.one", weight: 50%}, {destination: "all.two", weight: 50%}]'
    with Server(config=f"mappings = {{ {mapping} }}", sync="2m") as server:
        async with receiving(server, "all.>", timeout=0.4) as receiver:
            await Publisher(receiver.nc, 4).publish("scattered", bytes(400), message_id="m")
            await receiver.error(Reason.TIMEOUT, 2)
            assert {error.subject for error in receiver.errors} == {"all.one", "all.two"}
            assert receiver.got == []


async def test_a_mapping_of_the_whole_subject_changes_nothing_but_its_name(subject):
    """A payload whose chunks all go to one other subject arrives there."""
    with Server(config='mappings = { "there": "here" }', sync="2m") as server:
        async with receiving(server, "here") as receiver:
            await Publisher(receiver.nc, 4, digest=True).publish("there", b"abcdefghi")
            assert [item[1:] for item in await receiver.wait()] == [(b"abcdefghi", "here")]


async def test_a_connection_that_is_drained_ends_what_is_read(server, subject):
    """Whoever waits for a payload, or for its rest, is told that none comes any more, who ever asked for the end."""
    errors: list[AssemblyError] = []
    nc = await penstock.connect(server.url)
    other = await penstock.connect(server.url)
    assembler = Assembler(nc, 3600.0, on_error=errors.append)
    async with assembler.open(subject) as inbox, asyncio.timeout(20):
        headers = {"X-Msg-Id": "m", "X-Offset": "0", "X-Flags": "0"}
        await other.publish(subject, b"abc", headers=headers)
        message = await anext(inbox)
        waiting = asyncio.ensure_future(anext(inbox))
        await nc.drain()
        with pytest.raises(DisconnectedError):
            await waiting
        with pytest.raises(AssemblyError):
            await message.read()
    assert [error.reason for error in errors] == [Reason.CLOSED]
    await assembler.close()
    await other.close()


async def test_a_largest_payload_that_is_lowered_in_the_middle_is_told(unique):
    """The server hangs up on who sends more than it takes by now: the publish fails, and the next one says why."""
    with Server(config="# here", auth=False, sync="2m") as server:

        async def source() -> Any:
            for number in range(8):
                if number == 6:
                    await asyncio.to_thread(reload, server, "# here", "max_payload: 100000")
                yield bytes(MB)

        async with await penstock.connect(server.url, reconnect_wait=0.05) as nc:
            publisher = Publisher(nc)
            with pytest.raises(UnfinishedError, match="connection broke"):
                await publisher.publish("open.large", source())
            await eventually(lambda: nc.is_connected and nc.max_payload == 100_000, "the new limit")
            with pytest.raises(OptionError, match="takes messages of 100000 bytes"):
                await publisher.publish("open.large", b"abc")
