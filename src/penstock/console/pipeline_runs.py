"""Runs of pipelines that the console started: each in a thread that follows it, and none outlives the console."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import DeadlineError, InputError, PenstockError

if TYPE_CHECKING:
    from penstock.pipelines.outcome import Outcome

__all__ = ["PipelineRuns"]

log = logging.getLogger("penstock.console")

_MOST = 4  # runs at the same time: each has a Spark of its own
_LOOK = 0.05  # seconds between two looks at a thread
_END = 15.0  # seconds that runs may take to end with the console

Watch = Callable[["Outcome"], None]


class _Ended(Exception):
    """The console ends: the run is ended where it is, and the next one goes on from there."""


@dataclass
class _Run:
    name: str
    thread: threading.Thread | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    error: PenstockError | None = None


class PipelineRuns:
    """Starts runs, and ends them with the console."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._closing = threading.Event()

    async def start(self, name: str, work: Callable[[Watch], Any], timeout: float) -> None:
        """Start a run, and wait until Spark's process is there; raise why it is not. `work` gets what watches it."""
        self._runs = {key: run for key, run in self._runs.items() if not run.over.is_set()}
        if name in self._runs:
            raise InputError(f"{name} runs already.", remedy="Wait for it, or stop it.")
        if len(self._runs) >= _MOST:
            raise InputError(f"{_MOST} pipelines run from here.", remedy="Stop one, or use penstock pipeline run.")
        run = self._runs[name] = _Run(name)
        run.thread = threading.Thread(target=self._follow, args=(run, work), name="penstock-pipeline", daemon=True)
        run.thread.start()
        deadline = time.monotonic() + timeout
        while not run.begun.is_set() and not run.over.is_set():
            if time.monotonic() > deadline:
                what = f"{name} has not begun after {timeout:g} s."
                raise DeadlineError(what, remedy="It is still being started: its page tells when it runs.")
            await asyncio.sleep(_LOOK)
        if run.error is not None:
            raise run.error

    def _follow(self, run: _Run, work: Callable[[Watch], Any]) -> None:
        def watch(outcome: Outcome) -> None:
            run.begun.set()
            if self._closing.is_set():
                raise _Ended

        try:
            work(watch)
        except _Ended:
            log.warning("%s was ended with the console.", run.name)
        except PenstockError as error:
            run.error = error
            if run.begun.is_set():
                log.warning("%s", error)
        except Exception:
            log.exception("%s failed.", run.name)
            run.error = PenstockError(f"{run.name} failed: the console made a mistake.")
        finally:
            run.over.set()

    async def close(self) -> None:
        """End all runs, wherever they are."""
        self._closing.set()
        if self._runs:
            await asyncio.to_thread(self._join)

    def _join(self) -> None:
        deadline = time.monotonic() + _END
        for run in self._runs.values():
            if run.thread is not None:
                run.thread.join(max(0.0, deadline - time.monotonic()))
