"""The inbox of a bus: one subscription for all its replies and misc streams, however many there are.

The reference subscribes and unsubscribes for every request and every sectioned reply. One wildcard subscription with a
name for each conversation costs the server nothing a request, and cannot leak. A conversation gets a message as it is
read from the socket: no queue stands between, and what a conversation holds is bounded by its window.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import ExitStack

from penstock.bus.limits import BusOptions, inbox_pattern
from penstock.bus.wire import Misc, MiscInbox, ReplyDecoder, Type
from penstock.connection import Connection, Msg, Subscription
from penstock.connection.connecting import check_connection
from penstock.connection.subscription import served
from penstock.errors import InputError, PenstockError

__all__ = ["Conversation", "Mailbox"]

log = logging.getLogger("penstock.bus")
# nats-server cuts a connection off that has 64 MiB waiting; all windows of a bus together stay well below.
BUDGET = 32 * 1024 * 1024
LEAST = 64 * 1024  # a window is never smaller: the plain protocol may have a whole message under way


class Conversation:
    """One side of a reply: what it hears arrives on a subject of its own, what it says goes to `target`."""

    def __init__(self, mail: Mailbox, target: str) -> None:
        self._mail, self._nc, self._options, self._target = mail, mail.nc, mail.options, target
        self._loop = asyncio.get_running_loop()
        self._expecting = ExitStack()  # whoever we publish to may turn out to be denied
        self._waiter: asyncio.Future[None] | None = None
        self.error: PenstockError | None = None

    def deliver(self, message: Msg) -> None:
        """Take a message."""
        raise NotImplementedError

    def fail(self, error: PenstockError) -> None:
        """Note an error, of which the first one counts: nothing comes any more, or the server lets nothing through."""
        self.error = self.error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Mailbox:
    """Gives every conversation a subject of its own, and brings it what arrives there."""

    def __init__(self, nc: Connection, options: BusOptions) -> None:
        self.nc, self.options = check_connection(nc), options
        self._prefix = f"{nc.new_inbox()}."
        self._inboxes = inbox_pattern((nc.options.inbox_prefix, *options.inboxes))
        self._conversations: dict[bytes, Conversation] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self.reserved = 0  # bytes of the windows that are open

    def __len__(self) -> int:
        return len(self._conversations)

    async def open(self, timeout: float = 10.0) -> None:
        """Subscribe, unless that was done; DeniedError if the server does not permit it."""
        if self._closed:
            raise InputError("This bus was closed.", remedy="Make a new one.")
        async with self._opening:
            if self._subscription is None or self._subscription.ended:
                made = await self.nc.tap(f"{self._prefix}*", self._received, on_end=self._ended)
                await served(made, timeout=timeout)
                self._subscription = made

    def add(self, conversation: Conversation) -> str:
        # Unguessable, so that one peer cannot answer in the name of another.
        subject = self._prefix + secrets.token_hex(8)
        self._conversations[subject.encode()] = conversation
        return subject

    def is_inbox(self, name: str) -> bool:
        """Tell whether a subject is one that a peer may have us publish to."""
        return self._inboxes.fullmatch(name) is not None

    def reserve(self, wanted: int) -> int:
        """Set bytes aside for a window: what is wanted, and less as the budget of all windows runs out."""
        share = min(wanted, max(LEAST, (BUDGET - self.reserved) // 8))
        self.reserved += share
        return share

    def conversations(self) -> list[Conversation]:
        return list(self._conversations.values())

    def remove(self, subject: str) -> None:
        """Forget a subject; what still arrives there is answered for a reader that left."""
        self._conversations.pop(subject.encode(), None)

    def _received(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        conversation = self._conversations.get(subject)
        if conversation is not None:
            conversation.deliver(Msg(self.nc, 0, subject, reply, data, block))
        elif data[:1] == bytes((Type.INBOX,)):
            self.decline(data)

    def decline(self, packet: bytes) -> None:
        """Tell a handler that begins a reply which nobody waits for, now, not when its patience ends."""
        try:
            inbox = ReplyDecoder().decode(packet)
            if isinstance(inbox, MiscInbox) and self.is_inbox(inbox.name):
                self.nc.send(inbox.name, bytes((Misc.NO_CONSUMER,)))
        except PenstockError as error:
            log.debug("a late handler could not be told: %s", error)

    def _ended(self, error: PenstockError) -> None:
        for conversation in self.conversations():
            conversation.fail(error)

    async def close(self) -> None:
        """Unsubscribe."""
        self._closed = True
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self.nc.is_closed:
            await subscription.unsubscribe()
