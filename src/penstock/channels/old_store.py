"""`OldStore`: the folder in which a NATS Streaming server kept its channels, read without that server.

Nothing in the folder is changed. What is read is what the old server would find if it started again: the same records
count, and the same damage is an error.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.channels.names import is_channel
from penstock.channels.old_records import (
    HEAD,
    INDEX,
    SubscriptionRecord,
    Subscriptions,
    checksum,
    cut_off,
    damaged,
    fields_of,
    is_encrypted,
    records,
    text_of,
)
from penstock.channels.store import MOST
from penstock.channels.wire import MsgProto, decode
from penstock.errors import InputError, RemoteProtocolError, StoreInUseError
from penstock.server.neighbours import process_holding

__all__ = ["OldMessage", "OldStore", "read_server_info", "refuse_encrypted"]

_SLICE = re.compile(r"msgs\.([0-9]{1,18})\.dat")
_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class OldMessage:
    """A message as the old server stored it."""

    sequence: int
    data: bytes
    reply: str
    timestamp: int


def read_server_info(content: bytes, where: str) -> str:
    """Give the cluster id of a server; InputError if it was one of several."""
    fields = fields_of(content)
    if text_of(fields, 9):
        raise InputError(
            f"The store {where} is of a server that ran with -clustered: its subscriptions are in its log.",
            remedy="Read them from the monitoring pages of the leader instead: --from-monitor.",
        )
    return text_of(fields, 1)


def refuse_encrypted(channel: str, sequence: int, data: bytes) -> None:
    """Raise InputError for a message that the old server encrypted."""
    if is_encrypted(sequence, data):
        raise InputError(
            f"The messages of {channel} in this store are encrypted.",
            remedy="Copy them from the running server (--from), which has the key; when all are there, "
            "--no-verify brings the positions.",
        )


class OldStore:
    """The store in a folder; InputError, StoreDamagedError or StoreInUseError if it cannot be read as one.

    `truncate` leaves a record out that the end of its file cut off, and notes it; otherwise that is an error.
    `polynomial` is the one of the checksums, if the old server ran with -file_crc_poly.
    """

    def __init__(self, folder: str | Path, *, truncate: bool = False, polynomial: int = 0xEDB88320) -> None:
        self.folder = Path(folder)
        self.notes: list[str] = []
        """What was left out, and why."""
        self._truncate = truncate
        self._crc = checksum(polynomial)
        if not (self.folder / "server.dat").is_file():
            raise InputError(
                f"{self.folder} is not the folder of a NATS Streaming file store: it has no server.dat.",
                remedy="Name the folder that the old server had as -dir.",
            )
        self._seen = self._look()
        self.cluster_id = self._read_server()

    def _look(self) -> dict[Path, tuple[int, int]]:
        """Give size and time of each file."""
        files = (path for path in self.folder.rglob("*.dat"))
        return {path: (found.st_size, found.st_mtime_ns) for path in files if (found := path.stat())}

    def check_unchanged(self) -> None:
        """Raise StoreInUseError if a file has changed since the store was opened.

        A server in another container, or of another user, is hidden from `check_unused`; what it writes is not.
        """
        now = self._look()
        changed = [path for path in now.keys() | self._seen.keys() if now.get(path) != self._seen.get(path)]
        if changed:
            raise StoreInUseError(
                f"The file {min(changed)} has changed while it was read: a server writes there.",
                remedy="Stop the old server first.",
                store=str(self.folder),
            )

    def check_unused(self) -> None:
        """Raise StoreInUseError if a process of this machine has the store open."""
        holder = process_holding(self.folder)
        locked = self.folder / ".rootdir.lck"
        if holder is None and locked.exists():  # of servers with --ft_group
            try:
                with locked.open("rb") as file:
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = 0
        if holder is not None:
            by = f"process {holder}" if holder else "another process"
            raise StoreInUseError(
                f"The store {self.folder} is in use by {by}: what it holds changes under us.",
                remedy="Stop the old server first; --dry-run looks at the store while it runs.",
                store=str(self.folder),
                pid=holder,
            )

    # -- what there is -----------------------------------------------------------------------------------------------

    def _read_server(self) -> str:
        path = self.folder / "server.dat"
        found = [content for _, _, content in self._records(path, typed=False)]
        if len(found) != 1:
            raise damaged(str(path), 4, f"has {len(found)} records, and not one", "Put back a copy of the file.")
        self._fields(path, found[0])
        return read_server_info(found[0], str(self.folder))

    def channels(self) -> list[str]:
        """Give the names of the channels."""
        names = sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir())
        for name in names:
            if not is_channel(name):
                raise InputError(
                    f"The folder {self.folder / name} has no channel's name.", remedy="Move it out of the store."
                )
        return names

    def clients(self) -> set[str]:
        """Give the ids of the clients that were connected."""
        found: set[str] = set()
        path = self.folder / "clients.dat"
        if path.exists():
            for kind, offset, content in self._records(path, typed=True):
                name = text_of(self._fields(path, content), 1)
                if kind not in (1, 2):
                    raise damaged(str(path), offset, f"has a record of type {kind}", "Put back a copy of the file.")
                (found.add if kind == 1 else found.discard)(name)
        return found

    def subscriptions(self, channel: str) -> list[SubscriptionRecord]:
        """Give the subscriptions of a channel, durable or not, with what each has not acknowledged."""
        made = Subscriptions()
        path = self.folder / channel / "subs.dat"
        if path.exists():
            for kind, offset, content in self._records(path, typed=True):
                try:
                    made.add(kind, content)
                except RemoteProtocolError as error:
                    raise damaged(
                        str(path), offset, f"has a record that cannot be read ({error})", "Put back a copy."
                    ) from None
        return list(made.known.values())

    def _fields(self, path: Path, content: bytes) -> dict[int, int | bytes]:
        try:
            return fields_of(content)
        except RemoteProtocolError as error:
            raise damaged(str(path), 4, f"has a record that cannot be read ({error})", "Put back a copy.") from None

    def _records(self, path: Path, *, typed: bool, known_end: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """Give the records of a file; what its end cut off is an error unless it begins at `known_end`."""

        def torn(offset: int) -> None:
            if offset != known_end and not self._truncate:
                raise cut_off(str(path), offset)
            note = f"{path}: left out what begins at byte {offset}, which the end of the file cut off"
            if note not in self.notes:
                self.notes.append(note)

        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                yield from records(file, str(path), size, self._crc, torn, typed=typed)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.", remedy="Check its permissions.") from None

    # -- messages ----------------------------------------------------------------------------------------------------

    def _slices(self, channel: str) -> list[Path]:
        folder = self.folder / channel
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := _SLICE.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def _index(self, path: Path) -> tuple[int, int, int] | None:
        """Give the first and the last sequence that the index of a slice knows, and the byte where the last one ends.

        The old server believes its index: what that does not name was never acknowledged to a publisher. None if there
        is not an index, or not one to believe.
        """
        try:
            with path.with_suffix(".idx").open("rb") as file:
                size = file.seek(0, 2)
                if size < 4 + INDEX.size or (size - 4) % INDEX.size:
                    return None
                first, last = (self._index_record(file, place) for place in (4, size - INDEX.size))
            if first is None or last is None or last[1] > path.stat().st_size:
                return None
        except OSError:
            return None
        return first[0], last[0], last[1]

    def _index_record(self, file: BinaryIO, place: int) -> tuple[int, int] | None:
        file.seek(place)
        content = file.read(INDEX.size)
        if len(content) < INDEX.size:
            return None
        sequence, offset, _, size, stored = INDEX.unpack(content)
        if self._crc(content[:-4]) != stored or not sequence:
            return None
        return int(sequence), int(offset) + HEAD.size + int(size)

    def _messages(self, channel: str, start: int = 0) -> Iterator[OldMessage]:
        """Give the messages from `start` on, perhaps with some before it."""
        reached = 0
        for path in self._slices(channel):
            index = self._index(path)
            if index is not None and index[1] < start:
                continue
            for _, offset, content in self._records(path, typed=False, known_end=index[2] if index else 0):
                try:
                    message = decode(MsgProto, content)
                except RemoteProtocolError as error:
                    raise damaged(
                        str(path), offset, f"has a message that cannot be read ({error})", "Put back a copy."
                    ) from None
                if message.sequence <= reached:
                    what = f"has message {message.sequence} behind message {reached}"
                    raise damaged(str(path), offset, what, "Put back a copy of the folder.")
                reached = message.sequence
                yield OldMessage(message.sequence, message.data, message.reply, message.timestamp)

    async def ends(self, channel: str) -> tuple[int, int] | None:
        """Give the first and the last message of a channel; None if it has none."""
        indexes = [self._index(path) for path in self._slices(channel)]
        known = [index for index in indexes if index is not None]
        if known and len(known) == len(indexes):
            return known[0][0], known[-1][1]
        first = last = 0
        for message in self._messages(channel):
            first, last = first or message.sequence, message.sequence
        return (first, last) if first else None

    async def read(self, channel: str, start: int, last: int) -> AsyncIterator[list[OldMessage]]:
        """Give a channel's messages from `start` to `last`, in batches."""
        batch: list[OldMessage] = []
        size = 0
        for message in self._messages(channel, start):
            if not start <= message.sequence <= last:
                continue
            refuse_encrypted(channel, message.sequence, message.data)
            batch.append(message)
            size += len(message.data)
            if len(batch) == MOST or size > _MOST_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
