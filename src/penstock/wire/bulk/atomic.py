"""Atomic batches: each thousand rows are stored together or not at all.

What is stored is always a beginning of the rows, without a hole: a batch is committed when the one before is stored.
Two that are committed at once would do otherwise when the leader changes between them. But all of a batch except its
last message, which commits, goes to the server while that stores the one before: neither waits for the other.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, NoRespondersError, NotFoundError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import PAUSE, SILENCE, Job
from penstock.wire.jetstream.atomic import MOST, Attempts, confirm_batch, encode_rows
from penstock.wire.jetstream.direct import read_message
from penstock.wire.jetstream.names import MSG_ID
from penstock.wire.jetstream.verdicts import Verdict

__all__ = ["Atomic"]

TOGETHER = 16 << 20  # bytes of two batches at the most: the server drops what comes when too much waits for a stream
PATIENCE = 2 * SILENCE  # a thousand rows on a slow disk take their time; the server gives a silent batch ten seconds


class _Batch:
    """Rows that are stored together: `rows[first:last]`, the first one having `row` as its number."""

    def __init__(self, job: Job, rows: frames.Rows, first: int, row: int) -> None:
        self.rows = rows
        self.first = first
        self.last = min(rows.count, first + MOST)
        self.range = (row, row + self.last - first)
        self.attempts = Attempts(ids=bool(job.ids), ours=not job.source.has_headers, safe=job.safe)
        self.reply = ""  # what the subject begins with on which the attempt that is under way is answered
        self.body = bytearray()  # its frames that are to be sent, but for the one that commits
        self.end = bytearray()
        self.size = 0


class Atomic:
    """Publishes the rows of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inbox = job.connection.new_subject()
        self.replies = 0
        self.links = 0  # connections so far on which we listen
        self.listens = False
        self.lost: DeadlineError | DisconnectedError | None = None  # why nothing can be sent any more
        self._open: list[_Batch] = []  # those of which something was sent, and whose fate is not known yet

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """The rows that were sent, and may be stored if the server does not do as it must."""
        return [batch.range for batch in self._open]

    def run(self) -> None:
        """Publish them all."""
        before: _Batch | None = None
        for number, rows in self.job.rows():
            for first in range(0, rows.count, MOST):
                batch = _Batch(self.job, rows, first, number + first)
                self._follow(before, batch)
                before = batch
        if before is not None:
            self._settle(before)

    def _follow(self, before: _Batch | None, batch: _Batch) -> None:
        """Commit a batch when the one before is stored; the rest of it goes out earlier, unless both are large."""
        self._begin(batch)
        if before is not None:
            link = self.links
            if early := before.size + batch.size <= TOGETHER:
                self._send(batch)
            self._settle(before)
            if early and link != self.links:
                self._begin(batch)  # what the server has of it came by another connection, and not all of it may have
        self._send(batch, commit=True)

    def _settle(self, batch: _Batch) -> None:
        """See a batch stored that was committed, and note its ack."""
        sequence = self._store(batch)
        row, end = batch.range
        self._open.remove(batch)
        self.job.acked.add(row, end - row, sequence)
        self.job.progress()

    def _store(self, batch: _Batch) -> int | None:
        """Store a batch, in as many attempts as it takes, and give the sequence of its last row if it is known."""
        job, attempts = self.job, batch.attempts
        while True:
            try:
                return self._take_ack(batch)
            except (JetStreamError, DeadlineError, DisconnectedError) as error:
                verdict = attempts.judge(error)
                if verdict is Verdict.STORED:
                    return self._find(batch)
                doubt = [batch.range] if attempts.lost else []
                if verdict is Verdict.REFUSED:
                    start, end = batch.range
                    raise job.refusal(f"the batch of rows [{start}, {end})", error, doubt) from error
                if isinstance(error, JetStreamError | NoRespondersError):  # the connection is well
                    job.check(error, attempts.hindrance(time.monotonic()), doubt)
                    time.sleep(PAUSE)
                else:
                    job.mend(error, attempts.hindrance, doubt)
                    self.links, self.listens, self.lost = self.links + 1, False, None
            self._begin(batch)
            self._send(batch, commit=True)

    def _begin(self, batch: _Batch) -> None:
        """Begin an attempt: write its frames."""
        self.replies += 1
        batch.reply = f"{self.inbox}.{self.replies}."
        name, last = batch.attempts.begin(time.monotonic()), batch.last - 1
        ids: dict[str, Any] = {"ids": self.job.ids, "id_offset": batch.range[0] - 1}
        _, batch.body = encode_rows(batch.rows, batch.first, last, name, **ids)
        batch.size, number = len(batch.body), batch.last - batch.first
        _, batch.end = encode_rows(batch.rows, last, batch.last, name, reply=batch.reply, number=number, **ids)

    def _send(self, batch: _Batch, *, commit: bool = False) -> None:
        """Send what was not sent of a batch; if that cannot be, whoever waits for the next ack hears it."""
        if batch not in self._open:
            self._open.append(batch)
        if self.lost is not None:
            return
        try:
            if not self.listens:
                self.job.listen(f"{self.inbox}.*.*")
                self.listens = True
            self.job.connection.wire.send(batch.body, self.job.deadline)
            batch.body = bytearray()
            if commit:
                self.job.connection.wire.send(batch.end, self.job.deadline)
        except (DeadlineError, DisconnectedError) as error:
            self.lost = error

    def _take_ack(self, batch: _Batch) -> int:
        if self.lost is not None:
            raise self.lost
        answers: list[protocol.Message] = []
        end = self.job.deadline.within(PATIENCE)
        while not answers:
            self.job.hear(
                lambda event: answers.append(event) if event.subject.startswith(batch.reply) else None, end.left
            )
        said, job, count = answers[0], self.job, batch.last - batch.first
        return confirm_batch(said.payload, said.status, job.stream, job.domain, batch.attempts.batch_id, count).sequence

    def _find(self, batch: _Batch) -> int | None:
        """Look for the last message of a batch that was stored though its ack was lost."""
        body = {"last_by_subj": batch.rows.subject(batch.last - 1).decode()}
        try:
            found = read_message(self.job.connection.api(f"STREAM.MSG.GET.{self.job.stream}", body))
        except (NotFoundError, DeadlineError, DisconnectedError):
            return None
        mine = f"{MSG_ID}: {self.job.ids.decode()}{batch.range[1] - 1}\r\n"
        return found.sequence if mine.encode() in found.header else None
