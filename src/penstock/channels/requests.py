"""What clients ask for: connect, publish, subscribe, unsubscribe, close. Each is answered after what it did is stored.

Requests are handled one at a time, in the order in which they came. Publishes that follow each other are taken
together, and their deliveries go out before their acks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.channels import wire
from penstock.channels.delivery import Group, Member
from penstock.channels.limits import HEADER_ROOM
from penstock.channels.messages import more_lines
from penstock.channels.names import is_channel, is_client
from penstock.channels.publishes import NewMessages, Publishes
from penstock.channels.state_records import ClientRecord, encode_record
from penstock.channels.subscribers import queue_key
from penstock.channels.wire import StartPosition, Text, decode
from penstock.errors import DeniedError, JetStreamError, PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.clients import Connected
    from penstock.channels.service import Handle, Service

__all__ = ["HANDLERS", "Refusal", "connect", "delete_channel", "expire", "publish", "replace"]

log = logging.getLogger("penstock.channels")

_TOO_LARGE = b"the message leaves no room for its headers: it is too large to be stored"
_DELETE_AGAIN = 0.1
_LEAST_DELTA = -(2**63)
PROTOCOL = 1


class Refusal(PenstockError):
    """A request is refused with a text of the protocol."""


def _answering(handler: Callable[..., Awaitable[Any]], kind: Any, response: Any, invalid: str) -> Handle:
    """Give a handler the decoded request, and send what it gives; a request that is refused is answered with why."""

    async def handle(service: Service, reply: bytes, data: bytes) -> None:
        try:
            request = decode(kind, data)
        except RemoteProtocolError:
            request = None
        try:
            _refuse((request is None, invalid))
            answer = await handler(service, request, reply)
        except PenstockError as error:
            if isinstance(error, DeniedError):  # ours to mend, not the client's
                log.error("Channels: a request is refused: %s", error)
            answer = response(error=error.what)
        if answer is not None:
            service.writer.send(reply, answer.SerializeToString())

    return handle


def _refuse(*faults: tuple[bool, str]) -> None:
    """Refuse a request that has one of these faults, the first that it has."""
    for present, text in faults:
        if present:
            raise Refusal(text)


# -- connections ------------------------------------------------------------------------------------------------------


async def _connect(service: Service, request: Any, reply: bytes) -> Any:
    """Register a client; with an id that is taken, find out first whether its owner is alive.

    A client that got no answer and asks again is its owner: what it has subscribed to meanwhile stays.
    """
    _refuse(
        (not service.may_send_to(request.heartbeatInbox), Text.INVALID_CONNECT),
        (not is_client(request.clientID), Text.INVALID_CLIENT),
        (request.clientID in service.connecting, Text.CLIENT_EXISTS),
    )
    owner = service.clients.by_id.get(request.clientID)
    if owner is None:
        return await _register(service, request)
    if _is_same(owner.record, request):
        return _welcome(service, request)
    # Others must not wait for the owner's answer.
    service.connecting.add(request.clientID)
    service.shared.spawn(_ask(service, owner, reply, request))
    return None


async def _ask(service: Service, owner: Connected, reply: bytes, request: Any) -> None:
    if await service.clients.is_alive(owner):
        service.connecting.discard(owner.record.id)
        service.writer.send(reply, wire.ConnectResponse(error=Text.CLIENT_EXISTS).SerializeToString())
    elif (wait := service.queue.put(replace, reply, request.SerializeToString())) is not None:
        await wait


async def _replace(service: Service, request: Any, reply: bytes) -> Any:
    """Put a new client in the place of one that did not answer."""
    try:
        owner = service.clients.by_id.get(request.clientID)
        if owner is not None:
            _drop(service, owner)
        return await _register(service, request)
    finally:
        service.connecting.discard(request.clientID)


def _is_same(record: ClientRecord, request: Any) -> bool:
    """Tell whether a request is of the very connection that is registered: its id is made anew for each."""
    return bool(record.conn_id) and (record.conn_id, record.heartbeat_inbox) == (request.connID, request.heartbeatInbox)


async def _register(service: Service, request: Any) -> Any:
    pings = request.protocol, request.pingInterval, request.pingMaxOut
    record = ClientRecord(request.clientID, request.heartbeatInbox, request.connID, *pings)
    service.clients.add(record)
    service.state.put(f"client.{record.id}", encode_record(record))
    await service.state.flush()
    return _welcome(service, request)


def _welcome(service: Service, request: Any) -> Any:
    cluster = service.options.cluster_id
    response = wire.ConnectResponse(
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
    return response


async def _close(service: Service, request: Any, reply: bytes) -> Any:
    """Close a client's connection; its durables stay."""
    client = service.clients.by_id.get(request.clientID)
    if client is None:
        raise Refusal(Text.UNKNOWN_CLIENT)
    _drop(service, client)
    await service.state.flush()
    return wire.CloseResponse()


async def expire(service: Service, reply: bytes, data: bytes) -> None:
    """Close a client that missed too many heartbeats."""
    client = service.clients.by_id.get(data.decode())
    if client is not None and client.failures > service.options.hb_fail_count:
        _drop(service, client)
        await service.state.flush()


def _drop(service: Service, client: Connected) -> None:
    for member, channel in list(client.members.items()):
        service.detach(channel, member, unsubscribe=False)
    service.clients.remove(client)
    service.state.put(f"client.{client.record.id}", b"")


# -- publishes --------------------------------------------------------------------------------------------------------


async def publish(service: Service, batch: list[tuple[bytes, bytes]]) -> None:
    """Handle publishes, each a reply subject and the bytes of a PubMsg."""
    publishes = Publishes(batch)
    publishes.sort(
        service.clients.is_valid,
        lambda name: name in service.channels or is_channel(name),
        wire.canonical_publish,
        _reply_line,
        service.front.max_payload - HEADER_ROOM,
        Text.INVALID_PUBLISH.encode(),
        _TOO_LARGE,
    )
    service.in_messages += len(batch)
    service.in_bytes += publishes.size
    ready: list[tuple[Channel, NewMessages]] = []
    for name, messages in publishes.channels.items():  # one after the other: each new channel counts against the limit
        if not messages:
            continue
        try:
            ready.append((await service.channel(name.decode()), messages))
        except PenstockError as refused:
            publishes.fail(messages, _reason(refused))
    if len(ready) == 1:
        results = [await _store(service, *ready[0])]
    else:
        results = await asyncio.gather(*(_store(service, channel, messages) for channel, messages in ready))
    for (channel, messages), failure in zip(ready, results, strict=True):
        if failure is None:
            channel.pump()
        else:
            publishes.fail(messages, _reason(failure))
    service.writer.answer(publishes)


def _reply_line(reply: bytes) -> bytes:
    return more_lines(reply=reply)


def _reason(error: PenstockError) -> bytes:
    text = error.description if isinstance(error, JetStreamError) else None
    return (text or error.what).encode()


async def _store(service: Service, channel: Channel, messages: NewMessages) -> PenstockError | None:
    """Store one channel's messages; give what was wrong, if anything."""
    try:
        stored = await service.store.append(channel.stream, messages)
    except PenstockError as error:
        log.error("Channels: %s cannot be stored: %s", channel.name, error)
        return error
    channel.last_used = asyncio.get_running_loop().time()
    channel.stored(stored)
    return None


# -- subscriptions ----------------------------------------------------------------------------------------------------


async def _subscribe(service: Service, request: Any, reply: bytes) -> Any:
    """Start a subscription, or resume one; nothing is delivered before the answer."""
    _refuse(
        (not request.clientID, Text.CLIENT_MISSING),
        (request.ackWaitInSecs <= 0, Text.INVALID_ACK_WAIT),
        (request.maxInFlight <= 0, Text.INVALID_MAX_IN_FLIGHT),
        (not StartPosition.NewOnly <= request.startPosition <= StartPosition.First, Text.INVALID_START),
        (not is_channel(request.subject), Text.INVALID_SUBJECT),
        (service.clients.by_id.get(request.clientID) is None, Text.UNKNOWN_CLIENT),
        (not service.may_send_to(request.inbox), Text.INVALID_SUBSCRIBE),
    )
    channel = await service.channel(request.subject)
    try:
        group, member = await _join(service, channel, request)
    except PenstockError:
        service.watch_activity(channel)
        raise
    resumed = bool(member.pending)
    service.state.remember(group, member)
    await service.state.flush()
    delivery = channel.delivery(group)
    # Either has its turn after the answer is written.
    if resumed:
        delivery.resume(member)
    else:
        service.writer.wake(delivery)
    return wire.SubscriptionResponse(ackInbox=member.ack_inbox)


async def _join(service: Service, channel: Channel, request: Any) -> tuple[Group, Member]:
    client, durable, queue = request.clientID, request.durableName, request.qGroup
    _refuse((bool(queue) and ":" in durable, Text.INVALID_DURABLE))
    group = channel.subscribers.find(client, durable, queue)
    if group is not None and not queue and group.online:
        _refuse((not service.options.replace_durable, Text.DUPLICATE_DURABLE))
        service.detach(channel, group.members[0], unsubscribe=False)
    ack_inbox = f"{service.ack_inbox}.{secrets.token_hex(8)}"
    member = Member(0, client, request.inbox, ack_inbox, request.maxInFlight, request.ackWaitInSecs)
    if group is not None and not group.online:
        group.resume(member)
    else:
        full = 0 < channel.stream.limits.max_subs <= len(channel.subscribers)
        _refuse((full, Text.TOO_MANY_SUBSCRIPTIONS))
        member.number = next(service.numbers)
        if group is None:
            last = await _start(service, channel, request)
            name, key = "" if queue else durable, queue_key(durable, queue)
            group = Group(next(service.numbers), channel.name, name, key, bool(durable), last)
    service.attach(channel, group, member)
    return group, member


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
            delta: int = request.startTimeDelta
            if delta == _LEAST_DELTA:  # negated it is the same, and so long ago
                return first - 1
            return await service.store.find_time(stream, time.time_ns() - delta) - 1 if delta > 0 else last
        case _:
            return last


async def _leave(service: Service, request: Any, reply: bytes, *, unsubscribe: bool) -> Any:
    channel = service.channels.get(request.subject)
    if channel is None:
        raise Refusal(Text.UNKNOWN_CHANNEL)
    member = channel.subscribers.by_inbox(request.inbox)
    if member is None:
        raise Refusal(Text.INVALID_SUBSCRIPTION)
    client = service.clients.by_id.get(request.clientID)
    _refuse((client is None or member not in client.members, Text.UNKNOWN_CLIENT))
    service.detach(channel, member, unsubscribe=unsubscribe)
    await service.state.flush()
    return wire.SubscriptionResponse()


# -- channels ---------------------------------------------------------------------------------------------------------


async def delete_channel(service: Service, reply: bytes, data: bytes) -> None:
    """Delete a channel that nobody used for its `max_inactivity`, unless somebody came meanwhile."""
    channel = service.channels.get(data.decode())
    if channel is None or channel.subscribers.active:
        return
    now = asyncio.get_running_loop().time()
    left = channel.last_used + channel.stream.limits.max_inactivity - now
    if left > 0:
        service.delete_later(channel, left)
        return
    try:
        await service.store.delete(channel.stream)
    except PenstockError:
        service.delete_later(channel, max(_DELETE_AGAIN, channel.stream.limits.max_inactivity))
        raise
    for member in channel.subscribers.members:
        channel.remove(member, now, unsubscribe=True)
    channel.end()
    del service.channels[channel.name]
    await service.state.flush()


_CONNECTING = wire.ConnectRequest, wire.ConnectResponse, Text.INVALID_CONNECT
_LEAVING = wire.UnsubscribeRequest, wire.SubscriptionResponse, Text.INVALID_UNSUBSCRIBE

connect = _answering(_connect, *_CONNECTING)
replace = _answering(_replace, *_CONNECTING)
HANDLERS = {
    "sub": _answering(_subscribe, wire.SubscriptionRequest, wire.SubscriptionResponse, Text.INVALID_SUBSCRIBE),
    "unsub": _answering(partial(_leave, unsubscribe=True), *_LEAVING),
    "subclose": _answering(partial(_leave, unsubscribe=False), *_LEAVING),  # a durable keeps its position
    "close": _answering(_close, wire.CloseRequest, wire.CloseResponse, Text.INVALID_CLOSE),
}
"""What is asked for on `_STAN.<name>.<cluster>`, apart from publishes."""
