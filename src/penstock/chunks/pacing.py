"""Makes a publisher wait for receivers that are slower, although core NATS has no way to.

The format has no answers, and a server drops a receiver that is some 64 MB behind. So once every few megabytes a chunk
carries a reply subject, `<inbox>.chunks.<bytes so far>`. Our receivers answer there, at once and again when they have
come further::

    <name> <position>      sixteen hex digits of the receiver's own, and the bytes that it has taken or has room for

A publisher stays `AHEAD` of the slowest of them at most. Receivers that do not know of this ignore the reply subject,
as they ignore any other, and are not waited for. Payloads below one window, and the headers and bodies of all others,
are the same bytes with and without.

Whether an answer is worth waiting for is known before it could come. Our receivers also listen on `_CHUNKS.<subject>`,
where nothing is ever sent but a question of a publisher, empty, once for a payload of more than a window. The server
itself answers it if nobody listens there: then no receiver of the payload will ever answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import ExitStack

from penstock.chunks.limits import Remembered
from penstock.connection import Connection, Subscription
from penstock.errors import PenstockError
from penstock.wire.protocol import decode_status

__all__ = ["AHEAD", "Pacing", "announce", "is_answerable"]

log = logging.getLogger("penstock.chunks")

AHEAD = 16 * 1024 * 1024
"""Bytes that a publisher is ahead of the slowest receiver at most, a quarter of what a server keeps for it."""
_GRACE = 1.0  # seconds for the first receiver to answer, if one is there that may; without success once a minute
_PATIENCE = 10.0  # seconds without an answer after which a receiver is not waited for any more
_MOST = 10_000  # receivers that are waited for; a name costs whoever answers nothing
_WHO = "who"  # where a number stands in the reply subjects of chunks
_ANSWER = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,20})")
_ANSWERABLE = re.compile(r"[^$.\s][^\s]*\.chunks\.[0-9]{1,20}")


def is_answerable(reply: str) -> bool:
    """Whether a reply subject is one of ours. Nobody shall make a receiver publish on a subject of the server."""
    return _ANSWERABLE.fullmatch(reply) is not None


def _beside(subject: str) -> str:
    """Give the subject that receivers who answer listen on beside that of the payloads, which may have wildcards."""
    return f"_CHUNKS.{subject}"


async def announce(nc: Connection, subscription: Subscription) -> Subscription:
    """Let publishers know that this subscriber answers; if that is denied, they learn it by the first answer."""

    def is_over() -> bool:
        """Tell whether nobody wants payloads any more; one that waits for its permission to come back does."""
        return subscription.ended and not subscription.lasting

    def asked(*message: object) -> None:
        """Say nothing: that the server has somebody to ask is the answer."""
        if is_over():
            nc.unsubscribe(made)

    def ended(error: PenstockError) -> None:
        made.lasting = made.lasting and not is_over()

    lasting = subscription.lasting
    made = await nc.tap(_beside(subscription.subject), asked, quiet=True, lasting=lasting, on_end=ended)
    return made


class Pacing:
    """What the receivers of one message have taken so far; a message that is `over` is not waited for."""

    def __init__(self, nc: Connection, subject: str, silence: Remembered, over: asyncio.Future[None]) -> None:
        self._nc, self._subject, self._silence, self._over = nc, subject, silence, over
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._taken: dict[bytes, tuple[int, float]] = {}  # by receiver: how far, and since when
        self._changed: asyncio.Future[None] = over.get_loop().create_future()
        self._waited = subject in silence
        self._nobody = False  # whether nobody listens at all
        self._foreign = False  # whether nobody listens who would answer
        self._crowded = False  # whether more answered than are waited for
        self._expecting = ExitStack()

    async def reply_to(self, position: int) -> str:
        """Give the subject on which receivers answer a chunk that ends at `position`."""
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            self._subscription = await self._nc.tap(f"{self._inbox}.chunks.*", self._answered)
            await self._ask_who_listens()
        return f"{self._inbox}.chunks.{position}"

    async def _ask_who_listens(self) -> None:
        """Ask where those listen who answer; the server says, before it confirms the chunk, if there are none.

        If we may not ask, nothing is known, and an answer is waited for.
        """
        question = _beside(self._subject)
        self._expecting.enter_context(self._nc.expecting(question, lambda error: None))
        await self._nc.publish(question, b"", f"{self._inbox}.chunks.{_WHO}")

    def _answered(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        if block is not None and decode_status(block)[0] == 503:
            if subject.endswith(_WHO.encode()):
                self._foreign = True
            else:
                self._nobody = True  # the server knows that nobody listens
        elif found := _ANSWER.fullmatch(data):  # a stream on the subject answers, too, and is not a receiver
            name, position = found[1], int(found[2])
            if name not in self._taken and len(self._taken) >= _MOST:
                self._pass_over()
            elif position > self._taken.get(name, (-1, 0.0))[0]:
                self._taken[name] = (position, time.monotonic())
        if not self._changed.done():
            self._changed.set_result(None)

    def _pass_over(self) -> None:
        if not self._crowded:
            self._crowded = True
            log.warning("More than %d receivers of %s answer; the others are not waited for.", _MOST, self._subject)

    async def wait(self, sent: int) -> None:
        """Wait until no receiver is further behind than it may be."""
        if sent < AHEAD or self._nobody:
            return
        if not self._waited and not self._taken:
            self._waited = True
            if not await self._until(lambda: bool(self._taken) or self._nobody or self._foreign, _GRACE):
                self._silence.add(self._subject)
        while behind := [name for name, (position, _) in self._taken.items() if position < sent - AHEAD]:
            oldest = min(behind, key=lambda name: self._taken[name][1])
            if not await self._moves(oldest, *self._taken[oldest]):
                if self._over.done():
                    return
                del self._taken[oldest]  # it is gone, or stuck; its own limits hold from here

    async def _moves(self, name: bytes, position: int, since: float) -> bool:
        return await self._until(lambda: self._taken[name][0] > position, since + _PATIENCE - time.monotonic())

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (found := true()) and not self._over.done() and (left := deadline - time.monotonic()) > 0:
            self._changed = self._over.get_loop().create_future()
            await asyncio.wait({self._changed, self._over}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return found

    async def close(self) -> None:
        self._expecting.close()
        if self._subscription is not None and not self._nc.is_closed:
            await self._subscription.unsubscribe()
