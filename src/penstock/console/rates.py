"""How fast a stream grows, from what the console saw of it: no sampling while nobody looks."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

__all__ = ["Rates"]

_STREAMS = 2000  # that are remembered; the one that nobody asked for longest goes first
_SAMPLES = 60
_APART = 0.5  # seconds between two samples
_WINDOW = 15.0  # seconds over which a rate is taken
_OLD = 300.0  # seconds after which a sample tells nothing of today


@dataclass
class _Seen:
    created: str | None
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))


class Rates:
    """The last sequences of streams, and when they were seen."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def take(self, stream: str, created: str | None, sequence: int, now: float | None = None) -> float | None:
        """Remember how far a stream is, and give messages a second; None as long as it was seen once only."""
        now = time.monotonic() if now is None else now
        seen = self._seen.get(stream)
        if seen is None or seen.created != created or (seen.samples and seen.samples[-1][1] > sequence):
            seen = self._seen[stream] = _Seen(created)  # a new stream, perhaps of the same name
        self._seen.move_to_end(stream)
        while len(self._seen) > _STREAMS:
            self._seen.popitem(last=False)
        while seen.samples and now - seen.samples[0][0] > _OLD:
            seen.samples.popleft()
        if not seen.samples or now - seen.samples[-1][0] >= _APART:
            seen.samples.append((now, sequence))
        return self.rate(stream)

    def rate(self, stream: str) -> float | None:
        """Give messages a second over the last seconds."""
        seen = self._seen.get(stream)
        if seen is None or len(seen.samples) < 2:
            return None
        end, last = seen.samples[-1]
        near = [item for item in seen.samples if end - item[0] <= _WINDOW]
        begin, first = near[0] if len(near) > 1 else seen.samples[-2]
        return (last - first) / (end - begin)

    def history(self, stream: str) -> list[float]:
        """Give the rates between one sample and the next, oldest first."""
        seen = self._seen.get(stream)
        samples = list(seen.samples) if seen else []
        return [
            round((later[1] - before[1]) / (later[0] - before[0]), 3) for before, later in itertools.pairwise(samples)
        ]
