"""Payloads that are read piece by piece: as they arrive, in order, with bounded memory, checked at the end."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Self

from penstock.chunks.store import UnreadStore, join
from penstock.chunks.wire import Reason
from penstock.errors import AssemblyError, InputError, PenstockError

__all__ = ["Inbox", "Incoming", "PayloadReader"]


class PayloadReader(ABC):
    """Bytes in order: iterate over them as they come, or `read` as many as you want."""

    size: int | None = None
    """The size of the payload, once it is known."""

    def __init__(self, message_id: str, subject: str) -> None:
        self.message_id = message_id
        self.subject = subject
        self.position = 0
        """Bytes read so far."""
        self._rest = b""

    @abstractmethod
    async def _next(self) -> bytes:
        """Give the next bytes, or none at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece, self._rest = self._rest or await self._next(), b""
        if not piece:
            raise StopAsyncIteration
        self.position += len(piece)
        return piece

    async def read(self, size: int = -1) -> bytes:
        """Give up to `size` bytes, waiting for the first of them; nothing at the end. Without a size, all the rest."""
        if size < 0:
            return await join(self)
        if not self._rest:
            self._rest = await self._next()
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.position += len(piece)
        return piece

    def _broken(self, reason: Reason, what: str) -> AssemblyError:
        return AssemblyError(
            f"Message {self.message_id} on {self.subject} {what}.",
            remedy="Throw away what was read of it.",
            subject=self.subject,
            message_id=self.message_id,
            reason=reason,
            received=self.position,
            total=self.size,
        )


class Incoming(PayloadReader):
    """A message that is arriving: iterate over it for its bytes in order, or `read` them.

    The end of the iteration says that the payload was whole and its digest right. Until then the bytes are
    provisional: AssemblyError is raised if the rest never came, or was not what the publisher sent.
    """

    def __init__(
        self,
        message_id: str,
        subject: str,
        unread: UnreadStore,
        taken: Callable[[], None],
        wrong: Callable[[AssemblyError], None],
    ) -> None:
        super().__init__(message_id, subject)
        self.unread = unread
        self._taken = taken
        self._wrong = wrong
        self._changed = asyncio.Event()
        self._error: PenstockError | None = None
        self._expected: str | None = None
        self._verified = False
        self._digest = hashlib.sha256()

    # -- what the assembler says --------------------------------------------------------------------

    def notify(self) -> None:
        """More has come."""
        self._changed.set()

    def complete(self, size: int, digest: str | None) -> None:
        """Everything has come."""
        self.size, self._expected = size, digest
        self._changed.set()

    def fail(self, error: PenstockError) -> None:
        """The rest will not come."""
        self._error = error
        self.unread.close()
        self._changed.set()

    # -- what the reader asks -----------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether there is nothing to read any more: all was read, it failed, or the reader does not want it."""
        return self._verified or self._error is not None

    def discard(self) -> None:
        """Let go of what came and will come; reading on is an error."""
        self.fail(InputError("The message was discarded.", remedy="Read it before you discard it."))
        self._taken()

    async def _next(self) -> bytes:
        while True:
            if self._error is not None:
                raise self._error
            if (piece := self.unread.take()) is not None:
                self._digest.update(piece)
                self._taken()
                return piece
            if self.size is not None:
                return self._end()
            self._changed.clear()
            await self._changed.wait()  # the assembler's timeout ends this, too

    def _end(self) -> bytes:
        if self._verified:
            return b""
        if self._expected is not None and self._digest.hexdigest() != self._expected:
            self._error = error = self._broken(Reason.DIGEST, "does not have the digest that its publisher sent")
            self._taken()
            self._wrong(error)
            raise error
        self._verified = True
        self._taken()
        return b""


class Inbox:
    """The messages that arrive on one subject, each from its first chunk on; iterate over it.

    DeniedError is raised if the server does not permit the subject any more, DisconnectedError if the connection
    is closed for good.
    """

    def __init__(self, subject: str, window: int) -> None:
        self.subject = subject
        self.window = window
        self._messages: deque[Incoming] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._error: PenstockError | None = None

    def put(self, message: Incoming) -> None:
        """A message begins."""
        self._messages.append(message)
        self._changed.set()

    def close(self, error: PenstockError | None = None) -> None:
        """No more messages begin; there is an error if nobody here asked for that."""
        self._closed, self._error = True, error
        self._changed.set()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Incoming:
        while True:
            while self._messages:
                message = self._messages.popleft()
                if not message.gone:  # what failed before anybody saw it was reported
                    return message
            if self._closed:
                raise self._error or StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
