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

from penstock.cli.flags import Headers, Json, Raw, StopAfter, Wait, argument, flag
from penstock.cli.output import print_bytes, print_headers, print_json, print_table, progress
from penstock.cli.running import connected, staying
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, InputError, NoRespondersError

if TYPE_CHECKING:
    from penstock.connection import Msg

__all__ = ["pub", "reply", "req", "rtt", "sub"]

Body = Annotated[str | None, argument("Body; standard input where none is given.")]
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


async def pub(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to publish on.")],
    body: Body = None,
    header: Headers = None,
    count: Annotated[int, flag("How many messages to publish.", min=1)] = 1,
    sleep: Annotated[str, flag("Pause between messages.", "DURATION")] = "0s",
    reply: Annotated[str | None, flag("Reply subject to name.", "SUBJECT")] = None,
    quiet: Annotated[bool, flag("Print nothing but errors.", "-q", "--quiet")] = False,
) -> None:
    """Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled."""
    check_subjects(subject, *([reply] if reply else []), literal=True)
    headers, pause, template = parse_headers(header), parse_duration(sleep, option="--sleep"), read_body(body)
    refusals: list[Exception] = []

    async def refused(error: Exception) -> None:
        refusals.append(error)

    async with connected(ctx, on_error=refused) as client:
        with progress("Publishing", count if count > 1 and not quiet else None) as advance:
            for number in range(1, count + 1):
                target = fill(subject.encode(), number).decode()
                data = fill(template, number)
                await client.publish(target, data, reply=reply or "", headers=headers)
                advance(1)
                if not quiet and pause:
                    typer.echo(f"Published {len(data)} bytes to {target}")
                if pause and number < count:
                    await asyncio.sleep(pause)
            await client.flush(timeout=max(1, round(ctx.obj.seconds)))
        if refusals:
            raise refusals[-1]
        if not quiet and not pause:  # said once the server has it all, and has refused nothing
            what = f"{len(data)} bytes to {target}" if count == 1 else f"{count} messages to {subject}"
            typer.echo(f"Published {what}")


async def sub(
    ctx: typer.Context,
    subjects: Annotated[list[str], argument("Subjects to listen on.", "SUBJECT...")],
    timestamp: Annotated[bool, flag("Show when each message came.", "-t", "--timestamp")] = False,
    queue: Annotated[str | None, flag("Share the messages with this queue group.")] = None,
    count: StopAfter = 0,
    headers_only: Annotated[bool, flag("Show no payloads.")] = False,
    raw: Raw = False,
    wait: Wait = None,
) -> None:
    """Show messages as they come, until Ctrl-C."""
    check_subjects(*subjects)
    silence = parse_duration(wait, option="--wait") if wait else None
    arrived, full, seen = asyncio.Event(), asyncio.Event(), 0

    async def received(message: Msg) -> None:
        nonlocal seen
        if count and seen >= count:
            return
        seen += 1
        if not raw:
            when = datetime.now().astimezone().strftime("%Y/%m/%d %H:%M:%S ") if timestamp else ""
            reply = f" with reply {message.reply}" if message.reply else ""
            typer.echo(f"{when}[#{seen}] Received on {message.subject}{reply}")
            print_headers(message.headers, more=not headers_only)
        if not headers_only:
            print_bytes(message.data)
        if not raw:
            typer.echo("")
            sys.stdout.flush()
        arrived.set()
        if seen == count:
            full.set()

    async with staying(ctx) as here:
        await here.confirm(*[await here.client.subscribe(one, queue=queue or "", cb=received) for one in subjects])
        if not raw:
            typer.echo(f"Subscribing on {', '.join(subjects)}", err=True)
        waits: list[Coroutine[Any, Any, object]] = [full.wait()]
        if silence is not None:
            waits.append(_quiet(arrived, silence))
        await here.until(*waits)


async def _quiet(arrived: asyncio.Event, silence: float) -> None:
    """Return once nothing has arrived for so many seconds."""
    while True:
        try:
            async with asyncio.timeout(silence):
                await arrived.wait()
            arrived.clear()
        except TimeoutError:
            return


async def req(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to send the request to.")],
    body: Body = None,
    header: Headers = None,
    replies: Annotated[int, flag("How many replies; 0 for all until --timeout.", min=0)] = 1,
    count: Annotated[int, flag("How many requests to send, one after another.", min=1)] = 1,
    raw: Raw = False,
) -> None:
    """Send a request and show what is answered."""
    check_subjects(subject, literal=True)
    headers, template, seconds = parse_headers(header), read_body(body), ctx.obj.seconds
    async with connected(ctx) as client:
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
                    left = began + seconds - time.perf_counter()
                    try:
                        message = await subscription.next_msg(timeout=max(left, 0.001))
                    except DeadlineError:
                        if not replies and seen:
                            break
                        raise DeadlineError(
                            f"No answer on {subject} in {seconds:g} s.",
                            remedy="A longer --timeout may help.",
                            subject=subject,
                        ) from None
                    if not message.data and message.headers and message.headers.get("Status") == "503":
                        what = f"Nobody listens on {subject}."
                        raise NoRespondersError(what, remedy="Is the service running?", subject=subject)
                    seen += 1
                    if not raw:
                        typer.echo(f"Received with rtt {_shown(time.perf_counter() - began)}")
                        print_headers(message.headers)
                    print_bytes(message.data)
            await subscription.unsubscribe()


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.3f}ms"


async def reply(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to answer on.")],
    body: Annotated[str | None, argument("Answer; with --echo the request's own body.")] = None,
    header: Headers = None,
    echo: Annotated[bool, flag("Answer with what was asked.")] = False,
    queue: Annotated[str, flag("Queue group to share requests with.")] = "NATS-RPLY-22",
    count: StopAfter = 0,
    sleep: Annotated[str, flag("Wait before each answer.", "DURATION")] = "0s",
) -> None:
    """Answer requests, until Ctrl-C."""
    check_subjects(subject)
    if body is None and not echo:
        raise InputError("There is nothing to answer with.", remedy="Give a body, or --echo.")
    refuse_both("A body", body is not None, "--echo", echo)
    pause, headers = parse_duration(sleep, option="--sleep"), parse_headers(header)
    full, answered = asyncio.Event(), 0
    async with staying(ctx) as here:

        async def received(message: Msg) -> None:
            nonlocal answered
            if not message.reply or (count and answered >= count):
                return
            answered += 1
            typer.echo(f"[#{answered}] Received on {message.subject}: {len(message.data)} bytes")
            await asyncio.sleep(pause)
            data = message.data if body is None else fill(body.encode(), answered)
            await here.client.publish(message.reply, data, headers=headers)
            if answered == count:
                await here.client.flush()
                full.set()

        await here.confirm(await here.client.subscribe(subject, queue=queue, cb=received))
        typer.echo(f"Listening on {subject} in group {queue}", err=True)
        await here.until(full.wait())


async def rtt(
    ctx: typer.Context,
    iterations: Annotated[int, argument("How many round trips to measure.", min=1)] = 5,
    json: Json = False,
) -> None:
    """Measure the round trip to each server."""
    rows = []
    for url in ctx.obj.options().urls:
        async with connected(ctx, url=url) as client:
            times = [await client.rtt() for _ in range(iterations)]
        rows.append({"url": url, "rtt": sum(times) / len(times), "min": min(times), "max": max(times)})
    if json:
        print_json(rows)
        return
    print_table(
        f"Round trips, {iterations} to each server",
        ("Server", "#Mean", "#Shortest", "#Longest"),
        [(row["url"], *(_shown(row[name]) for name in ("rtt", "min", "max"))) for row in rows],
    )
