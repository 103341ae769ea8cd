"""Counts every row of a pipeline that is being killed all the time: stream to shuffle to stream, lost 0, repeated 0.

    python tests/spark/audit.py --kills 100 --nodes 3 --seed 7 --results audit.jsonl

A driver reads numbered messages from the stream IN, shuffles them and writes them to OUT exactly once. At seeded random
moments it is hit where it hurts: the driver, a Python worker, a task, a node of NATS (its leader, in a cluster), or
workers that sleep through the death of their driver and wake up as zombies. Between some starts more time passes than
the streams' duplicate window. In the end every number in OUT is counted.

Many kills are cut into rounds, each with a seed, servers and streams of its own, and counted by itself; with --results
a run that was interrupted goes on with the first round that is not in the file.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import MARKER_ROOT, is_marker
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.spark.audit_driver import PATIENCE, Driver, SessionDriver, send
from tests.spark.java import set_up_java

WINDOW = 1.0  # seconds of the streams' duplicate window
# What is killed, and how often. The death of a driver costs a start of Spark; where tasks fail it comes by itself, too.
KINDS = {"driver": 1, "worker": 2, "task": 2, "nats": 2, "zombie": 1}
# Many small batches of rows from one large batch of Spark's: a zombie has rows in its hands when it wakes up.
UNFENCED = {"batch": 3000, "atomic_rows": 2, "in_flight": 2, "partitions": 2, "arrow_rows": 2000}
STARTS = 6  # drivers that may fail one after the other before any stores a row: their tasks may be hit too often
BACKLOG = 6000  # rows that wait while the query is being hit: there must always be something to do


@dataclass
class Result:
    """What the audit found."""

    sent: int = 0
    lost: int = 0
    repeated: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    starts: int = 0
    batches: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether each row is there exactly once."""
        return self.lost == 0 and self.repeated == 0

    def __str__(self) -> str:
        hits = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.sent} rows, {self.kills.total()} kills ({hits}), {self.waits} waits past the duplicate window, "
            f"{self.starts} starts, {self.batches} batches, {self.seconds:.0f} s: lost {self.lost}, "
            f"repeated {self.repeated}"
        )

    def __add__(self, other: Result) -> Result:
        return Result(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def account(sent: int, found: Counter[bytes]) -> tuple[int, int]:
    """Count what is lost of the numbers below `sent`, and what is there more often than once."""
    lost = sum(1 for number in range(sent) if str(number).encode() not in found)
    return lost, found.total() - len(found)


def count(bulk: TaskConnection, stream: str) -> Counter[bytes]:
    """Count every row in a stream, markers left out."""
    found: Counter[bytes] = Counter()
    first = bulk.api(f"STREAM.INFO.{stream}")["state"]["first_seq"]
    for batch in bulk.read(stream, first, timeout=60):
        rows = zip(batch.column("subject").to_pylist(), batch.column("data").to_pylist(), strict=True)
        found.update(data for subject, data in rows if not is_marker(subject))
    return found


class Audit:
    """One audited run; everything in it follows from the seed, but for the exact moments."""

    out = "OUT"
    """The stream that is written to."""
    config: ClassVar[dict[str, Any]] = {}
    """What it has beside."""
    sink = SinkOptions(stream="OUT", prepare=True)
    """How it is written to."""

    def __init__(
        self,
        *,
        kills: int,
        seed: int = 1,
        nodes: int = 1,
        rows: int = BACKLOG,
        kinds: tuple[str, ...] = tuple(KINDS),
        failures: float = 0.1,
        unfenced: bool = False,
        settings: dict[str, int] | None = None,
        successor: SessionDriver | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.dice = random.Random(seed)
        self.seed = seed
        self.kills = kills
        self.nodes = nodes
        self.rows = rows
        self.kinds = kinds
        self.failures = failures
        self.unfenced = unfenced
        self.settings = settings or {}
        self.say = say
        self.mark = uuid.uuid4().hex
        self.bulk: TaskConnection | None = None
        self.drivers: list[Driver | SessionDriver] = []
        self.driver: Any = None
        self.spare: Driver | SessionDriver | None = successor
        self.prey: list[int] = []
        self.sent = 0
        self.result = Result()

    def run(self) -> Result:
        """Kill and count."""
        began = time.monotonic()
        result = self.result
        with tempfile.TemporaryDirectory(prefix="penstock-audit-", ignore_cleanup_errors=True) as folder:
            self.folder = Path(folder)
            # Only processes are killed here, not the machine, so the server need not sync before it acknowledges.
            with Server(nodes=self.nodes, sync="2m", start_timeout=PATIENCE) as self.server:
                try:
                    self._make_streams()
                    self._audit()
                    result.batches = len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))
                    bulk = self._connect()
                    result.sent = self.sent
                    result.lost, result.repeated = self._count(bulk)
                    bulk.close()
                finally:
                    self._end_everything()
        result.seconds = time.monotonic() - began
        return result

    def _count(self, bulk: TaskConnection) -> tuple[int, int]:
        """Count what is lost and what is repeated."""
        return account(self.sent, count(bulk, self.out))

    def _audit(self) -> None:
        self._keep_busy()
        for number in range(self.kills):
            kind = self._choose(number)
            began = time.monotonic()
            hit = False
            while not hit:
                self._have_a_driver_at_work()
                if kind in ("driver", "zombie"):
                    self._stand_by()
                    self._have_a_driver_at_work()
                self._wait_for_a_moment(kind)
                hit = getattr(self, f"_kill_{kind}")()
            self.result.kills[kind] += 1
            waits = self.dice.random() < 0.3
            if waits:
                time.sleep(WINDOW * 1.5)  # what the duplicate window remembered is forgotten
                self.result.waits += 1
            self.say(
                f"{time.strftime('%H:%M:%S')} seed {self.seed}: kill {number + 1}/{self.kills}, {kind}, "
                f"{time.monotonic() - began:.1f} s{', waited past the window' if waits else ''}; "
                f"{self._stored()} of {self.sent} rows"
            )
        self._finish()

    def _choose(self, number: int) -> str:
        """Choose what to kill: each kind once, then as the dice fall."""
        if number < len(self.kinds):
            return self.kinds[number]
        return self.dice.choices(self.kinds, [KINDS[kind] for kind in self.kinds])[0]

    def _finish(self) -> None:
        """Let the query come to its end; a run that fails, as queries do whose tasks failed too often, comes again."""
        self._wake()
        for attempt in range(6):
            if self.driver is None or not self.driver.alive:
                self._start(once=True)
            else:
                self.driver.tell({"finish": True})
            assert self.driver is not None
            if self.driver.finish() == 0:
                return
            self.say(f"the last run failed, attempt {attempt + 1}: {self.driver.last_words()}")
        raise AssertionError("the query does not come to its end")

    # -- streams --------------------------------------------------------------------------------------------------

    def _connect(self) -> TaskConnection:
        return TaskConnection(ConnectionOptions(self.server.url, connect_timeout=60, request_timeout=30))

    def _api(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask on a connection that is kept, and made again where its server was killed."""
        deadline = time.monotonic() + 120
        while True:
            try:
                self.bulk = self.bulk or self._connect()
                return self.bulk.api(method, body)
            except PenstockError:
                if time.monotonic() > deadline:
                    raise
                self._hang_up()
                time.sleep(0.1)

    def _hang_up(self) -> None:
        if self.bulk is not None:
            self.bulk.close()
            self.bulk = None

    def _make_streams(self) -> None:
        for name in {"IN", self.out}:
            self._api(
                f"STREAM.CREATE.{name}",
                {
                    "name": name,
                    "subjects": [f"{name}.>"],
                    "num_replicas": self.nodes,
                    "allow_direct": True,
                    "duplicate_window": int(WINDOW * 1e9),
                    **(self.config if name == self.out else {}),
                },
            )
        bulk = self._connect()
        prepare(bulk, self.sink)
        bulk.close()

    def _keep_busy(self) -> None:
        """Feed the query, so that there is always something to hit."""
        while self.sent - self._stored() < self.rows:
            bulk = self._connect()
            numbers = [str(number).encode() for number in range(self.sent, self.sent + self.rows // 2)]
            batch = pa.record_batch({"data": pa.array(numbers, pa.binary())})
            bulk.publish("IN", batch, mode="acks", subject="IN.x", timeout=120)
            self.sent += len(numbers)
            bulk.close()

    def _stored(self) -> int:
        found = self._api(f"STREAM.INFO.{self.out}", {"subjects_filter": "OUT.>"})["state"].get("subjects") or {}
        return sum(found.values())

    # -- drivers --------------------------------------------------------------------------------------------------

    def _new_driver(self) -> Driver:
        made = Driver(self.folder, f"{self.mark}-{len(self.drivers)}")
        self.drivers.append(made)
        return made

    def _stand_by(self) -> None:
        """Have the next driver ready beside the one that runs: a kill and what follows it are moments apart."""
        if self.spare is None:
            self.spare = self._new_driver()
        if not self.spare.wait_for("ready"):
            raise AssertionError(f"Spark does not start: {self.spare.last_words()}")

    def _have_a_driver_at_work(self) -> None:
        """Wait until a driver stores something, and start one where there is none or it failed by itself."""
        for _ in range(STARTS):
            if self.driver is None or not self.driver.alive:
                self._start()
            self._keep_busy()
            if self._made_progress():
                return
        raise AssertionError(f"{STARTS} drivers failed one after the other: {self.driver.last_words()}")

    def _start(self, *, once: bool = False) -> None:
        """Go on with the driver that stands by, or a new one; each runs the query in another way."""
        self._kill_driver()
        if not self.drivers:  # a successor is for later
            self.driver = self._new_driver()
        else:
            self.driver, self.spare = self.spare or self._new_driver(), None
        self.result.starts += 1
        settings = {
            "url": self.server.url,
            "checkpoint": str(self.folder / "checkpoint"),
            "seed": self.dice.randrange(10**6),
            "failures": self.failures,
            "partitions": self.dice.randint(1, 5),  # a replay meets other partitions than the batch was begun with
            "batch": self.dice.choice([300, 1000, 3000]),
            "atomic_rows": self.dice.choice([5, 50, 400]),
            "arrow_rows": self.dice.choice([200, 2000]),  # a task holds as many when it is hit
            "in_flight": self.dice.choice([2, 4]),
            "once": once,
            "unfenced": self.unfenced,
        }
        if once:
            settings |= {"batch": 5000, "atomic_rows": 400}  # only what is unfinished is done in the old way
        settings |= self.settings
        self.driver.tell(settings)

    def _made_progress(self) -> bool:
        """Wait until the running query stores something; False where it failed, its tasks having failed too often."""
        before = self._last_sequence()
        deadline = time.monotonic() + PATIENCE
        while self._last_sequence() == before:
            assert self.driver is not None
            if not self.driver.alive:
                return False
            if time.monotonic() > deadline:
                raise AssertionError(f"the query makes no progress: {self.driver.last_words()}")
            time.sleep(0.05)
        return True

    def _last_sequence(self) -> int:
        return int(self._api(f"STREAM.INFO.{self.out}")["state"]["last_seq"])

    def _wait_for_a_moment(self, kind: str) -> None:
        """Choose when to strike: just anywhen, or while a task is in the middle of its rows."""
        if kind != "zombie" and self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0.0, 1.0))
            return
        # Looking for workers takes longer than a task may last: zombies are chosen before the moment comes.
        self.prey = self.driver.workers() if kind == "zombie" else []
        seen = self._journals()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._journals() > seen:  # rows are being stored at this moment
                return
            seen = min(seen, self._journals())

    def _journals(self) -> int:
        """Count the batches of rows of the last micro-batch that are stored: their journals stay until the next."""
        asked = {"subjects_filter": f"{MARKER_ROOT}.{self.out}.*.*.*.*"}
        found = self._api(f"STREAM.INFO.{self.out}", asked)["state"].get("subjects") or {}
        return sum(1 for subject in found if len(subject.rpartition(".")[2]) == 24)

    def _end_everything(self) -> None:
        self._hang_up()
        for driver in self.drivers:
            driver.kill_everything()

    # -- kills: each says whether it hit something -----------------------------------------------------------------

    def _kill_driver(self) -> bool:
        if self.driver is None:
            return False
        alive = self.driver.alive
        self.driver.kill()
        self.driver = None
        return alive

    def _kill_worker(self) -> bool:
        assert self.driver is not None
        workers = self.driver.workers()
        return bool(workers) and send(self.dice.choice(workers), signal.SIGKILL)

    def _kill_task(self) -> bool:
        assert self.driver is not None
        number = self.dice.randrange(10**6)
        self.driver.tell({"task": number})
        return self.driver.wait_for(f"task: {number}\n") and self.driver.said(f"killed a task: {number}\n")

    def _kill_nats(self) -> bool:
        node = self._leader()
        node.kill()
        time.sleep(self.dice.uniform(0.0, 0.5))
        node.start()
        return True

    def _kill_zombie(self) -> bool:
        """Put the workers to sleep, kill their driver, let another one write, and wake them up."""
        self._wake()
        assert self.driver is not None
        slept = self.driver.put_workers_to_sleep(self.prey)
        self._start()
        self._made_progress()
        if self.dice.random() < 0.7:
            time.sleep(self.dice.uniform(0.0, 1.0))
            self._wake()  # the others sleep on until the next zombies, or the end: batches later
        return slept > 0

    def _wake(self) -> None:
        for driver in self.drivers:
            driver.wake_workers()

    def _leader(self) -> Any:
        if self.nodes == 1:
            return self.server.nodes[0]
        name = self._api(f"STREAM.INFO.{self.out}").get("cluster", {}).get("leader")
        return next((node for node in self.server.nodes if node.name == name), self.server.nodes[0])


def audit_in_rounds(
    kills: int, size: int, seed: int, results: Path | None = None, kind: type[Audit] = Audit, **options: Any
) -> Result:
    """Run rounds of `size` kills, each with the next seed, and add them up; those in the file of results are done."""
    say = options.get("say", lambda text: None)
    total = Result()
    known = _read_results(results, options)
    for number, start in enumerate(range(0, kills, size)):
        this = min(size, kills - start)
        result = known.get((seed + number, this))
        if result is None:
            result = kind(kills=this, seed=seed + number, **options).run()
            if results is not None:
                line = {"seed": seed + number, "kills": this, **_facts(options), "result": vars(result)}
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        total += result
        say(f"seed {seed + number}: {result}")
    return total


def _facts(options: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": options.get("nodes", 1), "unfenced": options.get("unfenced", False)}


def _read_results(file: Path | None, options: dict[str, Any]) -> dict[tuple[int, int], Result]:
    found = {}
    if file is not None and file.exists():
        for text in file.read_text().splitlines():
            line = json.loads(text)
            if line.items() >= _facts(options).items():
                fields = line["result"]
                found[line["seed"], line["kills"]] = Result(**{**fields, "kills": Counter(fields["kills"])})
    return found


def main() -> None:
    """Run an audit from the command bulk."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--round", type=int, default=25, help="how many kills before the rows are counted")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next one has the next number")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kills, separated by commas")
    parser.add_argument("--unfenced", action="store_true", help="break the sink: the audit must find repeated rows")
    parser.add_argument("--results", type=Path, help="a file that keeps what each round found; go on behind it")
    given = parser.parse_args()
    kinds = tuple(given.kinds.split(","))
    if strange := set(kinds) - set(KINDS):
        parser.error(f"--kinds has {', '.join(sorted(strange))}; there are {', '.join(KINDS)}")
    set_up_java()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the audit was told to end"))  # and takes everything along
    result = audit_in_rounds(
        given.kills,
        given.round,
        given.seed,
        given.results,
        nodes=given.nodes,
        kinds=kinds,
        unfenced=given.unfenced,
        settings=UNFENCED if given.unfenced else None,
        say=lambda text: print(text, flush=True),
    )
    print(result)
    sys.exit(0 if result.clean else 1)


if __name__ == "__main__":
    main()
