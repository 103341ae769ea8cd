"""What a survey sees: frozen values, so that whoever has a snapshot has it whole. Pure.

A subject (of a trouble, of an edge, of a series) is a tuple that begins with its kind::

    ("stream", name)   ("consumer", stream, name)   ("pipeline", name)   ("flow", pipeline, flow)
    ("subjects", stream)   who publishes to a stream: NATS knows the subjects, not the publishers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from penstock.info import Copy, Replica, SequenceInfo

__all__ = [
    "ConsumerState",
    "Covered",
    "Edge",
    "FlowSeen",
    "PipelineSeen",
    "StreamState",
    "Subject",
    "Trouble",
    "Unseen",
    "page_of",
]

Subject = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it was when the survey looked last."""

    name: str
    created: datetime | None
    looked: float
    """When the survey looked, in seconds since 1970."""
    description: str
    subjects: tuple[str, ...]
    """The subjects that it takes, those of markers left out; the first ones if they are many."""
    more_subjects: int
    storage: str
    retention: str
    replicas: int
    """How many servers shall carry it."""
    messages: int
    """The messages that it holds, markers of the Spark sink not counted if `markers` is known."""
    markers: int | None
    """The markers that it holds beside them; None if it holds none that could be counted."""
    bytes: int
    first_sequence: int
    first_time: datetime | None
    last_sequence: int
    last_time: datetime | None
    deleted: int
    """Messages that are missing between the first and the last."""
    lost: int
    """Messages that the server found damaged."""
    subjects_held: int
    consumers: int
    max_messages: int | None
    """Its limit, None if there is none; `max_bytes`, too."""
    max_bytes: int | None
    max_age: float | None
    discard: str
    """What a full stream does: discard `old` messages, or refuse `new` ones."""
    dead_letters: bool
    """Whether it keeps dead letters."""
    rate: float | None
    """Messages a second that are stored, over the last seconds; None after the first look."""
    cluster: str | None
    leader: str | None
    others: tuple[Replica, ...]
    copies: tuple[Copy, ...]
    """What it copies, mirror and sources, and how far it is behind each."""
    mirror: str | None
    channel: tuple[str, str] | None
    """The cluster id and the name of the NATS Streaming channel that it keeps; None if it keeps none."""

    @property
    def subject(self) -> Subject:
        """Its name among series and troubles."""
        return ("stream", self.name)


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer as it was when the survey looked last."""

    stream: str
    name: str
    created: datetime | None
    looked: float
    """When the survey looked, in seconds since 1970."""
    description: str
    kind: str
    """`push` or `pull`."""
    durable: bool
    filter: tuple[str, ...]
    """The subjects that it takes; empty for all."""
    ack_policy: str
    max_ack_pending: int | None
    max_deliver: int | None
    ack_wait: float
    """Seconds after which a delivery without an ack is repeated."""
    lag: int
    """Messages that were never delivered."""
    lag_seconds: float | None
    """The age of the oldest message that was never delivered: 0 if there is none, None if it is not known."""
    ack_pending: int
    """Deliveries that wait for their ack."""
    redelivered: int
    waiting: int
    """Pull requests that wait for messages."""
    delivered: SequenceInfo
    acked: SequenceInfo
    listened_to: bool
    """Whether somebody would get a message now: a pull that waits, a listener on the deliver subject."""
    paused: bool
    rate: float | None
    """Deliveries a second, over the last seconds; None after the first look."""
    still: float
    """Seconds for which nothing was delivered and nothing acknowledged although something waits; 0 if nothing does."""
    ack_p50: float | None
    """Seconds from delivery to ack that half of the last sampled acks did not exceed; None without samples."""
    ack_p99: float | None
    acks: int
    """Sampled acks since the survey began; 0 unless the consumer has a `sample_freq`."""
    sourcing: bool
    """Whether a server made it, to feed a stream that copies this one."""
    bookmark: bool
    """Whether it only holds the place of a Spark query: nothing is ever delivered to it."""
    cluster: str | None
    leader: str | None
    others: tuple[Replica, ...]

    @property
    def subject(self) -> Subject:
        """Its name among series and troubles."""
        return ("consumer", self.stream, self.name)


@dataclass(frozen=True, slots=True)
class FlowSeen:
    """A flow of a pipeline, as its checkpoint and the newest run tell of it."""

    name: str
    target: str | None
    """The table or sink that it writes to; None if no checkpoint says it."""
    status: str | None
    """What Spark said of it last in the newest run, in small letters: `running`, `completed`, `failed`, …"""
    batches: int
    complete: bool | None
    """Whether no micro-batch was left in the middle; None if no checkpoint says it."""
    rows: int | None
    """Rows that it read in the newest run."""
    rows_out: int | None
    rate: float | None
    batch_seconds: float | None
    state_rows: int | None
    state_bytes: int
    lag: int | None
    """Messages that wait in the streams that it reads; None if it reads none, or they are gone."""
    streams: Mapping[str, int]
    """For each stream that it reads, the next sequence."""
    latest: Mapping[str, int | None]
    """For each of these, the next sequence that the stream gives out; None if it is gone, or another one is there."""
    writes: tuple[str, ...] = ()
    """The streams that it is known to write to."""
    tables: tuple[str, ...] = ()
    """The tables that it reads as streams, as far as Spark tells where they are."""
    error: str | None = None
    """Why it failed, and has not succeeded since."""

    @property
    def failed(self) -> bool:
        """Whether Spark said last that it failed."""
        return self.status == "failed"


@dataclass(frozen=True, slots=True)
class PipelineSeen:
    """A pipeline, or one of its replays, as its storage and the newest run tell of it."""

    name: str
    replay: str | None
    """The name of the replay; None for the pipeline itself."""
    in_use: bool
    """Whether a run would go on from here: the pipeline itself, or the replay that it was switched to."""
    looked: float
    folder: str
    storage: str
    state: str
    """`never run`, `running`, `done`, `stopped`, `failed`, `cut off`; `troubled` if it runs with a flow that failed."""
    phase: str | None
    failure: str | None
    note: str | None
    """What cannot be told of it, and why."""
    begun: float | None
    told: float | None
    """When the run last wrote down how far it is, in seconds since 1970."""
    continuous: bool
    pid: int | None
    spark: str | None
    updates: int
    flows: tuple[FlowSeen, ...]
    batches: tuple[Mapping[str, Any], ...]
    """The newest micro-batches, with the fields of `MicroBatch`."""
    switched_to: str | None = None
    """The replay that the pipeline was switched to."""
    replays_left_out: int = 0
    ui: str | None = None
    """Where the pages of its Spark are, while it runs."""
    runs: tuple[Mapping[str, Any], ...] = ()
    """The runs before the newest one, as `runs.json` has them, the oldest first."""
    asked: str | None = None
    """Where a replay was asked to begin."""
    into: Mapping[str, str] = field(default_factory=dict)
    """For each stream that the files name, the one that a replay writes to instead."""

    @property
    def subject(self) -> Subject:
        """Its name among series and troubles."""
        return ("pipeline", self.name if self.replay is None else f"{self.name}/{self.replay}")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that needs somebody's attention."""

    kind: str
    """A word for the rule that found it, such as `stuck`, `growing`, `full`, `leaderless`, `failed`."""
    subject: Subject
    """What it is about."""
    says: str
    """What is the matter, a sentence without its subject."""
    since: float
    """When the survey saw it first, in seconds since 1970."""
    page: str | None
    """The page of the console that tells more."""
    severe: bool = True
    """Whether something stands still or is lost now; otherwise it is a warning."""

    @property
    def about(self) -> str:
        """Name what it is about, for people."""
        return " › ".join(self.subject[1:])


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that the survey could not look at, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Covered:
    """How much of what is there was looked at."""

    streams: int = 0
    streams_of: int = 0
    consumers: int = 0
    consumers_of: int = 0
    pipelines: int = 0
    pipelines_of: int = 0
    oldest: float | None = None
    """When the look was that is longest ago, in seconds since 1970; None before the first."""
    rounds: int = 0
    """How often the survey went round since it began: everything that could be looked at was, so often."""
    seconds: float | None = None
    """How long the last round took."""
    unseen: tuple[Unseen, ...] = ()
    apart: float = 0.0
    """Seconds between two samples of the history: more if there are many series."""

    @property
    def whole(self) -> bool:
        """Whether everything was looked at."""
        return (
            self.rounds > 0
            and not self.unseen
            and self.streams >= self.streams_of
            and self.consumers >= self.consumers_of
            and self.pipelines >= self.pipelines_of
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """A way that messages take from one thing to another."""

    source: Subject
    target: Subject
    kind: str
    """`publish`, `consume`, `read`, `write`, `mirror`, `source`, `republish` or `dead`."""
    rate: float | None = None
    lag: int | None = None
    """Messages that wait on this way; None if nobody knows."""


def page_of(subject: Subject) -> str | None:
    """Give the path of the console's page about something."""
    match subject:
        case ("stream" | "subjects", name):
            return f"/streams/{quote(name, safe='')}"
        case ("consumer", stream, name):
            return f"/streams/{quote(stream, safe='')}/consumers/{quote(name, safe='')}"
        case ("pipeline" | "flow", name, *_):
            project, _, replay = name.partition("/")
            return "/pipelines/one?" + urlencode({"name": project} | ({"replay": replay} if replay else {}))
    return None
