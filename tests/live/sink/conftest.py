"""What tests of the sink share: a connection as a task has one, a stream that can be written to, and who writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from tests.live.sinking import Writer, make_stream


@pytest.fixture
def bulk(server: Server) -> Iterator[TaskConnection]:
    """A connection to the shared server."""
    with TaskConnection(ConnectionOptions(server.url)) as made:
        yield made


@pytest.fixture
def stream(bulk: TaskConnection, unique: Callable[..., str]) -> str:
    """A stream that is ready for the sink."""
    name = unique("SINK")
    make_stream(bulk, name)
    return name


@pytest.fixture
def writer(server: Server, stream: str) -> Writer:
    """A query that writes into the stream."""
    return Writer(server.url, stream)
