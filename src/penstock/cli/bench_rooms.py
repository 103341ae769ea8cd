"""`penstock bench kv|object|chunks|bus|channels|spark`: what Penstock builds on NATS, against the user's own server.

Buckets, streams, queues and clusters without a name are made for the run and removed again.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Any

import typer

from penstock.bench.client_job import ClientJob, Subjects
from penstock.cli.bench_flags import Amount, Large, Making, Rate, Sleep, jobs_of
from penstock.cli.bench_run import Bench, bench
from penstock.cli.bench_streams import remover, temporary
from penstock.cli.flags import flag
from penstock.cli.kv_show import bucket_name
from penstock.cli.late import assets
from penstock.cli.questions import confirm
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import InputError, NotFoundError, OptionError

__all__ = ["bus", "channels", "chunks", "kv_get", "kv_put", "object_get", "object_put", "read", "write"]

LARGEST = 1024 * 1024 * 1024  # of an object or a payload in chunks

Bucket = Annotated[
    str | None,
    flag("The bucket; without it, one is made and removed again.", "BUCKET", callback=bucket_name),
]
Randomize = Annotated[int, flag("Take keys below this number by chance; 0: one after the other.", "COUNT", min=0)]


# -- buckets ---------------------------------------------------------------------------------------------------------


async def kv_put(
    ctx: typer.Context,
    amount: Amount,
    rate: Rate,
    making: Making,
    bucket: Bucket = None,
    history: Annotated[int, flag("Values of a key that a new bucket keeps.", "COUNT", min=1, max=64)] = 1,
    randomize: Randomize = 0,
    sleep: Sleep = "0s",
) -> None:
    """Put values, each client one after the other."""
    from penstock.buckets import KeyValue

    fields: dict[str, Any] = {**making.fields(), "history": history}
    await _put(ctx, "kv_put", "Put values", KeyValue, fields, amount, rate, making, bucket, randomize, sleep)


async def object_put(
    ctx: typer.Context,
    amount: Large,
    rate: Rate,
    making: Making,
    bucket: Bucket = None,
    randomize: Randomize = 0,
    sleep: Sleep = "0s",
) -> None:
    """Put objects of --size, each client one after the other."""
    from penstock.buckets import ObjectStore

    await _put(
        ctx, "object_put", "Put objects", ObjectStore, making.fields(), amount, rate, making, bucket, randomize, sleep
    )


async def _put(
    ctx: typer.Context,
    work: str,
    what: str,
    kind: Any,
    fields: dict[str, Any],
    amount: Amount,
    rate: Rate,
    making: Making,
    bucket: str | None,
    randomize: int,
    sleep: str,
) -> None:
    payload, total, pause = _body(work, amount), rate.messages(amount), parse_duration(sleep, option="--sleep")
    if making.purge and bucket is None:
        raise InputError("--purge is given, and the bucket is a new one.", remedy="Name one with --bucket.")
    async with bench(ctx, what, amount) as run:
        name = await _bucket(run, kind, bucket, fields, making)
        about: dict[str, Any] = {
            "payload": payload,
            "name": name,
            "randomize": randomize,
            "sleep": pause,
            "patience": run.patience,
        }
        jobs = jobs_of(f"rooms.{work}", run.options, amount, total, throughput=rate.throughput, **about)
        run.show(await run.run(jobs, bucket=bucket or "its own"))


def _body(work: str, amount: Amount) -> bytes:
    return amount.payload(most=LARGEST) if work.startswith("object") else amount.payload()


async def _bucket(run: Bench, kind: Any, bucket: str | None, fields: dict[str, Any], making: Making) -> str:
    """Give the bucket to put into: the named one, made if it is missing, or one of its own."""
    if bucket is None:
        return await _own_bucket(run, kind, fields)
    try:
        status = await (await kind.open(run.client, bucket)).status()
    except NotFoundError:
        await kind.create_bucket(run.client, bucket, **fields)
        return bucket
    stream = status.stream
    if making.purge:
        confirm(f"Purge bucket {bucket} with {stream.messages:,} messages?", making.force)
        await assets.purge_stream(run.client, stream.name)
    elif stream.messages:
        confirm(f"Bucket {bucket} has {stream.messages:,} messages. Put over its keys 0, 1, 2 and so on?", making.force)
    return bucket


async def _own_bucket(run: Bench, kind: Any, fields: dict[str, Any]) -> str:
    name = run.new_name()

    async def remove() -> None:
        try:
            await kind.delete_bucket(run.client, name)
        except NotFoundError:
            return

    run.remove_later(f"Bucket {name}", remove)
    await kind.create_bucket(run.client, name, **fields)
    return name


async def kv_get(
    ctx: typer.Context, amount: Amount, bucket: Bucket = None, randomize: Randomize = 0, sleep: Sleep = "0s"
) -> None:
    """Get values that `bench kv put` put, each client one after the other."""
    from penstock.buckets import KeyValue

    await _get(ctx, "kv", "Get values", KeyValue, amount, bucket, randomize, sleep)


async def object_get(
    ctx: typer.Context, amount: Large, bucket: Bucket = None, randomize: Randomize = 0, sleep: Sleep = "0s"
) -> None:
    """Get objects that `bench object put` put, whole and checked, each client one after the other."""
    from penstock.buckets import ObjectStore

    await _get(ctx, "object", "Get objects", ObjectStore, amount, bucket, randomize, sleep)


async def _get(
    ctx: typer.Context, noun: str, what: str, kind: Any, amount: Amount, bucket: str | None, randomize: int, sleep: str
) -> None:
    payload, pause = _body(noun, amount), parse_duration(sleep, option="--sleep")
    async with bench(ctx, what, amount) as run:
        about: dict[str, Any] = {"payload": payload, "patience": run.patience}
        if bucket is None:
            name = await _own_bucket(run, kind, {})
            count = min(randomize or amount.msgs, amount.msgs)
            randomize = min(randomize, count)
            await run.run([ClientJob(f"rooms.{noun}_put", run.options, count, name=name, **about)], what="Fill")
        else:
            name = bucket
            await kind.open(run.client, bucket)
        about |= {"name": name, "randomize": randomize, "sleep": pause}
        jobs = jobs_of(f"rooms.{noun}_get", run.options, amount, amount.msgs, **about)
        run.show(await run.run(jobs, bucket=bucket or "its own"))


# -- chunks, bus and channels ----------------------------------------------------------------------------------------


async def chunks(
    ctx: typer.Context,
    amount: Large,
    digest: Annotated[bool, flag("Send a digest with each payload, which the receiver checks.")] = False,
) -> None:
    """Send payloads of --size in chunks to a receiver, each counted when the receiver has it whole."""
    payload = amount.payload(most=LARGEST)
    async with bench(ctx, "Chunks", amount) as run:
        about: dict[str, Any] = {
            "payload": payload,
            "subjects": Subjects(run.new_name()),
            "ids": digest,
            "patience": run.patience,
        }
        jobs = jobs_of("rooms.chunks", run.options, amount, amount.msgs, **about)
        helper = dataclasses.replace(jobs[0], work="rooms.chunks_receiver", payload=b"")
        run.show(await run.run(jobs, helpers=[helper], digest=digest))


async def bus(
    ctx: typer.Context,
    amount: Amount,
    elements: Annotated[int, flag("Elements of a reply; 0 for one whole response.", "COUNT", min=0)] = 0,
    window: Annotated[int, flag("Elements in flight; 0 for the plain protocol.", "COUNT", min=0, max=1024)] = 64,
    sleep: Sleep = "0s",
) -> None:
    """Send requests over the bus to a service of ours, each client one after the other."""
    payload, pause = amount.payload(most=512 * 1024), parse_duration(sleep, option="--sleep")
    async with bench(ctx, "Bus", amount) as run:
        about: dict[str, Any] = {"payload": payload, "name": run.new_name().replace("_", "-"), "patience": run.patience}
        about |= {"elements": elements, "window": window, "sleep": pause}
        jobs = jobs_of("rooms.bus", run.options, amount, amount.msgs, **about)
        helper = dataclasses.replace(jobs[0], work="rooms.bus_service", payload=b"")
        run.show(await run.run(jobs, helpers=[helper], elements=elements, window=window))


async def channels(
    ctx: typer.Context,
    amount: Amount,
    cluster: Annotated[
        str | None, flag("Cluster of a gateway that runs; without it, one of its own is started.", "ID")
    ] = None,
    sleep: Sleep = "0s",
) -> None:
    """Publish to channels of NATS Streaming through a gateway, then receive it; a channel for each client."""
    from penstock.channels.names import is_client, state_stream, stream_name

    if cluster is not None and not is_client(cluster):
        raise OptionError(f"--cluster is {cluster!r}.", remedy="Use letters, digits, - and _.", option="--cluster")
    payload, pause = amount.payload(), parse_duration(sleep, option="--sleep")
    async with bench(ctx, "Channels", amount) as run:
        base = run.new_name()
        name = cluster or base.replace("_", "-")
        about: dict[str, Any] = {"payload": payload, "subjects": Subjects(base), "name": name, "patience": run.patience}
        jobs = jobs_of("rooms.channels", run.options, amount, amount.msgs, mode="pub", sleep=pause, **about)
        made = [stream_name(name, f"{base}.{job.client}") for job in jobs] if cluster is None else []
        for stream in [*made, *([state_stream(name)] if cluster is None else [])]:
            run.remove_later(f"Stream {stream}", remover(run, stream))
        own = [] if cluster else [dataclasses.replace(jobs[0], work="rooms.channels_gateway", payload=b"")]
        sent = await run.run(jobs, helpers=own, what="Publish to channels", cluster=cluster or "its own")
        jobs = [dataclasses.replace(job, mode="sub") for job in jobs]
        got = await run.run(jobs, helpers=own, what="Receive from channels", cluster=cluster or "its own")
        run.show(sent, got)
    if cluster is not None:
        typer.echo(f"The channels {base}.0 to {base}.{len(jobs) - 1} stay in cluster {cluster}.", err=True)


# -- Spark -----------------------------------------------------------------------------------------------------------

Tasks = Annotated[int, flag("Spark's tasks at a time; 0: one for each core.", "COUNT", min=0, max=256)]


async def write(
    ctx: typer.Context,
    amount: Amount,
    guarantee: Annotated[str, flag("What the sink promises.", "exactly-once|at-least-once")] = "exactly-once",
    tasks: Tasks = 0,
) -> None:
    """Write rows of --size into a stream of its own with Spark on this machine."""
    if guarantee not in ("exactly-once", "at-least-once"):
        remedy = "Use exactly-once or at-least-once."
        raise OptionError(f"--guarantee is {guarantee!r}.", remedy=remedy, option="--guarantee")
    await _spark(ctx, "spark.write", f"Spark writes, {guarantee}", amount, tasks, mode=guarantee)


async def read(ctx: typer.Context, amount: Amount, tasks: Tasks = 0) -> None:
    """Read a stream of its own, filled with rows of --size, with Spark on this machine."""
    await _spark(ctx, "spark.read", "Spark reads", amount, tasks)


async def _spark(ctx: typer.Context, work: str, kind: str, amount: Amount, tasks: int, mode: str = "") -> None:
    from penstock.spark.sessions import check_java

    refuse_both("--clients", amount.clients != 1, "Spark, which has --tasks", True)
    payload = amount.payload()
    check_java()
    tasks = tasks or os.cpu_count() or 1
    async with bench(ctx, kind, amount) as run:
        subjects = Subjects(run.new_name())
        info = await temporary(run, subjects, {"storage": "file"})
        about: dict[str, Any] = {"payload": payload, "subjects": subjects, "name": info.name, "patience": run.patience}
        if work == "spark.read":
            job = ClientJob("streams.publish", run.options, amount.msgs, mode="fast", **about)
            await run.run([job], what="Fill")
        jobs = [ClientJob(work, run.options, amount.msgs, batch=tasks, mode=mode, **about)]
        run.show(await run.run(jobs, tasks=tasks))
