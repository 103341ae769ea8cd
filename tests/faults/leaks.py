"""What clients leave behind, and what grows while they live."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tests.faults.checker import LEAK, Finding, shown
from tests.faults.crew import marked
from tests.faults.world import World

# How much more there may be in the last quarter of a life than in the second: open files, threads, MiB, subscriptions.
FILES, THREADS, MEGABYTES, SUBSCRIPTIONS = 12, 6, 64, 6
SOON = 0.5  # seconds in which a node tells who is connected, or is not asked any more for now
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
    """Looks at every client twice a second, and asks the nodes how many subscriptions it has."""

    def __init__(self, world: World, pause: float = 0.5) -> None:
        super().__init__(name="sampler", daemon=True)
        self._world, self._pause, self._over = world, pause, threading.Event()
        self.series: dict[str, list[Sample]] = defaultdict(list)
        self.subscriptions: dict[str, list[int]] = defaultdict(list)

    def run(self) -> None:
        while not self._over.wait(self._pause):
            alive = self._world.crew.pids()
            for name, pid in alive.items():
                if (found := sample(pid)) is not None:
                    self.series[name].append(found)
            counts = subscriptions(self._world)
            for life in alive:
                if (name := life.partition("#")[0]) in counts:
                    self.subscriptions[life].append(counts[name])

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self.join(30)


def check_growth(
    part: str, series: dict[str, list[Sample]], subscribed: dict[str, list[int]] | None = None
) -> list[Finding]:
    """Find lives that hold ever more files, threads, memory or subscriptions."""
    looks: list[tuple[str, str, int, list[float]]] = []
    for name, samples in series.items():
        for what, most in (("files", FILES), ("threads", THREADS), ("megabytes", MEGABYTES)):
            looks.append((name, what, most, [getattr(one, what) for one in samples]))
    looks += [(name, "subscriptions", SUBSCRIPTIONS, [*counts]) for name, counts in (subscribed or {}).items()]
    wrong = []
    for name, what, most, values in looks:
        if len(values) < FEWEST:
            continue
        early, values = values[:STARTING], values[STARTING:]
        quarter = len(values) // 4
        before, after = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        if what == "subscriptions":  # a gateway that does not lead has few, and as many as before when it leads again
            before = max(*early, *values[: 2 * quarter])
        if after - before > most:
            wrong.append(f"{name}: {what} {before:.0f} to {after:.0f} in {len(values)} looks")
    return [Finding(LEAK, part, shown(wrong))] if wrong else []


def connections(url: str, timeout: float = 10.0) -> list[dict[str, Any]]:
    """Ask a node who is connected, but for ourselves."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)) as page:
        page.request("GET", f"{parts.path.rstrip('/')}/connz?subs=1")
        found = json.loads(page.getresponse().read()).get("connections") or []
    return [one for one in found if one.get("name") != "plain reader"]


def subscriptions(world: World) -> Counter[str]:
    """Count the subscriptions of each connection's name, at the nodes that answer at once."""
    counts: Counter[str] = Counter()
    for url in world.server.monitor_urls:
        with suppress(OSError, http.client.HTTPException, ValueError):  # a node that is down, or asleep
            for one in connections(url, SOON):
                counts[one.get("name") or ""] += int(one.get("subscriptions", 0))
    return counts


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
            f"connection {one.get('name')!r} ({one.get('subscriptions')} subscriptions)"
            for url in world.server.monitor_urls
            for one in connections(url)
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
