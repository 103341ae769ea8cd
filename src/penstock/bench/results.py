"""What the clients of a benchmark measured, and the figures that people and programs read from it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Results", "Sample", "latency_figures"]

_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass
class Sample:
    """What one client did. Times are of the machine's monotonic clock, which all processes of it share."""

    messages: int
    bytes: int
    began: float
    ended: float
    cpu: float
    """Seconds of CPU time, user and system, of the client's process between the two."""
    latencies: Sequence[float] = field(default=(), repr=False)
    """Seconds of each operation, if each was waited for."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(self.ended - self.began, 1e-9)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def latency_figures(latencies: Sequence[float]) -> dict[str, float]:
    """Give the figures of latencies in microseconds; empty if there are none."""
    if not latencies:
        return {}
    micros = sorted(value * 1e6 for value in latencies)
    found = {"min": micros[0], "avg": statistics.fmean(micros), "max": micros[-1]}
    found["stddev"] = statistics.pstdev(micros, found["avg"])
    for percent in _PERCENTILES:
        found[f"p{percent:g}"] = micros[math.ceil(round(percent / 100 * len(micros), 6)) - 1]
    return {name: round(value, 2) for name, value in found.items()}


@dataclass
class Results:
    """A whole run: its kind, what it was asked for, and a sample of each client."""

    kind: str
    asked: dict[str, Any]
    samples: list[Sample]
    helpers_cpu: float = 0.0
    """CPU seconds of processes of ours that served the clients."""

    @property
    def messages(self) -> int:
        """The messages of all clients."""
        return sum(sample.messages for sample in self.samples)

    @property
    def bytes(self) -> int:
        """The payload bytes of all clients."""
        return sum(sample.bytes for sample in self.samples)

    @property
    def seconds(self) -> float:
        """From the first client's beginning to the last one's end."""
        return max(max(one.ended for one in self.samples) - min(one.began for one in self.samples), 1e-9)

    @property
    def rate(self) -> float:
        """Messages a second, of all clients together."""
        return self.messages / self.seconds

    @property
    def cpu(self) -> float:
        """CPU seconds of all our processes while they worked."""
        return sum(sample.cpu for sample in self.samples) + self.helpers_cpu

    @property
    def latencies(self) -> dict[str, float]:
        """The figures of all latencies, in microseconds."""
        return latency_figures([value for sample in self.samples for value in sample.latencies])

    def rates(self) -> dict[str, float]:
        """The least, the mean and the most rate of a client, and how far they lie apart."""
        rates = [sample.rate for sample in self.samples]
        found = {"min": min(rates), "avg": statistics.fmean(rates), "max": max(rates)}
        return {name: round(value, 1) for name, value in {**found, "stddev": statistics.pstdev(rates)}.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, for programs."""
        return {
            "kind": self.kind,
            "asked": self.asked,
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "messages_per_second": round(self.rate, 1),
            "bytes_per_second": round(self.bytes / self.seconds, 1),
            "cpu_seconds": round(self.cpu, 4),
            "cpu_microseconds_per_message": round(self.cpu / self.messages * 1e6, 3),
            "client_rates": self.rates(),
            "latency_microseconds": self.latencies,
            "clients": [
                {
                    "messages": one.messages,
                    "seconds": round(one.seconds, 6),
                    "messages_per_second": round(one.rate, 1),
                    "cpu_seconds": round(one.cpu, 4),
                    "latency_microseconds": latency_figures(one.latencies),
                }
                for one in self.samples
            ],
        }

    def to_csv(self, run: str) -> str:
        """A line for each client, with the columns of the `nats` command."""
        columns = ["#RunID", "ClientID", "MsgCount", "MsgBytes", "MsgsPerSec", "BytesPerSec", "DurationSecs"]
        names = ("min", "avg", "max", "p50", "p90", "p99", "p99.9", "stddev")
        timed = any(one.latencies for one in self.samples)
        titles = {"min": "Min", "avg": "Avg", "max": "Max", "stddev": "StdDev"}
        if timed:
            columns += [f"{titles.get(name, name.upper())}LatencyMicroSecs" for name in names]
        lines = [",".join(columns)]
        for number, one in enumerate(self.samples):
            cells = [run, f"C{number}", str(one.messages), str(one.bytes), f"{one.rate:.0f}"]
            cells += [f"{one.bytes / one.seconds:.6f}", f"{one.seconds:.6f}"]
            if timed:
                figures = latency_figures(one.latencies)
                cells += [f"{figures.get(name, 0.0):.6f}" for name in names]
            lines.append(",".join(cells))
        return "\n".join(lines) + "\n"
