"""The inbox of a bus: one subscription for all its replies and misc streams, however many there are.

The reference subscribes and unsubscribes for every request and every sectioned reply. One wildcard
subscription with a name for each conversation costs the server nothing a request, and cannot leak.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Protocol

from penstock.bus.wire import Inbox, Misc, ReplyDecoder, Type
from penstock.errors import InputError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from penstock.connection import Connection, Msg, Subscription

__all__ = ["Mailbox", "Receiver"]

log = logging.getLogger("penstock.bus")
# nats-server cuts a connection off that has 64 MiB waiting; all windows of a bus together stay well below.
BUDGET = 32 * 1024 * 1024
LEAST = 64 * 1024  # a window is never smaller: the plain protocol may have a whole message under way


class Receiver(Protocol):
    """A conversation that waits for messages."""

    async def deliver(self, message: Msg) -> None:
        """Take a message; it must not wait for anything slow."""


class Mailbox:
    """Gives every conversation a subject of its own, and brings it what arrives there."""

    def __init__(self, client: Connection) -> None:
        self.client = client
        self._prefix = f"{client.new_inbox()}."
        self._receivers: dict[str, Receiver] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.reserved = 0  # bytes of the windows that are open

    def __len__(self) -> int:
        return len(self._receivers)

    async def open(self) -> None:
        """Subscribe, unless that was done."""
        if self._closed:
            raise InputError("This bus was closed.", remedy="Make a new one.")
        if self._subscription is None:
            async with self._opening:
                if self._subscription is None:
                    self._subscription = await self.client.subscribe(f"{self._prefix}*", cb=self._received)

    def add(self, receiver: Receiver) -> str:
        """Give a receiver a subject."""
        # Unguessable, so that one peer cannot answer in the name of another.
        subject = self._prefix + secrets.token_hex(8)
        self._receivers[subject] = receiver
        return subject

    def reserve(self, wanted: int) -> int:
        """Set bytes aside for a window: what is wanted, and less as the budget of all windows runs out."""
        share = min(wanted, max(LEAST, (BUDGET - self.reserved) // 8))
        self.reserved += share
        return share

    def receivers(self) -> list[Receiver]:
        """Give the conversations that are under way."""
        return list(self._receivers.values())

    def remove(self, subject: str) -> None:
        """Forget a subject; what still arrives there is answered for a reader that left."""
        self._receivers.pop(subject, None)

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish, and raise our own errors."""
        await self.client.publish(subject, data, reply=reply, headers=headers)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something small beside the rest; what goes wrong there is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s", error)

    async def _received(self, message: Msg) -> None:
        receiver = self._receivers.get(message.subject)
        if receiver is not None:
            await receiver.deliver(message)
        elif message.data[:1] == bytes((Type.INBOX,)):
            # A handler begins a reply that nobody waits for any more: tell it now, not when its patience ends.
            try:
                inbox = ReplyDecoder().decode(message.data)
                if isinstance(inbox, Inbox):
                    await self.publish(inbox.name, bytes((Misc.NO_CONSUMER,)))
            except PenstockError as error:
                log.debug("a late handler could not be told: %s", error)

    async def close(self) -> None:
        """Unsubscribe and wait for what is still being said."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self.client.is_closed and not self.client.is_draining:
            await subscription.unsubscribe()
