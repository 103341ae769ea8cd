"""Buckets, chunks, the bus and channels, each as programs use them: on the asyncio connection."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from penstock.bench.client_job import ClientJob
from penstock.bench.pace import Pace
from penstock.bench.results import Sample
from penstock.bench.worker import Gate
from penstock.connection import Connection, connect
from penstock.errors import BusError, DataLossError, DeadlineError, NoRespondersError, RemoteProtocolError

__all__ = [
    "bus",
    "bus_service",
    "channels",
    "channels_gateway",
    "chunks",
    "chunks_receiver",
    "kv_get",
    "kv_put",
    "object_get",
    "object_put",
]

_IN_FLIGHT = 256  # messages to a channel that wait for their acks


@asynccontextmanager
async def _connected(job: ClientJob) -> AsyncIterator[Connection]:
    nc = await connect(job.options)
    try:
        yield nc
    finally:
        await nc.close()


class _Timed:
    """One operation after the other, each timed."""

    def __init__(self, job: ClientJob, gate: Gate) -> None:
        self._gate, self._pace, self.taken = gate, Pace(job), array("d")

    async def __call__(self, operation: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        result = await operation
        self.taken.append(time.perf_counter() - began)
        self._gate.step(1)
        await self._pace.keep_async()
        return result


# -- buckets ---------------------------------------------------------------------------------------------------------


async def kv_put(job: ClientJob, gate: Gate) -> Sample:
    """Put values, one after the other."""
    from penstock.buckets import KeyValue

    async with _connected(job) as nc:
        kv, timed = await KeyValue.open(nc, job.name), _Timed(job, gate)
        await gate.ready_async()
        for key in job.each_key():
            await timed(kv.put(key, job.payload))
        return gate.done(job, timed.taken)


async def kv_get(job: ClientJob, gate: Gate) -> Sample:
    """Get values, one after the other."""
    from penstock.buckets import KeyValue

    async with _connected(job) as nc:
        kv, timed, size = await KeyValue.open(nc, job.name), _Timed(job, gate), 0
        await gate.ready_async()
        for key in job.each_key():
            size += len((await timed(kv.get(key))).value)
        sample = gate.done(job, timed.taken)
        sample.bytes = size
        return sample


async def object_put(job: ClientJob, gate: Gate) -> Sample:
    """Put objects, one after the other."""
    from penstock.buckets import ObjectStore

    async with _connected(job) as nc:
        store, timed = await ObjectStore.open(nc, job.name), _Timed(job, gate)
        await gate.ready_async()
        for key in job.each_key():
            info = await timed(store.put(key, job.payload))
            if info.size != job.size:
                raise RemoteProtocolError(f"Object {key} has {info.size:,} bytes of {job.size:,}.")
        return gate.done(job, timed.taken)


async def object_get(job: ClientJob, gate: Gate) -> Sample:
    """Get objects whole, one after the other; each is checked against its digest."""
    from penstock.buckets import ObjectStore

    async with _connected(job) as nc:
        store, timed, size = await ObjectStore.open(nc, job.name), _Timed(job, gate), 0
        await gate.ready_async()
        for key in job.each_key():
            size += len(await timed(store.fetch(key)))
        sample = gate.done(job, timed.taken)
        sample.bytes = size
        return sample


# -- chunks ----------------------------------------------------------------------------------------------------------


async def chunks(job: ClientJob, gate: Gate) -> Sample:
    """Send payloads in chunks; each counts when the receiver says that it has it whole."""
    from penstock.chunks import Publisher

    async with _connected(job) as nc:
        heard: asyncio.Queue[int] = asyncio.Queue()

        async def told(message: Any) -> None:
            heard.put_nowait(int(message.data))

        subject = f"{job.subjects.base}.{job.client}"
        await nc.subscribe(f"{job.subjects.base}.done.{job.client}", cb=told)
        await nc.flush()
        publisher, timed = Publisher(nc, digest=job.ids), _Timed(job, gate)

        async def send() -> None:
            await publisher.publish(subject, job.payload)
            try:
                async with asyncio.timeout(job.patience):
                    got = await heard.get()
            except TimeoutError:
                what = f"The receiver did not say within {job.patience:g} s that it has a payload."
                raise DeadlineError(what, remedy="Is it overloaded?", seconds=job.patience) from None
            if got != job.size:
                raise DataLossError(f"A payload came with {got:,} bytes of {job.size:,}.")

        await gate.ready_async()
        for _ in range(job.messages):
            await timed(send())
        return gate.done(job, timed.taken)


async def chunks_receiver(job: ClientJob, gate: Gate) -> Sample:
    """Receive the payloads of all clients, and say of each how many bytes came."""
    from penstock.chunks import Assembler

    async with _connected(job) as nc:

        async def handle(message_id: str, data: bytes, subject: str) -> None:
            base, _, client = subject.rpartition(".")
            await nc.publish(f"{base}.done.{client}", str(len(data)).encode())

        async with Assembler(nc, timeout=job.patience, handler=handle, spool_above=None) as assembler:
            await assembler.subscribe(f"{job.subjects.base}.*")
            await nc.flush()
            await gate.ready_async()
            await asyncio.to_thread(gate.stopped.wait)
        return gate.done(job, messages=0)


# -- the bus ---------------------------------------------------------------------------------------------------------


async def bus(job: ClientJob, gate: Gate) -> Sample:
    """Send requests one after the other; each is answered whole, or in elements that are counted."""
    from penstock.bus import Bus, Request

    request = Request(job.name, query={"elements": str(job.elements), "size": str(job.size)})
    async with _connected(job) as nc, Bus(nc, {job.name: 1}, window=job.window) as asking:

        async def ask() -> None:
            reply = await asking.request(request, timeout=job.patience)
            if reply.response is not None:
                if reply.response.status >= 400 or (not job.elements and len(reply.response.data) != job.size):
                    raise BusError(f"The answer was {reply.response.status}.", remedy="Who else serves this queue?")
                return
            async with reply:
                came = [len(element.data) async for section in reply.sections() async for element in section]
            if len(came) != job.elements or sum(came) != job.elements * job.size:
                raise DataLossError(f"{len(came):,} of {job.elements:,} elements came.")

        timed = _Timed(job, gate)
        await gate.ready_async()
        for _ in range(job.messages):
            await timed(ask())
        count = job.messages * max(job.elements, 1)
        return gate.done(job, timed.taken, messages=count)


async def bus_service(job: ClientJob, gate: Gate) -> Sample:
    """Answer the requests of the bus benchmark."""
    from penstock.bus import Bus, Request, Response, Sender

    async def handle(request: Request, sender: Sender) -> None:
        elements, data = int(request.query["elements"][0]), bytes(int(request.query["size"][0]))
        if not elements:
            await sender.respond(Response(200, "application/octet-stream", data))
            return
        async with sender.sections() as out:
            out.array("bench")
            for _ in range(elements):
                await out.send(data)

    async with _connected(job) as nc, Bus(nc, {job.name: 1}) as serving, serving.serve(job.name, handle):
        await nc.flush()
        await gate.ready_async()
        await asyncio.to_thread(gate.stopped.wait)
        return gate.done(job, messages=0)


# -- channels --------------------------------------------------------------------------------------------------------


async def channels(job: ClientJob, gate: Gate) -> Sample:
    """Publish to a channel with acks in flight, or receive from it, as the job's mode says."""
    from penstock.channels import Client

    channel = f"{job.subjects.base}.{job.client}"
    client_id = f"bench-{job.mode}-{job.client}"
    try:
        made = await Client(job.options, cluster_id=job.name, client_id=client_id).connect()
    except NoRespondersError as error:
        remedy = f"Run `penstock channels serve --cluster-id {job.name}`, or leave --cluster out."
        raise NoRespondersError(error.what, remedy=remedy, **error.facts) from None
    try:
        await gate.ready_async()
        if job.mode == "pub":
            waiting: deque[asyncio.Future[None]] = deque()
            pace = Pace(job)
            for _ in range(job.messages):
                waiting.append(await made.publish_async(channel, job.payload))
                if len(waiting) > _IN_FLIGHT:
                    await waiting.popleft()
                gate.step(1)
                await pace.keep_async()
            await asyncio.gather(*waiting)
        else:
            await _receive(made, channel, job, gate)
        return gate.done(job)
    finally:
        await made.close()


async def _receive(client: Any, channel: str, job: ClientJob, gate: Gate) -> None:
    got, moved = 0, asyncio.Event()

    async def handle(message: object) -> None:
        nonlocal got
        got += 1
        gate.step(1)
        moved.set()

    subscription = await client.subscribe(channel, handle, start="First")
    while got < job.messages:
        moved.clear()
        try:
            async with asyncio.timeout(job.patience):
                await moved.wait()
        except TimeoutError:
            what = f"{got:,} of {job.messages:,} messages came, and nothing more for {job.patience:g} s."
            raise DeadlineError(what, seconds=job.patience) from None
    await subscription.unsubscribe()


async def channels_gateway(job: ClientJob, gate: Gate) -> Sample:
    """Serve the channels of this run, under a cluster id of its own."""
    from penstock.channels import Gateway

    gateway = Gateway(job.options, cluster_id=job.name, replicas=1)
    async with gateway:
        await gate.ready_async()
        await asyncio.to_thread(gate.stopped.wait)
        return gate.done(job, messages=0)
