"""What tests of connections share: addresses, a round trip, and what a refused connection must look like."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import (
    PenstockError,
)
from penstock.server import Server
from tests.support import eventually


def plain(server: Server) -> str:
    """Give the address of a server without its token."""
    return f"nats://{server.nodes[0].address}"


async def works(nc: Connection) -> bool:
    """Send a message through the server and back."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(inbox, b"hello")
    return (await subscription.next_msg(timeout=10)).data == b"hello"


def listed(server: Server) -> list[dict[str, Any]]:
    """Give the server's own list of its connections."""
    with urllib.request.urlopen(f"{server.nodes[0].monitor_url}/connz", timeout=10) as page:
        return list(json.load(page)["connections"])


@asynccontextmanager
async def nothing_left_open() -> AsyncIterator[None]:
    """Check that a failed attempt leaves neither a task nor a socket of its own behind."""
    before = asyncio.all_tasks()
    loop: Any = asyncio.get_running_loop()
    watched = set(loop._selector.get_map()) if hasattr(loop, "_selector") else set()
    yield
    await eventually(lambda: not asyncio.all_tasks() - before, "the tasks of the attempt ending", timeout=5)
    now = set(loop._selector.get_map()) if hasattr(loop, "_selector") else set()
    assert now <= watched, "a socket is still being watched"


async def refused(kind: type[PenstockError], says: str, *given: Any, **options: Any) -> PenstockError:
    """Connect, and give the error; it is one sentence of the right kind, in time, with nothing left open."""
    # Only a silent peer may use up the timeout, and the second that a goodbye takes; others fail at once.
    limit = options["connect_timeout"] + 5 if "connect_timeout" in options else 30.0
    options.setdefault("connect_timeout", 30.0)
    secrets = [options[name] for name in ("token", "password", "nkey", "credentials") if options.get(name)]
    begun = time.monotonic()
    async with nothing_left_open():
        with pytest.raises(kind, match=says) as caught:
            await connect(*given, **options)
    error = caught.value
    assert time.monotonic() - begun < limit
    assert "\n" not in str(error)
    assert error.remedy
    for secret in secrets:
        assert secret not in f"{error} {error!r} {error.facts} {error.__cause__}"
    return error


def free_port() -> int:
    """Give a port where nobody listens: it was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
