"""The wires between clients and nodes: one relay for each node, all in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from penstock.server import Server
from tests.live.cable import Relay, relay


class Wires:
    """A relay in front of each node: cuts, holds, delays and refuses whatever passes."""

    def __init__(self, server: Server) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, about: None)  # a node that is down refuses: that is the test
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._open = AsyncExitStack()
        self._wires: list[Relay] = [self._run(self._open.enter_async_context(relay(node))) for node in server.nodes]
        self.url = ",".join(wire.url for wire in self._wires)
        """Where clients under test connect."""

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _each(self, act: Callable[[Relay], object]) -> None:
        for wire in self._wires:
            self._loop.call_soon_threadsafe(act, wire)

    def cut(self) -> None:
        """Break every connection; what is on the way is lost."""
        self._each(Relay.cut)

    def hold(self) -> None:
        """Carry nothing, both ways, until `heal`."""
        self._each(Relay.hold)

    def delay(self, seconds: float) -> None:
        """Hold up each piece that a node sends."""
        self._each(lambda wire: setattr(wire, "delay", seconds))

    def slow(self, seconds: float) -> None:
        """Let clients have only a little at a time: whatever is more stays with the node."""
        self._each(lambda wire: wire.slow(seconds))

    def refuse(self) -> None:
        """Break every connection, and let nobody in until `heal`."""
        self._each(lambda wire: setattr(wire, "refuse", True))
        self.cut()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let nobody in for a while, and break what is there; whoever was refused before stays so."""
        before = [wire.refuse for wire in self._wires]
        self.refuse()
        yield
        for wire, refused in zip(self._wires, before, strict=True):
            self._loop.call_soon_threadsafe(setattr, wire, "refuse", refused)

    def heal(self) -> None:
        """Carry everything again."""
        self._each(Relay.release)
        self._each(lambda wire: wire.slow(0.0))
        self._each(lambda wire: setattr(wire, "refuse", False))

    def close(self) -> None:
        """End the relays and their thread."""
        self._run(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
