"""What tests of the blocking connection share: a relay that can cut and hold, a peer that talks nonsense, rows."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.server import Server
from penstock.wire.bulk import BulkConnection


class Relay:
    """Passes bytes between clients and a server on loopback, until it is told to cut them off.

    `cut_after` cuts a connection once so many bytes came from the server; each number serves one connection.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.cut_after: list[int] = []
        self.cut_after_sent: list[int] = []
        self.refusing = False
        self.refused = 0
        self.connections = 0
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, work: Any, *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                self.refused += 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self.connections += 1
                self._pairs.append((client, server))
                most = self.cut_after.pop(0) if self.cut_after else None
                most_sent = self.cut_after_sent.pop(0) if self.cut_after_sent else None
            self._start(self._pass, client, server, most, most_sent)

    def _pass(self, client: socket.socket, server: socket.socket, most: int | None, most_sent: int | None) -> None:
        passed = sent = 0
        with contextlib.suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        return self._close(client, server)
                    if one is server:
                        data = data if most is None else data[: most - passed]
                        passed += len(data)
                        client.sendall(data)
                    else:
                        data = data if most_sent is None else data[: most_sent - sent]
                        sent += len(data)
                        server.sendall(data)
                if (most is not None and passed >= most) or (most_sent is not None and sent >= most_sent):
                    return self._close(client, server)
        return self._close(client, server)

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._close(*pair)

    def close(self) -> None:
        """End the relay and its threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def url(self, server: Server) -> str:
        """Give the address of the server through this relay."""
        return f"nats://{server.token}@127.0.0.1:{self.port}"


@contextmanager
def relayed(server: Server) -> Iterator[Relay]:
    """Give a relay to a server."""
    relay = Relay(server.nodes[0].address)
    try:
        yield relay
    finally:
        relay.close()


@contextmanager
def speaking(*lines: bytes, hang_up: bool = False) -> Iterator[tuple[int, bytearray]]:
    """Listen on loopback: say the first line to whoever comes, and another one after each thing that is heard."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard = bytearray()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(0.05)
                rest = list(lines)
                if rest:
                    client.sendall(rest.pop(0))
                while not stop.is_set() and not hang_up:
                    try:
                        data = client.recv(65536)
                    except TimeoutError:
                        continue
                    if not data:
                        break
                    heard.extend(data)
                    if rest:
                        client.sendall(rest.pop(0))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def make_stream(bulk: BulkConnection, name: str, **config: Any) -> dict[str, Any]:
    """Create a stream that takes everything below its own name."""
    common = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "allow_direct": True}
    return bulk.api(f"STREAM.CREATE.{name}", {**common, "allow_atomic": True, "allow_batched": True, **config})


def rows(name: str, numbers: Iterable[int], *, kinds: int = 1, size: int = 0) -> pa.RecordBatch:
    """Make rows whose payload is their number, on `kinds` different subjects, padded to a size."""
    found = list(numbers)
    return pa.record_batch(
        {
            "subject": pa.array([f"{name}.{number % kinds}" for number in found], pa.string()),
            "data": pa.array([str(number).encode().ljust(size) for number in found], pa.binary()),
        }
    )


def fill(bulk: BulkConnection, name: str, count: int, *, kinds: int = 1, size: int = 0, first: int = 1) -> None:
    """Store rows numbered like their sequences."""
    done = bulk.publish(name, rows(name, range(first, first + count), kinds=kinds, size=size), "fast")
    assert done.rows == count


def numbers(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Give the sequences of batches, having checked that payloads say the same."""
    found = []
    for batch in batches:
        sequences = batch.column("sequence").to_pylist()
        assert [int(data) for data in batch.column("data").to_pylist()] == sequences
        found += sequences
    return found
