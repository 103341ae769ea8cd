"""`pub`, `sub`, `req`, `reply` and `rtt`: plain messages, as the `nats` command sends and shows them."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, first, print_json, print_table, progress, run, until_signal
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, InputError

if TYPE_CHECKING:
    from penstock.connection import Msg, Subscription

__all__ = ["pub", "reply", "req", "rtt", "sub"]

Headers = Annotated[
    list[str] | None,
    typer.Option("-H", "--header", metavar="KEY:VALUE", help="Header to send; may be repeated."),
]
Raw = Annotated[bool, typer.Option("-r", "--raw", help="Print payloads and nothing else.")]
MAX_BODY = 64 * 1024 * 1024


def parse_headers(given: list[str] | None) -> dict[str, str] | None:
    """Turn ["Key:value"] into a dict; NATS allows no space or colon in a name and no line break in a value."""
    headers: dict[str, str] = {}
    for item in given or []:
        name, colon, value = item.partition(":")
        if not colon or not name or " " in name or "\r" in item or "\n" in item:
            raise InputError(f"The header {item!r} cannot be sent.", remedy="Write it as Key:Value.")
        headers[name] = value.strip()
    return headers or None


def check_subjects(*subjects: str, literal: bool = False) -> None:
    """Refuse a subject that no server takes before we connect to one; {{Count}} and the like stand for a token."""
    from penstock.wire.subjects import subject_fault

    for subject in subjects:
        if fault := subject_fault(subject, literal=literal):
            raise InputError(
                f"The subject {subject!r} {fault}.", remedy="Write words joined by dots, such as orders.new."
            )


def read_body(body: str | None) -> bytes:
    """Give the body from the argument, or from standard input where there is none."""
    if body is not None:
        return body.encode()
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    data = sys.stdin.buffer.read(MAX_BODY + 1)
    if len(data) > MAX_BODY:
        raise InputError(
            f"Standard input holds more than {MAX_BODY:,} bytes.",
            remedy="Send large payloads with `penstock chunks send`.",
        )
    return data


def fill(template: bytes, count: int) -> bytes:
    """Fill {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}} and {{Random}} into a body or subject."""
    if b"{{" not in template:
        return template
    now = datetime.now(UTC)
    values = {
        "Count": str(count),
        "Cnt": str(count),
        "ID": uuid.uuid4().hex,
        "Time": now.strftime("%H:%M:%S"),
        "TimeStamp": now.isoformat(),
        "Unix": str(int(now.timestamp())),
        "UnixNano": str(time.time_ns()),
        "Random": f"{random.randrange(2**64):016x}",  # noqa: S311  # filler for test messages, not a secret
    }
    for name, value in values.items():
        template = template.replace(b"{{%s}}" % name.encode(), value.encode())
        template = template.replace(b"{{.%s}}" % name.encode(), value.encode())
    return template


def pub(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="Subject to publish on.")],
    body: Annotated[str | None, typer.Argument(help="Body; standard input where none is given.")] = None,
    header: Headers = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many messages to publish.")] = 1,
    sleep: Annotated[str, typer.Option("--sleep", metavar="DURATION", help="Pause between messages.")] = "0s",
    reply: Annotated[str | None, typer.Option("--reply", metavar="SUBJECT", help="Reply subject to name.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled."""
    check_subjects(subject, *([reply] if reply else []), literal=True)
    headers, pause, data = parse_headers(header), parse_duration(sleep, option="--sleep"), read_body(body)
    run(_pub(ctx.obj, subject, data, headers, count, pause, reply or "", quiet))


async def _pub(
    given: Globals,
    subject: str,
    template: bytes,
    headers: dict[str, str] | None,
    count: int,
    pause: float,
    reply: str,
    quiet: bool,
) -> None:
    from penstock.connection import connect

    refusals: list[Exception] = []

    async def refused(error: Exception) -> None:
        refusals.append(error)

    client = await connect(given.options(), on_error=refused)
    try:
        with progress("Publishing", count if count > 1 and not quiet else None) as advance:
            for number in range(1, count + 1):
                target = fill(subject.encode(), number).decode()
                data = fill(template, number)
                await client.publish(target, data, reply=reply, headers=headers)
                advance(1)
                if not quiet and pause:
                    typer.echo(f"Published {len(data)} bytes to {target}")
                if pause and number < count:
                    await asyncio.sleep(pause)
            await client.flush(timeout=max(1, round(given.seconds)))
        if refusals:
            raise refusals[-1]
        if not quiet and not pause:  # said once the server has it all, and has refused nothing
            what = f"{len(data)} bytes to {target}" if count == 1 else f"{count} messages to {subject}"
            typer.echo(f"Published {what}")
    finally:
        await client.close()


def sub(
    ctx: typer.Context,
    subjects: Annotated[list[str], typer.Argument(metavar="SUBJECT...", help="Subjects to listen on.")],
    timestamp: Annotated[bool, typer.Option("-t", "--timestamp", help="Show when each message came.")] = False,
    queue: Annotated[str | None, typer.Option("--queue", help="Share the messages with this queue group.")] = None,
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0 for never.")] = 0,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Show no payloads.")] = False,
    raw: Raw = False,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="Stop when nothing came for so long.")
    ] = None,
) -> None:
    """Show messages as they come, until Ctrl-C."""
    check_subjects(*subjects)
    silence = parse_duration(wait, option="--wait") if wait else None
    run(_sub(ctx.obj, subjects, queue or "", count, silence, _Printer(raw, headers_only, timestamp)))


class _Printer:
    """Prints messages the way the `nats` command does."""

    def __init__(self, raw: bool, headers_only: bool, timestamp: bool) -> None:
        self.raw, self.headers_only, self.timestamp = raw, headers_only, timestamp
        self.count = 0

    def show(self, message: Msg) -> None:
        self.count += 1
        if not self.raw:
            when = datetime.now().astimezone().strftime("%Y/%m/%d %H:%M:%S ") if self.timestamp else ""
            reply = f" with reply {message.reply}" if message.reply else ""
            typer.echo(f"{when}[#{self.count}] Received on {message.subject}{reply}")
            for name, value in (message.headers or {}).items():
                typer.echo(f"{name}: {value}")
            if message.headers and not self.headers_only:
                typer.echo("")
        if not self.headers_only:
            sys.stdout.buffer.write(message.data + b"\n")
        if not self.raw:
            typer.echo("")
        sys.stdout.flush()


async def _sub(
    given: Globals, subjects: list[str], queue: str, count: int, silence: float | None, printer: _Printer
) -> None:
    from penstock.connection import connect

    arrived, full, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def received(message: Msg) -> None:
        if count and printer.count >= count:
            return
        printer.show(message)
        arrived.set()
        if printer.count == count:
            full.set()

    async def closed() -> None:
        lost.set()

    with until_signal() as stop:
        client = await connect(given.options(), on_close=closed)
        try:
            listening = [await client.subscribe(subject, queue=queue, cb=received) for subject in subjects]
            await client.flush(timeout=max(1, round(given.seconds)))
            _refuse_denied(*listening)
            if not printer.raw:
                typer.echo(f"Subscribing on {', '.join(subjects)}", err=True)
            waits: list[Coroutine[Any, Any, object]] = [stop.wait(), full.wait(), lost.wait()]
            if silence is not None:
                waits.append(_quiet(arrived, silence))
            await first(*waits)
            if lost.is_set() and not stop.is_set():
                raise DeadlineError("The connection is gone and did not come back.", remedy="Is the server running?")
        finally:
            await client.close()


def _refuse_denied(*subscriptions: Subscription) -> None:
    """Raise what the server said where it denies one of these; it has said so before it confirms them."""
    for subscription in subscriptions:
        if subscription.error is not None:
            raise subscription.error


async def _quiet(arrived: asyncio.Event, silence: float) -> None:
    """Return once nothing has arrived for so many seconds."""
    while True:
        try:
            async with asyncio.timeout(silence):
                await arrived.wait()
            arrived.clear()
        except TimeoutError:
            return


def req(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="Subject to send the request to.")],
    body: Annotated[str | None, typer.Argument(help="Body; standard input where none is given.")] = None,
    header: Headers = None,
    replies: Annotated[int, typer.Option("--replies", min=0, help="How many replies; 0 for all until --timeout.")] = 1,
    count: Annotated[int, typer.Option("--count", min=1, help="How many requests to send, one after another.")] = 1,
    raw: Raw = False,
) -> None:
    """Send a request and show what is answered."""
    check_subjects(subject, literal=True)
    headers, data = parse_headers(header), read_body(body)
    run(_req(ctx.obj, subject, data, headers, replies, count, raw))


async def _req(
    given: Globals,
    subject: str,
    template: bytes,
    headers: dict[str, str] | None,
    replies: int,
    count: int,
    raw: bool,
) -> None:
    from penstock.connection import connect

    client = await connect(given.options())
    try:
        for number in range(1, count + 1):
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox, max_msgs=replies)
            if not raw:
                typer.echo(f"Sending request on {subject}")
            began = time.perf_counter()
            seen = 0
            with client.expecting(subject, subscription.end):
                await client.publish(subject, fill(template, number), reply=inbox, headers=headers)
                while not replies or seen < replies:
                    left = began + given.seconds - time.perf_counter()
                    try:
                        message = await subscription.next_msg(timeout=max(left, 0.001))
                    except DeadlineError:
                        if not replies and seen:
                            break
                        raise DeadlineError(
                            f"No answer on {subject} in {given.seconds:g} s.",
                            remedy="A longer --timeout may help.",
                            subject=subject,
                        ) from None
                    _refuse_no_responders(message, subject)
                    seen += 1
                    _show_reply(message, time.perf_counter() - began, raw)
            await subscription.unsubscribe()
    finally:
        await client.close()


def _refuse_no_responders(message: Msg, subject: str) -> None:
    if not message.data and message.headers and message.headers.get("Status") == "503":
        from penstock.errors import NoRespondersError

        raise NoRespondersError(f"Nobody listens on {subject}.", remedy="Is the service running?", subject=subject)


def _show_reply(message: Msg, seconds: float, raw: bool) -> None:
    if not raw:
        typer.echo(f"Received with rtt {_shown(seconds)}")
        for name, value in (message.headers or {}).items():
            typer.echo(f"{name}: {value}")
        if message.headers:
            typer.echo("")
    sys.stdout.buffer.write(message.data + b"\n")
    sys.stdout.flush()


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.3f}ms"


def reply(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="Subject to answer on.")],
    body: Annotated[str | None, typer.Argument(help="Answer; with --echo the request's own body.")] = None,
    header: Headers = None,
    echo: Annotated[bool, typer.Option("--echo", help="Answer with what was asked.")] = False,
    queue: Annotated[str, typer.Option("--queue", help="Queue group to share requests with.")] = "NATS-RPLY-22",
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0 for never.")] = 0,
    sleep: Annotated[str, typer.Option("--sleep", metavar="DURATION", help="Wait before each answer.")] = "0s",
) -> None:
    """Answer requests, until Ctrl-C."""
    check_subjects(subject)
    if body is None and not echo:
        raise InputError("There is nothing to answer with.", remedy="Give a body, or --echo.")
    if body is not None and echo:
        raise InputError("A body and --echo are given together.", remedy="Leave one of them out.")
    pause = parse_duration(sleep, option="--sleep")
    run(
        _reply(
            ctx.obj,
            subject,
            None if body is None else body.encode(),
            parse_headers(header),
            queue,
            count,
            pause,
        )
    )


async def _reply(
    given: Globals,
    subject: str,
    body: bytes | None,
    headers: dict[str, str] | None,
    queue: str,
    count: int,
    pause: float,
) -> None:
    from penstock.connection import connect

    full, lost, answered = asyncio.Event(), asyncio.Event(), 0

    async def closed() -> None:
        lost.set()

    with until_signal() as stop:
        client = await connect(given.options(), on_close=closed)

        async def received(message: Msg) -> None:
            nonlocal answered
            if not message.reply or (count and answered >= count):
                return
            answered += 1
            typer.echo(f"[#{answered}] Received on {message.subject}: {len(message.data)} bytes")
            await asyncio.sleep(pause)
            data = message.data if body is None else fill(body, answered)
            await client.publish(message.reply, data, headers=headers)
            if answered == count:
                await client.flush()
                full.set()

        try:
            listening = await client.subscribe(subject, queue=queue, cb=received)
            await client.flush(timeout=max(1, round(given.seconds)))
            _refuse_denied(listening)
            typer.echo(f"Listening on {subject} in group {queue}", err=True)
            await first(stop.wait(), full.wait(), lost.wait())
            if lost.is_set() and not stop.is_set():
                raise DeadlineError("The connection is gone and did not come back.", remedy="Is the server running?")
        finally:
            await client.close()


def rtt(
    ctx: typer.Context,
    iterations: Annotated[int, typer.Argument(min=1, help="How many round trips to measure.")] = 5,
    json: Json = False,
) -> None:
    """Measure the round trip to each server."""
    run(_rtt(ctx.obj, iterations, json))


async def _rtt(given: Globals, iterations: int, json: bool) -> None:
    from penstock.connection import connect

    options, rows = given.options(), []
    for url in options.urls:
        client = await connect(options.replace(url=url))
        try:
            times: list[Any] = [await client.rtt() for _ in range(iterations)]
        finally:
            await client.close()
        rows.append({"url": url, "rtt": sum(times) / len(times), "min": min(times), "max": max(times)})
    if json:
        print_json(rows)
        return
    print_table(
        f"Round trips, {iterations} to each server",
        ("Server", "#Mean", "#Shortest", "#Longest"),
        [(row["url"], *(_shown(row[name]) for name in ("rtt", "min", "max"))) for row in rows],
    )
