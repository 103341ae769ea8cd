"""`penstock kv put|get|create|update|purge|history|revert|watch`: the keys of a bucket."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Force, Json, argument, flag
from penstock.cli.kv_show import Bucket, Key, shortened, shown_value
from penstock.cli.output import local, print_json
from penstock.cli.questions import confirm
from penstock.cli.running import connected, staying
from penstock.cli.standard_input import whole_body
from penstock.cli.tables import plain, print_table
from penstock.cli.values import refuse_both
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.buckets import Entry, Watch

__all__ = ["create", "get", "history", "purge", "put", "revert", "update", "watch"]

Value = Annotated[str | None, argument("The value; standard input if none is given.", "VALUE")]
Ttl = Annotated[str | None, flag("How long the key lives.", "DURATION")]

_SHOWN = 120  # characters of a value that `get` shows
_OPERATIONS = {"PUT": "PUT", "DEL": "DELETE", "PURGE": "PURGE"}


def _check_ttl(ttl: str | None) -> None:
    if ttl is not None:
        from penstock.jetstream.schedule import written_ttl

        written_ttl(ttl, option="--ttl")


async def put(ctx: typer.Context, bucket: Bucket, key: Key, value: Value = None) -> None:
    """Give a key a value, and print it."""
    from penstock.buckets import KeyValue

    body = await whole_body(value)
    async with connected(ctx) as client:
        await (await KeyValue.open(client, bucket)).put(key, body)
    typer.echo(value or "")


async def create(ctx: typer.Context, bucket: Bucket, key: Key, value: Value = None, ttl: Ttl = None) -> None:
    """Give a key a value if it has none, or was deleted."""
    from penstock.buckets import KeyValue

    _check_ttl(ttl)
    body = await whole_body(value)
    async with connected(ctx) as client:
        await (await KeyValue.open(client, bucket)).create(key, body, ttl=ttl)
    typer.echo(value or "")


async def update(
    ctx: typer.Context,
    bucket: Bucket,
    key: Key,
    value: Annotated[str, argument("The value.", "VALUE")],
    revision: Annotated[int, argument("The revision that the key must have; 0 for a new one.", "REVISION", min=0)],
) -> None:
    """Give a key a value if its revision is still the given one."""
    from penstock.buckets import KeyValue

    body = await whole_body(value)
    async with connected(ctx) as client:
        await (await KeyValue.open(client, bucket)).update(key, body, revision)
    typer.echo(value)


async def get(
    ctx: typer.Context,
    bucket: Bucket,
    key: Key,
    revision: Annotated[int | None, flag("The value of this revision.", "REVISION", min=0)] = None,
    raw: Annotated[bool, flag("Print the value and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Show the value of a key."""
    from penstock.buckets import KeyValue

    refuse_both("--raw", raw, "--json", json)
    async with connected(ctx) as client:
        entry = await (await KeyValue.open(client, bucket)).get(key, revision or None)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(entry.value)
        sys.stdout.flush()
    elif json:
        print_json(entry.to_json())
    else:
        typer.echo(f"{bucket} > {key} revision: {entry.revision} created @ {local(entry.time)}\n")
        text = shown_value(entry)
        if len(text) > _SHOWN:
            typer.echo(f"Showing first {_SHOWN} bytes of {len(text):,}, use --raw for full data\n")
        typer.echo(f"{text[:_SHOWN]}\n")


async def purge(ctx: typer.Context, bucket: Bucket, key: Key, ttl: Ttl = None, force: Force = False) -> None:
    """Delete a key with its history; with --ttl, the marker that is left is gone after that."""
    from penstock.buckets import KeyValue

    _check_ttl(ttl)
    async with connected(ctx) as client:
        kv = await KeyValue.open(client, bucket)
        confirm(f"Purge key {bucket} > {key}?", force)
        await kv.purge(key, ttl=ttl)


async def history(ctx: typer.Context, bucket: Bucket, key: Key, json: Json = False) -> None:
    """Show all entries of a key that the bucket has."""
    from penstock.buckets import KeyValue

    async with connected(ctx) as client:
        found = await (await KeyValue.open(client, bucket)).history(key)
    _show_history(bucket, key, found, json)


def _show_history(bucket: str, key: str, found: list[Entry], json: bool) -> None:
    if json:
        print_json([entry.to_json() for entry in found])
        return
    rows = [
        (
            entry.key,
            entry.revision,
            _OPERATIONS[entry.operation],
            local(entry.time),
            f"{len(entry.value):,}",
            shortened(shown_value(entry)),
        )
        for entry in found
    ]
    columns = ("Key", "#Revision", "Op", "Created", "#Length", "~Value")
    print_table(f"History for {bucket} > {key}", columns, rows)


async def revert(
    ctx: typer.Context,
    bucket: Bucket,
    key: Key,
    revision: Annotated[int, argument("The revision whose value comes back.", "REVISION", min=1)],
    force: Force = False,
    json: Json = False,
) -> None:
    """Give a key the value of an earlier revision, if nobody writes it meanwhile; show its history."""
    from penstock.buckets import KeyValue

    async with connected(ctx) as client:
        kv = await KeyValue.open(client, bucket)
        known = await kv.history(key)
        if len(known) <= 1:
            raise InputError(
                f"Key {key} of bucket {bucket} has one entry, and none to go back to.",
                remedy="`penstock kv edit --history` has a bucket keep more.",
            )
        old = await kv.get(key, revision)
        if not force:
            typer.echo(f"Revision: {old.revision}\n\n{shortened(shown_value(old))}\n", err=True)
        confirm(f"Really revert to revision {revision}", force)
        await kv.update(key, old.value, known[-1].revision)
        found = await kv.history(key)
    _show_history(bucket, key, found, json)


async def watch(
    ctx: typer.Context,
    bucket: Bucket,
    key: Annotated[str, argument("Only keys that match.", "KEY")] = ">",
    history: Annotated[bool, flag("Earlier values first, too.")] = False,
    deletes: Annotated[bool, flag("Deleted keys, too.")] = True,
    updates: Annotated[bool, flag("Only what is new.")] = False,
    revision: Annotated[int | None, flag("Begin with this revision.", "REVISION", min=0)] = None,
    json: Json = False,
) -> None:
    """Show the entries of a bucket, and then what changes, until Ctrl-C."""
    from penstock.buckets import KeyValue
    from penstock.buckets.key_wire import check_key_filter

    check_key_filter(key)
    refuse_both("--updates", updates, "--history", history)
    refuse_both("--updates", updates, "--revision", bool(revision))
    async with staying(ctx) as here:
        kv = await KeyValue.open(here.client, bucket)
        async with kv.watch(
            key, history=history, updates_only=updates, ignore_deletes=not deletes, resume_from=revision or None
        ) as entries:
            await here.until(_print(entries, json))


async def _print(entries: Watch, json: bool) -> None:
    async for entry in entries:
        if json:
            print_json(entry.to_json(), line=True)
            continue
        told = f"[{local(entry.time)}] {_OPERATIONS[entry.operation]} {entry.bucket} > {entry.key}"
        typer.echo(plain(told if entry.is_deleted else f"{told}: {shown_value(entry)}"))
        sys.stdout.flush()
