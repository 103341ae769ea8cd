"""The wires between the nodes of a cluster: any two of them can be kept from hearing each other.

Every route goes through a relay in front of the node that is called; who calls is found by the process that holds the
other end. Clients still reach all nodes, also one that is cut off from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.server import Node, Server


def holder(port: int, pids: dict[str, int]) -> str:
    """Give the name of the node whose socket has this port at its own end; nothing if it is none of them."""
    wanted = f":{port:04X}"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(wanted):
            inodes.add(f"socket:[{words[9]}]")
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(file.readlink()) in inodes:
                        return name
    return ""


class Routes:
    """A relay in front of each node's route port."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, about: None)
        self._thread = threading.Thread(target=self._loop.run_forever, name="routes", daemon=True)
        self._thread.start()
        self._targets: dict[int, int] = {}
        self.delay = 0.0
        """Seconds for which each piece of what nodes say to each other is held up."""
        self._apart: set[frozenset[str]] = set()
        self._live: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        self._listeners = [self._run(self._listen(index)) for index in range(3)]
        self._ports = [listener.sockets[0].getsockname()[1] for listener in self._listeners]

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self, index: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(index, reader, writer)

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def _serve(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called = f"n{index + 1}"
        pids = {node.name: node.pid for node in self._server.nodes if node.pid} if self._apart else {}
        calling = holder(writer.get_extra_info("peername")[1], pids) if pids else ""
        mine = self._live.setdefault((calling, called), set())
        back: asyncio.StreamWriter | None = None
        try:
            if self._apart and (not calling or frozenset({calling, called}) in self._apart):
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._targets[index])
            mine |= {writer, back}
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        except OSError:
            return
        finally:
            for end in (writer, back):
                if end is not None:
                    end.close()
                    mine.discard(end)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        writer.close()

    def reroute(self, node: Node, text: str) -> str:
        """Give the configuration of a node with its routes through us."""
        known = node._deployment.routes
        assert known is not None
        for index, port in enumerate(known.ports):
            self._targets[index] = port
            text = text.replace(f'@127.0.0.1:{port}"', f'@127.0.0.1:{self._ports[index]}"')
        return text.replace(
            "no_advertise: true", f'no_advertise: true\n  advertise: "127.0.0.1:{self._ports[node._index]}"'
        )

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Have the nodes that are started now, and whenever they start again, take these routes."""
        plain = Node._configuration

        def routed(node: Node) -> str:
            return self.reroute(node, plain(node))

        Node._configuration = routed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Node._configuration = plain  # type: ignore[method-assign]
        for node in self._server.nodes:
            node._configuration = lambda node=node: self.reroute(node, plain(node))  # type: ignore[method-assign]

    def isolate(self, name: str) -> None:
        """Keep a node and the others apart."""
        apart = {frozenset({name, node.name}) for node in self._server.nodes if node.name != name}
        self._loop.call_soon_threadsafe(self._part, apart)

    def _part(self, apart: set[frozenset[str]]) -> None:
        """Cut everything: who called before is not known any more, and whoever may, calls again at once."""
        self._apart = apart
        for ends in self._live.values():
            for end in list(ends):
                end.transport.abort()

    def heal(self) -> None:
        """Let all hear each other again, at once."""
        self.delay = 0.0
        self._loop.call_soon_threadsafe(self._apart.clear)

    def close(self) -> None:
        """End the relays and their thread."""

        async def end() -> None:
            for listener in self._listeners:
                listener.close()
            self._part(set())

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
