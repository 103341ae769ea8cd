"""Atomic batches (ADR-50): up to a thousand rows that are stored together or not at all.

Every message names its batch and its place in it; the last one commits and gets the ack. One batch is under way at a
time, so that what is stored is always a beginning of the rows, without a hole: two at once would be a fifth faster,
and a leader that changes between them would store the second and not the first.

Where the connection is lost before the ack, the batch is sent again with the same message ids. If it had been stored,
the server refuses the repetition as a duplicate, and that is as good as the ack.
"""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, LinkError, NotFoundError, PublishError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import SILENCE, Ack, Job, read_ack
from penstock.wire.jetstream.verdicts import Verdict, judge

__all__ = ["run"]

BATCH = 1000  # the server's limit
PATIENCE = 2 * SILENCE  # a thousand rows on a slow disk take their time; the server gives a silent batch ten seconds
PAUSE = 0.1  # seconds before a stream without a leader is asked again
DUPLICATE = 10201
INCOMPLETE = 10176  # what a new leader says of a batch that the old one had begun
ATTEMPTS = 3  # for a batch that is incomplete: a row that the server drops makes it so for ever


class _Batch:
    """Rows that are stored together: `rows[first:last]`, the first one having `row` as its number."""

    def __init__(self, rows: frames.Rows, first: int, row: int) -> None:
        self.rows = rows
        self.first = first
        self.last = min(rows.count, first + BATCH)
        self.count = self.last - first
        self.row = row
        self.attempts = 0
        self.doubtful = False  # whether an attempt ended so that it may be stored
        self.sent = time.monotonic()

    @property
    def range(self) -> tuple[int, int]:
        return self.row, self.row + self.count


class _Atomic:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection = job.connection
        self.inbox = job.connection.new_subject()
        self.ids = f"{secrets.token_hex(8)}." if job.ids else ""
        self.sid = 0
        self.replies = 0

    def run(self) -> None:
        for number, rows in self.job.rows():
            for first in range(0, rows.count, BATCH):
                batch = _Batch(rows, first, number + first)
                ack = None
                while ack is None:
                    ack = self._attempt(batch)
                self.job.ledger.add(ack)
                self.job.progress()

    def _attempt(self, batch: _Batch) -> Ack | None:
        """Send a batch and give its ack; None where it must be sent again."""
        try:
            event = self._exchange(batch)
        except (DisconnectedError, DeadlineError) as error:
            batch.doubtful = True
            self._mend(batch, error)
            return None
        try:
            return Ack(batch.row, batch.count, read_ack(event).sequence)
        except JetStreamError as error:
            if batch.doubtful and error.err_code == DUPLICATE and self.ids:
                return Ack(batch.row, batch.count, self._find(batch))
            verdict = judge(error)
            batch.doubtful = batch.doubtful or verdict is Verdict.UNKNOWN
            # What is passing was not stored, and may be sent again without ids; what is unknown may not.
            again = verdict is Verdict.PASSING or (verdict is Verdict.UNKNOWN and bool(self.ids))
            worn_out = error.err_code == INCOMPLETE and batch.attempts >= ATTEMPTS
            if again and not worn_out and self.job.deadline.left > PAUSE:
                time.sleep(PAUSE)
                return None
            start, end = batch.range
            raise self.job.ledger.failure(
                f"the batch of rows [{start}, {end}) was refused: {error.description}",
                # An earlier attempt may be what this one ran into.
                unknown=[batch.range] if batch.doubtful else (),
                err_code=error.err_code,
                remedy="Mend the rows or the stream, and publish the rows that are missing.",
            ) from error

    def _exchange(self, batch: _Batch) -> protocol.Message:
        batch.attempts += 1
        self.replies += 1
        if self.sid == 0:
            self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
            self.sid = self.connection.subscribe(f"{self.inbox}.>", self.job.deadline)
        link, prefix = self.connection.link, f"{self.inbox}.{self.replies}."
        link.send(self._frames(batch, prefix.encode()), self.job.deadline)
        patience = self.job.deadline.within(PATIENCE)
        while True:
            event = link.next_event(patience)
            if isinstance(event, protocol.Message) and event.sid == self.sid and event.subject.startswith(prefix):
                return event

    def _frames(self, batch: _Batch, prefix: bytes) -> bytearray:
        common: dict[str, Any] = {
            "counter": b"Nats-Batch-Sequence",
            "id_prefix": self.ids.encode(),
            "id_offset": batch.row - 1,
        }
        name = b"Nats-Batch-Id: %s\r\n" % secrets.token_hex(8).encode()
        body = frames.Encoder(fixed=name, **common)
        body.write(batch.rows, batch.first, batch.last - 1, 1, 1 << 40)
        end = frames.Encoder(fixed=name + b"Nats-Batch-Commit: 1\r\n", reply_prefix=prefix, **common)
        end.write(batch.rows, batch.last - 1, batch.last, batch.count, 1)
        content: bytearray = body.take()
        content += end.take()
        return content

    def _find(self, batch: _Batch) -> int | None:
        """Look for the last message of a batch that was stored though its ack was lost."""
        body = {"last_by_subj": batch.rows.subject(batch.last - 1).decode()}
        try:
            found = self.connection.api(f"STREAM.MSG.GET.{self.job.stream}", body)["message"]
        except (NotFoundError, DeadlineError, DisconnectedError):
            return None
        header = base64.b64decode(found.get("hdrs", "")).decode("utf-8", "replace")
        return int(found["seq"]) if f"Nats-Msg-Id: {self.ids}{batch.range[1] - 1}\r\n" in header else None

    def _mend(self, batch: _Batch, error: Exception) -> None:
        """Connect again; give up where sending again is not safe or not in time."""
        pause = 0.05
        while True:
            self.connection.link.close()
            self.sid = 0
            what = f"{getattr(error, 'what', error)}".rstrip(".")
            why = ""
            if not self.ids:
                why = "without ids nothing is sent twice"
            elif time.monotonic() - batch.sent > self.job.duplicate_window * 2 / 3:
                why = "the stream's duplicate window is too short to send the batch again"
            elif self.job.deadline.left == 0:
                why = f"there was no progress for {self.job.timeout:.3g} s"
            if why:
                raise self._give_up(batch, f"{what}, and {why}") from error
            try:
                self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
                return
            except (LinkError, DeadlineError) as again:
                error = again
                time.sleep(min(pause, self.job.deadline.left))
                pause = min(1.0, 2 * pause)

    def _give_up(self, batch: _Batch, why: str) -> PublishError:
        return self.job.ledger.failure(why, unknown=[batch.range])


def run(job: Job) -> None:
    """Publish the rows of a job."""
    _Atomic(job).run()
