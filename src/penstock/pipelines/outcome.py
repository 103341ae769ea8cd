"""What a run has done so far, folded from what the child and Spark's event log say. Pure: events in, figures out.

If Spark is elsewhere, its event log is, too; then the child says each progress of a query.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.errors import InputError, RemoteProtocolError
from penstock.pipelines.reasons import cause
from penstock.spark.offsets import Offset
from penstock.spark.told import count, counts, moment, number, part, parts, word

__all__ = ["OBSERVED", "FlowProgress", "MicroBatch", "Outcome"]

MOST_BATCHES = 20_000  # of the history; older ones are forgotten
MOST_JOBS = 1_000
MOST_TABLES = 100
SILENT = 30.0  # seconds without a sign of life from Spark that are worth telling; it is asked every few seconds
OBSERVED = "penstock_rows"  # the observation in which Spark counts the rows of a flow
# The phases that a run enters by what its child says.
_PHASES = {
    "ready": "reading the definitions",
    "looking": "looking at the Connect server",
    "update": "reading the definitions",
    "registered": "running",
    "updated": "up to date",
    "failed": "failed",
    "ended": "ended",
}
_FLOW = re.compile(r"Flow '?([^' ]+)'? (?:is|has) ([A-Z]+)")
_FAILED = re.compile(r"(?:Flow|Failed to resolve flow:) '?([^' ]+)'?[^\n]*\.\s+Error: (.*)", re.DOTALL)
_TABLE = re.compile(r"FileStreamSource\[[^\]]*?([^/\]]+)/?\]")
_RUN = re.compile(r"Run is ([A-Z]+)")


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch that is done."""

    at: float
    """When it began, in seconds since 1970."""
    flow: str
    number: int
    rows: int
    seconds: float
    lag: int
    """How many messages of NATS streams were waiting behind it."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """How many seconds each phase took, by Spark's names, such as `addBatch`."""
    state_rows: int = 0
    state_bytes: int = 0
    """How large the state of the flow was behind it, in memory."""


@dataclass
class FlowProgress:
    """How one flow is doing in this run."""

    name: str
    status: str = "WAITING"
    batches: int = 0
    rows_in: int = 0
    rows_out: int | None = None
    """Rows that its sink or its tasks say they wrote; None if nobody says."""
    rate: float = 0.0
    """Rows a second in the newest batch."""
    batch_seconds: float = 0.0
    """How long the newest batch took."""
    lag: int | None = None
    """How many messages wait in the streams that it reads; None if it reads none."""
    state_rows: int = 0
    state_bytes: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    """For each NATS stream that it reads, the next sequence."""
    created: dict[str, str] = field(default_factory=dict)
    """For each of these streams, when it was made: another one of that name is another stream."""
    tables: list[str] = field(default_factory=list)
    """The tables that it reads as streams, as far as Spark tells where they are."""
    error: str | None = None
    """Why it failed, and has not succeeded since."""

    def plain(self, counted: bool = True) -> dict[str, Any]:
        """Give it as JSON wants it; what is not known is null, and never a zero."""
        content = asdict(self)
        unknown = [] if self.batches else ["rows_in", "rate", "batch_seconds", "state_rows", "state_bytes"]
        unknown += [] if counted else ["rows_in", "rows_out"]
        return content | dict.fromkeys(unknown)


class Outcome:
    """Everything that is known of a run: while it goes on, and afterwards."""

    def __init__(self, counted: bool = True) -> None:
        self.counted = counted
        """Whether every row of the run is counted; not if a Connect server tells no progress, or not all of it."""
        self._whole = True  # as far as was heard
        self.flows: dict[str, FlowProgress] = {}
        self.history: deque[MicroBatch] = deque(maxlen=MOST_BATCHES)
        self.phase = "starting Spark"
        self.updates = 0
        self.ended = False
        """Whether the child came to its end by itself."""
        self.failure: str | None = None
        """Why it failed; None if it did not."""
        self.spark: str | None = None
        self.ui: str | None = None
        """Where the pages of that Spark are, if it has any."""
        self.heard: float | None = None
        """When Spark gave its last sign of life, in seconds since 1970."""
        self.silence = 0.0
        """For how many seconds it has given none."""
        self.notes: list[str] = []
        """What the caller should know, beside figures."""
        self._failed: dict[str, str] = {}  # flow -> why, until it succeeds
        self._jobs: dict[int, str] = {}  # stage -> flow
        self._names: dict[str, str] = {}  # query id -> flow
        self._by_sink: set[str] = set()  # flows whose sink counts its rows; the counts of their tasks are left out

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is done."""
        return self.ended and self.failure is None

    @property
    def doing(self) -> str:
        """What the run is doing, with the silence of a Spark that should have said something."""
        if self.silence < SILENT:
            return self.phase
        return f"{self.phase}, Spark has not answered for {self.silence:.0f} s"

    @property
    def rows_in(self) -> int:
        """Rows read from NATS, all flows together."""
        return sum(flow.rows_in for flow in self.flows.values() if flow.lag is not None)

    @property
    def lag(self) -> int | None:
        """Messages that wait, in all flows together; None before any flow has told."""
        told = [flow.lag for flow in self.flows.values() if flow.lag is not None]
        return sum(told) if told else None

    # -- what the child says ---------------------------------------------------------------------

    def hear(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the child."""
        kind = line["kind"]
        self.heard = line.get("at", self.heard)
        self.phase = _PHASES.get(kind, self.phase)
        if kind == "ready":
            self.spark, self.ui = line["spark"], line.get("ui")
        elif kind == "listening":
            self.counted = self._whole
        elif kind == "progress":
            self._take_in(lambda: self._read_progress(part(line, "progress")))
        elif kind == "deaf":
            self._lose(line["reason"])
        elif kind == "note" and line["text"] not in self.notes:
            self.notes.append(line["text"])
        elif kind == "updated":
            self.updates += 1
        elif kind == "event":
            self._hear_event(line["message"])
        elif kind == "failed":
            self.failure = self.failure or self._failures() or line["reason"]
        elif kind == "ended":
            self.ended = True

    def _hear_event(self, message: str) -> None:
        if found := _FLOW.match(message):
            flow = self._flow(found.group(1))
            flow.status = found.group(2)
            if flow.status == "COMPLETED":
                self._failed.pop(flow.name, None)
                flow.error = None
        elif found := _RUN.match(message):
            self.phase = f"run {found.group(1).lower()}"
        if found := _FAILED.match(message):
            flow = self._flow(found.group(1))
            flow.error = self._failed[flow.name] = cause(found.group(2))

    def _failures(self) -> str:
        """Give the flows that failed, and have not succeeded since, each with its cause."""
        return "; ".join(f"flow {name}: {said.rstrip('.')}" for name, said in self._failed.items())

    def _lose(self, reason: str) -> None:
        """Forget figures that would be too small from here on; those of later batches are known again."""
        if self._whole:
            self.notes.append(f"Rows are not counted: the Spark Connect server tells no progress: {reason}.")
        self.counted = self._whole = False
        for flow in self.flows.values():
            self.flows[flow.name] = FlowProgress(flow.name, flow.status)

    # -- what Spark's event log says -------------------------------------------------------------

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in an event of Spark's log: a progress, a job that begins, or a task that ends."""
        self._take_in(lambda: self._read_event(event))

    def miss(self, why: str) -> None:
        """Note that Spark told what cannot be read: from here on figures may be too small."""
        if self._whole:
            self.notes.append(f"Rows are not counted: {why}")
        self.counted = self._whole = False

    def _take_in(self, read: Callable[[], None]) -> None:
        try:
            read()
        except RemoteProtocolError as error:
            self.miss(str(error))

    def _read_event(self, event: Mapping[str, Any]) -> None:
        kind = str(event.get("Event", "")).rpartition("$")[2]
        if kind == "QueryProgressEvent":
            self._read_progress(part(event, "progress"))
        elif kind == "QueryStartedEvent":
            query = word(event, "id", needed=True)
            self._names[query] = word(event, "name") or query
        elif kind == "SparkListenerJobStart":
            query = word(part(event, "Properties"), "sql.streaming.queryId")
            if query in self._names:
                for stage in counts(event, "Stage IDs"):
                    self._jobs[stage] = self._names[query]
                while len(self._jobs) > MOST_JOBS:
                    del self._jobs[next(iter(self._jobs))]
        elif kind == "SparkListenerTaskEnd":
            self._read_task(event)

    def _read_task(self, event: Mapping[str, Any]) -> None:
        name = self._jobs.get(count(event, "Stage ID", -1))
        if name is None or word(part(event, "Task End Reason"), "Reason") != "Success":
            return
        flow = self._flow(name)
        written = count(part(part(event, "Task Metrics"), "Output Metrics"), "Records Written")
        if written and flow.name not in self._by_sink:
            flow.rows_out = (flow.rows_out or 0) + written

    def _read_progress(self, progress: Mapping[str, Any]) -> None:
        # All of it is read before any of it counts: what is half wrong must not be half taken.
        name = word(progress, "name") or word(progress, "id", needed=True)
        begun, batch = moment(progress, "timestamp"), count(progress, "batchId", None)
        took = part(progress, "durationMs")
        phases = {phase: number(took, phase) / 1000 for phase in took}
        seconds = phases.pop("triggerExecution", 0.0)
        sources, states = parts(progress, "sources"), parts(progress, "stateOperators")
        rows = sum(count(source, "numInputRows") for source in sources)
        state = tuple(sum(count(item, what) for item in states) for what in ("numRowsTotal", "memoryUsedBytes"))
        written = count(part(progress, "sink"), "numOutputRows", -1)
        observed = part(part(progress, "observedMetrics"), OBSERVED)
        seen = count(observed, "rows", None) if observed else None
        flow = self._flow(name)
        flow.batches += 1
        flow.rows_in += rows
        flow.batch_seconds = seconds
        flow.rate = rows / seconds if seconds else 0.0
        flow.state_rows, flow.state_bytes = state
        if written >= 0:  # a sink of ours, or another that knows; tables of files say -1, and their tasks count
            flow.rows_out = written + (flow.rows_out or 0 if flow.name in self._by_sink else 0)
            self._by_sink.add(flow.name)
        elif seen is not None:
            flow.rows_out = (flow.rows_out or 0) + seen
        for source in sources:
            self._read_source(flow, source)
        spent = {phase: each for phase, each in phases.items() if each}
        self.history.append(MicroBatch(begun, flow.name, batch, rows, seconds, flow.lag or 0, spent, *state))

    def _read_source(self, flow: FlowProgress, source: Mapping[str, Any]) -> None:
        try:
            end = Offset.from_json(source.get("endOffset"))
        except InputError:  # a source of another format
            if (found := _TABLE.search(str(source.get("description")))) and found[1] not in flow.tables[:MOST_TABLES]:
                flow.tables.append(found[1])
            return
        try:
            latest = Offset.from_json(source.get("latestOffset"))
        except InputError:
            latest = end  # Spark knows none before the first batch
        flow.streams |= {name: mark.next for name, mark in end.marks.items()}
        flow.created |= {name: mark.created for name, mark in end.marks.items()}
        flow.lag = sum(end.lag(latest).values())

    def _flow(self, name: str) -> FlowProgress:
        short = name.replace("`", "").rpartition(".")[2]
        return self.flows.setdefault(short, FlowProgress(short))
