"""Fast ingest (ADR-50): one batch without end, acks for hundreds of messages at once.

Every message of the batch carries a reply subject that says its place::

    <inbox>.<batch>.<flow>.fail.<number>.<operation>.$FI      0 start, 1 append, 3 end without a message, 4 ping

The server answers with flow acks, `{"type":"ack","seq":n,"msgs":m}`: everything up to n is stored, and it will ack
every m messages. We keep three of those acks outstanding. `fail` makes the server end the batch at the first gap.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, LinkError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import CHUNK, SILENCE, Ack, Job, parse
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["run"]

FLOW = 1000  # the most messages for one ack that we offer; the server takes 500 by itself, fewer with more publishers
OUTSTANDING = 3  # one ack being on its way to us, one batch being stored, one on its way to the server
FINAL = 2.0  # seconds to wait for the sum of a batch that failed
PAUSE = 0.1  # seconds before a stream without a leader is asked again
PING_AFTER = 1.0  # seconds of silence after which we ask for a lost ack


class _Fast:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection = job.connection
        self.id_prefix = f"{secrets.token_hex(8)}.".encode() if job.ids else b""
        self.batches: deque[tuple[int, frames.Rows]] = deque()  # with rows that are not known to be stored
        self.source = job.rows()
        self.exhausted = False
        self.base = 0  # the row number before the first one of the current batch
        self.sent = 0  # messages of the current batch
        self.acked = 0
        self.flow = 1
        self.inbox = ""
        self.sid = 0
        self.final: dict[str, Any] | None = None
        self.failing = ""
        self.error: JetStreamError | None = None
        self.encoder = frames.Encoder()

    def run(self) -> None:
        while self._has_more():
            try:
                self._start()
                while self.final is None and not self.failing and self._has_more():
                    self._append()
                if self.final is None:
                    self._finish()
                self._close()
            except (DisconnectedError, DeadlineError) as error:
                self._mend(error)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        """Tell whether rows are left to send, fetching the next batch where that must be known."""
        while not self.exhausted and not (
            self.batches and self.batches[-1][0] + self.batches[-1][1].count > self.base + self.sent
        ):
            try:
                self.batches.append(next(self.source))
            except StopIteration:
                self.exhausted = True
        return bool(self.batches) and self.batches[-1][0] + self.batches[-1][1].count > self.base + self.sent

    def _write(self, most: int) -> int:
        """Write frames for up to `most` of the rows that come next; give their number."""
        row = self.base + self.sent
        first, rows = next(item for item in self.batches if item[0] + item[1].count > row)
        place = row - first
        stop = self.encoder.write(rows, place, min(rows.count, place + most), self.sent + 1, CHUNK)
        return stop - place

    # -- the batch ------------------------------------------------------------------------------------------------

    def _reply(self, operation: int) -> None:
        self.encoder = frames.Encoder(
            reply_prefix=f"{self.inbox}.{FLOW}.fail.".encode(),
            reply_suffix=f".{operation}.$FI".encode(),
            id_prefix=self.id_prefix,
            id_offset=self.base,  # numbers begin anew with every batch, ids stay those of the first sending
        )

    def _start(self) -> None:
        """Send the first message and learn how fast the server wants the rest."""
        self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
        self.base += self.acked
        self.sent = self.acked = 0
        self.flow, self.final, self.failing, self.error = 1, None, "", None
        # A subscription of its own, as the protocol asks: dropping it silences acks that nobody wants any more.
        self.inbox = f"{self.connection.new_subject()}.{secrets.token_hex(8)}"
        self.sid = self.connection.subscribe(f"{self.inbox}.>", self.job.deadline)
        self._reply(0)
        self.sent = self._write(1)
        self._send()
        heard = False
        while not heard:
            heard = self._hear(wait=True)
        self._reply(1)

    def _append(self) -> None:
        room = self.acked + self.flow * OUTSTANDING - self.sent
        if room <= 0:
            self._hear(wait=True)
            return
        self.sent += self._write(room)
        self._send()
        self._hear(wait=False)

    def _finish(self) -> None:
        """End the batch without another message and wait for its ack."""
        if not self.failing:
            row = self.base + self.sent - 1
            first, rows = next(item for item in self.batches if item[0] + item[1].count > row)
            self._command(rows, row - first, 3, self.sent + 1)
        patience = Deadline(FINAL)
        while self.final is None:
            if self.failing and patience.left == 0:
                self.final = {"count": self.acked}  # the server does not know the batch: what it acked is stored
            else:
                self._hear(wait=True)

    def _command(self, rows: frames.Rows, place: int, operation: int, number: int) -> None:
        subject = rows.subject(place).decode()
        reply = f"{self.inbox}.{FLOW}.fail.{number}.{operation}.$FI"
        self.connection.link.send(protocol.publish(subject, b"", reply), self.job.deadline.within(SILENCE))

    def _send(self) -> None:
        self.connection.link.send(self.encoder.take(), self.job.deadline.within(SILENCE))

    def _hear(self, *, wait: bool) -> bool:
        """Take what the server says about the batch; with `wait`, at least one thing."""
        link = self.connection.link
        heard = False
        asked = False
        silence = self.job.deadline.within(SILENCE)
        while True:
            event = link.parser.next_event()
            if event is not None:
                if not link.handle(event) and isinstance(event, protocol.Message) and event.sid == self.sid:
                    heard = True
                    self._told(parse(event))
            elif wait and not heard:
                try:
                    link.receive(silence.within(PING_AFTER) if not asked else silence)
                except DeadlineError:
                    if self.failing:
                        return False
                    if asked or silence.left == 0:
                        raise
                    asked = True
                    self._ping()
            elif not link.receive_some():
                return heard

    def _ping(self) -> None:
        row = self.base + max(self.sent, 1) - 1
        first, rows = next(item for item in self.batches if item[0] + item[1].count > row)
        self._command(rows, row - first, 4, max(self.sent, 1))

    def _told(self, said: dict[str, Any]) -> None:
        kind = said.get("type")
        if kind == "ack":
            if int(said["seq"]) > self.acked:
                self.acked = int(said["seq"])
                self.job.progress()
                self._forget()
            self.flow = max(1, int(said["msgs"]))
        elif kind == "gap":
            self.failing = self.failing or f"the server missed messages from {said.get('last_seq')} on"
        elif "count" in said or "error" not in said:
            self.final = self.final or said
        else:
            # Said of a message, or of those that came behind the end of the batch; the first one is the reason.
            self.error = self.error or api_error(said["error"])
            self.failing = self.failing or str(self.error.description)

    def _forget(self) -> None:
        # The end of the batch is sent on the subject of its last row, so the newest batch of rows stays.
        while len(self.batches) > 1 and self.batches[0][0] + self.batches[0][1].count <= self.base + self.acked:
            self.batches.popleft()

    def _close(self) -> None:
        """Draw the sum of a batch that the server has ended."""
        final = self.final
        assert final is not None
        self.connection.link.send(protocol.unsubscribe(self.sid), self.job.deadline)
        count = int(final.get("count") or 0)
        if final.get("duplicate") and self.sent == 1:
            # A batch whose first message was stored before ends at once: the next one begins behind it.
            self.job.ledger.add(Ack(self.base, 1, int(final["seq"]), duplicate=True))
            self.acked = 1
            self.job.progress()
            return
        if count:
            sequence = int(final["seq"]) if final.get("seq") else None
            self.job.ledger.add(Ack(self.base, count, sequence, contiguous=False))
        if (self.failing or count < self.sent) and self._can_go_on():
            # A new leader ended the batch: what it counts is stored, what came behind is not, and goes into a new one.
            time.sleep(PAUSE)
            self.acked = self.sent = count
            if count:
                self.job.progress()
            return
        if self.failing or count < self.sent:
            unsure = [(self.base + count, self.base + self.sent)] if "seq" not in final else []
            raise self.job.ledger.failure(
                f"row {self.base + count} was not taken: {self.failing or 'the server ended the batch'}",
                unknown=unsure,
                err_code=self.error.err_code if self.error else None,
            )
        self.acked = self.sent = count
        self.job.progress()

    def _can_go_on(self) -> bool:
        passing = self.error is None or may_ask_again(self.error)
        certain = self.final is not None and "seq" in self.final
        return passing and (certain or bool(self.id_prefix) or self.sent == 1) and self.job.deadline.left > 0

    def _mend(self, error: Exception) -> None:
        """Go on behind the last stored row where ids make that safe."""
        unknown = [(self.base + self.acked, self.base + self.sent)]
        if self.acked:
            self.job.ledger.add(Ack(self.base, self.acked, None, False))
        what = getattr(error, "what", str(error))
        if not self.id_prefix:
            raise self.job.ledger.failure(
                what, unknown=unknown, remedy="With ids=True a lost connection is made good; mode acks always is."
            ) from error
        pause = 0.05
        self.connection.link.close()
        while True:
            if self.job.deadline.left == 0:
                raise self.job.ledger.failure(what, unknown=unknown) from error
            try:
                self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
                break
            except (LinkError, DeadlineError):
                time.sleep(min(pause, self.job.deadline.left))
                pause = min(1.0, 2 * pause)
        self.sent = self.acked  # the rest is sent again


def run(job: Job) -> None:
    """Publish the rows of a job."""
    _Fast(job).run()
