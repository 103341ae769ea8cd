"""Makes a publisher wait for receivers that are slower, although core NATS has no way to.

The format has no answers, and a server drops a receiver that is some 64 MB behind. So once every few megabytes a chunk
carries a reply subject, `<inbox>.chunks.<bytes so far>`. Our receivers answer there, at once and again when they have
come further::

    <name> <position>      sixteen hex digits of the receiver's own, and the bytes that it has taken or has room for

A publisher stays `AHEAD` of the slowest of them at most. Receivers that do not know of this ignore the reply subject,
as they ignore any other, and are not waited for. Payloads below one window, and the headers and bodies of all others,
are the same bytes with and without.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg, Subscription

__all__ = ["AHEAD", "Flow", "Silence", "is_answerable", "receiver_name"]

AHEAD = 16 * 1024 * 1024
"""Bytes that a publisher is ahead of the slowest receiver at most, a quarter of what a server keeps for it."""
_GRACE = 1.0  # seconds for the first receiver to answer, once for each publisher and subject
_PATIENCE = 10.0  # seconds without an answer after which a receiver is not waited for any more
_LOOK = 0.1
_ANSWER = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,20})")
_ANSWERABLE = re.compile(r"[^$.\s][^\s]*\.chunks\.[0-9]{1,20}")


def receiver_name() -> bytes:
    """Make up the name that a receiver answers with."""
    return secrets.token_hex(8).encode()


def is_answerable(reply: str) -> bool:
    """Whether a reply subject is one of ours. Nobody shall make a receiver publish on a subject of the server."""
    return _ANSWERABLE.fullmatch(reply) is not None


class Silence:
    """Subjects on which nobody answered lately, so that a publisher need not wait for an answer again."""

    def __init__(self, seconds: float = 60.0, most: int = 1024) -> None:
        self._seconds, self._most = seconds, most
        self._until: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, subject: object) -> bool:
        return self._until.get(str(subject), 0.0) > time.monotonic()

    def add(self, subject: str) -> None:
        """Remember a subject for a while."""
        self._until[subject] = time.monotonic() + self._seconds
        while len(self._until) > self._most:
            self._until.popitem(last=False)


class Flow:
    """What the receivers of one message have taken so far."""

    def __init__(self, nc: Connection, subject: str, silence: Silence, check: Callable[[], None]) -> None:
        self._nc = nc
        self._subject = subject
        self._silence = silence
        self._check = check
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._taken: dict[bytes, tuple[int, float]] = {}  # by receiver: how far, and since when
        self._changed = asyncio.Event()
        self._waited = subject in silence
        self._nobody = False

    async def reply_to(self, position: int) -> str:
        """Give the subject on which receivers answer a chunk that ends at `position`."""
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            self._subscription = await self._nc.subscribe(f"{self._inbox}.chunks.*", cb=self._answered)
        return f"{self._inbox}.chunks.{position}"

    async def _answered(self, message: Msg) -> None:
        if message.headers and message.headers.get("Status") == "503":
            self._nobody = True  # the server knows that nobody listens
        elif found := _ANSWER.fullmatch(message.data):  # a stream on the subject answers, too, and is no receiver
            name, position = found[1], int(found[2])
            if position > self._taken.get(name, (-1, 0.0))[0]:
                self._taken[name] = (position, time.monotonic())
        self._changed.set()

    async def wait(self, sent: int) -> None:
        """Wait until no receiver is further behind than it may be."""
        if sent < AHEAD or self._nobody:
            return
        if not self._waited and not self._taken:
            self._waited = True
            await self._until(lambda: bool(self._taken) or self._nobody, _GRACE)
            if not self._taken and not self._nobody:
                self._silence.add(self._subject)
        while behind := [name for name, (position, _) in self._taken.items() if position < sent - AHEAD]:
            now = time.monotonic()
            oldest = min(behind, key=lambda name: self._taken[name][1])
            if (left := self._taken[oldest][1] + _PATIENCE - now) <= 0:
                del self._taken[oldest]  # it is gone, or stuck; its own limits hold from here
                continue
            before = dict(self._taken)
            await self._until(lambda before=before: self._taken != before, left)  # type: ignore[misc]  # a lambda

    async def _until(self, true: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK)):
                    await self._changed.wait()
            self._check()

    async def close(self) -> None:
        """Stop listening for answers."""
        if self._subscription is not None and not self._nc.is_closed:
            with suppress(PenstockError):
                await self._subscription.unsubscribe()
