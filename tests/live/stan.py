"""What tests of channels share: a cluster of its own on the common server, clients, bare requests, a way to wait."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.channels import Client, Gateway, Message
from penstock.channels.wire import (
    Ack,
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    MsgProto,
    PubAck,
    PubMsg,
    SubscriptionRequest,
    SubscriptionResponse,
    UnsubscribeRequest,
    decode,
    frame,
)
from penstock.connection import api_request, connect


class Got:
    """A handler that remembers; `count` waits for a number of messages, `stays` sees that no more come."""

    def __init__(self, act: Callable[[Message], Any] | None = None) -> None:
        self.messages: list[Message] = []
        self.times: list[float] = []
        self._act = act
        self._arrived = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self.times.append(time.monotonic())
        self._arrived.set()
        if self._act is not None:
            outcome = self._act(message)
            if asyncio.iscoroutine(outcome):
                await outcome

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in self.messages]

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages]

    @property
    def redelivered(self) -> list[int]:
        return [message.sequence for message in self.messages if message.redelivered]

    async def count(self, number: int, timeout: float = 20.0) -> list[Message]:
        try:
            async with asyncio.timeout(timeout):
                while len(self.messages) < number:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.messages)} of {number} messages came: {self.sequences[-20:]}") from None
        return self.messages

    async def stays(self, number: int, seconds: float = 0.3) -> None:
        await self.count(number)
        await asyncio.sleep(seconds)
        assert len(self.messages) == number, self.sequences[-20:]


class Raw:
    """A client made of bare requests, so that nothing between us and the gateway is polite."""

    def __init__(self, connection: Any, cluster: str, client_id: str) -> None:
        self.connection = connection
        self.cluster = cluster
        self.client_id = client_id
        self.conn_id = secrets.token_hex(8).encode()
        self.heartbeats = 0
        self.answers_heartbeats = True
        self.heartbeat_inbox = f"_INBOX.{secrets.token_hex(8)}"

    async def ask(self, subject: str, content: Any, kind: Any = None, timeout: float = 3.0) -> Any:
        """Send a request; give the decoded answer, or its bytes where no kind is given, or None after silence."""
        payload = content if isinstance(content, bytes) else content.SerializeToString()
        reply = f"_INBOX.{secrets.token_hex(8)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def receive(_: bytes, __: bytes, data: bytes, header: bytes | None) -> None:
            if not answer.done() and header is None:
                answer.set_result(data)

        sid = await self.connection.tap(reply, receive)
        try:
            self.connection.post(frame(subject.encode(), payload, reply.encode()))
            async with asyncio.timeout(timeout):
                data = await answer
        except TimeoutError:
            return None
        finally:
            await sid.unsubscribe()
        return data if kind is None else decode(kind, data)

    async def connect(self, *, protocol: int = 1, interval: int = 5, out: int = 3, timeout: float = 3.0) -> Any:
        await self.connection.tap(self.heartbeat_inbox, self._heartbeat)
        request = ConnectRequest(
            clientID=self.client_id,
            heartbeatInbox=self.heartbeat_inbox,
            protocol=protocol,
            connID=self.conn_id if protocol else b"",
            pingInterval=interval,
            pingMaxOut=out,
        )
        return await self.ask(f"_STAN.discover.{self.cluster}", request, ConnectResponse, timeout)

    def _heartbeat(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        self.heartbeats += 1
        if self.answers_heartbeats:
            self.connection.post(frame(reply, b""))

    async def publish(self, channel: str, data: bytes = b"x", **fields: Any) -> Any:
        given = {"clientID": self.client_id, "guid": "g", "subject": channel, "data": data, "connID": self.conn_id}
        request = PubMsg(**{**given, **fields})
        return await self.ask(f"_STAN.pub.{self.cluster}.x", request, PubAck)

    async def subscribe(self, channel: str, receive: Callable[[Any], None] | None = None, **fields: Any) -> Any:
        """Subscribe with these fields; give the answer, and have `receive` called with each MsgProto."""
        inbox = fields.pop("inbox", None) or f"_INBOX.{secrets.token_hex(8)}"
        if receive is not None:
            await self.connection.tap(inbox, lambda s, r, data, h: receive(decode(MsgProto, data)))
        given = {"clientID": self.client_id, "subject": channel, "inbox": inbox, "maxInFlight": 10, "ackWaitInSecs": 1}
        request = SubscriptionRequest(**{**given, **fields})
        return await self.ask(f"_STAN.sub.{self.cluster}", request, SubscriptionResponse)

    def ack(self, ack_inbox: str, channel: str, sequence: int) -> None:
        self.connection.post(frame(ack_inbox.encode(), Ack(subject=channel, sequence=sequence).SerializeToString()))

    async def leave(self, what: str, channel: str, inbox: str, client: str | None = None) -> Any:
        request = UnsubscribeRequest(
            clientID=self.client_id if client is None else client, subject=channel, inbox=inbox
        )
        return await self.ask(f"_STAN.{what}.{self.cluster}", request, SubscriptionResponse)

    async def close(self, client: str | None = None) -> Any:
        request = CloseRequest(clientID=self.client_id if client is None else client)
        return await self.ask(f"_STAN.close.{self.cluster}", request, CloseResponse)


class Stan:
    """A cluster of its own: `serve` starts a gateway for it, `client` and `raw` connect."""

    def __init__(self, url: str, cluster: str) -> None:
        self.url = url
        self.cluster = cluster
        self.gateways: list[Gateway] = []
        self._clients: list[Client] = []
        self._connections: list[Any] = []

    def stream(self, channel: str) -> str:
        return f"{self.cluster}:{channel.replace('.', ':')}"

    async def serve(self, **options: Any) -> Gateway:
        given = {"cluster_id": self.cluster, "subject_prefix": f"{self.cluster}."}
        gateway = Gateway(self.url, **{**given, **options})
        self.gateways.append(gateway)
        return await gateway.start()

    async def connection(self) -> Any:
        made = await connect(self.url)
        self._connections.append(made)
        return made

    async def client(self, client_id: str = "me", **options: Any) -> Client:
        client = Client(self.url, cluster_id=self.cluster, client_id=client_id, **options)
        self._clients.append(client)
        return await client.connect()

    async def raw(self, client_id: str = "me") -> Raw:
        return Raw(await self.connection(), self.cluster, client_id)

    async def close(self) -> None:
        for client in self._clients:
            client._connect_timeout = 0.5  # a gateway that was killed does not answer
            try:
                await client.close()
            except Exception:  # the test may have closed or replaced it on purpose
                await client._release()
        for gateway in self.gateways:
            await gateway.stop()
        cleaner = await self.connection()
        names = (await api_request(cleaner, "STREAM.NAMES")).get("streams") or []
        for name in names:
            if name.startswith((f"{self.cluster}:", f"{self.cluster}=")):
                await api_request(cleaner, f"STREAM.DELETE.{name}")
        for connection in self._connections:
            await connection.close()


@asynccontextmanager
async def cluster_of(url: str, name: str) -> AsyncIterator[Stan]:
    made = Stan(url, name)
    try:
        yield made
    finally:
        await made.close()


async def until(predicate: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout
    while not (found := predicate()):
        assert time.monotonic() < deadline, "it did not become true in time"
        await asyncio.sleep(0.01)
    return found
