"""`penstock stream info|ls|report|subjects|size`: looking at streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import connected, pick
from penstock.cli.global_flags import Globals
from penstock.cli.markers import All, Sieve
from penstock.cli.output import Json, print_json, print_table, run
from penstock.cli.stream_show import ago, local, print_sections, show_stream
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Name", "info", "ls", "picked", "report", "size", "subjects"]

Name = Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream.")]


async def picked(client: Connection, name: str | None) -> str:
    """Give the stream that was named, or let somebody choose."""
    from penstock.jetstream import assets

    return name if name is not None else pick("stream", [info.name for info in await assets.streams(client)], None)


def info(
    ctx: typer.Context,
    name: Name = None,
    state: Annotated[bool, typer.Option("--state", help="Show the state only.")] = False,
    json: Json = False,
) -> None:
    """Show a stream: configuration and state."""
    run(_info(ctx.obj, name, state, json))


async def _info(given: Globals, name: str | None, state: bool, json: bool) -> None:
    from penstock.jetstream import assets
    from penstock.spark.markers import marker_filter

    async with connected(given) as client:
        found = await assets.stream_info(client, await picked(client, name))
        markers = {}
        if not json and found.config.allow_atomic:  # the sink writes to no other stream
            markers = await assets.stream_subjects_held(client, found.name, marker_filter(found.name))
    if json:
        print_json(found.raw["state"] if state else found.raw)
    else:
        show_stream(found, state_only=state, markers=sum(markers.values()))


def ls(
    ctx: typer.Context,
    subject: Annotated[str | None, typer.Option("--subject", help="Only streams that capture this subject.")] = None,
    names: Annotated[bool, typer.Option("-n", "--names", help="Only the names.")] = False,
    json: Json = False,
) -> None:
    """List the streams."""
    run(_ls(ctx.obj, subject, names, json))


async def _ls(given: Globals, subject: str | None, names: bool, json: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        found = await assets.streams(client, subject=subject)
    if json:
        print_json([info.name for info in found] if names else [info.raw for info in found])
    elif names:
        for info in found:
            typer.echo(info.name)
    elif not found:
        typer.echo("No streams" + (f" capture {subject}" if subject else " are here"))
    else:
        print_table(
            "Streams",
            ("Name", "Description", "Created", "#Messages", "#Size", "#Last Message"),
            [
                (
                    info.name,
                    info.description,
                    local(info.created),
                    f"{info.messages:,}",
                    format_size(info.bytes),
                    ago(info.last_time),
                )
                for info in found
            ],
        )


def report(
    ctx: typer.Context,
    subject: Annotated[str | None, typer.Option("--subject", help="Only streams that capture this subject.")] = None,
    consumers: Annotated[bool, typer.Option("-o", "--consumers", help="Most consumers first.")] = False,
    messages: Annotated[bool, typer.Option("-m", "--messages", help="Most messages first.")] = False,
    raw: Annotated[bool, typer.Option("-r", "--raw", help="Bytes as plain numbers.")] = False,
    json: Json = False,
) -> None:
    """Report on all streams: storage, consumers, messages, bytes, replicas, and what copies lag behind."""
    order = "consumers" if consumers else "messages" if messages else "bytes"
    run(_report(ctx.obj, subject, order, raw, json))


async def _report(given: Globals, subject: str | None, order: str, raw: bool, json: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        found = await assets.streams(client, subject=subject)
    found.sort(key=lambda info: -int(getattr(info, order)))
    if json:
        print_json([info.raw for info in found])
        return
    print_table(
        "Stream Report",
        ("Stream", "Storage", "#Consumers", "#Messages", "#Bytes", "#Deleted", "Replicas"),
        [
            (
                info.name,
                info.config.storage.capitalize(),
                f"{info.consumers:,}",
                f"{info.messages:,}",
                str(info.bytes) if raw else format_size(info.bytes),
                f"{info.deleted:,}",
                ", ".join(
                    [
                        f"{info.placed.leader or 'nobody'}*",
                        *(f"{name}{'' if current else '!'}" for name, current in info.placed.replicas),
                    ]
                )
                if info.placed.cluster
                else "",
            )
            for info in found
        ],
    )
    copies = [(info.name, copy) for info in found for copy in info.copies]
    if copies:
        print_table(
            "Replication Report",
            ("Stream", "Kind", "Copies", "#Lag", "#Seen"),
            [
                (
                    name,
                    "Mirror" if next(info for info in found if info.name == name).config.mirror else "Source",
                    copy.name,
                    f"{copy.lag:,}",
                    "never" if copy.active is None else f"{copy.active:.1f}s ago",
                )
                for name, copy in copies
            ],
        )


def subjects(
    ctx: typer.Context,
    name: Name = None,
    pattern: Annotated[str, typer.Argument(metavar="FILTER", help="Only subjects that match.")] = ">",
    sort: Annotated[str, typer.Option("--sort", metavar="name|messages", help="Order.")] = "messages",
    names: Annotated[bool, typer.Option("-n", "--names", help="Only the subjects.")] = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Count the messages of each subject that a stream holds."""
    if sort not in ("name", "subjects", "messages", "count"):
        raise InputError(f"--sort is {sort!r}.", remedy="Use name or messages.")
    run(_subjects(ctx.obj, name, pattern, sort, names, Sieve(everything, pattern), json))


async def _subjects(
    given: Globals, name: str | None, pattern: str, sort: str, names: bool, sieve: Sieve, json: bool
) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        stream = await picked(client, name)
        try:
            held = await assets.stream_subjects_held(client, stream, pattern)
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None
    counts = {subject: count for subject, count in held.items() if sieve.shows(subject)}
    if sort in ("messages", "count"):
        counts = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    if json:
        print_json(list(counts) if names else counts)
    elif names:
        for subject in counts:
            typer.echo(subject)
    elif not counts:
        typer.echo(f"Stream {stream} holds nothing on {pattern}.")
    else:
        print_table(
            f"{len(counts):,} Subjects in stream {stream}",
            ("Subject", "#Count"),
            [(subject, f"{count:,}") for subject, count in counts.items()],
        )
    sieve.tell()


def size(
    messages: Annotated[int, typer.Option("--messages", min=0, help="How many messages.")],
    payload: Annotated[str, typer.Option("--payload", metavar="SIZE", help="Bytes of one payload.")],
    subject: Annotated[str, typer.Option("--subject", help="Subject of the messages.")],
    headers: Annotated[str, typer.Option("--headers", metavar="SIZE", help="Bytes of one header block.")] = "0",
    storage: Annotated[str, typer.Option("--storage", metavar="file|memory", help="Where they are kept.")] = "file",
    json: Json = False,
) -> None:
    """Say how many bytes messages take in the store; asks no server."""
    from penstock.jetstream.size import estimate
    from penstock.sizes import parse_size

    if storage not in ("file", "memory"):
        raise InputError(f"--storage is {storage!r}.", remedy="Use file or memory.")
    one, head = parse_size(payload, option="--payload"), parse_size(headers, option="--headers")
    made = estimate(messages, one, subject, head, storage="memory" if storage == "memory" else "file")
    if json:
        print_json(
            {"messages": messages, "record": made.record, "total": made.total, "overhead": round(made.overhead, 4)}
        )
        return
    print_sections(
        f"{messages:,} messages of {one:,} bytes on {subject}",
        [
            (
                "",
                [
                    ("One message", f"{made.record:,} bytes, {made.record - one:,} of them overhead"),
                    ("All messages", f"{made.total:,} bytes ({format_size(made.total)})"),
                    ("Overhead", f"{made.overhead:.1%} of the store"),
                ],
            )
        ],
    )
