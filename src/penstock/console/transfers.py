"""Transfers: payloads in chunks that streams hold, and how much of each is there.

Only headers are read, of the newest messages of the streams that were written to last. The server gives headers without
bodies to consumers alone, so each look makes one in memory and deletes it; on streams that keep messages for the sake
of their consumers (interest, work queue) a consumer would change what is kept, and they are left out. Chunks that no
stream captures pass the console unseen.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime

from penstock.chunks.stored import StoredChunk, counting, read_name
from penstock.chunks.wire import Refusal, Tiling, decode, message_id_of, size_of
from penstock.connection import Connection
from penstock.console.backend import Backend, Data, PageRequest, all_of, iso, page, part_of
from penstock.console.seen import all_streams, coverage
from penstock.jetstream.delivery import Delivery
from penstock.jetstream.scan import scan_headers
from penstock.survey import StreamState

__all__ = ["transfers"]


@dataclass
class _Transfer:
    """What is known of one payload."""

    stream: str
    message_id: str
    subject: str
    found: list[StoredChunk] = field(default_factory=list)
    tiling: Tiling = field(default_factory=Tiling)
    chunks: int = 0
    first: int = 0
    last: int = 0
    time: datetime | None = None
    wrong: str | None = None

    def tile(self) -> None:
        """Put the chunks that count in their places."""
        try:
            for item in counting(self.found):
                self.chunks += self.tiling.add(item.chunk, item.size)
        except Refusal as refusal:
            self.wrong = str(refusal)

    def state(self, cut: bool) -> str:
        if self.wrong is not None:
            return "broken"
        if self.tiling.complete:
            return "whole"
        # Where the look begins behind the stream's first message, the first chunks may stand before it.
        return "begins earlier" if cut and self.tiling.missing(1)[0][0] == 0 else "in part"


@page("/transfers", refresh=10, menu=True)
async def transfers(backend: Backend, request: PageRequest) -> Data:
    """Payloads in chunks that streams hold, and how much of each is there."""
    client = await backend.upstream.client()
    found, now = await all_streams(backend, client)
    plain = [state for state in found if state.retention == "limits"]
    held = [state for state in plain if state.messages]
    held.sort(key=lambda state: iso(state.last_time) or "", reverse=True)
    looked = held[: backend.settings.scan_streams]
    # One stream that does not let itself be looked at must not hide the others.
    answers = await all_of(looked, lambda state: part_of(backend, _stream(backend, client, state)))
    rows = [row for found, _ in answers if found is not None for row in found.rows]
    rows.sort(key=lambda row: (row["time"] or "", row["last"]), reverse=True)
    return {
        "transfers": rows[: backend.settings.rows],
        "left_out": max(0, len(rows) - backend.settings.rows),
        "looked_at": {
            "streams": len(looked),
            "of": len(found),
            "kept_for_consumers": len(found) - len(plain),
            "newest": backend.settings.scan_messages,
            "messages": sum(found.messages for found, _ in answers if found is not None),
        },
        "failed": [
            {"stream": state.name, "why": why}
            for state, (_, why) in zip(looked, answers, strict=True)
            if why is not None
        ],
        "coverage": coverage(backend, now),
    }


@dataclass(frozen=True)
class _Looked:
    """What one stream holds of transfers, and how many of its messages were looked at."""

    rows: list[Data]
    messages: int


async def _stream(backend: Backend, client: Connection, info: StreamState) -> _Looked:
    """Look through the newest messages of one stream."""
    start = max(info.first_sequence, info.last_sequence + 1 - backend.settings.scan_messages)
    known: dict[tuple[str, str], _Transfer] = {}
    count = 0
    async with contextlib.aclosing(
        scan_headers(client, info.name, start=start, most=backend.settings.scan_messages)
    ) as messages:
        async for message in messages:
            count += 1
            _take(known, info.name, message)
    cut = start > info.first_sequence
    for item in known.values():
        item.tile()
    return _Looked([_row(backend, item, cut) for item in known.values()], count)


def _take(known: dict[tuple[str, str], _Transfer], stream: str, message: Delivery) -> None:
    headers = message.headers
    message_id = message_id_of(headers)
    if message_id is None:
        return
    sequence = message.sequence
    item = known.setdefault(
        (message.subject, message_id), _Transfer(stream, message_id, message.subject, first=sequence)
    )
    item.last, item.time = sequence, message.place.time
    size = size_of(headers)
    try:
        item.found.append(StoredChunk(sequence, decode(headers, size), size, *read_name(headers, message_id)))
    except Refusal as refusal:
        item.wrong = str(refusal)


def _row(backend: Backend, item: _Transfer, cut: bool) -> Data:
    return {
        "stream": item.stream,
        "id": backend.mask.plain(item.message_id),
        "subject": backend.mask.plain(item.subject),
        "state": item.state(cut),
        "wrong": item.wrong,
        "received": item.tiling.received,
        "total": item.tiling.total,
        "chunks": item.chunks,
        "digest": item.tiling.digest is not None,
        "first": item.first,
        "last": item.last,
        "time": iso(item.time),
    }
