"""Messages that are read while they arrive: in order, with bounded memory, checked at the end."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable

from penstock.chunks.reading import PayloadReader
from penstock.chunks.store import UnreadStore
from penstock.chunks.wire import Reason
from penstock.errors import AssemblyError, InputError, PenstockError

__all__ = ["Inbox", "Incoming"]


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
        super().__init__()
        self.message_id = message_id
        self.subject = subject
        self.size: int | None = None
        """The size of the payload, once all of it has come."""
        self.unread = unread
        self._taken = taken
        self._wrong = wrong
        self._changed = asyncio.Event()
        self._error: AssemblyError | None = None
        self._whole = False
        self._expected: str | None = None
        self._verified = False
        self._discarded = False
        self._digest = hashlib.sha256()

    # -- what the assembler says --------------------------------------------------------------------

    def notify(self) -> None:
        """More has come."""
        self._changed.set()

    def complete(self, size: int, digest: str | None) -> None:
        """Everything has come."""
        self._whole, self.size, self._expected = True, size, digest
        self._changed.set()

    def fail(self, error: AssemblyError) -> None:
        """The rest will not come."""
        self._error = error
        self.unread.close()
        self._changed.set()

    # -- what the reader asks -----------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether there is nothing to read any more: all was read, it failed, or the reader does not want it."""
        return self._discarded or self._verified or self._error is not None

    def discard(self) -> None:
        """Let go of what came and will come; reading on is an error."""
        self._discarded = True
        self.unread.close()
        self._changed.set()
        self._taken()

    async def _next(self) -> bytes:
        while True:
            if self._discarded:
                raise InputError("The message was discarded.", remedy="Read it before you discard it.")
            if self._error is not None:
                raise self._error
            if (piece := self.unread.take()) is not None:
                self._digest.update(piece)
                self._taken()
                return piece
            if self._whole:
                return self._end()
            self._changed.clear()
            await self._changed.wait()  # the assembler's timeout ends this, too

    def _end(self) -> bytes:
        if not self._verified and self._expected is not None and self._digest.hexdigest() != self._expected:
            self._error = AssemblyError(
                f"Message {self.message_id} on {self.subject} does not have the digest that its publisher sent.",
                remedy="Throw away what was read of it.",
                subject=self.subject,
                message_id=self.message_id,
                reason=Reason.DIGEST,
                received=self.size,
                total=self.size,
            )
            self._taken()
            self._wrong(self._error)
            raise self._error
        if not self._verified:
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

    def close(self) -> None:
        """No more messages begin."""
        self._closed = True
        self._changed.set()

    def fail(self, error: PenstockError) -> None:
        """No more messages begin, and nobody here asked for that."""
        self._error = error
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
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
