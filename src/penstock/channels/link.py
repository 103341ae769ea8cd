"""A connection on which many requests are in flight at once, and frames for what goes out on it.

The gateway holds two: one to its clients, one to JetStream. Back pressure on the first, which stops the reading, must
not stop the answers of the second.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import Any

from penstock.connection import Connection
from penstock.errors import DeadlineError, DisconnectedError
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.answers import PubAck
from penstock.wire.jetstream.direct import DirectGet
from penstock.wire.jetstream.names import direct_get

__all__ = ["Link", "frame", "frame_with", "status_of"]


def frame(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Write PUB."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def frame_with(header: bytes, subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Write HPUB; `header` is a whole block."""
    size = len(header)
    if reply:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, size, size + len(payload), header, payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, size, size + len(payload), header, payload)


def status_of(header: bytes | None) -> int:
    """Give the status of a header block, zero for an ordinary message."""
    if header is None or header[8:9] != b" ":
        return 0
    code = header[9:12]
    return int(code) if code.isdigit() else 0


class Link:
    """Requests over one connection: each has a reply subject of its own below one inbox."""

    def __init__(self, client: Connection, timeout: float) -> None:
        self.client = client
        self.timeout = timeout
        self._inbox = f"{client.options.inbox_prefix}.{secrets.token_hex(11)}.".encode()
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Callable[[bytes, bytes | None], None]] = {}
        self._futures: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """Listen for answers."""
        await self.client.tap(f"{self._inbox.decode()}*", self._receive)

    def _receive(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        handler = self._waiting.get(subject)
        if handler is not None:
            handler(data, header)

    def disconnected(self) -> None:
        """Tell whoever waits that no answer will come."""
        for future in list(self._futures):
            if not future.done():
                future.set_exception(
                    DisconnectedError("The connection to JetStream was lost.", remedy="It is being made again.")
                )

    async def _gather(self, make: Callable[[bytes], bytes], hear: Callable[[bytes, bytes | None], bool]) -> None:
        """Send what `make` gives for a reply subject, and let `hear` have the answers until it says that it is all."""
        reply = b"%b%d" % (self._inbox, next(self._numbers))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def receive(data: bytes, header: bytes | None) -> None:
            if not future.done() and hear(data, header):
                future.set_result(None)

        self._waiting[reply] = receive
        self._futures.add(future)
        try:
            if not self.client.post(make(reply)):
                raise DisconnectedError("There is no connection to JetStream.", remedy="It is being made again.")
            async with asyncio.timeout(self.timeout):
                await future
        except TimeoutError:
            raise DeadlineError(
                f"JetStream did not answer in {self.timeout:g} s.",
                remedy="Is it overloaded, or has a cluster lost its majority?",
                seconds=self.timeout,
            ) from None
        finally:
            del self._waiting[reply]
            self._futures.discard(future)

    async def publish(self, stream: str, make: Callable[[bytes], bytes], count: int = 1) -> PubAck:
        """Send frames that store something, of which `count` are answered; give the last ack, or raise what is none."""
        answers: list[tuple[bytes, bytes | None]] = []

        def hear(data: bytes, header: bytes | None) -> bool:
            answers.append((data, header))
            return len(answers) == count

        await self._gather(make, hear)
        return [confirm(data, status_of(header) or None, stream) for data, header in answers][-1]

    async def get(self, stream: str, body: dict[str, Any]) -> list[tuple[bytes, bytes | None]]:
        """Read messages of a stream with a direct get: those that there are, in order."""
        subject = f"{self.client.options.js_prefix}.{direct_get(stream)}".encode()
        asked = DirectGet(stream, body)
        await self._gather(lambda reply: frame(subject, asked.payload, reply), asked.hear)
        return asked.result()
