"""`penstock object`: object buckets, with the words of the `nats` command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Force, Headers, Json, Names, argument, flag, flag_table, given_fields, table_flag
from penstock.cli.message_parts import parse_headers
from penstock.cli.object_show import (
    bucket_json,
    orphan_words,
    show_bucket,
    show_buckets,
    show_change,
    show_object,
    show_objects,
    show_orphans,
)
from penstock.cli.output import print_json, progress
from penstock.cli.questions import confirm, pick
from penstock.cli.running import connected, staying
from penstock.cli.tables import plain
from penstock.cli.values import choice, duration, parse_pairs
from penstock.durations import format_duration
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size, parse_size

if TYPE_CHECKING:
    from penstock.buckets import ObjectInfo, ObjectStore, ObjectStoreStatus
    from penstock.connection import Connection

__all__ = ["add", "compact", "del_", "edit", "get", "info", "link", "ls", "put", "rename", "seal", "watch"]

SHOWN = 20 * 1024  # bytes from which on a bar shows how far it is


def _bucket(name: str | None) -> str | None:
    """Refuse what cannot be the name of a bucket before there is a connection."""
    from penstock.buckets.key_wire import check_bucket

    return None if name is None else check_bucket(name)


def _object(name: str | None) -> str | None:
    from penstock.buckets.object_wire import check_object

    return None if name is None else check_object(name)


Bucket = Annotated[str, argument("The bucket.", "BUCKET", callback=_bucket)]
AnyBucket = Annotated[str | None, argument("The bucket.", "BUCKET", callback=_bucket)]
Name = Annotated[str, argument("The object.", "FILE", callback=_object)]
AnyName = Annotated[str | None, argument("The object.", "FILE", callback=_object)]
Progress = Annotated[bool, flag("Show progress on a terminal.")]


@flag_table
class BucketFlags:
    """What a bucket is set up with; None if nothing was said."""

    ttl: str | None = table_flag("How long objects are kept.", "DURATION", read=duration)
    replicas: int | None = table_flag("How many servers keep a copy.", min=1)
    max_bucket_size: str | None = table_flag("Most bytes to keep.", "SIZE", to="max_bytes", read=parse_size)
    description: str | None = table_flag("A description for people.")
    tags: list[str] | None = table_flag("Tag that servers must carry; may be repeated.", to="")
    cluster: str | None = table_flag("Cluster to live in.", to="")
    metadata: list[str] | None = table_flag(
        "Metadata, a text by its key; may be repeated.", "KEY=VALUE", read=parse_pairs
    )
    compress: bool | None = table_flag("Compress the files.", to="compression")

    def settings(self, there: ObjectStoreStatus | None = None) -> dict[str, Any]:
        """Give the settings that the flags say, over those of a bucket that is there."""
        found = given_fields(self)
        if self.tags is not None or self.cluster is not None:
            from penstock.cli.stream_flags import placement_from

            base = None if there is None else there.stream.config.placement
            found["placement"] = placement_from(self.cluster, self.tags, base)
        return found


_STORAGE = {"file": "file", "f": "file", "memory": "memory", "m": "memory"}


async def add(
    ctx: typer.Context,
    bucket: Bucket,
    storage: Annotated[str, flag("Where objects are kept.", "file|memory")] = "file",
    json: Json = False,
    *,
    flags: BucketFlags,
) -> None:
    """Create a bucket."""
    from penstock.buckets import ObjectStore

    kind: Any = choice(_STORAGE)(storage, "--storage")
    settings = flags.settings()
    async with connected(ctx) as client:
        store = await ObjectStore.create_bucket(client, bucket, storage=kind, **settings)
        _tell_bucket(await store.status(), json)


async def edit(
    ctx: typer.Context, bucket: Bucket, force: Force = False, json: Json = False, *, flags: BucketFlags
) -> None:
    """Change a bucket; asks before a TTL removes objects."""
    from penstock.buckets import ObjectStore

    settings = flags.settings()
    if not settings:
        raise InputError("Nothing is to be changed.", remedy="Give a flag, such as --description.")
    async with connected(ctx) as client:
        there = await (await ObjectStore.open(client, bucket)).status()
        oldest = there.stream.first_time if there.stream.messages else None
        ttl = settings.get("ttl", 0)
        if ttl and oldest is not None and (datetime.now(UTC) - oldest).total_seconds() > ttl:
            confirm(f"Really remove objects of bucket {bucket} that are older than {flags.ttl}", force)
        store = await ObjectStore.edit_bucket(client, bucket, **flags.settings(there))
        _tell_bucket(await store.status(), json)


async def put(
    ctx: typer.Context,
    bucket: Bucket,
    file: Annotated[Path | None, argument("The file to put; standard input if none is given.", "FILE")] = None,
    name: Annotated[str | None, flag("Name of the object, if not that of the file.", callback=_object)] = None,
    description: Annotated[str, flag("What is said about the object.")] = "",
    header: Headers = None,
    metadata: Annotated[list[str] | None, flag("Metadata, a text by its key; may be repeated.", "KEY=VALUE")] = None,
    chunk_size: Annotated[int | None, flag("Bytes of a chunk.", min=1)] = None,
    chunk_headers: Annotated[bool, flag("Let receivers of chunks read it, too.")] = False,
    progress: Progress = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Put a file into a bucket; asks before it replaces what is there."""
    from penstock.buckets.object_wire import CHUNK_SIZE, check_object

    if file is None and name is None:
        raise InputError("What is read from standard input has no name.", remedy="Give --name.")
    if file is not None and not file.is_file():
        raise InputError(f"There is no file {file}.", remedy="Check the path.")
    called = name or check_object(_cleaned(file))
    about: dict[str, Any] = {"description": description, "headers": parse_headers(header)}
    about |= {"metadata": parse_pairs(metadata or (), "--metadata"), "chunk_headers": chunk_headers}
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        there, expected = await _there(store, called), None
        if not force:
            if there is not None and not there.deleted:
                _check_asked(file, f"Replace existing file {bucket} > {called} of {format_size(there.size)}")
            expected = 0 if there is None else there.sequence  # what was agreed to, and nothing else
        size = None if file is None else os.stat(file).st_size
        with _bar("Putting", size, progress) as advance:
            made = await store.put(
                called,
                _source(file),
                chunk_size=chunk_size or CHUNK_SIZE,
                expected=expected,
                progress=advance,
                **about,
            )
    print_json(made.to_json()) if json else show_object(made)


def _check_asked(file: Path | None, question: str) -> None:
    if file is None:
        what = "The bucket has an object of that name, and standard input is the new object: nobody can be asked."
        raise InputError(what, remedy="Give -f to replace it.")
    confirm(question, force=False)


def _cleaned(file: Path | None) -> str:
    """Give the name of an object as the `nats` command makes it of a path."""
    return os.path.normpath(str(file))


def _source(file: Path | None) -> Any:
    from penstock.cli.standard_input import pieces

    return file if file is not None else pieces()


async def get(
    ctx: typer.Context,
    bucket: Bucket,
    name: Name,
    output: Annotated[
        str | None,
        flag("File to write, if not the last part of the name; - for standard output.", "FILE", "-O", "--output"),
    ] = None,
    progress: Progress = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write an object into a file, which appears when all of it is there; asks before it replaces one."""
    if output == "-" and json:
        raise InputError("--json and -O - both want standard output.", remedy="Leave one of them out.")
    path = None if output == "-" else Path(output) if output is not None else Path(file_of(name))
    if path is not None and (not path.absolute().parent.is_dir() or path.is_dir()):
        raise InputError(f"{path} cannot be a file.", remedy="Name a file in a folder that is there with -O.")
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        if path is not None and path.exists():
            confirm(f"Replace existing target file {path.absolute()}", force)
            force = True
        began = time.perf_counter()
        size = (await store.info(name)).size
        with _bar("Getting", size or None, progress and path is not None) as advance:
            target: Any = path.absolute() if path is not None else sys.stdout.buffer
            found = await store.save(name, target, overwrite=force, progress=advance)
        seconds = time.perf_counter() - began
    if path is None:
        sys.stdout.buffer.flush()
    elif json:
        print_json({**found.to_json(), "file": str(path.absolute()), "seconds": seconds})
    else:
        rate = f" average {format_size(round(found.size / seconds))}/s" if seconds > 2 else ""
        took = format_duration(round(seconds, 3))
        typer.echo(plain(f"Wrote: {format_size(found.size)} to {path.absolute()} in {took}{rate}"))


def file_of(name: str) -> str:
    """Give the file that an object is written to if none is named: the last part of its name, which others chose."""
    found = PurePosixPath(name).name
    if not found or found in (".", "..", "-") or found.startswith(".") or not found.isprintable() or "\\" in found:
        raise InputError(f"{name!r} cannot be used as the name of a file.", remedy="Name a file with -O.")
    return found


async def del_(ctx: typer.Context, bucket: Bucket, name: AnyName = None, force: Force = False) -> None:
    """Delete an object, or a bucket with everything in it."""
    from penstock.buckets import ObjectStore

    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        if name is None:
            held = format_size((await store.status()).bytes)
            confirm(f"Delete bucket {bucket} and all its files, {held}", force)
            await ObjectStore.delete_bucket(client, bucket)
            typer.echo(f"Removed {bucket}")
            return
        if not force:
            found = await store.info(name)
            confirm(f"Delete {format_size(found.size)} file {bucket} > {name}", force)
        await store.delete(name)
        typer.echo(plain(f"Removed {bucket} > {name}"))


async def info(ctx: typer.Context, bucket: AnyBucket = None, name: AnyName = None, json: Json = False) -> None:
    """Show how a bucket is set up, or what is known of an object."""
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        if name is None:
            _tell_bucket(await store.status(), json)
            return
        found = await store.info(name)
    print_json(found.to_json()) if json else show_object(found)


async def ls(ctx: typer.Context, bucket: AnyBucket = None, names: Names = False, json: Json = False) -> None:
    """List buckets, or the objects of one."""
    from penstock.buckets import ObjectStore

    async with connected(ctx) as client:
        if bucket is None:
            found = await ObjectStore.buckets(client)
            if json:
                print_json([item.bucket if names else bucket_json(item) for item in found])
            elif names:
                typer.echo("".join(f"{item.bucket}\n" for item in found), nl=False)
            else:
                show_buckets(found)
            return
        objects = await (await _opened(client, bucket)).list()
    if json:
        print_json([item.name if names else item.to_json() for item in objects])
    elif names:
        typer.echo("".join(f"{plain(item.name)}\n" for item in objects), nl=False)
    else:
        show_objects(bucket, objects)


async def seal(ctx: typer.Context, bucket: Bucket, force: Force = False) -> None:
    """Let nothing be changed in a bucket any more, for ever."""
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        if (await store.status()).is_sealed:
            typer.echo(f"{bucket} is sealed already")
            return
        confirm(f"Really seal Bucket {bucket}, sealed buckets can not be unsealed or modified", force)
        status = await store.seal()
    typer.echo(f"{bucket} has been sealed\n")
    show_bucket(status)


async def rename(
    ctx: typer.Context,
    bucket: Bucket,
    name: Name,
    new: Annotated[str, argument("Its new name.", "NEW", callback=_object)],
) -> None:
    """Give an object another name."""
    async with connected(ctx) as client:
        await (await _opened(client, bucket)).rename(name, new)
    typer.echo(plain(f"Renamed {bucket} > {name} to {new}"))


async def link(
    ctx: typer.Context,
    bucket: Bucket,
    name: Annotated[str, argument("Name of the link.", "NAME", callback=_object)],
    target: Annotated[str | None, argument("The object; the whole bucket if none is given.", "TARGET")] = None,
    to: Annotated[str | None, flag("Bucket of the target, if another one.", "BUCKET", callback=_bucket)] = None,
) -> None:
    """Add a link to an object, or to a whole bucket."""
    if target is None and to is None:
        raise InputError("What is the link to lead to?", remedy="Name an object, or a bucket with --to.")
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        if target is None:
            await store.add_bucket_link(name, str(to))
        else:
            await store.add_link(name, target, bucket=to)
    where = f"{to or bucket} > {target}" if target is not None else f"bucket {to}"
    typer.echo(plain(f"Linked {bucket} > {name} to {where}"))


async def watch(ctx: typer.Context, bucket: Bucket, json: Json = False) -> None:
    """Show what is in a bucket, and then every change, until Ctrl-C."""
    async with staying(ctx) as here:
        store = await _opened(here.client, bucket)
        async with store.watch() as changes:

            async def show() -> None:
                async for found in changes:
                    print_json(found.to_json(), line=True) if json else show_change(found)

            await here.until(show())


async def compact(
    ctx: typer.Context,
    bucket: Bucket,
    older: Annotated[str, flag("Only if the last chunk is older than that.", "DURATION")] = "1d",
    dry_run: Annotated[bool, flag("Show what would be removed, and remove nothing.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove chunks that no object has: what programs left that were killed while they put."""
    from penstock.buckets.object_orphans import check_age

    age = check_age(older, "--older")
    async with connected(ctx) as client:
        store = await _opened(client, bucket)
        found = await store.orphans(age)
        if dry_run:
            show_orphans(bucket, found, json)
            return
        if found:
            confirm(f"Remove {orphan_words(found)}, older than {older}, from bucket {bucket}?", force)
            found = await store.purge_orphans(age)
    if json:
        show_orphans(bucket, found, json)
    else:
        typer.echo(f"Removed {orphan_words(found)}", err=True)


async def _opened(client: Connection, bucket: str | None) -> ObjectStore:
    """Open the bucket that was named, or let somebody choose."""
    from penstock.buckets import ObjectStore

    if bucket is None:
        bucket = pick("object bucket", [found.bucket for found in await ObjectStore.buckets(client)], noun="object")
    return await ObjectStore.open(client, bucket)


async def _there(store: ObjectStore, name: str) -> ObjectInfo | None:
    try:
        return await store.info(name, deleted=True)
    except NotFoundError:
        return None


@contextmanager
def _bar(what: str, size: int | None, on: bool) -> Iterator[Callable[[int], None]]:
    """Show how far a transfer is; calls get how many bytes are done in all."""
    with progress(what, size, as_bytes=True, on=on and (size is None or size > SHOWN)) as advance:
        done = 0

        def show(total: int) -> None:
            nonlocal done
            advance(total - done)
            done = total

        yield show


def _tell_bucket(status: ObjectStoreStatus, json: bool) -> None:
    print_json(bucket_json(status)) if json else show_bucket(status)
