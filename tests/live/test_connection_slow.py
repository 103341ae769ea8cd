"""Slow subscriptions, callbacks that fail, and what a program is told of its connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.connection import Connection, Msg, connect
from penstock.errors import InputError, SlowSubscriptionError
from penstock.server import Server
from tests.live.cable import relay
from tests.support import eventually

Unique = Callable[..., str]


class Told:
    """An error callback that keeps what it is told."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def __call__(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def nc(server: Server, told: Told) -> AsyncIterator[Connection]:
    async with await connect(server.url, error_cb=told) as made:
        yield made


# -- slow subscriptions ------------------------------------------------------------------------------------------------


async def test_a_slow_callback_drops_and_tells(nc: Connection, told: Told, unique: Unique):
    """What finds the queue full is dropped, counted, and told once until the callback has caught up."""
    subject, go_on, got = unique("slow"), asyncio.Event(), []

    async def slow(message: Msg) -> None:
        await go_on.wait()
        got.append(message.data)

    subscription = await nc.subscribe(subject, cb=slow, pending_msgs_limit=5)
    await nc.publish(subject, b"0")
    await nc.flush()
    await eventually(lambda: subscription.pending_msgs == 0, "the first one being taken")
    for number in range(1, 20):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    assert (subscription.delivered, subscription.dropped, subscription.pending_msgs) == (20, 14, 5)
    await eventually(lambda: told.errors, "being told")
    (error,) = told.errors
    assert isinstance(error, SlowSubscriptionError)
    assert (error.subject, error.dropped) == (subject, 1)
    assert "5 wait" in str(error)
    assert "pending_msgs_limit" in error.remedy
    assert nc.stats["errors_received"] == 1
    go_on.set()
    await eventually(lambda: len(got) == 6, "what waited")
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5"], "what was kept came first"
    go_on.clear()
    for number in range(10):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    await eventually(lambda: len(told.errors) == 2, "being told again")
    assert told.errors[1].dropped > 14  # type: ignore[attr-defined]
    go_on.set()


async def test_a_slow_reader_drops_and_tells(nc: Connection, told: Told, unique: Unique):
    """The same for who reads: told once, and again after everything that waited was read."""
    subscription = await nc.subscribe(unique("slow"), pending_msgs_limit=3)
    for round_number in (1, 2):
        for number in range(5):
            await nc.publish(subscription.subject, b"%d" % number)
        await nc.flush()
        await eventually(lambda wanted=round_number: len(told.errors) == wanted, "being told")
        assert subscription.dropped == 2 * round_number
        assert [(await subscription.next_msg()).data for _ in range(3)] == [b"0", b"1", b"2"]
    await nc.publish(subscription.subject, b"fits")
    assert (await subscription.next_msg()).data == b"fits"
    assert len(told.errors) == 2


async def test_the_bytes_that_wait_are_bounded(nc: Connection, told: Told, unique: Unique):
    """Payloads count, too; 0 stands for no limit."""
    bounded = await nc.subscribe(unique("bytes"), pending_bytes_limit=1000)
    endless = await nc.subscribe(bounded.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    for _ in range(12):
        await nc.publish(bounded.subject, bytes(100))
    await nc.flush()
    assert (bounded.pending_msgs, bounded.pending_bytes, bounded.dropped) == (10, 1000, 2)
    assert (endless.pending_msgs, endless.dropped) == (12, 0)
    await bounded.next_msg()
    await nc.publish(bounded.subject, bytes(100))
    await nc.flush()
    assert (bounded.pending_msgs, bounded.dropped) == (10, 2)


async def test_a_slow_subscription_disturbs_no_other(nc: Connection, unique: Unique):
    """While one drops, others get everything, and requests are answered."""
    subject = unique("mixed")
    slow, quick, got = await nc.subscribe(subject, pending_msgs_limit=1), unique("service"), []

    async def received(message: Msg) -> None:
        got.append(message.data)

    async def answer(message: Msg) -> None:
        await message.respond(b"here")

    await nc.subscribe(subject, cb=received)
    await nc.subscribe(quick, cb=answer)
    for number in range(200):
        await nc.publish(subject, b"%d" % number)
    assert (await nc.request(quick, timeout=10)).data == b"here"
    assert got == [b"%d" % number for number in range(200)]
    assert slow.dropped == 199


# -- callbacks that fail -----------------------------------------------------------------------------------------------


async def test_a_callback_that_raises_gets_the_next_message(nc: Connection, told: Told, unique: Unique):
    """Whatever a callback raises is told, and the next message is handed to it all the same."""
    subject, got = unique("raises"), []

    async def fails(message: Msg) -> None:
        got.append(message.data)
        if message.data == b"1":
            raise ValueError("one")
        if message.data == b"2":
            raise TimeoutError

    await nc.subscribe(subject, cb=fails)
    for number in range(4):
        await nc.publish(subject, b"%d" % number)
    await eventually(lambda: len(got) == 4, "all of them")
    await eventually(lambda: [type(error) for error in told.errors] == [ValueError, TimeoutError], "being told")
    assert isinstance(nc.last_error, TimeoutError)
    assert nc.stats["errors_received"] == 2
    assert nc.is_connected


async def test_without_an_error_callback_the_log_tells(server: Server, unique: Unique, caplog):
    """A program that wants to be told nothing finds it in the log, without its secrets."""
    caplog.set_level(logging.WARNING, logger="penstock.connection")

    async def fails(message: Msg) -> None:
        raise ValueError(f"token {server.token}")

    async with await connect(server.url) as nc:
        subject = unique("raises")
        await nc.subscribe(subject, cb=fails)
        await nc.publish(subject)
        await eventually(lambda: nc.last_error is not None, "the failure")
    assert "token ***" in caplog.text
    assert str(server.token) not in caplog.text


async def test_a_tap_that_raises_does_no_harm(nc: Connection, told: Told, unique: Unique):
    """What a tap raises is told, and the reading goes on."""
    subject, got = unique("tap"), []

    def fails(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        got.append(payload)
        raise KeyError("tap")

    await nc.tap(subject, fails)
    for number in range(3):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    assert got == [b"0", b"1", b"2"]
    await eventually(lambda: [type(error) for error in told.errors] == [KeyError] * 3, "being told")
    assert nc.stretch == 1


# -- what a program is told --------------------------------------------------------------------------------------------


async def test_callbacks_come_in_order_one_by_one(server: Server, unique: Unique):
    """Callbacks of the connection never overlap, and come in the order of what happened, slow as they may be."""
    events: list[str] = []

    def note(what: str) -> Callable[..., Any]:
        async def callback(*_: Any) -> None:
            events.append(f"{what} begins")
            await asyncio.sleep(0.01)
            events.append(f"{what} ends")

        return callback

    async with relay(server) as wire:
        nc = await connect(
            wire.url,
            reconnect_wait=0.01,
            error_cb=note("error"),
            disconnected_cb=note("disconnected"),
            reconnected_cb=note("reconnected"),
            closed_cb=note("closed"),
        )
        for stretch in (2, 3):
            wire.cut()
            await eventually(lambda wanted=stretch: nc.stretch == wanted, "the next stretch")
        await nc.close()
    names = [event.split()[0] for event in events]
    assert names[::2] == names[1::2], "each ends before the next one begins"
    told = [name for name in names[::2] if name != "error"]
    assert told == ["disconnected", "reconnected", "disconnected", "reconnected", "closed"]


async def test_a_callback_of_the_connection_that_fails_is_logged(server: Server, caplog):
    """A callback that raises is logged, and those after it are called."""
    caplog.set_level(logging.ERROR, logger="penstock.connection")
    events = []

    async def fails() -> None:
        raise ValueError("callback")

    async def closed() -> None:
        events.append("closed")

    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=0.01, disconnected_cb=fails, closed_cb=closed)
        wire.cut()
        await eventually(lambda: nc.stretch == 2, "the next stretch")
        await nc.close()
    assert events == ["closed"]
    assert "A callback of the connection failed." in caplog.text


async def test_callbacks_have_two_names_and_are_coroutine_functions():
    """Ours and nats-py's name of a callback are one; giving both, or something that cannot be awaited, is refused."""

    async def callback(*_: Any) -> None:
        raise AssertionError

    for ours, theirs in (
        ("on_error", "error_cb"),
        ("on_disconnect", "disconnected_cb"),
        ("on_reconnect", "reconnected_cb"),
        ("on_close", "closed_cb"),
    ):
        with pytest.raises(InputError, match=f"{theirs} is given under two names"):
            await connect("nats://127.0.0.1:1", **{ours: callback, theirs: callback})
    for name in (
        "on_error",
        "error_cb",
        "disconnected_cb",
        "reconnected_cb",
        "closed_cb",
        "discovered_server_cb",
        "lame_duck_mode_cb",
    ):
        for wrong in ("text", print, lambda *_: None):
            with pytest.raises(InputError, match="is not a coroutine function"):
                await connect("nats://127.0.0.1:1", **{name: wrong})


async def test_stats_count_what_went_through(server: Server, unique: Unique):
    """Messages and bytes are counted both ways, over reconnections; what a server says besides is not counted."""
    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=0.01)
        assert nc.stats == {
            "in_msgs": 0,
            "out_msgs": 0,
            "in_bytes": 0,
            "out_bytes": 0,
            "reconnects": 0,
            "errors_received": 0,
        }
        subject = unique("stats")
        await nc.subscribe(subject)
        for stretch in (1, 2):
            for _ in range(10):
                await nc.publish(subject, bytes(100))
            await nc.flush(20)
            stats = nc.stats
            assert (stats["in_msgs"], stats["out_msgs"], stats["out_bytes"]) == (
                10 * stretch,
                10 * stretch,
                1000 * stretch,
            )
            assert stats["in_bytes"] > 1000 * stretch
            assert stats["reconnects"] == stretch - 1
            wire.cut()
            await eventually(lambda wanted=stretch: nc.stretch == wanted + 1, "the next stretch")
        await nc.close()
        assert nc.stats["in_msgs"] == 20


async def test_what_is_known_of_the_server(server: Server):
    """The connection says where it is connected, to what, and as whom, with nothing secret in it."""
    async with await connect(server.url, name="curious") as nc:
        assert nc.connected_url == f"nats://{server.nodes[0].address}"
        assert nc.connected_server_version == server.version
        assert nc.server_info["server_name"] == server.nodes[0].name
        assert nc.client_id == nc.server_info["client_id"]
        assert nc.max_payload == nc.server_info["max_payload"] == 1024 * 1024
        assert nc.servers == (nc.connected_url,)
        assert nc.options.name == "curious"
        assert 0 < await nc.rtt() < 5
        assert (nc.is_connected, nc.is_closed, nc.is_reconnecting, nc.is_connecting) == (True, False, False, False)
        assert nc.stretch == 1
        assert not nc.broken.done()
        with pytest.raises(TypeError):
            nc.server_info["max_payload"] = 1  # type: ignore[index]
        assert str(server.token) not in repr(nc)
