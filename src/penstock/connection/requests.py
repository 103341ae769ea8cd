"""Requests and exchanges of a connection: one subscription for all answers, a subject for each.

A request is one message and its first answer. An exchange is ready frames in one piece and as many answers as it takes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from penstock.connection.messages import HeaderValues, Payload
from penstock.connection.waiter import Lookout, Waiter
from penstock.errors import DeadlineError, DeniedError, DisconnectedError, NoRespondersError, PenstockError

if TYPE_CHECKING:
    from penstock.connection.connection import Connection
    from penstock.connection.subscription import Subscription

__all__ = ["Answer", "Requests", "late"]

_NOBODY = b"NATS/1.0 503"
_MOST_OWED = 1024  # subjects; of one that was forgotten the error callback is told
_OWED_FOR = 2.0  # seconds; the denials of what was sent together come together

Make = Callable[[bytes], bytes]
Hear = Callable[[bytes, bytes | None], bool]


def late(subject: str, seconds: float) -> DeadlineError:
    """Give the error for a question that has no answer in time."""
    return DeadlineError(
        f"No answer on {subject} in time ({seconds:g} s).",
        remedy="Is whoever answers there busy, or gone? A longer timeout may help.",
        seconds=seconds,
        subject=subject,
    )


Answer = tuple[bytes, bytes, bytes, bytes | None]  # subject, reply, payload, header block


class _Waiting:
    __slots__ = ("due", "future", "hear", "subjects", "timeout")

    def __init__(
        self,
        subjects: Collection[str],
        future: asyncio.Future[Any] | Waiter,
        due: float,
        timeout: float,
        hear: Hear | None,
    ) -> None:
        self.subjects, self.future, self.due, self.timeout, self.hear = subjects, future, due, timeout, hear

    @property
    def subject(self) -> str:
        return next(iter(self.subjects), "")


class Requests:
    """What was asked and has no answer yet. One timer serves them all: it runs until the first of them is due."""

    def __init__(self, connection: Connection) -> None:
        self.inbox: Subscription | None = None
        self._connection = connection
        self._prefix = f"{connection.options.inbox_prefix}.{secrets.token_hex(11)}."
        self._key = self._prefix.encode()
        self._number = 0
        self._waiting: dict[bytes, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0  # when the timer ends
        # Denials that are still to come for requests that have failed already: how many, and until when.
        self._owed: dict[str, tuple[int, float]] = {}
        self._stretch = 0  # of the connection, in which these are owed
        self._loop = asyncio.get_running_loop()

    async def ask(self, subject: str, payload: Payload, timeout: float | None, headers: HeaderValues | None) -> Answer:
        """Send a request and wait for its answer."""
        key = self._new_reply()
        future: asyncio.Future[Answer] = self._loop.create_future()
        # Who asks waits anyway, and must not wait for a server that takes no more beyond the timeout.
        self._connection.send_asking(subject, payload, key, headers)
        self._await(key, (subject,), future, timeout)
        try:
            return await future
        except BaseException:
            self._waiting.pop(key, None)
            raise

    def _await(
        self,
        key: bytes,
        subjects: Collection[str],
        future: asyncio.Future[Any] | Waiter,
        timeout: float | None,
        hear: Hear | None = None,
    ) -> None:
        if timeout is None:
            timeout = self._connection.options.request_timeout
        due = self._loop.time() + timeout
        self._waiting[key] = _Waiting(subjects, future, due, timeout, hear)
        if self._timer is None or due < self._rings:
            self._wind(due)

    def _wind(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings = self._loop.call_at(due, self._ring), due

    def _ring(self) -> None:
        """Fail what is due, and let the timer run on for what is left."""
        self._timer = None
        now = self._loop.time()
        for key in [key for key, item in self._waiting.items() if item.due <= now]:
            self._late(self._waiting.pop(key))
        if self._waiting:
            self._wind(min(item.due for item in self._waiting.values()))

    async def exchange(
        self, make: Make, hear: Hear, subjects: Collection[str], timeout: float | None, watch: Lookout | None = None
    ) -> None:
        """Send ready frames, and hear answers until one of them is the last."""
        key = self._new_reply()
        if not self._connection.post(make(key)):
            self._connection.check_open()
            raise DisconnectedError(
                "There is no connection now.", remedy="It is being made again.", urls=self._connection.options.urls
            )
        self._connection.push()  # it is in one piece already, and somebody waits for the answers
        future = Waiter(self._loop)
        self._await(key, subjects, future, timeout, hear)
        broken = self._connection.broken

        def broke(reason: asyncio.Future[PenstockError]) -> None:
            if not future.done():
                future.set_exception(
                    DisconnectedError(
                        f"The connection broke before the answer came: {reason.result()}".rstrip("."),
                        remedy="Whether the server had what was sent is not known.",
                        urls=self._connection.options.urls,
                    )
                )

        broken.add_done_callback(broke)
        try:
            await (future if watch is None else watch.wait(future))
        finally:
            broken.remove_done_callback(broke)
            self._waiting.pop(key, None)

    def _new_reply(self) -> bytes:
        if self.inbox is None or self.inbox.ended:
            self._connection.check_open()
            self.inbox = self._connection.subscribed(f"{self._prefix}*", "", tap=self._answered)
        self._number += 1
        return b"%b%d" % (self._key, self._number)

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        waiting = self._waiting.get(subject)
        if waiting is None or waiting.future.done():
            return  # it came too late, or is a second answer
        if waiting.hear is not None:
            if waiting.hear(payload, block):
                assert isinstance(waiting.future, Waiter)
                waiting.future.wake_now()  # who asked has waited for nothing else
            return
        del self._waiting[subject]
        assert isinstance(waiting.future, asyncio.Future)
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
            waiting.future.set_result((subject, reply, payload, block))

    def _late(self, waiting: _Waiting) -> None:
        if not waiting.future.done():
            error = late(waiting.subject, waiting.timeout)
            if not self._connection.is_connected:
                error.remedy = "The connection was lost and is being made again: is the server still running?"
            waiting.future.set_exception(error)

    def denied(self, error: DeniedError, inbox: Subscription | None) -> int:
        """Fail what the server denied: what was sent to the subject of the error, or all if our inbox was denied."""
        if inbox is not None and inbox is not self.inbox:
            return 0
        concerned = [item for item in self._waiting.values() if inbox is not None or error.subject in item.subjects]
        if inbox is None and error.subject is not None and error.subject.startswith(self._prefix):
            concerned += [self._waiting[key] for key in (error.subject.encode(),) if key in self._waiting]
        fresh = [item for item in concerned if not item.future.done()]
        for item in fresh:
            item.future.set_exception(error)
        if inbox is not None or error.subject is None:
            return len(concerned)
        return len(fresh) + self._denied_before(error.subject, concerned, len(fresh))

    def _denied_before(self, subject: str, concerned: list[_Waiting], fresh: int) -> int:
        """Tell whether a denial that fails nothing now belongs to what an earlier one has failed already.

        The server denies every message on its own. The first denial of a subject fails all that wait for it, so that
        the denials of the others are owed, and mean nothing new when they come. They are owed for a short time only: a
        request that was let through before its permission was taken has none, and must not hide a later one. How many
        messages an exchange sent is not known here: it takes what comes for as long as it is in the table.
        """
        if self._stretch != self._connection.stretch:
            self._stretch = self._connection.stretch
            self._owed.clear()
        now = self._loop.time()
        owed, until = self._owed.pop(subject, (0, now))
        if until < now:
            owed = 0
        left = owed + fresh - 1
        if left > 0:
            self._owed[subject] = left, now + _OWED_FOR
            if len(self._owed) > _MOST_OWED:
                del self._owed[next(iter(self._owed))]
        return 0 if fresh else min(owed, 1) or sum(item.hear is not None for item in concerned)

    def end(self, reason: PenstockError) -> None:
        """Fail everything: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for item in waiting.values():
            if not item.future.done():
                item.future.set_exception(reason)
