"""The clients of a gateway, and whether they are alive.

A client is asked for a sign of life every `hb_interval`. One that misses heartbeats is sick: its subscriptions get
nothing a second time until it answers. One that misses more than `hb_fail_count` in a row is closed.

When somebody connects with the id of a client that is there, that one is asked, too, and has `duplicate_timeout` to
answer. NATS says at once when nobody listens on the heartbeat inbox; that counts as silence, not as an answer, so the
time always runs out before a client is replaced. A client that is just reconnecting to NATS keeps its id that way.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.channels.channel import Channel
from penstock.channels.client_writer import ClientWriter
from penstock.channels.delivery import Member
from penstock.channels.options import GatewayOptions
from penstock.channels.state_records import ClientRecord
from penstock.channels.wire import is_nobody

__all__ = ["Clients", "Connected"]


@dataclass(eq=False)
class Connected:
    """A client that is registered."""

    record: ClientRecord
    members: dict[Member, Channel] = field(default_factory=dict)
    failures: int = 0
    asked: str = ""  # where the answer to a heartbeat is to come, while one is out
    timer: asyncio.TimerHandle | None = None


class Clients:
    """Registered clients by id and by connection, and their heartbeats."""

    def __init__(
        self, options: GatewayOptions, writer: ClientWriter, inbox_prefix: str, expire: Callable[[Connected], None]
    ) -> None:
        self._options = options
        self._writer = writer
        self._expire = expire
        self.by_id: dict[str, Connected] = {}
        self.by_conn: dict[bytes, Connected] = {}
        self.inbox = f"{inbox_prefix}.{secrets.token_hex(11)}"
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()

    def is_valid(self, name: str, conn_id: bytes) -> bool:
        """Whether a publisher is who it says: by its connection if it names one, else by its id."""
        return conn_id in self.by_conn if conn_id else name in self.by_id

    def add(self, record: ClientRecord) -> Connected:
        """Register a client, and start its heartbeats."""
        client = Connected(record)
        self.by_id[record.id] = client
        if record.conn_id:
            self.by_conn[record.conn_id] = client
        self._schedule(client, self._options.hb_interval)
        return client

    def remove(self, client: Connected) -> None:
        """Forget a client."""
        del self.by_id[client.record.id]
        if self.by_conn.get(client.record.conn_id) is client:
            del self.by_conn[client.record.conn_id]
        self._waiting.pop(client.asked, None)
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None

    def end(self) -> None:
        """Stop every heartbeat."""
        for client in self.by_id.values():
            if client.timer is not None:
                client.timer.cancel()

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def answered(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        """Take a client's answer to a heartbeat."""
        if is_nobody(header):
            return
        found = self._waiting.pop(subject.decode("utf-8", "replace"), None)
        if found is not None:
            found()

    def pinged(self, client: Connected) -> None:
        """Ask a client that pings but missed heartbeats at once, so that it is well again soon.

        A heartbeat that is out already counts: a client whose pings come often must not outrun its failures.
        """
        if client.failures and not client.asked:
            self._schedule(client, 0)

    async def is_alive(self, client: Connected) -> bool:
        """Ask a client whether it is still there."""
        answered = asyncio.Event()
        reply = self._ask(client, answered.set)
        try:
            async with asyncio.timeout(self._options.duplicate_timeout):
                await answered.wait()
        except TimeoutError:
            return not self._writer.up  # whoever could not be asked is not replaced
        finally:
            self._waiting.pop(reply, None)
        return True

    def _ask(self, client: Connected, answered: Callable[[], None]) -> str:
        reply = f"{self.inbox}.{next(self._numbers)}"
        self._waiting[reply] = answered
        self._writer.send(client.record.heartbeat_inbox.encode(), b"", reply.encode())
        return reply

    def _schedule(self, client: Connected, seconds: float) -> None:
        if client.timer is not None:
            client.timer.cancel()
        client.timer = self._loop.call_later(seconds, self._beat, client)

    def _beat(self, client: Connected) -> None:
        if not self._writer.up:  # whoever cannot be asked has missed nothing
            self._schedule(client, self._options.hb_interval)
            return
        client.asked = self._ask(client, lambda: self._well(client))
        client.timer = self._loop.call_later(self._options.hb_timeout, self._missed, client)

    def _well(self, client: Connected) -> None:
        if client.timer is None:
            return  # closed meanwhile
        client.failures, client.asked = 0, ""
        self._mark(client, sick=False)
        self._schedule(client, self._options.hb_interval)

    def _missed(self, client: Connected) -> None:
        self._waiting.pop(client.asked, None)
        client.asked = ""
        client.failures += 1
        if client.failures > self._options.hb_fail_count:
            client.timer = None
            self._expire(client)
            return
        self._mark(client, sick=True)
        self._schedule(client, self._options.hb_interval)

    def _mark(self, client: Connected, *, sick: bool) -> None:
        for member, channel in client.members.items():
            if member.sick != sick:
                member.sick = sick
                if not sick:
                    member.quiet_until = 0.0
                if member.group is not None:
                    self._writer.wake(channel.delivery(member.group))
