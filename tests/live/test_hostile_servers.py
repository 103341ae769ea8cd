"""Hostile servers: whatever one says, a client ends in time with an error of ours, stays small, and leaves nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.live.hostile_drivers import DRIVERS, GRACE, Strain
from tests.live.hostile_meetings import SCRIPTS, Meetings, Watch
from tests.live.hostile_scripts import Case, Script
from tests.scripted import flood, log_in, playing, say, serve, then
from tests.support import Authority


@pytest.fixture(scope="module", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority instead of the system's hundreds, which every connection would read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Authority(tmp_path_factory.mktemp("ca")).ca))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_log() -> Iterator[None]:
    """Keep what is logged about all this out of the report of the tests."""
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
            found[driver] = Meetings(driver, selected[driver])
        return found[driver]

    return meet


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hostile_server(meetings: Callable[[str], Meetings], driver: str, script: str) -> None:
    """Every operation that meets the script ends with an error of ours, seconds late at most, and stays small."""
    faults = meetings(driver).faults[script]
    assert not faults, "\n".join(faults)


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
