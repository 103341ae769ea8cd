"""Peers of the bus as the reference would be, written from its bytes: nothing here uses penstock.bus.

The reference has two revisions. That of the seed says SlowConsumer and always sends Close. The later one, "head",
never says SlowConsumer, and sends no Close after a send that failed. Both look at no header.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

WINDOWS = pytest.mark.parametrize("window", [0, 64], ids=["plain", "window"])
REVISIONS = ("seed", "head")
GO_ON, NO_CONSUMER, SLOW_CONSUMER = b"\x00", b"\x01", b"\x02"


class RawConversation:
    """The reference's handler at work on one request."""

    def __init__(self, client: Any, message: Any, misc: Any, inbox: str) -> None:
        self._client, self._misc = client, misc
        self.reply, self.inbox, self.body, self.headers = message.reply, inbox, message.data, message.headers

    async def publish(self, packet: bytes) -> None:
        await self._client.publish(self.reply, packet)

    async def signal(self, timeout: float = 5.0) -> bytes:
        """Wait for a byte of the misc stream."""
        return (await self._misc.next_msg(timeout=timeout)).data

    async def send(self, packet: bytes, expect: bytes = GO_ON) -> None:
        """Send one packet and wait for the signal."""
        await self.publish(packet)
        assert await self.signal() == expect

    async def open(self) -> None:
        await self.publish(b"\x06" + self.inbox.encode())


class RawHandler:
    """The reference's service: takes requests from one partition."""

    def __init__(self, client: Any, requests: Any) -> None:
        self._client, self._requests = client, requests
        self._miscs: list[Any] = []

    async def accept(self) -> RawConversation:
        message = await self._requests.next_msg(timeout=5)
        inbox = self._client.new_inbox()
        misc = await self._client.subscribe(inbox)
        self._miscs.append(misc)
        return RawConversation(self._client, message, misc, inbox)

    async def close(self) -> None:
        for subscription in [self._requests, *self._miscs]:
            await subscription.unsubscribe()


@asynccontextmanager
async def raw_handler(client: Any, subject: str) -> AsyncIterator[RawHandler]:
    requests = await client.subscribe(subject, queue=subject)
    await client.flush()
    handler = RawHandler(client, requests)
    try:
        yield handler
    finally:
        await handler.close()


class RawRequester:
    """The reference's requester: one request, its packets, and the signals it gives."""

    def __init__(self, client: Any, inbox: str, packets: Any) -> None:
        self._client, self.inbox, self._packets = client, inbox, packets
        self.misc: str | None = None

    async def packet(self, timeout: float = 5.0) -> bytes:
        message = await self._packets.next_msg(timeout=timeout)
        assert not message.headers, f"{message.headers} on {message.subject}"
        data = message.data
        if data[:1] == b"\x06":
            self.misc = data[1:].decode()
        return data

    async def say(self, signal: bytes) -> None:
        assert self.misc is not None
        await self._client.publish(self.misc, signal)

    async def read_all(self) -> list[bytes]:
        """Read to the end, with a GoOn for everything but the inbox and the end; nothing may come unasked."""
        packets = []
        while True:
            data = await self.packet()
            packets.append(data)
            assert data, "an empty packet"
            if data[0] in (0, 1):
                return packets
            if data[0] != 6:
                assert self._packets.pending_msgs == 0, "the handler did not wait"
                await self.say(GO_ON)


@asynccontextmanager
async def raw_request(client: Any, queue: str, partition: int = 0, **fields: Any) -> AsyncIterator[RawRequester]:
    inbox = client.new_inbox()
    packets = await client.subscribe(inbox)
    request = {"Method": 0, "QueueID": queue, "WSID": 1, "PartitionNumber": partition, "Resource": "r", **fields}
    await client.publish(f"{queue}{partition}", json.dumps(request).encode(), reply=inbox)
    try:
        yield RawRequester(client, inbox, packets)
    finally:
        await packets.unsubscribe()


async def reached(predicate: Any, timeout: float = 10.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout):
        while not predicate():
            await asyncio.sleep(0.005)


async def read(reply) -> list[tuple]:
    """Read all sections of a reply."""
    return [
        (section.kind, section.type, list(section.path), [(item.name, item.data) async for item in section])
        async for section in reply.sections()
    ]
