"""What tests of the console share: a server that nobody else fills, and those who look."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.server import Server
from tests.live.browser import Browser, address
from tests.live.command import Command
from tests.live.visitor import Visitor, visiting


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all of them: the overview looks at a number of streams, and other tests make more."""
    with Server(sync="2m") as running:
        yield running


@pytest.fixture(scope="session")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One console on the shared server, for all that only look."""
    command = Command(tmp_path_factory.mktemp("home"), server.url)
    with command.running("console") as child:
        found = Browser(address(child))
        child.wait_for("It shows")
        yield found
        assert child.interrupt() == 0


@pytest.fixture
async def visitor(server: Server) -> AsyncIterator[Visitor]:
    """One who looks at the shared server with the usual settings."""
    async with visiting(server.url) as made:
        yield made
