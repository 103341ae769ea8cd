"""Publishing with an ack for every message.

A window of messages is under way; each reply subject ends with the number of its row. What has no ack when the
connection is lost is sent again. Every message has an id, so the server stores it once, as long as its duplicate window
reaches back to the first sending.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Collection

from penstock.errors import DeadlineError, DisconnectedError, JetStreamError, LinkError
from penstock.wire import frames, protocol
from penstock.wire.bulk.publishing import CHUNK, SILENCE, Job, read_ack
from penstock.wire.jetstream.verdicts import is_passing, may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["run"]

WINDOW_ROWS = 4096  # more do not make the server faster, and each costs it memory
WINDOW_BYTES = 8 * 1024 * 1024
PAUSE = 0.1  # seconds before a stream that has no leader, or too much to do, is asked again


class _Piece:
    """Rows that were sent together: `rows[first:last]`, the first one having `number` as its row number."""

    __slots__ = ("first", "last", "missing", "number", "rows", "sent", "size")

    def __init__(self, rows: frames.Rows, first: int, last: int, number: int, size: int) -> None:
        self.rows = rows
        self.first = first
        self.last = last
        self.number = number
        self.size = size
        self.sent = time.monotonic()
        self.missing = set(range(number, number + last - first))


class _Acks:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection = job.connection
        self.inbox = job.connection.new_subject()
        self.encoder = frames.Encoder(
            reply_prefix=f"{self.inbox}.".encode(), id_prefix=f"{secrets.token_hex(8)}.".encode()
        )
        self.quick = b'{"stream":"%s","seq":' % job.stream.encode()
        self.pieces: deque[_Piece] = deque()
        self.waiting = 0
        self.bytes = 0
        self.sid = 0
        self.refused: tuple[int, JetStreamError] | None = None
        self.later: dict[int, JetStreamError] = {}  # rows that were not taken just now, to be sent again in a moment
        self.doubtful: set[int] = set()  # rows of which an attempt ended without an answer

    def run(self) -> None:
        self._subscribe()
        for first, rows in self.job.rows():
            place = 0
            while place < rows.count and self.refused is None:
                while self.waiting >= WINDOW_ROWS or self.bytes >= WINDOW_BYTES or self.later:
                    self._collect(wait=True)
                last = min(rows.count, place + max(WINDOW_ROWS // 8, WINDOW_ROWS - self.waiting))
                place = self._send(rows, place, last, first + place)
                self._collect(wait=False)
            if self.refused is not None:
                break
        while self.waiting:
            self._collect(wait=True)
        if self.refused is not None:
            row, error = self.refused
            raise self.job.ledger.failure(
                f"row {row} was refused: {error.description}",
                remedy="Mend the row or the stream, and publish the rows that are missing.",
                err_code=error.err_code,
            ) from error

    def _subscribe(self) -> None:
        self.sid = self.connection.subscribe(f"{self.inbox}.*", self.job.deadline)

    def _send(self, rows: frames.Rows, first: int, last: int, number: int) -> int:
        stop = self.encoder.write(rows, first, last, number, CHUNK)
        content = self.encoder.take()
        piece = _Piece(rows, first, stop, number, len(content))
        self.pieces.append(piece)
        self.waiting += stop - first
        self.bytes += piece.size
        try:
            self.connection.link.send(content, self.job.deadline.within(SILENCE))
        except (DisconnectedError, DeadlineError) as error:
            self._mend(error)
        return stop

    def _collect(self, *, wait: bool) -> None:
        """Take the acks that are there; with `wait`, at least one."""
        link = self.connection.link
        before = self.waiting
        hurried = bool(self.later)
        patience = self.job.deadline.within(PAUSE if hurried else SILENCE)
        try:
            while True:
                event = link.parser.next_event()
                if event is not None:
                    if isinstance(event, protocol.Message):
                        if event.sid == self.sid:
                            self._acked(event)
                    else:
                        link.handle(event)
                elif wait and self.waiting == before:
                    if self.later and not hurried:  # refused meanwhile: send it again soon
                        hurried, patience = True, self.job.deadline.within(PAUSE)
                    link.receive(patience)
                elif not link.receive_some():
                    break
        except DeadlineError as error:
            if self.later:
                self._send_later()
            else:
                self._mend(error)
        except DisconnectedError as error:
            self._mend(error)
        if self.waiting < before:
            self.job.progress()

    def _acked(self, event: protocol.Message) -> None:
        row = int(event.subject[len(self.inbox) + 1 :])
        while self.pieces and not self.pieces[0].missing:
            self.pieces.popleft()
        piece = next((piece for piece in self.pieces if row in piece.missing), None)  # mostly the first one
        if piece is None:
            return  # the ack of a message that was sent twice
        payload = event.payload
        rest = payload[len(self.quick) : -1]
        if payload.startswith(self.quick) and rest.isdigit():
            self.job.ledger.add_row(row, int(rest), False)
        else:
            try:
                ack = read_ack(event)
                self.job.ledger.add_row(row, ack.sequence, ack.duplicate)
            except JetStreamError as error:
                if may_ask_again(error):
                    self.later[row] = error
                    return
                self.refused = self.refused or (row, error)
        piece.missing.discard(row)
        self.waiting -= 1
        if not piece.missing:
            self.bytes -= piece.size

    def _send_later(self) -> None:
        """Send again what was not taken the last time."""
        self._check_time(next(iter(self.later.values())))
        rows, self.later = self.later, {}
        try:
            for piece in self.pieces:
                self._send_again(piece, rows.keys())
        except (DisconnectedError, DeadlineError) as again:
            self._mend(again)

    def _check_time(self, error: Exception) -> None:
        """Give up where sending again is no longer safe or no longer in time."""
        oldest = min((piece.sent for piece in self.pieces if piece.missing), default=time.monotonic())
        # A third of the window is left for the way there: the server counts from when it stored the first one.
        if time.monotonic() - oldest > self.job.duplicate_window * 2 / 3:
            raise self._failure(error, "the stream's duplicate window is too short to send the rest again")
        if self.job.deadline.left == 0:
            raise self._failure(error, f"there was no progress for {self.job.timeout:.3g} s")

    def _mend(self, error: Exception) -> None:
        """Connect again and send what has no ack; give up where that is no longer safe or no longer in time."""
        link = self.connection.link
        pause = 0.05
        while True:
            self._check_time(error)
            try:
                if not isinstance(error, DeadlineError) or pause > 0.05:
                    link.close()
                self.connection.connect(self.job.deadline.within(self.connection.options.connect_timeout))
                self._subscribe()
                self.doubtful.update(row for piece in self.pieces for row in piece.missing if row not in self.later)
                self.later.clear()
                for piece in self.pieces:
                    self._send_again(piece, piece.missing)
                return
            except (LinkError, DeadlineError) as again:
                error = again
                link.close()
                time.sleep(min(pause, self.job.deadline.left))
                pause = min(1.0, 2 * pause)

    def _send_again(self, piece: _Piece, wanted: Collection[int]) -> None:
        for row in sorted(piece.missing.intersection(wanted)):
            place = piece.first + row - piece.number
            self.encoder.write(piece.rows, place, place + 1, row, 1)
            if self.encoder.size >= CHUNK:
                self.connection.link.send(self.encoder.take(), Deadline(SILENCE))
        if self.encoder.size:
            self.connection.link.send(self.encoder.take(), Deadline(SILENCE))

    def _failure(self, error: Exception, why: str) -> Exception:
        refused = {row for row, why in self.later.items() if is_passing(why)} - self.doubtful
        unknown = [(row, row + 1) for piece in self.pieces for row in piece.missing - refused]
        what = str(getattr(error, "what", error)).rstrip(".")
        code = error.err_code if isinstance(error, JetStreamError) else None
        return self.job.ledger.failure(f"{what}, and {why}", unknown=unknown, err_code=code)


def run(job: Job) -> None:
    """Publish the rows of a job."""
    _Acks(job).run()
