"""What may stop a client with a clear error: data, read from the table of the guarantees.

Each part stands for guarantees of that page. After a fault, its clients may end with an error, or tell of one, if a
cell of these guarantees says for this change of the world that it is told, or prevented.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from tools import guarantees_page

from penstock import errors
from tests.faults.checker import Window
from tests.faults.faults import KINDS

ROUNDED = 0.001  # seconds by which a line of a history may seem to be earlier than it was

PAGE = Path(__file__).resolve().parents[2] / "docs" / "why" / "guarantees.md"

# The guarantees whose word counts for the clients of a part, by the beginning of their titles.
GUARANTEES = {
    "publish": ("Publisher: nothing acknowledged is lost",),
    "short": ("Publisher: nothing acknowledged is lost",),
    "work": ("Worker: each message is handled once", "Publisher: nothing acknowledged is lost"),
    "read": ("Bulk read: exactly the messages of a range",),
    "sink": ("Sink, exactly once",),
    "feed": ("Publisher: nothing acknowledged is lost",),
    "spark": ("Sink, exactly once", "Source: each sequence in exactly one committed batch", "Source: gone data"),
    "chunks": ("Chunks on core NATS: whole payloads", "Chunks on core NATS: a publish that returns"),
    "stored": ("Stored chunks: a publish that returns", "Stored chunks: what is fetched"),
    "bus": ("Bus: sections that end without an error",),
    "channels": ("Channels: nothing acknowledged is lost", "Channels: each subscription gets each message"),
}
# Errors that tell of each change. One that names another trouble than there was is not a clear one.
PASSING = ("DeadlineError", "NoRespondersError", "UnreachableError", "DisconnectedError", "LinkError", "PublishError")
CHANGED = ("DataLossError", "MarkerError", "NotFoundError", "FencedError", "ConditionError", "JetStreamError")
ERRORS: dict[str, tuple[str, ...]] = {
    "overloaded": (*PASSING, "UnfinishedError", "AssemblyError", "BusError", "ChannelError", "WorkerDied"),
    "moved": (*PASSING, "WorkerDied"),
    "copied": ("FencedError", "ConcurrentUpdate", "MarkerError", "ConflictError", "RemoteProtocolError", "LoginError"),
    "reused": ("ChannelError", "ConflictError", "MarkerError"),
    "restored": (*CHANGED, *PASSING, "UnfinishedError", "AssemblyError", "ChannelError"),
    "replaced": (*CHANGED, *PASSING, "UnfinishedError", "AssemblyError", "ChannelError"),
    "trimmed": (*CHANGED, "UnfinishedError", "AssemblyError"),
    "mirrored": (),
    "refused": ("DeniedError", "JetStreamError", *PASSING, "UnfinishedError", "ChannelError", "PublishError"),
}


@functools.cache
def _cells() -> dict[str, dict[str, tuple[tuple[str, ...], str]]]:
    return guarantees_page.sections(PAGE.read_text())


def tells(part: str, change: str) -> bool:
    """Say whether the table allows a part to stop with an error after a change."""
    rows = [row for title, row in _cells().items() if title.startswith(GUARANTEES[part])]
    return any({"told", "prevented"} & set(row[change][0]) for row in rows)


def allowed(part: str, faults: Iterable[Window]) -> Callable[[str, str, float], bool]:
    """Give what judges an error of a part by the faults that had begun when it came, by the clock of all processes."""
    begun = [(fault.begin - ROUNDED, KINDS[fault.kind].change) for fault in faults]
    since: dict[str, float] = {}
    for begin, change in begun:
        for name in ERRORS[change] if tells(part, change) else ():
            since[name] = min(begin, since.get(name, begin))

    def judge(name: str, text: str, moment: float) -> bool:
        names = {one for one, begin in since.items() if begin <= moment}
        kind = getattr(errors, name, None)
        lines = [name] if kind is None else [one.__name__ for one in kind.__mro__]
        return bool(text) and bool(names & set(lines))

    return judge
