"""`penstock chunks`: files of any size over NATS, to whoever listens or into a stream."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, Names, StopAfter, StreamName, argument, flag
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import local, print_json, print_pairs, progress
from penstock.cli.running import connected, first, staying
from penstock.cli.tables import plain, print_table
from penstock.durations import parse_duration
from penstock.errors import InputError, NotFoundError, PenstockError
from penstock.part_file import PartFile, writing
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.chunks import Incoming, StoredInfo, StoredMessage
    from penstock.connection import Connection

__all__ = ["file_name", "info", "ls", "receive", "send"]

Stream = Annotated[str | None, flag("JetStream stream that keeps the payload.", "STREAM", "--persistent")]
Waiting = Coroutine[Any, Any, object]


async def send(
    ctx: typer.Context,
    file: Annotated[str, argument("File to send, - for standard input.")],
    subject: Annotated[str, argument("Subject to send it on.")],
    digest: Annotated[bool, flag("Add a SHA-256 that receivers verify.")] = False,
    stream: Stream = None,
    message_id: Annotated[
        str | None, flag("Id of the message; with --persistent that of one to continue.", "ID", "--id")
    ] = None,
    chunk_size: Annotated[int, flag("Bytes of a chunk.", min=1)] = 512 * 1024,
    json: Json = False,
) -> None:
    """Send a file in chunks; with --persistent it is stored with a digest, and the stream is made if need be."""
    from penstock.chunks import Archive, Publisher

    path = None if file == "-" else Path(file)
    if path is not None and not path.is_file():
        raise InputError(f"There is no file {file}.", remedy="Check the path; - is standard input.")
    async with connected(ctx) as client:
        sender: Any = Publisher(client, chunk_size, digest=digest)
        if stream is not None:
            try:
                await Archive(client, stream, subject).config()
            except NotFoundError:
                await Archive.create(client, stream, subject)
                typer.echo(f"Created the stream {stream} for {subject}.*", err=True)
            sender = Publisher.persistent(client, stream, chunk_size)
        size = None if path is None else os.stat(path).st_size
        sent, began = 0, time.perf_counter()
        with progress("Sending", size, as_bytes=True) as advance:

            def show(total: int) -> None:
                nonlocal sent
                advance(total - sent)
                sent = total

            source = path if path is not None else await _standard_input()
            message_id = await sender.publish(subject, source, message_id=message_id, progress=show)
        seconds = time.perf_counter() - began
        outcome = getattr(message_id, "outcome", None)  # a plain publisher does not know
        if json:
            found = {"id": message_id, "subject": subject, "stream": stream, "bytes": sent, "seconds": seconds}
            print_json({**found, "duplicate": outcome == "found", "outcome": outcome})
        elif outcome == "found":
            typer.echo(f"{stream} has it already, as {message_id}")
        else:
            where = f" into {stream}" if stream else ""
            done = "Went on with" if outcome == "continued" else "Sent"
            typer.echo(f"{done} {sent:,} bytes to {subject}{where} as {message_id} ({_rate(sent, seconds)})")


async def _standard_input() -> Any:
    """Give standard input so that Ctrl-C ends the reading: a thread that waits for a pipe could not be stopped."""
    reader = asyncio.StreamReader()
    try:
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
        )
    except ValueError:  # a file, which never keeps its reader waiting
        return sys.stdin.buffer
    return reader


async def receive(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to receive on; wildcards only without --persistent.")],
    to: Annotated[Path, flag("Folder for the files, named by message id.", "DIR")] = Path("."),
    count: StopAfter = 0,
    stream: Stream = None,
    durable: Annotated[
        str | None, flag("Consumer that remembers what was received; with --persistent.", "NAME")
    ] = None,
    message_id: Annotated[str | None, flag("Fetch this one message; with --persistent.", "ID", "--id")] = None,
    idle: Annotated[str, flag("Give a message up when no chunk came for this long.", "DURATION")] = "30s",
    json: Json = False,
) -> None:
    """Receive files, until Ctrl-C, --count of them, or with --id one; nothing there already is overwritten."""
    from penstock.chunks import Archive

    check_subjects(subject, literal=stream is not None)
    if not to.is_dir() or not os.access(to, os.W_OK | os.X_OK):
        raise InputError(f"{to} is not a folder that can be written.", remedy="Make it, or name another with --to.")
    if stream is None and (durable or message_id):
        raise InputError("--durable and --id are for stored messages.", remedy="Give --persistent STREAM, too.")
    seconds = parse_duration(idle, option="--idle")
    if seconds <= 0:
        raise InputError("--idle is zero.", remedy="Give some time, such as 30s.")
    async with staying(ctx) as here:
        with progress("Receiving", None, as_bytes=True) as advance:
            keeper = _Keeper(to, count, json, advance)
            if stream is not None and message_id is not None:
                async with Archive(here.client, stream, subject).open(message_id) as message:
                    with writing(f"A file in {to}", "Make room, or name another folder with --to."):
                        await first(here.stop.wait(), keeper.save(message))
                return
            receiving = (
                _from_subject(here.client, subject, keeper, seconds)
                if stream is None
                else _from_stream(here.client, stream, subject, keeper, durable)
            )
            async with receiving as complete:
                typer.echo(f"Receiving on {subject}{f' from {stream}' if stream else ''}", err=True)
                await here.until(complete)


async def ls(
    ctx: typer.Context,
    stream: StreamName,
    subject: Annotated[str | None, flag("Subject that they were sent on, if the stream has several.")] = None,
    names: Names = False,
    json: Json = False,
) -> None:
    """List the payloads that a stream holds in chunks, also those that are not whole."""
    from penstock.chunks import Archive

    if subject is not None:
        check_subjects(subject, literal=True)
    async with connected(ctx) as client:
        found = [item async for item in Archive(client, stream, subject).list()]
    if json:
        print_json([item.message_id if names else item.to_json() for item in found])
    elif names:
        typer.echo("".join(f"{plain(item.message_id)}\n" for item in found), nl=False)
    elif not found:
        typer.echo(f"{stream} holds no payloads in chunks")
    else:
        rows = [
            (item.message_id, format_size(item.size), item.chunks, local(item.time), _state(item)) for item in found
        ]
        print_table(f"Payloads of {stream}", ("Id", "#Size", "#Chunks", "Stored", "~State"), rows)


async def info(
    ctx: typer.Context,
    stream: StreamName,
    message_id: Annotated[str, argument("Id of the payload.", "ID")],
    subject: Annotated[str | None, flag("Subject that it was sent on, if the stream has several.")] = None,
    json: Json = False,
) -> None:
    """Show what a stream holds of one payload in chunks."""
    from penstock.chunks import Archive

    if subject is not None:
        check_subjects(subject, literal=True)
    async with connected(ctx) as client:
        found = await Archive(client, stream, subject).info(message_id)
    if json:
        print_json(found.to_json())
        return
    print_pairs(
        f"Payload {message_id} in stream {stream}",
        [
            ("Subject", found.subject),
            ("Size", format_size(found.size)),
            ("Bytes", found.size),
            ("Of", found.total),
            ("Chunks", found.chunks),
            ("Digest", None if found.digest is None else f"SHA-256 {found.digest}"),
            ("Stored", local(found.time)),
            ("State", _state(found)),
        ],
    )


def _state(found: StoredInfo) -> str:
    return "whole" if found.is_whole else found.problem


@dataclass
class _Keeper:
    """Writes payloads to files and says so."""

    folder: Path
    count: int
    """How many are wanted; 0 for any number."""
    json: bool
    advance: Callable[[int], None]
    done: int = 0

    @property
    def has_all(self) -> bool:
        """Whether as many are kept as are wanted."""
        return 0 < self.count <= self.done

    async def save(self, message: Incoming | StoredMessage) -> None:
        """Write a message while it is read; a message that fails leaves no file."""
        began = time.perf_counter()
        with PartFile(self.folder) as part:
            async for piece in message:
                await asyncio.to_thread(part.file.write, piece)
                self.advance(len(piece))
            path = await asyncio.to_thread(_keep, part, self.folder, message.message_id)
            self.tell(path, message.message_id, message.subject, message.position, began)

    def copy(self, message_id: str, data: bytes | IO[bytes], subject: str) -> None:
        """Write a message that is whole; this runs on a thread."""
        began = time.perf_counter()
        with PartFile(self.folder) as part:
            if isinstance(data, bytes):
                part.file.write(data)
            else:
                shutil.copyfileobj(data, part.file, 1024 * 1024)
            size = part.file.tell()
            self.tell(_keep(part, self.folder, message_id), message_id, subject, size, began)
            self.advance(size)

    def tell(self, path: Path, message_id: str, subject: str, size: int, began: float) -> None:
        """Print one line for a message."""
        self.done += 1
        if self.json:
            print_json({"id": message_id, "subject": subject, "bytes": size, "file": str(path)}, line=True)
        else:
            rate = _rate(size, time.perf_counter() - began)
            typer.echo(f"[#{self.done}] Received {size:,} bytes on {subject} as {path} ({rate})")
            sys.stdout.flush()


def _keep(part: PartFile, folder: Path, message_id: str) -> Path:
    """Give a file the name of its message, or that name with a number if it is taken."""
    number = 0
    while True:
        target = folder / (file_name(message_id) + (f".{number}" if number else ""))
        try:
            part.keep(target)
            return target
        except FileExistsError:
            number += 1


def file_name(message_id: str) -> str:
    """Make a file name of an id, which a stranger chose: no path, nothing hidden, not too long."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"%{ord(found.group()):02x}", message_id)
    name = f"%2e{name[1:]}" if name.startswith(".") else name
    return name if len(name) <= 200 else hashlib.sha256(message_id.encode()).hexdigest()


def _complain(error: PenstockError) -> None:
    typer.echo(f"penstock: {error}", err=True)


@asynccontextmanager
async def _from_stream(
    client: Connection, stream: str, subject: str, keeper: _Keeper, durable: str | None
) -> AsyncIterator[Waiting]:
    """Receive from a stream, in the background; gives what ends when all that is wanted is there."""
    from penstock.chunks import Archive

    async def take(message_id: str, data: Any, subject: str) -> None:
        if keeper.has_all:
            await asyncio.Event().wait()  # to return is to acknowledge, and what is not kept must come again
        await asyncio.to_thread(keeper.copy, message_id, data, subject)

    async with Archive(client, stream, subject).consume(
        take, durable, on_error=_complain, spool_above=8 * 1024 * 1024, spool_dir=keeper.folder
    ) as consumer:

        async def acknowledged() -> None:
            while consumer.delivered < keeper.count:  # noqa: ASYNC110  # it counts, and calls nobody
                await asyncio.sleep(0.02)

        yield acknowledged() if keeper.count else asyncio.Event().wait()


@asynccontextmanager
async def _from_subject(client: Connection, subject: str, keeper: _Keeper, idle: float) -> AsyncIterator[Waiting]:
    """Receive from a subject, in the background; gives what ends when all that is wanted is there."""
    from penstock.chunks import Assembler, Reason

    full = asyncio.Event()

    async def save(message: Incoming) -> None:
        try:
            await keeper.save(message)
        except PenstockError:
            return  # on_error has said it
        except OSError as error:
            typer.echo(f"penstock: {message.message_id} could not be written: {error}", err=True)
            message.discard()
        if keeper.has_all:
            full.set()

    tasks: set[asyncio.Task[None]] = set()
    assembler = Assembler(client, idle, on_error=_complain, spool_dir=keeper.folder)
    async with assembler, assembler.open(subject) as inbox:

        async def collect() -> None:
            async for message in inbox:
                if keeper.count and keeper.done + len(tasks) >= keeper.count:
                    message.discard()
                    continue
                task = asyncio.ensure_future(save(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        collecting = asyncio.ensure_future(collect())
        try:
            yield full.wait()
        finally:
            collecting.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(collecting, *tasks, return_exceptions=True)
    counts = assembler.counts
    lost = ", ".join(f"{reason} {count:,}" for reason, count in counts.failures.items() if reason != Reason.CLOSED)
    if lost:
        typer.echo(f"penstock: messages that were given up: {lost}", err=True)
    if counts.disconnects:
        slow = f", {counts.cut_off} of them as a server cuts off a slow reader" if counts.cut_off else ""
        what = f"the connection was lost {counts.disconnects} times{slow}"
        typer.echo(f"penstock: {what}; what was sent meanwhile is lost", err=True)


def _rate(size: int, seconds: float) -> str:
    return f"{size / max(seconds, 1e-9) / 1e6:,.0f} MB/s"
