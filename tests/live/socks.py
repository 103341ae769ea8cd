"""A SOCKS5 proxy for tests: real sockets, one thread a connection, and a record of who wanted what."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy(socketserver.ThreadingTCPServer):
    """Listens on loopback; `asked` holds the host and port of each CONNECT, `logins` each user and password."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, login: tuple[str, str] | None = None, reply: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.login, self.reply = login, reply
        self.asked: list[tuple[str, int]] = []
        self.logins: list[tuple[str, str]] = []
        self.names: dict[str, str] = {"nats.test": "127.0.0.1"}
        """Host names that this proxy alone knows."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Client(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        with contextlib.suppress(OSError, struct.error, IndexError):
            self._serve()

    def _take(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            if not (more := self.request.recv(count - len(got))):
                raise OSError("gone")
            got += more
        return got

    def _serve(self) -> None:
        methods = self._take(self._take(2)[1])
        wanted = 0 if self.server.login is None else 2
        self.request.sendall(bytes([5, wanted if wanted in methods else 0xFF]))
        if wanted not in methods:
            return
        if wanted:
            user = self._take(self._take(2)[1]).decode()
            self.server.logins.append((user, self._take(self._take(1)[0]).decode()))
            good = self.server.logins[-1] == self.server.login
            self.request.sendall(bytes([1, 0 if good else 1]))
            if not good:
                return
        kind = self._take(4)[3]
        if kind == 3:
            host = self._take(self._take(1)[0]).decode()
        else:
            size, family = {1: (4, socket.AF_INET), 4: (16, socket.AF_INET6)}[kind]
            host = socket.inet_ntop(family, self._take(size))
        port = struct.unpack(">H", self._take(2))[0]
        self.server.asked.append((host, port))
        if self.server.reply:
            self.request.sendall(bytes([5, self.server.reply, 0, 1]) + bytes(6))
            return
        with socket.create_connection((self.server.names.get(host, host), port), 10) as there:
            # The server's greeting often comes with the answer: both in one piece show who reads too much.
            greeting = there.recv(65536) if self._speaks_first(there) else b""
            self.request.sendall(b"\x05\x00\x00\x03\x04here\x00\x00" + greeting)
            self._relay(there)

    def _speaks_first(self, there: socket.socket) -> bool:
        return bool(select.select([there], [], [], 0.05)[0])

    def _relay(self, there: socket.socket) -> None:
        ways = {self.request: there, there: self.request}
        while True:
            for ready in select.select(list(ways), [], [])[0]:
                if not (data := ready.recv(65536)):
                    return
                ways[ready].sendall(data)


@contextmanager
def proxy(login: tuple[str, str] | None = None, reply: int = 0) -> Iterator[Proxy]:
    """Run a proxy until the end of the block; `reply` is what it answers instead of connecting."""
    with Proxy(login, reply) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(10)
