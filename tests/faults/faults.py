"""The kinds of faults: what each does to the world, how it is undone, and which change of the guarantees it is."""

from __future__ import annotations

import functools
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ServerError
from penstock.server import Node
from tests.faults import changes, clock
from tests.faults.plain import PlainError
from tests.faults.world import World, mount, unmount

WORKER, EXECUTOR = "pyspark.daemon", "CoarseGrainedExecutorBackend"  # what stands in the commands of Spark's processes
BESIDE = 5.0  # seconds for which two clients of one name may be there, if neither has to end
SHORT = 3.0  # seconds for which a fault is in the way that nobody has to wait out
JUMPS = (-86_400, -3_600, -30, 30, 3_600, 86_400)  # seconds by which a clock is set anew


@dataclass(frozen=True)
class Step:
    """One fault of a plan: when, what, to whom, for how long; `dice` in [0, 1) decides whatever else is open."""

    number: int
    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    dice: float = 0.0

    def line(self) -> dict[str, Any]:
        """Give it as it stands in a log."""
        return asdict(self)


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `begin` tells whether it hit something; `end` undoes it after the step's seconds."""

    change: str
    aims: str
    """What its target is: a client, one that can be there twice for a while ("double") or for ever ("twin"), one whose
    name another may take ("heir"), one that remembers what it did in a folder ("keeper"), a driver, one whose executors
    are processes ("executor"), a stream, a node, which mostly leads one ("node"), a stream that may be made anew ("open
    stream"), one of which messages may go ("loose stream"), one beside which a mirror may stand ("any stream"), what
    clients are permitted ("permission"), a disk, or nothing. An "ending" is only done at the end of a round."""
    begin: Callable[[World, Step], bool]
    end: Callable[[World, Step], None] | None = None
    weight: int = 4
    longest: float = 0.0
    nodes: tuple[int, ...] = (1, 3)
    why_not: Callable[[], str] = lambda: ""
    """Says why this machine cannot do it."""
    holds_nodes: bool = False
    """Whether nodes may not answer while it lasts: it ends before whatever has to ask them."""
    hinders: float = float("inf")
    """For how many of its seconds clients may get nothing done because of it."""

    @property
    def asks(self) -> bool:
        """Whether it needs nodes that answer."""
        return self.aims in ("open stream", "loose stream", "any stream", "ending", "disk") or self.change in (
            "restored",
            "moved",
            "copied",
        )


def _kill(world: World, step: Step) -> bool:
    return world.crew.kill(step.target)


def _sleep(world: World, step: Step) -> bool:
    return world.crew.signal(step.target, signal.SIGSTOP)


def _wake(world: World, step: Step) -> None:
    world.crew.signal(step.target, signal.SIGCONT)


def _second(world: World, step: Step) -> bool:
    return world.crew.replace(step.target)


def _first_wakes(world: World, step: Step) -> None:
    """Wake the first one once the second has done something: before that there is nothing to be wrong about."""
    world.wait_for_work(step.target, life=world.crew.clients[step.target].life, patience=60.0)
    world.crew.wake(step.target)


def _both(world: World, step: Step) -> None:
    """Let two be there for some seconds, once the second one has done something, and then one of them."""
    world.wait_for_work(step.target, life=world.crew.clients[step.target].life, patience=20.0)
    world.crew.wake(step.target, BESIDE)


def _kill_node(world: World, step: Step) -> bool:
    node = world.kept["hit", step.number] = world.node(step.target, step.dice)
    node.kill()
    return True


def _start_node(world: World, step: Step) -> None:
    if world.routes is not None:
        world.routes.heal()  # a node that hears nobody would not be ready, and nobody would let it hear meanwhile
    node = world.kept.pop(("hit", step.number))
    _make_room(world, node)  # one without any room does not begin
    node.start()


def _freeze_node(world: World, step: Step) -> bool:
    node = world.kept["hit", step.number] = world.node(step.target, step.dice)
    if not node.alive or node.paused:
        return False
    node.pause()
    return True


def _thaw_node(world: World, step: Step) -> None:
    with suppress(ServerError):
        world.kept.pop(("hit", step.number)).resume()


def _restart_all(world: World, step: Step) -> bool:
    for node in world.server.nodes:
        node.stop()
        node.start()
    return True


def _step_down(world: World, step: Step) -> bool:
    with suppress(PlainError, OSError), world.plain() as plain:
        plain.api(f"STREAM.LEADER.STEPDOWN.{step.target}")
        return True
    return False


def _isolate(world: World, step: Step) -> bool:
    assert world.routes is not None
    world.routes.isolate(world.node(step.target, step.dice).name)
    return True


def _join(world: World, step: Step) -> None:
    assert world.routes is not None
    world.routes.heal()


def _delay_routes(world: World, step: Step) -> bool:
    assert world.routes is not None
    world.routes.delay = 0.02 + 0.2 * step.dice
    return True


def _cut(world: World, step: Step) -> bool:
    world.wires.cut()
    return True


def _hold(world: World, step: Step) -> bool:
    world.wires.hold()
    return True


def _refuse(world: World, step: Step) -> bool:
    world.wires.refuse()
    return True


def _delay(world: World, step: Step) -> bool:
    world.wires.delay(0.02 + 0.2 * step.dice)
    return True


def _slow(world: World, step: Step) -> bool:
    """Have every client read slowly, so that what is for it piles up in its server."""
    world.wires.slow(0.005 + 0.02 * step.dice)
    return True


def _heal_wires(world: World, step: Step) -> None:
    world.wires.heal()


def _heal_and_cut(world: World, step: Step) -> None:
    world.wires.cut()
    world.wires.heal()


def _kill_one(word: str, world: World, step: Step) -> bool:
    return world.crew.signal_one_of(step.target, word, step.dice, signal.SIGKILL) != 0


def _stop_one(word: str, world: World, step: Step) -> bool:
    """Put one process of a driver to sleep."""
    pid = world.kept["hit", step.number] = world.crew.signal_one_of(step.target, word, step.dice, signal.SIGSTOP)
    return pid != 0


def _wake_one(world: World, step: Step) -> None:
    world.crew.wake_process(world.kept.pop(("hit", step.number)))


def _fill_disk(world: World, step: Step) -> bool:
    """Leave no room where the store of a node is."""
    node = world.kept["hit", step.number] = world.node(step.target, step.dice)
    disk = world.disks[world.server.nodes.index(node)]
    free = shutil.disk_usage(disk).free
    with suppress(OSError), (disk / "filler").open("wb") as file:
        for _ in range(free // 65536 + 2):
            file.write(bytes(65536))
    return True


def _make_room(world: World, node: Node) -> None:
    (world.disks[world.server.nodes.index(node)] / "filler").unlink(missing_ok=True)


def _empty_disk(world: World, step: Step) -> None:
    """Make room again; a server that met a full disk has to be started anew."""
    node = world.kept.pop(("hit", step.number))
    _make_room(world, node)
    node.stop()
    node.start()


def _move_clock(world: World, step: Step) -> bool:
    """Set the clock of a client anew; the time that only goes on goes on."""
    clock.set_clock(world.crew.clock(step.target), JUMPS[int(step.dice * len(JUMPS))])
    return True


def _set_clock_right(world: World, step: Step) -> None:
    clock.set_clock(world.crew.clock(step.target), 0)


@functools.cache
def _no_small_disk() -> str:
    """Try whether a small file system in memory can be had."""
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        if not mount(Path(folder)):
            return "no file system can be mounted here"
        unmount(Path(folder))
    return ""


KINDS: dict[str, Kind] = {
    "kill": Kind("overloaded", "client", _kill, weight=8),
    "sleep": Kind("overloaded", "client", _sleep, _wake, weight=6, longest=6.0),
    "second": Kind("copied", "double", _second, _first_wakes, weight=6, longest=4.0),
    "second beside": Kind("copied", "twin", _second, _both, weight=4, longest=4.0),
    "name taken": Kind("reused", "heir", _second, _first_wakes, weight=4, longest=4.0),
    "node kill": Kind("overloaded", "node", _kill_node, _start_node, weight=5, longest=2.0, holds_nodes=True),
    "node freeze": Kind("overloaded", "node", _freeze_node, _thaw_node, weight=4, longest=5.0, holds_nodes=True),
    "rolling restart": Kind("moved", "nothing", _restart_all, weight=2),
    "step down": Kind("moved", "stream", _step_down, weight=5, nodes=(3,)),
    "isolate": Kind("moved", "node", _isolate, _join, weight=5, longest=6.0, nodes=(3,), holds_nodes=True),
    "cut": Kind("overloaded", "nothing", _cut, weight=6),
    "hold": Kind("overloaded", "nothing", _hold, _heal_wires, weight=4, longest=5.0),
    "loss": Kind("overloaded", "nothing", _hold, _heal_and_cut, weight=4, longest=3.0),
    "slow": Kind("overloaded", "nothing", _slow, _heal_wires, weight=4, longest=6.0, hinders=SHORT),
    "slow routes": Kind(
        "overloaded",
        "nothing",
        _delay_routes,
        _join,
        weight=4,
        longest=6.0,
        nodes=(3,),
        hinders=SHORT,
        holds_nodes=True,  # with much traffic no leader is elected in time
    ),
    "refuse": Kind("overloaded", "nothing", _refuse, _heal_wires, weight=3, longest=4.0),
    "delay": Kind("overloaded", "nothing", _delay, _heal_wires, weight=3, longest=6.0, hinders=SHORT),
    "purge": Kind("trimmed", "loose stream", changes.purge, weight=2),
    "delete": Kind("trimmed", "loose stream", changes.delete, weight=2),
    "limits": Kind("trimmed", "loose stream", changes.limit, changes.unlimit, weight=2, longest=3.0),
    "recreate": Kind("replaced", "open stream", changes.recreate, weight=2),
    "restore store": Kind(
        "restored", "nothing", changes.copy_store, changes.put_store_back, weight=2, longest=8.0, nodes=(1,)
    ),
    "restore stream": Kind(
        "restored", "loose stream", changes.copy_stream, changes.put_stream_back, weight=2, longest=8.0
    ),
    "mirror": Kind("mirrored", "any stream", changes.mirror, changes.unmirror, weight=3, longest=8.0, hinders=SHORT),
    "revoke": Kind("refused", "permission", changes.deny, changes.allow, weight=2, longest=4.0),
    "old checkpoint": Kind(
        "restored", "keeper", functools.partial(changes.forget, 1), changes.remember, weight=3, longest=5.0
    ),
    "old checkpoints": Kind("restored", "ending", functools.partial(changes.forget, 4), changes.remember),
    "old folder": Kind("restored", "ending", changes.copy_folder, changes.put_folder_back),
    "kill worker": Kind("overloaded", "driver", functools.partial(_kill_one, WORKER), weight=6),
    "sleep worker": Kind(
        "overloaded", "driver", functools.partial(_stop_one, WORKER), _wake_one, weight=4, longest=8.0
    ),
    "kill executor": Kind("overloaded", "executor", functools.partial(_kill_one, EXECUTOR), weight=6),
    "sleep executor": Kind(
        "overloaded", "executor", functools.partial(_stop_one, EXECUTOR), _wake_one, weight=4, longest=8.0
    ),
    "second driver": Kind("copied", "driver", _second, _first_wakes, weight=3, longest=40.0),
    "disk full": Kind(
        "refused",
        "disk",
        _fill_disk,
        _empty_disk,
        weight=4,
        longest=4.0,
        why_not=_no_small_disk,
        holds_nodes=True,
    ),
    "clock jump": Kind(
        "overloaded",
        "client",
        _move_clock,
        _set_clock_right,
        weight=4,
        longest=20.0,
        why_not=clock.why_not,
        hinders=SHORT,
    ),
}
