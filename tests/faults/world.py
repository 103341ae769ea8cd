"""The world of a round: real nodes, wires to them, clients, and a plain client that looks at what is there."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from penstock.server import Node, Server
from tests.faults.checker import Taken
from tests.faults.crew import Crew
from tests.faults.history import Operation, read_history
from tests.faults.net import Wires
from tests.faults.plain import Plain, PlainError, Stored
from tests.faults.routes import Routes
from tests.live.reloading import reload

LEADS = 0.6  # how often a fault of a node is one of the node that leads
NOTHING = "fault.nothing"
NAME_IN_USE = 10058  # by a stream of another configuration; asking again does not help


def permissions(publish: str = NOTHING, subscribe: str = NOTHING) -> str:
    """Give the permissions of the clients, who may do everything but what is named."""
    return f'permissions: {{publish: {{deny: ["{publish}"]}}, subscribe: {{deny: ["{subscribe}"]}}}}'


USERS = (
    "authorization { users: [\n"
    '  {user: "plain", password: "plain"}\n'
    f'  {{user: "app", password: "app", {permissions()}}}\n'
    "] }\n"
)


def mount(folder: Path, megabytes: int = 256) -> bool:
    """Put a small file system in memory at a folder; False if that is not allowed here."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "penstock-faults", str(folder)]
    folder.mkdir(exist_ok=True)
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def unmount(folder: Path) -> None:
    """Take it away again."""
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)


class World:
    """One server of one or three nodes, and everything that stands around it."""

    def __init__(self, folder: Path, seed: int, nodes: int = 1, *, small: bool = False) -> None:
        self.folder, self.seed, self.nodes = folder, seed, nodes
        self.store = folder / "store"
        self.store.mkdir()
        self.disks = [self.store] if nodes == 1 else [self.store / f"n{number}" for number in range(1, nodes + 1)]
        """Where each node has its store."""
        self._mounted = [disk for disk in self.disks if small and mount(disk)]
        self.kept: dict[str, Any] = {}
        """What a fault keeps for a later one, such as the copy of a store."""
        self.taken: list[Taken] = []
        self.names: dict[str, Callable[[Stored], str | None]] = {}
        """How the operation of a message is found, for streams that are looked at before something is taken there."""
        self.seen: dict[tuple[str, str | None], set[int]] = defaultdict(set)
        """Where operations stood in these streams when they were looked at: sequences, by stream and operation."""
        self.server = Server(
            nodes=nodes, store=self.store, sync="2m", auth=False, config=USERS, on_loss="tell", start_timeout=180
        )
        self.routes = Routes(self.server) if nodes > 1 else None
        with self.routes.starting() if self.routes else nullcontext():
            self.server.start()
        self.wires = Wires(self.server)
        self.mark = f"{seed}-{time.monotonic_ns()}"
        self.crew = Crew(folder, self.mark, {"url": self.url, "seed": seed})

    @property
    def url(self) -> str:
        """Where clients under test connect: through the wires."""
        return ",".join(
            f"nats://app:app@{urlsplit(one).netloc.rpartition('@')[2]}" for one in self.wires.url.split(",")
        )

    def plain(self, timeout: float = 10.0) -> Plain:
        """Look for yourself, not through the wires."""
        return Plain(",".join(f"nats://plain:plain@{node.address}" for node in self.server.nodes), timeout)

    def asked(self, question: Callable[[Plain], Any], patience: float = 90.0) -> Any:
        """Ask the server until it answers: it may be down, or without a leader, for a while."""
        deadline = time.monotonic() + patience
        while True:
            try:
                with self.plain() as plain:
                    return question(plain)
            except (PlainError, OSError) as error:
                if time.monotonic() > deadline or getattr(error, "code", 0) == NAME_IN_USE:
                    raise
                time.sleep(0.2)

    def api(self, method: str, body: Any = None) -> dict[str, Any]:
        """Ask JetStream, patiently."""
        found: dict[str, Any] = self.asked(lambda plain: plain.api(method, body))
        return found

    def make_stream(self, name: str, **config: Any) -> None:
        """Create a stream below its own name."""
        fields = {"name": name, "subjects": [f"{name}.>"], "num_replicas": self.nodes, "allow_direct": True, **config}
        fields.setdefault("duplicate_window", 120_000_000_000)
        self.api(f"STREAM.CREATE.{name}", fields)

    def leader(self, stream: str = "") -> Node:
        """Give the node that leads a stream, or the first that is there."""
        with suppress(PlainError, OSError):
            if self.nodes > 1 and stream:
                with self.plain() as plain:
                    name = plain.state(stream)["leader"]
                return next((node for node in self.server.nodes if node.name == name), self.server.nodes[0])
        return self.server.nodes[0]

    def node(self, stream: str, dice: float) -> Node:
        """Choose a node: more often the one that leads a stream, else one of the others; any if no stream is named."""
        nodes = self.server.nodes
        if stream:
            leader = self.leader(stream)
            others = [node for node in nodes if node is not leader]
            if dice < LEADS or not others:
                return leader
            nodes, dice = others, (dice - LEADS) / (1 - LEADS)
        return nodes[int(dice * len(nodes))]

    def permit(self, denied: str = "") -> None:
        """Forbid the clients what is named, such as "publish IN.>" or "subscribe core.data", or allow everything."""
        after = permissions(**dict([denied.split()] if denied else []))
        for node in self.server.nodes:
            if node.alive and not node.paused:
                text = node._config.read_text()
                line = next(line for line in text.splitlines() if 'user: "app"' in line)
                there = line[line.index("permissions:") : line.rindex("}")]
                if there != after:
                    reload(SimpleNamespace(nodes=[node]), there, after)  # type: ignore[arg-type]

    def copy_store(self) -> None:
        """Keep a copy of the store as it is now; the one node rests meanwhile, and what it says then is the copy's."""
        node = self.server.nodes[0]
        with self.wires.closed():
            node.stop()
            copy = self.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.store, copy, ignore=shutil.ignore_patterns("filler"))
            node.start()
            states = {name: self.asked(lambda plain, name=name: plain.state(name)) for name in self.streams()}
            self.kept["store"] = states

    def put_store_back(self) -> None:
        """Put the copy in the place of the store."""
        node, begun = self.server.nodes[0], time.monotonic()
        with self.wires.closed():
            for name in self.names:
                self.look(name)
            node.stop()
            for inside in self.store.iterdir():
                shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
            shutil.copytree(self.folder / "copy", self.store, dirs_exist_ok=True)
            node.start()
            now = time.monotonic()
        for name, state in self.kept["store"].items():
            self.taken.append(Taken(name, now, above=int(state["last_seq"]), begun=begun))

    def look(self, stream: str) -> int | None:
        """Write down what a stream holds whose acknowledgements name no sequence; give its last sequence."""
        if stream not in self.names:
            return None
        found = self.asked(lambda plain: plain.read(stream))
        for message in found:
            self.seen[stream, self.names[stream](message)].add(message.sequence)
        return max((message.sequence for message in found), default=0)

    def takes(self, stream: str, one: Operation) -> bool:
        """Tell whether something of an operation stood in a stream where a change took it by right.

        What was acknowledged before somebody looked, and was not there, is not excused by what was done after that.
        """
        mine = self.seen.get((stream, one.op), ())
        changes = [taken for taken in self.taken if taken.stream == stream]
        if not mine:
            return any(taken.may_take_unseen(one) for taken in changes)
        return any(taken.takes(replace(one, facts={"seq": sequence})) for taken in changes for sequence in mine)

    def wait_for_work(self, client: str, *, life: int = 1, patience: float = 300.0) -> bool:
        """Wait until a client has got something acknowledged, or received something, in a life or in a later one."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            done = read_history([file] if (file := self.folder / f"{client}.jsonl").exists() else [])
            if any(one.outcome == "ok" and one.life >= life for one in done.operations):
                return True
            if any(note["life"] >= life for note in done.said("got")):
                return True
            time.sleep(0.2)
        return False

    def streams(self) -> list[str]:
        """Name every stream."""
        return list(self.api("STREAM.NAMES").get("streams") or [])

    def heal(self) -> None:
        """Undo whatever still holds: nodes run, wires carry, clients work, permissions are there."""
        self.wires.heal()
        if self.routes is not None:
            self.routes.heal()
        for node in self.server.nodes:
            if node.paused:
                node.resume()
            node.start()
        self.permit()
        self.crew.heal()

    def close(self) -> None:
        """Take everything down."""
        self.crew.close()
        self.wires.close()
        self.server.stop()
        if self.routes is not None:
            self.routes.close()
        for disk in self._mounted:
            unmount(disk)
