"""Publishing on a connection: frames are put together and written once a turn of the event loop.

What is published while there is no connection waits for the next one; what is posted belongs to this one.
"""

from __future__ import annotations

import asyncio

from penstock.connection.base import BaseConnection
from penstock.connection.messages import LARGE, HeaderValues, Payload, as_bytes, as_text, is_lasting
from penstock.errors import DisconnectedError
from penstock.wire import protocol
from penstock.wire.session import check_size

__all__ = ["PublishingConnection"]

CHUNK = 64 * 1024  # bytes that are put together at most before they are written
PENDING = 8 * 1024 * 1024  # bytes that wait for a connection that is being made again
_SUBJECTS = 4096  # that were checked lately
_LONG = 4000  # bytes of subjects from which on the length of a line is looked at


class PublishingConnection(BaseConnection):
    """What goes out on a connection; `Connection` has the other verbs."""

    async def publish(
        self, subject: str, payload: Payload = b"", reply: str = "", headers: HeaderValues | None = None
    ) -> None:
        """Publish a message; waits while the server takes no more.

        While the connection is being made again up to 8 MiB are kept and sent then; more is a DisconnectedError.
        """
        waiting = -1 if reply or headers else self._outbox.post(subject, payload)
        if waiting < 0:
            waiting = self.send(subject, payload, reply, headers)
        elif not self._scheduled:
            self._schedule()
        wire = self._lifeline.wire
        if waiting >= CHUNK or (wire is not None and wire.full):
            await self.written()

    def is_full(self, waiting: int) -> bool:
        """Tell whether a publisher should wait, with `written`, so many bytes waiting here."""
        wire = self._lifeline.wire
        return waiting >= CHUNK or (wire is not None and wire.full)

    def send(self, subject: str, payload: Payload = b"", reply: str = "", headers: HeaderValues | None = None) -> int:
        """Publish a message without waiting for anything, and give how many bytes wait; `written` waits for room."""
        subjects = self._outbox.subjects
        name = subjects.get(subject) or self._checked(subject)
        answer = (subjects.get(reply) or self._checked(reply)) if reply else b""
        return self._send(name, subject, payload, answer, headers)

    def send_asking(self, subject: str, payload: Payload, reply: bytes, headers: HeaderValues | None) -> None:
        """Publish as `send` does, with a reply subject of our own, which is used once and needs no check."""
        if headers or self._outbox.post(subject, payload, reply) < 0:
            name = self._outbox.subjects.get(subject) or self._checked(subject)
            self._send(name, subject, payload, reply, headers)
        elif not self._scheduled:
            self._schedule()

    def _send(self, name: bytes, subject: str, payload: Payload, answer: bytes, headers: HeaderValues | None) -> int:
        block = protocol.encode_headers(headers) if headers else None
        content = payload if type(payload) is bytes or is_lasting(payload) else bytes(memoryview(payload))
        size = len(content) if block is None else len(content) + len(block)
        if size > self._most or len(name) + len(answer) > _LONG:
            check_size(len(name) + len(answer) + 24, size, self._most, subject)
        if not self._writes:
            self._check_publishable(size + len(name) + len(answer) + 24)
        elif len(content) >= LARGE:
            return self._send_apart(name, answer, block, content)
        if not self._scheduled:
            self._schedule()
        return self._outbox.publish(name, answer, block, content if type(content) is bytes else bytes(content))

    def _send_apart(self, name: bytes, answer: bytes, block: bytes | None, content: Payload) -> int:
        """Write a large payload from where it is, behind what waits: copying it takes longer than writing thrice."""
        wire = self._lifeline.wire
        assert wire is not None
        self._outbox.begin(name, answer, block, len(content))
        self._write_out()
        wire.write(content)
        wire.write(b"\r\n")
        return len(content)

    def send_checked(self, subject: bytes, payload: bytes, reply: bytes = b"", block: bytes | None = None) -> int:
        """Publish as `send` does, with subjects and a header block that need no check: the server's own, or ours."""
        size = len(payload) if block is None else len(payload) + len(block)
        if size > self._most:
            check_size(len(subject) + len(reply) + 24, size, self._most, as_text(subject))
        if not self._writes:
            self._check_publishable(size + len(subject) + len(reply) + 24)
        if not self._scheduled:
            self._schedule()
        return self._outbox.publish(subject, reply, block, payload)

    def send_within(self, stretch: int, subject: bytes, payload: bytes, reply: bytes = b"") -> int:
        """Publish as `send_checked` does, in one stretch of the connection only; 0, and nothing is sent, if it is over.

        What waits here to be written when the connection breaks is dropped, as what was posted.
        """
        if not self._writes or stretch != self._lifeline.stretch:
            self.check_open()
            if self._draining_pubs:
                raise self.drained("Publish")
            return 0
        before = self._outbox.size
        waiting = self.send_checked(subject, payload, reply)
        self._posted.append((before, waiting))
        return waiting

    def send_now(self, subject: bytes, payload: bytes) -> None:
        """Publish as `send_checked` does, and write it at once: the other side can do nothing before it has it."""
        wire = self._lifeline.wire
        if wire is None or not self._writes or len(payload) > self._most:
            self.send_checked(subject, payload)
            return
        outbox = self._outbox
        outbox.publish(subject, b"", None, payload)
        if self._posted:
            self._posted.clear()
        wire.write(outbox.take())

    def post(self, frames: bytes) -> bool:
        """Send ready frames, many in one piece; False, and nothing is sent or kept, while there is no connection."""
        if self._lifeline.wire is None:
            return False
        before = self._outbox.size
        self._posted.append((before, self._outbox.add(frames)))
        if not self._scheduled:
            self._schedule()
        return True

    def push(self) -> None:
        """Write what waits now, and not at the end of this turn: for answers that somebody waits for."""
        self._write_out()

    async def written(self) -> None:
        """Write what waits, and wait until the socket's queue has room; nothing while there is no connection."""
        self._write_out()
        wire = self._lifeline.wire
        if wire is not None and wire.full:
            await wire.writable()
        else:
            await asyncio.sleep(0)  # who publishes without end lets others have their turn

    def _schedule(self) -> None:
        """Have what waits written at the end of this turn of the loop."""
        self._scheduled = True
        self._loop.call_soon(self._write_out)

    def _write_out(self) -> None:
        self._scheduled = False
        wire = self._lifeline.wire
        if wire is not None and self._outbox.size:
            self._posted.clear()
            wire.write(self._outbox.take())

    def _checked(self, subject: str) -> bytes:
        # Filters of a consumer that is made stand in the subject of the request.
        raw = as_bytes(protocol.check_subject(subject, wildcards=subject.startswith(f"{self.options.js_prefix}.")))
        if len(subject) < 256:  # long ones are seldom used twice
            known = self._outbox.subjects
            if len(known) >= _SUBJECTS:
                known.clear()
            known[subject] = raw
        return raw

    def _check_publishable(self, size: int) -> None:
        self.check_open()
        if self._draining_pubs:
            raise self.drained("Publish")
        if self._outbox.size + size > PENDING:
            raise DisconnectedError(
                f"The connection is gone, and {self._outbox.size:,} bytes wait already for it to come back.",
                remedy="Is the server still running?",
                urls=self.options.urls,
            )
