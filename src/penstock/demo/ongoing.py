"""What goes on after the audit: Spark, update after update, and a trickle of new orders, until somebody says stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.demo.play import CONF, Play, in_thread
from penstock.demo.traffic import Traffic
from penstock.errors import PenstockError
from penstock.pipelines.order import RunOrder
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.process import PipelineRun

__all__ = ["Ongoing"]

TRIES = 3  # starts of Spark, one after the other, that come to no update
REST = 5.0  # seconds between two of them
EVERY = 1.0  # seconds between two orders
LEAVE = 10.0  # seconds that the producers may take to close


@dataclass
class Ongoing:
    """Runs the play's pipeline on in the same storage, so that each order still counts once.

    Spark that ends by itself is started again; after `TRIES` starts without an update it is left, and the command
    that starts it is said. `orders` bounds what is sent, one each second; all of them are in the ledger.
    """

    play: Play
    url: str
    orders: int = 3600
    say: Callable[[str], None] = lambda text: None
    watch: Callable[[Outcome, int | None], None] = lambda outcome, waiting: None
    sent: int = 0
    """How many orders are out."""

    async def run(self, stop: asyncio.Event) -> None:
        """Go on until `stop` is set. Spark is killed then: whoever goes on in its storage finds where it was."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._spark(stop))
            tasks.create_task(self._traffic(stop))

    async def _spark(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            outcome = await self._run_once(stop)
            if stop.is_set():
                return
            failures = 0 if outcome.updates else failures + 1
            reason = self.play.options.scrub(outcome.failure or "it was ended").rstrip(".")
            if failures >= TRIES:
                self.say(f"Spark ended: {reason}. {TRIES} starts came to no update: it is left. To start it yourself:")
                project = self.play.project
                where = f"{project.folder} --storage {project.local_storage}"
                self.say(f"  penstock pipeline run {where} --continuous -s {self.url}")
                await stop.wait()
                return
            self.say(f"Spark ended: {reason}. Starting it again; it goes on where it was.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REST):
                    await stop.wait()

    async def _run_once(self, stop: asyncio.Event) -> Outcome:
        run = PipelineRun(self.play.project, self.play.options, RunOrder(continuous=True, conf=CONF))
        up = done = False
        try:
            await in_thread(run.start)
            while not stop.is_set() and await in_thread(run.poll, 0.2):
                outcome = run.outcome
                self.watch(outcome, None)
                if outcome.spark and not up:
                    up = True
                    self.say(f"Spark {outcome.spark} is up (pid {run.pid}).")
                if outcome.updates and not done:
                    done = True
                    self.say("The first update is done; the next ones follow by themselves.")
        except PenstockError as error:  # somebody else runs the pipeline, or a program is missing
            run.outcome.failure = str(error)
        finally:
            await in_thread(run.close)
        return run.outcome

    async def _traffic(self, stop: asyncio.Event) -> None:
        """Send orders until stopped; the producers stay open, and with them the gateway for old clients."""
        sending = asyncio.create_task(self._send())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                await stopped
        except PenstockError as error:
            self.say(f"The sample orders have ended: {error}")
            await stopped
        finally:
            sending.cancel()
            stopped.cancel()
            await asyncio.wait({sending, stopped}, timeout=LEAVE)

    async def _send(self) -> None:
        async with Traffic.open(self.url, self.play.ledger) as traffic:
            while self.sent < self.orders:
                await traffic.send([self.play.ledger.draw_next(datetime.now(UTC))])
                self.sent += 1
                await asyncio.sleep(EVERY)
            self.say(f"{self.sent:,} more orders are in, and no more come by themselves; the pipeline goes on.")
            await asyncio.Event().wait()
