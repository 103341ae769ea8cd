"""Changes of the world, each with what it may take by right, and how it is undone."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.checker import Taken
from tests.faults.plain import Plain, PlainError
from tests.faults.snapshots import restore, take_backup
from tests.faults.world import NAME_IN_USE, World

if TYPE_CHECKING:
    from tests.faults.faults import Step


def purge(world: World, step: Step) -> bool:
    begun = time.monotonic()
    last = world.look(step.target)
    world.api(f"STREAM.PURGE.{step.target}", {"seq": last + 1} if last is not None else None)
    state = world.asked(lambda plain: plain.state(step.target))
    world.taken.append(Taken(step.target, time.monotonic(), most=int(state["first_seq"]) - 1, begun=begun))
    return True


def delete(world: World, step: Step) -> bool:
    """Remove a few messages one by one."""
    world.look(step.target)
    state = world.asked(lambda plain: plain.state(step.target))
    first, last = int(state["first_seq"]), int(state["last_seq"])
    some = sorted({first + int((last - first) * share * step.dice) for share in (0.2, 0.5, 0.9, 1.0)} - {0})
    for sequence in some if last >= first else ():
        with suppress(PlainError, OSError), world.plain() as plain:
            plain.api(f"STREAM.MSG.DELETE.{step.target}", {"seq": sequence})
        world.taken.append(Taken(step.target, time.monotonic(), above=sequence - 1, most=sequence))
    return last >= first


def limit(world: World, step: Step) -> bool:
    """Have a stream hold few messages, or few bytes.

    Neither an age, which must not be below the window in which an id is known, nor a number for each subject, which
    takes messages out of the middle of which nobody could say afterwards that they went by right.
    """
    world.kept["limited", step.number] = time.monotonic()
    world.look(step.target)
    config = world.asked(lambda plain: plain.state(step.target))["config"]
    few = {"max_msgs": 20 + int(100 * step.dice)} if step.dice < 0.5 else {"max_bytes": int(400_000 * step.dice)}
    world.api(f"STREAM.UPDATE.{step.target}", {**config, **few})
    return True


def unlimit(world: World, step: Step) -> None:
    config = world.asked(lambda plain: plain.state(step.target))["config"]
    world.api(f"STREAM.UPDATE.{step.target}", {**config, "max_msgs": -1, "max_bytes": -1})
    state = world.asked(lambda plain: plain.state(step.target))
    begun = world.kept.pop(("limited", step.number))
    most = int(state["first_seq"]) - 1
    world.taken.append(Taken(step.target, time.monotonic(), most=most, begun=begun, blind=True))


def recreate(world: World, step: Step) -> bool:
    """Delete a stream and make it anew, with its consumers, as an operator would."""

    def consumers(plain: Any) -> list[dict[str, Any]]:
        listed = plain.api(f"CONSUMER.LIST.{step.target}").get("consumers") or []
        return [one["config"] for one in listed if one["config"].get("durable_name")]

    begun = time.monotonic()
    world.look(step.target)
    config = world.asked(lambda plain: plain.state(step.target))["config"]
    durable = world.asked(consumers)
    world.api(f"STREAM.DELETE.{step.target}")
    try:
        world.api(f"STREAM.CREATE.{step.target}", config)
    except PlainError as error:
        if error.code != NAME_IN_USE:  # the gateway of channels makes one anew by itself
            raise
    for one in durable:
        asked = {"stream_name": step.target, "config": one}
        world.api(f"CONSUMER.DURABLE.CREATE.{step.target}.{one['durable_name']}", asked)
    world.taken.append(Taken(step.target, time.monotonic(), begun=begun, blind=True))
    return True


def copy_store(world: World, step: Step) -> bool:
    world.copy_store()
    return True


def put_store_back(world: World, step: Step) -> None:
    world.put_store_back()


def copy_stream(world: World, step: Step) -> bool:
    """Keep a backup of a stream, with its consumers, as the API gives it."""
    world.kept["backup", step.number] = world.asked(lambda plain: take_backup(plain, step.target))
    return True


def put_stream_back(world: World, step: Step) -> None:
    """Delete a stream and restore its backup in its place: what came since may be gone, and nothing else."""
    backup, begun = world.kept.pop(("backup", step.number)), time.monotonic()
    world.look(step.target)

    def anew(plain: Plain) -> None:
        with suppress(PlainError):  # an attempt before this one has deleted it
            plain.api(f"STREAM.DELETE.{step.target}")
        restore(plain, step.target, backup)

    world.asked(anew)
    world.taken.append(Taken(step.target, time.monotonic(), above=backup.last, begun=begun, blind=True))


def mirror(world: World, step: Step) -> bool:
    """Have a mirror that answers for its stream, and holds less."""
    name = f"MIRROR_{step.number}"
    config = {"name": name, "mirror": {"name": step.target}, "mirror_direct": True, "allow_direct": True}
    world.api(f"STREAM.CREATE.{name}", {**config, "num_replicas": 1})
    wanted = int(world.asked(lambda plain: plain.state(step.target))["last_seq"])
    deadline = time.monotonic() + 10
    while int(world.asked(lambda plain: plain.state(name))["last_seq"]) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    world.api(f"STREAM.PURGE.{name}", {"keep": 3})
    return True


def unmirror(world: World, step: Step) -> None:
    with suppress(PlainError):
        world.api(f"STREAM.DELETE.MIRROR_{step.number}")


def deny(world: World, step: Step) -> bool:
    world.permit(step.target)
    return True


def allow(world: World, step: Step) -> None:
    world.permit()


def forget(most: int, world: World, step: Step) -> bool:
    """Set the checkpoint of a client back by some batches, for a while; nobody writes there meanwhile."""
    folder = Path(world.crew.clients[step.target].given["checkpoint"])
    with world.crew.resting(step.target):
        done = sorted((int(file.name) for file in folder.iterdir()), reverse=True)[:most]
        for number in done:
            (folder / str(number)).unlink(missing_ok=True)
    world.kept["forgotten", step.number] = done
    return bool(done)


def remember(world: World, step: Step) -> None:
    """Put the newest checkpoint back, as whoever was told that the old one is too old."""
    folder = Path(world.crew.clients[step.target].given["checkpoint"])
    with world.crew.resting(step.target):
        for number in world.kept.pop(("forgotten", step.number)):
            (folder / str(number)).touch()


def copy_folder(world: World, step: Step) -> bool:
    """Keep a copy of a checkpoint as it is while nobody writes there."""
    world.crew.kill(step.target)
    folder = Path(world.crew.clients[step.target].given["checkpoint"])
    if not folder.exists():
        return False
    shutil.copytree(folder, world.folder / "checkpoint-copy")
    return True


def put_folder_back(world: World, step: Step) -> None:
    """Put the older copy in its place."""
    folder = Path(world.crew.clients[step.target].given["checkpoint"])
    world.kept["set back"] = time.monotonic()  # who begins with the older one comes only then
    with world.crew.resting(step.target):
        shutil.rmtree(folder)
        shutil.copytree(world.folder / "checkpoint-copy", folder)
