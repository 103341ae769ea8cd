"""What the server tells by itself: sampled acks and advisories, heard at a bounded cost."""

from __future__ import annotations

import bisect
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.connection.subscription import served
from penstock.errors import PenstockError, RemoteProtocolError
from penstock.jetstream.samples import AckSample, parse_event
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg

__all__ = ["BUCKETS", "Ears", "Heard"]

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds: acks are counted by how long they took, up to each of these, and beyond all of them."""
_KEPT = 1000  # ack times of one consumer, at most, those of the last
_WINDOW = 60.0  # seconds
_THINGS = 20_000  # streams and consumers that are heard; those heard longest ago are forgotten
_KINDS = 50  # of advisories, about one of them
_A_SECOND = 1000  # events that are read; what comes beyond that is counted, and not read


@dataclass
class Heard:
    """What was heard of one consumer, or of one stream."""

    acks: int = 0
    """Sampled acks."""
    deliveries: int = 0
    """Deliveries that these took."""
    seconds: float = 0.0
    """How long they took together."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """How many took how long: up to the first of `BUCKETS`, from there to the second, and so on."""
    told: Counter[str] = field(default_factory=Counter)
    """Advisories, by kind."""
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT), repr=False)
    """When acks of the last minute came, and how long each took."""

    def add(self, sample: AckSample, now: float) -> None:
        """Count a sampled ack."""
        self.acks += 1
        self.deliveries += sample.deliveries
        self.seconds += sample.ack_time
        self.buckets[bisect.bisect_left(BUCKETS, sample.ack_time)] += 1
        self.recent.append((now, sample.ack_time))

    def percentiles(self, now: float) -> tuple[float | None, float | None]:
        """Give how long half, and how long 99 %, of the acks of the last minute took at most."""
        while self.recent and self.recent[0][0] < now - _WINDOW:
            self.recent.popleft()
        taken = sorted(seconds for _, seconds in self.recent)
        if not taken:
            return None, None
        return taken[(len(taken) - 1) // 2], taken[min(len(taken) - 1, (len(taken) * 99) // 100)]


class Ears:
    """Listens on one connection at a time."""

    def __init__(self) -> None:
        self.missed = 0
        """Events that came faster than they are read, or that nobody could read."""
        self.deaf: str | None = None
        """Why nothing is heard; None if it is."""
        self.heard: dict[tuple[str, str], Heard] = {}
        """What was heard, by stream and consumer; a stream alone has no name of a consumer."""
        self._client: Connection | None = None
        self._second, self._read = 0, 0

    async def listen(self, client: Connection) -> None:
        """Listen on this connection, unless that is so already."""
        if client is self._client:
            return
        self._client = client
        told = names.ADVISORY
        about = [f"{names.METRIC_ACK}.*.*", f"{told}.CONSUMER.*.*.*", f"{told}.STREAM.*.*"]
        try:
            made = [await client.subscribe(client.options.event_subject(item), cb=self._hear) for item in about]
            await served(*made)
            self.deaf = None
        except PenstockError as error:
            self.deaf = str(error)

    async def _hear(self, message: Msg) -> None:
        now = time.monotonic()
        if int(now) != self._second:
            self._second, self._read = int(now), 0
        self._read += 1
        if self._read > _A_SECOND:
            self.missed += 1
            return
        try:
            event = parse_event(message.data)
        except RemoteProtocolError:
            self.missed += 1
            return
        stream, consumer = event.stream, event.consumer or ""
        if stream is None:
            return
        heard = self.heard.pop((stream, consumer), None) or Heard()
        self.heard[stream, consumer] = heard  # the newest is the last
        while len(self.heard) > _THINGS:
            del self.heard[next(iter(self.heard))]
        if isinstance(event, AckSample):
            heard.add(event, now)
        elif event.kind in heard.told or len(heard.told) < _KINDS:
            heard.told[event.kind] += 1

    def acks(self, stream: str, consumer: str) -> tuple[int, float | None, float | None]:
        """Give the sampled acks of a consumer so far, and how long half and 99 % of those of the last minute took."""
        heard = self.heard.get((stream, consumer))
        return (0, None, None) if heard is None else (heard.acks, *heard.percentiles(time.monotonic()))
