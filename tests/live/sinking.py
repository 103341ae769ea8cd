"""Drives the exactly-once protocol of the sink without Spark: batches, partitions, attempts and crashes by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.exactly_once import Task, TaskOutcome, commit
from penstock.spark.handing_over import hand_over
from penstock.spark.markers import MarkerSubjects, is_marker, marker_filter
from penstock.spark.messages import Messages, SinkStream
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.sink_options import SinkOptions


class Crash(Exception):
    """A task dies here, whatever it had under way."""


def make_stream(bulk: TaskConnection, name: str, **config: Any) -> None:
    """Create a stream that the sink can write to."""
    fields = {"name": name, "subjects": [f"{name}.>", marker_filter(name)], "allow_atomic": True, **config}
    bulk.api(f"STREAM.CREATE.{name}", fields)
    prepare(bulk, SinkOptions(stream=name))


def numbered(count: int, prefix: str = "row") -> list[bytes]:
    """Give rows that are told apart by their numbers."""
    return [f"{prefix}-{number}".encode() for number in range(count)]


def as_messages(stream: str, rows: Sequence[bytes], size: int) -> Iterator[Messages]:
    """Give rows as a task gets them, some at a time."""
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield Messages(pa.array([f"{stream}.rows"] * len(part)), pa.array(part, pa.binary()), None)


def until(rows: Iterable[Messages], crash_after: int | None) -> Iterator[Messages]:
    """Give rows and die after some of them."""
    given = 0
    for messages in rows:
        if crash_after is not None and given >= crash_after:
            raise Crash
        given += len(messages)
        yield messages
    if crash_after is not None:
        raise Crash


def stored(bulk: TaskConnection, stream: str) -> Counter[bytes]:
    """Count every row in a stream, markers left out."""
    found: Counter[bytes] = Counter()
    first = bulk.api(f"STREAM.INFO.{stream}")["state"]["first_seq"]
    for batch in bulk.read(stream, first):
        rows = zip(batch.column("subject").to_pylist(), batch.column("data").to_pylist(), strict=True)
        found.update(data for subject, data in rows if not is_marker(subject))
    return found


def row_subjects(bulk: TaskConnection, stream: str) -> list[str]:
    """Give the subjects that have rows, as the stream's state tells; reading while rows expire would be a loss."""
    state = bulk.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"]
    return [subject for subject in state.get("subjects") or {} if not is_marker(subject)]


class Writer:
    """One query that writes into one stream; every attempt has a connection of its own, as a task has.

    `rows` of a batch are as many as an attempt is given at a time, so that none waits for others when it crashes.
    """

    def __init__(self, url: str, stream: str, query: str = "q", rows: int = 4, lanes: int = 3) -> None:
        self.options = ConnectionOptions(url, request_timeout=2.0)
        self.stream, self.query = stream, query
        self.subjects = MarkerSubjects(stream, query)
        self.sink = SinkOptions(stream=stream, atomic_rows=rows, in_flight=lanes, patience=20.0)
        self.keep = False
        self.start = ""
        self.series = True
        self.domain: str | None = None

    def asked(self, **options: Any) -> None:
        """Set options of the sink, as for a new start of the query."""
        self.sink = replace(self.sink, **options)

    def markers(self, bulk: TaskConnection, batch: int, run: str) -> QueryMarkers:
        target = SinkStream(self.stream, (), 2**20, keep=self.keep, domain=self.domain)
        return QueryMarkers(bulk, self.sink, target, self.query, batch, run, self.start, self.series)

    def task(self, markers: QueryMarkers, partition: int, task: int) -> Task:
        """Give what writes rows."""
        return Task(markers, partition, task)

    def messages(self, rows: Sequence[Any], step: int) -> Iterator[Messages]:
        """Give rows as a task gets them."""
        return as_messages(self.stream, rows, step)

    def attempt(
        self,
        rows: Sequence[Any],
        *,
        batch: int = 0,
        run: str = "r1",
        partition: int = 0,
        task: int = 1,
        crash_after: int | None = None,
        step: int = 4,
        around: Callable[[Task], Any] | None = None,
    ) -> TaskOutcome:
        """Run one attempt at one partition."""
        bulk = TaskConnection(self.options)
        try:
            writing = self.task(self.markers(bulk, batch, run), partition, task)
            if around is not None:
                around(writing)
            return writing.write(until(self.messages(rows, step), crash_after))
        finally:
            bulk.close()

    def hand_over(self, rows: Sequence[Any], *, partition: int = 0, task: int = 1) -> TaskOutcome:
        """Run an attempt whose rows are so few that the driver gets them."""
        handed, rest = hand_over(self.messages(rows, 4), self.sink, partition, task)
        assert handed is not None or not rows
        assert not list(rest)
        return TaskOutcome(handed=handed)

    def commit(
        self,
        outcomes: Iterable[TaskOutcome],
        *,
        batch: int = 0,
        run: str = "r1",
        around: Callable[[TaskConnection], Any] | None = None,
    ) -> None:
        """Do what the driver does when every task is through."""
        bulk = TaskConnection(self.options)
        try:
            if around is not None:
                around(bulk)
            commit(self.markers(bulk, batch, run), list(outcomes))
        finally:
            bulk.close()

    def whole_batch(
        self,
        partitions: Sequence[Sequence[Any]],
        *,
        batch: int = 0,
        run: str = "r1",
        around: Callable[[Task], Any] | None = None,
    ) -> int:
        """Write all partitions and commit; give how many rows were stored."""
        outcomes = [
            self.attempt(rows, batch=batch, run=run, partition=number, task=number + 100, around=around)
            for number, rows in enumerate(partitions)
        ]
        self.commit(outcomes, batch=batch, run=run)
        return sum(outcome.stored for outcome in outcomes)


def cut(rows: Sequence[bytes], partitions: int, dice: random.Random) -> list[list[bytes]]:
    """Spread rows over partitions, in any order."""
    parts: list[list[bytes]] = [[] for _ in range(partitions)]
    for row in dice.sample(list(rows), len(rows)):
        parts[dice.randrange(partitions)].append(row)
    return parts
