"""A look at what a stream holds, headers only, through a consumer that is gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.connection import api_request
from penstock.errors import NotFoundError
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.delivery import Delivery
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["scan_headers"]

_BATCH = 500
_ALIVE = 30_000_000_000  # nanoseconds after which the server deletes a consumer that we could not


async def scan_headers(
    nc: Connection, stream: str, *, subject: str | None = None, start: int = 1, most: int | None = None
) -> AsyncGenerator[Delivery]:
    """Give what the stream holds now, from a sequence on, without bodies; `Nats-Msg-Size` says how large each is.

    The server gives headers without bodies to consumers alone, so this makes one in memory and deletes it.
    """
    names.check_name(stream)
    name = f"penstock-scan-{secrets.token_hex(8)}"
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(1, start),
        "ack_policy": "none",
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": _ALIVE,
    }
    if subject is not None:
        config["filter_subject"] = subject
    method = names.consumer_create(stream, name, subject or "")
    made = await api_request(nc, method, {"stream_name": stream, "config": config}, again=True)
    left = int(made["num_pending"]) if most is None else min(int(made["num_pending"]), most)
    try:
        if left > 0:
            async with Deliveries(nc, stream, name, batch=_BATCH, limit=left, wait=10.0, keep_alive=False) as found:
                async for delivery in found:
                    yield delivery
    finally:
        if nc.is_connected:
            with suppress(NotFoundError):  # the stream is gone, and the consumer with it
                await api_request(nc, names.consumer_delete(stream, name))
