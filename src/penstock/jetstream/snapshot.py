"""Backups of streams: into a folder and back, in the form that the `nats` command uses.

`backup.json` holds the configuration and the state; another file holds what the server sent, and its name says in
which form: `stream.arc.s2` by servers from 2.15 on, `stream.tar.s2` by older ones. A server sees by itself which form
it gets. A backup is complete when `backup.json` is there: it is written last, when all else is synced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connection import api_request
from penstock.errors import (
    DataLossError,
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.json_text import load_json
from penstock.model import Placement, Stream
from penstock.part_file import make_folder, move_whole, write_whole
from penstock.wire.jetstream.answers import number, part, read_answer, text
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg, Subscription

__all__ = ["backup", "restore"]

log = logging.getLogger("penstock.jetstream")

META, ARCHIVE, TAR = "backup.json", "stream.arc.s2", "stream.tar.s2"
_PART = "stream.part"
_MAGIC = b"NATSARC1"  # what an archive begins with, in the first bytes of its first, compressed or plain, block
_CHUNK = 128 * 1024
_WINDOW = 4 * 1024 * 1024  # what the server may send ahead of our acks; bounds what waits in memory
_AHEAD = 64 * 1024 * 1024  # bytes that no server sends ahead, unless a larger window is asked for
_SILENCE = 30.0
_LOOK = 0.25  # seconds between looks at the connection while nothing comes
_WHOLE = f"A backup is a folder with {META} and {ARCHIVE}, or {TAR}."
_RESTORE = 3600.0  # the server unpacks everything before it answers the last chunk


async def backup(
    client: Connection,
    stream: str,
    folder: str | Path,
    *,
    consumers: bool = True,
    check: bool = False,
    chunk_size: int = _CHUNK,
    window_size: int = _WINDOW,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write a stream, with its consumers, into an empty or new folder; `progress` gets the size of each chunk.

    The server sends chunks of `chunk_size` bytes, and at the most `window_size` bytes ahead of our acks.
    """
    path = Path(folder)
    info = await assets.stream_info(client, stream)
    if info.config.storage == "memory":
        raise InputError(f"Stream {stream} is kept in memory, which the server does not back up.", remedy="Use file.")
    is_new = _make_folder(path)
    inbox = client.new_inbox()
    # What the server sends ahead is bounded by the window, or by that of an older server, which hears of none.
    chunks = await client.subscribe(inbox, pending_bytes_limit=max(_AHEAD, 2 * window_size))
    try:
        body = {
            "deliver_subject": inbox,
            "no_consumers": not consumers,
            "jsck": check,
            "chunk_size": chunk_size,
            "window_size": window_size,
        }
        answer = await api_request(client, f"STREAM.SNAPSHOT.{stream}", body)
        meta = {"config": part(answer, "config"), "state": part(answer, "state")}
        size = await _receive(client, stream, chunks, path / _PART, progress)
        with _told(path, "written"):
            _finish(path, stream, meta)
    except BaseException:
        _remove(path, is_new)
        raise
    finally:
        if not client.is_closed:
            await chunks.unsubscribe()
    return {**meta, "size": size}


def _finish(path: Path, stream: str, meta: dict[str, Any]) -> None:
    """Name what the server sent by its form, whichever server of a cluster sent it, and say at last what it is."""
    with (path / _PART).open("rb") as file:
        is_archive = _MAGIC in file.read(64)
    if not is_archive:
        _check_tar(path / _PART, stream)
    move_whole(path / _PART, path / (ARCHIVE if is_archive else TAR))
    write_whole(path / META, json.dumps(meta, indent=2).encode())


def _check_tar(path: Path, stream: str) -> None:
    """Refuse what an older server broke off: it says so only in a file among the others."""
    from penstock.store.s2 import Broken
    from penstock.store.tar_files import Tar

    try:
        Tar.open(str(path))
    except Broken as error:
        raise JetStreamError(
            f"The backup of {stream} is not whole: {error}.", remedy="The server's log says why; nothing of it is kept."
        ) from None


def _remove(path: Path, is_new: bool) -> None:
    """Leave nothing of a backup that failed, nor the folder, if it was made for it."""
    for name in (META, _PART, ARCHIVE, TAR):
        (path / name).unlink(missing_ok=True)
    if is_new:
        path.rmdir()


def _write_whole(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    """Say in a sentence what keeps files from being written or read, such as a full disk."""
    try:
        yield
    except OSError as error:
        remedy = (
            "Check that there is room, and that this user may write there. Nothing of it is kept."
            if what == "written"
            else "Check that this user may read it."
        )
        raise PenstockError(f"{path} cannot be {what}: {error.strerror}.", remedy=remedy) from None


def _make_folder(path: Path) -> bool:
    """Make a folder, unless it is there and empty; tell whether it was made."""
    try:
        is_new = not path.exists()
        if not is_new and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} is there and not an empty folder.", remedy="Name a new one.")
        make_folder(path, 0o700)
        return is_new
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}.", remedy="Name another folder.") from None


async def _receive(
    client: Connection, stream: str, chunks: Subscription, path: Path, progress: Callable[[int], None] | None
) -> int:
    size, number, stretch = 0, 0, client.stretch
    with path.open("xb", buffering=0) as file, ExitStack() as expecting:
        while True:
            message = await _next(client, stream, chunks, stretch)
            if chunks.dropped:
                what = f"The server sends more of the backup of {stream} than it may send ahead of our acks."
                raise RemoteProtocolError(what, remedy="Is a nats-server at the other end? Nothing of it is kept.")
            if message.reply:
                number += 1
                if not message.reply.endswith(f".{number}"):  # the server numbers all chunks but the last one
                    what = f"Chunk {number:,} of the backup of {stream} is missing."
                    raise RemoteProtocolError(what, remedy="It was lost between servers: make the backup again.")
                expecting.close()  # if an ack may not be sent, none may: the last one tells it
                expecting.enter_context(client.expecting(message.reply, chunks.end))
                await client.publish(message.reply)
            if not message.data:
                if message.status in (None, 204):
                    break
                said = f"{message.status} {message.description}"
                raise JetStreamError(f"The server broke the backup of {stream} off: {said}.")
            with _told(path.parent, "written"):
                await asyncio.to_thread(_write_whole, file, message.data)
            size += len(message.data)
            if progress is not None:
                progress(len(message.data))
        with _told(path.parent, "written"):
            await asyncio.to_thread(os.fsync, file.fileno())  # it may take long; to name it does not any more
    return size


async def _next(client: Connection, stream: str, chunks: Subscription, stretch: int) -> Msg:
    """Wait for a chunk; what a broken connection took with it is not sent again."""
    silence = Deadline(_SILENCE)
    while client.stretch == stretch:
        with suppress(DeadlineError):
            message = await chunks.next_msg(min(_LOOK, silence.left))
            if client.stretch == stretch:
                return message
        if not silence.left:
            what = f"The backup of {stream} stopped: nothing came for {_SILENCE:g} s."
            raise DeadlineError(what, remedy="Is the server running? What was written is removed.")
    raise DisconnectedError(f"The connection broke during the backup of {stream}.", remedy="Make the backup again.")


async def restore(
    client: Connection,
    folder: str | Path,
    *,
    config: Stream | None = None,
    replicas: int | None = None,
    placement: Placement | None = None,
    progress: Callable[[int], None] | None = None,
) -> StreamInfo:
    """Make a stream anew from a backup; `config` changes its configuration, but not its name.

    `replicas` and `placement` take the place of what the configuration says of these.
    """
    path = Path(folder)
    meta, data = read_meta(path), data_file(path)
    wanted = dict(meta["config"] if config is None else config.to_json())
    name = meta["config"]["name"]
    if wanted["name"] != name:
        what = f"The backup is of stream {name} and cannot become {wanted['name']}: the server keeps the name."
        raise InputError(what, remedy="Restore it under its name, and copy it with sources.")
    if replicas is not None:
        wanted["num_replicas"] = replicas
    if placement is not None:
        wanted["placement"] = placement.to_json()
    with _told(path, "read"):
        file = data.open("rb")  # before the server is asked: it would wait for us
    with file:
        body = {"config": wanted, "state": meta["state"]}
        answer = await api_request(client, f"STREAM.RESTORE.{assets.checked(name, 'stream')}", body)
        subject = text(answer, "deliver_subject")
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            if said := await _send(client, name, subject, chunk, _SILENCE):
                read_answer(said)  # it may hold an error
            if progress is not None:
                progress(len(chunk))
    info = StreamInfo.from_json(read_answer(await _send(client, name, subject, b"", _RESTORE)))
    _compare(meta["state"], info)
    return info


async def _send(client: Connection, stream: str, subject: str, chunk: bytes, seconds: float) -> bytes:
    """Give the server a chunk, none at the end, and give its answer, which does not come on another connection."""
    asking, broken = asyncio.ensure_future(client.request(subject, chunk, seconds)), client.broken
    waiting: set[asyncio.Future[Any]] = {asking, broken}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return (await asking).data
    finally:
        if not asking.cancel() and not asking.cancelled():
            asking.exception()  # who was cancelled meanwhile does not ask for it
    raise DisconnectedError(
        f"The connection broke during the restore of {stream}.",
        remedy="Look whether the stream is there, and whole; if not, restore it again.",
    )


def _compare(state: dict[str, Any], info: StreamInfo) -> None:
    """Tell if a restored stream holds less than its backup says."""
    held, last = number(state, "messages", 0), number(state, "last_seq", 0)
    if info.messages >= held and info.last_sequence >= last:
        return
    what = (
        f"The backup of {info.name} holds {held:,} messages up to {last:,}, and the restored stream {info.messages:,}"
    )
    config = info.config
    if info.last_sequence >= last and (config.max_age or max(config.max_msgs, config.max_bytes) > 0):
        log.warning("%s: its limits removed the others.", what)
        return
    raise DataLossError(
        f"{what} up to {info.last_sequence:,}.",
        remedy="The stream is there as it is. Is the backup whole, and of this server's version or an older one?",
        stream=info.name,
        start=number(state, "first_seq", 0),
        end=last + 1,
        first=info.first_sequence,
        last=info.last_sequence,
    )


def read_meta(path: Path) -> dict[str, Any]:
    """Read what a backup is of; refuse a folder that holds none."""
    try:
        meta = load_json((path / META).read_text())
        Stream.from_json(meta["config"])
        if not isinstance(meta["state"], dict):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} holds no complete backup.", remedy=_WHOLE) from None
    data_file(path)
    return dict(meta)


def data_file(path: Path) -> Path:
    """Find the file with what the server sent."""
    found = [path / name for name in (ARCHIVE, TAR) if (path / name).is_file()]
    if not found:
        raise InputError(f"{path} holds no complete backup.", remedy=_WHOLE)
    if len(found) > 1:
        raise InputError(
            f"{path} holds {ARCHIVE} and {TAR}, of two backups.", remedy="Remove the one that is not meant."
        )
    return found[0]
