"""Publishes numbered messages as fast as it may, and writes down what became of each.

`plant` breaks it on purpose: "claims" says stored of what it never sent, "swaps" sends some in another order,
"alters" sends other bytes than it says, "stalls" stops working after a while, "leaks" leaves things behind.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import Any

from penstock.connection import connect
from penstock.errors import DataLossError, InputError, PenstockError
from penstock.jetstream import Publisher
from tests.faults.history import Ledger, content

_KEPT: list[Any] = []  # what a planted leak holds on to


async def run(given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    """Publish until it is over."""
    plant, order = given.get("plant", ""), given["order"]
    async with (
        await connect(given["url"], reconnect_wait=0.1, request_timeout=5.0, name=given["client"]) as nc,
        Publisher(nc, given["stream"], order=order, ack_timeout=2.0) as publisher,
    ):
        waiting: set[asyncio.Task[None]] = set()
        acked: deque[str] = deque(maxlen=20)
        old: deque[tuple[float, str]] = deque(maxlen=2000)
        number = 0

        async def settle(op: str, future: asyncio.Future[Any], again: bool) -> None:
            try:
                ack = await future
            except InputError as error:
                ledger.note("again" if again else "fail", op, why=str(error))
            except PenstockError as error:
                ledger.note("again" if again else "unknown", op, why=f"{type(error).__name__}: {error}")
                if isinstance(error, DataLossError):
                    ledger.note("told", error=type(error).__name__, text=str(error))
            else:
                more = {"duplicate": True} if ack.duplicate else {}
                ledger.note("again" if again else "ok", op, seq=ack.sequence, **more)
                acked.append(op)
                old.append((time.monotonic(), op))

        def named(count: int) -> str:
            if given.get("bare"):
                return str((given["place"] * 1000 + given["life"]) * 1_000_000 + count)
            return f"{given['client']}-{given['life']}-{count}"

        async def send(op: str, data: bytes, again: bool = False) -> None:
            future = await publisher.send(f"{given['stream']}.{given['client']}", data, id=op)
            task = asyncio.ensure_future(settle(op, future, again))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

        while not over.is_set():
            ops = [named(number + place) for place in range(given.get("burst", 4))]
            number += len(ops)
            for op in ops:
                ledger.note("invoke", op)
            if plant == "claims" and number % 40 == 0:
                ledger.note("ok", ops.pop(), seq=number)
            if plant == "swaps" and number % 40 == 0:
                ops[0], ops[1] = ops[1], ops[0]
            if plant == "stalls" and number > 100:
                await over.wait()
            if plant == "leaks":
                _leak(number)
                await nc.subscribe(f"left.{number}")
            if order == "sent" and number % 100 == 0 and acked:  # an id that is used again adds nothing
                await send(acked[-1], content(acked[-1], bool(given.get("bare"))), again=True)
            if number % 100 == 0 and (late := _forgotten(old, given.get("window"))):  # and one that is forgotten does
                await send(late, content(late), again=True)
            for op in ops:
                data = content(op, bool(given.get("bare")))
                if plant == "alters" and number % 40 == 0:
                    data = data[:-1] + b"#"
                await send(op, data)
            await asyncio.sleep(given.get("pause", 0.02))
        if plant == "leaks":
            tempfile.mkstemp(prefix="left-")
            _KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        while waiting:
            await asyncio.wait(set(waiting))


def _forgotten(old: deque[tuple[float, str]], window: float | None) -> str:
    """Give what was acknowledged longer ago than its stream knows ids; nothing if it knows them for long."""
    while window is not None and old and old[0][0] < time.monotonic() - window - 1.0:
        return old.popleft()[1]
    return ""


def _leak(number: int) -> None:
    _KEPT.append(os.open("/dev/null", os.O_RDONLY))
