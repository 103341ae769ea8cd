"""Object buckets and objects as people read them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.asset_show import info_json, placed_rows
from penstock.cli.output import ago, local, print_json, print_sections
from penstock.cli.tables import plain, print_table
from penstock.durations import format_duration
from penstock.sizes import format_size
from penstock.times import format_time

if TYPE_CHECKING:
    from penstock.buckets import ObjectInfo, ObjectStoreStatus, Orphan

__all__ = [
    "bucket_json",
    "orphan_words",
    "show_bucket",
    "show_buckets",
    "show_change",
    "show_object",
    "show_objects",
    "show_orphans",
]


def bucket_json(status: ObjectStoreStatus) -> dict[str, Any]:
    """Give a bucket for programs: its name, and what the server says of its stream."""
    return {"bucket": status.bucket, **info_json(status.stream)}


def show_bucket(status: ObjectStoreStatus) -> None:
    """Show how a bucket is set up."""
    rows: list[tuple[str, Any]] = [
        ("Bucket Name", status.bucket),
        ("Description", status.description or None),
        ("Replicas", status.replicas),
        ("TTL", format_duration(status.ttl) if status.ttl else "unlimited"),
        ("Sealed", status.is_sealed),
        ("Size", format_size(status.bytes)),
        ("Maximum Bucket Size", "unlimited" if status.max_bytes < 0 else format_size(status.max_bytes)),
        ("Storage", status.storage.capitalize()),
        ("Compressed", True if status.is_compressed else None),
        ("Mirror of", status.mirror),
        ("Backing Store Kind", "JetStream"),
        ("JetStream Stream", status.stream.name),
    ]
    print_sections(
        f"Information for Object Store Bucket {status.bucket} created {local(status.created)}",
        [
            ("Configuration", rows),
            ("Metadata", sorted(status.metadata.items())),
            ("Cluster Information", placed_rows(status.stream.placed, status.stream.raw)),
        ],
    )


def show_object(info: ObjectInfo) -> None:
    """Show what is known of an object."""
    digest = None if info.sha256 is None else f"SHA-256 {info.sha256.hex()}"
    leads = None
    if info.link is not None:
        leads = info.link.bucket if info.link.name is None else f"{info.link.bucket} > {info.link.name}"
    rows: list[tuple[str, Any]] = [
        ("Description", info.description or None),
        ("Link to", leads),
        ("Size", format_size(info.size)),
        ("Modification Time", local(info.time)),
        ("Chunks", info.chunks),
        ("Digest", digest if digest is not None or info.digest is None else info.digest),
        ("Deleted", True if info.deleted else None),
        *(("Header", f"{name}: {value}") for name, values in info.headers.items() for value in values),
    ]
    print_sections(
        f"Object information for {info.bucket} > {info.name}",
        [("", rows), ("Metadata", [(plain(name), value) for name, value in sorted(info.metadata.items())])],
    )


def show_buckets(found: Sequence[ObjectStoreStatus]) -> None:
    """Show a table of buckets."""
    if not found:
        typer.echo("No Object Store buckets found")
        return
    rows = [
        (item.bucket, item.description, local(item.created), format_size(item.bytes), ago(item.stream.last_time))
        for item in found
    ]
    print_table("Object Store Buckets", ("Bucket", "~Description", "Created", "#Size", "Last Update"), rows)


def show_objects(bucket: str, found: Sequence[ObjectInfo]) -> None:
    """Show a table of the objects of a bucket."""
    if not found:
        typer.echo("No entries found")
        return
    rows = [(item.name, format_size(item.size), local(item.time)) for item in found]
    print_table(f"Bucket Contents of {bucket}", ("Name", "#Size", "Time"), rows)


def show_change(info: ObjectInfo) -> None:
    """Show one change of a bucket, on a line that goes out at once."""
    where = f"{info.bucket} > {info.name}"
    put = f"PUT {where}: {format_size(info.size)} in {info.chunks:,} chunks"
    typer.echo(plain(f"[{local(info.time)}] {f'DEL {where}' if info.deleted else put}"))
    sys.stdout.flush()


def orphan_words(found: Sequence[Orphan]) -> str:
    """Write how many chunks no object has."""
    count = sum(item.chunks for item in found)
    return f"{count:,} {'chunk' if count == 1 else 'chunks'}, {format_size(sum(item.size for item in found))}"


def show_orphans(bucket: str, found: Sequence[Orphan], json: bool) -> None:
    """Show chunks that no object has."""
    if json:
        facts = [
            {"nuid": item.nuid, "chunks": item.chunks, "size": item.size, "time": format_time(item.time)}
            for item in found
        ]
        print_json({"bucket": bucket, "orphans": facts})
    elif not found:
        typer.echo("Every chunk belongs to an object")
    else:
        rows = [(item.nuid, item.chunks, format_size(item.size), local(item.time)) for item in found]
        print_table(f"Chunks in {bucket} that no object has", ("Chunks of", "#Chunks", "#Size", "Last"), rows)
