"""Streams: all of them, and one of them from its configuration to its last messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, PageRequest, consumers_of, iso, page
from penstock.console.config import config_rows, placed_facts
from penstock.console.consumers import consumer_row, consumers_in
from penstock.console.history import stream_history
from penstock.console.messages import newest, row
from penstock.console.seen import all_streams, consumer_states, coverage, series, stream_state, troubles
from penstock.console.tables import Listing, fields
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.spark.markers import is_marker
from penstock.survey import StreamState
from penstock.wire.jetstream.answers import held_subjects

__all__ = ["stream", "stream_row", "streams"]

_LAST = 10  # messages that the page of a stream shows
_SUBJECTS = 12  # subjects that it shows at a time: they stand beside the configuration
_CONSUMERS = 20
_TREND = 900.0  # seconds that the small lines of the list show
SORTS: dict[str, Callable[[StreamState], Any]] = {
    "name": lambda state: state.name,
    "messages": lambda state: state.messages,
    "bytes": lambda state: state.bytes,
    "rate": lambda state: state.rate,
    "last": lambda state: state.last_sequence,
    "time": lambda state: state.last_time,
    "consumers": lambda state: state.consumers,
}


@page("/streams", refresh=3, menu=True)
async def streams(backend: Backend, request: PageRequest) -> Data:
    """Every stream: messages, bytes, first and last message, messages a second; sorted, filtered and paged as asked."""
    client = await backend.upstream.client()
    found, now = await all_streams(backend, client)
    table = Listing.of(
        request,
        found,
        SORTS,
        sort="name",
        words=lambda state: (state.name, state.description, *state.subjects),
        most=backend.settings.rows,
    )
    rows = [stream_row(backend, state) for state in table.items]
    for item in rows:
        item["rates"] = series(backend, ("stream", item["name"]), "rate", seconds=_TREND)["rate"]
    return {"streams": rows, **table.about(), "coverage": coverage(backend, now)}


def stream_row(backend: Backend, state: StreamState) -> Data:
    """Give what a table says of a stream."""
    return {
        "name": state.name,
        "description": backend.mask.plain(state.description) or None,
        "subjects": backend.mask.plain(state.subjects),
        "more_subjects": state.more_subjects,
        "storage": state.storage,
        "retention": state.retention,
        "replicas": state.replicas,
        "messages": state.messages,
        "markers": state.markers,
        "bytes": state.bytes,
        "max_messages": state.max_messages,
        "max_bytes": state.max_bytes,
        "first": {"sequence": state.first_sequence, "time": iso(state.first_time)},
        "last": {"sequence": state.last_sequence, "time": iso(state.last_time)},
        "deleted": state.deleted,
        "consumers": state.consumers,
        "subjects_held": state.subjects_held,
        "rate": state.rate,
        "leader": state.leader,
        "trouble": troubles(backend, state.subject),
    }


@page("/streams/{stream}", refresh=3)
async def stream(backend: Backend, request: PageRequest) -> Data:
    """One stream: configuration, state and history (`?range=24h`), subjects, consumers, last messages."""
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    state = await stream_state(backend, client, info)
    subjects = await _subjects(backend, request, client, info)
    read, total = await consumers_of(client, info.name)
    found = consumer_states(backend, read)
    if len(read) < total:
        found = [item for (name, _), item in sorted(backend.survey.snapshot.consumers.items()) if name == info.name]
    table = consumers_in(backend, request, found, most=_CONSUMERS, prefix="consumers_")
    last = await newest(backend, client, info, count=min(_LAST, backend.settings.messages))
    history, span = await stream_history(backend, request, state)
    return {
        "stream": stream_row(backend, state),
        "history": history,
        "span": span,
        "created": iso(info.created),
        "config": backend.mask.plain(info.raw["config"]),
        "config_rows": config_rows(info.config, backend.mask),
        "placed": placed_facts(info.placed),
        "copies": [{"name": item.name, "lag": item.lag, "seconds": item.active} for item in info.copies],
        "subjects": subjects,
        "consumers": [consumer_row(backend, item) for item in table.items],
        "consumers_about": table.about(),
        "consumers_total": total,
        "messages": [row(backend, message) for message in last.messages],
        "markers": last.markers,
    }


async def _subjects(backend: Backend, request: PageRequest, client: Connection, info: StreamInfo) -> Data:
    """Count the messages of each subject, the markers of the Spark sink together; if they are not too many."""
    held: dict[str, int] = {}
    if info.subjects <= backend.settings.subjects:
        # One request is one page of the server, which is larger than what we let through.
        answer = await api_request(client, f"STREAM.INFO.{info.name}", {"subjects_filter": ">"})
        held = held_subjects(answer)
    plain = [
        {"subject": backend.mask.plain(subject), "messages": count}
        for subject, count in sorted(held.items())
        if not is_marker(subject)
    ]
    table = Listing.of(
        request,
        plain,
        fields("subject", "messages"),
        sort="-messages",
        words=lambda item: (item["subject"],),
        most=min(_SUBJECTS, backend.settings.rows),
        prefix="subjects_",
    )
    counted = len(plain) if held else info.subjects
    return {
        "rows": list(table.items),
        **table.about(),
        "held": counted,
        "left_out": counted - len(table.items),
        "counted": bool(held) or not info.subjects,
        "markers": sum(count for subject, count in held.items() if is_marker(subject)),
    }
