"""Power failures and damaged files: what was acknowledged and synced is there, and what is damaged is told."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DataLossError
from penstock.wire.bulk import BulkConnection
from tests.durability import damage
from tests.durability.acts import KINDS
from tests.durability.disk import Disk
from tests.durability.power import STREAM, traced
from tests.durability.trace import Tracer

needs_strace = pytest.mark.skipif(not Tracer.found(), reason="strace is not installed")


@needs_strace
def test_what_was_acknowledged_survives_a_power_failure() -> None:
    """With `sync="always"`, everything acknowledged before the moment is there, however little of the rest survives."""
    with traced(seconds=1.0) as run:
        assert run.acks
        assert run.syncs
        for names, torn in (("strict", None), ("kept", random.Random(1))):
            found = run.fail((run.begun + run.ended) / 2, names, torn)  # type: ignore[arg-type]  # one of the two
            assert found.acked
            assert found.lost == 0


@needs_strace
@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.heavy)])
def test_what_else_was_confirmed_survives_a_power_failure(nodes: int) -> None:
    """Batches, values, objects, deletions and purges that were confirmed are so afterwards.

    Acks of consumers are confirmed before the server writes them down, some tenth of a second later, also with
    `sync="always"`: a power failure in between has those messages delivered again, and loses none.
    """
    with traced(nodes=nodes, seconds=1.0 * nodes, acting=True) as run:
        assert {item.kind for item in run.acts} == KINDS.keys()
        for names, share in (("strict", 0.4), ("kept", 0.8)):
            found = run.fail(run.begun + (run.ended - run.begun) * share, names)  # type: ignore[arg-type]  # as above
            assert found.lost == 0
            assert found.undone.keys() <= {"ack"}, found.undone
            assert found.undone.get("ack", 0.0) < 1.0, found.undone


@needs_strace
def test_lazy_sync_loses_what_was_acknowledged() -> None:
    """With lazy sync a power failure takes acknowledged messages: the trace sees what was not synced."""
    with traced(sync="2m", seconds=1.0) as run:
        found = run.fail(run.ended)
        assert found.lost == found.acked > 0


@needs_strace
@pytest.mark.heavy
@pytest.mark.parametrize("nodes", [1, 3])
def test_many_power_failures(nodes: int) -> None:
    """At any moment, with any names and any part of what was not synced, nothing acknowledged is lost."""
    chance = random.Random(7)
    with traced(nodes=nodes, seconds=10.0) as run:
        for number in range(20):
            moment = run.begun + (run.ended - run.begun) * chance.random()
            names: Any = ("kept", "strict")[number % 2]
            assert run.fail(moment, names, chance if number % 4 > 1 else None).lost == 0


def test_a_disk_keeps_what_was_synced(tmp_path: Path) -> None:
    """The model of a disk: bytes and names survive a sync that began after them and had ended, and nothing else."""
    folder = tmp_path / "store"
    folder.mkdir()
    old, new = f"{folder}/old", f"{folder}/new"

    def written(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    def path_of(number: int, path: str) -> str:
        return f"{number}<{written(path)}>"

    lines = [
        f'7 1.0 openat(AT_FDCWD</>, "{written(new)}", O_RDWR|O_CREAT, 0640) = {path_of(5, new)} <0.1>',
        f'7 2.0 write({path_of(5, new)}, "{written("one")}", 3) = 3 <0.1>',
        f"7 3.0 fsync({path_of(5, new)} <unfinished ...>",
        f'8 3.1 write({path_of(5, new)}, "{written("two")}", 3) = 3 <0.1>',
        "7 3.5 <... fsync resumed>) = 0 <1.0>",
        f'7 5.0 pwrite64({path_of(6, old)}, "{written("X")}", 1, 1) = 1 <0.1>',
        f'7 6.0 renameat(AT_FDCWD</>, "{written(new)}", AT_FDCWD</>, "{written(old)}") = 0 <0.1>',
    ]
    log = tmp_path / "trace"
    log.write_text("\n".join(lines) + "\n")
    disk = Disk(folder, {old: b"old"}, log)
    assert disk.at(1.5) == {old: b"old", new: b""}
    assert disk.at(1.5, "strict") == {old: b"old"}
    assert disk.at(3.9) == {old: b"old", new: b""}, "the sync had not ended"
    assert disk.at(4.5) == disk.at(4.5, "strict") == {old: b"old", new: b"one"}, "it does not cover what came later"
    assert disk.at(9.0) == {old: b"one"}
    assert disk.at(9.0, "strict") == {old: b"old", new: b"one"}, "nobody synced the new name"
    assert disk.at(9.0, "kept", random.Random(3))[old].startswith(b"one")
    disk.write(disk.at(4.5), tmp_path / "copy")
    assert (tmp_path / "copy" / "new").read_bytes() == b"one"


def test_a_damaged_message_is_not_passed_over(tmp_path: Path) -> None:
    """A server that passes over a damaged message without a word is found out: it counts one more than it gives."""
    store = tmp_path / "store"
    with penstock.Server(store=store, sync="2m") as server:
        asyncio.run(damage.fill(server.url, 1, 60))
    damage.flip(damage.blocks(store), random.Random(1))
    with penstock.Server(store=store, sync="2m", on_loss="tell") as server:
        bulk = BulkConnection(penstock.ConnectionOptions(server.url))
        try:
            for options in ({}, {"start": 5, "end": 50}, {"payloads": False}):
                with pytest.raises(DataLossError, match="counts 1 more messages"):
                    list(bulk.read(STREAM, **options))
            assert sum(batch.num_rows for batch in bulk.read(STREAM, 1, 10)) == 9
            told: list[DataLossError] = []
            assert sum(batch.num_rows for batch in bulk.read(STREAM, on_loss=told.append)) == 59
            assert [(error.start, error.end) for error in told] == [(1, 61)]
        finally:
            bulk.close()
