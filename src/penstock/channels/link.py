"""A connection on which many requests are in flight at once, and frames for what goes out on it.

The gateway holds two: one to its clients, one to JetStream. Back pressure on the first, which stops the reading, must
not stop the answers of the second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable
from typing import Any

from penstock.connection import Connection
from penstock.errors import DeadlineError, DisconnectedError, NoRespondersError, RemoteProtocolError
from penstock.wire.jetstream.answers import api_error

__all__ = ["Link", "frame", "frame_with", "status_of"]

Answer = tuple[bytes, "bytes | None"]


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

    async def _collect(self, make: Callable[[bytes], bytes], whole: Callable[[list[Answer]], bool]) -> list[Answer]:
        """Send what `make` gives for a reply subject, and gather answers until they are `whole`."""
        reply = b"%b%d" % (self._inbox, next(self._numbers))
        answers: list[Answer] = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def receive(data: bytes, header: bytes | None) -> None:
            answers.append((data, header))
            if whole(answers) and not future.done():
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
        return answers

    async def publish(self, make: Callable[[bytes], bytes]) -> dict[str, Any]:
        """Send frames that store something, and give JetStream's answer to the last; its errors are raised."""
        return (await self.publish_each(make, 1))[0]

    async def publish_each(self, make: Callable[[bytes], bytes], count: int) -> list[dict[str, Any]]:
        """Send frames of which `count` are answered, and give the answers; the first error among them is raised."""
        answers = await self._collect(make, lambda gathered: len(gathered) == count)
        return [_ack(*answer) for answer in answers]

    async def get(self, stream: str, request: dict[str, Any]) -> list[Answer]:
        """Read messages of a stream with a direct get: those that there are, in order."""
        subject = f"{self.client.options.js_prefix}.DIRECT.GET.{stream}".encode()
        content = json.dumps(request).encode()
        single = "batch" not in request

        def whole(gathered: list[Answer]) -> bool:
            return single or status_of(gathered[-1][1]) != 0

        answers = await self._collect(lambda reply: frame(subject, content, reply), whole)
        status = status_of(answers[-1][1])
        if status == 503:
            raise NoRespondersError(f"There is no stream {stream}.", remedy="Was it deleted?")
        if status not in (0, 204, 404):
            raise RemoteProtocolError(f"JetStream answers a direct get with status {status}.")
        return answers if status == 0 else answers[:-1]


def _ack(data: bytes, header: bytes | None) -> dict[str, Any]:
    if status_of(header) == 503:
        raise NoRespondersError("No stream takes the subject.", remedy="Was the stream deleted?")
    try:
        answer = json.loads(data)
    except ValueError:
        raise RemoteProtocolError(f"What answered is not JetStream: {data[:40]!r}.") from None
    if error := answer.get("error"):
        raise api_error(error)
    return dict(answer)
