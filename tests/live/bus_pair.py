"""Our own requester and handler, each with its own connection; tests/live/conftest.py offers the fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import penstock
from penstock.bus import Bus, Request


class Pair:
    """A requester and a handler, each with its own connection."""

    def __init__(self, queue: str, asking: Bus, serving: Bus) -> None:
        self.queue, self.asking, self.serving = queue, asking, serving
        self.caught: list[BaseException] = []

    async def request(self, **fields: Any):
        timeout = fields.pop("timeout", 10.0)
        return await self.asking.request(Request(self.queue, **fields), timeout=timeout)

    @asynccontextmanager
    async def served(self, handler, **options: Any) -> AsyncIterator[Any]:
        """Serve with a handler whose errors are kept."""

        async def kept(request, sender) -> None:
            try:
                await handler(request, sender)
            except BaseException as error:
                self.caught.append(error)
                raise

        async with self.serving.serve(self.queue, kept, **options) as service:
            yield service


@pytest.fixture
async def bus_connections(server):
    one, other = await penstock.connect(server.url), await penstock.connect(server.url)
    yield one, other
    await one.close()
    await other.close()


@pytest.fixture
def bus_pair(bus_connections, unique):
    """Make a requester and a handler; options of the requester have `asking_` before them."""

    @asynccontextmanager
    async def make(partitions: int = 1, **options: Any) -> AsyncIterator[Pair]:
        queue = unique("q")
        mine = {name.removeprefix("asking_"): value for name, value in options.items() if name.startswith("asking_")}
        theirs = {name: value for name, value in options.items() if not name.startswith("asking_")}
        one, other = bus_connections
        async with (
            Bus(one, {queue: partitions}, **mine) as asking,
            Bus(other, {queue: partitions}, **theirs) as serving,
        ):
            yield Pair(queue, asking, serving)
            assert asking.conversations == 0, "a reply was left behind"

    return make
