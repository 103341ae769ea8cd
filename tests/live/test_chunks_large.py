"""A file far larger than the memory that it takes, from disk to disk."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

import penstock
from penstock.chunks import Archive, Assembler, Publisher
from penstock.connection import api_request

MB = 1024 * 1024


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def make(path: Path, size: int) -> str:
    """Write a file in which no two blocks are alike, and give its digest."""
    digest, block = hashlib.sha256(), os.urandom(MB)
    with path.open("wb") as file:
        for number in range(size // MB):
            piece = number.to_bytes(8, "big") + block[8:]
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


async def take(message, path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        async for piece in message:
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


SIZES = [pytest.param(160 * MB, id="small"), pytest.param(4096 * MB, id="4GB", marks=pytest.mark.heavy)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_large_file_passes_with_flat_memory(server, unique, tmp_path, size):
    """Sent and received in one process, the memory that a file takes does not depend on its size."""
    expected = await asyncio.to_thread(make, tmp_path / "sent", size)
    subject = unique("large")
    nc, other = await penstock.connect(server.url), await penstock.connect(server.url)
    async with Assembler(other, spool_dir=tmp_path) as assembler, assembler.open(subject) as inbox:
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        publishing = asyncio.ensure_future(Publisher(nc, digest=True).publish(subject, tmp_path / "sent"))
        message = await anext(inbox)
        assert await take(message, tmp_path / "received") == expected
        await publishing
        assert memory("VmHWM") - before < 150 * MB
        assert assembler.counts.failures == {}
    await nc.close()
    await other.close()


@pytest.mark.parametrize("size", SIZES)
async def test_a_large_stored_file_passes_with_flat_memory(server, unique, tmp_path, size):
    """The same through a stream: stored, then read back piece by piece."""
    expected = await asyncio.to_thread(make, tmp_path / "sent", size)
    nc = await penstock.connect(server.url)
    archive = await Archive.create(nc, unique("LARGE"), unique("large"))
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    publisher = Publisher.persistent(nc, archive.stream)
    message_id = await publisher.publish(await archive.subject(), tmp_path / "sent")
    async with archive.open(message_id) as message:
        assert await take(message, tmp_path / "received") == expected
    assert memory("VmHWM") - before < 150 * MB
    await api_request(nc, f"STREAM.DELETE.{archive.stream}")
    await nc.close()
