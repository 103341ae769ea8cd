"""What a process and its server hold while they work: taken again and again, judged, and drawn."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path

from penstock.server import Server

__all__ = ["Sample", "Sampler", "growth", "picture"]


@dataclass(frozen=True)
class Sample:
    """One look. Each figure but the first must stay flat while the traffic does."""

    seconds: float
    memory: float
    """MiB that this process has in memory."""
    server_memory: float
    """MiB that the server has."""
    handles: float
    """Files and sockets that this process has open."""
    threads: float
    connections: float
    """At the server, as the next ones."""
    subscriptions: float
    consumers: float
    temporary: float
    """Files and folders of ours in the folder for temporary ones."""


# By how much a figure may be larger in the last third of a run than in the second, as a share and as a number.
ALLOWED = {
    "memory": (0.10, 16.0),
    "server_memory": (0.25, 48.0),
    "handles": (0.05, 8.0),
    "threads": (0.0, 4.0),
    "connections": (0.0, 4.0),
    "subscriptions": (0.05, 24.0),
    "consumers": (0.0, 6.0),
    "temporary": (0.0, 4.0),
}


class Sampler:
    """Looks at this process and at a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def take(self) -> Sample:
        """Look once."""
        general, streams = (self._page(page) for page in ("varz", "jsz"))
        node = self._server.nodes[0]
        sample = Sample(
            seconds=time.monotonic() - self._began,
            memory=_memory(os.getpid()),
            server_memory=_memory(node.pid or 0),
            handles=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            connections=general["connections"],
            subscriptions=general["subscriptions"],
            consumers=streams["consumers"],
            temporary=len(list(Path(tempfile.gettempdir()).glob("penstock-*"))),
        )
        self.samples.append(sample)
        return sample

    def _page(self, name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"{self._server.monitor_urls[0]}/{name}", timeout=30) as answer:
            found: dict[str, float] = json.loads(answer.read())
            return found


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Give the figures that grew, each with what it was in the second third of the run and in the last."""
    third = len(samples) // 3
    grew = {}
    for name, (share, number) in ALLOWED.items():
        values = [getattr(sample, name) for sample in samples]
        before, after = (statistics.median(part) for part in (values[third : 2 * third], values[2 * third :]))
        if after > before + max(share * before, number):
            grew[name] = (before, after)
    return grew


_STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 }
  .note { fill: #59636e } .axis { stroke: #d1d9e0; fill: none } .line { stroke: #0969da; stroke-width: 1.5; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } .axis { stroke: #3d444d } .line { stroke: #4493f8 }
  }
</style>"""
_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 64, 220, 40


def picture(title: str, samples: Sequence[Sample]) -> str:
    """Draw each figure over the time of the run, one below the other, from zero up, as an SVG."""
    names = [field.name for field in fields(Sample)][1:]
    end = samples[-1].seconds or 1.0
    body = []
    for place, name in enumerate(names):
        values = [getattr(sample, name) for sample in samples]
        most, base = max(*values, 1.0), _TOP + (place + 1) * _HEIGHT - 10
        points = " ".join(
            f"{_LEFT + sample.seconds / end * (_WIDTH - _LEFT - 20):.1f},{base - value / most * (_HEIGHT - 22):.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        words = f"{min(values):,.4g} to {max(values):,.4g}, at the end {values[-1]:,.4g}"
        body += [
            f'<text x="12" y="{base - 20}">{escape(name.replace("_", " "))}</text>',
            f'<text class="note" x="12" y="{base - 4}">{words}</text>',
            f'<path class="axis" d="M{_LEFT},{base} H{_WIDTH - 20}"/>',
            f'<polyline class="line" points="{points}"/>',
        ]
    height = _TOP + len(names) * _HEIGHT + 24
    foot = f'<text class="note" x="{_LEFT}" y="{height - 8}">{end:,.0f} seconds, {len(samples)} looks</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    named = f'<title>{escape(title)}</title>\n{_STYLE}\n<text class="title" x="12" y="24">{escape(title)}</text>'
    return "\n".join([head, named, *body, foot, "</svg>"]) + "\n"
