"""What a backup holds: every message of it is read, and so every checksum looked at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.errors import DataLossError
from penstock.store import backups
from penstock.store.backups import Contents
from penstock.store.files import open_folder
from penstock.store.history import open_archive
from penstock.store.s2 import Broken

__all__ = ["BackupFound", "report_backup"]

_CONSUMER = "obs/"


@dataclass(frozen=True)
class BackupFound:
    """A backup, as it was found."""

    config: dict[str, Any]
    declared: dict[str, Any]
    """The state of the stream as the server said it at the beginning; limits may have removed more since."""
    edit: dict[str, Any] | None
    consumers: tuple[str, ...]
    messages: int
    size: int
    """Bytes that the messages take in a store."""
    first: int
    last: int
    first_time: datetime | None
    last_time: datetime | None
    subjects: Counter[str] = field(repr=False)

    @property
    def entries(self) -> int:
        """How many entries an archive of messages has: the state, consumers, messages, and the end."""
        return 2 + len(self.consumers) + self.messages


def report_backup(uri: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> BackupFound:
    """Read a backup to its end; StoreDamagedError if it is not whole."""
    folder = open_folder(uri)
    path, meta = backups.archive_of(folder)
    history, found = open_archive(folder, path, meta)
    if any(not each.torn for each in history.damage):
        raise backups.damaged(folder, "; ".join(f"{each.block}: {each.what}" for each in history.damage))
    subjects: Counter[str] = Counter()
    messages = size = first = last = 0
    times: list[datetime] = []
    try:
        for part in history.parts:
            for batch in part.batches(history.name, escape=True):
                counted = batch.column("subject").value_counts()
                for value, count in zip(counted.field("values"), counted.field("counts"), strict=True):
                    subjects[value.as_py()] += count.as_py()
                messages += batch.num_rows
                first = first or batch.column("sequence")[0].as_py()
                last = batch.column("sequence")[-1].as_py()
                times = [*times[:1], *(batch.column("time")[at].as_py() for at in (0, -1))]
            if progress is not None:
                progress(part.size)
    except (DataLossError, Broken) as error:
        raise backups.damaged(folder, str(error)) from error
    if isinstance(found, Contents):
        size, consumers, declared = found.size, found.consumers, found.state
    else:
        held = (name.removeprefix(_CONSUMER) for name in found.members if name.startswith(_CONSUMER))
        consumers = tuple(sorted({name.partition("/")[0] for name in held}))
        declared = dict(meta.get("state") or {})
        size = int(declared.get("bytes", 0))
    return BackupFound(
        meta["config"],
        declared,
        meta.get("edit"),
        consumers,
        messages,
        size,
        first,
        last,
        times[0] if times else None,
        times[-1] if times else None,
        subjects,
    )
