"""Large payloads: sends them in chunks, stores them, or receives them, as `role` says.

`plant`: "halves" says stored of a payload of which it stored nothing; "stalls" does nothing any more after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import zlib
from typing import Any

from penstock.chunks import Archive, Assembler, Publisher
from penstock.cli.running import first
from penstock.connection import connect
from penstock.errors import DataLossError, PenstockError
from tests.faults.history import Ledger

CHUNK = 16 * 1024
SIZES = (0, 5_000, 40_000, 200_000)


def payload(op: str) -> bytes:
    """Give the bytes that belong to an operation."""
    number = zlib.crc32(op.encode())
    return random.Random(number).randbytes(SIZES[number % len(SIZES)] + len(op))


def other(op: str) -> bytes:
    """Give other bytes for the same id: as many, so that a chunk of the one would fit into the other."""
    return payload(op)[::-1]


def digest(data: bytes) -> str:
    """Give a short name of some bytes."""
    return hashlib.sha256(data).hexdigest()[:24]


async def run(given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    """Do what the role says until it is over."""
    async with await connect(given["url"], reconnect_wait=0.1, request_timeout=5.0, name=given["client"]) as nc:
        await ROLES[given["role"]](nc, given, ledger, over)


async def _send(nc: Any, given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    """Send payload after payload; one that is stored is tried under its id until it is there."""
    stored = given["role"] == "store"
    subject = "stored.data" if stored else "core.data"
    publisher: Any = Publisher(nc, CHUNK, digest=True, timeout=5.0)
    if stored:
        publisher = Publisher.persistent(nc, "CHUNKS", CHUNK, timeout=5.0)
    number = 0
    while not over.is_set():
        number += 1
        if given.get("plant") == "stalls" and number > 5:
            await over.wait()
            return
        op = f"{given['client']}-{given['life']}-{number}"
        ledger.note("invoke", op)
        for tries in range(1, 20):
            try:
                if given.get("plant") != "halves" or number % 5:
                    await publisher.publish(subject, payload(op), message_id=op)
                ledger.note("ok", op, tries=tries)
                break
            except DataLossError as error:
                ledger.note("told", error=type(error).__name__, text=str(error))
            except PenstockError as error:
                if not stored or over.is_set():
                    ledger.note("unknown", op, why=f"{type(error).__name__}: {error}")
                    break
            await asyncio.sleep(0.3)
        else:
            ledger.note("unknown", op, why="tried too often")
        if number % 6 == 0:
            await _again(publisher, subject, op, ledger)
        await asyncio.sleep(0.05)


async def _again(publisher: Any, subject: str, op: str, ledger: Ledger) -> None:
    """Use an id for other bytes; what becomes of it is written down, and that it is tried before."""
    ledger.note("again", op)
    try:
        await publisher.publish(subject, other(op), message_id=op)
        ledger.note("again", op, stored=True)
    except PenstockError as error:
        ledger.note("again", op, why=f"{type(error).__name__}: {error}")


async def _receive(nc: Any, given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    count = 0

    def got(message_id: str, data: bytes) -> None:
        nonlocal count
        count += 1
        if given.get("plant") != "stalls" or count < 5:
            ledger.note("got", message_id, digest=digest(data))

    async with Assembler(nc, timeout=10.0, handler=got) as assembler:
        await assembler.subscribe("core.data")
        await over.wait()


async def _consume(nc: Any, given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    def got(message_id: str, data: bytes) -> None:
        ledger.note("got", message_id, digest=digest(data))

    async with Archive(nc, "CHUNKS", "stored.data").consume(got, durable="faults", ack_wait=3.0) as reading:
        await first(over.wait(), reading.wait())  # it ends with the error that ends the reading, to be started again


ROLES = {"send": _send, "store": _send, "receive": _receive, "consume": _consume}
