"""A range of a stream as Arrow batches.

Two ways lead through a range, and docs/why/wire.md says why these:

- a short range of a stream that allows it comes by batched direct get, one request and no consumer;
- everything else comes from an ephemeral pull consumer that acknowledges nothing, one bounded request after another.

A direct get is answered by any replica, and for a stream by its mirrors, too. What a mirror says is not taken, and what
a replica lacks is only gone if the stream's leader lacks it. Neither way says which stream of that name it reads, so at
the end the leader says whether it is still the one that was looked at.

A request is received whole before a batch is given out, so nothing is under way while the caller works, however long.
What breaks on the way (the connection, the consumer, its leader) is mended here: the read goes on behind the last
message that it took.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import (
    DataLossError,
    DeadlineError,
    DisconnectedError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire import columns as cols
from penstock.wire import protocol
from penstock.wire.arrow import most_rows, to_batch
from penstock.wire.bulk.read_options import ReadOptions, allows_direct, bounds
from penstock.wire.jetstream import direct, names, pull
from penstock.wire.jetstream.answers import StatusKind, number, part, read_status
from penstock.wire.jetstream.questions import Question
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline, Patience

if TYPE_CHECKING:
    from penstock.wire.bulk.connection import BulkConnection

__all__ = ["Reading"]

DIRECT_ROWS = 500  # up to here one request by direct get beats making a consumer; measured by benchmarks/wire.py
DIRECT_BATCH = 10_000  # of one such request, if a long range must come this way
FIRST_WINDOW = 1024 * 1024  # the first request is small, so that the first batch comes soon; they double from there
MOST_ROWS = 1_000_000  # of one pull request; its bytes end it long before
SILENCE = 5.0  # seconds without a byte after which a consumer is taken for dead
MOST_ASKS = 16  # gaps of one read about which the leader is asked one by one
SETTLE = 3.0  # seconds that a stream with replicas gets to show the end of a range
NANOSECONDS = 1_000_000_000
ESCAPED_BYTES = 1 << 28  # of a batch whose text may be escaped: each byte can become four
INACTIVE = 60  # seconds after which the server removes a consumer that we could not delete
# The stream's retention or limits forbid a consumer of ours; direct get needs none.
NO_CONSUMER = {10026, 10084, 10099, 10100}


class _BrokenError(DisconnectedError):
    """The consumer stopped serving; a new one goes on."""


class Reading:
    """One read: its place in the stream, and the consumer or request that serves it at the moment."""

    def __init__(self, connection: BulkConnection, options: ReadOptions) -> None:
        self.connection = connection
        self.wire = connection.wire
        self.options = options
        self.columns = cols.Columns(
            options.start,
            options.end or options.start,
            max_rows=most_rows(options.stream, options.batch_rows),
            max_bytes=min(options.batch_bytes, ESCAPED_BYTES) if options.escape else options.batch_bytes,
            max_payload=protocol.MAX_PAYLOAD,
            headers=options.headers,
            stream=options.stream.encode(),
        )
        self.ready: deque[pa.RecordBatch] = deque()
        self.patience = Patience(options.timeout, nobody=True)
        self._progress()
        self.done = False
        self.given = False  # whether any row was read
        self.begun = options.start  # where the range begins in the stream as it was found
        self.rows = 0  # in the batches so far
        self.damaged = 0  # messages that the stream counts and does not give, as far as it was told
        self.direct: bool | None = None  # which of the two ways is taken; None until the stream was looked at
        self.no_consumer = False
        self.asks = 0  # how many gaps the leader is still asked about
        self.created: str | None = None
        self.consumer = ""
        self.inbox = ""
        self.requests = 0
        self.window = min(FIRST_WINDOW, options.window_bytes)
        self.one_large = False
        self.doubt = 0  # the first skipped sequence that the leader must be asked about before batches are given

    # -- the whole ------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the range."""
        if self.options.end is not None and self.options.start >= self.options.end:
            return
        self._progress()
        try:
            while not self.done:
                try:
                    self.connection.connect(self.deadline.within(self.connection.options.connect_timeout))
                    if self.direct is None:
                        self._begin()
                    elif self.direct:
                        self._get_directly()
                    else:
                        self._pull()
                except PenstockError as error:
                    self._mend(error)
                yield from self._given()
            if self.columns.rows:
                self._flush()
            self._settle()
            yield from self._given()
        finally:
            self._release()

    def _given(self) -> Iterator[pa.RecordBatch]:
        if self.ready and self.doubt:
            self._ask_leader()
        while self.ready:
            yield self.ready.popleft()
            self._progress()  # the caller's time is not ours

    def _progress(self) -> None:
        self.patience.moved()
        self.deadline = self.patience.deadline
        self.silence = self.deadline.within(SILENCE)

    def _mend(self, error: PenstockError) -> None:
        """Forget the consumer and wait a little before the next try; give up if none helps, or the time is over."""
        if isinstance(error, RemoteProtocolError):
            self.wire.close()
        if not may_ask_again(error):
            raise error
        self._release()
        self.inbox = ""
        if self.deadline.left == 0:
            raise DeadlineError(
                f"Reading {self.options.stream} made no progress for {self.options.timeout:.3g} s, at sequence "
                f"{self.columns.next}: {error}",
                remedy="Is the stream's leader reachable? A longer timeout may help.",
                seconds=self.options.timeout,
            ) from error
        time.sleep(self.patience.pause(error))

    def _flush(self) -> None:
        self.rows += self.columns.rows
        self.ready.append(to_batch(self.columns.close(), self.options.stream, escape=self.options.escape))
        self.given = True
        self.columns.restart()
        self._doubt_gap()

    def _release(self) -> None:
        """Let the server forget us; what cannot be said now it finds out by itself."""
        if self.wire.is_open:
            deadline = Deadline(self.connection.options.request_timeout)
            try:
                if self.columns.sid:
                    self.wire.send(protocol.unsubscribe(self.columns.sid), deadline)
                if self.consumer:
                    method = names.consumer_delete(self.options.stream, self.consumer)
                    self.connection.send_request(self._api(method), b"", deadline, heed=False)
            except (DisconnectedError, DeadlineError):
                self.wire.close()
        self.consumer = ""
        self.columns.sid = 0

    # -- the stream -----------------------------------------------------------------------------------------------

    def _api(self, method: str) -> str:
        return f"{self.connection.options.js_prefix}.{method}"

    def _ask(self, method: str, body: object = None) -> dict[str, Any]:
        timeout = self.deadline.within(self.connection.options.request_timeout).left
        return self.connection.api(method, body, timeout=max(timeout, 0.001))

    def _info(self) -> dict[str, Any]:
        return self._ask(names.stream_info(self.options.stream))

    def _begin(self) -> None:
        """Look at the stream, hold the range against what it has, and choose the way."""
        info = self.options.info or self._look(self.options.end)
        self.created = info.get("created")
        first, last = bounds(info)
        start, end = self.options.start, self.options.end if self.options.end is not None else last + 1
        if end > last + 1 or (start < first and start < end):
            self._lose(start, first, last)
            start, end = max(start, first), min(end, last + 1)
        self.columns.next, self.columns.end, self.begun = start, end, start
        self.done = start >= end
        # Of several replicas one may lack what the leader has: it is not believed that something is gone, unless so
        # much is that asking for each gap is out of the question.
        replicated = number(part(info, "config"), "num_replicas", 1) > 1
        self.columns.strict = replicated and not self.options.subjects
        self.asks = MOST_ASKS if part(info, "state").get("num_deleted", 0) <= MOST_ASKS else 0
        # Direct get knows one subject, and sends all.
        fitting = len(self.options.subjects) <= (0 if replicated else 1) and self.options.payloads
        self.direct = fitting and end - start <= DIRECT_ROWS and allows_direct(info)

    def _look(self, end: int | None) -> dict[str, Any]:
        """Ask how the stream stands.

        A replica that was made leader a moment ago may not have applied all that is stored, and names an early end; so
        one that ends before the end of the range is asked again for a while.
        """
        patience = self.deadline.within(SETTLE)
        while True:
            info = self._info()
            behind = end is not None and bounds(info)[1] + 1 < end
            if not behind or number(part(info, "config"), "num_replicas", 1) == 1 or patience.left == 0:
                return info
            time.sleep(min(0.1, patience.left))

    def _lose(self, start: int, first: int, last: int) -> None:
        self._tell(self.options.loss(start, first, last))

    def _tell(self, error: DataLossError) -> None:
        if self.options.on_loss is None:
            raise error
        self.options.on_loss(error)

    def _doubt_gap(self) -> None:
        """Note what was skipped: no batch is given before it is known why."""
        self.doubt = self.doubt or self.columns.gap
        self.columns.gap = 0

    def _ask_leader(self) -> None:
        """Wait for the leader's word that the stream is the one that was looked at, and on the doubt."""
        while True:
            try:
                self.connection.connect(self.deadline)
                self._judge(self._info())
                return
            except PenstockError as error:
                self._mend(error)

    def _judge(self, info: dict[str, Any]) -> None:
        """Say what the stream lost.

        If it still begins before the first skipped sequence, what was skipped had been deleted one by one; if not,
        retention may have overtaken us.
        """
        first, last = bounds(info)
        if info.get("created") != self.created:
            # Rows of another stream may have been given already: no loss that may be allowed.
            raise self.options.made_anew(info.get("created"), first, last)
        doubt, self.doubt = self.doubt, 0
        if doubt and first > doubt:
            self._lose(doubt, first, last)
        if first <= self.begun and not self.options.subjects:
            self._count(info, first, last, doubt)

    def _count(self, info: dict[str, Any], first: int, last: int, doubt: int) -> None:
        """Hold what was skipped against what the stream counts as deleted.

        A message whose bytes on the disk are not what their checksum says is passed over by the server without a word,
        by consumers and by direct get; it is counted on among those that are there. So whoever counts finds it.
        """
        patience, at = self.deadline.within(SETTLE), self.columns.end if self.done else self.columns.next
        missing = at - self.begun - self.rows - self.columns.rows - self.damaged
        while missing > (deleted := number(part(info, "state"), "num_deleted", 0)):
            if patience.left == 0:  # what a replica has deleted, the leader may not have applied yet
                self.damaged += missing - deleted
                return self._tell(self.options.not_given(missing - deleted, self.begun, at, first, last))
            time.sleep(min(0.2, patience.left))
            info = self._info()
            if (now := bounds(info))[0] > self.begun:
                return self._lose(doubt, *now) if doubt and now[0] > doubt else None
        return None

    def _settle(self) -> None:
        """Have the leader's word at the end: on the stream, and on what is missing there."""
        if self.columns.next < self.columns.end and not self.columns.gap:
            self.columns.gap = self.columns.next
        self._doubt_gap()
        if self.given or self.doubt:
            self._ask_leader()

    def _is_exhausted(self, end: int) -> bool:
        """Ask the stream's leader whether no message of ours is left below the end.

        The stream reached the end of the range when reading began. If it does not any more, it was set back to an older
        copy, and what is missing was not deleted. This is asked first, so that nothing can come back in between.
        """
        first, last = bounds(self._look(end))
        if last + 1 < end == self.columns.end:
            raise self.options.set_back(self.columns.next, end, first, last)
        for subject in self.options.subjects or (">",):
            body = direct.question(self.columns.next, subject=subject)
            try:
                found = self._ask(names.message_get(self.options.stream), body)
            except NotFoundError as error:
                if error.err_code != names.NO_MESSAGE:
                    raise
                continue
            if direct.read_message(found).sequence < end:
                return False
        return True

    # -- the two ways ---------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Ask the consumer for a window of messages and take it whole."""
        if not self.consumer:
            self._create_consumer()
            if self.direct:
                return
        columns = self.columns
        # Without filters no more than the rest of the range can be ours; with filters, nobody knows.
        rows = MOST_ROWS if self.options.subjects else min(MOST_ROWS, columns.end - columns.next)
        window = self.window
        if self.one_large:  # a message larger than the window comes alone
            rows, window = 1, protocol.MAX_PAYLOAD
        body = pull.body(rows, max_bytes=None if self.one_large else window, no_wait=True)
        self.one_large = False
        before = columns.count
        columns.wire_size = 0
        reply = self._send(names.consumer_next(self.options.stream, self.consumer), body)
        while columns.count - before < rows and columns.wire_size < window:
            event = self._take()
            if self.done or not self.consumer:
                return
            if event is None or event.subject != reply:
                continue
            kind = read_status(event.status or 0, event.description).kind
            if kind is StatusKind.NONE:
                self.done = self._is_exhausted(columns.end)
                if not self.done:
                    raise _BrokenError("the consumer saw the end of the stream too early")
                return
            if kind is StatusKind.TOO_LARGE:
                self.one_large = columns.count == before
            elif kind is not StatusKind.COMPLETED:
                raise _BrokenError(f"the consumer says {event.status} {event.description}")
            break
        self.done = columns.next >= columns.end
        self.window = min(2 * self.window, self.options.window_bytes)

    def _get_directly(self) -> None:
        """Ask for the rest of the range by direct get and take the answer whole."""
        columns = self.columns
        if not columns.sid or not self.inbox:
            self._subscribe()
        columns.direct = True
        body = direct.question(
            columns.next,
            subject=self.options.subjects[0] if self.options.subjects else None,
            batch=min(DIRECT_BATCH, columns.end - columns.next),
            max_bytes=self.options.window_bytes,
        )
        before = columns.next
        reply = self._send(names.direct_get(self.options.stream), body)
        event = None
        while event is None or event.subject != reply:
            event = self._take()
            if self.done or not self.inbox:
                return
        if read_status(event.status or 0, event.description).kind not in (StatusKind.END, StatusKind.NONE):
            # Something in the way: a mirror, a message whose headers hide its sequence, a server without batches.
            self._use_consumer(event)
            return
        self.done = columns.next >= columns.end or self._is_exhausted(columns.end)
        if not self.done and columns.next == before:
            self._use_consumer(event)  # the replica that answered lags behind the leader

    def _use_consumer(self, event: protocol.Message) -> None:
        """Go on with a consumer, because of an answer that cannot be used; if there can be none, ask again."""
        if not self.no_consumer:
            self.direct = False
            return
        whose = direct.answers_for(event.header)
        if whose and whose != self.options.stream:
            raise _BrokenError(f"the mirror {whose} answers for it, and it allows no consumer")
        raise _BrokenError("direct get does not answer, and the stream allows no consumer")

    def _doubt_replica(self, found: int) -> None:
        """Do not believe one replica that it is `found` which comes next: a consumer tells, or the leader."""
        columns = self.columns
        self._release()  # what is left of its answer would only be in the way
        self.inbox = ""
        if self.direct and not self.no_consumer:
            self.direct = False
            return
        if not self._is_exhausted(found):
            raise _BrokenError("the replica that answers lacks what the leader has")
        columns.gap = columns.gap or columns.next
        columns.next = found
        self.done = found >= columns.end
        self.asks -= 1
        columns.strict = self.direct or self.asks > 0

    def _take(self) -> protocol.Message | None:
        """Move what was received into the columns; give the next message that says something about the request."""
        columns, parser = self.columns, self.wire.parser
        position = columns.fill(parser.buffer, parser.start, parser.end)
        if position > parser.start:
            parser.take(position)
            self._progress()
            if columns.stop == cols.NEED:
                return None  # it may have been the last message of the request: nothing must be waited for
        if columns.stop == cols.FULL:
            self._flush()
            return None
        if columns.stop == cols.BEYOND and not (columns.strict and columns.next < columns.end):
            self.done = True
            self._drain()
            return None
        if columns.stop == cols.DISORDER:
            raise _BrokenError("a delivery is missing")
        if columns.stop in (cols.SKIPPED, cols.BEYOND):
            self._doubt_replica(min(columns.sequence, columns.end))
            return None
        event = parser.next_event()
        try:
            if not isinstance(event, protocol.Message) or event.sid != columns.sid:
                # Not only the waiting counts: what comes without end and is none of ours is silence, too.
                self.silence.check()
                if event is None:
                    self.wire.receive(self.silence)
                else:
                    self.wire.handle(event, self.silence)
                return None
        except DeadlineError:
            raise _BrokenError(f"nothing came for {SILENCE:.3g} s") from None
        if event.header is None or (event.status is None and not columns.direct):
            raise RemoteProtocolError(
                f"A delivery of {self.options.stream} that does not say its sequence: reply {event.reply!r}.",
                place=parser.place,
            )
        return event

    # -- consumers ------------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        if self.columns.sid:
            self.wire.send(protocol.unsubscribe(self.columns.sid), self.deadline)
        self.inbox = self.connection.new_subject()
        self.columns.sid = self.connection.subscribe(f"{self.inbox}.*", self.deadline)

    def _send(self, method: str, body: dict[str, Any]) -> str:
        self.requests += 1
        reply = f"{self.inbox}.{self.requests}"
        payload = Question(method, body).payload
        self.wire.send(protocol.publish(self._api(method), payload, reply), self.deadline)
        self.silence = self.deadline.within(SILENCE)
        return reply

    def _create_consumer(self) -> None:
        self._subscribe()
        name = f"penstock-{secrets.token_hex(6)}"
        config: dict[str, Any] = {
            "name": name,
            "description": self.connection.options.name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.columns.next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE * NANOSECONDS,
        }
        if not self.options.payloads:
            config["headers_only"] = True
        subjects = self.options.subjects
        method = names.consumer_create(self.options.stream, name)
        if subjects and subjects != (">",):
            config["filter_subjects"] = list(subjects)
        body = {"stream_name": self.options.stream, "config": config, "action": "create"}
        try:
            self._ask(method, body)
        except JetStreamError as error:
            if error.err_code in NO_CONSUMER and len(subjects) < 2 and allows_direct(self._info()):
                self.direct = self.no_consumer = True
                return
            raise
        self.consumer = name
        self.columns.count = 1
        self.columns.direct = False
        self.columns.strict = self.columns.strict and self.asks > 0

    def _drain(self) -> None:
        """Take the rest of an answer off the connection, so that nothing is under way."""
        self.wire.send(protocol.unsubscribe(self.columns.sid) + protocol.PING, self.deadline)
        self.columns.sid = 0
        while not isinstance(self.wire.next_event(self.deadline), protocol.Pong):
            self.deadline.check()
