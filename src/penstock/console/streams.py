"""Streams: all of them, and one of them from its configuration to its last messages."""

from __future__ import annotations

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, PageRequest, consumers_of, iso, page, stream_page
from penstock.console.config import config_rows
from penstock.console.consumers import consumer_row
from penstock.console.messages import newest, row
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.spark.markers import is_marker

__all__ = ["stream", "stream_row", "streams"]

_SUBJECTS = 20  # of a stream's configuration that a row shows
_LAST = 10  # messages that the page of a stream shows


@page("/streams", refresh=3, menu=True)
async def streams(backend: Backend, request: PageRequest) -> Data:
    """Every stream: messages, bytes, first and last message, messages a second."""
    client = await backend.upstream.client()
    offset = request.number("offset", 0)
    found, total = await stream_page(client, offset)
    found = found[: backend.settings.rows]
    rows = [stream_row(backend, info) for info in found]
    following = offset + len(rows)
    return {
        "streams": rows,
        "offset": offset,
        "total": total,
        "next": following if rows and following < total else None,
        "previous": max(0, offset - backend.settings.rows) if offset else None,
    }


def stream_row(backend: Backend, info: StreamInfo) -> Data:
    """Give what a table says of a stream."""
    rate = backend.rates.take(info.name, iso(info.created), info.last_sequence)
    config = info.config
    return {
        "name": info.name,
        "description": backend.mask.plain(config.description),
        "subjects": backend.mask.plain(config.subjects[:_SUBJECTS]),
        "more_subjects": max(0, len(config.subjects) - _SUBJECTS),
        "storage": config.storage,
        "retention": config.retention,
        "replicas": config.num_replicas,
        "messages": info.messages,
        "bytes": info.bytes,
        "first": {"sequence": info.first_sequence, "time": iso(info.first_time)},
        "last": {"sequence": info.last_sequence, "time": iso(info.last_time)},
        "deleted": info.deleted,
        "consumers": info.consumers,
        "subjects_held": info.subjects,
        "rate": rate,
        "rates": backend.rates.history(info.name),
        "leader": info.placed.leader,
    }


@page("/streams/{stream}", refresh=5)
async def stream(backend: Backend, request: PageRequest) -> Data:
    """One stream: configuration, state, subjects, consumers, last messages."""
    client = await backend.upstream.client()
    info = await assets.stream_info(client, request.path["stream"])
    consumers, total = await consumers_of(client, info.name)
    last = await newest(backend, client, info, count=min(_LAST, backend.settings.messages))
    return {
        "stream": stream_row(backend, info),
        "created": iso(info.created),
        "config": backend.mask.plain(info.raw["config"]),
        "config_rows": config_rows(info.config, backend.mask),
        "placed": {
            "cluster": info.placed.cluster,
            "leader": info.placed.leader,
            "replicas": [{"name": name, "current": current} for name, current in info.placed.replicas],
        },
        "copies": [{"name": item.name, "lag": item.lag, "seconds": item.active} for item in info.copies],
        "subjects": await _subjects(backend, client, info),
        "consumers": [consumer_row(item, backend.mask) for item in consumers[: backend.settings.rows]],
        "consumers_total": total,
        "messages": [row(backend, message) for message in last.messages],
        "markers": last.markers,
    }


async def _subjects(backend: Backend, client: Connection, info: StreamInfo) -> Data:
    """Count the messages of each subject, the markers of the Spark sink together; where they are not too many."""
    if info.subjects > backend.settings.subjects:
        return {"rows": [], "held": info.subjects, "left_out": info.subjects, "markers": 0}
    # One request is one page of the server, which is larger than what we let through.
    answer = await api_request(client, f"STREAM.INFO.{info.name}", {"subjects_filter": ">"})
    held: dict[str, int] = answer["state"].get("subjects") or {}
    markers = sum(count for subject, count in held.items() if is_marker(subject))
    plain = [(subject, count) for subject, count in held.items() if not is_marker(subject)]
    plain.sort(key=lambda item: (-item[1], item[0]))
    return {
        "rows": [
            {"subject": backend.mask.plain(subject), "messages": count}
            for subject, count in plain[: backend.settings.rows]
        ],
        "held": len(plain),
        "left_out": max(0, len(plain) - backend.settings.rows),
        "markers": markers,
    }
