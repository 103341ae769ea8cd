"""`penstock stream info|state|ls|report|find|subjects|size`: looking at streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_show import Sieve, info_json, is_internal, show_stream
from penstock.cli.flags import All, AnyStream, Json, Names, NoSelect, argument, flag
from penstock.cli.late import assets
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import ago, counts, local, print_json, print_pairs
from penstock.cli.questions import check_named, picked_stream
from penstock.cli.running import connected
from penstock.cli.stream_find import StreamCriteria
from penstock.cli.tables import plain, print_table
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size, parse_size

if TYPE_CHECKING:
    from penstock.info import Placed, StreamInfo

__all__ = ["find", "info", "ls", "report", "size", "state", "subjects"]

Capturing = Annotated[str | None, flag("Only streams that capture this subject.")]
Everything = Annotated[bool, flag("Those of buckets and of MQTT, too.", "-a", "--all")]


async def info(
    ctx: typer.Context,
    name: AnyStream = None,
    state: Annotated[bool, flag("Show the state only.")] = False,
    no_select: NoSelect = False,
    everything: Everything = False,
    json: Json = False,
) -> None:
    """Show a stream: configuration and state."""
    await _show(ctx, name, no_select, everything, json, state_only=state)


async def state(
    ctx: typer.Context,
    name: AnyStream = None,
    no_select: NoSelect = False,
    everything: Everything = False,
    json: Json = False,
) -> None:
    """Show how a stream stands; for programs, all of it."""
    await _show(ctx, name, no_select, everything, json, state_only=True)


async def _show(
    ctx: typer.Context, name: str | None, no_select: bool, everything: bool, json: bool, *, state_only: bool
) -> None:
    from penstock.spark.markers import marker_filter

    check_named(no_select, stream=name)
    async with connected(ctx) as client:
        found = await assets.stream_info(client, await picked_stream(client, name, everything=everything))
        markers = {}
        if not json and found.config.allow_atomic:  # the sink writes to no other stream
            markers = await assets.stream_subjects_held(client, found.name, marker_filter(found.name))
    if json:
        print_json(info_json(found))
    else:
        show_stream(found, state_only=state_only, markers=sum(markers.values()))


async def ls(
    ctx: typer.Context,
    subject: Capturing = None,
    names: Names = False,
    everything: Everything = False,
    json: Json = False,
) -> None:
    """List the streams; for programs, their names."""
    if subject is not None:
        check_subjects(subject)
    missing: set[str] = set()
    async with connected(ctx) as client:
        found = await assets.streams(client, subject=subject, missing=missing)
    shown = [one for one in found if everything or names or not is_internal(one.name)]
    _list(shown, names, json, f" capture {subject}" if subject else " are here")
    hidden = len(found) - len(shown)
    if hidden and not json:
        typer.echo(f"Not shown: {hidden:,} of buckets or MQTT; see -a.", err=True)
    _tell_missing(missing)


def _list(found: Sequence[StreamInfo], names: bool, json: bool, none: str) -> None:
    if json:
        print_json([one.name for one in found])
    elif names:
        typer.echo("".join(f"{plain(one.name)}\n" for one in found), nl=False)
    elif not found:
        typer.echo(f"No streams{none}")
    else:
        rows = [
            (
                one.name,
                one.description,
                local(one.created),
                *counts(one.messages),
                format_size(one.bytes),
                ago(one.last_time),
            )
            for one in found
        ]
        print_table("Streams", ("Name", "~Description", "Created", "#Messages", "#Size", "#Last Message"), rows)


def _tell_missing(missing: set[str]) -> None:
    if missing:
        typer.echo(plain(f"Nobody answers for {', '.join(sorted(missing))} now."), err=True)


async def find(ctx: typer.Context, criteria: StreamCriteria, names: Names = False, json: Json = False) -> None:
    """Find the streams that match all of these."""
    criteria.check()
    missing: set[str] = set()
    async with connected(ctx) as client:
        found = await assets.streams(client, missing=missing)
    _list([one for one in found if criteria.matches(one)], names, json, " match")
    _tell_missing(missing)


async def report(
    ctx: typer.Context,
    subject: Capturing = None,
    cluster: Annotated[str | None, flag("Only streams in this cluster.", "NAME")] = None,
    consumers: Annotated[bool, flag("Sort by consumers.", "-o", "--consumers")] = False,
    messages: Annotated[bool, flag("Sort by messages.", "-m", "--messages")] = False,
    name: Annotated[bool, flag("Sort by name.", "-n", "--name")] = False,
    storage: Annotated[bool, flag("Sort by storage.", "-t", "--storage")] = False,
    raw: Annotated[bool, flag("Bytes as plain numbers.", "-r", "--raw")] = False,
    dot: Annotated[Path | None, flag("Draw what copies what into a file of GraphViz.", "FILE")] = None,
    leaders: Annotated[bool, flag("Count what each server leads.", "-l", "--leaders")] = False,
    json: Json = False,
) -> None:
    """Report on all streams: storage, consumers, messages, bytes, replicas, and what copies lag behind."""
    if subject is not None:
        check_subjects(subject)
    missing: set[str] = set()
    async with connected(ctx) as client:
        found = await assets.streams(client, subject=subject, missing=missing)
    found = [item for item in found if cluster is None or item.placed.cluster == cluster]
    wanted = {"consumers": consumers, "messages": messages, "name": name, "storage": storage}
    order = next((field for field, is_wanted in wanted.items() if is_wanted), "bytes")
    found.sort(key=lambda item: item.config.storage if order == "storage" else getattr(item, order))
    if dot is not None:
        _draw(found, dot)
    if json:
        print_json([info_json(item) for item in found])
        return
    if not found:
        typer.echo("No streams are here")
    else:
        _print_report(found, raw)
    if leaders:
        counted = Counter((item.placed.leader, item.placed.cluster or "") for item in found if item.placed.leader)
        rows = [(leader, of, f"{count:,}") for (leader, of), count in sorted(counted.items(), key=lambda each: each[1])]
        if rows:
            print_table("Leaders of Streams", ("Server", "Cluster", "#Streams"), rows)
        else:
            typer.echo("No stream is in a cluster.", err=True)
    _tell_missing(missing)


def _print_report(found: Sequence[StreamInfo], raw: bool) -> None:
    def shown(size: int) -> str:
        return str(size) if raw else format_size(size)

    rows = [
        (
            item.name,
            item.config.storage.capitalize(),
            _placement(item),
            *((str(item.consumers), str(item.messages)) if raw else counts(item.consumers, item.messages)),
            shown(item.bytes),
            f"{item.lost:,} ({shown(item.lost_bytes)})" if item.lost else "0",
            str(item.deleted) if raw else f"{item.deleted:,}",
            item.config.metadata.get("_nats.req.level", "0"),
            _replicas(item.placed),
        )
        for item in found
    ]
    heads = ["Stream", "Storage", "Placement", "#Consumers", "#Messages", "#Bytes", "#Lost", "#Deleted", "#API Level"]
    heads.append("Replicas")
    # What no stream has would only make the others narrower.
    used = [
        place for place, head in enumerate(heads) if head in _ALWAYS or any(row[place] not in ("", "0") for row in rows)
    ]
    print_table("Stream Report", [heads[place] for place in used], [[row[place] for place in used] for row in rows])
    copies = [
        (
            item.name,
            "Mirror" if item.config.mirror else "Source",
            copy.name,
            f"{copy.lag:,}",
            "never" if copy.active is None else f"{copy.active:.1f}s ago",
            copy.error,
        )
        for item in found
        for copy in item.copies
    ]
    if copies:
        print_table("Replication Report", ("Stream", "Kind", "Copies", "#Lag", "#Seen", "~Error"), copies)


_ALWAYS = {"Stream", "Storage", "#Consumers", "#Messages", "#Bytes", "#Deleted"}


def _placement(item: StreamInfo) -> str:
    placement = item.config.placement
    if placement is None:
        return ""
    tags = f"tags: {', '.join(placement.tags)}" if placement.tags else ""
    return " ".join(part for part in (f"cluster: {placement.cluster}" if placement.cluster else "", tags) if part)


def _replicas(placed: Placed) -> str:
    """Name the servers that carry a stream: the leader with an asterisk, who is late with an exclamation mark."""
    late = [f"{name}{'' if current else '!'}" for name, current in placed.replicas]
    return ", ".join([f"{placed.leader or 'nobody'}*", *late]) if placed.cluster else ""


def _draw(found: Sequence[StreamInfo], path: Path) -> None:
    """Write a graph of what copies what."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["digraph {", '  label="What copies what";']
    for item in found:
        if item.config.mirror is not None:
            lines.append(f"  {quoted(item.config.mirror.name)} -> {quoted(item.name)} [label=mirror, color=blue];")
        for source in item.config.sources:
            renamed = ", ".join(f"{rule.src} to {rule.dest}" for rule in source.subject_transforms)
            label = quoted(renamed or source.filter_subject or "")
            lines.append(f"  {quoted(source.name)} -> {quoted(item.name)} [label={label}, color=green];")
    try:
        path.write_text("\n".join([*lines, "}", ""]))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Name another file.") from None


async def subjects(
    ctx: typer.Context,
    name: AnyStream = None,
    pattern: Annotated[str, argument("Only subjects that match.", "FILTER")] = ">",
    sort: Annotated[str, flag("Order.", "name|messages")] = "messages",
    reverse: Annotated[bool, flag("Turn the order around.", "-R", "--reverse")] = False,
    names: Annotated[bool, flag("Only the subjects.", "-n", "--names")] = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Count the messages of each subject that a stream holds; those with most come last."""
    if sort not in ("name", "subjects", "messages", "count"):
        raise InputError(f"--sort is {sort!r}.", remedy="Use name or messages.")
    check_subjects(pattern)
    sieve = Sieve(everything, pattern)
    async with connected(ctx) as client:
        stream = await picked_stream(client, name, everything=everything)
        try:
            held = await assets.stream_subjects_held(client, stream, pattern)
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None
    shown = {subject: count for subject, count in sorted(held.items()) if sieve.shows(subject)}
    if sort in ("messages", "count"):
        shown = dict(sorted(shown.items(), key=lambda item: item[1]))
    if reverse:
        shown = dict(reversed(shown.items()))
    if json:
        print_json(shown)
    elif names:
        for subject in shown:
            typer.echo(plain(subject))
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
