"""Requests other than publishes: connect, subscribe, unsubscribe, close. Each is answered after what it did is stored.

They run one at a time, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from penstock.channels.delivery import Group, Member
from penstock.channels.names import is_channel, is_client
from penstock.channels.state_records import ClientRecord, encode_client
from penstock.channels.subscribers import queue_key
from penstock.channels.wire import (
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    StartPosition,
    SubscriptionRequest,
    SubscriptionResponse,
    Text,
    UnsubscribeRequest,
    decode,
)
from penstock.errors import PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.clients import Connected
    from penstock.channels.service import Service

__all__ = [
    "close",
    "close_subscription",
    "connect",
    "delete_channel",
    "expire",
    "replace",
    "subscribe",
    "unsubscribe",
]

_INBOX = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
PROTOCOL = 1


# -- connections ------------------------------------------------------------------------------------------------------


async def connect(service: Service, reply: bytes, data: bytes) -> None:
    """Register a client; with an id that is taken, find out first whether its owner is alive."""
    try:
        request = decode(ConnectRequest, data)
    except RemoteProtocolError:
        request = None
    if request is None or not _INBOX.fullmatch(request.heartbeatInbox):
        return _refuse_connect(service, reply, Text.INVALID_CONNECT)
    if not is_client(request.clientID):
        return _refuse_connect(service, reply, Text.INVALID_CLIENT)
    if request.clientID in service.connecting:
        return _refuse_connect(service, reply, Text.CLIENT_EXISTS)
    owner = service.clients.get(request.clientID)
    if owner is not None:
        # Others must not wait for the owner's answer.
        service.connecting.add(request.clientID)
        service.shared.spawn(_ask(service, owner, reply, data))
        return None
    return await _register(service, reply, request)


async def _ask(service: Service, owner: Connected, reply: bytes, data: bytes) -> None:
    if await service.clients.is_alive(owner):
        service.connecting.discard(owner.id)
        _refuse_connect(service, reply, Text.CLIENT_EXISTS)
    elif (wait := service.enqueue(replace, reply, data)) is not None:
        await wait


async def replace(service: Service, reply: bytes, data: bytes) -> None:
    """Put a new client in the place of one that did not answer."""
    request = decode(ConnectRequest, data)
    try:
        owner = service.clients.get(request.clientID)
        if owner is not None:
            _close(service, owner)
        await _register(service, reply, request)
    finally:
        service.connecting.discard(request.clientID)


async def _register(service: Service, reply: bytes, request: Any) -> None:
    record = ClientRecord(
        request.clientID,
        request.heartbeatInbox,
        request.connID,
        request.protocol,
        request.pingInterval,
        request.pingMaxOut,
    )
    service.clients.add(record)
    service.state.put(f"client.{record.id}", encode_client(record))
    await service.state.flush()
    cluster = service.options.cluster_id
    response = ConnectResponse(
        pubPrefix=f"_STAN.pub.{cluster}",
        subRequests=f"_STAN.sub.{cluster}",
        unsubRequests=f"_STAN.unsub.{cluster}",
        subCloseRequests=f"_STAN.subclose.{cluster}",
        closeRequests=f"_STAN.close.{cluster}",
        protocol=PROTOCOL,
    )
    if request.protocol >= PROTOCOL:
        response.pingRequests = f"{service.options.discover_prefix}.{cluster}.pings"
        response.pingInterval = request.pingInterval
        response.pingMaxOut = request.pingMaxOut
    service.writer.answer(reply, response.SerializeToString())


def _refuse_connect(service: Service, reply: bytes, text: str) -> None:
    service.writer.answer(reply, ConnectResponse(error=text).SerializeToString())


async def close(service: Service, reply: bytes, data: bytes) -> None:
    """Close a client's connection; its durables stay."""
    try:
        request = decode(CloseRequest, data)
    except RemoteProtocolError:
        service.writer.answer(reply, CloseResponse(error=Text.INVALID_CLOSE).SerializeToString())
        return
    client = service.clients.get(request.clientID)
    if client is None:
        service.writer.answer(reply, CloseResponse(error=Text.UNKNOWN_CLIENT).SerializeToString())
        return
    _close(service, client)
    await service.state.flush()
    service.writer.answer(reply, b"")


async def expire(service: Service, reply: bytes, data: bytes) -> None:
    """Close a client that missed too many heartbeats."""
    client = service.clients.get(data.decode())
    if client is not None and client.failures > service.options.hb_fail_count:
        _close(service, client)
        await service.state.flush()


def _close(service: Service, client: Connected) -> None:
    for member, channel in list(client.members.items()):
        service.detach(channel, member, unsubscribe=False)
    service.clients.remove(client)
    service.state.put(f"client.{client.id}", b"")


# -- subscriptions ----------------------------------------------------------------------------------------------------


def _check(service: Service, request: Any) -> str | None:
    if not request.clientID:
        return Text.CLIENT_MISSING
    if request.ackWaitInSecs <= 0:
        return Text.INVALID_ACK_WAIT
    if request.maxInFlight <= 0:
        return Text.INVALID_MAX_IN_FLIGHT
    if not StartPosition.NewOnly <= request.startPosition <= StartPosition.First:
        return Text.INVALID_START
    if not is_channel(request.subject):
        return Text.INVALID_SUBJECT
    if service.clients.get(request.clientID) is None:
        return Text.UNKNOWN_CLIENT
    if not _INBOX.fullmatch(request.inbox):
        return Text.INVALID_SUBSCRIBE
    return None


async def subscribe(service: Service, reply: bytes, data: bytes) -> None:
    """Start a subscription, or resume one; nothing is delivered before the answer."""
    try:
        request = decode(SubscriptionRequest, data)
    except RemoteProtocolError:
        return _answer(service, reply, Text.INVALID_SUBSCRIBE)
    text = _check(service, request)
    if text is not None:
        return _answer(service, reply, text)
    try:
        channel = await service.channel(request.subject)
        text, group, member = await _join(service, channel, request)
    except PenstockError as error:
        return _answer(service, reply, error.what)
    if group is None or member is None:
        service.watch_activity(channel)
        return _answer(service, reply, text or Text.INVALID_SUBSCRIBE)
    service.state.remember(group, member)
    await service.state.flush()
    service.writer.answer(reply, SubscriptionResponse(ackInbox=member.ack_inbox).SerializeToString())
    delivery = channel.delivery(group)
    if group.hold:
        delivery.resume(member)
    else:
        service.writer.wake(delivery)
    return None


async def _join(service: Service, channel: Channel, request: Any) -> tuple[str | None, Group | None, Member | None]:
    client, durable, queue = request.clientID, request.durableName, request.qGroup
    if queue and ":" in durable:
        return Text.INVALID_DURABLE, None, None
    group = channel.subscribers.find(client, durable, queue)
    if group is not None and not queue and group.online:
        if not service.options.replace_durable:
            return Text.DUPLICATE_DURABLE, None, None
        service.detach(channel, group.members[0], unsubscribe=False)
    options = {"max_in_flight": request.maxInFlight, "ack_wait": request.ackWaitInSecs}
    ack_inbox = service.new_ack_inbox()
    if group is not None and not group.online:
        member = group.members[0]
        group.resume(member, client=client, inbox=request.inbox, ack_inbox=ack_inbox, **options)
        service.attach(channel, group, member)
        return None, group, member
    limit = channel.stream.limits.max_subs
    if 0 < limit <= len(channel.subscribers):
        return Text.TOO_MANY_SUBSCRIPTIONS, None, None
    if group is None:
        last = await _start(service, channel, request)
        group = Group(
            service.new_number(),
            channel.name,
            durable="" if queue else durable,
            queue=queue_key(durable, queue),
            keep=bool(durable),
            last=last,
        )
    member = Member(service.new_number(), client, request.inbox, ack_inbox, **options)
    service.attach(channel, group, member)
    return None, group, member


async def _start(service: Service, channel: Channel, request: Any) -> int:
    """Find the sequence after which a new subscription begins."""
    stream = channel.stream
    await service.store.refresh(stream)
    first, last = stream.first, stream.last
    if last == 0:
        return 0
    match request.startPosition:
        case StartPosition.LastReceived:
            # Where all messages aged out, the last one is gone, too.
            return max(last - 1, first - 1)
        case StartPosition.First:
            return first - 1
        case StartPosition.SequenceStart:
            wanted: int = request.startSequence
            return min(max(wanted, first), last + 1) - 1
        case StartPosition.TimeDeltaStart:
            moment = time.time_ns() - request.startTimeDelta
            return await service.store.find_time(stream, moment) - 1 if request.startTimeDelta > 0 else last
        case _:
            return last


async def unsubscribe(service: Service, reply: bytes, data: bytes) -> None:
    """End a subscription for good."""
    await _leave(service, reply, data, unsubscribe=True)


async def close_subscription(service: Service, reply: bytes, data: bytes) -> None:
    """End a subscription; a durable one keeps its position."""
    await _leave(service, reply, data, unsubscribe=False)


async def _leave(service: Service, reply: bytes, data: bytes, *, unsubscribe: bool) -> None:
    try:
        request = decode(UnsubscribeRequest, data)
    except RemoteProtocolError:
        return _answer(service, reply, Text.INVALID_UNSUBSCRIBE)
    channel = service.channels.get(request.subject)
    if channel is None:
        return _answer(service, reply, Text.UNKNOWN_CHANNEL)
    member = channel.subscribers.by_inbox(request.inbox)
    if member is None:
        return _answer(service, reply, Text.INVALID_SUBSCRIPTION)
    client = service.clients.get(request.clientID)
    if client is None or member not in client.members:
        return _answer(service, reply, Text.UNKNOWN_CLIENT)
    service.detach(channel, member, unsubscribe=unsubscribe)
    await service.state.flush()
    service.writer.answer(reply, b"")
    return None


def _answer(service: Service, reply: bytes, text: str) -> None:
    service.writer.answer(reply, SubscriptionResponse(error=text).SerializeToString())


# -- channels ---------------------------------------------------------------------------------------------------------


async def delete_channel(service: Service, reply: bytes, data: bytes) -> None:
    """Delete a channel that nobody used for its `max_inactivity`, unless somebody came meanwhile."""
    channel = service.channels.get(data.decode())
    if channel is None or channel.subscribers.active:
        return
    idle = asyncio.get_running_loop().time() - channel.last_used
    if idle < channel.stream.limits.max_inactivity:
        service.watch_activity(channel)
        return
    await service.store.delete(channel.stream)
    service.remove_channel(channel)
    await service.state.flush()
