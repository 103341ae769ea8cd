"""Publishing with an ack for every message.

A window of messages is under way; each reply subject ends with the number of its row. What has no ack when the
connection is lost is sent again. Every message has an id, so the server stores it once, as long as its duplicate window
reaches back to the first sending.
"""

from __future__ import annotations

import time

from penstock.errors import DeadlineError, DisconnectedError, PenstockError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import CHUNK, PAUSE, SILENCE, Job
from penstock.wire.jetstream.acked import Window, hindrance, number_behind
from penstock.wire.plain_acks import PlainAcks

__all__ = ["Acks"]

WINDOW_ROWS = 4096  # more do not make the server faster, and each costs it memory
WINDOW_BYTES = 8 * 1024 * 1024


class Acks:
    """Publishes the rows of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inbox = f"{job.connection.new_subject()}."
        self.encoder = frames.Encoder(reply_prefix=self.inbox.encode(), id_prefix=job.ids)
        # For each message its rows, and what makes its number a place in them.
        self.window: Window[tuple[frames.Rows, int]] = Window(
            job.stream,
            most=WINDOW_ROWS,
            most_bytes=WINDOW_BYTES,
            safe=job.safe,
            domain=job.domain,
            on_stored=job.acked.add_row,
        )
        self.plain = PlainAcks(self.inbox.encode(), self.window.plain)

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """The rows that were sent and have no ack."""
        return self.window.unknown

    def run(self) -> None:
        """Publish them all."""
        window = self.window
        self.job.listen(f"{self.inbox}*")
        for number, rows in self.job.rows():
            place = 0
            while place < rows.count and window.refused is None:
                while not window.room:
                    self._collect(wait=True)
                place = self._send(rows, place, place + max(WINDOW_ROWS // 8, window.room), number + place)
                self._collect(wait=False)
            if window.refused is not None:
                break
        while len(window):
            self._collect(wait=True)
        if window.refused is not None:
            row, error = window.refused
            raise self.job.refusal(f"row {row}", error) from error

    def _send(self, rows: frames.Rows, first: int, last: int, number: int) -> int:
        stop = self.encoder.write(rows, first, min(rows.count, last), number, CHUNK)
        content = self.encoder.take()
        self.window.add((rows, first - number), number, len(content), time.monotonic(), stop - first)
        try:
            self.job.send(content)
        except (DisconnectedError, DeadlineError) as error:
            self._mend(error)
        return stop

    def _collect(self, *, wait: bool) -> None:
        """Take the acks that are there; with `wait`, at least one."""
        window, before = self.window, len(self.window)
        try:
            self.job.hear(self._acked, (PAUSE if window.again else SILENCE) if wait else None, self._acked_plainly)
        except (DisconnectedError, DeadlineError) as error:
            if isinstance(error, DeadlineError) and window.again:
                self.job.check(window.trouble or error, self._hindrance(time.monotonic()), window.unknown)
                self._send_again()
            else:
                self._mend(error)
        if len(window) < before:
            self.job.progress()

    def _acked(self, event: protocol.Message) -> None:
        self.window.hear(number_behind(event.subject, self.inbox), event.payload, event.status)

    def _acked_plainly(self, parser: protocol.Parser, sid: int) -> bool:
        """Take the acks that say nothing but a sequence, as runs."""
        runs: list[tuple[int, int, int]] = []
        self.plain.sid = sid
        position = self.plain.take(parser.buffer, parser.start, parser.end, runs)
        if not runs:
            return False
        parser.take(position)
        for number, count, sequence in runs:
            for first, end in self.window.hear_run(number, count):
                self.job.acked.add(first, end - first, sequence + end - 1 - number)
        return True

    # -- sending again --------------------------------------------------------------------------------------------

    def _hindrance(self, now: float) -> str:
        return hindrance("the rest", ids=True, safe=self.window.is_safe(now))

    def _mend(self, error: PenstockError) -> None:
        """Connect again and send what has no ack."""
        self.window.lose()
        self.job.mend(error, self._hindrance, self.window.unknown)
        self._send_again(listen=True)

    def _send_again(self, *, listen: bool = False) -> None:
        try:
            if listen:
                self.job.listen(f"{self.inbox}*")
            for number, (rows, offset) in self.window.resend():
                self.encoder.write(rows, number + offset, number + offset + 1, number, 1)
                if self.encoder.size >= CHUNK:
                    self.job.send(self.encoder.take())
            self.job.send(self.encoder.take())
        except (DisconnectedError, DeadlineError) as error:
            self.encoder.take()
            self._mend(error)
