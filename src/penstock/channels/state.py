"""What a gateway must not forget, in a stream of its own, and who may write it.

The state stream keeps the last message of each subject below `_PENSTOCK.channels.<cluster>`::

    lead              who leads; written once by each new leader, on condition that nobody else was quicker
    beat              the leader's pulse while it writes nothing else; a standby watches the end of the stream
    info              what stays the same for the cluster, such as the inbox of acks
    client.<id>       a client
    sub.<number>      a subscription
    pos.<number>      the position of a group of subscriptions, what they have not acknowledged, and up to where
                      messages may have been sent since: it is written before they are

Every write by the leader is on condition that the last message on `lead` is still its own. So a leader that slept
through its lease cannot overwrite what its successor wrote: JetStream refuses, and it steps down. What is deleted
becomes an empty message that goes away by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from penstock.channels.delivery import Group, Member
from penstock.channels.disk import Disk
from penstock.channels.names import CLUSTER, state_stream, state_subject
from penstock.channels.state_records import encode_group, encode_member
from penstock.connection import Connection, api_request
from penstock.connection.asking import direct_get, store_frames
from penstock.errors import InputError, JetStreamError, NoRespondersError, NotFoundError, PenstockError
from penstock.wire import protocol
from penstock.wire.jetstream import atomic, direct, names
from penstock.wire.jetstream.answers import PubAck, check_stream_answer, number, part
from penstock.wire.jetstream.names import SEQUENCE_IN_DOUBT, WRONG_LAST_SEQUENCE
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["State", "read_state"]

log = logging.getLogger("penstock.channels")

_RETRY = 0.05
_COSTLY = 0.005
_REFUSED = 1.0
_PAGE = 1000
_TOMBSTONE = f"{names.TTL}: 60s\r\n"


async def read_state(connection: Connection, cluster: str) -> tuple[dict[str, bytes], int]:
    """Read what a cluster remembers, by the part of the subject that follows the cluster, and the last sequence.

    NoRespondersError if no gateway ever served the cluster.
    """
    found: dict[str, bytes] = {}
    head, last = state_subject(cluster, ""), 0
    while answers := await direct_get(
        connection, state_stream(cluster), direct.question(last + 1, batch=_PAGE, max_bytes=4 << 20)
    ):
        for answer in answers:
            item = direct.read_found(*answer)
            last = item.sequence
            found[item.subject.removeprefix(head)] = item.payload
    return {subject: data for subject, data in found.items() if data}, last


class State:
    """The state stream of one cluster, read by anybody, written by the leader alone."""

    def __init__(
        self, connection: Connection, cluster: str, *, replicas: int = 1, pulse: Connection | None = None
    ) -> None:
        self.connection = connection
        self._pulses = pulse or connection  # a connection of its own has nothing to wait behind
        self.cluster = cluster
        self.replicas = replicas
        self.stream = state_stream(cluster)
        self._head = state_subject(cluster, "")  # what every subject begins with
        self.identity = secrets.token_hex(8)
        self.epoch = 0  # the sequence of our message on `lead`, zero while we do not lead
        self.on_lost: Callable[[], None] = lambda: None
        self.on_written: Callable[[float], None] = lambda began: None  # something was stored: we led when it began
        self.on_reserved: Callable[[Group], None] = lambda group: None  # a group that waits may send on
        self._ahead = True  # whether positions say more than was sent
        self._puts: dict[str, bytes] = {}
        self._groups: dict[int, Group] = {}
        self._wake = asyncio.Event()
        self.ready = False  # whether the stream is there, as far as we know
        self.fresh = False  # whether we made it
        self.forgot = False  # whether it has lost something that we wrote when we led before
        self._replicated = False
        self._writing = asyncio.Lock()
        self._done: list[asyncio.Future[None]] = []
        self.disk: Disk | None = None  # if the server leaves the syncing to us
        self._loop = asyncio.get_running_loop()

    async def create(self) -> None:
        """Make the stream if it is not there."""
        config = {
            "name": self.stream,
            "subjects": [f"{self._head}>"],
            "description": f"Clients and subscriptions of NATS Streaming cluster {self.cluster}",
            "storage": "file",
            "num_replicas": self.replicas,
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "metadata": {CLUSTER: self.cluster},
        }
        try:
            described = await api_request(self.connection, names.stream_info(self.stream))
        except NotFoundError:
            described = await api_request(self.connection, names.stream_create(self.stream), config, again=True)
            self.fresh = True
        self._replicated = number(check_stream_answer(described)["config"], "num_replicas", 1) > 1
        self.ready = True

    async def end(self) -> int:
        """Give the last sequence of all, as the stream's leader knows it."""
        described = await api_request(self.connection, names.stream_info(self.stream))
        return number(part(described, "state"), "last_seq")

    async def last(self, name: str) -> tuple[int, bytes]:
        """Give sequence and content of the last message of a subject, as the stream's leader knows it."""
        body = direct.question(last=self._head + name)
        try:
            found = direct.read_message(await api_request(self.connection, names.message_get(self.stream), body))
        except NotFoundError:
            return 0, b""
        return found.sequence, found.payload

    # -- leading -----------------------------------------------------------------------------------------------------

    async def lead(self, before: int) -> bool:
        """Try to become the leader after the one whose message on `lead` is `before`; False if another was quicker."""
        header = protocol.encode_headers({names.EXPECTED_LAST_SUBJECT_SEQUENCE: str(before)})
        content = json.dumps({"v": 1, "gateway": self.identity}).encode()
        subject = f"{self._head}lead"

        def make(reply: bytes) -> bytes:
            return protocol.publish(subject, content, reply.decode(), header)

        try:
            [ack] = await store_frames(self.connection, make, (subject,))
            self._check_taken(ack)
        except JetStreamError as error:
            if error.err_code not in (WRONG_LAST_SEQUENCE, SEQUENCE_IN_DOUBT):
                raise
            return False
        self.forgot = before < self.epoch
        self.epoch = ack.sequence
        self._puts.clear()
        self._groups.clear()
        self._ahead = True
        await self._write(self._pulse(), self._pulses)
        return True

    def _pulse(self, *, released: bool = False) -> list[tuple[str, bytes]]:
        fields = {"v": 1, "gateway": self.identity, "released": released, "lead": self.epoch}
        content = json.dumps(fields).encode()
        return [(f"{self._head}beat", content)]

    async def beat(self, *, released: bool = False) -> float | None:
        """Show that the leader lives, or that it goes, however many attempts it takes.

        Gives when the attempt that was stored began, None if somebody else leads now.
        """
        return await self._write_surely(self._pulse(released=released), self._pulses)

    async def load(self) -> dict[str, bytes]:
        """Read everything that is remembered.

        Any replica may answer. What we wrote to `lead` is the last thing that was written: an answer without it comes
        from a replica that is behind.
        """
        while True:
            found, last = await read_state(self.connection, self.cluster)
            if last >= self.epoch:
                return found
            await asyncio.sleep(_RETRY)

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, subject: str, content: bytes) -> None:
        """Remember something under `subject`; nothing, `b""`, forgets it."""
        self._puts[self._head + subject] = content
        self._wake.set()

    def touch(self, group: Group) -> None:
        """Remember a group's position as it stands when the writing comes to it."""
        self._groups[group.number] = group
        self._wake.set()

    def settle(self, groups: Iterable[Group]) -> None:
        """Remember of these groups exactly what was sent, because nothing more will be."""
        self._ahead = False
        for group in groups:
            self.touch(group)

    def remember(self, group: Group, member: Member) -> None:
        """Remember a subscription and its group's position."""
        self.touch(group)
        self.put(f"sub.{member.number}", encode_member(group, member))

    def forget(self, group: Group, member: Member) -> None:
        """Forget a subscription, and its group's position if nobody is left in it."""
        self.put(f"sub.{member.number}", b"")
        if group.members:
            self.touch(group)
        else:
            self._groups.pop(group.number, None)
            self.put(f"pos.{group.number}", b"")

    async def flush(self) -> None:
        """Wait until everything that was to be remembered is stored."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._done.append(done)
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write what is to be remembered, some at a time, until cancelled or until we do not lead any more."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._done = self._done, []
            began = time.thread_time()  # an encoding that was held up cost nothing
            # Positions first: a subscription without one would begin anew, one too many does no harm.
            groups, self._groups, puts, self._puts = self._groups, {}, self._puts, {}
            reserved = [(group, group.reserve(ahead=self._ahead)) for group in groups.values()]
            items = [(f"{self._head}pos.{group.number}", encode_group(group, sent)) for group, sent in reserved]
            items += puts.items()
            spent = time.thread_time() - began
            while items:
                part, items = items[:_PAGE], items[_PAGE:]
                written = await self._write_surely(part, self.connection)
                if written is None:
                    log.error("Channels: this gateway does not lead any more.")
                    self.on_lost()
                    return
                self.on_written(written)
            await self._stored(reserved, waiting)
            if spent > _COSTLY:  # a position with very many pending messages: leave most of the time to others
                await asyncio.sleep(min(1.0, 10 * spent))

    async def _stored(self, reserved: list[tuple[Group, int]], waiting: list[asyncio.Future[None]]) -> None:
        """Let those go on who waited for what is stored now; if we have to sync it first, only as often as need be."""
        if self.disk is not None:
            if not waiting and not any(group.is_short_of(sent) for group, sent in reserved):
                return  # what was synced before is enough
            await self.disk.sync(self.stream, grown=False)
        for group, sent in reserved:
            group.reserved = sent
            if group.waits:
                group.waits = False
                self.on_reserved(group)
        for future in waiting:
            if not future.done():
                future.set_result(None)
        await asyncio.sleep(0)  # those who waited send, so that the next write knows of it

    async def _write_surely(self, items: list[tuple[str, bytes]], connection: Connection) -> float | None:
        """Write until it is stored, and give when the attempt that was stored began; None if somebody else leads now.

        The last message of a subject counts, so writing it twice does no harm, and there is nobody to tell of a
        failure: whoever waits for it waits on.
        """
        told = ""
        while True:
            began = self._loop.time()
            try:
                await self._write(items, connection)
                return began
            except PenstockError as error:
                code = error.err_code if isinstance(error, JetStreamError) else None
                if code == WRONG_LAST_SEQUENCE:
                    return None
                if isinstance(error, NoRespondersError) and await self.notice_gone():
                    return None
                passes = may_ask_again(error) or code == SEQUENCE_IN_DOUBT
                if str(error) != told:  # an outage is told once, not with each attempt
                    told = str(error)
                    level = logging.WARNING if passes else logging.ERROR
                    log.log(level, "Channels: the state is not written: %s", error)
                await asyncio.sleep(_RETRY if passes else _REFUSED)

    async def notice_gone(self) -> bool:
        """Tell whether somebody deleted the stream, and not only its leader is away; it must be made again then."""
        if gone := await self._is_gone():
            log.error("Channels: the stream %s, in which the state is kept, was deleted.", self.stream)
            self.ready = False
        return gone

    async def _is_gone(self) -> bool:
        try:
            await api_request(self.connection, names.stream_info(self.stream))
        except NotFoundError:
            return True
        except PenstockError:
            pass  # nobody can tell for now
        return False

    async def _write(self, items: list[tuple[str, bytes]], connection: Connection) -> None:
        fence = f"{names.EXPECTED_LAST_SUBJECT_SEQUENCE}: {self.epoch}\r\n"
        fence += f"{names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: {self._head}lead\r\n"
        subjects = {subject for subject, _ in items}
        # Replicas take one condition on a subject at a time, and refuse what follows: they get one atomic batch.
        together = self._replicated and len(items) > 1
        batch_id = atomic.new_id()

        def make(reply: bytes) -> bytes:
            lines = [("" if content else _TOMBSTONE) for _, content in items]
            if together:
                lines[0] += fence
                messages = [(item[0].encode(), line, item[1]) for item, line in zip(items, lines, strict=True)]
                return atomic.encode(messages, batch_id, reply)
            where = reply.decode()
            return b"".join(
                protocol.publish(subject, content, where, f"NATS/1.0\r\n{fence}{line}\r\n".encode())
                for (subject, content), line in zip(items, lines, strict=True)
            )

        async with self._writing if self._replicated else nullcontext():
            for ack in await store_frames(connection, make, subjects, count=1 if together else len(items)):
                self._check_taken(ack)
                if together:
                    atomic.together(ack, batch_id, len(items))

    def _check_taken(self, ack: PubAck) -> None:
        """Refuse an ack of another stream, which took our subjects when this one was deleted."""
        if ack.stream != self.stream:
            raise InputError(
                f"The stream {ack.stream} takes {self._head}> now, and not {self.stream}.",
                remedy="Let no other stream take these subjects.",
            )
