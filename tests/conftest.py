"""What holds for every test."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no test asserts an absolute time, nor does the making of examples.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """End as after Ctrl-C where the run is terminated: fixtures release what they hold."""

    def leave(*_: object) -> NoReturn:
        pytest.exit("terminated", returncode=143)

    signal.signal(signal.SIGTERM, leave)


@pytest.fixture(autouse=True)
def log_handlers() -> Iterator[None]:
    """Take away the log handler of a command that ran inside of this process: its stream is the test's, and ends."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run side by side: whole files, and everything on Spark in one process, which has one session."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "tests/spark" if file.startswith("tests/spark/") else file

    return Files(config, log)
