"""Stored messages: a page of them, newest first or from a place on, and one of them with its headers and payload.

A page without a filter is filled by asking for one sequence after the other, downwards. Gaps and the markers of the
Spark sink cost a look each, so a page has a number of looks; it says how far it came, and a link goes on from there.
Whatever is looked for is found by `search`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.connection import Connection
from penstock.console.backend import Backend, Data, PageRequest, all_of, if_there, iso, page
from penstock.console.criteria import MessageCriteria
from penstock.console.payload import FORMS, Form, Shown, encoded, render
from penstock.console.search import SearchStep, row, search
from penstock.console.seen import count_markers
from penstock.console.whole import chunk_facts, whole_payload
from penstock.errors import InputError, NotFoundError, PenstockError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.model import Message
from penstock.spark.markers import is_marker

__all__ = ["MessageRows", "fetch_message", "form_facts", "message", "messages", "newest", "row", "tail"]

_BLOCK = 16  # sequences that are asked for together
_FILTERS = 10  # subjects of a stream whose newest message is asked for


@dataclass
class MessageRows:
    """What a look at the newest messages of a stream gave."""

    messages: list[Message] = field(default_factory=list)
    markers: int = 0
    """Markers of the Spark sink that were passed over."""
    start: int = 0
    """The range [start, end) of sequences was looked at."""
    end: int = 0
    older: int | None = None
    """Where to go on, downwards; None at the beginning of the stream."""


async def newest(
    backend: Backend,
    client: Connection,
    info: StreamInfo,
    *,
    count: int,
    before: int | None = None,
    markers: bool = False,
) -> MessageRows:
    """Look for the newest messages below a sequence."""
    found = MessageRows()
    if not info.messages:
        return found
    end = before if before is not None else info.last_sequence + 1
    if before is None and not markers:
        end = await _end_of_rows(client, info) or end
    found.end = place = min(end, info.last_sequence + 1)
    first = max(1, info.first_sequence)
    looks, left = backend.settings.lookups, backend.settings.message_bytes
    # Large messages come one by one, so that what one page fetches stays bounded.
    size = max(1, info.bytes // info.messages)
    block = max(1, min(_BLOCK, left // size))
    while place > first and len(found.messages) < count and looks > 0 and left > 0:
        wanted = range(max(first, place - min(block, looks)), place)
        answers = await all_of(wanted, lambda number: if_there(assets.get_message(client, info.name, number)))
        for item in reversed(answers):
            if item is None:  # a gap
                continue
            if is_marker(item.subject) and not markers:
                found.markers += 1
                continue
            if len(found.messages) == count:
                break
            found.messages.append(item)
            left -= len(item.data)
        place = wanted.start if len(found.messages) < count else (found.messages[-1].sequence or first)
        looks -= len(wanted)
    found.start = max(place, first)
    found.older = place if place > first else None
    return found


async def _end_of_rows(client: Connection, info: StreamInfo) -> int | None:
    """Find where the newest message that is not a marker ends, where the stream's subjects let us ask for it."""
    plain = [subject for subject in info.config.subjects if not is_marker(subject)]
    if len(plain) == len(info.config.subjects) or not plain or len(plain) > _FILTERS:
        return None

    async def last(subject: str) -> int:
        found = await if_there(assets.get_message(client, info.name, last_for=subject))
        return found.sequence or 0 if found else 0

    return max(await all_of(plain, last)) + 1


@page("/streams/{stream}/messages")
async def messages(backend: Backend, request: PageRequest) -> Data:
    """Messages of a stream, newest first; `?from=` a sequence, a time or a duration ago, oldest first.

    `?subject=`, `?header=` and `?text=` find messages by subject, header, and text in the payload, a bounded step at a
    time. Markers of the Spark sink are left out without `?markers=yes`.
    """
    before = request.number("before", 0) or None
    criteria = MessageCriteria.read(request.query, before)
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    markers = await count_markers(client, info) or 0
    if criteria.subject or criteria.start or criteria.is_search:
        step = await search(backend, client, info, criteria)
    else:
        rows = await newest(
            backend, client, info, count=backend.settings.messages, before=before, markers=criteria.markers
        )
        shown = [row(backend, item) for item in rows.messages]
        step = SearchStep(shown, rows.markers, start=rows.start, end=rows.end, next=rows.older)
    upwards = bool(criteria.start)
    return {
        "stream": info.name,
        "subject": backend.mask.plain(criteria.subject) or None,
        "header": backend.mask.plain(criteria.header) or None,
        "text": backend.mask.plain(criteria.text) or None,
        "from": criteria.start or None,
        "order": "oldest first" if upwards else "newest first",
        "with_markers": criteria.markers,
        "messages": step.rows,
        "markers": step.markers,
        "looked_at": {"start": step.start, "end": step.end},
        "search": _progress(info, criteria, step) if criteria.subject or criteria.is_search else None,
        "next": step.next,
        "next_query": None if step.next is None else _further(criteria, step.next),
        "markers_query": criteria.query(markers="yes", before=None),
        "plain_query": criteria.query(from_="", before=None),
        "most": backend.settings.messages,
        "first": info.first_sequence,
        "last": info.last_sequence,
        "held": max(0, info.messages - markers),
        "markers_held": markers,
    }


@page("/streams/{stream}/tail", refresh=1)
async def tail(backend: Backend, request: PageRequest) -> Data:
    """The newest messages of a stream as they are stored, all or those of a subject, with a header or a text."""
    criteria = replace(MessageCriteria.read(request.query), start="", markers=False)
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    rate = backend.rates.take(info.name, iso(info.created), info.last_sequence)
    count = backend.settings.messages
    if criteria.subject or criteria.is_search:
        # Among so many of the newest: it is looked through again every second.
        lowest = max(1, info.last_sequence + 1 - backend.settings.lookups)
        step = await search(backend, client, info, criteria, lowest=lowest)
    else:
        rows = await newest(backend, client, info, count=count)
        shown = [row(backend, item) for item in rows.messages]
        step = SearchStep(shown, rows.markers, start=rows.start, end=rows.end)
    return {
        "stream": info.name,
        "subject": backend.mask.plain(criteria.subject) or None,
        "header": backend.mask.plain(criteria.header) or None,
        "text": backend.mask.plain(criteria.text) or None,
        "messages": step.rows,
        "markers": step.markers,
        "looked_at": {"start": step.start, "end": step.end},
        "rate": rate,
        "faster": rate is not None and rate > (backend.settings.lookups if criteria.is_search else count),
        "plain_query": criteria.query(),
        "last": info.last_sequence,
    }


def _further(criteria: MessageCriteria, place: int) -> str:
    return criteria.query(from_=place) if criteria.start else criteria.query(before=place)


def _progress(info: StreamInfo, criteria: MessageCriteria, step: SearchStep) -> Data:
    """Say how far a search is through the stream, in hundredths."""
    first, end = max(1, info.first_sequence), info.last_sequence + 1
    through = step.end - first if criteria.start else end - step.start
    return {
        "looked": step.looked,
        "bytes": step.bytes,
        "percent": 100 if step.next is None else max(0, min(99, 100 * through // max(1, end - first))),
        "over": step.next is None,
        "full": len(step.rows),
    }


@page("/streams/{stream}/messages/{sequence}")
async def message(backend: Backend, request: PageRequest) -> Data:
    """One message: headers, and the payload as JSON, text, Protobuf or hex, or whole if it came in chunks.

    `/payload` behind it downloads the payload; with `?whole=yes`, that of all chunks together.
    """
    wanted = request.query.get("as", "")
    if wanted and wanted not in FORMS:
        raise InputError(f"A payload cannot be shown as {wanted[:20]!r}.", remedy=f"Known: {', '.join(FORMS)}.")
    client = await backend.upstream.client()
    found = await fetch_message(client, request)
    data, headers = backend.mask.data(found.data), backend.mask.headers(found.headers)
    chunk = chunk_facts(backend, found)
    size, whole_of = len(found.data), None
    if chunk is not None and request.query.get("whole") == "yes":
        try:
            whole, size = await whole_payload(backend, client, found)
            data, whole_of = backend.mask.data(whole), chunk["id"]
        except PenstockError as error:  # of this part; the chunk itself is shown
            chunk["trouble"] = backend.mask.text(str(error))
    form: Form | None = next((item for item in FORMS if item == wanted), None)
    types = _types(backend, found, request.query.get("type", ""))
    shown = render(data, backend.settings.payload_bytes, form, backend.protobuf, types["chosen"])
    return {
        "stream": found.stream,
        "sequence": found.sequence,
        "subject": backend.mask.plain(found.subject),
        "time": iso(found.time),
        "size": size,
        "headers": [{"name": name, "value": value} for name, values in headers.items() for value in values],
        "marker": is_marker(found.subject),
        "chunk": chunk,
        "whole": whole_of is not None,
        "types": types,
        **form_facts(shown),
        "cut": shown.shown < size,
        "data": encoded(data, backend.settings.payload_bytes),
    }


def form_facts(shown: Shown) -> Data:
    """Give how a payload is shown, as pages and their twins say it."""
    return {
        "form": shown.form,
        "forms": list(shown.possible),
        "text": shown.text,
        "shown": shown.shown,
        "note": shown.note,
    }


def _types(backend: Backend, found: Message, asked: str) -> Data:
    """Give the Protobuf types that there are, and the one that a payload is read as."""
    if backend.protobuf is None:
        return {"known": [], "left_out": 0, "chosen": None}
    known, most = backend.protobuf.types, backend.settings.rows
    chosen = asked or backend.protobuf.type_of(found.subject, found.headers)
    if chosen is not None and chosen not in known:
        raise InputError(f"There is no Protobuf type {chosen[:80]!r} here.", remedy="The page lists those that are.")
    return {"known": list(known[:most]), "left_out": max(0, len(known) - most), "chosen": chosen}


async def fetch_message(client: Connection, request: PageRequest) -> Message:
    """Give the message that a path names."""
    stream, text = request.path["stream"], request.path["sequence"]
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 20 and int(text) > 0):
        raise InputError(f"{text[:40]!r} is not a sequence.", remedy="Sequences are numbers from 1 on.")
    try:
        return await assets.get_message(client, stream, int(text))
    except NotFoundError as error:
        if error.err_code == 10059:
            raise NotFoundError(f"There is no stream {stream}.", **error.facts) from None
        raise NotFoundError(
            f"Stream {stream} holds no message {text}.",
            remedy="It was deleted, its stream's limits removed it, or it was never there.",
            **error.facts,
        ) from None
