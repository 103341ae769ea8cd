"""Dead letters: which streams keep some, and what they are; `jetstream.deadletter` says how they are kept.

Rows that the Spark sink could not write are messages with the header `Penstock-Error` on a subject of their own: a
search for that header finds them, and the page of the stream leads there.
"""

from __future__ import annotations

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, PageRequest, all_of, if_there, iso, page, part_of
from penstock.console.payload import preview
from penstock.console.seen import all_streams, coverage
from penstock.console.tables import Listing, fields
from penstock.errors import InputError, RemoteProtocolError
from penstock.jetstream import assets
from penstock.jetstream.letter import LETTERS, read_letter
from penstock.model import Message
from penstock.wire.jetstream.answers import held_subjects
from penstock.wire.jetstream.names import MAX_DELIVERIES

__all__ = ["dead_letters", "letters"]

_STREAMS = 200  # dead-letter streams whose letters are counted


@page("/dead-letters", refresh=5, menu=True)
async def dead_letters(backend: Backend, request: PageRequest) -> Data:
    """Messages that no handler could do: in which streams they are kept, of which consumers, and how many."""
    client = await backend.upstream.client()
    streams, now = await all_streams(backend, client)
    kept = [item.name for item in streams if item.dead_letters]
    answers = await all_of(kept[:_STREAMS], lambda name: part_of(backend, _counted(client, name)))
    rows = [row for found, _ in answers for row in found or []]
    table = Listing.of(
        request,
        rows,
        fields("stream", "consumer", "letters", "dead"),
        sort="-letters",
        words=lambda row: (row["stream"], row["consumer"] or "", row["dead"]),
        most=backend.settings.rows,
    )
    return {
        "letters": list(table.items),
        "streams": len(kept),
        "streams_left_out": max(0, len(kept) - _STREAMS),
        "failed": [
            {"stream": name, "why": why} for name, (_, why) in zip(kept, answers, strict=False) if why is not None
        ],
        "coverage": coverage(backend, now),
        **table.about(),
    }


async def _counted(client: Connection, dead: str) -> list[Data]:
    """Count the letters of each consumer, and the advisories of which no letter was made."""
    counts: dict[tuple[str, str], int] = {}
    waiting: dict[tuple[str, str], int] = {}
    for root, found in ((LETTERS, counts), (MAX_DELIVERIES, waiting)):
        asked = {"subjects_filter": f"{root}.>"}
        answer = await if_there(api_request(client, f"STREAM.INFO.{dead}", asked))
        for subject, count in ({} if answer is None else held_subjects(answer)).items():
            parts = subject.removeprefix(f"{root}.").split(".")
            if len(parts) in (2, 3):  # others are notes of letters that are being put back
                found[parts[0], parts[1]] = found.get((parts[0], parts[1]), 0) + count
    return [
        {
            "dead": dead,
            "stream": stream,
            "consumer": consumer,
            "letters": counts.get((stream, consumer), 0),
            "uncollected": waiting.get((stream, consumer), 0),
        }
        for stream, consumer in sorted({*counts, *waiting})
    ]


@page("/dead-letters/{stream}", refresh=5)
async def letters(backend: Backend, request: PageRequest) -> Data:
    """The dead letters in a stream: why each died, when, and what it was; `?of=STREAM&consumer=NAME` for some."""
    origin, consumer = request.query.get("of", "").strip(), request.query.get("consumer", "").strip()
    for name, what in ((origin, "stream"), (consumer, "consumer")):
        if name:
            assets.checked(name, what)
    if consumer and not origin:
        raise InputError("A consumer is named without its stream.", remedy="Add &of=STREAM to the address.")
    start = max(1, request.number("from", 1))
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    pattern = f"{LETTERS}.{origin or '*'}.{consumer or '*'}.*"
    rows: list[Data] = []
    left, place = backend.settings.message_bytes, start
    following: int | None = None
    while True:
        found = await if_there(assets.get_message(client, info.name, place, next_for=pattern))
        if found is None or found.sequence is None:
            break
        if len(rows) == backend.settings.messages or left <= 0:
            following = found.sequence
            break
        rows.append(_letter_row(backend, found))
        left -= len(found.data)
        place = found.sequence + 1
    held = await _counted(client, info.name)
    meant = [row for row in held if (origin or row["stream"]) == row["stream"] and consumer in ("", row["consumer"])]
    return {
        "stream": info.name,
        "of": origin or None,
        "consumer": consumer or None,
        "letters": rows,
        "from": start,
        "next": following,
        "held": sum(row["letters"] for row in meant),
        "uncollected": sum(row["uncollected"] for row in meant),
        "groups": held[: backend.settings.rows],
        "groups_left_out": max(0, len(held) - backend.settings.rows),
    }


def _letter_row(backend: Backend, message: Message) -> Data:
    """Give what a table says of a letter; of something else on such a subject, that it is not a letter."""
    about: Data = {
        "number": message.sequence,
        "died": iso(message.time),
        "size": len(message.data),
        "preview": preview(backend.mask.data(message.data)),
    }
    try:
        letter = read_letter(message.sequence or 0, message)
    except RemoteProtocolError as error:
        unknown = dict.fromkeys(("stream", "consumer", "sequence", "deliveries", "stored"))
        return {**about, **unknown, "subject": backend.mask.plain(message.subject), "reason": None, "wrong": error.what}
    return {
        **about,
        "stream": backend.mask.plain(letter.stream),
        "consumer": backend.mask.plain(letter.consumer),
        "sequence": letter.sequence,
        "subject": backend.mask.plain(letter.subject),
        "deliveries": letter.deliveries,
        "reason": backend.mask.text(letter.reason),
        "stored": iso(letter.time),
        "wrong": None,
    }
