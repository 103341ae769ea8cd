"""Ack samples and advisories: what the server tells about consumers, decoded, and figures made of it.

A consumer with `sample_freq` publishes a sample for that share of its acks on
`$JS.EVENT.METRIC.CONSUMER.ACK.<stream>.<consumer>`. What goes wrong is told on `$JS.EVENT.ADVISORY.>`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from penstock.connection.subscription import served
from penstock.errors import DisconnectedError, InputError, PenstockError, RemoteProtocolError
from penstock.jetstream import assets
from penstock.times import parse_time
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import number, read_json, text

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg, Subscription

__all__ = ["AckSample", "Advisory", "Figures", "Samples", "parse_event"]

log = logging.getLogger("penstock.jetstream")

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_NANO = 1_000_000_000
_KEPT = 10_000  # latencies of a consumer, and events that nobody read yet
_CONSUMERS = 1000  # whose figures are kept
_CLOCK = 2**63  # nanoseconds by which an ack may seem to come before its delivery, if a clock was set
_LARGEST = 64 * 1024  # bytes of an event; those of a server have a few hundred
_SAMPLE = "io.nats.jetstream.metric.v1.consumer_ack"
_ADVISORY = "io.nats.jetstream.advisory.v1."


@dataclass(frozen=True)
class AckSample:
    """One sampled ack."""

    stream: str
    """The stream of the message."""
    consumer: str
    """The consumer that delivered it."""
    sequence: int
    """The message's sequence in the stream."""
    consumer_sequence: int
    """The number of the delivery that was acknowledged, as the consumer counts."""
    deliveries: int
    """How often the message was delivered until it was acknowledged."""
    ack_time: float
    """Seconds from the delivery to the ack."""
    time: datetime
    """When the server got the ack."""


@dataclass(frozen=True)
class Advisory:
    """Something the server found worth telling."""

    kind: str
    """What happened, such as "max_deliver", "nak", "terminated", "consumer_action"."""
    stream: str | None
    """The stream that it is about."""
    consumer: str | None
    """The consumer that it is about."""
    time: datetime
    """When it happened."""
    facts: dict[str, Any] = field(default_factory=dict, compare=False)
    """Everything the server said."""

    @property
    def summary(self) -> str:
        """The facts that matter, in a line."""
        facts = self.facts
        wanted = ("stream_seq", "deliveries", "reason", "action", "leader", "paused", "group", "batch", "subject")
        return ", ".join(f"{name} {facts[name]}" for name in wanted if facts.get(name) not in (None, ""))


def parse_event(data: bytes) -> AckSample | Advisory:
    """Read one event of the server; RemoteProtocolError for anything else, as anybody may publish there."""
    try:
        if len(data) > _LARGEST:
            raise ValueError
        content = read_json(data)
        kind, time = text(content, "type"), parse_time(text(content, "timestamp"))
        if kind == _SAMPLE:
            return AckSample(
                stream=assets.checked(text(content, "stream")),
                consumer=assets.checked(text(content, "consumer")),
                sequence=number(content, "stream_seq"),
                consumer_sequence=number(content, "consumer_seq"),
                deliveries=number(content, "deliveries"),
                ack_time=number(content, "ack_time", least=-_CLOCK) / _NANO,
                time=time,
            )
        stream, consumer = (_name(content, name) for name in ("stream", "consumer"))
        return Advisory(kind.removeprefix(_ADVISORY), stream, consumer, time, content)
    except (ValueError, RemoteProtocolError):
        raise RemoteProtocolError(f"This is not an event of a NATS server: {data[:60]!r}.") from None


def _name(content: dict[str, Any], name: str) -> str | None:
    found = text(content, name, "")
    return assets.checked(found) if found else None


@dataclass
class Figures:
    """What the samples and advisories of one consumer add up to."""

    samples: int = 0
    """Sampled acks."""
    redelivered: int = 0
    """Sampled acks of messages that were delivered more than once."""
    most_deliveries: int = 0
    """The most deliveries that one message took."""
    naks: int = 0
    """Messages that were given back."""
    terminated: int = 0
    """Messages that were refused for good."""
    exceeded: int = 0
    """Messages that ran out of deliveries."""
    last: datetime | None = None
    """When the last event was."""
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT), repr=False)
    """Seconds from delivery to ack of the last samples."""

    def add(self, event: AckSample | Advisory) -> None:
        """Count one event."""
        self.last = event.time
        if isinstance(event, AckSample):
            self.samples += 1
            self.redelivered += event.deliveries > 1
            self.most_deliveries = max(self.most_deliveries, event.deliveries)
            self.latencies.append(event.ack_time)
        elif event.kind == "nak":
            self.naks += 1
        elif event.kind == "terminated":
            self.terminated += 1
        elif event.kind == "max_deliver":
            self.exceeded += 1

    def percentile(self, share: float) -> float | None:
        """Give the latency that this share (0 to 1) of the last samples did not exceed; None without samples."""
        if not 0 <= share <= 1:
            raise InputError(f"{share} is not a share from 0 to 1.", remedy="Give a number from 0 to 1.")
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    def to_json(self) -> dict[str, Any]:
        """Give the figures for programs."""
        counts = ("samples", "redelivered", "most_deliveries", "naks", "terminated", "exceeded")
        figures: dict[str, Any] = {name: getattr(self, name) for name in counts}
        return {**figures, "ack_seconds": {label: self.percentile(share) for label, share in PERCENTILES.items()}}


class Samples:
    """Listens to the samples and advisories of consumers; an async iterator of events that keeps figures.

    `missed` counts events that came while more than 10,000 were waiting to be read; figures count them all. Those of
    1,000 consumers are kept; `forgotten` counts consumers whose figures went because others were heard later.
    """

    def __init__(self, client: Connection, stream: str = "*", consumer: str = "*", *, advisories: bool = True) -> None:
        self.stream = stream if stream == "*" else assets.checked(stream, "stream")
        self.consumer = consumer if consumer == "*" else assets.checked(consumer, "consumer")
        self.figures: dict[tuple[str, str], Figures] = {}
        self.missed = self.forgotten = 0
        self._client, self._advisories = client, advisories
        self._events: deque[AckSample | Advisory] = deque()
        self._news = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    async def __aenter__(self) -> Self:
        about = [names.METRIC_ACK, *([f"{names.ADVISORY}.CONSUMER.*"] if self._advisories else [])]
        for subject in about:
            heard = self._client.options.event_subject(f"{subject}.{self.stream}.{self.consumer}")
            self._subscriptions.append(await self._client.subscribe(heard, cb=self._heard))
        await served(*self._subscriptions)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._client.is_closed:
            with suppress(PenstockError):  # the connection may end in this moment
                for subscription in self._subscriptions:
                    await subscription.unsubscribe()
        self._subscriptions.clear()
        self._news.set()

    async def _heard(self, message: Msg) -> None:
        try:
            event = parse_event(message.data)
        except RemoteProtocolError as error:
            log.warning("%s", error)
            return
        if event.stream and event.consumer:
            self._figures_of(event.stream, event.consumer).add(event)
        if len(self._events) >= _KEPT:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._news.set()

    def _figures_of(self, stream: str, consumer: str) -> Figures:
        """Give the figures of a consumer, which is the one that was heard last now."""
        found = self.figures.pop((stream, consumer), None) or Figures()
        self.figures[stream, consumer] = found
        if len(self.figures) > _CONSUMERS:
            if not self.forgotten:
                log.warning("Figures are kept of the %d consumers that were heard last.", _CONSUMERS)
            self.forgotten += 1
            del self.figures[next(iter(self.figures))]
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AckSample | Advisory:
        while not self._events:
            if not self._subscriptions:
                raise StopAsyncIteration
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._news.wait()
            if self._client.is_closed:
                raise DisconnectedError("The connection was closed.", remedy="Is the server running?")
        return self._events.popleft()
