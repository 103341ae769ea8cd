"""Streaming reads: Spark asks how far a micro-batch goes, what its tasks are, and says what is safe in its checkpoint.

One of these lives in a Python process of its own on the driver, as long as the query runs. What it knows beyond the
offsets is a convenience and may be lost: after a restart the offsets alone say what is read next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
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

from penstock.errors import DataLossError, InputError, NotFoundError
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark, Offset, Range
from penstock.spark.options import SourceOptions
from penstock.spark.partition import NatsPartition, PartitionReader
from penstock.spark.planning import share
from penstock.spark.release import Release
from penstock.spark.survey import Survey, stream_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsStreamReader"]

# A query whose subjects get nothing moves on now and then, with an empty batch: its offset must not fall behind what
# the stream's limits remove, or that would look like a loss.
IDLE_SECONDS = 60.0


class NatsStreamReader(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as micro-batches: each sequence in exactly one of them."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        super().__init__(connection, options, schema)
        self._bulk: TaskConnection | None = None
        self._streams: dict[str, Survey] = {}
        self._target: dict[str, Survey] | None = None
        self._moved = time.monotonic()
        self._releases: dict[str, Release] = {}
        # Where nothing of a stream was waiting for us, and when that was so.
        self._caught_up: dict[str, tuple[int, float]] = {}
        self._vetted: dict[str, int] = {}  # from where each stream was looked at for losses

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks get the options; the connection and the memory stay on the driver.
        return type(self), (self.connection, self.options, self.wanted)

    # -- where a query begins and how far it may go ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._look(None)  # a stream that does not exist is said at once
        return Offset(fresh=True).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look(None)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes one limit; the others are applied beside it, because they are ours to know.
        options = self.options
        for kind, number in (
            (ReadMaxRows, options.max_messages_per_trigger),
            (ReadMaxBytes, options.max_bytes_per_trigger),
            (ReadMinRows, options.min_messages_per_trigger),
        ):
            if number is not None:
                return kind(number)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Offset.from_json(start)
        streams = self._look(begin)
        marks = {name: self._mark(name, mark, streams.get(name)) for name, mark in begin.marks.items()}
        for name, stream in streams.items():
            if name not in marks and (self._target is None or name in self._target):
                marks[name] = self._first_mark(stream, begin)
        waiting = {name: item for name, mark in marks.items() if (item := self._waiting(mark, streams.get(name)))}
        idle = {name for name, item in waiting.items() if not self._has_some(item)}
        self._caught_up = {
            name: (mark.next, time.monotonic()) for name, mark in marks.items() if name not in waiting or name in idle
        }
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
        marks = {}
        for name, stream in (self._streams or self._look(None)).items():
            # What came and is not for us is nothing to be behind of.
            place, _ = self._caught_up.get(name, (stream.next, 0.0))
            marks[name] = Mark(stream.created, stream.first, place)
        return Offset(marks).to_json()

    # -- what the tasks of a micro-batch are ----------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        goal = Offset.from_json(end)
        return [
            task
            for wanted in Offset.from_json(start).ranges(goal)
            for task in self._tasks(wanted, goal.marks[wanted.stream])
        ]

    def _tasks(self, wanted: Range, mark: Mark) -> Iterator[NatsPartition]:
        stream = self._streams.get(wanted.stream)
        if stream is None or stream.next < wanted.end or stream.created != mark.created:
            stream = self._survey(wanted.stream, mark)
        if stream is None or stream.created != mark.created:
            self.options.lose(self._vanished(wanted.stream, wanted.start, wanted.end, stream))
            return
        if self._vetted.get(wanted.stream) != wanted.start:  # a replay, which latestOffset has not looked at
            stream.check_there(wanted, self.options)
        yield from stream.tasks(wanted, self.options)

    # -- what is safe ---------------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.ack != "commit":
            return
        for name, mark in Offset.from_json(end).marks.items():
            stream = self._streams.get(name) or self._survey(name, mark)
            if stream is not None and stream.created == mark.created:
                self._release(stream).commit(mark)

    def stop(self) -> None:
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None

    # -- streams --------------------------------------------------------------------------------------------------

    def _connected(self) -> TaskConnection:
        if self._bulk is None:
            self._bulk = TaskConnection(self.connection, self.options.patience)
        return self._bulk

    def _look(self, begin: Offset | None) -> dict[str, Survey]:
        """Ask for the state of every stream of this query, and remember it."""
        found = {
            name: self._survey(name, begin.marks.get(name) if begin is not None else None)
            for name in stream_names(self._connected(), self.options)
        }
        self._streams = {name: stream for name, stream in found.items() if stream is not None}
        return self._streams

    def _survey(self, name: str, mark: Mark | None) -> Survey | None:
        """Ask for a stream's state; None where a stream that we know is gone."""
        try:
            return Survey(self._connected(), name, self.options.subjects, mark)
        except (InputError, NotFoundError):
            if mark is None:
                raise
            return None

    def _release(self, stream: Survey) -> Release:
        """Give what keeps and releases the messages of a stream; it refuses what cannot be kept safe."""
        return self._releases.setdefault(stream.name, Release(stream, self.options))

    # -- from where to where --------------------------------------------------------------------------------------

    def _mark(self, name: str, mark: Mark, stream: Survey | None) -> Mark:
        """Give where a stream is read from now on, which is further on where messages are gone and may be."""
        if stream is None or stream.created != mark.created:
            self.options.lose(self._vanished(name, mark.next, None, stream))
            if stream is None:
                return mark
            anew = Mark(stream.created, stream.first, stream.first, mark.skipped)
            self._releases.pop(name, None)  # what it held was held of another stream
            self._release(stream).hold(anew, is_new=True)
            return anew
        self._release(stream).hold(mark, is_new=False)
        self._vetted[name] = mark.next
        if stream.lacks(mark.next) and not self._only_markers_lie_between(mark, stream):
            self.options.lose(stream.loss(mark.next, stream.first))
            return mark.moved(stream.first, skipped=stream.first - mark.next)
        if stream.next < mark.next:
            self.options.lose(self._vanished(name, mark.next, None, stream))
            return mark.moved(stream.next)
        return mark

    def _only_markers_lie_between(self, mark: Mark, stream: Survey) -> bool:
        """Tell whether a stream whose first data lies ahead of us has lost none, in so far as we have watched it.

        Where nothing was waiting for us a moment ago, less than the stream's age limit, nothing can have expired since.
        """
        place, when = self._caught_up.get(stream.name, (0, 0.0))
        if stream.data_subjects is None or place != mark.next:
            return False
        limited = stream.config.get("max_msgs", -1) > 0 or stream.config.get("max_bytes", -1) > 0
        age = stream.config.get("max_age", 0) / 1e9 or float("inf")
        return time.monotonic() - when < age and (stream.head <= mark.next or not limited)

    def _first_mark(self, stream: Survey, begin: Offset) -> Mark:
        """Give where a stream that is new to the query is read from: a new query's start, or its first message."""
        place = stream.start_place(self.options, datetime.now(UTC)) if begin.fresh else stream.first
        mark = Mark(stream.created, place, place)
        self._release(stream).hold(mark, is_new=True)
        self._vetted[stream.name] = place
        if not stream.lacks(place):
            return mark
        self.options.lose(stream.loss(place, stream.first))
        return mark.moved(stream.first, skipped=stream.first - place)

    def _waiting(self, mark: Mark, stream: Survey | None) -> Range | None:
        """Give what a stream has for us, up to where it was when AvailableNow began."""
        if stream is None or stream.created != mark.created:
            return None
        end = stream.next
        if self._target is not None:
            goal = self._target.get(stream.name)
            end = min(end, goal.next) if goal is not None and goal.created == stream.created else mark.next
        return Range(stream.name, mark.next, end) if end > mark.next else None

    def _count(self, item: Range) -> int:
        return self._streams[item.stream].count(item.start, item.end)

    def _has_some(self, item: Range) -> bool:
        """Tell whether a range surely or possibly holds a message for us."""
        return self._streams[item.stream].subjects is None or self._count(item) > 0

    def _is_too_little(self, ends: dict[str, Range]) -> bool:
        least = self.options.min_messages_per_trigger
        if least is None or self._target is not None:  # AvailableNow ends with what is there
            return False
        if time.monotonic() - self._moved >= self.options.max_trigger_delay:
            return False
        return sum(self._count(item) for item in ends.values()) < least

    def _limited(self, ends: dict[str, Range]) -> dict[str, Range]:
        most, volume = self.options.max_messages_per_trigger, self.options.max_bytes_per_trigger
        if most is not None and sum(item.width for item in ends.values()) > most:
            shares = share({name: self._count(item) for name, item in ends.items()}, most)
            ends = {name: self._shortened(item, Survey.seek, shares[name]) for name, item in ends.items()}
        if volume is not None:
            shares = share({name: item.width * self._streams[name].mean_size for name, item in ends.items()}, volume)
            ends = {name: self._shortened(item, Survey.seek_bytes, shares[name]) for name, item in ends.items()}
        return ends

    def _shortened(self, item: Range, seek: Callable[[Survey, int, int, int], int], most: int) -> Range:
        return replace(item, end=seek(self._streams[item.stream], item.start, item.end, most))

    def _vanished(self, name: str, start: int, end: int | None, stream: Survey | None) -> DataLossError:
        if stream is None:
            what = f"The stream {name} is gone"
        elif name in self._streams and stream.next < start:
            what = f"The stream {name} ends with {stream.last}, before {start}, where this query is"
        else:
            what = f"The stream {name} was deleted and made again at {stream.created}"
        upto = "" if end is None else f" up to {end}"
        return DataLossError(
            f"{what}; what it held from {start} on{upto} may be lost.",
            remedy="Start anew with another checkpoint, or set failOnDataLoss to false to go on with what there is.",
            stream=name,
            start=start,
            end=end,
            first=stream.first if stream else None,
            last=stream.last if stream else None,
        )
