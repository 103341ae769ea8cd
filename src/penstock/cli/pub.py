"""`penstock pub`: messages as the `nats` command sends them, plain, acknowledged by a stream, all or none, or later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Headers, argument, flag, flag_table, table_flag
from penstock.cli.message_parts import Body, Template, Templates, bodies, check_subjects, parse_headers
from penstock.cli.output import progress
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.cli.values import parse_until
from penstock.durations import format_duration, parse_duration
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.connection import Connection
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
        said = {"Nats-Schedule": patterns[0], "Nats-Schedule-Target": self.schedule_dest}
        if self.schedule_source:
            said["Nats-Schedule-Source"] = self.schedule_source
        if self.schedule_ttl:
            said["Nats-Schedule-TTL"] = _positive(self.schedule_ttl, "--schedule-ttl")
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
    ttl: Annotated[str | None, flag("How long the stream is to keep it.", "DURATION")] = None,
    templates: Templates = True,
    force_stdin: Annotated[bool, flag("Take the body from standard input.")] = False,
    send_on: Annotated[str, flag("A message for all of standard input, or for each line.", "eof|newline")] = "eof",
    quiet: Annotated[bool, flag("Print nothing but errors.", "-q", "--quiet")] = False,
) -> None:
    """Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled."""
    check_subjects(subject, *([reply] if reply else []), literal=True)
    if send_on not in ("eof", "newline"):
        raise InputError(f"--send-on is {send_on!r}.", remedy="Use eof or newline.")
    planned = schedule.headers()
    headers = {**parse_headers(header), **planned}
    if ttl:
        headers["Nats-TTL"] = ["never" if ttl == "never" else _positive(ttl, "--ttl")]
    pauses = parse_duration(sleep, option="--sleep"), parse_duration(jitter, option="--jitter")
    given = bodies(body, stdin=force_stdin, lines=send_on == "newline")

    def messages() -> Iterator[_Message]:
        names = Template(subject.encode(), on=templates)
        for data in given:
            text = Template(data, on=templates)
            for number in range(1, count + 1):
                target = names.fill(number).decode()
                check_subjects(target, literal=True)
                yield _Message(target, text.fill(number), headers, reply or "")

    refusals: list[Exception] = []

    async def refused(error: Exception) -> None:
        refusals.append(error)

    sending = _Sending(quiet, pauses, count if send_on == "eof" else 0)
    async with connected(ctx, on_error=refused) as client:
        if atomic:
            await sending.atomic(client, messages())
        elif jetstream or planned or ttl:
            await sending.acknowledged(client, messages())
        else:
            await sending.plain(client, messages(), refusals, ctx.obj.seconds)


@dataclass
class _Sending:
    quiet: bool
    pauses: tuple[float, float]
    total: int

    def say(self, text: str) -> None:
        if not self.quiet:
            typer.echo(plain(text))

    async def pause(self) -> None:
        seconds = self.pauses[0] + random.uniform(0, self.pauses[1])  # noqa: S311  # spreads messages only
        if seconds:
            await asyncio.sleep(seconds)

    async def plain(
        self, client: Connection, messages: Iterator[_Message], refusals: list[Exception], seconds: float
    ) -> None:
        """Publish, and say so once the server has it and refused nothing."""
        each = any(self.pauses)
        sent = 0
        with progress("Publishing", self.total if self.total > 1 and not self.quiet else None) as advance:
            for message in messages:
                if sent:
                    await self.pause()
                await client.publish(message.subject, message.data, reply=message.reply, headers=message.headers)
                sent += 1
                advance(1)
                if each:
                    await self._confirm(client, refusals, seconds)
                    self.say(f"Published {len(message.data)} bytes to {message.subject}")
            await self._confirm(client, refusals, seconds)
        if sent and not each:
            self.say(
                f"Published {f'{len(message.data)} bytes' if sent == 1 else f'{sent} messages'} to {message.subject}"
            )

    async def _confirm(self, client: Connection, refusals: list[Exception], seconds: float) -> None:
        await client.flush(timeout=max(1, round(seconds)))
        if refusals:
            raise refusals[-1]

    async def acknowledged(self, client: Connection, messages: Iterator[_Message]) -> None:
        """Publish, and say what the stream says of each."""
        stream, sent = client.jetstream(), 0
        with progress("Publishing", self.total if self.total > 1 and not self.quiet else None) as advance:
            for message in messages:
                if sent:
                    await self.pause()
                ack = await stream.publish(message.subject, message.data, headers=message.headers)
                sent += 1
                advance(1)
                self.say(_stored(ack))

    async def atomic(self, client: Connection, messages: Iterator[_Message]) -> None:
        """Publish all or nothing."""
        from penstock.jetstream import Outgoing, Publisher

        batch = [
            Outgoing(
                message.subject, message.data, headers={name: _one(name, v) for name, v in message.headers.items()}
            )
            for message in messages
        ]
        if not batch:
            raise InputError("There is nothing to publish.", remedy="Give a body.")
        name = await client.jetstream().find_stream_name_by_subject(batch[0].subject)
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


def _one(name: str, values: list[str]) -> str:
    if len(values) > 1:
        raise InputError(f"The header {name} is given {len(values)} times.", remedy="Give it once with --atomic.")
    return values[0]
