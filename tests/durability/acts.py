"""What a server confirms besides plain publishes: batches, values, objects, acks, deletions; each noted as it is.

Read back with a client that shares nothing with ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats

import penstock
from penstock.buckets import KeyValue, ObjectStore
from penstock.connection import Connection
from penstock.jetstream import Outgoing, Publisher, assets
from penstock.jetstream.consume import Deliveries
from penstock.model import Consumer, Stream

__all__ = ["KINDS", "Act", "act", "prepare", "undone"]

_HELD = 2000  # messages that are there before, for acks and deletions
_BATCH = 5
_SILENT = 3.0  # seconds without a delivery after which nothing more comes: ack waits are shorter


@dataclass(frozen=True)
class Act:
    """Something that the server confirmed."""

    at: float
    kind: str
    place: int | str
    """A sequence, a key, a name or a subject."""
    body: bytes = b""


async def prepare(url: str, replicas: int) -> None:
    """Make what is acted on, while nobody traces."""
    async with await penstock.connect(url) as nc:
        fields: dict[str, Any] = {"num_replicas": replicas, "allow_direct": True}
        for name in ("ATOMIC", "FAST"):
            batched = {"allow_atomic": True, "allow_batched": True}
            await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], **batched, **fields))
        for name in ("ACKED", "DELETED", "PURGED"):
            await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], **fields))
            async with Publisher(nc, name) as publisher:
                sent = (Outgoing(f"{name}.{number}", b"%d" % number) for number in range(1, _HELD + 1))
                assert len([ack async for ack in publisher.publish_all(sent)]) == _HELD
        await assets.add_consumer(nc, "ACKED", Consumer(durable="c", ack_wait=1.0, num_replicas=replicas))
        await KeyValue.create_bucket(nc, "keys", replicas=replicas)
        await ObjectStore.create_bucket(nc, "files", replicas=replicas)


async def act(url: str, end: float) -> list[Act]:
    """Do some of everything until a moment, each kind in turn with itself; note what was confirmed as it is."""
    acts: list[Act] = []

    def note(kind: str, place: int | str, body: bytes = b"") -> None:
        acts.append(Act(time.time(), kind, place, body))

    async with await penstock.connect(url) as nc:
        await asyncio.gather(*(kind(nc, end, note) for kind in KINDS.values()))
    return acts


Note = Callable[..., None]


async def _batches(nc: Connection, end: float, note: Note, how: Any) -> None:
    name, number = how.upper(), 0
    async with Publisher(nc, name) as publisher:
        while time.time() < end:
            bodies = [b"%d:%d" % (number, place) for place in range(_BATCH)]
            ack = await publisher.publish_batch([Outgoing(f"{name}.x", body) for body in bodies], how=how)
            assert (ack.how, ack.count) == (how, _BATCH)
            for place, body in enumerate(bodies):
                note(how, ack.sequence - _BATCH + 1 + place, body)
            number += 1


async def _atomic(nc: Connection, end: float, note: Note) -> None:
    await _batches(nc, end, note, "atomic")


async def _fast(nc: Connection, end: float, note: Note) -> None:
    await _batches(nc, end, note, "fast")


async def _acks(nc: Connection, end: float, note: Note) -> None:
    async with Deliveries(nc, "ACKED", "c") as deliveries:
        async for delivery in deliveries:
            if time.time() > end:
                return
            await delivery.ack_sync()
            note("ack", delivery.sequence)


async def _values(nc: Connection, end: float, note: Note) -> None:
    bucket, number = await KeyValue.open(nc, "keys"), 0
    while time.time() < end:
        await bucket.put(f"k{number}", b"%d" % number)
        note("value", f"k{number}", b"%d" % number)
        number += 1


async def _objects(nc: Connection, end: float, note: Note) -> None:
    store, number = await ObjectStore.open(nc, "files"), 0
    while time.time() < end:
        body = b"%d " % number * 30_000
        await store.put(f"o{number}", body)
        note("object", f"o{number}", body)
        number += 1


async def _deletions(nc: Connection, end: float, note: Note) -> None:
    for sequence in range(1, _HELD, 2):
        if time.time() > end:
            return
        await assets.delete_message(nc, "DELETED", sequence, erase=sequence % 4 == 1)
        note("deletion", sequence)


async def _purges(nc: Connection, end: float, note: Note) -> None:
    for sequence in range(1, _HELD, 2):
        if time.time() > end:
            return
        await assets.purge_stream(nc, "PURGED", subject=f"PURGED.{sequence}")
        note("purge", sequence)


KINDS: dict[str, Callable[[Connection, float, Note], Awaitable[None]]] = {
    "atomic": _atomic,
    "fast": _fast,
    "ack": _acks,
    "value": _values,
    "object": _objects,
    "deletion": _deletions,
    "purge": _purges,
}
"""All that is done, by the name under which it is noted."""
_STREAMS = {"atomic": "ATOMIC", "fast": "FAST", "deletion": "DELETED", "purge": "PURGED"}


async def undone(url: str, acts: list[Act]) -> list[Act]:
    """Give what was confirmed and is not so any more."""
    client = await nats.connect(url.split(","))
    try:
        js: Any = client.jetstream()
        delivered = await _delivered(js)
        wrong = [item for item in acts if item.kind == "ack" and item.place in delivered]
        keys, files = await js.key_value("keys"), await js.object_store("files")
        for item in acts:
            found: bytes | None = None
            with suppress(nats.js.errors.NotFoundError, nats.js.errors.KeyNotFoundError):
                if item.kind == "value":
                    found = (await keys.get(item.place)).value
                elif item.kind == "object":
                    found = (await files.get(item.place)).data
                elif item.kind in _STREAMS:
                    found = (await js.get_msg(_STREAMS[item.kind], item.place)).data
            gone = item.kind in ("deletion", "purge")
            if item.kind != "ack" and (found is not None if gone else found != item.body):
                wrong.append(item)
        return wrong
    finally:
        await client.close()


async def _delivered(js: Any) -> set[int]:
    """Give the messages that the consumer delivers, in its own time, until nothing more comes."""
    reader, found = await js.pull_subscribe_bind(consumer="c", stream="ACKED"), set[int]()
    deadline = time.monotonic() + 30
    while True:
        try:
            for message in await reader.fetch(500, timeout=_SILENT):
                found.add(message.metadata.sequence.stream)
                await message.ack()
        except TimeoutError:
            return found
        except nats.js.errors.ServiceUnavailableError:  # nobody leads the consumer yet
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
