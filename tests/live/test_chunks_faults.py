"""The connection is cut in the middle of a message: on the publisher's side, on the receiver's, core and stored."""

from __future__ import annotations

import asyncio
import os

import pytest

import penstock
from penstock.chunks import Archive, Assembler, Publisher, Reason
from penstock.chunks.pacing import AHEAD
from penstock.connection import api_request
from penstock.errors import AssemblyError, DeadlineError, DisconnectedError, UnfinishedError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.chunks import receiving
from tests.support import eventually

DATA = os.urandom(24 * 1024 * 1024)
HALF = len(DATA) // 2


async def test_a_publisher_that_is_cut_off_says_so_and_the_next_try_arrives(server, unique):
    """Core: the publish fails with what was confirmed, receivers drop the part, and the payload sent again arrives."""
    subject = unique("faults")
    async with receiving(server, subject, timeout=0.5) as receiver, relay(server) as wire:
        nc = await penstock.connect(wire.url, reconnect_wait=0.05)
        publisher = Publisher(nc, digest=True)
        wire.cut_up_at = wire.up + HALF
        with pytest.raises(UnfinishedError) as caught:
            await publisher.publish(subject, DATA, message_id="cut")
        error = caught.value
        assert isinstance(error.__cause__, DisconnectedError)
        assert error.confirmed <= HALF
        assert error.confirmed <= error.sent < len(DATA)
        given_up = await receiver.error(Reason.TIMEOUT)
        assert error.confirmed <= given_up.received < len(DATA)
        assert receiver.got == []
        await eventually(lambda: nc.is_connected, "the connection")
        message_id = await publisher.publish(subject, DATA)
        assert [item[:2] for item in await receiver.wait()] == [(message_id, DATA)]
        await nc.close()


async def test_a_publisher_whose_server_is_gone_for_good_fails(server, unique):
    """Core: while the way stays closed, the publish does not wait for it, nor buffer."""
    async with relay(server) as wire:
        nc = await penstock.connect(wire.url, reconnect_wait=0.05)
        wire.cut_up_at, wire.refuse = wire.up + HALF, True
        with pytest.raises(UnfinishedError, match="connection broke"):
            await Publisher(nc).publish(unique("faults"), DATA)
        with pytest.raises(DisconnectedError, match="away"):
            await Publisher(nc).publish(unique("faults"), b"abc")
        await nc.close()


async def test_a_publisher_that_waits_for_a_reader_notices_a_break_at_once(server, unique, nc):
    """Core: it waits for the reader as long as it must, and not a moment for one that it cannot hear any more."""
    subject = unique("faults")
    async with relay(server) as wire, Assembler(nc, 60.0, on_error=lambda error: None) as assembler:
        other = await penstock.connect(wire.url, reconnect_wait=0.05)
        async with assembler.open(subject, window=1024 * 1024) as inbox:
            sent: list[int] = []
            publishing = asyncio.ensure_future(Publisher(other).publish(subject, DATA * 2, progress=sent.append))
            message = await anext(inbox)
            await eventually(lambda: sent and sent[-1] >= AHEAD, "the publisher waiting")
            await other.flush()
            assert not publishing.done()
            wire.cut()
            async with asyncio.timeout(5):  # a reader that does not move is waited for twice as long
                with pytest.raises(UnfinishedError, match="connection broke"):
                    await publishing
            message.discard()
        await other.close()


async def test_a_server_that_does_not_answer_is_given_up_in_time(unique):
    """Core: a server that hangs is an UnfinishedError after the timeout; one that goes on takes the next payload."""
    with Server(sync="2m") as hanging:
        async with await penstock.connect(hanging.url) as other:
            publisher = Publisher(other, timeout=0.5)
            await publisher.publish("faults", b"abc")
            await asyncio.to_thread(hanging.nodes[0].pause)
            with pytest.raises(UnfinishedError, match=r"did not confirm .* within 0\.5 s") as caught:
                await publisher.publish("faults", b"abc")
            assert isinstance(caught.value.__cause__, DeadlineError)
            patient = asyncio.ensure_future(Publisher(other, timeout=60.0).publish("faults", b"abc"))
            cancelled = asyncio.ensure_future(Publisher(other, timeout=60.0).publish("faults", b"abc"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await asyncio.to_thread(hanging.nodes[0].resume)
            await patient
            await publisher.publish("faults", b"abc")


async def test_a_receiver_that_is_cut_off_reports_the_message_and_gets_the_next(server, unique, nc):
    """Core: what was sent while the receiver was away is lost, which it reports; it then receives again."""
    subject, errors, got = unique("faults"), [], []
    async with relay(server) as wire:
        other = await penstock.connect(wire.url, reconnect_wait=0.05)
        async with Assembler(
            other, 0.5, handler=lambda message_id, data: got.append((message_id, data)), on_error=errors.append
        ) as assembler:
            await assembler.subscribe(subject)
            wire.cut_down_at = wire.down + HALF
            await Publisher(nc).publish(subject, DATA, message_id="cut")
            await eventually(lambda: errors, "a report")
            assert [(error.reason, error.message_id) for error in errors] == [(Reason.DISCONNECTED, "cut")]
            assert 0 < errors[0].received < len(DATA)
            assert assembler.counts.disconnects == 1
            await eventually(lambda: other.is_connected, "the connection")
            await other.flush()
            await Publisher(nc).publish(subject, DATA, message_id="whole")
            await eventually(lambda: got, "the next message")
            assert got == [("whole", DATA)]
        await other.close()


async def test_a_streaming_reader_that_is_cut_off_gets_an_error(server, unique, nc):
    """Core: the reader of a message that will never be whole is told, and never given the wrong end."""
    subject = unique("faults")
    async with relay(server) as wire:
        other = await penstock.connect(wire.url, reconnect_wait=0.05)
        async with Assembler(other, 0.5, on_error=lambda error: None) as assembler, assembler.open(subject) as inbox:
            wire.cut_down_at = wire.down + HALF
            await Publisher(nc).publish(subject, DATA)
            message = await anext(inbox)
            got = bytearray()

            async def read_on() -> None:
                async for piece in message:
                    got.extend(piece)

            with pytest.raises(AssemblyError) as caught:
                await read_on()
            assert caught.value.reason == Reason.DISCONNECTED
            assert DATA.startswith(bytes(got))
        await other.close()


async def test_a_stored_publish_goes_on_by_itself_after_a_cut(server, archive, nc):
    """Stored: the connection breaks several times, the publish waits for it and goes on, each chunk stored once."""
    async with relay(server) as wire:
        other = await penstock.connect(wire.url, reconnect_wait=0.05)

        async def cut() -> None:
            for part in (1, 2, 3):
                wire.cut_up_at = wire.up + len(DATA) // 5
                await eventually(lambda part=part: wire.cuts >= part, "a cut")

        cutting = asyncio.ensure_future(cut())
        subject = await archive.subject()
        message_id = await Publisher.persistent(other, archive.stream).publish(subject, DATA)
        await cutting
        await other.close()
    assert await archive.fetch(message_id) == DATA
    state = (await api_request(nc, f"STREAM.INFO.{archive.stream}"))["state"]
    assert state["messages"] == len(DATA) // (512 * 1024)


async def test_a_stored_publish_that_gave_up_is_continued_by_another_process(server, archive, nc):
    """Stored: where the way stays closed the publish gives up after its timeout, and elsewhere it is continued."""
    subject = await archive.subject()
    async with relay(server) as wire:
        other = await penstock.connect(wire.url, reconnect_wait=0.05)
        wire.cut_up_at, wire.refuse = wire.up + HALF, True
        with pytest.raises(UnfinishedError) as caught:
            await Publisher.persistent(other, archive.stream, timeout=0.5).publish(subject, DATA, message_id="moved")
        assert 0 < caught.value.confirmed <= HALF
        await other.close()
    before = nc.stats["out_bytes"]
    await Publisher.persistent(nc, archive.stream).publish(subject, DATA, message_id="moved")
    assert nc.stats["out_bytes"] - before <= len(DATA) - caught.value.confirmed + 10_000
    assert await archive.fetch("moved") == DATA


async def test_a_consumer_of_stored_messages_survives_a_cut(server, archive, nc):
    """Stored: cut while it reads a message, the consumer reads it again and delivers it once, whole."""
    got = []
    subject = await archive.subject()
    for name in ("one", "two"):
        await Publisher.persistent(nc, archive.stream).publish(subject, DATA, message_id=name)
    async with relay(server) as wire:
        other = await penstock.connect(wire.url, reconnect_wait=0.05, request_timeout=1.0)
        reader = Archive(other, archive.stream)
        wire.cut_down_at = wire.down + HALF
        async with reader.consume(lambda message_id, data: got.append((message_id, data)), "worker") as consumer:
            await eventually(lambda: consumer.delivered == 2, "both messages", timeout=60)
            assert wire.cuts == 1
        await other.close()
    assert sorted(got) == [("one", DATA), ("two", DATA)]
