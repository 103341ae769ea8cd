"""What is known of a connection, and what happens to it: it stands, breaks, hears complaints, ends.

Everything that happens is told in the log, to the callbacks of the program, and to whoever waits for something that
will not come.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from penstock.connection.callbacks import Callbacks, Teller
from penstock.connection.lifeline import Lifeline, Phase
from penstock.connection.messages import LARGE
from penstock.connection.subscription import Subscription
from penstock.errors import DeniedError, DisconnectedError, LoginError, PenstockError, SlowSubscriptionError
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.complaints import Complaint
from penstock.wire.dispatch import Outbox, Taker
from penstock.wire.session import Notice, Session

__all__ = ["BaseConnection"]

log = logging.getLogger("penstock.connection")

MOST_LOGGED = 20  # errors in a second


class BaseConnection:
    """The tables of a connection, its state, and its reactions; `Connection` has the verbs."""

    def __init__(self, options: ConnectionOptions, callbacks: Callbacks, tls: ssl.SSLContext | None) -> None:
        self.options = options
        self.last_error: Exception | None = None
        """What went wrong last: an attempt, a complaint of the server, the reason of a break."""
        self._callbacks, self._teller = callbacks, Teller()
        self._takers: dict[int, Taker] = {}
        self._borrowers: dict[int, Taker] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self.pumps: set[asyncio.Task[Any]] = set()
        self.asking_again: set[asyncio.Task[None]] = set()
        """What calls back, for subscriptions that have a callback, those that ended and are not done included."""
        self._sid = 0
        self._outbox = Outbox()
        self._posted: list[tuple[int, int]] = []  # where in the outbox stands what is of no use to another wire
        self._most = 1024 * 1024  # bytes of the largest message that the server takes
        self._writes = False  # whether what is published is written at once, and not kept
        self._scheduled = False
        self._errors = 0
        self._draining = self._draining_pubs = False
        self._asked_to_end = False  # whether the end was asked for, and is not a failure
        self._goodbye: float | None = None  # seconds that a peer has then to take what is on its way
        self._told = ""
        self._logging_since, self._logged = -1.0, 0
        self._slow: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._standing = asyncio.Event()
        self._break: asyncio.Future[PenstockError] = self._loop.create_future()
        self._expecting: dict[str, dict[object, Callable[[DeniedError], None]]] = {}
        self._expecting_mapped: dict[object, Callable[[DeniedError], None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._lifeline = Lifeline(
            options,
            tls,
            self._takers,
            self._borrowers,
            stands=self._stands,
            broke=self._broke,
            failed=self._failed,
            informed=self._informed,
            noticed=self._noticed,
            ended=self._ended,
        )

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands."""
        return self._lifeline.phase is Phase.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good."""
        return self._lifeline.phase is Phase.CLOSED

    @property
    def is_reconnecting(self) -> bool:
        """Whether it was lost and is being made again."""
        return self._lifeline.phase is Phase.RECONNECTING

    @property
    def is_connecting(self) -> bool:
        """Whether it is being made for the first time."""
        return self._lifeline.phase is Phase.CONNECTING

    @property
    def is_draining(self) -> bool:
        """Whether it is being drained."""
        return self._draining and not self.is_closed

    @property
    def is_draining_pubs(self) -> bool:
        """Whether only what was published waits to be sent before it is closed."""
        return self._draining_pubs and not self.is_closed

    @property
    def stretch(self) -> int:
        """The number of this unbroken stretch of the connection; each reconnection begins another one."""
        return self._lifeline.stretch

    @property
    def server_info(self) -> Mapping[str, Any]:
        """What the server says of itself: its INFO; empty while there is no connection."""
        wire = self._lifeline.wire
        return {} if wire is None else wire.session.info

    @property
    def max_payload(self) -> int:
        """The largest message, headers included, that the server takes, or took when there was a connection last."""
        return self._most

    @property
    def connected_url(self) -> str | None:
        """The address of the server, None while there is no connection."""
        wire = self._lifeline.wire
        return None if wire is None else wire.session.url

    @property
    def connected_server_version(self) -> str:
        """The version of the server."""
        return str(self.server_info.get("version", "0"))

    @property
    def client_id(self) -> int | None:
        """The number that the server knows this connection by."""
        return self.server_info.get("client_id")

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS of the connection: its version, cipher and the server's certificate; None if there is none."""
        wire = self._lifeline.wire
        return None if wire is None else wire.ssl_object

    @property
    def servers(self) -> tuple[str, ...]:
        """All addresses that are known: those that were given, and those that the cluster told."""
        return self._lifeline.servers.urls

    @property
    def stats(self) -> dict[str, int]:
        """Messages and bytes in and out, reconnections and errors; bytes in are those of whole frames."""
        wire = self._lifeline.wire
        return {
            "in_msgs": self._lifeline.messages + (wire.messages if wire else 0),
            "out_msgs": self._outbox.messages,
            "in_bytes": self._lifeline.bytes + (wire.bytes if wire else 0),
            "out_bytes": self._outbox.bytes,
            "reconnects": max(self.stretch - 1, 0),
            "errors_received": self._errors,
        }

    @property
    def cut_off(self) -> int:
        """How often a server hung up, and said nothing, while much was on its way: so it gives up a slow reader."""
        return self._lifeline.cut_off

    @property
    def pending_data_size(self) -> int:
        """Bytes that were published and not yet handed to the socket."""
        return self._outbox.size

    @property
    def unsent(self) -> int:
        """Bytes that wait here for the server to take them, in the socket's queue, too."""
        wire = self._lifeline.wire
        return self._outbox.size + (wire.unsent if wire else 0)

    def check_open(self) -> None:
        """Raise DisconnectedError if the connection is closed."""
        if self.is_closed:
            raise self._gone()

    def _gone(self) -> DisconnectedError:
        why = "" if self._asked_to_end or self.last_error is None else f": {self.last_error}".rstrip(".")
        return DisconnectedError(
            f"The connection is gone{why}; it was closed.", remedy="Connect again.", urls=self.options.urls
        )

    def drained(self, verb: str) -> DisconnectedError:
        """Give the error for what comes too late, while the connection is being drained."""
        return DisconnectedError(
            "The connection is being drained.", remedy=f"{verb} before that.", urls=self.options.urls
        )

    # -- what happens ---------------------------------------------------------------------------------------------

    def _stands(self) -> None:
        """Subscribe to everything on a new wire, then send what waited for it."""
        wire = self._lifeline.wire
        assert wire is not None
        frames = []
        for item in self._subscriptions.values():
            frames.append(protocol.subscribe(item.subject, item.id, item.queue or None))
            if item.max_msgs:
                frames.append(protocol.unsubscribe(item.id, item.max_msgs - item.delivered))
        wire.write(b"".join([*frames, self._outbox.take()]))
        self._informed(wire.session)
        self._let_write(not self._draining_pubs)
        self._break = self._loop.create_future()
        self._standing.set()
        if self.stretch > 1:
            self._told = ""
            log.warning("Connected to %s again.", self.options.url)
            self._teller.tell(self._callbacks.reconnected)

    def _informed(self, session: Session) -> None:
        self._most = session.max_payload
        self._let_write(self._writes)

    def _let_write(self, may: bool) -> None:
        """Let what is published be written at once, or not."""
        self._writes = may
        self._outbox.plain = min(LARGE, self._most + 1) if may else 0

    def _broke(self, error: PenstockError, said: bool) -> None:
        self._standing.clear()
        self._let_write(False)
        self._drop_posted()
        self.last_error = error
        again = " It is tried again." if self._lifeline.phase is Phase.RECONNECTING else ""
        log.warning("Lost the connection to %s.%s", self.options.url, again)
        if said:  # the server had a reason, which somebody should know
            self.report(error)
        else:
            log.info("%s", error)
        if not self._break.done():
            self._break.set_result(error)
        self._teller.tell(self._callbacks.disconnected)

    def _drop_posted(self) -> None:
        """Keep what was published, and not what was posted: a new wire gets all subscriptions anew."""
        if self._posted:
            kept = bytearray(self._outbox.take())
            for start, end in reversed(self._posted):
                del kept[start:end]
            self._posted.clear()
            self._outbox.add(bytes(kept))

    def _failed(self, error: PenstockError) -> None:
        self.last_error = error
        # An outage brings the same error with each attempt; a refused login wants somebody to act.
        again, self._told = self._told == str(error) and not isinstance(error, LoginError), str(error)
        log.log(logging.DEBUG if again else logging.WARNING, "%s", error)
        self._teller.tell(self._callbacks.error, error)

    def _ended(self, error: PenstockError) -> None:
        self.last_error = error
        log.error("Gave up the connection to %s: %s", self.options.url, error)
        self._loop.create_task(self._shut())  # the connection keeps the task that this begins

    async def _shut(self) -> None:
        raise NotImplementedError  # `Connection` has it

    def _noticed(self, notice: Notice | PenstockError) -> None:
        if isinstance(notice, DeniedError):
            self._denied(notice)
        elif isinstance(notice, PenstockError):
            self.report(notice)
        elif notice is Notice.LEARNT:
            self._teller.tell(self._callbacks.discovered)
        elif notice is Notice.LAME_DUCK:
            log.warning("The server at %s will go soon; the connection moves when it does.", self.connected_url)
            self._teller.tell(self._callbacks.lame_duck)

    def _denied(self, error: DeniedError) -> None:
        """Tell whoever is concerned that the server does not permit what was asked."""
        waiting = 0
        wire = self._lifeline.wire
        about = None if wire is None else wire.session.complaint
        if error.operation == "subscribe":
            for item in list(self._subscriptions.values()):
                if about is not None and _concerns(about, item):
                    self.forget(item)
                    item.end(error)
                    waiting += self._fail_requests(error, item) + item.quiet
        elif error.subject is not None:
            if about is None or not about.of_reply:  # else it is not where the message went
                for fail in list(self._expecting.get(error.subject, {}).values()):
                    fail(error)
                    waiting += 1
            waiting += self._fail_requests(error, None)
            if not waiting and error.subject not in self._outbox.subjects:
                for fail in list(self._expecting_mapped.values()):
                    fail(error)
                    waiting += 1
        if waiting:
            self._errors += 1
            self.last_error = error  # whoever asked raises it, or does without
            if self._may_log():
                log.debug("%s", error)
        else:
            self.report(error)

    def _fail_requests(self, error: DeniedError, inbox: Subscription | None) -> int:
        raise NotImplementedError  # `Connection` has it

    def forget(self, subscription: Subscription) -> None:
        """Take a subscription out of the tables."""
        self._subscriptions.pop(subscription.id, None)
        self._takers.pop(subscription.id, None)
        self._borrowers.pop(subscription.id, None)
        self._slow.discard(subscription.id)

    def report(self, error: Exception) -> None:
        """Tell of an error that nobody waits for."""
        self._errors += 1
        self.last_error = error
        if (self._callbacks.error is None or isinstance(error, PenstockError)) and self._may_log():
            log.warning("%s", self.options.scrub(str(error)) or type(error).__name__)
        self._teller.tell(self._callbacks.error, error)

    def _may_log(self) -> bool:
        """Tell whether the log takes one more error now: a server may complain without end."""
        now = self._loop.time()
        if now - self._logging_since >= 1.0:
            if self._logged > MOST_LOGGED:
                log.warning("%d more errors were not logged.", self._logged - MOST_LOGGED)
            self._logging_since, self._logged = now, 0
        self._logged += 1
        return self._logged <= MOST_LOGGED

    def report_slow(self, subscription: Subscription) -> None:
        """Tell that a subscription dropped a message; once, until it has caught up."""
        if subscription.id not in self._slow:
            self._slow.add(subscription.id)
            self.report(
                SlowSubscriptionError(
                    f"Messages on {subscription.subject} come faster than they are handled; they are dropped while "
                    f"{subscription.pending_msgs:,} wait.",
                    remedy="Handle them faster, in a queue group, or from a stream; or raise pending_msgs_limit.",
                    subject=subscription.subject,
                    dropped=subscription.dropped,
                )
            )

    def caught_up(self, subscription: Subscription) -> None:
        """Note that a subscription that dropped messages has handled what waited."""
        self._slow.discard(subscription.id)


def _concerns(complaint: Complaint, subscription: Subscription) -> bool:
    if complaint.sid is not None:
        return complaint.sid == subscription.id
    return (complaint.subject, complaint.queue or "") == (subscription.subject, subscription.queue)
