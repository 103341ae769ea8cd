"""Atomic batches (ADR-50): up to a thousand rows that are stored together or not at all.

Every message names its batch and its place in it; the last one commits and gets the ack. A few batches are under way at
once. They commit in the order of the rows, because one connection's messages are taken in order.

Where the connection is lost before the ack, the batch is sent again with the same message ids. If it had been stored,
the server refuses the repetition as a duplicate, and that is as good as the ack.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, LinkError, NotFoundError, PublishError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import SILENCE, Ack, Job, read_ack

__all__ = ["run"]

BATCH = 1000  # the server's limit
IN_FLIGHT = 4  # batches; while one is being synced the next ones are on their way
WINDOW_BYTES = 64 * 1024 * 1024
DUPLICATE = 10201


class _Batch:
    """Rows that are stored together: `rows[first:last]`, the first one having `row` as its number."""

    __slots__ = ("attempts", "first", "last", "reply", "row", "rows", "sent", "size")

    def __init__(self, rows: frames.Rows, first: int, last: int, row: int) -> None:
        self.rows = rows
        self.first = first
        self.last = last
        self.row = row
        self.reply = ""
        self.attempts = 0
        self.size = 0
        self.sent = 0.0

    @property
    def range(self) -> tuple[int, int]:
        return self.row, self.row + self.last - self.first


class _Atomic:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection = job.connection
        self.inbox = job.connection.new_subject()
        self.ids = f"{secrets.token_hex(8)}." if job.ids else ""
        self.sid = 0
        self.replies = 0
        self.under_way: deque[_Batch] = deque()
        self.failure: PublishError | None = None
        self.unknown: list[tuple[int, int]] = []
        self.why: tuple[str, JetStreamError] | None = None

    def run(self) -> None:
        self._subscribe()
        for number, rows in self.job.rows():
            for first in range(0, rows.count, BATCH):
                while len(self.under_way) >= IN_FLIGHT or sum(batch.size for batch in self.under_way) > WINDOW_BYTES:
                    self._hear()
                if self.why is not None:
                    break
                batch = _Batch(rows, first, min(rows.count, first + BATCH), number + first)
                self.under_way.append(batch)
                try:
                    self._send(batch)
                except (DisconnectedError, DeadlineError) as error:
                    self._mend(error)
            if self.why is not None:
                break
        while self.under_way:
            self._hear()
        if self.why is not None:
            what, refusal = self.why
            raise self.job.ledger.failure(
                what,
                unknown=self.unknown,
                err_code=refusal.err_code,
                remedy="Mend the rows or the stream, and publish the rows that are missing.",
            ) from refusal

    def _subscribe(self) -> None:
        self.sid = self.connection.subscribe(f"{self.inbox}.>", self.job.deadline)

    def _send(self, batch: _Batch) -> None:
        self.replies += 1
        batch.attempts += 1
        batch.sent = batch.sent or time.monotonic()
        count = batch.last - batch.first
        prefix = f"{self.inbox}.{self.replies}."
        batch.reply = f"{prefix}{count}"
        common: dict[str, Any] = {
            "counter": b"Nats-Batch-Sequence",
            "id_prefix": self.ids.encode(),
            "id_offset": batch.row - 1,
        }
        name = b"Nats-Batch-Id: %s\r\n" % secrets.token_hex(8).encode()
        body = frames.Encoder(fixed=name, **common)
        body.write(batch.rows, batch.first, batch.last - 1, 1, 1 << 40)
        end = frames.Encoder(fixed=name + b"Nats-Batch-Commit: 1\r\n", reply_prefix=prefix.encode(), **common)
        end.write(batch.rows, batch.last - 1, batch.last, count, 1)
        content = body.take() + end.take()
        batch.size = len(content)
        self.connection.link.send(content, self.job.deadline)

    def _hear(self) -> None:
        """Wait for an ack of a batch under way."""
        link = self.connection.link
        try:
            event = link.next_event(self.job.deadline.within(self._patience()))
            if isinstance(event, protocol.Message) and event.sid == self.sid:
                for batch in self.under_way:
                    if batch.reply == event.subject:
                        self.under_way.remove(batch)
                        self.job.progress()
                        self._acked(batch, event)
                        break
        except (DisconnectedError, DeadlineError) as error:
            self._mend(error)

    def _patience(self) -> float:
        # A thousand rows on a slow disk take their time; the server gives a silent batch ten seconds.
        return 2 * SILENCE

    def _acked(self, batch: _Batch, event: protocol.Message) -> None:
        count = batch.last - batch.first
        try:
            answer = read_ack(event)
        except JetStreamError as error:
            if batch.attempts > 1 and error.err_code == DUPLICATE and self.ids:
                self.job.ledger.add(Ack(batch.row, count, self._find(batch), duplicate=False))
                return
            if batch.attempts > 1:
                self.unknown.append(batch.range)  # the first attempt may be what this one ran into
            if self.why is None:
                start, end = batch.range
                self.why = f"the batch of rows [{start}, {end}) was refused: {error.description}", error
            return
        self.job.ledger.add(Ack(batch.row, count, int(answer["seq"])))

    def _find(self, batch: _Batch) -> int | None:
        """Look for the last message of a batch that was stored though its ack was lost."""
        body = {"last_by_subj": batch.rows.subject(batch.last - 1).decode()}
        try:
            found = self.connection.api(f"STREAM.MSG.GET.{self.job.stream}", body)["message"]
        except (NotFoundError, DeadlineError, DisconnectedError):
            return None
        wanted = f"Nats-Msg-Id: {self.ids}{batch.range[1] - 1}\r\n"
        return int(found["seq"]) if wanted in _decoded(found.get("hdrs", "")) else None

    def _mend(self, error: Exception) -> None:
        """Connect again and send what has no ack, in order; give up where that is not safe or not in time."""
        link = self.connection.link
        pause = 0.05
        while True:
            link.close()
            oldest = min((batch.sent for batch in self.under_way if batch.sent), default=time.monotonic())
            if not self.ids:
                raise self._give_up(error, "without ids nothing is sent twice")
            if time.monotonic() - oldest > self.job.duplicate_window * 2 / 3:
                raise self._give_up(error, "the stream's duplicate window is too short to send the rest again")
            if self.job.deadline.left == 0:
                raise self._give_up(error, f"there was no progress for {self.job.timeout:.3g} s")
            try:
                self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
                self._subscribe()
                for batch in self.under_way:
                    self._send(batch)
                return
            except (LinkError, DeadlineError) as again:
                error = again
                time.sleep(min(pause, self.job.deadline.left))
                pause = min(1.0, 2 * pause)

    def _give_up(self, error: Exception, why: str) -> PublishError:
        unknown = self.unknown + [batch.range for batch in self.under_way]
        return self.job.ledger.failure(f"{getattr(error, 'what', error)} And {why}", unknown=unknown)


def _decoded(header: str) -> str:
    import base64

    return base64.b64decode(header).decode("utf-8", "replace")


def run(job: Job) -> None:
    """Publish the rows of a job."""
    _Atomic(job).run()
