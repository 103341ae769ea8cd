"""`penstock stream info|ls|report|subjects|size`: looking at streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_show import Sieve, show_stream
from penstock.cli.flags import All, AnyStream, Json, Names, argument, flag
from penstock.cli.late import assets
from penstock.cli.output import ago, counts, local, print_json, print_listed, print_pairs
from penstock.cli.questions import picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size, parse_size

if TYPE_CHECKING:
    from penstock.info import Placed

__all__ = ["info", "ls", "report", "size", "subjects"]

Capturing = Annotated[str | None, flag("Only streams that capture this subject.")]


async def info(
    ctx: typer.Context,
    name: AnyStream = None,
    state: Annotated[bool, flag("Show the state only.")] = False,
    json: Json = False,
) -> None:
    """Show a stream: configuration and state."""
    from penstock.spark.markers import marker_filter

    async with connected(ctx) as client:
        found = await assets.stream_info(client, await picked_stream(client, name))
        markers = {}
        if not json and found.config.allow_atomic:  # the sink writes to no other stream
            markers = await assets.stream_subjects_held(client, found.name, marker_filter(found.name))
    if json:
        print_json(found.raw["state"] if state else found.raw)
    else:
        show_stream(found, state_only=state, markers=sum(markers.values()))


async def ls(ctx: typer.Context, subject: Capturing = None, names: Names = False, json: Json = False) -> None:
    """List the streams."""
    async with connected(ctx) as client:
        found = await assets.streams(client, subject=subject)
    if print_listed(found, json, names):
        return
    if not found:
        typer.echo("No streams" + (f" capture {subject}" if subject else " are here"))
        return
    rows = [
        (one.name, one.description, local(one.created), f"{one.messages:,}", format_size(one.bytes), ago(one.last_time))
        for one in found
    ]
    print_table("Streams", ("Name", "~Description", "Created", "#Messages", "#Size", "#Last Message"), rows)


async def report(
    ctx: typer.Context,
    subject: Capturing = None,
    consumers: Annotated[bool, flag("Most consumers first.", "-o", "--consumers")] = False,
    messages: Annotated[bool, flag("Most messages first.", "-m", "--messages")] = False,
    raw: Annotated[bool, flag("Bytes as plain numbers.", "-r", "--raw")] = False,
    json: Json = False,
) -> None:
    """Report on all streams: storage, consumers, messages, bytes, replicas, and what copies lag behind."""
    order = "consumers" if consumers else "messages" if messages else "bytes"
    async with connected(ctx) as client:
        found = await assets.streams(client, subject=subject)
    found.sort(key=lambda info: -int(getattr(info, order)))
    if print_listed(found, json):
        return
    print_table(
        "Stream Report",
        ("Stream", "Storage", "#Consumers", "#Messages", "#Bytes", "#Deleted", "Replicas"),
        [
            (
                item.name,
                item.config.storage.capitalize(),
                *counts(item.consumers, item.messages),
                str(item.bytes) if raw else format_size(item.bytes),
                f"{item.deleted:,}",
                _replicas(item.placed),
            )
            for item in found
        ],
    )
    copies = [
        (
            item.name,
            "Mirror" if item.config.mirror else "Source",
            copy.name,
            f"{copy.lag:,}",
            "never" if copy.active is None else f"{copy.active:.1f}s ago",
        )
        for item in found
        for copy in item.copies
    ]
    if copies:
        print_table("Replication Report", ("Stream", "Kind", "Copies", "#Lag", "#Seen"), copies)


def _replicas(placed: Placed) -> str:
    """Name the servers that carry a stream: the leader with an asterisk, who is late with an exclamation mark."""
    late = [f"{name}{'' if current else '!'}" for name, current in placed.replicas]
    return ", ".join([f"{placed.leader or 'nobody'}*", *late]) if placed.cluster else ""


async def subjects(
    ctx: typer.Context,
    name: AnyStream = None,
    pattern: Annotated[str, argument("Only subjects that match.", "FILTER")] = ">",
    sort: Annotated[str, flag("Order.", "name|messages")] = "messages",
    names: Annotated[bool, flag("Only the subjects.", "-n", "--names")] = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Count the messages of each subject that a stream holds."""
    if sort not in ("name", "subjects", "messages", "count"):
        raise InputError(f"--sort is {sort!r}.", remedy="Use name or messages.")
    sieve = Sieve(everything, pattern)
    async with connected(ctx) as client:
        stream = await picked_stream(client, name)
        try:
            held = await assets.stream_subjects_held(client, stream, pattern)
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None
    shown = {subject: count for subject, count in held.items() if sieve.shows(subject)}
    if sort in ("messages", "count"):
        shown = dict(sorted(shown.items(), key=lambda item: (-item[1], item[0])))
    if json:
        print_json(list(shown) if names else shown)
    elif names:
        for subject in shown:
            typer.echo(subject)
    elif not shown:
        typer.echo(f"Stream {stream} holds nothing on {pattern}.")
    else:
        rows = [(subject, f"{count:,}") for subject, count in shown.items()]
        print_table(f"{len(shown):,} Subjects in stream {stream}", ("Subject", "#Count"), rows)
    sieve.tell()


def size(
    messages: Annotated[int, flag("How many messages.", min=0)],
    payload: Annotated[str, flag("Bytes of one payload.", "SIZE")],
    subject: Annotated[str, flag("Subject of the messages.")],
    headers: Annotated[str, flag("Bytes of one header block.", "SIZE")] = "0",
    storage: Annotated[str, flag("Where they are kept.", "file|memory")] = "file",
    json: Json = False,
) -> None:
    """Say how many bytes messages take in the store; asks no server."""
    from penstock.jetstream.size import estimate

    if storage not in ("file", "memory"):
        raise InputError(f"--storage is {storage!r}.", remedy="Use file or memory.")
    one, head = parse_size(payload, option="--payload"), parse_size(headers, option="--headers")
    made = estimate(messages, one, subject, head, storage="memory" if storage == "memory" else "file")
    if json:
        overhead = round(made.overhead, 4)
        print_json({"messages": messages, "record": made.record, "total": made.total, "overhead": overhead})
        return
    print_pairs(
        f"{messages:,} messages of {one:,} bytes on {subject}",
        [
            ("One message", f"{made.record:,} bytes, {made.record - one:,} of them overhead"),
            ("All messages", f"{made.total:,} bytes ({format_size(made.total)})"),
            ("Overhead", f"{made.overhead:.1%} of the store"),
        ],
    )
