"""`penstock pub`: messages as the `nats` command sends them, plain, acknowledged by a stream, all or none, or later."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
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
from penstock.durations import parse_duration
from penstock.errors import DeniedError, InputError
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.jetstream import Outgoing
    from penstock.jetstream.schedule import Schedule
    from penstock.wire.jetstream.answers import PubAck

__all__ = ["pub"]


@flag_table
class Later:
    """When a stream is to publish a message, and where to."""

    schedule_at: str | None = table_flag("Have the stream publish it at a time.", "TIME")
    schedule_after: str | None = table_flag("Have the stream publish it after a while.", "DURATION")
    schedule_every: str | None = table_flag("Have the stream publish it at this interval.", "DURATION")
    schedule_cron: str | None = table_flag("Have the stream publish it as cron says.", "CRON")
    schedule_dest: str | None = table_flag("Subject that the schedule publishes to.", "SUBJECT")
    schedule_source: str | None = table_flag("Subject whose last message it publishes instead.", "SUBJECT")
    schedule_ttl: str | None = table_flag("How long what it publishes is kept.", "DURATION")

    def schedule(self) -> Schedule | None:
        """Give the schedule that is asked for."""
        times = [self.schedule_at, self.schedule_after, self.schedule_every, self.schedule_cron]
        if not any([*times, self.schedule_dest, self.schedule_source, self.schedule_ttl]):
            return None
        if sum(time is not None for time in times) != 1 or not self.schedule_dest:
            raise InputError(
                "A schedule has a time and a destination.",
                remedy="Give one of --schedule-at, -after, -every and -cron, and --schedule-dest.",
            )
        from penstock.jetstream.schedule import Schedule

        target, more = self.schedule_dest, {"source": self.schedule_source, "ttl": self.schedule_ttl}
        if self.schedule_at is not None:
            return Schedule.at(parse_until(self.schedule_at, "--schedule-at"), target, **more)
        if self.schedule_after is not None:
            return Schedule.after(_positive(self.schedule_after, "--schedule-after"), target, **more)
        if self.schedule_every is not None:
            return Schedule.every(_positive(self.schedule_every, "--schedule-every"), target, **more)
        return Schedule.cron(self.schedule_cron or "", target, **more)


def _positive(text: str, option: str) -> float:
    seconds = parse_duration(text, option=option)
    if seconds <= 0:
        raise InputError(f"{option} is {text}.", remedy="Give some time, such as 5s.")
    return seconds


@dataclass(frozen=True)
class _Message:
    subject: str
    data: bytes
    headers: Mapping[str, list[str]]
    reply: str


async def pub(
    ctx: typer.Context,
    later: Later,
    subject: Annotated[str, argument("Subject to publish on.")],
    body: Body = None,
    header: Headers = None,
    count: Annotated[int, flag("How many messages to publish.", min=1)] = 1,
    sleep: Annotated[str, flag("Pause between messages.", "DURATION")] = "0s",
    jitter: Annotated[str, flag("Up to this much more of a pause.", "DURATION")] = "0s",
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
    schedule, planned = later.schedule(), dict[str, list[str]]()
    acknowledged = jetstream or atomic or schedule is not None or ttl is not None
    refuse_both("--reply", reply is not None, "an ack of the stream", acknowledged)
    refuse_both("--atomic", atomic, "a schedule", schedule is not None)
    if schedule is not None:
        schedule.check_place(subject)
        planned = {name: [value] for name, value in schedule.headers().items()}
    if ttl is not None:
        from penstock.jetstream.schedule import written_ttl

        planned[names.TTL] = [written_ttl(ttl, option="--ttl")]
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
            await sending.acknowledged(client, messages(), schedule)
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

    async def acknowledged(
        self, client: Connection, messages: AsyncIterator[_Message], schedule: Schedule | None
    ) -> None:
        """Publish, and say what the stream says of each; a stream that would not keep the schedule gets nothing."""
        stream, looked_at = client.jetstream(), False
        async for message in messages:
            if schedule is not None and not looked_at:
                from penstock.jetstream.schedule import check_taken

                name, looked_at = await stream.find_stream_name_by_subject(message.subject), True
                check_taken(schedule, message.subject, (await assets.stream_info(client, name)).config)
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
                raise InputError(f"{value!r} is not a sequence.", remedy="Write a number.")
            numbers[field] = int(value)
    return Outgoing(message.subject, message.data, headers=headers, **said, **numbers)  # type: ignore[arg-type]
