"""A look at what a stream holds, through a consumer that is gone afterwards."""

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

__all__ = ["scan_headers", "scan_messages"]

_AT_ONCE = 16 * 2**20  # bytes that are asked for before the first of them is given


def scan_headers(
    nc: Connection, stream: str, *, subject: str | None = None, start: int = 1, most: int | None = None
) -> AsyncGenerator[Delivery]:
    """Give what the stream holds now, from a sequence on, without bodies; `Nats-Msg-Size` says how large each is.

    The server gives headers without bodies to consumers alone, so this makes one in memory and deletes it.
    """
    return scan_messages(nc, stream, subject=subject, start=start, most=most, headers_only=True)


async def scan_messages(
    nc: Connection,
    stream: str,
    *,
    subject: str | None = None,
    start: int = 1,
    most: int | None = None,
    headers_only: bool = False,
    wait: float = 10.0,
) -> AsyncGenerator[Delivery]:
    """Give what the stream holds now, from a sequence on; it ends when nothing came for `wait` seconds, too.

    The stream must keep its messages by limits: on any other, a consumer changes what is kept.
    """
    consumer = Consumer(
        name=f"penstock-scan-{secrets.token_hex(8)}",
        deliver_policy="by_start_sequence",
        opt_start_seq=max(1, start),
        filter_subject=subject,
        ack_policy="none",
        headers_only=headers_only,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=30.0,  # after which the server deletes a consumer that we could not
    )
    made = await assets.add_consumer(nc, stream, consumer)
    left = made.pending if most is None else min(made.pending, most)
    room = None if headers_only else max(_AT_ONCE, 2 * nc.max_payload)
    try:
        if left > 0:
            async with Deliveries(
                nc, stream, made.name, batch=500, max_bytes=room, limit=left, wait=wait, keep_alive=False
            ) as found:
                async for delivery in found:
                    yield delivery
    finally:
        if nc.is_connected:
            with suppress(NotFoundError):  # the stream is gone, and the consumer with it
                await assets.delete_consumer(nc, stream, made.name)
