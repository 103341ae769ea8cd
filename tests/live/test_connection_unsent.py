"""What a connection could not send, could not hand on, or was told by the server: none of it is left unsaid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.errors import DisconnectedError, SlowSubscriptionError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.test_chunks_denied import reload
from tests.support import eventually


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def told(errors: list[Exception]) -> Any:
    async def tell(error: Exception) -> None:
        errors.append(error)

    return tell


async def test_what_was_kept_for_a_connection_that_never_came_back_is_told(server, unique, told, errors):
    """Closing while the connection is away drops what was published meanwhile: the error says how much."""
    async with relay(server) as wire:
        nc = await penstock.connect(wire.url, reconnect_wait=0.05, on_error=told)
        wire.refuse = True
        wire.cut()
        await eventually(lambda: nc.is_reconnecting, "the break")
        await nc.subscribe(unique("kept"))  # which is nothing that is lost
        await nc.publish(unique("kept"), bytes(1000))
        await nc.close()
        found = [error for error in errors if "never sent" in str(error)]
        assert len(found) == 1
        assert isinstance(found[0], DisconnectedError)
        assert "1,0" in str(found[0])


async def test_what_a_peer_does_not_take_before_the_end_is_told(server, unique, told, errors, monkeypatch):
    """Closing waits a while for a peer that does not read; what it did not take then is told."""
    monkeypatch.setattr("penstock.connection.connection.GOODBYE", 0.3)
    async with relay(server) as wire:
        nc = await penstock.connect(wire.url, on_error=told)
        wire.hold()
        while not nc.unsent:
            nc.send(unique("kept"), bytes(900_000))
        await nc.close()
        wire.release()
        assert any("never sent" in str(error) for error in errors)


async def test_closing_waits_for_what_goes_out_and_ends_once(server, unique, told, errors):
    """A peer that takes the last bytes while the connection is being closed gets them all, and nothing goes wrong."""
    subject, wrong = unique("kept"), []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: wrong.append(about))
    async with relay(server) as wire, await penstock.connect(server.url) as other:
        heard = await other.subscribe(subject)
        await other.flush()
        nc = await penstock.connect(wire.url, on_error=told)
        wire.hold()
        count = 0
        while not nc.unsent:
            nc.send(subject, bytes(900_000))
            count += 1
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)  # so that it has begun
        wire.release()
        await closing
        await eventually(lambda: heard.delivered == count, "all that was sent")
    assert errors == []
    assert wrong == []


async def test_a_connection_that_is_closed_when_all_was_sent_tells_nothing(server, unique, told, errors):
    """An orderly end is no error."""
    nc = await penstock.connect(server.url, on_error=told)
    for _ in range(100):
        await nc.publish(unique("kept"), bytes(10_000))
    await nc.close()
    assert errors == []


async def test_callbacks_get_what_had_come_when_a_connection_is_given_up(unique):
    """Nobody asked for that end: what waits for a slow callback is handled before the connection is closed."""
    subject, heard = unique("kept"), []
    with Server(sync="2m") as server:
        nc = await penstock.connect(server.url, reconnect=False)

        async def slow(message: Any) -> None:
            await asyncio.sleep(0.01)
            heard.append(message.data)

        subscription = await nc.subscribe(subject, cb=slow)
        for number in range(20):
            await nc.publish(subject, b"%d" % number)
        await eventually(lambda: subscription.delivered == 20, "all messages")
        await asyncio.to_thread(server.stop)
        await eventually(lambda: nc.is_closed, "the end")
        await nc.close()
    assert heard == [b"%d" % number for number in range(20)]


async def test_the_room_of_a_subscription_counts_headers(server, unique, told, errors):
    """Messages that are all headers fill a queue like any others, and the first that is dropped is told."""
    subject = unique("kept")
    async with await penstock.connect(server.url, on_error=told) as nc:
        subscription = await nc.subscribe(subject, pending_bytes_limit=20_000)
        for _ in range(50):
            await nc.publish(subject, b"", headers={"X": "y" * 1000})
        await nc.flush()
        assert subscription.dropped == 50 - subscription.pending_msgs > 25
        assert subscription.pending_bytes <= 20_000
        await eventually(lambda: [type(error) for error in errors] == [SlowSubscriptionError], "the error")
        while subscription.pending_msgs:
            await subscription.next_msg()
        assert subscription.pending_bytes == 0


async def test_what_the_server_says_as_it_hangs_up_is_told(unique, told, errors):
    """What was kept for a server that takes less than the one before: its reason reaches the error callback."""
    with Server(config="# here", auth=False, sync="2m") as server:
        async with await penstock.connect(server.url, reconnect_wait=0.05, on_error=told) as nc:
            await asyncio.to_thread(reload, server, "# here", "max_payload: 1000")
            await nc.publish(unique("kept"), bytes(100_000))
            await eventually(lambda: any("Maximum Payload" in str(error) for error in errors), "the reason")
