"""Both sides of the bus, as `role` says: a handler that answers with numbered elements, and a requester that counts.

`plant`: "skips" leaves the last element out of some replies, "stalls" asks for nothing any more after a while.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock.bus import Bus, Request
from penstock.connection import connect
from penstock.errors import PenstockError
from tests.faults.clients.read import runs
from tests.faults.history import Ledger


async def run(given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    """Serve or ask until it is over."""
    async with (
        await connect(given["url"], reconnect_wait=0.1, request_timeout=5.0, name=given["client"]) as nc,
        Bus(nc, {"faults": 2}) as bus,
    ):
        if given["role"] == "serve":
            async with bus.serve("faults", _answer):
                await over.wait()
        else:
            await _ask(bus, given, ledger, over)


async def _answer(request: Any, sender: Any) -> None:
    begin, count = (int(word) for word in request.resource.split("-")[-2:])
    async with sender.sections() as out:
        out.array("numbers")
        for number in range(begin, begin + count):
            await out.send({"number": number, "of": request.resource, "fill": "x" * (number % 700)})


async def _ask(bus: Bus, given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    chance = random.Random(given["seed"] * 1000 + given["life"])
    asked = 0
    while not over.is_set():
        asked += 1
        if given.get("plant") == "stalls" and asked > 5:
            await over.wait()
            return
        begin, count = chance.randrange(1000), chance.choice([1, 30, 400])
        op = f"{given['client']}-{given['life']}-{asked}-{begin}-{count}"
        ledger.note("invoke", op, start=begin, end=begin + count)
        got: list[int] = []
        try:
            request = Request("faults", partition=asked % 2, resource=op)
            async with await bus.request(request, timeout=8.0) as reply:
                async for section in reply.sections():
                    async for element in section:
                        found = element.json()
                        got.append(found["number"] if found["of"] == op else -1)
            if given.get("plant") == "skips" and asked % 10 == 0:
                got = got[:-1]
            ledger.note("ok", op, got=runs(got))
        except PenstockError as error:
            ledger.note("unknown", op, why=f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.02)
