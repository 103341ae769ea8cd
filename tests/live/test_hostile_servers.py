"""Hostile servers: whatever one says, a client ends in time with an error of ours, stays small, and leaves nothing."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.hostile_answers import answers
from tests.live.hostile_drivers import DRIVERS, GRACE, Driver, Strain
from tests.live.hostile_scripts import Case, Script, attacks, greetings
from tests.scripted import flood, log_in, playing, say, serve, then
from tests.support import Authority

SCRIPTS = {script.name: script for script in [*attacks(), *greetings(), *answers()]}
GROWTH = 64 * 1024 * 1024  # bytes that the process may grow by while all drivers meet all floods
QUIET, BUSY = 24, 2  # servers that play at the same time: those that wait, and those that keep a core busy
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


class Meetings:
    """What came of the meetings of one driver with all scripts that are wanted, many at the same time."""

    def __init__(self, driver: Driver, wanted: list[Script]) -> None:
        self.faults: dict[str, list[str]] = {script.name: [] for script in wanted}
        threads, opened = set(threading.enumerate()), sockets()
        cases = [
            (script.name, case) for script in wanted for case in script.cases if case.operation in driver.operations
        ]
        quiet = [item for item in cases if "without end" not in f"{item[0]} {item[1].name}"]
        self._meet(driver, quiet, QUIET)
        with Watch() as watch:
            self._meet(driver, [item for item in cases if item not in quiet], BUSY)
        self.growth = watch.growth
        self.threads = set(threading.enumerate()) - threads
        self.sockets = sockets() - opened

    def _meet(self, driver: Driver, cases: list[tuple[str, Case]], at_once: int) -> None:
        with Strain() as strain, ThreadPoolExecutor(at_once) as pool:
            found = pool.map(lambda item: driver.meet(item[1], strain), cases)
            for (name, _), faults in zip(cases, found, strict=True):
                self.faults[name] += faults


@pytest.fixture(scope="module", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority instead of the system's hundreds, which every connection would read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Authority(tmp_path_factory.mktemp("ca")).ca))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_log() -> Iterator[None]:
    """Keep what is logged about all this out of the memory that the tests watch."""
    log = logging.getLogger("penstock")
    before, log.propagate = log.propagate, False
    silent = logging.NullHandler()
    log.addHandler(silent)
    yield
    log.removeHandler(silent)
    log.propagate = before


@pytest.fixture(scope="module")
def meetings(request: pytest.FixtureRequest) -> Callable[[str], Meetings]:
    """Let a driver meet the scripts of all the tests that were selected, once."""
    selected: dict[str, list[Script]] = {name: [] for name in DRIVERS}
    for item in request.session.items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and given.get("script") in SCRIPTS:
            selected[given["driver"]].append(SCRIPTS[given["script"]])
    found: dict[str, Meetings] = {}

    def meet(driver: str) -> Meetings:
        if driver not in found:
            found[driver] = Meetings(DRIVERS[driver], selected[driver])
        return found[driver]

    return meet


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hostile_server(meetings: Callable[[str], Meetings], driver: str, script: str) -> None:
    """Every operation that meets the script ends with an error of ours, within its deadline and a second."""
    faults = meetings(driver).faults[script]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("driver", DRIVERS)
def test_floods_take_no_memory(meetings: Callable[[str], Meetings], driver: str) -> None:
    """Servers that send without end make the process grow by some tens of megabytes at most, all of them together."""
    assert meetings(driver).growth < GROWTH


@pytest.mark.parametrize("driver", DRIVERS)
def test_nothing_is_left_behind(meetings: Callable[[str], Meetings], driver: str) -> None:
    """When all is over, no thread and no socket is there that was not there before."""
    met = meetings(driver)
    assert not met.threads
    assert met.sockets == 0


@pytest.mark.parametrize(
    ("driver", "operation"), [(name, operation) for name in DRIVERS for operation in sorted(DRIVERS[name].operations)]
)
def test_a_good_server_is_served_well(driver: str, operation: str) -> None:
    """What the scripts spoil works where nothing is spoilt, so that each one is met where it means to be."""
    with playing(log_in(), serve()) as server:
        outcome = DRIVERS[driver].run(operation, server.url)
        assert outcome.error is None, repr(outcome.error)
        assert not outcome.left
        assert server.is_left(GRACE)


@pytest.mark.parametrize("driver", ["blocking", "asyncio"])
def test_a_large_message_is_received_in_one_bounded_place(driver: str) -> None:
    """A message of 60 MB for nobody takes a few times its size at most, and ends with the deadline."""
    large = then(say(b"MSG other 99 60000000\r\n"), flood(b"x"))
    with playing(log_in(), serve(request=large)) as server, Watch() as watch, Strain() as strain:
        outcome = DRIVERS[driver].run("request", server.url)
        assert not outcome.faults(Case("", "request", ()), strain.late)
    assert watch.growth < 4 * 60_000_000


def test_there_are_a_hundred_scripts() -> None:
    """The table is as long as was promised, and every operation that scripts name belongs to some driver."""
    assert len(SCRIPTS) >= 100
    known = frozenset().union(*(driver.operations for driver in DRIVERS.values()))
    assert {case.operation for script in SCRIPTS.values() for case in script.cases} <= known
