"""A look at what a stream holds, headers only, through a consumer that is gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import NotFoundError
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.delivery import Delivery
from penstock.model import Consumer

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["scan_headers"]


async def scan_headers(
    nc: Connection, stream: str, *, subject: str | None = None, start: int = 1, most: int | None = None
) -> AsyncGenerator[Delivery]:
    """Give what the stream holds now, from a sequence on, without bodies; `Nats-Msg-Size` says how large each is.

    The server gives headers without bodies to consumers alone, so this makes one in memory and deletes it.
    """
    consumer = Consumer(
        name=f"penstock-scan-{secrets.token_hex(8)}",
        deliver_policy="by_start_sequence",
        opt_start_seq=max(1, start),
        filter_subject=subject,
        ack_policy="none",
        headers_only=True,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=30.0,  # after which the server deletes a consumer that we could not
    )
    made = await assets.add_consumer(nc, stream, consumer)
    left = made.pending if most is None else min(made.pending, most)
    try:
        if left > 0:
            async with Deliveries(nc, stream, made.name, batch=500, limit=left, wait=10.0, keep_alive=False) as found:
                async for delivery in found:
                    yield delivery
    finally:
        if nc.is_connected:
            with suppress(NotFoundError):  # the stream is gone, and the consumer with it
                await assets.delete_consumer(nc, stream, made.name)
