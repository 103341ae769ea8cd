"""Lag and rates of running queries: Spark's progress events as values, and as figures for Prometheus.

A Python source cannot fill the `metrics` of a query's progress, but what it needs is there: the end of each batch and
the latest offset. `ProgressListener` turns them into lag a stream, rates and skipped messages::

    listener = ProgressListener()
    spark.streams.addListener(listener)
    ...
    listener.latest["orders"].lag                      # messages behind, of the query that is named orders
    prometheus_client.REGISTRY.register(listener.collector())
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.errors import InputError
from penstock.spark import told
from penstock.spark.offsets import Offset

__all__ = ["Progress", "ProgressListener", "StreamProgress", "read_progress"]

# Gauges for Prometheus: what each says, and the fact of a Progress or of a StreamProgress that it shows.
BY_QUERY = {
    "penstock_query_batch": ("The number of the last micro-batch.", "batch"),
    "penstock_query_batch_seconds": ("How long the last micro-batch took.", "seconds"),
    "penstock_query_input_rows_per_second": ("Rows that came in a second.", "input_rate"),
    "penstock_query_processed_rows_per_second": ("Rows that were processed in a second.", "process_rate"),
}
BY_STREAM = {
    "penstock_query_lag_messages": ("Sequences between the query and the end of the stream.", "lag"),
    "penstock_query_skipped_messages": ("Sequences that were gone before they were read.", "skipped"),
}


@dataclass(frozen=True)
class StreamProgress:
    """Where a query stands in one stream."""

    next: int
    """The next sequence that it reads."""
    latest: int
    """The next sequence that the stream will give out."""
    lag: int
    """How many sequences lie between."""
    skipped: int
    """How many sequences were gone before they were read."""


@dataclass(frozen=True)
class Progress:
    """One progress event of a query."""

    query: str
    """The name of the query, its id if it has none."""
    id: str
    """The id of the query, which its checkpoint keeps."""
    run: str
    """The id of this run."""
    batch: int
    """The number of the micro-batch."""
    time: str
    """When the batch began, as Spark writes it."""
    rows: int
    """How many rows came from NATS in this batch."""
    input_rate: float
    """Rows that came in a second."""
    process_rate: float
    """Rows that were processed in a second."""
    seconds: float
    """How long the batch took."""
    streams: Mapping[str, StreamProgress] = field(default_factory=dict)
    """Every stream that the query reads."""

    @property
    def lag(self) -> int:
        """How many sequences all streams together are ahead."""
        return sum(item.lag for item in self.streams.values())

    @property
    def skipped(self) -> int:
        """How many sequences were gone before they were read, all streams together."""
        return sum(item.skipped for item in self.streams.values())


def read_progress(content: Mapping[str, Any]) -> Progress:
    """Read the JSON of Spark's progress; sources of other formats are left out.

    RemoteProtocolError if it is not what Spark tells.
    """
    streams: dict[str, StreamProgress] = {}
    rows, input_rate, process_rate = 0, 0.0, 0.0
    for source in told.parts(content, "sources"):
        try:
            end = Offset.from_json(source.get("endOffset"))
        except InputError:
            continue  # a source of another format
        try:
            latest = Offset.from_json(source.get("latestOffset"))
        except InputError:
            latest = end  # Spark reports none before the first batch
        for name, mark in end.marks.items():
            newest = latest.marks.get(name, mark)
            streams[name] = StreamProgress(mark.next, newest.next, end.range(name, newest).width, mark.skipped)
        rows += told.count(source, "numInputRows")
        input_rate += told.number(source, "inputRowsPerSecond")
        process_rate += told.number(source, "processedRowsPerSecond")
    query = told.word(content, "id")
    return Progress(
        query=told.word(content, "name") or query,
        id=query,
        run=told.word(content, "runId"),
        batch=told.count(content, "batchId"),
        time=told.word(content, "timestamp"),
        rows=rows,
        input_rate=input_rate,
        process_rate=process_rate,
        seconds=told.number(told.part(content, "durationMs"), "triggerExecution") / 1000,
        streams=streams,
    )


class ProgressListener(StreamingQueryListener):
    """Keeps the latest progress of every query that reads NATS; give it to `spark.streams.addListener`."""

    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.on_progress = on_progress
        self._lock = threading.Lock()
        self._latest: dict[str, Progress] = {}
        self._rows: dict[str, int] = {}
        self._running: dict[str, str] = {}  # the name of the query by the id of its run

    @property
    def latest(self) -> dict[str, Progress]:
        """The latest progress by the query's name, or its id if it has none."""
        with self._lock:
            return dict(self._latest)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            self._running[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.update(told.read_told(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass  # nothing new to know: the latest progress stays

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._running.pop(str(event.runId), None)

    def update(self, content: Mapping[str, Any]) -> None:
        """Take one progress event as JSON."""
        found = read_progress(content)
        if not found.streams:
            return
        with self._lock:
            self._latest[found.query] = found
            self._rows[found.query] = self._rows.get(found.query, 0) + found.rows
        if self.on_progress is not None:
            self.on_progress(found)

    def collector(self) -> Any:
        """Give a collector to register with prometheus_client."""
        return self

    def collect(self) -> Iterator[Any]:
        """Give the figures as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            latest, rows, running = dict(self._latest), dict(self._rows), set(self._running.values())
        is_running = GaugeMetricFamily("penstock_query_running", "Whether the query runs.", labels=["query"])
        total = CounterMetricFamily("penstock_query_rows", "Rows that came from NATS.", labels=["query"])
        for query in latest:
            is_running.add_metric([query], float(query in running))
            total.add_metric([query], rows[query])
        yield is_running
        yield total
        for name, (text, fact) in BY_QUERY.items():
            family = GaugeMetricFamily(name, text, labels=["query"])
            for query, item in latest.items():
                family.add_metric([query], float(getattr(item, fact)))
            yield family
        for name, (text, fact) in BY_STREAM.items():
            family = GaugeMetricFamily(name, text, labels=["query", "stream"])
            for query, item in latest.items():
                for stream, place in item.streams.items():
                    family.add_metric([query, stream], getattr(place, fact))
            yield family
