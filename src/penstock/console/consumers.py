"""Consumers: who reads which stream, how far behind each one is, and what it has not acknowledged."""

from __future__ import annotations

from penstock.console.backend import Backend, Data, PageRequest, all_of, consumers_of, iso, page, stream_page
from penstock.console.config import config_rows
from penstock.console.masking import Mask
from penstock.info import ConsumerInfo
from penstock.jetstream import assets

__all__ = ["consumer", "consumer_row", "consumers"]

_STREAMS = 100  # whose consumers one page lists


def consumer_row(info: ConsumerInfo, mask: Mask) -> Data:
    """Give what a table says of a consumer."""
    most = info.config.max_ack_pending
    return {
        "stream": info.stream,
        "name": info.name,
        "kind": "push" if info.config.deliver_subject else "pull",
        "durable": bool(info.config.durable),
        "filter": mask.plain(info.config.filter_subjects or [item for item in [info.config.filter_subject] if item]),
        "ack_policy": info.config.ack_policy,
        "lag": info.pending,
        "ack_pending": info.ack_pending,
        "max_ack_pending": most if most is not None and most > 0 else None,
        "redelivered": info.redelivered,
        "waiting": info.waiting,
        "delivered": {"sequence": info.delivered.stream, "time": iso(info.delivered.last)},
        "acked": {"sequence": info.ack_floor.stream, "time": iso(info.ack_floor.last)},
        "paused": info.paused,
        # A pull consumer that nobody asks, and a push consumer without a listener, deliver nothing.
        "listened_to": info.push_bound if info.config.deliver_subject else info.waiting > 0,
    }


@page("/consumers", refresh=3, menu=True)
async def consumers(backend: Backend, request: PageRequest) -> Data:
    """The consumers of all streams: lag, acks that are missing, redeliveries, the furthest behind first."""
    client = await backend.upstream.client()
    offset = request.number("offset", 0)
    found, total = await stream_page(client, offset)
    looked = found[:_STREAMS]
    read = [info.name for info in looked if info.consumers]
    answers = await all_of(read, lambda stream: consumers_of(client, stream))
    rows = [consumer_row(info, backend.mask) for infos, _ in answers for info in infos]
    rows.sort(key=lambda row: (-row["lag"], -row["ack_pending"], row["stream"], row["name"]))
    shown = rows[: backend.settings.rows]
    following = offset + len(looked)
    return {
        "consumers": shown,
        "left_out": max(0, sum(count for _, count in answers) - len(shown)),
        "streams": {"first": offset + 1 if looked else 0, "last": following if looked else 0, "total": total},
        "next": following if looked and following < total else None,
        "previous": max(0, offset - _STREAMS) if offset else None,
    }


@page("/streams/{stream}/consumers/{consumer}", refresh=3)
async def consumer(backend: Backend, request: PageRequest) -> Data:
    """One consumer: how far it is, and its configuration."""
    client = await backend.upstream.client()
    info = await assets.consumer_info(client, request.path["stream"], request.path["consumer"])
    state = await assets.stream_info(client, info.stream)
    return {
        "consumer": consumer_row(info, backend.mask),
        "created": iso(info.created),
        "config": backend.mask.plain(info.raw["config"]),
        "config_rows": config_rows(info.config, backend.mask),
        "stream_last": state.last_sequence,
        "leader": info.placed.leader,
    }
