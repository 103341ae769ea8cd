"""Random histories of streams on a real server, read from its store: row by row what the server itself gives."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import Server, connect
from penstock.connection import Connection
from penstock.store.history import open_store
from tests.live.store_worlds import ask, held, make, said


def config_of(chance: random.Random) -> dict[str, Any]:
    """Choose limits and compression."""
    config: dict[str, Any] = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}
    for name, share, values in (
        ("compression", 0.5, ["s2"]),
        ("max_msgs_per_subject", 0.4, [1, 2, 5]),
        ("max_msgs", 0.3, [10, 100, 1000]),
        ("max_bytes", 0.6, [60_000, 120_000]),  # blocks of 32 KB
        ("first_seq", 0.3, [1000]),
    ):
        if chance.random() < share:
            config[name] = chance.choice(values)
    return config


def body_of(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return chance.randbytes(chance.choice([0, 3, 20, 700]))
    return b"z" * chance.choice([0, 10, 2000])


async def publish(nc: Connection, name: str, chance: random.Random, ttls: list[str]) -> None:
    """Publish some messages, on few or many subjects, small and large, with what headers may do."""
    subjects = chance.choice([3, 30, 300])
    for number in range(chance.choice([1, 5, 50, 300])):
        headers = {}
        if chance.random() < 0.2:
            headers["A"] = str(number)
        if chance.random() < 0.01:
            headers["Nats-Rollup"] = "sub"
        if chance.random() < 0.05:
            headers["Nats-TTL"] = chance.choice(ttls)
        await nc.publish(f"{name}.{chance.randrange(subjects)}", body_of(chance), headers=headers or None)
    await nc.flush()


async def live(nc: Connection, name: str, chance: random.Random, ttls: list[str]) -> None:
    """Let a stream live for some steps."""
    await make(nc, name, **config_of(chance))
    for _ in range(chance.randrange(3, 15)):
        state = (await ask(nc, f"STREAM.INFO.{name}"))["state"]
        low, high = state["first_seq"], state["last_seq"]
        step = chance.random()
        if step < 0.6 or high < low:
            await publish(nc, name, chance, ttls)
        elif step < 0.75:
            for _ in range(chance.choice([1, 10, 100])):
                question = b'{"seq":%d,"no_erase":%s}' % (chance.randint(low, high), chance.choice([b"true", b"false"]))
                await nc.request(f"$JS.API.STREAM.MSG.DELETE.{name}", question)  # it may be gone, which is no matter
        elif step < 0.8:
            await ask(nc, f"STREAM.PURGE.{name}")
        elif step < 0.87:
            await ask(nc, f"STREAM.PURGE.{name}", filter=f"{name}.{chance.randrange(30)}")
        elif step < 0.93:
            await ask(nc, f"STREAM.PURGE.{name}", seq=chance.randint(max(low, 1), high + 1))
        else:
            await ask(nc, f"STREAM.PURGE.{name}", keep=chance.randrange(1, 50))


def check(folder: Path, seed: int, streams: int, *, kill: bool, ttls: list[str], settle: float) -> None:
    """Let streams live, end the server, and compare what their store holds with what the server had given.

    A server that is killed has not written down all that limits and purges removed: the next one has some of it again,
    and may miss some that limits then remove. Here, nothing that was given is missing; what is there again is what the
    next server has under that sequence, if it has it.
    """
    names = [f"S{number}" for number in range(streams)]

    async def work(url: str) -> None:
        async with await connect(url) as nc:
            await asyncio.gather(*(live(nc, name, random.Random(f"{seed} {name}"), ttls) for name in names))
            # What expires, expires before the newest message: whether a later one has, no store can tell.
            await asyncio.sleep(settle)
            for name in names:
                await nc.jetstream().publish(f"{name}.last", b"the newest")

    store, copy = folder / f"store{seed}", folder / f"copy{seed}"
    with Server(store=store, sync="2m") as server:
        asyncio.run(work(server.url))
        given = {name: said(server.url, name) for name in names}
        if kill:
            for node in server.nodes:
                node.kill()
    shutil.copytree(store, copy)
    with Server(store=store, sync="2m", on_loss="tell") as server:
        for name in names:
            history = open_store(copy, name)
            found = held(history)
            if not kill:
                assert found == given[name], (seed, name)
            else:
                before, again = ({row[3]: row for row in rows} for rows in (given[name], said(server.url, name)))
                assert [row for row in found if row[3] in before] == given[name], (seed, name)
                assert all(row == again.get(row[3], row) for row in found), (seed, name)
            assert history.messages == len(found), (seed, name)
            assert not history.damage, (seed, name)


@pytest.mark.parametrize("kill", [False, True], ids=["in order", "killed"])
def test_random_histories(tmp_path: Path, kill: bool) -> None:
    """Whatever happened, the store of a server that ended, or was killed, holds what the server had given."""
    check(tmp_path, 1, 12, kill=kill, ttls=["1h", "never"], settle=0.0)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kill", [False, True], ids=["in order", "killed"])
def test_many_random_histories(tmp_path: Path, kill: bool) -> None:
    """The same of hundreds of histories, with messages that expire."""
    for seed in range(2, 32):
        check(tmp_path, seed, 12, kill=kill, ttls=["1s", "1h", "never"], settle=2.5)
