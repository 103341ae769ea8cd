"""`penstock pub`: messages as the `nats` command sends them, plain, acknowledged by a stream, all or none, or later."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Headers, argument, flag, flag_table, table_flag
from penstock.cli.late import assets
from penstock.cli.message_parts import HeaderTemplates, Template, Templates, check_subjects
from penstock.cli.output import progress
from penstock.cli.running import connected
from penstock.cli.standard_input import Body, ForceStdin, SendOn, bodies
from penstock.cli.tables import plain
from penstock.cli.values import parse_until, refuse_both
from penstock.durations import format_duration, parse_duration
from penstock.errors import DeniedError, InputError
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.jetstream import Outgoing
    from penstock.wire.jetstream.answers import PubAck

__all__ = ["pub"]


@flag_table
class Schedule:
    """When a stream is to publish a message, and where to."""

    schedule_at: str | None = table_flag("Have the stream publish it at a time.", "TIME")
    schedule_after: str | None = table_flag("Have the stream publish it after a while.", "DURATION")
    schedule_every: str | None = table_flag("Have the stream publish it every so often.", "DURATION")
    schedule_cron: str | None = table_flag("Have the stream publish it as cron says.", "CRON")
    schedule_dest: str | None = table_flag("Subject that the schedule publishes to.", "SUBJECT")
    schedule_source: str | None = table_flag("Subject whose last message it publishes instead.", "SUBJECT")
    schedule_ttl: str | None = table_flag("How long what it publishes is kept.", "DURATION")

    def headers(self) -> dict[str, list[str]]:
        """Give the headers that say it; none if nothing is said."""
        patterns = self._patterns()
        others = [self.schedule_dest, self.schedule_source, self.schedule_ttl]
        if not patterns and not any(others):
            return {}
        if len(patterns) != 1 or not self.schedule_dest:
            raise InputError(
                "A schedule has a time and a destination.",
                remedy="Give one of --schedule-at, -after, -every and -cron, and --schedule-dest.",
            )
        check_subjects(self.schedule_dest, *([self.schedule_source] if self.schedule_source else []), literal=True)
        said = {names.SCHEDULE: patterns[0], names.SCHEDULE_TARGET: self.schedule_dest}
        if self.schedule_source:
            said[names.SCHEDULE_SOURCE] = self.schedule_source
        if self.schedule_ttl:
            said[names.SCHEDULE_TTL] = _positive(self.schedule_ttl, "--schedule-ttl")
        return {name: [value] for name, value in said.items()}

    def _patterns(self) -> list[str]:
        """Write each time that is given as the server reads it."""
        found = []
        if self.schedule_at:
            found.append(f"@at {_written(parse_until(self.schedule_at, '--schedule-at'))}")
        if self.schedule_after:
            pause = parse_duration(_positive(self.schedule_after, "--schedule-after"), option="--schedule-after")
            found.append(f"@at {_written(datetime.now(UTC) + timedelta(seconds=pause))}")
        if self.schedule_every:
            found.append(f"@every {_positive(self.schedule_every, '--schedule-every')}")
        if self.schedule_cron:
            found.append(self.schedule_cron)
        return found


def _positive(text: str, option: str) -> str:
    """Write a duration as the server reads it."""
    seconds = parse_duration(text, option=option)
    if seconds <= 0:
        raise InputError(f"{option} is {text}.", remedy="Give some time, such as 5s.")
    return format_duration(seconds)


def _written(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class _Message:
    subject: str
    data: bytes
    headers: Mapping[str, list[str]]
    reply: str


async def pub(
    ctx: typer.Context,
    schedule: Schedule,
    subject: Annotated[str, argument("Subject to publish on.")],
    body: Body = None,
    header: Headers = None,
    count: Annotated[int, flag("How many messages to publish.", min=1)] = 1,
    sleep: Annotated[str, flag("Pause between messages.", "DURATION")] = "0s",
    jitter: Annotated[str, flag("Up to so much more of a pause.", "DURATION")] = "0s",
    reply: Annotated[str | None, flag("Reply subject to name.", "SUBJECT")] = None,
    jetstream: Annotated[bool, flag("Wait for the stream's ack of each.", "-J", "--jetstream")] = False,
    atomic: Annotated[bool, flag("Store all of them in a stream, or none.")] = False,
    ttl: Annotated[str | None, flag("How long the stream is to keep it, or never.", "DURATION")] = None,
    templates: Templates = True,
    force_stdin: ForceStdin = False,
    send_on: SendOn = "eof",
    quiet: Annotated[bool, flag("Print nothing but errors.", "-q", "--quiet")] = False,
) -> None:
    """Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled."""
    check_subjects(subject, literal=True, templates=templates)
    check_subjects(*([reply] if reply else []), literal=True)
    planned = schedule.headers()
    acknowledged = jetstream or atomic or bool(planned) or ttl is not None
    refuse_both("--reply", reply is not None, "an ack of the stream", acknowledged)
    refuse_both("--atomic", atomic, "a schedule", bool(planned))
    if ttl is not None:
        planned[names.TTL] = ["never" if ttl == "never" else _positive(ttl, "--ttl")]
    further = HeaderTemplates(header, on=templates)
    pauses = parse_duration(sleep, option="--sleep"), parse_duration(jitter, option="--jitter")
    given = bodies(body, stdin=force_stdin, send_on=send_on)
    subjects, texts = Template(subject.encode(), on=templates), (Template(data, on=templates) async for data in given)
    first = await anext(texts) if send_on != "newline" else None  # all of it is there before we connect

    async def messages() -> AsyncIterator[_Message]:
        text = first or await anext(texts, None)
        while text is not None:
            for number in range(1, count + 1):
                target = subjects.fill(number).decode()
                check_subjects(target, literal=True)
                yield _Message(target, text.fill(number), {**further.fill(number), **planned}, reply or "")
            text = await anext(texts, None)

    denials: list[DeniedError] = []

    async def denied(error: Exception) -> None:
        if isinstance(error, DeniedError):
            denials.append(error)

    sending = _Sending(subject, quiet, _Pace(*pauses), count if first is not None else 0, ctx.obj.seconds, denials)
    async with connected(ctx, on_error=denied) as client:
        if atomic:
            await sending.atomic(client, messages())
        elif acknowledged:
            await sending.acknowledged(client, messages())
        else:
            await sending.plain(client, messages())


@dataclass
class _Pace:
    """Pauses between messages, counted from when the one before was sent."""

    pause: float
    jitter: float
    last: float | None = None

    @property
    def is_slow(self) -> bool:
        return bool(self.pause or self.jitter)

    async def keep(self) -> None:
        """Wait until it is time for the next message."""
        if self.last is not None:
            pause = self.pause + random.uniform(0, self.jitter)  # noqa: S311  # spreads messages only
            await asyncio.sleep(max(self.last + pause - time.monotonic(), 0.0))
        self.last = time.monotonic()


class _Watch(ExitStack):
    """Notes when the server denies a subject that was published to; of so many subjects at a time."""

    MOST = 1000

    def __init__(self, client: Connection, denials: list[DeniedError]) -> None:
        super().__init__()
        self._client, self._denials, self._subjects = client, denials, set[str]()

    @property
    def is_full(self) -> bool:
        return len(self._subjects) >= self.MOST

    def over(self, subject: str) -> None:
        """Watch a subject, and forget all others if there are too many: the server has said what it has to say."""
        if self.is_full:
            self.close()
            self._subjects.clear()
        if subject not in self._subjects:
            self._subjects.add(subject)
            self.enter_context(self._client.expecting(subject, self._denials.append, mapped=True))


@dataclass
class _Sending:
    subject: str
    """Where to, as it was given."""
    quiet: bool
    pace: _Pace
    total: int
    """How many there are, 0 if nobody knows yet."""
    seconds: float
    """How long the server may take."""
    denials: list[DeniedError]

    def say(self, text: str) -> None:
        if not self.quiet:
            typer.echo(plain(text))

    async def plain(self, client: Connection, messages: AsyncIterator[_Message]) -> None:
        """Publish, and say so once the server has it and refused nothing."""
        each = self.pace.is_slow or not self.total  # else one line sums them up
        sent, message = 0, None
        several = self.total > 1 and not each and not self.quiet
        bar = progress("Publishing", self.total) if several else nullcontext(lambda step: None)
        with bar as advance, _Watch(client, self.denials) as watch:
            async for message in messages:
                await self.pace.keep()
                if watch.is_full:
                    await self._confirm(client)
                watch.over(message.subject)
                await client.publish(message.subject, message.data, reply=message.reply, headers=message.headers)
                sent += 1
                advance(1)
                if each:
                    await self._confirm(client)
                    self.say(f"Published {len(message.data)} bytes to {message.subject}")
                elif self.denials:
                    break
            await self._confirm(client)
        if message is not None and not each:
            one = sent == 1
            what = f"{len(message.data)} bytes to {message.subject}" if one else f"{sent} messages to {self.subject}"
            self.say(f"Published {what}")

    async def _confirm(self, client: Connection) -> None:
        await client.flush(timeout=max(1, round(self.seconds)))
        if self.denials:
            raise self.denials[0]

    async def acknowledged(self, client: Connection, messages: AsyncIterator[_Message]) -> None:
        """Publish, and say what the stream says of each."""
        stream = client.jetstream()
        async for message in messages:
            await self.pace.keep()
            self.say(_stored(await stream.publish(message.subject, message.data, headers=message.headers)))

    async def atomic(self, client: Connection, messages: AsyncIterator[_Message]) -> None:
        """Publish all or nothing."""
        from penstock.jetstream import Publisher
        from penstock.wire.jetstream.atomic import MOST

        batch: list[Outgoing] = []
        async for message in messages:
            batch.append(_outgoing(message))
            if len(batch) > MOST:
                raise InputError(f"--atomic stores {MOST:,} messages at the most.", remedy="Send fewer, or use -J.")
        if not batch:
            raise InputError("There is nothing to publish.", remedy="Give a body.")
        name = await client.jetstream().find_stream_name_by_subject(batch[0].subject)
        if not (await assets.stream_info(client, name)).config.allow_atomic:
            remedy = f"`penstock stream edit {name} --allow-batch` lets it."
            raise InputError(f"Stream {name} takes no atomic batches.", remedy=remedy)
        async with Publisher(client, name) as publisher:
            done = await publisher.publish_batch(batch, how="atomic")
        self.say(f"Stored {done.count} messages in Stream: {done.stream} Sequence: {done.sequence}")


def _stored(ack: PubAck) -> str:
    parts = [f"Stored in Stream: {ack.stream} Sequence: {ack.sequence}"]
    if ack.domain:
        parts.append(f"Domain: {ack.domain}")
    if ack.duplicate:
        parts.append("Duplicate: true")
    if ack.value is not None:
        parts.append(f"Counter Value: {ack.value}")
    return " ".join(parts)


def _outgoing(message: _Message) -> Outgoing:
    """Make a message of a batch; what JetStream's headers say of it, the batch says itself."""
    from penstock.jetstream import Outgoing

    headers, said = dict(message.headers), dict[str, str]()
    for field, name in {
        "id": names.MSG_ID,
        "ttl": names.TTL,
        "expect_last_sequence": names.EXPECTED_LAST_SEQUENCE,
        "expect_last_subject_sequence": names.EXPECTED_LAST_SUBJECT_SEQUENCE,
        "expect_last_id": names.EXPECTED_LAST_ID,
    }.items():
        if values := headers.pop(name, None):
            said[field] = values[-1]
    numbers: dict[str, int] = {}
    for field in ("expect_last_sequence", "expect_last_subject_sequence"):
        if (value := said.pop(field, None)) is not None:
            if not value.isdecimal():
                raise InputError(f"{value!r} is no sequence.", remedy="Write a number.")
            numbers[field] = int(value)
    return Outgoing(message.subject, message.data, headers=headers, **said, **numbers)  # type: ignore[arg-type]
