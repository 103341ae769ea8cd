"""`Client`: an async client of NATS Streaming, for a gateway of ours and for a real nats-streaming-server alike."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Self

from penstock.channels import wire
from penstock.channels.names import is_channel, is_client
from penstock.channels.subscription import Message, Subscription
from penstock.channels.unacked import Unacked
from penstock.channels.wire import PubAck, PubMsg, StartPosition, decode, frame, is_nobody
from penstock.connection import Connection, connect
from penstock.connection import Subscription as TapSubscription
from penstock.errors import (
    ChannelError,
    DeadlineError,
    DisconnectedError,
    InputError,
    LocalProtocolError,
    NoRespondersError,
    OptionError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.options import ConnectionOptions
from penstock.wire.patience import Deadline

__all__ = ["Client"]

log = logging.getLogger("penstock.channels")

_UNSENT = 4 * 1024 * 1024  # bytes that a publisher may be ahead of the server
_NOBODY = 0.1  # seconds after which a request that nobody heard is sent again
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")
PING_FAILURE = "stan: connection lost due to PING failure"
Handler = Callable[[Message], Awaitable[None]]


class Client:
    """A connection to a NATS Streaming cluster under a client id.

    `to` is an address or `ConnectionOptions` to connect with, or a connection of `penstock.connect`, which then stays
    open when the client closes. `connect()`, or `async with`, registers the client.

    `on_lost` is a coroutine function that hears when the server is gone or has given the id to somebody else; the
    client is closed by then. `on_error` hears of handlers that raised, and of acks that NATS does not permit; such a
    message is not acknowledged, and comes again.
    """

    def __init__(
        self,
        to: str | ConnectionOptions | Connection | None = None,
        *,
        cluster_id: str = "test-cluster",
        client_id: str,
        discover_prefix: str = "_STAN.discover",
        connect_timeout: float = 2.0,
        ack_timeout: float = 30.0,
        max_pub_acks_in_flight: int = 16384,
        ping_interval: int = 5,
        ping_max_out: int = 3,
        on_lost: Callable[[PenstockError], Awaitable[None]] | None = None,
        on_error: Callable[[Exception], Awaitable[None]] | None = None,
    ) -> None:
        if not is_client(client_id):
            raise OptionError(
                f"client_id is {client_id!r}.", remedy="Use letters, digits, - and _.", option="client_id"
            )
        for name, value in (("max_pub_acks_in_flight", max_pub_acks_in_flight), ("ping_max_out", ping_max_out)):
            if value < 1:
                raise OptionError(f"{name} is {value!r}.", remedy="Give 1 or more.", option=name, value=value)
        self.cluster_id = cluster_id
        self.client_id = client_id
        self.conn_id = secrets.token_hex(11).encode()
        self._to = to
        self._discover = f"{discover_prefix}.{cluster_id}"
        self._connect_timeout = connect_timeout
        self._ack_timeout = ack_timeout
        self._ping_interval = ping_interval
        self._ping_max_out = ping_max_out
        self._on_lost = on_lost
        self._on_error = on_error
        self._connection: Connection | None = None
        self._subjects: Any = None
        self._subscriptions: dict[str, Subscription] = {}
        self._unacked = Unacked(max_pub_acks_in_flight)
        self._taps: list[TapSubscription] = []
        self._watches = ExitStack()
        self._pings: asyncio.Task[None] | None = None
        self._ping_out = 0
        self._lost: PenstockError | None = None
        self._losing: asyncio.Task[None] | None = None
        self._pongs = ""
        self._acks = f"_STAN.acks.{secrets.token_hex(11)}"
        self._guid = secrets.token_hex(7)
        self._count = 0

    # -- connecting and closing --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether the client is registered, as far as it knows."""
        return self._subjects is not None and self._lost is None

    @property
    def connection(self) -> Connection:
        """The NATS connection below."""
        if self._connection is None:
            raise DisconnectedError("The client is not connected.", remedy="Call connect(), or use `async with`.")
        return self._connection

    async def connect(self) -> Self:
        """Register with the cluster.

        Raises ChannelError if the server refuses, DeadlineError if no server of that cluster answers, DeniedError
        if NATS does not let us ask, or listen to the answers.
        """
        if self._subjects is not None:
            return self
        self._connection = self._to if isinstance(self._to, Connection) else await connect(self._to)
        try:
            heartbeats, self._pongs = self._connection.new_inbox(), self._connection.new_inbox()
            taps = {heartbeats: self._heartbeat, self._pongs: self._ponged, self._acks: self._pub_acked}
            for inbox, tap in taps.items():
                self._taps.append(await self._connection.tap(inbox, tap, on_end=self._lose))
            request = wire.ConnectRequest(
                clientID=self.client_id,
                heartbeatInbox=heartbeats,
                protocol=1,
                connID=self.conn_id,
                pingInterval=self._ping_interval,
                pingMaxOut=self._ping_max_out,
            )
            answer = await self._request(self._discover, request, wire.ConnectResponse)
            if (denied := next((tap.error for tap in self._taps if tap.error is not None), None)) is not None:
                self._post(answer.closeRequests, wire.CloseRequest(clientID=self.client_id))
                raise denied
        except BaseException:
            await self._release()
            raise
        self._subjects = answer
        if answer.pingInterval and answer.pingRequests:
            self._watches.enter_context(self._connection.expecting(answer.pingRequests, self._lose))
            self._pings = asyncio.get_running_loop().create_task(self._ping(answer))
        return self

    async def close(self) -> None:
        """Leave the cluster; durable subscriptions stay there. A second call does nothing."""
        if self._subjects is None:
            return
        subjects, self._subjects = self._subjects, None
        try:
            if self._lost is None:
                request = wire.CloseRequest(clientID=self.client_id)
                await self._request(subjects.closeRequests, request, wire.CloseResponse)
        finally:
            await self._shut(DisconnectedError("The client was closed."))
            await self._release()

    async def _shut(self, reason: PenstockError) -> None:
        """End everything that runs for this client; whoever iterates over messages hears of it if it was lost."""
        if self._pings is not None:
            self._pings.cancel()
        for subscription in list(self._subscriptions.values()):
            await subscription.end(self._lost)
        self._subscriptions.clear()
        self._watches.close()
        self._unacked.fail(reason)

    async def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for tap in self._taps:
            await tap.unsubscribe()
        self._taps.clear()
        if connection is not self._to:  # one that was given stays open
            await connection.close()

    async def _request(self, subject: str, request: Any, kind: Any) -> Any:
        """Ask the server. What nobody hears is sent again: a gateway starts, or not every node of NATS knows it yet."""
        connection, seconds = self.connection, self._connect_timeout
        content, deadline = request.SerializeToString(), Deadline(seconds)
        while True:
            try:
                reply = await connection.request(subject, content, deadline.left)
                break
            except DeadlineError as error:
                # Only what nobody heard may be sent again: a second subscription would be another one.
                if not isinstance(error, NoRespondersError) or deadline.left < _NOBODY:
                    raise DeadlineError(
                        f"No server of the cluster {self.cluster_id} answered in {seconds:g} s.",
                        remedy="Is the cluster id right, and is a gateway or a NATS Streaming server running?",
                        seconds=seconds,
                        subject=subject,
                    ) from None
            await asyncio.sleep(_NOBODY)
        response = decode(kind, reply.data)
        if response.error:
            raise ChannelError(f"The server refuses: {response.error}.", text=response.error)
        return response

    def _post(self, subject: str, request: Any, reply: str = "") -> bool:
        """Tell the server something, without waiting for an answer; False if it cannot be told."""
        if self._connection is None:
            return False
        return self._connection.post(frame(subject.encode(), request.SerializeToString(), reply.encode()))

    def _ready(self) -> Any:
        if self._lost is not None:
            raise self._lost
        if self._subjects is None:
            raise DisconnectedError("The client is not connected.", remedy="Call connect(), or use `async with`.")
        return self._subjects

    # -- staying alive -----------------------------------------------------------------------------------------------

    def _heartbeat(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if reply and self._connection is not None:
            self._connection.post(frame(reply, b""))

    async def _ping(self, subjects: Any) -> None:
        # A negative interval means milliseconds: tests of other clients send such, and servers echo it.
        interval: int = subjects.pingInterval
        seconds = interval if interval > 0 else -interval / 1000
        while True:
            await asyncio.sleep(seconds)
            self._ping_out += 1
            if self._ping_out > subjects.pingMaxOut:
                self._lose(ChannelError(f"{PING_FAILURE}.", text=PING_FAILURE))
                return
            self._post(subjects.pingRequests, wire.Ping(connID=self.conn_id), self._pongs)

    def _ponged(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if is_nobody(header):
            return  # nobody is there to answer: the same as silence
        self._ping_out = 0
        try:
            answer = decode(wire.PingResponse, data)
        except RemoteProtocolError as error:
            log.warning("Channels: bytes on the subject for pongs are not an answer to a ping: %s", error)
            return
        if answer.error:
            self._lose(ChannelError(f"The server gave this client up: {answer.error}.", text=answer.error))

    def _lose(self, reason: PenstockError) -> None:
        """Give up, once: the server is gone, or gave us up, or would because we may not show that we are alive.

        So it is if NATS does not let us hear any more what the server asks and acknowledges, or is gone for good.
        """
        if self._lost is None and self._subjects is not None:
            self._lost = reason
            self._losing = asyncio.get_running_loop().create_task(self._end(reason))

    async def _end(self, reason: PenstockError) -> None:
        await self._shut(reason)
        if self._on_lost is None:
            log.error("Channels: the client %s is lost: %s", self.client_id, reason)
        else:
            await _tell("on_lost", self._on_lost, reason)

    async def failed(self, error: Exception) -> None:
        """Tell whoever listens why a message is not acknowledged: its handler raised, or NATS does not permit it."""
        if self._on_error is None:
            log.error("Channels: a message is not acknowledged: %s", error, exc_info=error)
        else:
            await _tell("on_error", self._on_error, error)

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, channel: str, data: bytes, *, reply: str = "") -> None:
        """Publish a message, and wait until the server has stored it.

        Raises ChannelError if the server refuses, DeniedError if NATS does, DeadlineError if no answer comes
        in `ack_timeout`; then the message may be stored or not.
        """
        stored = await self.publish_async(channel, data, reply=reply)
        try:
            async with asyncio.timeout(self._ack_timeout):
                await stored
        except TimeoutError:
            raise DeadlineError(
                f"The message on {channel} was not acknowledged in {self._ack_timeout:g} s.",
                remedy="It may be stored or not; publish it again if it must be.",
                seconds=self._ack_timeout,
                subject=channel,
            ) from None

    async def publish_async(self, channel: str, data: bytes, *, reply: str = "") -> asyncio.Future[None]:
        """Publish a message, and give a future that is done when the server has stored it.

        It waits only if `max_pub_acks_in_flight` messages are unacknowledged already. The future raises ChannelError
        or DeniedError if the message is refused; it waits as long as whoever awaits it.
        """
        self._ready()
        if not is_channel(channel):
            raise LocalProtocolError(f"{channel!r} is not a channel.", remedy="Use a subject without wildcards.")
        await self._unacked.room()
        try:
            future = self._send(channel, data, reply)
        except BaseException:
            self._unacked.let_in()  # we were woken for room that we do not take
            raise
        if self.connection.unsent > _UNSENT:
            try:
                await self.connection.flush()
            except BaseException:
                if not future.cancel():  # nobody gets it: its place is free
                    future.exception()
                raise
        return future

    def _send(self, channel: str, data: bytes, reply: str) -> asyncio.Future[None]:
        """Send a message for which there is room."""
        subjects = self._ready()
        self._count += 1
        guid = f"{self._guid}{self._count:x}"
        content = PubMsg(
            clientID=self.client_id, guid=guid, subject=channel, reply=reply, data=data, connID=self.conn_id
        ).SerializeToString()
        if len(content) > self.connection.max_payload:
            raise LocalProtocolError(
                f"The message on {channel} is larger than the server takes.",
                remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.",
            )
        # The server goes by the channel in the message; a subject cannot carry a blank.
        subject = f"{subjects.pubPrefix}.{channel if not _BLANK.search(channel) else '_'}"
        if not self.connection.post(frame(subject.encode(), content, self._acks.encode())):
            raise DisconnectedError("There is no connection to NATS.", remedy="It is being made again.")
        return self._unacked.add(self.connection, subject, guid)

    def _pub_acked(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if is_nobody(header):
            return  # nobody serves the cluster just now; whoever waits for the ack finds out in time
        try:
            ack = decode(PubAck, data)
        except RemoteProtocolError as error:
            log.warning("Channels: bytes on the subject for acks are not an ack: %s", error)
            return
        self._unacked.settle(
            ack.guid, ChannelError(f"The server refuses: {ack.error}.", text=ack.error) if ack.error else None
        )

    # -- subscribing -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        channel: str,
        handler: Handler | None = None,
        *,
        queue: str = "",
        durable: str = "",
        start: StartPosition | str = StartPosition.NewOnly,
        sequence: int | None = None,
        since: float | None = None,
        max_in_flight: int = 1024,
        ack_wait: float = 30.0,
        manual_acks: bool = False,
    ) -> Subscription:
        """Subscribe to a channel.

        With a `handler` each message is handled in turn, and acknowledged when the handler returns, unless
        `manual_acks`. Without one, iterate over the subscription; a message is acknowledged when the next is asked for.

        `start` is a StartPosition or its name; `sequence` starts there, `since` that many seconds ago. `ack_wait` is
        seconds, whole ones.
        """
        subjects = self._ready()
        position = _position(start, sequence, since)
        if ack_wait < 1 or max_in_flight < 1:
            name = "ack_wait" if ack_wait < 1 else "max_in_flight"
            raise OptionError(f"{name} is below 1.", remedy="Give 1 or more.", option=name)
        inbox = self.connection.new_inbox()
        subscription = Subscription(self, channel, inbox, handler, manual_acks, max_in_flight, bool(durable))
        await subscription.listen()
        request = wire.SubscriptionRequest(
            clientID=self.client_id,
            subject=channel,
            qGroup=queue,
            inbox=inbox,
            maxInFlight=max_in_flight,
            ackWaitInSecs=int(ack_wait),
            durableName=durable,
            startPosition=int(position),
            startSequence=sequence or 0,
            startTimeDelta=0 if since is None else round(since * 1e9),
        )
        try:
            answer = await self._request(subjects.subRequests, request, wire.SubscriptionResponse)
            subscription.begin(answer.ackInbox)
        except BaseException as error:
            await subscription.end()
            if not isinstance(error, ChannelError):
                # The server may have heard us all the same, and would keep a subscription that nobody listens to.
                self.post_close(subscription)
            raise
        self._subscriptions[inbox] = subscription
        return subscription

    def post_close(self, subscription: Subscription) -> bool:
        """Tell the server that a subscription has ended, without waiting for an answer; False if it cannot be told."""
        subjects = self._subjects
        if subjects is None or not subjects.subCloseRequests:
            return False
        # The server knows it by the inbox of messages as well, until we know the one of acks.
        inbox = subscription.ack_inbox or subscription.inbox
        left = wire.UnsubscribeRequest(clientID=self.client_id, subject=subscription.channel, inbox=inbox)
        return self._post(subjects.subCloseRequests, left)

    def forget(self, subscription: Subscription) -> None:
        """Leave a subscription alone that has ended."""
        self._subscriptions.pop(subscription.inbox, None)

    async def leave(self, subscription: Subscription, *, unsubscribe: bool) -> None:
        """Tell the server that a subscription ends, for good or until it is resumed."""
        subjects = self._ready()
        subject = subjects.unsubRequests if unsubscribe else subjects.subCloseRequests
        if not subject:
            raise ChannelError("The server cannot close subscriptions.", remedy="It is too old: unsubscribe.")
        self.forget(subscription)
        channel, inbox = subscription.channel, subscription.ack_inbox
        request = wire.UnsubscribeRequest(clientID=self.client_id, subject=channel, inbox=inbox)
        await self._request(subject, request, wire.SubscriptionResponse)


async def _tell(name: str, listener: Callable[[Any], Awaitable[None]], error: Exception) -> None:
    try:
        await listener(error)
    except Exception:  # a failing listener must end nothing, and nobody else would hear of it
        log.exception("Channels: %s failed itself.", name)


def _position(start: StartPosition | str, sequence: int | None, since: float | None) -> StartPosition:
    if sequence is not None and since is not None:
        raise InputError("sequence and since are given together.", remedy="Leave one out.")
    if sequence is not None:
        return StartPosition.SequenceStart
    if since is not None:
        return StartPosition.TimeDeltaStart
    if isinstance(start, StartPosition):
        return start
    try:
        return StartPosition[start]
    except KeyError:
        raise OptionError(
            f"start is {start!r}.", remedy=f"Known: {', '.join(StartPosition.__members__)}.", option="start"
        ) from None
