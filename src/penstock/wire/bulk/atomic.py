"""Atomic batches: each thousand rows are stored together or not at all.

One batch is under way at a time, so that what is stored is always a beginning of the rows, without a hole: two at once
would be a fifth faster, and a leader that changes between them would store the second and not the first.
"""

from __future__ import annotations

import time

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, NoRespondersError, NotFoundError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import PAUSE, SILENCE, Job
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.atomic import MOST, Attempts, encode_rows
from penstock.wire.jetstream.direct import read_message
from penstock.wire.jetstream.names import MSG_ID
from penstock.wire.jetstream.verdicts import Verdict

__all__ = ["Atomic"]

PATIENCE = 2 * SILENCE  # a thousand rows on a slow disk take their time; the server gives a silent batch ten seconds


class _Batch:
    """Rows that are stored together: `rows[first:last]`, the first one having `row` as its number."""

    def __init__(self, job: Job, rows: frames.Rows, first: int, row: int) -> None:
        self.rows = rows
        self.first = first
        self.last = min(rows.count, first + MOST)
        self.range = (row, row + self.last - first)
        self.attempts = Attempts(ids=bool(job.ids), ours=not job.source.has_headers, safe=job.safe)


class Atomic:
    """Publishes the rows of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inbox = job.connection.new_subject()
        self.replies = 0

    def run(self) -> None:
        """Publish them all."""
        for number, rows in self.job.rows():
            for first in range(0, rows.count, MOST):
                batch = _Batch(self.job, rows, first, number + first)
                sequence = self._store(batch)
                row, end = batch.range
                self.job.acked.add(row, end - row, sequence)
                self.job.progress()

    def _store(self, batch: _Batch) -> int | None:
        """Store a batch, in as many attempts as it takes, and give the sequence of its last row where it is known."""
        job, attempts = self.job, batch.attempts
        while True:
            try:
                return self._attempt(batch)
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
                    self.replies = 0
                    job.mend(error, attempts.hindrance, doubt)

    def _attempt(self, batch: _Batch) -> int:
        if not self.replies:
            self.job.listen(f"{self.inbox}.*.*")
        self.replies += 1
        reply = f"{self.inbox}.{self.replies}."
        batch_id = batch.attempts.begin(time.monotonic())
        _, content = encode_rows(
            batch.rows,
            batch.first,
            batch.last,
            batch_id,
            reply=reply,
            ids=self.job.ids,
            id_offset=batch.range[0] - 1,
        )
        self.job.connection.wire.send(content, self.job.deadline)
        answers: list[protocol.Message] = []
        end = self.job.deadline.within(PATIENCE)
        while not answers:
            self.job.hear(lambda event: answers.append(event) if event.subject.startswith(reply) else None, end.left)
        return confirm(answers[0].payload, answers[0].status, self.job.stream, self.job.domain).sequence

    def _find(self, batch: _Batch) -> int | None:
        """Look for the last message of a batch that was stored though its ack was lost."""
        body = {"last_by_subj": batch.rows.subject(batch.last - 1).decode()}
        try:
            found = read_message(self.job.connection.api(f"STREAM.MSG.GET.{self.job.stream}", body))
        except (NotFoundError, DeadlineError, DisconnectedError):
            return None
        mine = f"{MSG_ID}: {self.job.ids.decode()}{batch.range[1] - 1}\r\n"
        return found.sequence if mine.encode() in found.header else None
