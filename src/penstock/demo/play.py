"""The main job from end to end: traffic, the pipeline, a kill in the middle, the service, the audit and the report."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.bus import Bus
from penstock.connection import connect
from penstock.contexts import load_options
from penstock.demo import ORDERS
from penstock.demo.audit import Stage, audit_answers, audit_streams, audit_tables, read_revenue
from penstock.demo.ledger import Ledger, Volume
from penstock.demo.service import QUEUE, Shop, ask
from penstock.demo.traffic import Traffic
from penstock.errors import PipelineError
from penstock.pipelines.order import RunOrder
from penstock.pipelines.outcome import MicroBatch, Outcome
from penstock.pipelines.process import PipelineRun
from penstock.pipelines.project import Project
from penstock.pipelines.running import apply_topology

__all__ = ["CONF", "Play", "Result", "in_thread"]

EARLY = 0.4  # the share of the orders that is there before Spark is
MIDDLE = 0.3  # the share that comes while Spark starts
CONF = {
    # Java lives for a minute here, or has little to do: compiling well takes longer than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Spark gives a Python worker ten seconds to start, which a busy machine may need more than once.
    "spark.sql.pipelines.maxFlowRetryAttempts": "8",
}
PATIENCE = 600.0  # seconds for the whole pipeline
T = TypeVar("T")


@dataclass
class Result:
    """What the play came to."""

    ledger: Ledger
    stages: list[Stage] = field(default_factory=list)
    moments: list[tuple[float, int, int]] = field(default_factory=list)
    """How things stood at some time from the beginning: orders published, and orders read."""
    batches: list[MicroBatch] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    """What happened when, in seconds from the beginning."""
    begun: float = 0.0
    seconds: float = 0.0
    duplicates: int = 0
    top: list[dict[str, Any]] = field(default_factory=list)
    revenue: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Region, minute, cents and orders of each message in the stream REVENUE."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every stage is as it should be."""
        return bool(self.stages) and all(stage.ok for stage in self.stages)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run something in a thread; a caller that is cancelled waits for its end, so that what follows can undo it."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise


class Play:
    """The conductor: `run` plays it all on a NATS server that runs, with its files in a folder."""

    def __init__(
        self,
        url: str,
        folder: Path,
        volume: Volume | None = None,
        *,
        kills: int = 1,
        pace: float = 1.0,
        say: Callable[[str], None] = lambda text: None,
        shout: Callable[[str], None] | None = None,
        watch: Callable[[Outcome, int, int], None] = lambda outcome, waiting, read: None,
    ) -> None:
        self.ledger = Ledger.draw(volume or Volume())
        self.project = Project.load(ORDERS, storage=folder / "storage")
        self.warehouse = folder / "storage" / "warehouse"
        """Where the tables are."""
        self.result = Result(self.ledger)
        self._url, self._say, self._watch = url, say, watch
        self._shout = shout or say  # for what nobody should miss
        self.options = load_options(url)
        """How to reach the server that it plays on."""
        self._kills = kills
        self._pace = pace  # how much time the producers take, against what is nice to look at
        self._read = 0
        self._marks: dict[str, int] = {}
        self._warm = asyncio.Event()

    async def run(self) -> Result:
        """Play it."""
        self.result.begun = time.time()
        self._begin = time.monotonic()
        await asyncio.to_thread(apply_topology, self.project, self.options)
        async with Traffic.open(self._url, self.ledger) as traffic:
            await traffic.send_customers()
            early = int(len(self.ledger.orders) * EARLY)
            await traffic.send_orders(early)
            self.note(f"{early:,} orders are in, and they go on coming; starting Spark.")
            coming = asyncio.create_task(self._send_rest(traffic))
            try:
                await self._pipeline(traffic, coming)
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            self.result.duplicates = traffic.orders.duplicates
        async with self.service() as bus:
            await self._audit(bus)
        self.result.seconds = time.monotonic() - self._begin
        return self.result

    def note(self, text: str, *, loud: bool = False) -> None:
        """Say what happens, and keep it for the report."""
        self.result.notes.append((time.monotonic() - self._begin, text))
        (self._shout if loud else self._say)(text)

    async def _send_rest(self, traffic: Traffic) -> None:
        await traffic.send_documents()
        count = len(self.ledger.documents)
        self.note(f"{count:,} scanned {'document is' if count == 1 else 'documents are'} in, as chunks.")
        await traffic.send_orders(int(len(self.ledger.orders) * MIDDLE), seconds=8.0 * self._pace)
        # The rest comes while Spark has work in hand, so that a kill hits it in the middle.
        await self._warm.wait()
        await traffic.send_orders(len(self.ledger.orders), seconds=6.0 * self._pace)
        orders, repeats = len(self.ledger.orders), traffic.orders.duplicates
        self.note(f"All {orders:,} orders are in; {repeats:,} repeats were known by their id.")

    # -- the pipeline and its death ----------------------------------------------------------------------------------

    async def _pipeline(self, traffic: Traffic, coming: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + PATIENCE
        for attempt in range(self._kills + 1):
            run = PipelineRun(self.project, self.options, RunOrder(continuous=True, pause=0.2, conf=CONF))
            try:
                await in_thread(run.start)
                await self._follow(run, traffic, coming, attempt < self._kills, deadline)
            finally:
                await in_thread(run.close)
                self.result.batches += run.outcome.history
                self._moment(traffic)
            if attempt < self._kills:
                self.note(f"Killed Spark with SIGKILL in the middle of a batch (pid {run.pid}).", loud=True)
                self.note("Starting it again; it goes on where it was.")

    async def _follow(
        self, run: PipelineRun, traffic: Traffic, coming: asyncio.Task[None], doomed: bool, deadline: float
    ) -> None:
        ready, stopping, fresh = False, False, 0
        while await in_thread(run.poll, 0.2):
            outcome = run.outcome
            self._moment(traffic)
            self._take(outcome)
            self._watch(outcome, traffic.position - self._read, self._read)
            if outcome.spark and not ready:
                ready = True
                self.result.versions["Spark"] = outcome.spark
                self.note(f"Spark {outcome.spark} is up (pid {run.pid}).")
            if outcome.updates:
                self._warm.set()
            if coming.done():
                coming.result()  # a failure of the producers ends the play
            if doomed and self._in_the_middle(outcome, traffic):
                return  # the caller closes the run, and closing is a kill
            if not doomed and not stopping and coming.done() and self._read >= traffic.position:
                # One more update after everything was read, so that all that follows from it is written.
                fresh = fresh or outcome.updates + 1
                if outcome.updates >= fresh:
                    stopping = True
                    self.note("Everything is read and written; stopping Spark.")
                    run.stop()
            if time.monotonic() > deadline:
                what = f"The pipeline is not done after {PATIENCE:g} s."
                raise PipelineError(what, remedy=f"See {run.log_path}.", log=str(run.log_path))
        self._take(run.outcome)
        run.check()

    def _in_the_middle(self, outcome: Outcome, traffic: Traffic) -> bool:
        """Tell whether one update is done, and another has written something and has more to do."""
        flow = outcome.flows.get("incoming")
        return outcome.updates >= 1 and flow is not None and flow.status == "RUNNING" and traffic.position > self._read

    def _take(self, outcome: Outcome) -> None:
        flow = outcome.flows.get("incoming")
        if flow is not None:
            self._marks |= flow.streams
            self._read = sum(mark - 1 for mark in self._marks.values())

    def _moment(self, traffic: Traffic) -> None:
        at, published = time.monotonic() - self._begin, traffic.position
        self.result.moments.append((at, published, min(self._read, published)))

    # -- what is asked of the results --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[Bus]:
        """Serve the results on the bus, and give a bus to ask on."""
        async with (
            await connect(self.options.replace(name="shop service")) as client,
            Bus(client, {QUEUE: 1}) as bus,
            bus.serve(QUEUE, Shop(client, self.warehouse)),
        ):
            yield bus

    async def _audit(self, bus: Bus) -> None:
        sums = self.ledger.top()
        customer = max(sums, key=lambda name: sums[name])
        orders = await ask(bus, "orders", customer=customer)
        top = self.result.top = await ask(bus, "top-customers", limit="10")
        self.note(f"The service on the bus answered: {customer} has {len(orders)} orders.")
        self.result.revenue = await asyncio.to_thread(read_revenue, self.options)
        streams = await asyncio.to_thread(audit_streams, self.ledger, self.options)
        tables = await asyncio.to_thread(audit_tables, self.ledger, self.warehouse)
        self.result.stages = [*streams[:3], *tables, *streams[3:], *audit_answers(self.ledger, customer, orders, top)]
