"""Stored payloads in a cluster whose leader dies while they are stored, and while they are read."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import penstock
from penstock.buckets import ObjectStore
from penstock.chunks import Archive, Publisher
from penstock.connection import Connection, api_request
from penstock.connection.asking import patiently
from penstock.errors import AssemblyError, ConflictError, PenstockError
from penstock.server import Server
from tests.support import eventually

DATA = os.urandom(24 * 1024 * 1024)
CHUNK = 256 * 1024


async def kill_leader(nc: Connection, server: Server, stream: str) -> None:
    """Kill the node that leads a stream, and start it again."""
    leader = (await nc.jetstream().stream_info(stream)).placed.leader
    node = next(item for item in server.nodes if item.name == leader)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)


async def move_leader(nc: Connection, server: Server, stream: str) -> None:
    """Have another node lead a stream."""
    await api_request(nc, f"STREAM.LEADER.STEPDOWN.{stream}")


async def object_with_another_leader(nc: Connection, server: Server, change: Any) -> None:
    """Put an object while its bucket gets another leader, and read it while it gets one once more."""
    store = await ObjectStore.create_bucket(nc, "DOCS", replicas=3)
    await store.put("x", b"before")
    killing: list[asyncio.Task[Any]] = []

    def progress(sent: int) -> None:
        if sent > len(DATA) // 3 and not killing:
            killing.append(asyncio.ensure_future(change(nc, server, store.stream)))

    try:
        await store.put("x", DATA, progress=progress)
    except PenstockError:  # told: a put is begun anew a few times, and an election may take longer
        await killing[0]
        assert await patiently(lambda: store.fetch("x"), 30, nc, nobody=True) == b"before"
        await patiently(lambda: store.put("x", DATA), 60, nc, nobody=True)
    await killing[0]
    async with store.get("x") as stored:
        got = bytearray(await stored.read(1024 * 1024))
        again = asyncio.ensure_future(change(nc, server, store.stream))
        async for piece in stored:
            got += piece
        await again
    assert got == DATA


async def stored_as(archive: Archive, name: str, data: bytes) -> bool:
    """Tell whether a message can be read; behind a change of the leader a node that lags may answer, and says so."""
    try:
        found = await archive.fetch(name)
    except AssemblyError as error:
        if error.reason != "missing":
            raise
        return False
    assert found == data
    return True


async def test_a_leader_that_dies_costs_time_and_nothing_else() -> None:
    """Storing goes on with the next leader, each chunk once; reading gets every byte, whoever answers.

    Of two writers of one id one is refused, and a consumer goes on when stream and consumer have other leaders. An
    object is put and read so, too.
    """
    with Server(nodes=3, sync="2m") as server:
        async with await penstock.connect(server.url, reconnect_wait=0.1) as nc:
            archive = await Archive.create(nc, "LARGE", "large", num_replicas=3)
            killing: list[asyncio.Task[Any]] = []

            def progress(sent: int) -> None:
                if sent > len(DATA) // 3 and not killing:
                    killing.append(asyncio.ensure_future(kill_leader(nc, server, "LARGE")))

            await Publisher.persistent(nc, "LARGE", CHUNK, timeout=120.0).publish(
                "large", DATA, message_id="m", progress=progress
            )
            await killing.pop()
            assert (await nc.jetstream().stream_info("LARGE")).messages == len(DATA) // CHUNK
            async with archive.open("m") as message:
                got = bytearray(await message.read(1024 * 1024))
                again = asyncio.ensure_future(kill_leader(nc, server, "LARGE"))
                async for piece in message:
                    got += piece
                await again
            assert got == DATA
            delivered: list[str] = []
            async with archive.consume(lambda message_id, data: delivered.append(message_id), "worker"):
                for number in range(4):
                    name = f"m{number}"
                    for method in ("STREAM.LEADER.STEPDOWN.LARGE", "CONSUMER.LEADER.STEPDOWN.LARGE.worker"):
                        with suppress(PenstockError):  # there is none to step down just now
                            await api_request(nc, method)
                    results = await asyncio.gather(
                        *(
                            Publisher.persistent(nc, "LARGE", CHUNK, timeout=60.0).publish(
                                "large", data, message_id=name
                            )
                            for data in (DATA[: 4 * CHUNK], DATA[-4 * CHUNK :])
                        ),
                        return_exceptions=True,
                    )
                    assert [type(result) for result in results].count(ConflictError) == 1, results
                    wanted = DATA[: 4 * CHUNK] if results[0] == name else DATA[-4 * CHUNK :]
                    await eventually(partial(stored_as, archive, name, wanted), f"all of {name}", timeout=60)
                await eventually(lambda: len(delivered) == 5, "all of them", timeout=60)
            assert sorted(delivered) == ["m", "m0", "m1", "m2", "m3"]
            await object_with_another_leader(nc, server, move_leader)


@pytest.mark.heavy
async def test_an_object_outlives_leaders_that_die() -> None:
    """A put is begun anew, or told and nothing changed; reading goes on with the next leader."""
    with Server(nodes=3, sync="2m") as server:
        async with await penstock.connect(server.url, reconnect_wait=0.1) as nc:
            await object_with_another_leader(nc, server, kill_leader)
