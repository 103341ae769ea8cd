"""What holds for every test."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no test asserts an absolute time, nor does the making of examples.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """End as after Ctrl-C where the run is terminated: fixtures release what they hold. Ctrl-C works in tests."""

    def leave(*_: object) -> NoReturn:
        pytest.exit("terminated", returncode=143)

    signal.signal(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def log_handlers() -> Iterator[None]:
    """Take away the log handler of a command that ran inside of this process: its stream is the test's, and ends."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


SUITE_MINUTES = 15
"""What `make test` may take on two cores; nothing fails because a machine is slow, but nobody shall overlook it."""
_BEGUN = pytest.StashKey[float]()


def overtime(seconds: float, cores: int, marks: str) -> str | None:
    """Give the warning if the whole suite took longer than it may; with one core, or some marks only, nobody knows."""
    if marks != "not heavy" or cores < 2 or seconds <= SUITE_MINUTES * 60:
        return None
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"The suite took {minutes}:{rest:02} on {cores} cores; it shall stay under {SUITE_MINUTES} minutes on two. "
        "If nothing else ran beside it, look at `--durations=30`."
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note when the run began."""
    session.config.stash[_BEGUN] = time.monotonic()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say it at the end if the suite has grown too long."""
    seconds = time.monotonic() - config.stash[_BEGUN]
    if warning := overtime(seconds, len(os.sched_getaffinity(0)), config.option.markexpr):
        terminalreporter.write_sep("=", "too long", yellow=True, bold=True)
        terminalreporter.write_line(warning)


_LONGEST = ("tests/spark", "tests/pipelines")  # one unit each: two Sparks at once are enough for a machine


def _unit(nodeid: str) -> str:
    """Give what runs in one process: a file, or all that is on Spark, which has one session."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in _LONGEST if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run side by side: what takes longest first, and what is quick, and pure, last of all."""
    if hasattr(config, "workerinput"):
        sizes = Counter(_unit(item.nodeid) for item in items)
        items.sort(key=lambda item: _place(_unit(item.nodeid), sizes))


def _place(unit: str, sizes: Counter[str]) -> tuple[bool, bool, int, str]:
    return unit not in _LONGEST, unit.startswith("tests/pure/"), -sizes[unit], unit


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out units in the order of the items."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)
