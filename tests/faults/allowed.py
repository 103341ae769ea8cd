"""What may stop a client with a clear error: data, read from the table of the guarantees.

Each part stands for guarantees of that page. After a fault, its clients may end with an error, or tell of one, if a
cell of these guarantees says for this change of the world that it is told, or prevented.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tools import guarantees_page

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
# Errors that tell of each change, each by itself: not those below it in the tree. One that names another trouble than
# there was is not a clear one.
PASSING = ("DeadlineError", "NoRespondersError", "UnreachableError", "DisconnectedError", "LinkError", "PublishError")
CHANGED = ("DataLossError", "MarkerError", "NotFoundError", "FencedError", "ConditionError", "JetStreamError")
CARRIED = ("BusError", "HandlerError", "NoConsumerError", "SlowConsumerError", "UnfinishedError", "AssemblyError")
ERRORS: dict[str, tuple[str, ...]] = {
    "overloaded": (*PASSING, *CARRIED, "ChannelError", "WorkerDied"),
    "moved": (*PASSING, "WorkerDied"),
    "copied": ("FencedError", "ConcurrentUpdate", "MarkerError", "ConflictError", "RemoteProtocolError"),
    "reused": ("ChannelError", "ConflictError", "MarkerError"),
    "restored": (*CHANGED, *PASSING, "UnfinishedError", "AssemblyError", "ChannelError"),
    "replaced": (*CHANGED, *PASSING, "UnfinishedError", "AssemblyError", "ChannelError"),
    "trimmed": (*CHANGED, "UnfinishedError", "AssemblyError"),
    "mirrored": (),
    # Whoever is connected while permissions change is asked to log in again.
    "refused": ("DeniedError", "LoginError", "JetStreamError", *PASSING, "UnfinishedError", "ChannelError"),
}
LASTING = ("restored", "replaced", "trimmed")  # changes that are there for good; the others are over when they end
NAMING = ("DataLossError", "MarkerError")  # errors that name the stream that has changed


@functools.cache
def _cells() -> dict[str, dict[str, tuple[tuple[str, ...], str]]]:
    return guarantees_page.sections(PAGE.read_text())


def tells(part: str, change: str) -> bool:
    """Say whether the table allows a part to stop with an error after a change."""
    rows = [row for title, row in _cells().items() if title.startswith(GUARANTEES[part])]
    return any({"told", "prevented"} & set(row[change][0]) for row in rows)


def allowed(
    part: str, faults: Iterable[Window], streams: Collection[str] = (), bound: float = float("inf")
) -> Callable[[str, str, float], bool]:
    """Give what judges an error of a part by the faults of which it may tell, by the clock of all processes.

    It may come from the begin of a fault until `bound` seconds after its end, or at any later time if what was done
    stays. If it says that something is gone, or does not fit, it must name one of the part's `streams`, and what was
    done must have been done to that one, or to all.
    """
    told: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for fault in faults:
        change = KINDS[fault.kind].change
        until = float("inf") if change in LASTING else fault.end + bound
        for name in ERRORS[change] if tells(part, change) else ():
            told[name].append((fault.begin - ROUNDED, until, fault.target if fault.target in streams else ""))

    def judge(name: str, text: str, moment: float) -> bool:
        changed = {stream for begin, until, stream in told[name] if begin <= moment <= until}
        if name in NAMING and streams:
            named = {stream for stream in streams if re.search(rf"(?<!\w){re.escape(stream)}(?!\w)", text)}
            return bool(named) and bool(changed & {"", *named})
        return bool(text) and bool(changed)

    return judge
