"""What live tests share: one real server for all of them, names of their own, and a way to wait for a fact."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.server import Server
from tests.live.bucketing import buckets  # noqa: F401  # a fixture for the tests of buckets in Spark
from tests.live.bus_pair import bus_connections, bus_pair  # noqa: F401  # fixtures for the tests of the bus
from tests.live.chunks import archive  # noqa: F401  # a fixture for the tests of stored chunks
from tests.live.inprocess import Peer
from tests.live.querying import query, streams  # noqa: F401  # fixtures for the tests of Spark's source
from tests.live.stan import Stan, cluster_of

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def peer(server: Server) -> Iterator[Peer]:
    """Somebody else on the server, for tests that run a command in this process."""
    made = Peer(server.url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One embedded server for the whole run. It syncs lazily: nothing here outlives a power cut."""
    with Server(sync="2m") as running:
        yield running


@pytest.fixture
def unique() -> Callable[..., str]:
    """Give names that no other test uses, fit for streams, consumers and subjects."""

    def name(prefix: str = "t") -> str:
        return f"{prefix}_{os.getpid()}_{next(_numbers)}"

    return name


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Wait until a predicate gives something true, and give that; fail when it never does."""

    def wait(predicate: Callable[[], Any], timeout: float = 30.0) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            if found := predicate():
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"{predicate} did not become true in {timeout:g} s")
            time.sleep(0.02)

    return wait


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[Connection]:
    """A connection to the shared server."""
    async with await connect(server.url) as made:
        yield made


NewStream = Callable[..., Awaitable[str]]


@pytest.fixture
def new_stream(nc: Connection, unique: Callable[..., str]) -> NewStream:
    """Create streams that take everything below their own name, with the fields that are given; give the name."""

    async def make(**fields: Any) -> str:
        name = unique("S")
        await assets.add_stream(nc, Stream(**{"name": name, "subjects": [f"{name}.>"], **fields}))
        return name

    return make


@pytest.fixture
async def stan(server: Server, unique: Callable[..., str]) -> AsyncIterator[Stan]:
    """A NATS Streaming cluster of its own name: gateways and clients that end with the test."""
    async with cluster_of(server.url, unique("c")) as made:
        yield made
