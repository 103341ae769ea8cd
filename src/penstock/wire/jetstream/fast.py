"""Fast ingest (ADR-50): messages in order and without a gap, one ack for hundreds of them.

Every message of a batch carries a reply subject that says its place::

    <inbox>.<batch>.<flow>.<gap>.<number>.<operation>.$FI

    flow        the most messages for one ack that we offer; the server takes 500 by itself, fewer with more publishers
    gap         `fail`: the server ends the batch at the first message that is missing; `ok`: it only tells
    number      from 1 on; a ping repeats the last one
    operation   0 start, 1 append, 2 the last message, 3 the end without a message, 4 ping

The server answers on the same subjects::

    {"type":"ack","seq":n,"msgs":m}         all up to n are stored, and there will be an ack for every m messages
    {"type":"gap","last_seq":n,"seq":m}     the messages between them are missing
    {"type":"err","seq":n,"error":{...}}    message n is refused
    {"stream":...,"seq":s,"count":n}        the end: n messages are stored, the last of them at s

What the end counts is stored. Whether nothing behind it is, depends on who says so: a leader that refuses a message
has taken none behind it, but one that misses a message may have been replaced, and what it sent to the others before
may still be stored by the next leader. Then, and if the end itself is lost, all that has no ack is in doubt. The next
leader may yet acknowledge it, also after the end.
"""

from __future__ import annotations

import enum
import secrets
from collections import deque

from penstock.errors import JetStreamError, NoRespondersError, PenstockError, RemoteProtocolError
from penstock.wire.jetstream.acked import confirm, hindrance
from penstock.wire.jetstream.answers import PubAck, api_error, number, read_ack, read_json, text
from penstock.wire.jetstream.names import FAST_INGEST
from penstock.wire.jetstream.verdicts import Verdict, judge

__all__ = ["FLOW", "Batch", "Operation", "Silence"]

FLOW = 1000
OUTSTANDING = 3  # one ack on its way to us, messages being stored for one, messages on their way to the server for one
FINAL = 2.0  # seconds to wait for the end of a batch that failed


class Operation(enum.IntEnum):
    """What a message of a fast batch does."""

    START = 0
    APPEND = 1
    COMMIT = 2
    END = 3
    PING = 4


class Silence(enum.Enum):
    """What to do when nothing was heard for `Batch.patience` seconds."""

    PING = enum.auto()
    LOST = enum.auto()
    OVER = enum.auto()


class Batch:
    """One fast batch, from its first message to its end or to what breaks it.

    `ids`: every message has one, so that what is in doubt may be sent again as long as the stream remembers them,
    which is `safe` seconds; `inf` if it may be stored twice. `ping` is after how many seconds of silence we ask for an
    ack that may be lost; after `silence` more the batch is.
    """

    def __init__(
        self,
        inbox: str,
        stream: str,
        *,
        ids: bool,
        safe: float,
        domain: str | None = None,
        ping: float = 1.0,
        silence: float = 4.0,
    ) -> None:
        self.stream = stream
        self.domain = domain
        self.ids = ids
        self.safe = safe
        self.inbox = f"{inbox}.{secrets.token_hex(8)}"
        self.sent = 0
        self.acked = 0
        self.final: PubAck | None = None
        self.fault: PenstockError | None = None
        self._gap: int | None = None
        self._refused: int | None = None  # the number of the message that the leader refuses
        self._every = 1  # messages for one ack
        self._heard = False  # whether the server has said anything yet
        self._ping, self._silence = ping, silence
        self._pinged = self._given_up = self._never_begun = False
        self._times: deque[tuple[int, float]] = deque()  # up to which number messages were sent, and when
        self._earlier = 0  # so many messages from the first on are left in doubt by an earlier batch,
        self._earlier_at = 0.0  # which sent them from then on

    def follow(self, inbox: str) -> Batch:
        """Begin the batch that takes what has no ack."""
        other = Batch(
            inbox,
            self.stream,
            ids=self.ids,
            safe=self.safe,
            domain=self.domain,
            ping=self._ping,
            silence=self._silence,
        )
        other._earlier, other._earlier_at = self.doubtful, self._oldest
        return other

    # -- sending --------------------------------------------------------------------------------------------------

    @property
    def listen(self) -> str:
        """The subject to subscribe to before the first message is sent."""
        return f"{self.inbox}.>"

    @property
    def prefix(self) -> str:
        """What stands before the number in the reply subjects."""
        return f"{self.inbox}.{FLOW}.fail."

    def suffix(self, operation: Operation) -> str:
        """Give what stands behind the number in the reply subject of a message."""
        return f".{operation:d}.{FAST_INGEST}"

    def reply(self, operation: Operation) -> str:
        """Give the reply subject of the next message, or of a ping."""
        place = self.sent + (operation is not Operation.PING)
        return f"{self.prefix}{place}{self.suffix(operation)}"

    @property
    def room(self) -> int:
        """How many messages may be sent now: one until the server has said how fast it wants them."""
        if not self._heard:
            return 1 - self.sent
        return max(0, self.acked + self._every * OUTSTANDING - self.sent)

    @property
    def is_open(self) -> bool:
        """Whether the server has begun to take the batch and all is well: only then may it be ended."""
        return self._heard and not self.is_broken and not self.is_over

    def send(self, count: int, now: float) -> None:
        """Note that so many messages more are sent."""
        self.sent += count
        self._times.append((self.sent, now))

    # -- hearing --------------------------------------------------------------------------------------------------

    def hear(self, payload: bytes, status: int | None = None) -> None:
        """Take what the server says of the batch."""
        first = not self._heard and not self._pinged
        self._heard = True
        self._pinged = False
        self._take(payload, status)
        # If the first message has no other answer than an error, it is not stored.
        self._never_begun = self._never_begun or (first and self.fault is not None)

    def _take(self, payload: bytes, status: int | None) -> None:
        if status and not payload:
            try:
                read_ack(payload, status)
            except (JetStreamError, NoRespondersError) as error:
                self.fault = self.fault or error
            return
        said = read_json(payload)
        kind = text(said, "type", "")
        if kind == "ack":
            reached = number(said, "seq")
            if reached > self.sent + 1:  # the end without a message has a number, too
                raise RemoteProtocolError(f"The server acknowledges {reached} messages of {self.sent}.")
            self._every = min(max(1, number(said, "msgs", 1)), FLOW)
            self._store(max(self.acked, min(reached, self.sent)))
        elif kind == "gap":
            self._gap = number(said, "last_seq", 0) if self._gap is None else self._gap
        elif "error" in said and "count" not in said:
            # Of a message, or of those that came behind the end of the batch; the first one is the reason.
            if self.fault is None:
                self._refused = number(said, "seq", 0) if kind == "err" else None
            self.fault = self.fault or api_error(said["error"])
        elif self.final is None:
            self._end(payload)

    def _end(self, payload: bytes) -> None:
        final = confirm(payload, None, self.stream, self.domain)
        # A batch whose first message was stored before may end at once, and count nothing.
        count = 1 if final.duplicate and self.sent == 1 else final.count or 0
        if count > self.sent:
            raise RemoteProtocolError(f"The server counts {count} messages of {self.sent}.")
        if count < self.acked:
            raise RemoteProtocolError(
                f"The server ends the batch after {count} messages, having acknowledged {self.acked}.",
                remedy="See whether the stream has lost what it had acknowledged, and publish that again.",
            )
        self.final = final
        self._store(count)

    def _store(self, acked: int) -> None:
        self.acked = acked
        while self._times and self._times[0][0] <= acked:
            self._times.popleft()

    # -- silence --------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """How many seconds to wait for the server to say something before `silent` is asked."""
        return min(FINAL, self._silence) if self.is_broken else self._silence if self._pinged else self._ping

    def silent(self) -> Silence:
        """Say what to do, the server having said nothing for that long."""
        if self.is_broken:
            self._given_up = True  # the server does not know the batch: what it acknowledged is stored
            return Silence.OVER
        if self._pinged or not self.sent:
            return Silence.LOST
        self._pinged = True
        return Silence.PING

    # -- the end --------------------------------------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        """Whether something went wrong: nothing more must be sent, and the end of the batch is awaited."""
        return self.fault is not None or self._gap is not None

    @property
    def is_over(self) -> bool:
        """Whether the batch has ended, or its end is not awaited any more."""
        return self.final is not None or self._given_up

    @property
    def is_duplicate(self) -> bool:
        """Whether the batch is a single message that was stored before."""
        return self.final is not None and self.final.duplicate and self.sent == 1

    @property
    def sequence(self) -> int | None:
        """The sequence of the last acknowledged message; None if it was not told."""
        if self.final is None or (self.final.count != self.acked and not self.is_duplicate):
            return None
        return self.final.sequence or None

    @property
    def doubtful(self) -> int:
        """How many messages behind the acknowledged ones may or may not be stored."""
        # The end behind which a leader refused a message says that nothing more is stored. What an earlier batch left
        # in doubt stays so until an ack covers it.
        certain = self._never_begun or (self.final is not None and self._refused == (self.final.count or 0) + 1)
        return max(0, max(self._earlier, 0 if certain else self.sent) - self.acked)

    @property
    def _oldest(self) -> float:
        """When the first message without an ack was sent for the first time."""
        return self._earlier_at if self.acked < self._earlier or not self._times else self._times[0][1]

    @property
    def reason(self) -> PenstockError:
        """Why the batch ended early."""
        if self.fault is not None:
            return self.fault
        missed = "" if self._gap is None else f": it missed messages from {self._gap} on"
        return JetStreamError(f"The server ended the batch after {self.acked} of {self.sent} messages{missed}.")

    @property
    def is_refused(self) -> bool:
        """Whether it ended early for a reason that stays: what has no ack will not be taken by another batch."""
        return self.fault is not None and judge(self.fault) is Verdict.REFUSED

    def hindrance(self, now: float) -> str:
        """Say why what has no ack cannot be sent again; nothing if it can."""
        if not self.doubtful:
            return ""
        return hindrance("the rest", ids=self.ids, safe=now - self._oldest <= self.safe)
