"""The meetings of drivers and hostile scripts: many quiet ones at a time, and floods in processes of their own.

A script that waits costs nothing, so that dozens of them play at once, in threads. One that sends without end keeps a
core busy; each of those is met in a process where nothing else goes on, and its memory is watched.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from tests.live.hostile_answers import answers
from tests.live.hostile_drivers import DRIVERS, Strain
from tests.live.hostile_scripts import Case, Script, attacks, greetings

__all__ = ["SCRIPTS", "Meetings", "Watch"]

SCRIPTS = {script.name: script for script in [*attacks(), *greetings(), *answers()]}
GROWTH = 48 * 1024 * 1024  # bytes that a process may grow by while it meets a flood
AT_ONCE = 24  # quiet servers that play at the same time
PROCESSES = 2
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Give the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def sockets() -> int:
    """Count the sockets that this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(descriptor).startswith("socket:")
        except OSError:
            continue  # the folder's own
    return found


class Watch:
    """Watches how far the memory of this process grows."""

    def __init__(self) -> None:
        self._begun = self._most = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, resident())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        """By how many bytes it grew at most."""
        return self._most - self._begun


def meet_flood(driver: str, script: str, place: int) -> list[str]:
    """Meet one case of a script alone, and say what went wrong, also with memory, threads and sockets."""
    case = SCRIPTS[script].cases[place]
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    threads, opened = threading.active_count(), sockets()
    with Strain() as strain, Watch() as watch:
        faults = DRIVERS[driver].meet(case, strain)
    where = f"{case.operation}, {case.name}:"
    if watch.growth > GROWTH:
        faults.append(f"{where} the process grew by {watch.growth // 2**20} MiB")
    if (threading.active_count(), sockets()) != (threads, opened):
        faults.append(f"{where} {threading.active_count() - threads} threads, {sockets() - opened} sockets were left")
    return faults


def is_flood(script: Script, case: Case) -> bool:
    """Tell a case that keeps a core busy."""
    return "without end" in f"{script.name} {case.name}"


class Meetings:
    """What came of the meetings of one driver with the scripts that are wanted: `faults` by the script's name."""

    def __init__(self, driver: str, wanted: list[Script]) -> None:
        self.faults: dict[str, list[str]] = {script.name: [] for script in wanted}
        cases = [
            (script, place, case)
            for script in wanted
            for place, case in enumerate(script.cases)
            if case.operation in DRIVERS[driver].operations
        ]
        threads, opened = set(threading.enumerate()), sockets()
        quiet = [(script.name, case) for script, _, case in cases if not is_flood(script, case)]
        with Strain() as strain, ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda item: DRIVERS[driver].meet(item[1], strain), quiet)
            for (name, _), faults in zip(quiet, found, strict=True):
                self.faults[name] += faults
        self.threads = set(threading.enumerate()) - threads
        """Threads that were left running."""
        self.sockets = sockets() - opened
        """How many sockets were left open."""
        floods = [(script.name, place) for script, place, case in cases if is_flood(script, case)]
        if floods:
            with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as processes:
                waiting = [(name, processes.submit(meet_flood, driver, name, place)) for name, place in floods]
                for name, future in waiting:
                    self.faults[name] += future.result()
