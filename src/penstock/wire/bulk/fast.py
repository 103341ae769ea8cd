"""Fast ingest: one batch without end; what breaks it is taken up by the next one."""

from __future__ import annotations

import time
from collections import deque

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, PenstockError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import CHUNK, PAUSE, Job
from penstock.wire.jetstream.fast import Batch, Operation, Silence

__all__ = ["Fast"]


class Fast:
    """Publishes the rows of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows: deque[tuple[int, frames.Rows]] = deque()  # with rows that are not known to be stored
        self.source = job.rows()
        self.base = 0  # the rows before the first one of the current batch
        again = bool(job.ids) or job.twice
        self.batch = Batch(job.connection.new_subject(), job.stream, ids=again, safe=job.safe, domain=job.domain)

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """The rows of the batch that is under way: a server that answers what cannot be is not taken at its word."""
        noted = max((ack.row + ack.count for ack in self.job.acked.acks), default=0)
        return [(max(self.base, noted), self.base + self.batch.sent)]

    def run(self) -> None:
        """Publish them all."""
        while self._has_more():
            try:
                self._start()
                while self.batch.is_open and self._has_more():
                    self._append()
                self._finish()
            except (DisconnectedError, DeadlineError) as error:
                self._mend(error)
            except JetStreamError as error:  # the ack is of another stream, which alone knows what became of the batch
                doubt = [(self.base, self.base + self.batch.sent)]
                raise self.job.refusal(f"row {self.base}", error, doubt) from error
            self.base += self.batch.acked
            self.batch = self.batch.follow(self.job.connection.new_subject())

    # -- rows -----------------------------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        """Tell whether rows are left to send, fetching the next ones if that must be known."""
        row = self.base + self.batch.sent
        while not self.rows or self.rows[-1][0] + self.rows[-1][1].count <= row:
            item = next(self.source, None)
            if item is None:
                return False
            self.rows.append(item)
        return True

    def _place(self, row: int) -> tuple[frames.Rows, int]:
        # The newest rows always stay: the end of the batch is sent on the subject of its last row.
        stored = self.base + self.batch.acked
        while len(self.rows) > 1 and self.rows[0][0] + self.rows[0][1].count <= stored:
            self.rows.popleft()
        first, rows = next(item for item in self.rows if item[0] + item[1].count > row)
        return rows, row - first

    def _encoder(self, operation: Operation) -> frames.Encoder:
        return frames.Encoder(
            reply_prefix=self.batch.prefix.encode(),
            reply_suffix=self.batch.suffix(operation).encode(),
            id_prefix=self.job.ids,
            id_offset=self.base,  # numbers begin anew with every batch, ids stay those of the first sending
        )

    def _write(self) -> None:
        """Send as many of the rows that come next as there is room for."""
        batch = self.batch
        rows, place = self._place(self.base + batch.sent)
        stop = self.encoder.write(rows, place, min(rows.count, place + batch.room), batch.sent + 1, CHUNK)
        batch.send(stop - place, time.monotonic())
        self.job.send(self.encoder.take())

    def _command(self, operation: Operation) -> None:
        rows, place = self._place(self.base + self.batch.sent - 1)
        self.job.send(protocol.publish(rows.subject(place).decode(), b"", self.batch.reply(operation)))

    # -- the batch ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Send the first message and learn how fast the server wants the rest."""
        # A subscription of its own, as the protocol asks.
        self.job.listen(self.batch.listen)
        self.encoder = self._encoder(Operation.START)
        self._write()
        while not (self.batch.is_open or self.batch.is_broken or self.batch.is_over):
            self._hear(wait=True)
        self.encoder = self._encoder(Operation.APPEND)

    def _append(self) -> None:
        full = not self.batch.room
        if not full:
            self._write()
        self._hear(wait=full)

    def _finish(self) -> None:
        """End the batch without another message, wait for its end, and draw its sum."""
        job, batch = self.job, self.batch
        if batch.is_open:
            self._command(Operation.END)
        while not batch.is_over:
            self._hear(wait=True)
        job.unlisten()
        if batch.acked:
            job.acked.add(self.base, batch.acked, batch.sequence, batch.is_duplicate, batch.is_duplicate)
        if batch.acked < batch.sent:
            if batch.is_refused:
                raise job.refusal(f"row {self.base + batch.acked}", batch.reason, self._unknown()) from batch.fault
            # A leader that was replaced, or is new, ended the batch: what has no ack goes into another one.
            job.check(batch.reason, batch.hindrance(time.monotonic()), self._unknown())
            time.sleep(PAUSE)
        if batch.acked:
            job.progress()

    def _hear(self, *, wait: bool) -> None:
        batch, before = self.batch, self.batch.acked
        try:
            self.job.hear(lambda event: batch.hear(event.payload, event.status), batch.patience if wait else None)
        except DeadlineError:
            if not self.job.deadline.left:
                raise
            silence = batch.silent()
            if silence is Silence.LOST:
                raise
            if silence is Silence.PING:
                self._command(Operation.PING)
        if batch.acked > before:
            self.job.progress()

    def _unknown(self) -> list[tuple[int, int]]:
        start = self.base + self.batch.acked
        return [(start, start + self.batch.doubtful)]

    def _mend(self, error: PenstockError) -> None:
        """Connect again, to go on behind the last stored row."""
        if self.batch.acked:
            self.job.acked.add(self.base, self.batch.acked, None, contiguous=False)
        self.job.mend(error, self.batch.hindrance, self._unknown())
