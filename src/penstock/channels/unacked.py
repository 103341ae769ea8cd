"""What a client has published and the server has not acknowledged: at most so many messages."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack

from penstock.connection import Connection
from penstock.errors import PenstockError

__all__ = ["Unacked"]


class Unacked:
    """Futures of published messages by guid; each is done when the server answers for its message."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, tuple[asyncio.Future[None], str]] = {}
        # The messages on each subject, while there are any: when the server denies the subject, they all fail.
        self._sent: dict[str, tuple[set[str], ExitStack]] = {}
        self._room: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        """Wait until one message more may be on its way."""
        while len(self._waiting) >= self._most:
            self._room.append(room := asyncio.get_running_loop().create_future())
            try:
                await room
            except BaseException:
                if room in self._room:
                    self._room.remove(room)
                else:  # woken and cancelled at once: somebody else shall have the room
                    self.let_in()
                raise

    def add(self, connection: Connection, subject: str, guid: str) -> asyncio.Future[None]:
        """Give the future of a message that goes out on this subject; it fails at once if that is denied."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda future: self._gave_up(guid, future))
        self._waiting[guid] = (future, subject)
        if subject not in self._sent:
            _, watch = self._sent[subject] = set(), ExitStack()
            watch.enter_context(connection.expecting(subject, lambda error: self._deny(subject, error)))
        self._sent[subject][0].add(guid)
        return future

    def settle(self, guid: str, error: PenstockError | None = None) -> None:
        """Note the server's answer for a message."""
        future = self._forget(guid)
        self.let_in()
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _gave_up(self, guid: str, future: asyncio.Future[None]) -> None:
        """Take note that somebody waits for an ack no longer: he has given his place up, too."""
        if future.cancelled():
            self._forget(guid)
            self.let_in()

    def let_in(self) -> None:
        """Wake one who waits for room, if there is some: also for who was let in and then sends nothing."""
        while self._room and len(self._waiting) < self._most:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                break

    def _forget(self, guid: str) -> asyncio.Future[None] | None:
        found = self._waiting.pop(guid, None)
        if found is None:
            return None
        future, subject = found
        guids, watch = self._sent[subject]
        guids.discard(guid)
        if not guids:
            del self._sent[subject]
            watch.close()
        return future

    def _deny(self, subject: str, error: PenstockError) -> None:
        for guid in list(self._sent[subject][0]):
            self.settle(guid, error)

    def fail(self, reason: PenstockError) -> None:
        """Let everybody who waits go: no ack comes any more."""
        waiting = [self._forget(guid) for guid in list(self._waiting)]
        for future in [*waiting, *self._room]:
            if future is not None and not future.done():
                future.set_exception(reason)
                future.exception()  # whoever does not look has published without caring
        self._room.clear()
