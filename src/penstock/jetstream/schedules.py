"""`Schedules`: messages that wait in a stream until it publishes them: put, looked at, and taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.jetstream import assets
from penstock.jetstream.outgoing import Outgoing
from penstock.jetstream.schedule import Schedule, check_taken
from penstock.model import Message, PubAck, format_time
from penstock.times import parse_time
from penstock.wire.jetstream import names
from penstock.wire.subjects import covers, subject_fault

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Scheduled", "Schedules"]

_AT = "@at "
# Headers that are for the stream where a message waits: the server does not publish them.
_KEPT = (names.SCHEDULE, names.EXPECTED_PREFIX, names.MSG_ID, names.TTL, names.ROLLUP)
# What the server refuses of a schedule, and what to do: the stream was looked at before, so somebody changed it since,
# or the server knows better.
_REFUSALS = {
    10165: "Give the message a TTL of a second or more.",
    10166: "Let the stream take TTLs: penstock stream edit STREAM --allow-msg-ttl.",
    10188: "Let the stream take messages for later: penstock stream edit STREAM --allow-schedules.",
    10189: "Cron has six fields, seconds first, and must come true within five years; intervals are 1s or more.",
    10190: "The target is a plain subject that the stream captures, and not the one where the message waits.",
    10191: 'The ttl of the schedule is a second or more, or "never".',
    10192: f"Leave {names.ROLLUP} out of the headers: a message for later always replaces the one before it.",
    10203: "The source is a plain subject that the stream captures, neither the target nor where the message waits.",
    10223: "Name a time zone that the server knows, such as Europe/Berlin.",
}


@dataclass(frozen=True)
class Scheduled:
    """A message that waits in a stream, with what the server reads of when and where it publishes it."""

    subject: str
    """Where it waits, which is what `cancel` is given."""
    sequence: int
    """Its sequence in the stream."""
    time: datetime | None
    """When the stream stored it."""
    pattern: str
    """When it is published: `@at TIME`, `@every DURATION`, cron, or `@daily` and the like."""
    target: str
    """The subject that it is published on."""
    source: str | None
    """The subject whose last message is published instead."""
    ttl: str | None
    """How long what is published is kept, as the server reads it."""
    zone: str | None
    """The time zone of cron; UTC if nothing is given."""
    rollup: bool
    """Whether what is published replaces everything that the stream held of the target."""
    data: bytes
    """The payload."""
    headers: dict[str, list[str]]
    """The headers that are published with it."""

    @property
    def at(self) -> datetime | None:
        """When it is published, if that happens once; the server does not say when it publishes one again."""
        try:
            return parse_time(self.pattern.removeprefix(_AT)) if self.pattern.startswith(_AT) else None
        except InputError:
            return None

    @classmethod
    def of(cls, message: Message) -> Self | None:
        """Read a stored message; None if it does not wait for anything."""

        def said(name: str) -> str | None:
            return message.headers.get(name, [None])[0]

        pattern, target = said(names.SCHEDULE), said(names.SCHEDULE_TARGET)
        if not pattern or not target:
            return None
        return cls(
            subject=message.subject,
            sequence=message.sequence or 0,
            time=message.time,
            pattern=pattern,
            target=target,
            source=said(names.SCHEDULE_SOURCE),
            ttl=said(names.SCHEDULE_TTL),
            zone=said(names.SCHEDULE_ZONE),
            rollup=said(names.SCHEDULE_ROLLUP) == "sub",
            data=message.data,
            headers={name: values for name, values in message.headers.items() if not name.startswith(_KEPT)},
        )

    def to_json(self) -> dict[str, Any]:
        """Give it for programs; the payload is base64."""
        facts = {name: getattr(self, name) for name in ("pattern", "target", "source", "ttl", "zone", "rollup")}
        message = Message(
            subject=self.subject, data=self.data, headers=self.headers, sequence=self.sequence, time=self.time
        )
        return {**message.to_json(), **facts, "at": format_time(self.at) if self.at else None}


class Schedules:
    """The messages of one stream that wait to be published; the stream must allow it (`allow_msg_schedules`)."""

    def __init__(self, client: Connection, stream: str) -> None:
        self._client = client
        self.stream = assets.checked(stream, "stream")

    async def put(
        self,
        subject: str,
        data: bytes,
        schedule: Schedule,
        *,
        headers: Mapping[str, str | Iterable[str]] | None = None,
        id: str | None = None,
    ) -> PubAck:
        """Let a message wait under a subject, in place of the one that waits there; give the ack of the stream.

        `headers` are published with it. With an `id` the same call again is stored once, within the duplicate window;
        without one it begins anew.
        """
        out = Outgoing(subject, data, id=id, headers=headers, schedule=schedule)
        stream = (await assets.stream_info(self._client, self.stream)).config
        if not any(covers(captured, subject) for captured in stream.subjects):
            what = f"Stream {self.stream} does not capture the subject {subject}."
            raise InputError(what, remedy=f"It captures {', '.join(stream.subjects) or 'nothing'}.")
        check_taken(schedule, subject, stream)
        said = out.wire_headers(id or "")
        if id is None:
            del said[names.MSG_ID]
        try:
            return await self._client.jetstream().publish(subject, data, stream=self.stream, headers=said)
        except JetStreamError as error:
            if error.err_code not in _REFUSALS:
                raise
            remedy = _REFUSALS[error.err_code].replace("STREAM", self.stream)
            raise JetStreamError(f"{subject}: {error.what}", remedy=remedy, **error.facts) from None

    async def pending(self, subject: str = ">") -> AsyncIterator[Scheduled]:
        """Give what waits under a subject or a pattern of subjects, in no particular order.

        The server keeps no list: the last message of each subject is looked at. In a stream with many subjects, name
        a pattern that has the waiting ones and few others.
        """
        if fault := subject_fault(subject):
            raise InputError(f"The subject {subject!r} {fault}.", remedy="Name a subject or a pattern.")
        async for message in self._client.jetstream().get_last_msgs(self.stream, [subject]):
            if (found := Scheduled.of(message)) is not None:
                yield found

    async def get(self, subject: str) -> Scheduled:
        """Give what waits under a subject; NotFoundError if nothing does."""
        if fault := subject_fault(subject, literal=True):
            raise InputError(f"The subject {subject!r} {fault}.", remedy="Name the subject where the message waits.")
        try:
            found = Scheduled.of(await assets.get_message(self._client, self.stream, last_for=subject))
        except NotFoundError as error:
            if error.err_code != names.NO_MESSAGE:
                raise
            found = None
        if found is None:
            raise self._nothing(subject)
        return found

    async def cancel(self, subject: str) -> Scheduled:
        """Take back what waits under a subject, and give it; NotFoundError if nothing waits there any more.

        What is put there in the same moment by somebody else stays.
        """
        found = await self.get(subject)
        if not await assets.purge_stream(self._client, self.stream, subject=subject, sequence=found.sequence + 1):
            raise self._nothing(subject)
        return found

    def _nothing(self, subject: str) -> NotFoundError:
        return NotFoundError(
            f"Nothing waits under {subject} in stream {self.stream}.",
            remedy="It was published or taken back already, or waits under another subject.",
            code=404,
            err_code=names.NO_MESSAGE,
        )
