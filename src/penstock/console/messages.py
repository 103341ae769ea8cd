"""Stored messages: a page of them, newest first, and one of them with its headers and payload.

A page is filled by asking for one sequence after the other, downwards, because the server finds the next message of a
subject but never the one before. Gaps and the markers of the Spark sink cost a look each, so a page has a number of
looks; it says how far it came, and a link goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.connection import Connection
from penstock.console.backend import Backend, Data, PageRequest, all_of, if_there, iso, page
from penstock.console.payload import FORMS, Form, encoded, preview, render
from penstock.errors import InputError, NotFoundError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.model import Message
from penstock.spark.markers import is_marker

__all__ = ["MessageRows", "message", "messages", "newest", "payload", "row"]

_BLOCK = 16  # sequences that are asked for together
_FILTERS = 10  # subjects of a stream whose newest message is asked for


@dataclass
class MessageRows:
    """What a look through a stream gave."""

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
    """Find where the newest message that is no marker ends, where the stream's subjects let us ask for it."""
    plain = [subject for subject in info.config.subjects if not is_marker(subject)]
    if len(plain) == len(info.config.subjects) or not plain or len(plain) > _FILTERS:
        return None

    async def last(subject: str) -> int:
        found = await if_there(assets.get_message(client, info.name, last_for=subject))
        return found.sequence or 0 if found else 0

    return max(await all_of(plain, last)) + 1


async def _following(backend: Backend, client: Connection, info: StreamInfo, subject: str, start: int) -> MessageRows:
    """Look for messages of a subject upwards from a sequence; the server finds each next one itself."""
    found = MessageRows(start=start)
    left = backend.settings.message_bytes
    place = start
    while len(found.messages) < backend.settings.messages and left > 0:
        item = await if_there(assets.get_message(client, info.name, place, next_for=subject))
        if item is None:
            found.end = info.last_sequence + 1
            return found
        found.messages.append(item)
        left -= len(item.data)
        place = (item.sequence or place) + 1
    found.end = place
    found.older = place  # here: where to go on, upwards
    return found


def row(backend: Backend, message: Message) -> Data:
    """Give what a table says of a message."""
    return {
        "sequence": message.sequence,
        "time": iso(message.time),
        "subject": backend.mask.plain(message.subject),
        "size": len(message.data),
        "headers": len(message.headers),
        "preview": preview(backend.mask.data(message.data)),
        "marker": is_marker(message.subject),
    }


@page("/streams/{stream}/messages")
async def messages(backend: Backend, request: PageRequest) -> Data:
    """Messages of a stream, newest first; with `?subject=` those of a subject, oldest first."""
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    subject = request.query.get("subject", "").strip()
    markers = request.query.get("markers") == "yes"
    if any(letter.isspace() for letter in subject) or len(subject) > 500:
        raise InputError("The subject has spaces, or is very long.", remedy="Write one such as orders.eu.>.")
    if subject:
        found = await _following(backend, client, info, subject, max(1, request.number("from", info.first_sequence)))
    else:
        before = request.number("before", 0) or None
        found = await newest(backend, client, info, count=backend.settings.messages, before=before, markers=markers)
    return {
        "stream": info.name,
        "subject": subject or None,
        "with_markers": markers,
        "messages": [row(backend, item) for item in found.messages],
        "markers": found.markers,
        "looked_at": {"start": found.start, "end": found.end},
        "next": found.older,
        "first": info.first_sequence,
        "last": info.last_sequence,
        "held": info.messages,
    }


@page("/streams/{stream}/messages/{sequence}")
async def message(backend: Backend, request: PageRequest) -> Data:
    """One message: headers, and the payload as JSON, text or hex; `/payload` behind it downloads it."""
    client = await backend.upstream.client()
    found = await _fetch(client, request)
    wanted = request.query.get("as", "")
    if wanted and wanted not in FORMS:
        raise InputError(f"A payload cannot be shown as {wanted[:20]!r}.", remedy=f"Known: {', '.join(FORMS)}.")
    data, headers = backend.mask.data(found.data), backend.mask.headers(found.headers)
    form: Form | None = next((item for item in FORMS if item == wanted), None)
    shown = render(data, backend.settings.payload_bytes, form)
    return {
        "stream": found.stream,
        "sequence": found.sequence,
        "subject": backend.mask.plain(found.subject),
        "time": iso(found.time),
        "size": len(found.data),
        "headers": [{"name": name, "value": value} for name, values in headers.items() for value in values],
        "marker": is_marker(found.subject),
        "form": shown.form,
        "forms": list(shown.possible),
        "text": shown.text,
        "shown": shown.shown,
        "cut": shown.cut,
        "data": encoded(data, backend.settings.payload_bytes),
    }


async def payload(backend: Backend, request: PageRequest) -> bytes:
    """Give the whole payload of a message."""
    return backend.mask.data((await _fetch(await backend.upstream.client(), request)).data)


async def _fetch(client: Connection, request: PageRequest) -> Message:
    stream, text = request.path["stream"], request.path["sequence"]
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 20 and int(text) > 0):
        raise InputError(f"{text[:40]!r} is no sequence.", remedy="Sequences are numbers from 1 on.")
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
