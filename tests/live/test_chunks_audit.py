"""Writers that share ids, break off, are cut off and try again, with one payload or two: each success is the truth."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock.chunks import Archive, Publisher
from penstock.errors import ConflictError, PenstockError
from penstock.server import Server
from tests.live.cable import relay

CHUNK = 32 * 1024


class Audit:
    """Lets two writers loose on one id after the other, and compares what they were told with what is stored."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server, self._random = server, random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def run(self, stream: str, subject: str, ids: int) -> None:
        choice = self._random
        async with (
            relay(self._server) as one,
            relay(self._server) as two,
            await penstock.connect(one.url, reconnect_wait=0.05, request_timeout=1.0) as first,
            await penstock.connect(two.url, reconnect_wait=0.05, request_timeout=1.0) as second,
            await penstock.connect(self._server.url) as nc,
        ):
            window = choice.choice(["100ms", "2m"])
            archive = await Archive.create(nc, stream, subject, storage="memory", duplicate_window=window)
            for number in range(ids):
                payloads = self._payloads()
                options = {"digest": choice.random() < 0.6, "timeout": 10.0}

                async def cut() -> None:
                    for _ in range(choice.randint(0, 2)):
                        await asyncio.sleep(choice.random() * 0.1)
                        choice.choice((one, two)).cut()

                writers = [
                    self._write(Publisher.persistent(client, stream, CHUNK, **options), subject, f"m{number}", payloads)
                    for client in (first, second)
                ]
                results = await asyncio.gather(*writers, cut())
                told = [data for result in results[:2] for data in result]
                found: Any = None
                with suppress(PenstockError):
                    found = await archive.fetch(f"m{number}")
                assert found is None or found in payloads
                assert all(data == found for data in told), f"m{number}: a success that is not the truth"
            await nc.jetstream().delete_stream(stream)

    def _payloads(self) -> tuple[bytes, bytes]:
        choice = self._random
        size = CHUNK * choice.randint(1, 20) - choice.randint(0, CHUNK - 1)
        one = choice.randbytes(size)
        place = choice.randint(0, size)
        other = (choice.randbytes(size), one[:place] + choice.randbytes(size - place), one[:place], one + b"x")
        return one, choice.choice(other)

    async def _write(self, publisher: Any, subject: str, name: str, payloads: tuple[bytes, bytes]) -> list[bytes]:
        """Publish a few times, one of two payloads; give those that are said to be stored."""
        choice, stored = self._random, []
        for _ in range(choice.randint(1, 4)):
            data = choice.choice((payloads[0], *payloads))
            work = asyncio.ensure_future(publisher.publish(subject, self._source(data), message_id=name))
            if choice.random() < 0.35:
                await asyncio.sleep(choice.random() * 0.1)
                work.cancel()
            try:
                await work
            except (asyncio.CancelledError, PenstockError) as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen["stored"] += 1
                stored.append(data)
        return stored

    async def _source(self, data: bytes):
        for start in range(0, len(data), 3 * CHUNK):
            yield data[start : start + 3 * CHUNK]
            if self._random.random() < 0.2:
                await asyncio.sleep(self._random.random() * 0.02)


async def test_every_success_of_many_writers_is_the_truth(server, unique):
    """Whoever was told that a payload is stored under an id finds that payload there, whole."""
    audit = Audit(server, 11)
    await audit.run(unique("AUDIT"), unique("audit"), 8)
    assert audit.seen["stored"]
    assert audit.seen[ConflictError.__name__]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
async def test_every_success_of_very_many_writers_is_the_truth(server, unique, seed):
    """The same, for longer."""
    await Audit(server, seed).run(unique("AUDIT"), unique("audit"), 100)
