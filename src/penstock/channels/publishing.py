"""Publishes: check each, store them by channel, deliver, acknowledge. Deliveries go out before the acks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.channels.messages import NewMessage
from penstock.channels.names import is_channel
from penstock.channels.wire import PubAck, PubMsg, Text, decode
from penstock.errors import JetStreamError, PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.service import Service

__all__ = ["publish"]

log = logging.getLogger("penstock.channels")

_HEADER_ROOM = 400  # headers that we store beside a payload; a reply subject comes on top


async def publish(service: Service, batch: list[tuple[bytes, bytes]]) -> None:
    """Handle publishes, each a reply subject and the bytes of a PubMsg."""
    acks: list[tuple[bytes, str, str]] = []  # reply, guid, error: in the order in which they came
    waiting: dict[str, tuple[list[int], list[NewMessage]]] = {}
    service.in_messages += len(batch)
    limit = service.front.max_payload
    for reply, data in batch:
        service.in_bytes += len(data)
        guid, error = "", Text.INVALID_PUBLISH
        try:
            message = decode(PubMsg, data)
        except RemoteProtocolError:
            acks.append((reply, guid, error))
            continue
        guid = message.guid
        if (
            not guid
            or not (message.subject in service.channels or is_channel(message.subject))
            or not service.clients.is_valid(message.clientID, message.connID)
        ):
            acks.append((reply, guid, error))
            continue
        if len(message.data) + len(message.reply) + _HEADER_ROOM > limit:
            acks.append((reply, guid, "the message leaves no room for its headers: it is too large to be stored"))
            continue
        places, messages = waiting.setdefault(message.subject, ([], []))
        places.append(len(acks))
        messages.append(NewMessage(message.data, message.reply))
        acks.append((reply, guid, ""))
    ready: list[tuple[Channel, list[int], list[NewMessage]]] = []
    for name, (places, messages) in waiting.items():  # one after the other: each new channel counts against the limit
        try:
            ready.append((await service.channel(name), places, messages))
        except PenstockError as refused:
            _fail(acks, places, refused)
    results = await asyncio.gather(*(_store(service, channel, messages) for channel, _, messages in ready))
    for (channel, places, _), failure in zip(ready, results, strict=True):
        if failure is None:
            channel.pump()
        else:
            _fail(acks, places, failure)
    for reply, guid, error in acks:
        if reply:
            service.writer.answer(reply, PubAck(guid=guid, error=error).SerializeToString())


def _fail(acks: list[tuple[bytes, str, str]], places: list[int], error: PenstockError) -> None:
    text = error.description if isinstance(error, JetStreamError) else None
    for place in places:
        acks[place] = (*acks[place][:2], text or error.what)


async def _store(service: Service, channel: Channel, messages: list[NewMessage]) -> PenstockError | None:
    """Store one channel's messages; give what was wrong, if anything."""
    try:
        contents = await service.store.append(channel.stream, messages)
    except PenstockError as error:
        log.error("Channels: %s cannot be stored: %s", channel.name, error)
        return error
    channel.last_used = asyncio.get_running_loop().time()
    channel.stored(contents)
    return None
