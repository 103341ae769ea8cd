"""Streaming reads: Spark asks how far a micro-batch goes, what its tasks are, and says what is safe in its checkpoint.

One of these lives in a Python process of its own on the driver, as long as the query runs. What it knows beyond the
offsets is a convenience and may be lost: after a restart the offsets alone say what is read next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import DataLossError, InputError
from penstock.options import ConnectionOptions
from penstock.spark.batch_reader import check_there, limits, loss, partition_of
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark, Offset, Range
from penstock.spark.options import SourceOptions
from penstock.spark.partition import PATIENCE, NatsPartition, read_partition
from penstock.spark.planning import share
from penstock.spark.release import Release
from penstock.spark.schema import check_schema
from penstock.spark.survey import StreamState, Survey, utc_now

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NatsStreamReader"]

log = logging.getLogger("penstock.spark")

# A query whose subjects get nothing moves on now and then, with an empty batch: its offset must not fall behind what
# the stream's limits remove, or that would look like a loss.
IDLE_SECONDS = 60.0


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as micro-batches: each sequence in exactly one of them."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self.connection = connection
        self.options = options
        self.wanted = schema
        self._bulk: TaskConnection | None = None
        self._states: dict[str, StreamState] = {}
        self._target: dict[str, StreamState] | None = None
        self._moved = time.monotonic()
        self._releases: dict[str, Release] = {}
        # Where nothing of a stream was waiting for us, and when that was so.
        self._caught_up: dict[str, tuple[int, float]] = {}
        self._vetted: dict[str, int] = {}  # from where each stream was looked at for losses

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the options; the connection and the memory stay on the driver.
        return {"connection": self.connection, "options": self.options, "wanted": self.wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["connection"], state["options"], state["wanted"])  # type: ignore[misc]  # a fresh reader

    # -- where a query begins and how far it may go ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._look(None)  # a stream that does not exist is said at once
        return Offset(fresh=True).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look(None)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes one limit; the others are applied beside it, because they are ours to know.
        options = self.options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_messages_per_trigger is not None:
            return ReadMinRows(options.min_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Offset.from_json(start)
        states = self._look(begin)
        marks = {name: mark for name in begin.marks if (mark := self._mark(name, begin, states)) is not None}
        for name, state in states.items():
            if name not in marks and self._is_wanted(state):
                marks[name] = self._first_mark(state, begin)
        waiting = {name: item for name, mark in marks.items() if (item := self._waiting(mark, states.get(name)))}
        idle = {name for name, item in waiting.items() if not self._has_some(item)}
        self._note(marks, waiting.keys() - idle)
        if idle == waiting.keys() and time.monotonic() - self._moved < IDLE_SECONDS:
            waiting = {}  # nothing that came is for us, and a micro-batch is not worth its cost yet
        if not isinstance(limit, ReadAllAvailable):
            waiting = {} if self._is_too_little(waiting) else self._limited(waiting)
        moved = {name: marks[name].moved(waiting[name].end) if name in waiting else marks[name] for name in marks}
        if moved == begin.marks and not begin.fresh:
            return start
        self._moved = time.monotonic()
        return Offset(moved).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        # What latestOffset saw a moment ago: no request of its own for every trigger.
        states, marks = self._states or self._look(None), {}
        for name, state in states.items():
            # What came and is not for us is nothing to be behind of.
            place, _ = self._caught_up.get(name, (state.next, 0.0))
            marks[name] = Mark(state.created, state.first, place)
        return Offset(marks).to_json()

    # -- what the tasks of a micro-batch are ----------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        goal = Offset.from_json(end)
        return [
            task
            for wanted in Offset.from_json(start).ranges(goal)
            for task in self._tasks(wanted, goal.marks[wanted.stream])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.connection, self.options, self.wanted, partition)

    def _tasks(self, wanted: Range, mark: Mark) -> Iterator[NatsPartition]:
        state = self._states.get(wanted.stream)
        if state is None or state.next < wanted.end or state.created != mark.created:
            state = self._state(wanted.stream, mark)
        if state is None or state.created != mark.created:
            if self.options.fail_on_data_loss:
                raise self._vanished(wanted.stream, wanted.start, wanted.end, state)
            log.warning("The stream %s is not the one that was read: [%d, %d) are skipped.", *_fields(wanted))
            return
        if self._vetted.get(wanted.stream) != wanted.start:  # a replay, which latestOffset has not looked at
            check_there(self._survey(), state, wanted, self.options)
        for item in self._survey().cut(state, wanted, limits(self.options)):
            yield partition_of(self._survey(), state, item)

    # -- what is safe ---------------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.ack != "commit":
            return
        for name, mark in Offset.from_json(end).marks.items():
            state = self._states.get(name) or self._state(name, mark)
            if state is not None and state.created == mark.created:
                self._release(state).commit(mark)

    def stop(self) -> None:
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None

    # -- streams --------------------------------------------------------------------------------------------------

    def _survey(self) -> Survey:
        if self._bulk is None:
            self._bulk = TaskConnection(self.connection, self.options.patience)
        return Survey(self._bulk, self.options.subjects)

    def _look(self, begin: Offset | None) -> dict[str, StreamState]:
        """Ask for the state of every stream of this query, and remember it."""
        survey = self._survey()
        states = {}
        for name in survey.names(self.options):
            state = self._state(name, begin.marks.get(name) if begin is not None else None)
            if state is not None:
                states[name] = state
        self._states = states
        return states

    def _state(self, name: str, mark: Mark | None) -> StreamState | None:
        """Ask for a stream's state; None where a stream that we know is gone.

        A leader that was just chosen may not know yet all that the one before it knew: it gets a little time.
        """
        survey, deadline = self._survey(), time.monotonic() + PATIENCE
        while True:
            try:
                state = survey.state(name)
            except InputError:
                if mark is None:
                    raise
                return None
            if mark is None or state.next >= mark.next or state.created != mark.created or time.monotonic() > deadline:
                return state
            time.sleep(0.2)

    def _release(self, state: StreamState) -> Release:
        """Give what keeps and releases the messages of a stream; it refuses what cannot be kept safe."""
        if state.name not in self._releases:
            self._survey()
            assert self._bulk is not None
            self._releases[state.name] = Release(self._bulk, state, self.options, self._survey().subjects_of(state))
        return self._releases[state.name]

    def _is_wanted(self, state: StreamState) -> bool:
        return self._target is None or state.name in self._target

    # -- from where to where --------------------------------------------------------------------------------------

    def _mark(self, name: str, begin: Offset, states: dict[str, StreamState]) -> Mark | None:
        """Give where a stream is read from now on, which is further on where messages are gone and may be."""
        mark, state = begin.marks[name], states.get(name)
        fails = self.options.fail_on_data_loss
        if state is None or state.created != mark.created:
            if fails:
                raise self._vanished(name, mark.next, None, state)
            if state is None:
                return mark
            log.warning("The stream %s was made anew; it is read from %d on.", name, state.first)
            anew = Mark(state.created, state.first, state.first, mark.skipped)
            self._releases.pop(name, None)  # what it held was held of another stream
            self._release(state).hold(anew, is_new=True)
            return anew
        self._release(state).hold(mark, is_new=False)
        self._vetted[name] = mark.next
        if self._survey().lacks(state, mark.next) and not self._only_markers_lie_between(mark, state):
            if fails:
                raise loss(state, mark.next, state.first)
            log.warning("[%d, %d) of the stream %s are gone and skipped.", mark.next, state.first, name)
            return mark.moved(state.first, skipped=state.first - mark.next)
        if state.next < mark.next:
            if fails:
                raise self._vanished(name, mark.next, None, state)
            log.warning("The stream %s ends with %d, before %d, where we were.", name, state.last, mark.next)
            return mark.moved(state.next)
        return mark

    def _note(self, marks: dict[str, Mark], busy: set[str]) -> None:
        """Remember of which streams nothing is waiting for us."""
        now = time.monotonic()
        for name, mark in marks.items():
            if name in busy:
                self._caught_up.pop(name, None)
            else:
                self._caught_up[name] = (mark.next, now)

    def _only_markers_lie_between(self, mark: Mark, state: StreamState) -> bool:
        """Tell whether a stream whose first data lies ahead of us has lost none, in so far as we have watched it.

        Where nothing was waiting for us a moment ago, less than the stream's age limit, nothing can have expired since.
        """
        place, when = self._caught_up.get(state.name, (0, 0.0))
        if state.data_subjects is None or place != mark.next:
            return False
        limited = state.config.get("max_msgs", -1) > 0 or state.config.get("max_bytes", -1) > 0
        age = state.config.get("max_age", 0) / 1e9 or float("inf")
        return time.monotonic() - when < age and (state.head <= mark.next or not limited)

    def _first_mark(self, state: StreamState, begin: Offset) -> Mark:
        """Give where a stream that is new to the query is read from: a new query's start, or its first message."""
        place = state.first
        if begin.fresh:
            position = self.options.position("start", state.name, "all")
            place = self._survey().place(state, position, self.options.start_strategy, utc_now())
        mark = Mark(state.created, place, place)
        self._release(state).hold(mark, is_new=True)
        self._vetted[state.name] = place
        if not self._survey().lacks(state, place):
            return mark
        if self.options.fail_on_data_loss:
            raise loss(state, place, state.first)
        return mark.moved(state.first, skipped=state.first - place)

    def _waiting(self, mark: Mark, state: StreamState | None) -> Range | None:
        """Give what a stream has for us, up to where it was when AvailableNow began."""
        if state is None or state.created != mark.created:
            return None
        end = state.next
        if self._target is not None:
            goal = self._target.get(state.name)
            end = min(end, goal.next) if goal is not None and goal.created == state.created else mark.next
        return Range(state.name, mark.next, end) if end > mark.next else None

    def _count(self, item: Range) -> int:
        return self._survey().count(self._states[item.stream], item.start, item.end)

    def _has_some(self, item: Range) -> bool:
        """Tell whether a range surely or possibly holds a message for us."""
        return self._survey().subjects_of(self._states[item.stream]) is None or self._count(item) > 0

    def _is_too_little(self, ends: dict[str, Range]) -> bool:
        least = self.options.min_messages_per_trigger
        if least is None or self._target is not None:  # AvailableNow ends with what is there
            return False
        if time.monotonic() - self._moved >= self.options.max_trigger_delay:
            return False
        return sum(self._count(item) for item in ends.values()) < least

    def _limited(self, ends: dict[str, Range]) -> dict[str, Range]:
        survey, states = self._survey(), self._states
        most = self.options.max_messages_per_trigger
        if most is not None and sum(item.width for item in ends.values()) > most:
            shares = share({name: self._count(item) for name, item in ends.items()}, most)
            ends = {
                name: Range(name, item.start, survey.seek(states[name], item.start, item.end, shares[name]))
                for name, item in ends.items()
            }
        volume = self.options.max_bytes_per_trigger
        if volume is not None:
            weights = {name: item.width * states[name].mean_size for name, item in ends.items()}
            shares = share(weights, volume)
            ends = {
                name: Range(name, item.start, survey.seek_bytes(states[name], item.start, item.end, shares[name]))
                for name, item in ends.items()
            }
        return ends

    def _vanished(self, name: str, start: int, end: int | None, state: StreamState | None) -> DataLossError:
        if state is None:
            what = f"The stream {name} is gone"
        elif self._states.get(name) is not None and state.next < start:
            what = f"The stream {name} ends with {state.last}, before {start}, where this query is"
        else:
            what = f"The stream {name} was deleted and made again at {state.created}"
        upto = "" if end is None else f" up to {end}"
        return DataLossError(
            f"{what}; what it held from {start} on{upto} may be lost.",
            remedy="Start anew with another checkpoint, or set failOnDataLoss to false to go on with what there is.",
            stream=name,
            start=start,
            end=end,
            first=state.first if state else None,
            last=state.last if state else None,
        )


def _fields(item: Range) -> tuple[str, int, int]:
    return item.stream, item.start, item.end
