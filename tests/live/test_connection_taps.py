"""Taps: handlers on the wire itself, in its order, with payloads that are lent, and back pressure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import DeadlineError, InputError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.connecting import nothing_left_open, works
from tests.support import eventually

Unique = Callable[..., str]


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as made:
        yield made


async def test_a_tap_gets_everything_as_it_came(nc: Connection, unique: Unique):
    """Subject, reply, payload and header block are bytes, in the order of the wire."""
    subject, got = unique("tap"), []
    tap = await nc.tap(f"{subject}.*", lambda *given: got.append(given))
    await nc.publish(f"{subject}.a", b"1")
    await nc.publish(f"{subject}.b", b"2", reply="answer.here")
    await nc.publish(f"{subject}.c", b"3", headers={"A": "b"})
    await nc.flush()
    name = subject.encode()
    assert got == [
        (name + b".a", b"", b"1", None),
        (name + b".b", b"answer.here", b"2", None),
        (name + b".c", b"", b"3", b"NATS/1.0\r\nA: b\r\n\r\n"),
    ]
    assert nc.stats["in_msgs"] == 3
    assert (tap.subject, tap.pending_msgs, tap.ended) == (f"{subject}.*", 0, False)
    await tap.unsubscribe()
    await nc.publish(f"{subject}.d")
    await nc.flush()
    assert len(got) == 3
    assert tap.ended


async def test_taps_and_subscriptions_hear_in_one_order(nc: Connection, other: Connection, unique: Unique):
    """What several taps hear is one sequence, that of the server; a queue group of taps shares its messages."""
    subject, got, shared = unique("order"), [], []
    for number in range(3):
        await nc.tap(f"{subject}.{number}", lambda name, reply, payload, block: got.append(payload))
    for _ in range(2):
        await nc.tap(f"{subject}.*", lambda *given: shared.append(given[2]), queue="group")
    await nc.flush()
    for number in range(300):
        await other.publish(f"{subject}.{number % 3}", b"%d" % number)
    await other.flush()
    await nc.flush()
    assert got == [b"%d" % number for number in range(300)]
    assert shared == got


async def test_payloads_are_lent(nc: Connection, other: Connection, unique: Unique):
    """A borrower sees the payload where it was received, and not any longer; what is copied is right."""
    subject, views, kept = unique("lent"), [], []

    def borrow(name: bytes, reply: bytes, payload: memoryview, block: bytes | None) -> None:
        views.append(payload)
        kept.append(bytes(payload))

    await nc.tap(subject, borrow, lend=True)
    await nc.flush()
    sent = [bytes([number % 256]) * (number * 997 % 300_000) for number in range(60)]
    for payload in sent:
        await other.publish(subject, payload)
    await other.flush()
    await eventually(lambda: len(kept) == len(sent), "all of them")
    assert kept == sent
    for view in views:
        with pytest.raises(ValueError, match="released"):
            bytes(view)


async def test_back_pressure_stops_the_reading(nc: Connection, other: Connection, unique: Unique):
    """While a tap waits nothing more is handed out to anybody, what it borrowed stays, and order is kept."""
    subject, got = unique("slow"), []
    gate = asyncio.Event()
    lent: list[memoryview] = []

    async def work(payload: memoryview) -> None:
        await gate.wait()
        got.append(bytes(payload[:8]))
        payload.release()

    def slow(name: bytes, reply: bytes, payload: memoryview, block: bytes | None) -> Any:
        lent.append(payload)
        return work(payload)

    quick = await nc.subscribe(subject)
    await nc.tap(subject, slow, lend=True)
    await nc.flush()
    for number in range(50):
        await other.publish(subject, b"%08d" % number + bytes(20_000))
    await other.flush()
    await eventually(lambda: lent, "the first one")
    before = quick.delivered  # the server serves the two in any order
    assert before <= 1
    with pytest.raises(DeadlineError):
        await nc.flush(0.1)
    assert (len(lent), quick.delivered) == (1, before)
    assert bytes(lent[0][:8]) == b"00000000", "what was lent is as it was, however much has come since"
    gate.set()
    await nc.flush(20)
    await eventually(lambda: len(got) == 50, "all of them")
    assert got == [b"%08d" % number for number in range(50)]
    assert (quick.delivered, nc.stretch) == (50, 1)


async def test_what_a_tap_waits_for_may_fail(nc: Connection, unique: Unique, caplog):
    """A wait that raises is logged, and the reading goes on."""
    caplog.set_level(logging.ERROR, logger="penstock.connection")
    subject, got = unique("fails"), []

    async def fail() -> None:
        raise ValueError("on purpose")

    def slow(name: bytes, reply: bytes, payload: bytes, block: bytes | None) -> Any:
        got.append(payload)
        return fail()

    await nc.tap(subject, slow)
    for number in range(3):
        await nc.publish(subject, b"%d" % number)
    await nc.flush(10)
    assert got == [b"0", b"1", b"2"]
    assert caplog.text.count("The function that held up the reading failed") == 3


@pytest.mark.parametrize("end", ["close", "break"])
async def test_an_end_while_the_reading_is_held_up(server: Server, unique: Unique, end: str):
    """A connection can be closed, or break and come back, while a tap waits; nothing comes twice or in between."""
    subject, got, gate = unique("held"), [], asyncio.Event()

    async def wait(payload: bytes) -> None:
        got.append(b"began " + payload)
        await gate.wait()
        got.append(b"ended " + payload)

    async with relay(server) as wire, await connect(server.url) as other, nothing_left_open():
        nc = await connect(wire.url, reconnect_wait=0.02, ping_interval=0.05)
        await nc.tap(subject, lambda name, reply, payload, block: wait(payload))
        await nc.flush()
        for number in range(5):
            await other.publish(subject, b"%d" % number)
        await eventually(lambda: got == [b"began 0"], "the first one")
        if end == "close":
            async with asyncio.timeout(15):
                await nc.close()
            gate.set()
            await asyncio.sleep(0)
            assert got == [b"began 0"]
        else:
            wire.cut()
            gate.set()
            await eventually(lambda: nc.stretch == 2, "the connection coming back")
            await nc.flush(20)
            await other.publish(subject, b"after")
            await eventually(lambda: got[-1] == b"ended after", "the last one")
            assert got[:2] == [b"began 0", b"ended 0"]
            begun = [text for text in got if text.startswith(b"began")]
            assert len(begun) == len(set(begun)), "nothing comes twice"
            assert await works(nc)
            await nc.close()


async def test_a_borrower_that_keeps_what_was_lent(nc: Connection, unique: Unique):
    """A view of a view that is kept beyond its time breaks the rule, and not the connection."""
    subject, kept = unique("keeps"), []

    def keep(name: bytes, reply: bytes, payload: memoryview, block: bytes | None) -> None:
        kept.append(payload[1:])

    await nc.tap(subject, keep, lend=True)
    for number in range(3):
        await nc.publish(subject, b"x%d" % number)
    await nc.flush()
    assert len(kept) == 3
    assert await works(nc)
    assert nc.stretch == 1


async def test_a_borrower_that_holds_what_was_lent(nc: Connection, unique: Unique):
    """Where something holds on to the buffer itself that is known, and told."""
    import pyarrow

    subject, kept = unique("keeps"), []
    await nc.tap(subject, lambda name, reply, payload, block: kept.append(pyarrow.py_buffer(payload)), lend=True)
    for number in range(3):
        await nc.publish(subject, b"x%d" % number)
    await nc.flush()
    assert len(kept) == 3
    assert await works(nc)
    assert nc.stretch == 1
    assert isinstance(nc.last_error, BufferError)


async def test_a_tap_cannot_be_read(nc: Connection, unique: Unique):
    """A tap's messages go to its handler alone."""
    tap = await nc.tap(unique("tap"), lambda *given: None)
    with pytest.raises(InputError, match="handler"):
        await tap.next_msg(timeout=5)
    with pytest.raises(InputError, match="handler"):
        _ = tap.messages
