"""Rows into a stream: what the three modes share, and the result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    LinkError,
    PenstockError,
    PublishError,
    RemoteProtocolError,
)
from penstock.wire import frames, protocol
from penstock.wire.bulk.rows import Source
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import joined, no_window
from penstock.wire.jetstream.answers import number, part, text, texts
from penstock.wire.jetstream.verdicts import Verdict, judge
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.wire.bulk.connection import BulkConnection

__all__ = ["Ack", "Published", "publish"]

CHUNK = 256 * 1024  # bytes handed to the socket at once
SILENCE = 5.0  # seconds without an ack after which the connection is taken for dead
BRIEF = 0.05  # seconds that answers are taken while there is something to send
PAUSE = 0.1  # seconds before a stream without a leader is asked again


@dataclass(frozen=True, slots=True)
class Ack:
    """The rows `row` to `row + count` are stored, the last of them at `sequence`.

    `contiguous`: the others directly before it, one after the other. A fast batch may have other publishers' messages
    between its own. `duplicate`: they had been stored before, under the same `Nats-Msg-Id`. `sequence` is None if a
    lost ack could not be found again.
    """

    row: int
    count: int
    sequence: int | None
    contiguous: bool = True
    duplicate: bool = False


@dataclass(frozen=True)
class Published:
    """What a publish stored: `rows` of them in `stream`, told by `acks` in the order of the rows."""

    stream: str
    rows: int
    acks: tuple[Ack, ...] = field(repr=False)

    @property
    def last(self) -> int | None:
        """The highest sequence that an ack names."""
        return max((ack.sequence for ack in self.acks if ack.sequence is not None), default=None)

    @property
    def duplicates(self) -> int:
        """How many of the rows had been stored before."""
        return sum(ack.count for ack in self.acks if ack.duplicate)


class AckedRows:
    """Collects acks, neighbours as one, and tells what is stored when a publish fails."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._runs: list[list[Any]] = []  # the fields of acks; the last one grows while others follow it

    def add(self, row: int, count: int, sequence: int | None, contiguous: bool = True, duplicate: bool = False) -> None:
        """Note an ack; one that follows the last one, in rows and in sequences, becomes one with it."""
        if self._runs:
            first, rows, last, joins, repeated = run = self._runs[-1]
            follows = row == first + rows and last is not None and sequence == last + count
            if follows and joins and contiguous and repeated == duplicate:
                run[1], run[2] = rows + count, sequence
                return
        self._runs.append([row, count, sequence, contiguous, duplicate])

    def add_row(self, row: int, sequence: int, duplicate: bool) -> None:
        """Note the ack of one row."""
        self.add(row, 1, sequence, True, duplicate)

    @property
    def acks(self) -> tuple[Ack, ...]:
        """The acks so far, in the order of the rows, neighbours as one."""
        ordered = AckedRows(self.stream)
        for run in sorted(self._runs, key=lambda run: run[0]):
            ordered.add(*run)
        return tuple(Ack(*run) for run in ordered._runs)

    def check_sequences(self, *, ordered: bool, counted: bool) -> None:
        """Refuse acks that contradict each other: the stream was replaced, or set back, between them.

        Two rows cannot have the same sequence; `ordered`: nor can one stand before an earlier one; `counted`: each row
        has a sequence of its own, also those of which no ack says it.
        """
        runs = [ack for ack in self.acks if not ack.duplicate and (ordered or ack.sequence is not None)]
        behind = 0
        for ack in runs if ordered else sorted(runs, key=lambda ack: ack.sequence or 0):
            least = behind + (ack.count if ack.contiguous or counted else 1)
            if ack.sequence is not None and ack.sequence < least:
                last = ack.row + ack.count - 1
                raise self.failure(
                    f"the stream was replaced or restored from an older copy meanwhile: row {last:,} is its message "
                    f"{ack.sequence:,}, and cannot be before {least:,}",
                    remedy="Rows that were acknowledged may be gone: look at the stream, and publish them again.",
                )
            behind = least if ack.sequence is None else ack.sequence

    def failure(
        self, why: str, error: object = None, *, unknown: Iterable[tuple[int, int]] = (), remedy: str = ""
    ) -> PublishError:
        """Give the error of a publish that ended early, `error` being what ended it."""
        stored = tuple(joined((ack.row, ack.row + ack.count) for ack in self.acks))
        doubtful = tuple(joined(unknown))
        said = [f"rows {_ranges(stored)} are stored" if stored else "no row is known to be stored"]
        if doubtful:
            said.append(f"rows {_ranges(doubtful)} may or may not be")
        return PublishError(
            f"Publishing to {self.stream} ended early: {why.rstrip('.')}; {' and '.join(said)}.",
            remedy=remedy,
            stream=self.stream,
            stored=stored,
            unknown=doubtful,
            err_code=getattr(error, "err_code", None),
        )


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    shown = ", ".join(f"[{start}, {end})" for start, end in ranges[:5])
    return f"{shown} and {len(ranges) - 5} more ranges" if len(ranges) > 5 else shown


class Job:
    """What every mode works with: the rows, their acks, and the connection, which is made again when it is lost."""

    def __init__(
        self, connection: BulkConnection, stream: str, source: Source, ids: bool, timeout: float, domain: str
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.domain = domain
        self.source = source
        self.ids = f"{secrets.token_hex(8)}.".encode() if ids else b""  # what the ids begin with that we make up
        self.timeout = timeout
        self.acked = AckedRows(stream)
        self.deadline = Deadline(timeout)
        self.safe = 0.0  # seconds after which sending again is not safe
        self.twice = False  # rows whose fate is unknown are sent again, whatever became of them
        self.broken: Exception | None = None
        self._sid = 0

    def rows(self) -> Iterator[tuple[int, frames.Rows]]:
        """Give the rows; if they end in an error, keep it until what was sent before is settled."""
        try:
            for item in self.source:
                self.progress()  # the caller's time is not ours
                yield item
        except Exception as error:  # the caller's iterator may raise anything, and rows may be under way
            self.broken = error

    def progress(self) -> None:
        """Begin the time without progress anew."""
        self.deadline = Deadline(self.timeout)

    # -- the connection -------------------------------------------------------------------------------------------

    def listen(self, subject: str) -> None:
        """Subscribe to the answers that `hear` gives."""
        self._sid = self.connection.subscribe(subject, self.deadline)

    def unlisten(self) -> None:
        """Drop the subscription: it silences answers that nobody wants any more."""
        sid, self._sid = self._sid, 0
        if sid and self.connection.wire.is_open:
            self.send(protocol.unsubscribe(sid))

    def send(self, content: bytes | bytearray) -> None:
        """Send frames."""
        self.connection.wire.send(content, self.deadline.within(SILENCE))

    def hear(
        self,
        take: Callable[[protocol.Message], object],
        patience: float | None = None,
        take_many: Callable[[protocol.Parser, int], bool] = lambda parser, sid: False,
    ) -> None:
        """Give `take` the answers that are there; with `patience`, wait so many seconds for the first one.

        `take_many` may take answers of the subscription out of the parser's buffer before that, and tells whether it
        took some. Whatever else comes, and however much of it, does not make the wait longer: DeadlineError.
        """
        wire, sid = self.connection.wire, self._sid
        end = self.deadline.within(BRIEF if patience is None else patience)
        waits = patience is not None
        while True:
            if take_many(wire.parser, sid):
                waits = False
            event = wire.parser.next_event()
            if isinstance(event, protocol.Message) and event.sid == sid:
                waits = False
                take(event)
                continue
            if waits:
                end.check()
            elif end.left == 0:
                return
            if event is not None:
                wire.handle(event, self.deadline)
            elif waits:
                wire.receive(end)
            elif not wire.receive_some():
                return

    @property
    def has_time(self) -> bool:
        """Whether something can be sent again before the time without progress is over."""
        return self.deadline.left > PAUSE

    # -- trouble --------------------------------------------------------------------------------------------------

    def check(self, error: PenstockError, hindrance: str, unknown: Sequence[tuple[int, int]]) -> None:
        """Give up if sending again is no longer safe, or no longer in time."""
        why = hindrance or ("" if self.has_time else f"there was no progress for {self.timeout:.3g} s")
        if why:
            remedy = ""
            if not (self.ids or self.twice):
                remedy = (
                    "Publish with ids=True, or in mode acks: then rows are sent again after a lost connection or a "
                    "change of the leader."
                )
            elif getattr(error, "err_code", None) == names.ID_IN_PROCESS:  # nats-server 2.15 may forget to clear them
                remedy = (
                    "A leader may hold back an id whose message was lost when it was chosen, until the stream's "
                    "duplicate window is over. See which of these rows are in the stream, and publish the others then."
                )
            said = f"{error.what.rstrip('.')}, and {why}"
            raise self.acked.failure(said, error, unknown=unknown, remedy=remedy) from error

    def refusal(self, what: str, error: PenstockError, unknown: Sequence[tuple[int, int]] = ()) -> PublishError:
        """Say that the server refuses rows, and why."""
        return self.acked.failure(
            f"{what} was refused: {getattr(error, 'description', None) or error.what}",
            error,
            unknown=unknown,
            remedy="Mend the rows or the stream, and publish the rows that are missing.",
        )

    def mend(self, error: PenstockError, hindrance: Callable[[float], str], unknown: Sequence[tuple[int, int]]) -> None:
        """Make the connection again; give up as `check` does, or if the server does not let us in."""
        pause = 0.05
        self._sid = 0
        while True:
            self.connection.wire.close()
            refused = judge(error) is Verdict.REFUSED
            self.check(error, "it stays so" if refused else hindrance(time.monotonic()), unknown)
            try:
                self.connection.connect(self.deadline.within(self.connection.options.connect_timeout))
                return
            except (LinkError, DeadlineError) as again:
                error = again
                time.sleep(min(pause, self.deadline.left))
                pause = min(1.0, 2 * pause)


def publish(
    connection: BulkConnection,
    stream: str,
    batches: Iterable[pa.RecordBatch] | pa.RecordBatch | pa.Table,
    *,
    mode: str,
    subject: str | None,
    ids: bool | None,
    twice: bool,
    timeout: float,
) -> Published:
    """Check everything that can be checked before the first row, then publish in the given mode."""
    from penstock.wire.bulk import acks, atomic, fast

    modes: dict[str, type[acks.Acks | fast.Fast | atomic.Atomic]]
    modes = {"acks": acks.Acks, "fast": fast.Fast, "atomic": atomic.Atomic}
    if mode not in modes:
        raise InputError(f"There is no mode {mode!r}.", remedy="Known are acks, fast and atomic.")
    if not timeout > 0:
        raise InputError(f"timeout is {timeout}.", remedy="Give a number of seconds above zero.")
    if mode == "acks" and ids is False:
        raise InputError("Mode acks always sends ids.", remedy="Leave ids out, or use mode fast.")
    if twice and (ids or mode != "fast"):
        raise InputError(
            "twice is for mode fast without ids.", remedy="Leave it out: with ids each row is stored once."
        )
    info = _look(connection, stream, Deadline(timeout))
    config = part(info, "config")
    needs = {"fast": "allow_batched", "atomic": "allow_atomic"}.get(mode)
    if needs and not config.get(needs):
        raise InputError(f"Stream {stream} does not allow mode {mode}.", remedy=f"Turn {needs} on, or use mode acks.")
    if config.get("mirror"):
        raise InputError(f"Stream {stream} is a mirror.", remedy="Publish to the stream that it mirrors.")
    source = Source(
        batches,
        subject=subject,
        subjects=texts(config, "subjects"),
        max_payload=connection.max_payload,
        max_size=number(config, "max_msg_size", -1, least=-1) or -1,
    )
    job = Job(connection, stream, source, ids if ids is not None else mode != "fast", timeout, text(info, "domain", ""))
    # A third of the window is left for the way there: the server counts from when it stored the first one.
    job.safe = number(config, "duplicate_window", 0) / 1e9 * 2 / 3
    if job.ids and not job.safe:
        raise no_window(stream)
    if twice:
        job.twice, job.safe = True, inf
    publisher = modes[mode](job)
    try:
        publisher.run()
        job.unlisten()
        job.acked.check_sequences(ordered=mode != "acks", counted=not source.has_headers)
    except RemoteProtocolError as error:
        connection.wire.close()
        raise job.acked.failure(error.what, error, unknown=publisher.unknown, remedy=error.remedy) from error
    if job.broken is not None:
        if not job.acked.acks:
            raise job.broken
        raise job.acked.failure(f"{job.broken}", remedy="Mend the rows that follow, and publish them.") from job.broken
    return Published(stream, source.given, job.acked.acks)


def _look(connection: BulkConnection, stream: str, deadline: Deadline) -> dict[str, Any]:
    """Look at the stream; a connection that is lost meanwhile is made again."""
    while True:
        timeout = max(deadline.within(connection.options.request_timeout).left, 0.001)
        try:
            return connection.api(f"STREAM.INFO.{stream}", timeout=timeout)
        except DisconnectedError:
            if deadline.left == 0:
                raise
