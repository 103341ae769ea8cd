"""Consumers: who reads which stream, how far behind each one is, and what it has not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.console.backend import Backend, Data, PageRequest, iso, page
from penstock.console.config import config_rows, placed_facts
from penstock.console.history import consumer_history
from penstock.console.seen import all_consumers, consumer_states, coverage, troubles
from penstock.console.tables import Listing
from penstock.jetstream import assets
from penstock.survey import ConsumerState

__all__ = ["consumer", "consumer_row", "consumers", "consumers_in"]

SORTS: dict[str, Callable[[ConsumerState], Any]] = {
    "lag": lambda state: (state.lag, state.ack_pending),
    "age": lambda state: state.lag_seconds,
    "stream": lambda state: (state.stream, state.name),
    "name": lambda state: (state.name, state.stream),
    "rate": lambda state: state.rate,
    "ack_pending": lambda state: state.ack_pending,
    "redelivered": lambda state: state.redelivered,
    "delivered": lambda state: state.delivered.last,
    "acked": lambda state: state.acked.last,
}


def consumers_in(
    backend: Backend, request: PageRequest, found: Iterable[ConsumerState], *, most: int, prefix: str = ""
) -> Listing[ConsumerState]:
    """Choose the consumers that a table shows, the furthest behind first unless asked otherwise."""
    return Listing.of(
        request,
        found,
        SORTS,
        sort="-lag",
        words=lambda state: (state.stream, state.name, *state.filter),
        most=min(most, backend.settings.rows),
        prefix=prefix,
    )


def consumer_row(backend: Backend, state: ConsumerState) -> Data:
    """Give what a table says of a consumer."""
    return {
        "stream": state.stream,
        "name": state.name,
        "kind": state.kind,
        "durable": state.durable,
        "filter": backend.mask.plain(state.filter),
        "ack_policy": state.ack_policy,
        "lag": state.lag,
        "lag_seconds": state.lag_seconds,
        "rate": state.rate,
        "ack_pending": state.ack_pending,
        "max_ack_pending": state.max_ack_pending,
        "redelivered": state.redelivered,
        "waiting": state.waiting,
        "delivered": {"sequence": state.delivered.stream, "time": iso(state.delivered.last)},
        "acked": {"sequence": state.acked.stream, "time": iso(state.acked.last)},
        "paused": state.paused,
        # A pull consumer that nobody asks, and a push consumer without a listener, deliver nothing.
        "listened_to": state.listened_to,
        "bookmark": state.bookmark,
        "sourcing": state.sourcing,
        "trouble": troubles(backend, state.subject),
    }


@page("/consumers", refresh=3, menu=True)
async def consumers(backend: Backend, request: PageRequest) -> Data:
    """The consumers of all streams: lag in messages and in time, acks that are missing, redeliveries."""
    client = await backend.upstream.client()
    found, now = await all_consumers(backend, client)
    table = consumers_in(backend, request, found, most=backend.settings.rows)
    rows = [consumer_row(backend, state) for state in table.items]
    left_out = table.total - len(rows)
    return {"consumers": rows, **table.about(), "left_out": left_out, "coverage": coverage(backend, now)}


@page("/streams/{stream}/consumers/{consumer}", refresh=3)
async def consumer(backend: Backend, request: PageRequest) -> Data:
    """One consumer: how far it is and was (`?range=24h`), how it is acknowledged, and its configuration."""
    client = await backend.upstream.client()
    info = await assets.consumer_info(client, request.path["stream"], request.path["consumer"])
    stream = await assets.stream_info(client, info.stream)
    (state,) = consumer_states(backend, [info])
    history, span = await consumer_history(backend, request, state)
    return {
        "consumer": consumer_row(backend, state),
        "acks": {"sampled": state.acks, "p50": state.ack_p50, "p99": state.ack_p99, "wait": state.ack_wait},
        "history": history,
        "span": span,
        "created": iso(info.created),
        "config": backend.mask.plain(info.raw["config"]),
        "config_rows": config_rows(info.config, backend.mask),
        "stream_last": stream.last_sequence,
        "leader": info.placed.leader,
        "placed": placed_facts(info.placed),
    }
