"""Many values at a time into a bucket, each key's values in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.buckets.key_wire import check_key
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.buckets.key_stream import Addresses
    from penstock.connection import Connection
    from penstock.model import PubAck

__all__ = ["put_all"]

ACK_TIMEOUT = 5.0  # seconds after which an ack counts as lost, and its value is sent again
_IN_FLIGHT = 256


async def put_all(
    client: Connection,
    addresses: Addresses,
    pairs: Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]],
    put: Callable[[str, bytes], Awaitable[int]],
) -> AsyncIterator[tuple[str, int]]:
    """Put each value, as many at a time as the connection carries; give keys and revisions in order.

    A publisher knows no way into another domain: there, one follows the other.
    """
    from penstock.jetstream.publish import Publisher

    if addresses.written != addresses.kept:
        async for key, value in _each(pairs):
            yield key, await put(key, value)
        return
    waiting: deque[tuple[str, asyncio.Future[PubAck]]] = deque()
    last: dict[str, asyncio.Future[PubAck]] = {}  # of each key, what is on its way

    async def settled() -> tuple[str, int]:
        key, future = waiting.popleft()
        ack = await future
        if last.get(key) is future:
            del last[key]
        return key, ack.sequence

    # Nothing orders the messages of one publisher that are on their way, so a key has one of them.
    sending = Publisher(client, addresses.origin, order="sent", in_flight=_IN_FLIGHT, ack_timeout=ACK_TIMEOUT)
    async with sending as publisher:
        async for key, value in _each(pairs):
            subject = f"{addresses.written}{check_key(key)}"
            while key in last or len(waiting) >= _IN_FLIGHT or (waiting and waiting[0][1].done()):
                yield await settled()
            future = last[key] = await publisher.send(subject, value)
            waiting.append((key, future))
        while waiting:
            yield await settled()


async def _each(pairs: object) -> AsyncIterator[tuple[str, bytes]]:
    if isinstance(pairs, AsyncIterable):
        async for pair in pairs:
            yield _pair(pair)
    elif isinstance(pairs, Iterable):
        for pair in pairs:
            yield _pair(pair)
    else:
        raise InputError(f"Values are given as {type(pairs).__name__}.", remedy="Give a mapping, or pairs of them.")


def _pair(pair: object) -> tuple[str, bytes]:
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str):
        key, value = pair
        if isinstance(value, bytes | bytearray | memoryview):
            return key, bytes(value)
    raise InputError("A value to put is not a pair of a key and bytes.", remedy='Give pairs such as ("key", b"value").')
