"""The inbox of a bus: one subscription for all its replies and misc streams, however many there are.

The reference subscribes and unsubscribes for every request and every sectioned reply. One wildcard subscription with a
name for each conversation costs the server nothing a request, and cannot leak. A conversation gets a message as it is
read from the socket: no queue stands between, and what a conversation holds is bounded by its window.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os

from penstock.bus.limits import BusOptions, inbox_pattern
from penstock.bus.wire import Misc, MiscInbox, ReplyDecoder, Type
from penstock.connection import Connection, Subscription
from penstock.connection.callbacks import Expecting
from penstock.connection.connecting import check_connection
from penstock.connection.subscription import served
from penstock.connection.waiter import Waiter
from penstock.errors import InputError, PenstockError

__all__ = ["Conversation", "Mailbox"]

log = logging.getLogger("penstock.bus")
# nats-server cuts a connection off that has 64 MiB waiting; all windows of a bus together stay well below.
BUDGET = 32 * 1024 * 1024
SHORTEST = 0.01  # seconds between two looks at all deadlines
FEW = 2  # conversations whose signals do not wait for others
NAMES = 256  # that are made at once: asking the system for each would cost as much as the rest of a name
LEAST = 64 * 1024  # a window is never smaller: the plain protocol may have a whole message under way


def _random_names() -> list[bytes]:
    digits = os.urandom(8 * NAMES).hex().encode()
    return [digits[start : start + 16] for start in range(0, len(digits), 16)]


class Conversation:
    """One side of a reply: what it hears arrives on a subject of its own, what it says goes to `target`."""

    deadline = math.inf
    """When, on the loop's clock, `expire` is called; the mailbox has one timer for all, see `Mailbox.wind`."""
    error: PenstockError | None = None
    _waiter: Waiter | None = None
    _expecting: Expecting | None = None  # whoever we publish to may turn out to be denied

    def __init__(self, mail: Mailbox, target: str) -> None:
        self._mail, self._nc, self._options, self._target = mail, mail.nc, mail.options, target
        self._loop = mail.loop

    def deliver(self, data: bytes, block: bytes | None) -> None:
        """Take a message."""
        raise NotImplementedError

    def expire(self) -> None:
        """Note that the deadline is over."""
        raise NotImplementedError

    def fail(self, error: PenstockError) -> None:
        """Note an error, of which the first one counts: nothing comes any more, or the server lets nothing through."""
        self.error = self.error or error
        self._wake()

    def _expect(self, subject: str) -> None:
        """Be told if the server denies what is published to a subject."""
        self._expecting = self._nc.expecting(subject, self.fail)
        self._expecting.__enter__()

    def _expect_no_more(self) -> None:
        if self._expecting is not None:
            self._expecting.__exit__()
            self._expecting = None

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()


class Mailbox:
    """Gives every conversation a subject of its own, and brings it what arrives there."""

    def __init__(self, nc: Connection, options: BusOptions) -> None:
        self.nc, self.options = check_connection(nc), options
        self.loop: asyncio.AbstractEventLoop  # known when it was opened
        self._prefix = f"{nc.new_inbox()}."
        self._key = self._prefix.encode()
        self._inboxes = inbox_pattern((nc.options.inbox_prefix, *options.inboxes))
        self._conversations: dict[bytes, Conversation] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._names: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.rings = math.inf
        """When the timer ends: a deadline that is not before needs no winding."""
        self.reserved = 0  # bytes of the windows that are open

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to `open`."""
        return self._subscription is not None and not self._subscription.ended and not self._closed

    async def open(self, timeout: float = 10.0) -> None:
        """Subscribe, unless that was done; DeniedError if the server does not permit it."""
        if self._closed:
            raise InputError("This bus was closed.", remedy="Make a new one.")
        self.loop = asyncio.get_running_loop()
        async with self._opening:
            if self._subscription is None or self._subscription.ended:
                made = await self.nc.tap(f"{self._prefix}*", self._received, on_end=self._ended, guard=False)
                await served(made, timeout=timeout)
                self._subscription = made

    def add(self, conversation: Conversation) -> bytes:
        # Unguessable, so that one peer cannot answer in the name of another.
        if not self._names:
            self._names = _random_names()
        subject = self._key + self._names.pop()
        self._conversations[subject] = conversation
        return subject

    # -- time -----------------------------------------------------------------------------------------------------

    def wind(self, deadline: float) -> None:
        """Let the timer ring at a deadline that a conversation has now, unless it rings before.

        A deadline that moved on costs nothing: the timer looks at all deadlines when it rings.
        """
        if deadline < self.rings:
            if self._timer is not None:
                self._timer.cancel()
            self.rings = deadline
            self._timer = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer, self.rings = None, math.inf
        now = self.loop.time()
        for conversation in self.conversations():
            if conversation.deadline <= now:
                conversation.expire()
        first = min((item.deadline for item in self._conversations.values()), default=math.inf)
        if first < math.inf:
            self.wind(max(first, now + SHORTEST))

    # -- messages -------------------------------------------------------------------------------------------------

    def is_inbox(self, name: str) -> bool:
        """Tell whether a subject is one that a peer may have us publish to."""
        return self._inboxes.fullmatch(name) is not None

    def reserve(self, wanted: int) -> int:
        """Set bytes aside for a window: what is wanted, and less as the budget of all windows runs out."""
        share = min(wanted, max(LEAST, (BUDGET - self.reserved) // 8 // LEAST * LEAST))
        self.reserved += share
        return share

    def signal(self, subject: bytes, data: bytes) -> None:
        """Publish what the other side waits for, to a subject that was checked, and whose denial somebody expects.

        It is written at once while few talk: each waits for the other. What many say in one turn is written together.
        """
        if len(self._conversations) <= FEW:
            self.nc.send_now(subject, data)
        else:
            self.nc.send_checked(subject, data)

    def conversations(self) -> list[Conversation]:
        return list(self._conversations.values())

    def remove(self, subject: bytes) -> None:
        """Forget a subject; what still arrives there is answered for a reader that left."""
        self._conversations.pop(subject, None)

    def _received(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        try:
            conversation = self._conversations.get(subject)
            if conversation is not None:
                conversation.deliver(data, block)
            elif data[:1] == bytes((Type.INBOX,)):
                self.decline(data)
        except Exception as error:  # the connection reads on, whatever is wrong here
            log.exception("what takes the messages of %s failed", self._prefix)
            self.nc.report(error)

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
        if self._timer is not None and not self._conversations:
            self._timer.cancel()
            self._timer, self.rings = None, math.inf
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self.nc.is_closed:
            await subscription.unsubscribe()
