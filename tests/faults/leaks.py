"""What clients leave behind, and what grows while they live."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tests.faults.checker import LEAK, Finding, shown
from tests.faults.crew import marked
from tests.faults.world import World

# How much more there may be in the last quarter of a life than in the second: bounds of open files, threads, and MiB.
FILES, THREADS, MEGABYTES = 12, 6, 64
FEWEST, STARTING = 60, 30  # looks at a life that is judged, and those of them while it starts, which do not count

GOING = 20.0  # seconds in which everything of clients that left must have gone


@dataclass(frozen=True)
class Sample:
    """One look at a process."""

    files: int
    threads: int
    megabytes: float


def sample(pid: int) -> Sample | None:
    """Look at a process; None if it has gone."""
    folder = Path(f"/proc/{pid}")
    try:
        files = len(list((folder / "fd").iterdir()))
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        return Sample(files, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024)
    except (OSError, KeyError, ValueError):
        return None


class Sampler(threading.Thread):
    """Looks at every client twice a second."""

    def __init__(self, world: World, pause: float = 0.5) -> None:
        super().__init__(name="sampler", daemon=True)
        self._world, self._pause, self._over = world, pause, threading.Event()
        self.series: dict[str, list[Sample]] = defaultdict(list)

    def run(self) -> None:
        while not self._over.wait(self._pause):
            for name, pid in self._world.crew.pids().items():
                if (found := sample(pid)) is not None:
                    self.series[name].append(found)

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self.join(30)


def check_growth(part: str, series: dict[str, list[Sample]]) -> list[Finding]:
    """Find lives that hold ever more files, threads or memory."""
    wrong = []
    for name, samples in series.items():
        if len(samples) < FEWEST:
            continue
        samples = samples[STARTING:]
        quarter = len(samples) // 4
        early, late = samples[quarter : 2 * quarter], samples[-quarter:]
        for what, most in (("files", FILES), ("threads", THREADS), ("megabytes", MEGABYTES)):
            before, after = (median(getattr(one, what) for one in some) for some in (early, late))
            if after - before > most:
                wrong.append(f"{name}: {what} {before:.0f} to {after:.0f} in {len(samples)} looks")
    return [Finding(LEAK, part, shown(wrong))] if wrong else []


def connections(world: World) -> list[dict[str, Any]]:
    """Ask the nodes who is connected, but for ourselves."""
    found = []
    for url in world.server.monitor_urls:
        parts = urlsplit(url)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)) as page:
            page.request("GET", f"{parts.path.rstrip('/')}/connz?subs=1")
            found += json.loads(page.getresponse().read()).get("connections") or []
    return [one for one in found if one.get("name") != "plain reader"]


def check_left(
    part: str, world: World, clean: Sequence[str], known: dict[str, set[str]], *, calm: bool
) -> list[Finding]:
    """See that nothing of the clients stays once all have left: processes, connections, consumers, files.

    `clean` are the lives that ended in order; `known` are the consumers that each stream has by right. A client that
    was killed or cut off may leave a consumer that goes by itself; in a `calm` round nobody was.
    """
    deadline = time.monotonic() + GOING
    while True:
        left = [f"process {pid} ({command[:120]})" for pid, command in marked(world.mark).items()]
        left += [
            f"connection {one.get('name')!r} ({one.get('subscriptions')} subscriptions)" for one in connections(world)
        ]
        for stream, names in known.items():
            listed = world.api(f"CONSUMER.LIST.{stream}").get("consumers") or []
            found = {one["name"] for one in listed if calm or not one["config"].get("inactive_threshold")}
            left += [f"consumer {name} of {stream}" for name in sorted(found - names)]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    for life in clean:
        folder = world.folder / "tmp" / life
        left += [f"file {file.name} of {life}" for file in folder.iterdir()] if folder.exists() else []
    return [Finding(LEAK, part, shown(left))] if left else []
