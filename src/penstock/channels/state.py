"""What a gateway must not forget, in a stream of its own, and who may write it.

The state stream keeps the last message of each subject below `_PENSTOCK.channels.<cluster>`::

    lead              who leads; written once by each new leader, on condition that nobody else was quicker
    beat              the leader's pulse; a standby watches it
    info              what stays the same for the cluster, such as the inbox of acks
    client.<id>       a client
    sub.<number>      a subscription
    pos.<number>      the position of a group of subscriptions, and what they have not acknowledged

Every write by the leader is on condition that the last message on `lead` is still its own. So a leader that slept
through its lease cannot overwrite what its successor wrote: JetStream refuses, and it steps down. What is deleted
becomes an empty message that goes away by itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.channels.delivery import Group, Member
from penstock.channels.link import Link, frame_with
from penstock.channels.messages import headers_of
from penstock.channels.names import state_stream, state_subject
from penstock.channels.records import encode_member, encode_position
from penstock.channels.store import IN_PROCESS, WRONG_LAST
from penstock.connection import api_request
from penstock.errors import DeadlineError, JetStreamError, LinkError, NotFoundError
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["State"]

log = logging.getLogger("penstock.channels")

_RETRY = 0.05
_COSTLY = 0.005
_REFUSED = 1.0
_PAGE = 1000
_TOMBSTONE = "Nats-TTL: 60s\r\n"


class State:
    """The state stream of one cluster, read by anybody, written by the leader alone."""

    def __init__(self, link: Link, cluster: str, *, replicas: int = 1) -> None:
        self.link = link
        self.cluster = cluster
        self.replicas = replicas
        self.stream = state_stream(cluster)
        self.identity = secrets.token_hex(8)
        self.epoch = 0  # the sequence of our message on `lead`, zero while we do not lead
        self.on_lost: Callable[[], None] = lambda: None
        self._puts: dict[str, bytes] = {}
        self._groups: dict[int, Group] = {}
        self._wake = asyncio.Event()
        self.ready = False  # whether the stream is there, as far as we know
        self._replicated = False
        self._writing = asyncio.Lock()
        self._done: list[asyncio.Future[None]] = []

    def subject(self, *tokens: str) -> str:
        """Give a subject of this cluster's state."""
        return state_subject(self.cluster, *tokens)

    async def create(self) -> None:
        """Make the stream where it is not there."""
        config = {
            "name": self.stream,
            "subjects": [self.subject(">")],
            "description": f"Clients and subscriptions of NATS Streaming cluster {self.cluster}",
            "storage": "file",
            "num_replicas": self.replicas,
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "metadata": {"penstock.cluster": self.cluster},
        }
        try:
            described = await self._api("STREAM.INFO")
        except NotFoundError:
            described = await self._api("STREAM.CREATE", config)
        self._replicated = described["config"]["num_replicas"] > 1
        self.ready = True

    async def _api(self, method: str, body: object = None) -> dict[str, Any]:
        answer: dict[str, Any] = await api_request(
            self.link.client, f"{method}.{self.stream}", body, timeout=self.link.timeout, again=True
        )
        return answer

    async def last(self, *tokens: str) -> tuple[int, bytes]:
        """Give sequence and content of the last message of a subject, as the stream's leader knows it."""
        try:
            answer = await self._api("STREAM.MSG.GET", {"last_by_subj": self.subject(*tokens)})
        except NotFoundError:
            return 0, b""
        message = answer["message"]
        return message["seq"], base64.b64decode(message.get("data", ""))

    # -- leading -----------------------------------------------------------------------------------------------------

    async def lead(self) -> bool:
        """Try to become the leader; False where somebody else was quicker."""
        before, _ = await self.last("lead")
        header = f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {before}\r\n\r\n".encode()
        content = json.dumps({"v": 1, "gateway": self.identity}).encode()
        subject = self.subject("lead").encode()
        try:
            answer = await self.link.publish(lambda reply: frame_with(header, subject, content, reply))
        except JetStreamError as error:
            if error.err_code not in (WRONG_LAST, IN_PROCESS):
                raise
            return False
        self.epoch = answer["seq"]
        self._puts.clear()
        self._groups.clear()
        return True

    async def beat(self, *, released: bool = False) -> None:
        """Show that the leader lives, or that it goes; JetStreamError where it is not us any more."""
        content = json.dumps({"v": 1, "gateway": self.identity, "released": released}).encode()
        await self._write([(self.subject("beat"), content)])

    async def load(self) -> dict[str, bytes]:
        """Read everything that is remembered, by the part of the subject that follows the cluster.

        Any replica may answer. What we wrote to `lead` is the last thing that was written: an answer without it comes
        from a replica that is behind.
        """
        head = self.subject("")
        while True:
            found: dict[str, bytes] = {}
            start, seen = 1, 0
            while True:
                answers = await self.link.get(self.stream, {"seq": start, "batch": _PAGE, "max_bytes": 4 << 20})
                for data, header in answers:
                    fields = headers_of(header)
                    seen = int(fields["Nats-Sequence"])
                    found[fields["Nats-Subject"].removeprefix(head)] = data
                if not answers:
                    break
                start = seen + 1
            if seen >= self.epoch:
                return {subject: data for subject, data in found.items() if data}
            await asyncio.sleep(_RETRY)

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, subject: str, content: bytes) -> None:
        """Remember something under `subject`; nothing, `b""`, forgets it."""
        self._puts[self.subject(subject)] = content
        self._wake.set()

    def touch(self, group: Group) -> None:
        """Remember a group's position as it stands when the writing comes to it."""
        self._groups[group.number] = group
        self._wake.set()

    def remember(self, group: Group, member: Member) -> None:
        """Remember a subscription and its group's position."""
        self.touch(group)
        self.put(f"sub.{member.number}", encode_member(group, member))

    def forget(self, group: Group, member: Member) -> None:
        """Forget a subscription, and its group's position where nobody is left in it."""
        self.put(f"sub.{member.number}", b"")
        if group.members:
            self.touch(group)
        else:
            self._groups.pop(group.number, None)
            self.put(f"pos.{group.number}", b"")

    async def flush(self) -> None:
        """Wait until everything that was to be remembered is stored."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.append(done)
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write what is to be remembered, some at a time, until cancelled or until we do not lead any more."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._done = self._done, []
            began = time.perf_counter()
            items = self._collect()
            spent = time.perf_counter() - began
            while items:
                part, items = items[:_PAGE], items[_PAGE:]
                if not await self._persist(part):
                    return
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            if spent > _COSTLY:  # a position with very many pending messages: leave most of the time to others
                await asyncio.sleep(min(1.0, 10 * spent))

    def _collect(self) -> list[tuple[str, bytes]]:
        # Positions first: a subscription without one would begin anew, one too many does no harm.
        groups, self._groups = self._groups, {}
        puts, self._puts = self._puts, {}
        found = [(self.subject("pos", str(number)), encode_position(group)) for number, group in groups.items()]
        return found + list(puts.items())

    async def _persist(self, part: list[tuple[str, bytes]]) -> bool:
        while True:
            try:
                await self._write(part)
            except (DeadlineError, LinkError) as error:
                # The last message of a subject counts, so writing it twice does no harm.
                log.warning("Channels: the state could not be written: %s", error)
                await asyncio.sleep(_RETRY)
            except JetStreamError as error:
                if error.err_code == IN_PROCESS or may_ask_again(error):
                    await asyncio.sleep(_RETRY)
                    continue
                if error.err_code != WRONG_LAST:
                    log.error("Channels: the server refuses the state: %s", error)
                    await asyncio.sleep(_REFUSED)
                    continue
                log.error("Channels: this gateway does not lead any more.")
                self.on_lost()
                return False
            else:
                return True

    async def _write(self, items: Iterable[tuple[str, bytes]]) -> None:
        fence = f"Nats-Expected-Last-Subject-Sequence: {self.epoch}\r\n"
        fence += f"Nats-Expected-Last-Subject-Sequence-Subject: {self.subject('lead')}\r\n"
        listed = [(subject.encode(), content) for subject, content in items]
        async with self._writing:
            if self._replicated and len(listed) > 1:
                await self._write_together(fence, listed)
                return
            plain = f"NATS/1.0\r\n{fence}\r\n".encode()
            tombstone = f"NATS/1.0\r\n{fence}{_TOMBSTONE}\r\n".encode()
            frames = [(plain if content else tombstone, subject, content) for subject, content in listed]
            await self.link.publish_each(
                lambda reply: b"".join(frame_with(*item, reply) for item in frames), len(frames)
            )

    async def _write_together(self, fence: str, listed: list[tuple[bytes, bytes]]) -> None:
        """Write as one atomic batch: replicas take one condition on a subject at a time, and refuse what follows."""
        batch = secrets.token_hex(6)

        def framed(reply: bytes) -> bytes:
            frames = []
            for place, (subject, content) in enumerate(listed, start=1):
                last = place == len(listed)
                head = f"NATS/1.0\r\nNats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {place}\r\n"
                head += (fence if place == 1 else "") + ("" if content else _TOMBSTONE)
                head += "Nats-Batch-Commit: 1\r\n\r\n" if last else "\r\n"
                frames.append(frame_with(head.encode(), subject, content, reply if last else b""))
            return b"".join(frames)

        await self.link.publish(framed)
