"""The first minutes: a project of one's own on a server that runs, with Spark killed in the middle, and a count.

The project is what `penstock pipeline new` writes; its own `traffic.py` sends the readings.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from penstock.contexts import load_options
from penstock.demo.audit import Stage, compare
from penstock.demo.play import CONF, in_thread
from penstock.errors import InputError, PipelineError
from penstock.pipelines.order import RunOrder
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.process import PipelineRun
from penstock.pipelines.project import Project
from penstock.pipelines.running import apply_topology
from penstock.pipelines.tables import Table
from penstock.wire.bulk import BulkConnection

__all__ = ["READINGS", "Quickstart"]

READINGS = 4000
EARLY = 0.5  # the share of the readings that is there before Spark is
SLICES = 20  # in which the rest comes, while Spark has work in hand
PAUSE = 0.2  # seconds between two of them
PATIENCE = 600.0  # seconds for one run of Spark


class Quickstart:
    """Runs a new project with a kill in the middle; `run` gives what was expected, and what is there."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        readings: int = READINGS,
        say: Callable[[str], None] = lambda text: None,
        shout: Callable[[str], None] = lambda text: None,
        watch: Callable[[Outcome, int, int], None] = lambda outcome, waiting, read: None,
    ) -> None:
        self.project = Project.load(folder)
        self.options = load_options(url)
        self._url, self._readings = url, readings
        self._say, self._shout, self._watch = say, shout, watch
        traffic = runpy.run_path(str(folder / "traffic.py"))
        self._publish: Callable[..., Coroutine[Any, Any, None]] = traffic["publish"]
        self._sample: list[dict[str, Any]] = traffic["sample"](readings)
        self._sent = self._read = 0
        self._warm = asyncio.Event()

    async def run(self) -> list[Stage]:
        """Run it, and count."""
        await in_thread(apply_topology, self.project, self.options)
        await self._send(int(self._readings * EARLY))
        self._say(f"{self._sent:,} readings are in the stream READINGS, and they go on coming; starting Spark.")
        coming = asyncio.create_task(self._send_rest())
        try:
            pid = await self._spark(RunOrder(continuous=True, pause=0.2, conf=CONF), coming, doomed=True)
            self._shout(f"Killed Spark with SIGKILL in the middle of a batch (pid {pid}).")
            await coming
            self._say(f"All {self._sent:,} readings are in. Starting Spark again; it goes on where it was.")
            await self._spark(RunOrder(conf=CONF), coming, doomed=False)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        return await in_thread(self._count)

    # -- the readings ---------------------------------------------------------------------------------------------

    async def _send(self, upto: int) -> None:
        await self._publish(self._url, upto, first=self._sent)
        self._sent = upto

    async def _send_rest(self) -> None:
        await self._warm.wait()
        begun, rest = self._sent, self._readings - self._sent
        for number in range(1, SLICES + 1):
            await self._send(begun + rest * number // SLICES)
            await asyncio.sleep(PAUSE)

    # -- Spark and its death --------------------------------------------------------------------------------------

    async def _spark(self, order: RunOrder, coming: asyncio.Task[None], *, doomed: bool) -> int:
        """Run Spark to its end, or until it is in the middle of a batch and is killed; give its process id."""
        run, up, deadline = PipelineRun(self.project, self.options, order), False, time.monotonic() + PATIENCE
        try:
            await in_thread(run.start)
            while await in_thread(run.poll, 0.2):
                outcome = run.outcome
                flow = outcome.flows.get("readings")
                if flow is not None and flow.streams:
                    self._read = flow.streams["READINGS"] - 1
                self._watch(outcome, self._sent - self._read, self._read)
                if outcome.spark and not up:
                    up = True
                    self._say(f"Spark {outcome.spark} is up (pid {run.pid}).")
                if coming.done():
                    coming.result()  # a failure of the traffic ends it
                if outcome.updates:
                    self._warm.set()
                if doomed and outcome.updates and flow and flow.status == "RUNNING" and self._sent > self._read:
                    return run.pid  # closing is a kill
                if time.monotonic() > deadline:
                    run.outcome.failure = f"it is not done after {PATIENCE:g} s"
                    break
            run.check()
            if doomed:
                what = "Spark ended before it could be killed."
                raise PipelineError(what, remedy=f"Spark's log is {run.log_path}.", log=str(run.log_path))
            return run.pid
        finally:
            await in_thread(run.close)

    # -- what is there --------------------------------------------------------------------------------------------

    def _count(self) -> list[Stage]:
        sent = [json.dumps(reading) for reading in self._sample]
        with BulkConnection(self.options) as bulk:
            stored = [
                (sequence, data.decode())
                for batch in bulk.read("READINGS", headers=False, on_loss=lambda lost: None)
                for sequence, data in zip(batch["sequence"].to_pylist(), batch["data"].to_pylist(), strict=True)
            ]
            alerts = [
                json.loads(data)["sequence"]
                for batch in bulk.read("ALERTS", subjects="alerts.*", headers=False, on_loss=lambda lost: None)
                for data in batch["data"].to_pylist()
            ]
        high = [sequence for sequence, text in stored if json.loads(text)["value"] > 90]
        rows = [row["sequence"] for row in self._rows("readings")]
        totals = sum(row["readings"] for row in self._rows("totals"))
        return [
            compare("readings in the stream READINGS", sent, (text for _, text in stored)),
            compare("rows in the table readings", (sequence for sequence, _ in stored), rows),
            compare("readings counted in the table totals", range(len(sent)), range(totals)),
            compare("alerts in the stream ALERTS", high, alerts),
        ]

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        assert self.project.warehouse is not None
        try:
            yield from Table(Path(self.project.warehouse) / table).rows()
        except InputError:
            return  # no table, no row: the comparison says how many are lost
