"""Large payloads go to the socket from where they are: the same frames, in order, whatever buffer they are in."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.connection import Msg, connect
from penstock.connection.messages import LARGE
from penstock.server import Server
from tests.live.cable import relay
from tests.support import eventually

DATA = bytes(range(256)) * 2048  # 512 KiB
KINDS: dict[str, Any] = {
    "bytes": lambda: DATA,
    "a view of bytes": lambda: memoryview(DATA + b"more")[: len(DATA)],
    "a bytearray": lambda: bytearray(DATA),
    "a view of a bytearray": lambda: memoryview(bytearray(DATA)),
    "a view of wide items": lambda: memoryview(DATA).cast("Q"),
    "a view with gaps": lambda: memoryview(bytes(byte for byte in DATA for _ in range(2)))[::2],
    "just large": lambda: memoryview(DATA)[:LARGE],
    "just not large": lambda: memoryview(DATA)[: LARGE - 1],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_buffer_arrives_between_others(server: Server, unique, kind: str) -> None:
    """A large payload arrives whole, with headers and reply, behind what was sent before it and before the rest."""
    subject, got = unique("large"), []
    payload = KINDS[kind]()

    async def received(message: Msg) -> None:
        got.append((message.data, message.reply, message.headers))

    async with await connect(server.url) as other, await connect(server.url) as nc:
        await other.subscribe(subject, cb=received)
        await other.flush()
        nc.send(subject, b"before")
        nc.send(subject, payload, "answers", {"Kind": kind})
        nc.send(subject, payload)
        nc.send(subject, b"after")
        await eventually(lambda: len(got) == 4, "all four")
        assert got == [
            (b"before", "", None),
            (bytes(payload), "answers", {"Kind": kind}),
            (bytes(payload), "", None),
            (b"after", "", None),
        ]
        assert nc.stats["out_msgs"] == 4


async def test_a_buffer_may_be_filled_anew_at_once(server: Server, unique) -> None:
    """What was sent is what the buffer held then, although the socket took most of it later."""
    subject, got, buffer = unique("large"), [], bytearray(1024 * 1024 - 100)

    async def received(message: Msg) -> None:
        got.append(set(message.data))

    async with await connect(server.url) as other, await connect(server.url) as nc:
        await other.subscribe(subject, cb=received)
        await other.flush()
        for number in range(20):
            buffer[:] = bytes([number]) * len(buffer)
            nc.send(subject, buffer if number % 2 else memoryview(buffer))
        await nc.written()
        await eventually(lambda: len(got) == 20, "all of them")
    assert got == [{number} for number in range(20)]


async def test_a_break_in_a_large_payload_leaves_nothing_for_the_next_connection(server: Server, unique) -> None:
    """What was cut off is gone: the next connection begins clean, and carries what is sent on it."""
    subject, got = unique("large"), []
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as nc:
        await nc.tap(subject, lambda name, reply, data, block: got.append(data))
        await nc.flush()
        wire.cut_up_at = wire.up + len(DATA) // 2
        nc.send(subject, DATA)
        await eventually(lambda: nc.stretch == 2, "the next connection")
        nc.send(subject, DATA)
        nc.send(subject, b"small")
        await eventually(lambda: len(got) == 2, "both messages")
        assert got == [DATA, b"small"]
        assert nc.stretch == 2
        assert nc.stats["errors_received"] == 0


async def test_large_payloads_wait_for_a_connection(server: Server, unique) -> None:
    """Without a connection they are kept as any other message is, and sent once it stands again."""
    subject, got = unique("large"), []
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as nc:
        await nc.tap(subject, lambda name, reply, data, block: got.append(len(data)))
        await nc.flush()
        wire.refuse = True
        wire.cut()
        await eventually(lambda: not nc.is_connected, "the break")
        for _ in range(6):
            nc.send(subject, DATA)
        wire.refuse = False
        await eventually(lambda: len(got) == 6, "what waited")
        assert got == [len(DATA)] * 6
        assert nc.pending_data_size == 0
