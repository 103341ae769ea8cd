"""`penstock kv add|edit|info|ls|del|compact`: key-value buckets, with the words of the `nats` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_show import info_json, metadata_rows, placed_rows, size_limit
from penstock.cli.flags import Force, Json, Names, argument, flag, flag_table, given_fields, table_flag
from penstock.cli.kv_show import Bucket, bucket_name, entry_words, shown_value
from penstock.cli.output import ago, counts, local, print_json, print_sections
from penstock.cli.questions import confirm, pick
from penstock.cli.running import connected
from penstock.cli.stream_flags import placement_from, republish_from
from penstock.cli.tables import plain, print_table
from penstock.cli.values import choice, duration, parse_pairs, words
from penstock.durations import format_duration
from penstock.errors import InputError
from penstock.sizes import format_size, parse_size

if TYPE_CHECKING:
    from penstock.buckets import BucketStatus, KeyValue
    from penstock.info import Copy

__all__ = ["add", "compact", "del_", "edit", "info", "ls"]

_STORAGE = {"file": "file", "f": "file", "memory": "memory", "m": "memory"}


def _buckets(names: list[str], option: str) -> list[str]:
    return [name for name in words(names) if bucket_name(name)]


@flag_table
class BucketFlags:
    """What was said of a bucket; None if nothing was."""

    description: str | None = table_flag("A description for people.")
    history: int | None = table_flag("How many values of a key to keep.", min=1, max=64)
    ttl: str | None = table_flag("How long to keep values.", "DURATION", read=duration)
    marker_ttl: str | None = table_flag(
        "Let keys have a time to live, and tell for this long that one ended.", "DURATION", read=duration
    )
    replicas: int | None = table_flag("How many servers keep a copy.")
    max_value_size: str | None = table_flag("Largest value.", "SIZE", read=parse_size)
    max_bucket_size: str | None = table_flag("Largest bucket.", "SIZE", to="max_bytes", read=parse_size)
    tags: list[str] | None = table_flag("Tag that servers must carry; may be repeated.", "TAG", to="")
    cluster: str | None = table_flag("Cluster to live in.", to="")
    compress: bool | None = table_flag("Compress the files.", to="compression")
    metadata: list[str] | None = table_flag(
        "Metadata, a text by its key; may be repeated.", "KEY=VALUE", read=parse_pairs
    )
    republish_source: str | None = table_flag("Subjects to publish again.", "SUBJECT", to="")
    republish_destination: str | None = table_flag("Where to publish them.", "SUBJECT", to="")
    republish_headers: bool = table_flag("Publish headers only.", default=False, to="")
    source: list[str] | None = table_flag(
        "Bucket to collect from; may be repeated.", "BUCKET", to="sources", read=_buckets
    )


def _fields(flags: BucketFlags, base: Any = None) -> dict[str, Any]:
    """Turn the flags that were given into fields of a bucket; `base` is what a bucket has."""
    fields = given_fields(flags)
    if flags.tags is not None or flags.cluster is not None:
        fields["placement"] = placement_from(flags.cluster, flags.tags, None if base is None else base.placement)
    republish = republish_from(flags.republish_source, flags.republish_destination, flags.republish_headers)
    if republish is not None:
        fields["republish"] = republish
    return fields


async def add(
    ctx: typer.Context,
    bucket: Bucket,
    flags: BucketFlags,
    storage: Annotated[str | None, flag("Where values are kept.", "file|memory")] = None,
    mirror: Annotated[str | None, flag("Bucket to copy.", "BUCKET", callback=bucket_name)] = None,
    mirror_domain: Annotated[str | None, flag("Domain of that bucket.", "DOMAIN")] = None,
    json: Json = False,
) -> None:
    """Create a bucket; the same one again is not an error."""
    from penstock.buckets import KeyValue, bucket_source, bucket_stream

    fields = _fields(flags)
    if storage is not None:
        fields["storage"] = choice(_STORAGE)(storage, "--storage")
    if mirror_domain is not None and mirror is None:
        raise InputError("--mirror-domain is given alone.", remedy="Give --mirror, too.")
    if mirror is not None:
        fields["mirror"] = bucket_source(mirror, mirror_domain)
    bucket_stream(bucket, **fields)  # says what is wrong before there is a connection
    async with connected(ctx) as client:
        kv = await KeyValue.create_bucket(client, bucket, **fields)
        status = await kv.status()
    _show(status, json)


async def edit(
    ctx: typer.Context,
    bucket: Bucket,
    flags: BucketFlags,
    no_mirror: Annotated[bool, flag("Stop copying: the mirror becomes a bucket of its own.", "--no-mirror")] = False,
    json: Json = False,
) -> None:
    """Change a bucket; what no flag names stays as it is."""
    from penstock.buckets import KeyValue, bucket_stream

    bucket_stream(bucket, **_fields(flags))
    async with connected(ctx) as client:
        there = (await (await KeyValue.open(client, bucket)).status()).stream.config
        fields = _fields(flags, there)
        if "sources" in fields:
            fields["sources"] = [*there.sources, *fields["sources"]]
        if no_mirror:
            fields["mirror"] = None
        kv = await KeyValue.edit_bucket(client, bucket, **fields)
        status = await kv.status()
    _show(status, json)


async def info(
    ctx: typer.Context,
    bucket: Annotated[str | None, argument("The bucket.", "BUCKET", callback=bucket_name)] = None,
    json: Json = False,
) -> None:
    """Show a bucket: configuration and state."""
    from penstock.buckets import KeyValue

    async with connected(ctx) as client:
        if bucket is None:
            bucket = pick("bucket", [found.bucket for found in await KeyValue.buckets(client)], noun="kv")
        status = await (await KeyValue.open(client, bucket)).status()
    _show(status, json)


async def ls(
    ctx: typer.Context,
    bucket: Annotated[str | None, argument("Bucket whose keys are listed.", "BUCKET", callback=bucket_name)] = None,
    key: Annotated[str | None, argument("Only keys that match.", "KEY")] = None,
    names: Names = False,
    verbose: Annotated[bool, flag("Revision and time of each key.", "-v", "--verbose")] = False,
    display_value: Annotated[bool, flag("With --verbose, its value, too.")] = False,
    json: Json = False,
) -> None:
    """List the buckets, or the keys of one."""
    from penstock.buckets import KeyValue
    from penstock.buckets.key_wire import check_key_filter

    filters = [] if key is None else [check_key_filter(key)]
    missing: set[str] = set()
    async with connected(ctx) as client:
        if bucket is None:
            found = await KeyValue.buckets(client, missing=missing)
        else:
            kv = await KeyValue.open(client, bucket)
            await _list_keys(kv, filters, names, verbose, display_value, json)
            return
    _list_buckets(found, names, json)
    if missing:
        typer.echo(plain(f"Nobody answers for {', '.join(sorted(missing))} now."), err=True)


def _list_buckets(found: list[BucketStatus], names: bool, json: bool) -> None:
    if json:
        print_json([one.bucket for one in found])
    elif names:
        typer.echo("".join(f"{plain(one.bucket)}\n" for one in found), nl=False)
    elif not found:
        typer.echo("No Key-Value buckets found")
    else:
        rows = [
            (
                one.bucket,
                one.description,
                local(one.created),
                format_size(one.bytes),
                *counts(one.values),
                ago(one.stream.last_time),
            )
            for one in sorted(found, key=lambda one: one.bytes)
        ]
        columns = ("Bucket", "~Description", "Created", "#Size", "#Values", "#Last Update")
        print_table("Key-Value Buckets", columns, rows)


async def _list_keys(
    kv: KeyValue, filters: list[str], names: bool, verbose: bool, display_value: bool, json: bool
) -> None:
    if verbose:
        # A key that is written meanwhile comes twice: its last entry counts.
        entries = {entry.key: entry async for entry in kv.entries(*filters)}
        if json:
            print_json([entry.to_json() for entry in entries.values()])
            return
        rows = [
            (entry.key, local(entry.time), entry.delta, entry.revision, *([shown_value(entry)] * display_value))
            for entry in entries.values()
        ]
        columns = ["Key", "Created", "#Delta", "#Revision", *(["~Value"] * display_value)]
        if rows:
            print_table(f"Contents for bucket {kv.bucket!r}", columns, rows)
        found = list(entries)
    else:
        found = await kv.keys(*filters)
        if json:
            print_json(found)
            return
        typer.echo("".join(f"{plain(key)}\n" for key in found), nl=False)
    if not found and not names:
        typer.echo("No keys found in bucket")


async def del_(
    ctx: typer.Context,
    bucket: Bucket,
    key: Annotated[str | None, argument("The key; without one, the bucket goes.", "KEY")] = None,
    force: Force = False,
) -> None:
    """Delete a key, or a whole bucket."""
    from penstock.buckets import KeyValue
    from penstock.buckets.key_wire import check_key

    if key is not None:
        check_key(key)
    async with connected(ctx) as client:
        kv = await KeyValue.open(client, bucket)
        if key is not None:
            confirm(f"Delete key {bucket} > {key}?", force)
            await kv.delete(key)
            return
        confirm(f"Delete bucket {bucket} with {(await kv.status()).values:,} values?", force)
        await KeyValue.delete_bucket(client, bucket)


async def compact(ctx: typer.Context, bucket: Bucket, force: Force = False) -> None:
    """Remove what deleted keys still take up; their markers stay for half an hour."""
    from penstock.buckets import KeyValue

    async with connected(ctx) as client:
        kv = await KeyValue.open(client, bucket)
        confirm(f"Purge all historic values and audit trails for deleted keys in bucket {bucket}?", force)
        count = await kv.purge_deletes()
    typer.echo(f"Removed {entry_words(count)}", err=True)


# -- showing ---------------------------------------------------------------------------------------------------------


def _show(status: BucketStatus, json: bool) -> None:
    if json:
        print_json(info_json(status.stream))
        return
    stream, config = status.stream, status.stream.config
    again = config.republish
    rows: list[tuple[str, Any]] = [
        ("Bucket Name", status.bucket),
        ("History Kept", status.history),
        ("Values Stored", status.values),
        ("Compressed", status.is_compressed),
        ("Per-Key TTL Supported", status.marker_ttl is not None),
        ("Limit Marker TTL", None if status.marker_ttl is None else format_duration(status.marker_ttl)),
        ("Backing Store Kind", "JetStream"),
        ("Description", status.description or None),
        ("Bucket Size", format_size(status.bytes)),
        ("Maximum Bucket Size", size_limit(config.max_bytes)),
        ("Maximum Value Size", size_limit(config.max_msg_size)),
        ("Maximum Age", format_duration(status.ttl) if status.ttl else "unlimited"),
        ("JetStream Stream", stream.name),
        ("Storage", config.storage),
    ]
    if again is not None:
        rows.append((f"Republishing{' Headers' if again.headers_only else ''}", f"{again.src} to {again.dest}"))
    mirrored = "Mirror Information" if status.mirror is not None else "Sources Information"
    origin = "Origin Bucket" if status.mirror is not None else "Source Bucket"
    print_sections(
        f"Information for Key-Value Store Bucket {status.bucket} created {local(status.created)}",
        [
            ("Configuration", rows),
            (mirrored, [row for copy in stream.copies for row in _copy(origin, copy)]),
            ("Metadata", metadata_rows(config.metadata)),
            ("Cluster Information", placed_rows(stream.placed, stream.raw)),
        ],
    )


def _copy(origin: str, copy: Copy) -> list[tuple[str, Any]]:
    return [
        (origin, copy.name.removeprefix("KV_")),
        ("External API", copy.external),
        ("Last Seen", "never" if copy.active is None else format_duration(round(copy.active, 2))),
        ("Lag", copy.lag),
        ("Error", copy.error or None),
    ]
