"""`penstock bench js`: publishing into a stream and reading from it, with the words of `nats bench js`.

Without --stream and --create a stream of its own is made and removed again. A stream that was there before is only
emptied with --purge, and only if somebody says yes.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.client_job import Subjects
from penstock.cli.bench_flags import Amount, Making, Rate, Sending, Sleep, Subject, jobs_of, parse_headers
from penstock.cli.bench_run import Bench, bench
from penstock.cli.bench_streams import declared, filled, made, temporary
from penstock.cli.flags import Force, consumer_name, flag, flag_table, stream_name, table_flag
from penstock.cli.late import assets, model
from penstock.cli.message_parts import check_subjects
from penstock.cli.questions import confirm
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import InputError, NotFoundError, OptionError
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    from penstock.info import StreamInfo

__all__ = ["async_", "atomic", "consume", "fast", "fetch", "get_batch", "get_sync", "ordered", "sync"]

DEFAULT = "benchstream"
CONSUMER = "nats-bench"
_LARGEST_BATCH = 10_000

Stream = Annotated[str | None, flag("The stream.", "STREAM", callback=stream_name)]
Purge = Annotated[bool, flag("Take all messages out of the stream first, and put new ones in; asks.")]
Filters = Annotated[list[str] | None, flag("Only messages of these subjects; may be repeated.", "SUBJECT")]
Batch = Annotated[int, flag("How many messages to ask for at once.", "COUNT", min=1, max=_LARGEST_BATCH)]


# -- publishing ------------------------------------------------------------------------------------------------------


@flag_table
class Into:
    """The stream that is published to."""

    stream: str | None = table_flag(
        "A stream that is there, or the name for --create; without it, one is made and removed again.",
        "STREAM",
        callback=stream_name,
    )
    create: bool = table_flag("Create the stream, benchstream if it has no name, and keep it.", default=False)
    dedup: bool = table_flag("Send an id with each message.", default=False)
    dedupwindow: str = table_flag("How long a created stream knows ids.", "DURATION", default="2m")
    persistasync: bool = table_flag("Let a created stream write later than it acknowledges.", default=False)


async def _publish(
    ctx: typer.Context,
    mode: str,
    subject: str,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    into: Into,
    making: Making,
    sleep: str,
    batch: int = 500,
) -> None:
    subjects, total = messages.subjects(subject), rate.messages(amount)
    fields: dict[str, Any] = {
        "subjects": subjects,
        "payload": amount.payload(messages.payload),
        "headers": parse_headers(messages.header),
        "sleep": parse_duration(sleep, option="--sleep"),
        "throughput": rate.throughput,
        "ids": into.dedup,
        "batch": batch,
    }
    settings = _settings(into, making)
    work = "streams.publish_sync" if mode == "sync" else "streams.publish"
    names = {"sync": "one by one", "acks": "acks in flight", "atomic": "atomic batches", "fast": "fast ingest"}
    async with bench(ctx, f"Publish to a stream, {names[mode]}", amount) as run:
        info = await _target(run, subjects, into, making, settings)
        _check_takes(info, mode, subjects.pattern)
        prefix = secrets.token_hex(6) if mode == "sync" else mode
        fields |= {"name": info.name, "mode": prefix, "patience": run.patience}
        jobs = jobs_of(work, run.options, amount, total, **fields)
        kept = into.stream or (info.name if into.create else "its own")
        run.show(await run.run(jobs, subject=subjects.pattern, stream=kept, batch=batch if mode == "atomic" else None))


def _settings(into: Into, making: Making) -> dict[str, Any]:
    settings = making.fields()
    settings["duplicate_window"] = parse_duration(into.dedupwindow, option="--dedupwindow")
    if into.persistasync:
        settings["persist_mode"] = "async"
    refuse_both("--persistasync", into.persistasync, f"--replicas {making.replicas}", making.replicas > 1)
    if making.purge and not (into.stream or into.create):
        raise InputError("--purge is given, and the stream is a new one.", remedy="Name one with --stream.")
    return settings


async def _target(run: Bench, subjects: Subjects, into: Into, making: Making, settings: dict[str, Any]) -> StreamInfo:
    """Give the stream to publish to: the named one, or one that is made now."""
    if into.stream is not None and not into.create:
        try:
            info = await assets.stream_info(run.client, into.stream)
        except NotFoundError as error:
            raise NotFoundError(error.what, remedy="Give --create, too, and it is made.", **error.facts) from None
        await _purge(run, info, making)
        return info
    if not into.create:
        return await temporary(run, subjects, settings)
    name = into.stream or DEFAULT
    there = name in [info.name for info in await assets.streams(run.client) if info.name == name]
    info = await made(run, declared(name, subjects, settings))
    if there:
        await _purge(run, info, making)
    return info


async def _purge(run: Bench, info: StreamInfo, making: Making) -> None:
    if making.purge:
        confirm(f"Purge stream {info.name} with {info.messages:,} messages?", making.force)
        await assets.purge_stream(run.client, info.name)


def _check_takes(info: StreamInfo, mode: str, subject: str) -> None:
    """Refuse what the stream would refuse, and messages that would land in another one."""
    config = info.config
    if not any(covers(pattern, subject) for pattern in config.subjects):
        what = f"Stream {info.name} does not take {subject}; it has {', '.join(config.subjects) or 'no subjects'}."
        raise InputError(what, remedy="Choose a subject of the stream.")
    if mode == "fast" and not config.allow_batched:
        remedy = f"`penstock stream edit {info.name} --allow-batched` lets it."
        raise InputError(f"Stream {info.name} takes no fast ingest.", remedy=remedy)
    if mode == "atomic" and not config.allow_atomic:
        remedy = f"`penstock stream edit {info.name} --allow-batch` lets it."
        raise InputError(f"Stream {info.name} takes no atomic batches.", remedy=remedy)


async def sync(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    into: Into,
    making: Making,
    sleep: Sleep = "0s",
) -> None:
    """Publish one message after the other, each client waiting for every ack."""
    await _publish(ctx, "sync", subject, amount, messages, rate, into, making, sleep)


async def async_(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    into: Into,
    making: Making,
    sleep: Sleep = "0s",
) -> None:
    """Publish with an ack for each message, 4,096 of them in flight."""
    await _publish(ctx, "acks", subject, amount, messages, rate, into, making, sleep)


async def atomic(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    into: Into,
    making: Making,
    sleep: Sleep = "0s",
    batch: Annotated[int, flag("Messages of a batch.", "COUNT", min=1, max=1000)] = 500,
) -> None:
    """Publish atomic batches, each stored whole or not at all."""
    await _publish(ctx, "atomic", subject, amount, messages, rate, into, making, sleep, batch)


async def fast(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    into: Into,
    making: Making,
    sleep: Sleep = "0s",
) -> None:
    """Publish by fast ingest: in order, without gaps, one ack for hundreds of messages."""
    await _publish(ctx, "fast", subject, amount, messages, rate, into, making, sleep)


# -- reading ---------------------------------------------------------------------------------------------------------


async def _source(run: Bench, stream: str | None, filters: tuple[str, ...], *, purge: bool, force: bool) -> StreamInfo:
    """Give the stream to read: the named one, benchstream if it is there, or one of its own that is filled first."""
    wanted = run.amount.msgs
    info = None
    try:
        info = await assets.stream_info(run.client, stream or DEFAULT)
    except NotFoundError:
        if stream is not None:
            raise
    if info is None and filters:
        raise InputError("--filter is given, and there is no stream to filter.", remedy="Name one with --stream.")
    if info is None:
        # Its subject has a name that nobody publishes to by chance.
        info = await temporary(run, Subjects(run.new_name()), {"storage": "file"})
        return await filled(run, info)
    if purge:
        confirm(f"Purge stream {info.name} with {info.messages:,} messages, and fill it anew?", force)
        await assets.purge_stream(run.client, info.name)
        return await filled(run, info)
    held = info.messages
    if filters:
        held = 0
        for one in filters:
            held += sum((await assets.stream_subjects_held(run.client, info.name, one)).values())
    if held < wanted:
        of = " of these subjects" if filters else ""
        what = f"Stream {info.name} has {held:,} messages{of}, and --msgs is {wanted:,}."
        raise InputError(what, remedy="Lower --msgs, or publish more with `penstock bench js pub fast`.")
    return info


@flag_table
class Consuming:
    """How a consumer is read."""

    consumer: str = table_flag("Name of the consumer to make.", "NAME", default=CONSUMER, callback=consumer_name)
    acks: str = table_flag("What is acknowledged.", "explicit|all|none", default="explicit")
    doubleack: bool = table_flag(
        "Wait until the server confirms each ack.", "--doubleack/--no-doubleack", default=False
    )

    def __post_init__(self) -> None:
        if self.acks not in ("explicit", "all", "none"):
            remedy = "Use explicit, all or none."
            raise OptionError(f"--acks is {self.acks!r}.", remedy=remedy, option="--acks")
        refuse_both("--doubleack", self.doubleack, "--acks none", self.acks == "none")


async def _consumed(
    ctx: typer.Context,
    work: str,
    kind: str,
    amount: Amount,
    stream: str | None,
    reading: Consuming,
    batch: int,
    filter: list[str] | None,
    purge: bool,
    force: bool,
    sleep: str,
) -> None:
    filters = _filters(filter)
    fields: dict[str, Any] = {
        "batch": batch,
        "acks": reading.acks,
        "double_ack": reading.doubleack,
        "payload": amount.payload(),
    }
    fields |= {"consumer": reading.consumer, "sleep": parse_duration(sleep, option="--sleep")}
    async with bench(ctx, kind, amount) as run:
        info = await _source(run, stream, filters, purge=purge, force=force)
        if info.config.retention != "limits":
            confirm(f"Stream {info.name} removes what is acknowledged. Read and acknowledge its messages?", force)
        await _consumer(run, info.name, reading, batch, filters)
        jobs = jobs_of(work, run.options, amount, amount.msgs, name=info.name, patience=run.patience, **fields)
        run.show(await run.run(jobs, stream=info.name, acks=reading.acks, batch=batch))


async def _consumer(run: Bench, stream: str, reading: Consuming, batch: int, filters: tuple[str, ...]) -> None:
    """Make the consumer that the clients share; it must be a new one, and goes at the end."""
    settings: dict[str, Any] = {"durable": reading.consumer, "ack_policy": reading.acks, "inactive_threshold": 60.0}
    if reading.acks != "none":
        settings["max_ack_pending"] = batch * run.amount.clients
    consumer = model.Consumer(filter_subjects=list(filters), **settings)
    if reading.consumer in [info.name for info in await assets.consumers(run.client, stream)]:
        what = f"Stream {stream} has a consumer {reading.consumer} already."
        raise InputError(what, remedy="Choose another name with --consumer, or remove it.")

    async def remove() -> None:
        try:
            await assets.delete_consumer(run.client, stream, reading.consumer)
        except NotFoundError:
            return

    run.remove_later(f"Consumer {reading.consumer} of {stream}", remove)
    await assets.add_consumer(run.client, stream, consumer)


def _filters(given: list[str] | None) -> tuple[str, ...]:
    filters = tuple(one.strip() for text in given or () for one in text.split(","))
    check_subjects(*filters)
    return filters


async def consume(
    ctx: typer.Context,
    amount: Amount,
    reading: Consuming,
    stream: Stream = None,
    batch: Batch = 500,
    filter: Filters = None,
    purge: Purge = False,
    force: Force = False,
    sleep: Sleep = "0s",
) -> None:
    """Read from a consumer that the clients share, by a callback, with pull requests ahead of it."""
    kind = "Consume with a callback"
    await _consumed(ctx, "reading.consume", kind, amount, stream, reading, batch, filter, purge, force, sleep)


async def fetch(
    ctx: typer.Context,
    amount: Amount,
    reading: Consuming,
    stream: Stream = None,
    batch: Batch = 500,
    filter: Filters = None,
    purge: Purge = False,
    force: Force = False,
    sleep: Sleep = "0s",
) -> None:
    """Read from a consumer that the clients share, one fetch after the other; a latency is of a whole fetch."""
    kind = "Consume by fetches"
    await _consumed(ctx, "reading.fetch", kind, amount, stream, reading, batch, filter, purge, force, sleep)


async def _ranged(
    ctx: typer.Context,
    work: str,
    kind: str,
    amount: Amount,
    stream: str | None,
    filters: tuple[str, ...],
    *,
    purge: bool = False,
    force: bool = False,
    each: bool = False,
    **fields: Any,
) -> None:
    async with bench(ctx, kind, amount) as run:
        found = () if filters == (">",) else filters
        info = await _source(run, stream, found, purge=purge, force=force)
        about: dict[str, Any] = {
            "first": info.first_sequence,
            "name": info.name,
            "filters": filters,
            "patience": run.patience,
            "payload": amount.payload(),
        }
        if work == "reading.get_sync":
            _check_whole(info, amount.msgs)
            fields["mode"] = "direct" if info.config.allow_direct else ""
        if work == "reading.get_batch" and not info.config.allow_direct:
            remedy = f"`penstock stream edit {info.name} --allow-direct` lets it."
            raise InputError(f"Stream {info.name} allows no direct gets.", remedy=remedy)
        jobs = jobs_of(work, run.options, amount, amount.msgs, each=each, **about, **fields)
        run.show(await run.run(jobs, stream=info.name, batch=fields.get("batch")))


def _check_whole(info: StreamInfo, wanted: int) -> None:
    if info.last_sequence - info.first_sequence + 1 != info.messages:
        what = f"Messages are missing between the first and the last one of stream {info.name}."
        raise InputError(what, remedy="Gets ask for every sequence: choose another stream, or `js get batch`.")


async def ordered(
    ctx: typer.Context,
    amount: Amount,
    stream: Stream = None,
    filter: Filters = None,
    purge: Purge = False,
    force: Force = False,
    sleep: Sleep = "0s",
) -> None:
    """Read all messages in order with each client, by an ephemeral consumer, as Spark's tasks do."""
    filters = _filters(filter)
    pause = parse_duration(sleep, option="--sleep")
    about: dict[str, Any] = {"purge": purge, "force": force, "each": True, "sleep": pause}
    await _ranged(ctx, "reading.ordered", "Read in order", amount, stream, filters, **about)


async def get_sync(ctx: typer.Context, amount: Amount, stream: Stream = None, sleep: Sleep = "0s") -> None:
    """Get messages by their sequence, each client one after the other."""
    pause = parse_duration(sleep, option="--sleep")
    await _ranged(ctx, "reading.get_sync", "Get one by one", amount, stream, (), sleep=pause)


async def get_batch(
    ctx: typer.Context,
    amount: Amount,
    stream: Stream = None,
    batch: Annotated[int, flag("Messages of a get.", "COUNT", min=1, max=1000)] = 500,
    filter: Annotated[str, flag("Only messages of this subject.", "SUBJECT")] = ">",
    sleep: Sleep = "0s",
) -> None:
    """Get messages by batches, all of them with each client; a latency is of a whole batch."""
    check_subjects(filter)
    about: dict[str, Any] = {"batch": batch, "each": True, "sleep": parse_duration(sleep, option="--sleep")}
    await _ranged(ctx, "reading.get_batch", "Get by batches", amount, stream, (filter,), **about)
