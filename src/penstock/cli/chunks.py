"""`penstock chunks`: files of any size over NATS, to whoever listens or into a stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, first, print_json, progress, run, until_signal
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, InputError, NotFoundError, PenstockError

if TYPE_CHECKING:
    from penstock.chunks import Incoming, StoredMessage
    from penstock.connection import Connection

__all__ = ["file_name", "receive", "send"]

Stream = Annotated[
    str | None, typer.Option("--persistent", metavar="STREAM", help="JetStream stream that keeps the payload.")
]


def send(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="File to send, - for standard input.")],
    subject: Annotated[str, typer.Argument(help="Subject to send it on.")],
    digest: Annotated[bool, typer.Option("--digest", help="Add a SHA-256 that receivers verify.")] = False,
    persistent: Stream = None,
    message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Id of the message; with --persistent that of one to continue."),
    ] = None,
    chunk_size: Annotated[int, typer.Option("--chunk-size", min=1, help="Bytes of a chunk.")] = 512 * 1024,
    as_json: Json = False,
) -> None:
    """Send a file in chunks; with --persistent it is stored with a digest, and the stream is made if need be."""
    path = None if file == "-" else Path(file)
    if path is not None and not path.is_file():
        raise InputError(f"There is no file {file}.", remedy="Check the path; - is standard input.")
    run(_send(ctx.obj, path, subject, digest, persistent, message_id, chunk_size, as_json))


async def _send(
    given: Globals,
    path: Path | None,
    subject: str,
    digest: bool,
    stream: str | None,
    message_id: str | None,
    chunk_size: int,
    as_json: bool,
) -> None:
    from penstock.chunks import Archive, Publisher
    from penstock.connection import connect

    client = await connect(given.options())
    try:
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
        if as_json:
            print_json({"id": message_id, "subject": subject, "stream": stream, "bytes": sent, "seconds": seconds})
        else:
            where = f" into {stream}" if stream else ""
            typer.echo(f"Sent {sent:,} bytes to {subject}{where} as {message_id} ({_rate(sent, seconds)})")
    finally:
        await client.close()


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


def receive(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="Subject to receive on; wildcards only without --persistent.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder for the files, named by message id.")] = Path(
        "."
    ),
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0 for never.")] = 0,
    persistent: Stream = None,
    durable: Annotated[
        str | None,
        typer.Option("--durable", metavar="NAME", help="Consumer that remembers what was received; with --persistent."),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Fetch this one message; with --persistent.")
    ] = None,
    idle: Annotated[
        str, typer.Option("--idle", metavar="DURATION", help="Give a message up when no chunk came for so long.")
    ] = "30s",
    as_json: Json = False,
) -> None:
    """Receive files, until Ctrl-C, --count of them, or with --id one; nothing there already is overwritten."""
    if not to.is_dir() or not os.access(to, os.W_OK | os.X_OK):
        raise InputError(f"{to} is no folder that can be written.", remedy="Make it, or name another with --to.")
    if persistent is None and (durable or message_id):
        raise InputError("--durable and --id are for stored messages.", remedy="Give --persistent STREAM, too.")
    seconds = parse_duration(idle, option="--idle")
    if seconds <= 0:
        raise InputError("--idle is zero.", remedy="Give some time, such as 30s.")
    keeper = _Keeper(to, count, as_json)
    run(_receive(ctx.obj, subject, keeper, persistent, durable, message_id, seconds))


class _Keeper:
    """Writes payloads to files and says so."""

    def __init__(self, folder: Path, count: int, as_json: bool) -> None:
        self.folder, self.count, self.as_json = folder, count, as_json
        self.done = 0
        self.full = asyncio.Event()
        self.advance: Callable[[int], None] = lambda step: None

    async def save(self, message: Incoming | StoredMessage) -> None:
        """Write a message while it is read; a message that fails leaves no file."""
        began = time.perf_counter()
        with _Part(self.folder) as part:
            async for piece in message:
                await asyncio.to_thread(part.file.write, piece)
                self.advance(len(piece))
            self.tell(part.keep(message.message_id), message.message_id, message.subject, message.position, began)

    def copy(self, message_id: str, data: bytes | IO[bytes], subject: str) -> None:
        """Write a message that is whole; this runs on a thread."""
        began = time.perf_counter()
        with _Part(self.folder) as part:
            if isinstance(data, bytes):
                part.file.write(data)
            else:
                shutil.copyfileobj(data, part.file, 1024 * 1024)
            size = part.file.tell()
            self.tell(part.keep(message_id), message_id, subject, size, began)
            self.advance(size)

    def tell(self, path: Path, message_id: str, subject: str, size: int, began: float) -> None:
        """Print one line for a message."""
        self.done += 1
        if self.as_json:
            typer.echo(json.dumps({"id": message_id, "subject": subject, "bytes": size, "file": str(path)}))
        else:
            rate = _rate(size, time.perf_counter() - began)
            typer.echo(f"[#{self.done}] Received {size:,} bytes on {subject} as {path} ({rate})")
        sys.stdout.flush()


class _Part:
    """A file that has no name in the folder until it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f".penstock-{os.getpid()}-{os.urandom(6).hex()}.part"

    def __enter__(self) -> _Part:
        self.file = self._path.open("xb")
        return self

    def keep(self, message_id: str) -> Path:
        """Give the file the name of its message, or that name with a number where it is taken."""
        self.file.close()
        number = 0
        while True:
            target = self._folder / (file_name(message_id) + (f".{number}" if number else ""))
            try:
                os.link(self._path, target)  # unlike a rename it never replaces what is there
                return target
            except FileExistsError:
                number += 1

    def __exit__(self, *about: object) -> None:
        self.file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def file_name(message_id: str) -> str:
    """Make a file name of an id, which a stranger chose: no path, nothing hidden, not too long."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"%{ord(found.group()):02x}", message_id)
    name = f"%2e{name[1:]}" if name.startswith(".") else name
    return name if len(name) <= 200 else hashlib.sha256(message_id.encode()).hexdigest()


async def _receive(
    given: Globals,
    subject: str,
    keeper: _Keeper,
    stream: str | None,
    durable: str | None,
    message_id: str | None,
    idle: float,
) -> None:
    from penstock.connection import connect

    lost = asyncio.Event()

    async def closed() -> None:
        lost.set()

    with until_signal() as stop, progress("Receiving", None, as_bytes=True) as advance:
        keeper.advance = advance
        client = await connect(given.options(), on_close=closed)
        try:
            if stream is not None and message_id is not None:
                from penstock.chunks import Archive

                async with Archive(client, stream, subject).open(message_id) as message:
                    await first(stop.wait(), keeper.save(message))
                return
            async with _listening(client, subject, keeper, stream, durable, idle):
                typer.echo(f"Receiving on {subject}{f' from {stream}' if stream else ''}", err=True)
                await first(stop.wait(), keeper.full.wait(), lost.wait())
                if lost.is_set() and not stop.is_set():
                    raise DeadlineError(
                        "The connection is gone and did not come back.", remedy="Is the server running?"
                    )
        finally:
            await client.close()


@asynccontextmanager
async def _listening(
    client: Connection, subject: str, keeper: _Keeper, stream: str | None, durable: str | None, idle: float
) -> AsyncIterator[None]:
    """Receive in the background, from the subject or from the stream."""
    from penstock.chunks import Archive, Assembler

    def complain(error: PenstockError) -> None:
        typer.echo(f"penstock: {error}", err=True)

    def check() -> None:
        if keeper.count and keeper.done >= keeper.count:
            keeper.full.set()

    if stream is not None:

        async def take(message_id: str, data: Any, subject: str) -> None:
            if keeper.count and keeper.done >= keeper.count:
                await asyncio.Event().wait()  # to return is to acknowledge, and what is not kept must come again
            await asyncio.to_thread(keeper.copy, message_id, data, subject)

        archive = Archive(client, stream, subject)
        async with archive.consume(
            take, durable, on_error=complain, spool_above=8 * 1024 * 1024, spool_dir=keeper.folder
        ) as consumer:

            async def acknowledged() -> None:
                while consumer.delivered < keeper.count:  # noqa: ASYNC110  # it counts, and calls nobody
                    await asyncio.sleep(0.02)
                keeper.full.set()

            watching = asyncio.ensure_future(acknowledged()) if keeper.count else None
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()
        return

    async def save(message: Incoming) -> None:
        try:
            await keeper.save(message)
        except PenstockError:
            return  # on_error has said it
        except OSError as error:
            typer.echo(f"penstock: {message.message_id} could not be written: {error}", err=True)
            message.discard()
        check()

    tasks: set[asyncio.Task[None]] = set()
    async with (
        Assembler(client, idle, on_error=complain, spool_dir=keeper.folder) as assembler,
        assembler.open(subject) as inbox,
    ):

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
            yield
        finally:
            collecting.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(collecting, *tasks, return_exceptions=True)


def _rate(size: int, seconds: float) -> str:
    return f"{size / max(seconds, 1e-9) / 1e6:,.0f} MB/s"
