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
from penstock.spark.partition import PartitionReader
from penstock.spark.planning import share
from penstock.spark.release import Release
from penstock.spark.source_options import SourceOptions
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
        # What the leader said when a stream was looked at last: from this place up to that one, nothing is for us.
        self._clear: dict[str, tuple[int, int]] = {}
        self._looked = 0.0  # when that was
        self._caught_up: dict[str, int] = {}  # where nothing at all was waiting for us then
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
        # A stream that was set back is read from there on by the next batch: no range goes backwards.
        back = {name for name, mark in begin.marks.items() if marks[name].is_behind(mark)}
        ahead = {name: mark for name, mark in marks.items() if name not in back}
        waiting = {name: item for name, mark in ahead.items() if (item := self._waiting(mark, streams.get(name)))}
        self._look_ahead(marks, waiting)
        if self._is_nothing(waiting):
            waiting = {}
        if not isinstance(limit, ReadAllAvailable):
            waiting = {} if self._is_too_little(waiting) else self._limited(waiting)
        moved = {name: marks[name].moved(waiting[name].end) if name in waiting else marks[name] for name in marks}
        if moved == begin.marks and not begin.fresh:
            return start
        self._moved = time.monotonic()
        return Offset({name: _seen(mark, streams.get(name)) for name, mark in moved.items()}).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        # What latestOffset saw a moment ago: no request of its own for every trigger.
        marks = {}
        for name, stream in (self._streams or self._look(None)).items():
            # What came and is not for us is nothing to be behind of.
            marks[name] = Mark(stream.created, stream.first, self._caught_up.get(name, stream.next))
        return Offset(marks).to_json()

    # -- what the tasks of a micro-batch are ----------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        goal = Offset.from_json(end)
        return [
            task
            for wanted in Offset.from_json(start).ranges(goal)
            for task in self._tasks(wanted, goal.marks[wanted.stream])
        ]

    def _tasks(self, wanted: Range, mark: Mark) -> Iterator[InputPartition]:
        stream = self._streams.get(wanted.stream)
        if stream is None or stream.next < wanted.end or stream.created != mark.created:
            stream = self._survey(wanted.stream, mark)
        if stream is None or stream.created != mark.created:
            self.options.lose(self._vanished(wanted.stream, wanted.start, wanted.end, stream))
            return
        if self._vetted.get(wanted.stream) != wanted.start:  # a replay, which latestOffset has not looked at
            for piece in stream.pieces(wanted):
                stream.check_there(piece, self.options)
                if (gone := stream.expired(piece.start)) > piece.start:
                    self.options.lose(stream.loss(piece.start, min(piece.end, gone)))
            if (place := stream.set_back(mark)) is not None and place < wanted.end:
                self.options.lose(stream.lost_after(mark, place))
                wanted = replace(wanted, end=max(wanted.start, place))
        place, upto = self._clear.get(wanted.stream, (0, 0))
        start = upto if place == wanted.start else wanted.start
        for piece in stream.pieces(replace(wanted, start=start)):
            if piece.width:
                yield from stream.tasks(piece, self.options)

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
        """Ask for a stream's state; None if a stream that we know is gone."""
        try:
            return self._surveyed(name, mark)
        except (InputError, NotFoundError):
            if mark is None:
                raise
            return None

    def _surveyed(self, name: str, mark: Mark | None) -> Survey:
        return Survey(self._connected(), name, self.options.subjects, mark)

    def _release(self, stream: Survey) -> Release:
        """Give what keeps and releases the messages of a stream; it refuses what cannot be kept safe."""
        return self._releases.setdefault(stream.name, Release(stream, self.options))

    # -- from where to where --------------------------------------------------------------------------------------

    def _mark(self, name: str, mark: Mark, stream: Survey | None) -> Mark:
        """Give where a stream is read from now on, which is further on if messages are gone and may be."""
        if stream is None or stream.created != mark.created:
            self.options.lose(self._vanished(name, mark.next, None, stream))
            if stream is None:
                return mark
            first = stream.beginning(1)
            anew = Mark(stream.created, first, first, mark.skipped)
            self._releases.pop(name, None)  # what it held was held of another stream
            self._release(stream).hold(anew, is_new=True)
            return anew
        self._release(stream).hold(mark, is_new=False, waiting=stream.next > mark.next)
        if stream.next < mark.next:
            self.options.lose(self._vanished(name, mark.next, None, stream))
            return mark.moved(stream.next)
        if (place := stream.set_back(mark)) is not None:
            self.options.lose(stream.lost_after(mark, place))
            return mark.moved(min(mark.next, place), skipped=max(0, mark.last + 1 - max(mark.next, place)))
        self._vetted[name] = mark.next
        if stream.lacks(mark.next) and not self._lost_none(mark, stream):
            first = stream.beginning(mark.next)
            self.options.lose(stream.loss(mark.next, first))
            return mark.moved(first, skipped=first - mark.next)
        gone, (place, upto) = stream.expired(mark.next), self._clear.get(name, (0, 0))
        if gone > mark.next and not (place == mark.next and gone <= upto):
            self.options.lose(stream.loss(mark.next, gone))
            found = min(gone, stream.following(mark.next))  # what is left there is read
            return mark.moved(found, skipped=found - mark.next)
        return mark

    def _lost_none(self, mark: Mark, stream: Survey) -> bool:
        """Tell whether a stream that begins ahead of us has lost nothing of ours, in so far as we have watched it.

        What the leader said was not for us is not a loss. Of a stream with markers we only know where its first data
        is: if nothing was waiting for us a moment ago, less than its age limit, nothing of ours can have expired since.
        """
        place, upto = self._clear.get(stream.name, (0, 0))
        if place == mark.next and stream.first <= upto:
            return True
        if stream.data_subjects is None or self._caught_up.get(stream.name) != mark.next:
            return False
        limited = stream.config.get("max_msgs", -1) > 0 or stream.config.get("max_bytes", -1) > 0
        age = stream.config.get("max_age", 0) / 1e9 or float("inf")
        return time.monotonic() - self._looked < age and (stream.head <= max(mark.next, upto) or not limited)

    def _first_mark(self, stream: Survey, begin: Offset) -> Mark:
        """Give where a stream that is new to the query is read from: a new query's start, or its first message."""
        place = stream.start_place(self.options, datetime.now(UTC)) if begin.fresh else stream.beginning(1)
        mark = Mark(stream.created, place, place)
        self._release(stream).hold(mark, is_new=True)
        self._vetted[stream.name] = place
        if not stream.lacks(place):
            return mark
        first = stream.beginning(place)
        self.options.lose(stream.loss(place, first))
        return mark.moved(first, skipped=first - place)

    def _waiting(self, mark: Mark, stream: Survey | None) -> Range | None:
        """Give what a stream has for us, up to where it was when AvailableNow began."""
        if stream is None or stream.created != mark.created:
            return None
        end = stream.stretch(mark.next)
        if self._target is not None:
            goal = self._target.get(stream.name)
            end = min(end, goal.next) if goal is not None and goal.created == stream.created else mark.next
        return Range(stream.name, mark.next, end) if end > mark.next else None

    def _count(self, item: Range) -> int:
        return self._streams[item.stream].count(item.start, item.end)

    def _look_ahead(self, marks: dict[str, Mark], waiting: dict[str, Range]) -> None:
        """Ask where the first message for us is in what waits."""
        self._looked = time.monotonic()
        self._clear, self._caught_up = {}, {}
        for name, mark in marks.items():
            stream, upto = self._streams.get(name), mark.next
            if stream is not None and name in waiting and stream.subjects is not None:
                upto = stream.following(mark.next)
            self._clear[name] = mark.next, upto
            if stream is not None and upto >= stream.next:
                self._caught_up[name] = mark.next

    def _is_nothing(self, waiting: dict[str, Range]) -> bool:
        """Tell whether nothing that came is for us, and a micro-batch that only moves on is not worth its cost yet.

        It is if limits have taken what is not for us: after a restart, nobody could say what that was. And it is before
        AvailableNow ends: nobody knows when the next run comes.
        """
        if any(self._clear[name][1] < item.end for name, item in waiting.items()):
            return False
        overtaken = any(self._streams[name].lacks(item.start) for name, item in waiting.items())
        return not overtaken and self._target is None and time.monotonic() - self._moved < IDLE_SECONDS

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
            ends = {name: self._shortened(item, self._streams[name].seek, shares[name]) for name, item in ends.items()}
        if volume is not None:
            shares = share({name: item.width * self._streams[name].mean_size for name, item in ends.items()}, volume)
            ends = {
                name: self._shortened(item, self._streams[name].seek_bytes, shares[name]) for name, item in ends.items()
            }
        return ends

    def _shortened(self, item: Range, seek: Callable[[int, int, int], int], most: int) -> Range:
        return replace(item, end=seek(item.start, item.end, most))

    def _vanished(self, name: str, start: int, end: int | None, stream: Survey | None) -> DataLossError:
        if stream is None:
            what = f"The stream {name} is gone, or this query does not read it any more"
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


def _seen(mark: Mark, stream: Survey | None) -> Mark:
    """Note what a stream was seen to hold, so that a stream which is set back shows."""
    if stream is None or stream.created != mark.created:
        return mark
    return replace(mark, last=stream.last, time=stream.last_time)
