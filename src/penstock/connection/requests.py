"""Requests of a connection: one subscription for all answers, a subject for each."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from penstock.connection.messages import HeaderValues, Msg, Payload
from penstock.errors import DeadlineError, DeniedError, NoRespondersError, PenstockError

if TYPE_CHECKING:
    from penstock.connection.connection import Connection
    from penstock.connection.subscription import Subscription

__all__ = ["Requests"]

_NOBODY = b"NATS/1.0 503"


class _Waiting:
    __slots__ = ("future", "subject", "timeout")

    def __init__(self, subject: str, future: asyncio.Future[Msg], timeout: float) -> None:
        self.subject, self.future, self.timeout = subject, future, timeout


class Requests:
    """What was asked and has no answer yet."""

    def __init__(self, connection: Connection) -> None:
        self.inbox: Subscription | None = None
        self._connection = connection
        self._prefix = f"{connection.options.inbox_prefix}.{secrets.token_hex(11)}."
        self._number = 0
        self._waiting: dict[bytes, _Waiting] = {}
        self._loop = asyncio.get_running_loop()

    async def ask(self, subject: str, payload: Payload, timeout: float | None, headers: HeaderValues | None) -> Msg:
        """Send a request and wait for its answer."""
        if timeout is None:
            timeout = self._connection.options.request_timeout
        if self.inbox is None or self.inbox.ended:
            self.inbox = await self._connection.tap(f"{self._prefix}*", self._answered)
        self._number += 1
        reply = f"{self._prefix}{self._number}"
        key = reply.encode()
        future: asyncio.Future[Msg] = self._loop.create_future()
        self._waiting[key] = _Waiting(subject, future, timeout)
        timer = self._loop.call_later(timeout, self._late, key)
        try:
            await self._connection.publish(subject, payload, reply, headers)
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(key, None)

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        waiting = self._waiting.pop(subject, None)
        if waiting is None or waiting.future.done():
            return  # it came too late, or is a second answer
        if block is not None and not payload and block.startswith(_NOBODY):
            waiting.future.set_exception(
                NoRespondersError(
                    f"Nobody listens on {waiting.subject}.",
                    remedy="Is the service running, or, for JetStream, is it on and does a stream hold the subject?",
                    seconds=waiting.timeout,
                    subject=waiting.subject,
                )
            )
        else:
            waiting.future.set_result(Msg(self._connection, 0, subject, reply, payload, block))

    def _late(self, key: bytes) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_exception(
                DeadlineError(
                    f"No answer on {waiting.subject} in time ({waiting.timeout:g} s).",
                    remedy="Is whoever answers there busy, or gone? A longer timeout may help.",
                    seconds=waiting.timeout,
                    subject=waiting.subject,
                )
            )

    def denied(self, error: DeniedError, inbox: Subscription | None) -> int:
        """Fail what the server denied: requests to the subject of the error, or all where our inbox was denied."""
        if inbox is not None and inbox is not self.inbox:
            return 0
        concerned = [item for item in self._waiting.values() if inbox is not None or item.subject == error.subject]
        if inbox is None and error.subject is not None and error.subject.startswith(self._prefix):
            concerned += [self._waiting[key] for key in (error.subject.encode(),) if key in self._waiting]
        for item in concerned:
            if not item.future.done():
                item.future.set_exception(error)
        return len(concerned)

    def end(self, reason: PenstockError) -> None:
        """Fail everything: the connection is closed."""
        waiting, self._waiting = self._waiting, {}
        for item in waiting.values():
            if not item.future.done():
                item.future.set_exception(reason)
