"""What the tests of chunks share: connections, receivers that collect, and chunks written by hand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import penstock
from penstock.chunks import Archive, Assembler, PersistentPublisher, Publisher, Reason
from penstock.connection import Connection
from penstock.errors import AssemblyError
from penstock.server import Server
from tests.support import eventually


@dataclass
class Receiver:
    """An assembler on a connection of its own, with what it delivered and what it reported."""

    nc: Any
    subject: str
    assembler: Assembler = None  # type: ignore[assignment]
    got: list[tuple[str, bytes, str]] = field(default_factory=list)
    errors: list[AssemblyError] = field(default_factory=list)

    async def handle(self, message_id: str, data: Any, subject: str) -> None:
        self.got.append((message_id, data if isinstance(data, bytes) else data.read(), subject))

    async def wait(self, count: int = 1) -> list[tuple[str, bytes, str]]:
        """Give what was delivered once there is so much of it."""
        await eventually(lambda: len(self.got) >= count, f"{count} messages")
        return self.got

    async def error(self, reason: Reason, count: int = 1) -> AssemblyError:
        """Give the last error of this reason once there are so many."""
        await eventually(lambda: self.reasons().count(reason) >= count, f"an error {reason}")
        return [item for item in self.errors if item.reason == reason][-1]

    def reasons(self) -> list[str]:
        return [error.reason for error in self.errors]

    async def chunk(
        self,
        body: bytes,
        offset: int,
        total: int | None = None,
        *,
        message_id: str = "m",
        subject: str = "",
        **headers: str | None,
    ) -> None:
        """Publish one chunk written by hand; further headers replace or, where None, remove what belongs there."""
        written: dict[str, str | None] = {
            "X-Msg-Id": message_id,
            "X-Offset": str(offset),
            "X-Flags": "0" if total is None else "1",
            "X-Total-Size": None if total is None else str(total),
            **{"X-" + name.replace("_", "-"): value for name, value in headers.items()},
        }
        kept = {name: value for name, value in written.items() if value is not None}
        await self.nc.publish(subject or self.subject, body, headers=kept or None)

    async def settle(self) -> None:
        """Wait until everything that was published by hand has been taken."""
        marker = str(uuid.uuid4())
        before = len(self.got)
        await self.chunk(b"", 0, 0, message_id=marker)
        await eventually(lambda: any(item[0] == marker for item in self.got[before:]), "the marker")
        self.got = [item for item in self.got if item[0] != marker]


@asynccontextmanager
async def receiving(server: Server, subject: str, *, listen: str = "", **options: Any) -> AsyncIterator[Receiver]:
    """Receive on a subject, and report everything."""
    nc = await penstock.connect(server.url)
    receiver = Receiver(nc, subject)
    options.setdefault("handler", receiver.handle)
    receiver.assembler = Assembler(nc, on_error=receiver.errors.append, **options)
    try:
        await receiver.assembler.subscribe(listen or subject)
        yield receiver
    finally:
        await receiver.assembler.close()
        await nc.close()
        assert receiver.assembler.held_bytes == (0, 0)
        assert receiver.assembler.unfinished == 0
        assert not [task for task in asyncio.all_tasks() if "Assembler" in repr(task)]


# -- payloads in streams ----------------------------------------------------------------------------

CHUNK = 128 * 1024


@pytest.fixture
async def archive(nc: Connection, unique: Callable[..., str]) -> AsyncIterator[Archive]:
    """A stream for payloads, which is gone after the test."""
    made = await Archive.create(nc, unique("CHUNKS"), unique("chunks"))
    yield made
    await nc.jetstream().delete_stream(made.stream)


async def message_count(archive: Archive) -> int:
    """Ask how many messages the stream of an archive holds."""
    return (await archive._nc.jetstream().stream_info(archive.stream)).messages


async def consumer_count(archive: Archive) -> int:
    """Ask how many consumers it has."""
    return (await archive._nc.jetstream().stream_info(archive.stream)).consumers


def storing(archive: Archive, chunk_size: int = CHUNK, **options: Any) -> PersistentPublisher:
    """Give a publisher into the stream of an archive."""
    return Publisher.persistent(archive._nc, archive.stream, chunk_size, **options)
