"""`sub`, `req`, `reply` and `rtt`: plain messages, as the `nats` command sends and shows them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Headers, Json, Raw, StopAfter, Wait, argument, flag
from penstock.cli.message_parts import Body, Template, Templates, bodies, check_subjects, parse_headers
from penstock.cli.output import print_bytes, print_headers, print_json
from penstock.cli.running import connected, staying
from penstock.cli.tables import plain, print_table
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, InputError, NoRespondersError

if TYPE_CHECKING:
    from penstock.connection import Msg

__all__ = ["reply", "req", "rtt", "sub"]


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
            typer.echo(plain(f"{when}[#{seen}] Received on {message.subject}{reply}"))
            print_headers(message.header_block, more=not headers_only)
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
    templates: Templates = True,
    raw: Raw = False,
) -> None:
    """Send a request and show what is answered."""
    check_subjects(subject, literal=True)
    headers, seconds = parse_headers(header), ctx.obj.seconds
    names, text = Template(subject.encode(), on=templates), Template(next(bodies(body)), on=templates)
    async with connected(ctx) as client:
        for number in range(1, count + 1):
            subject = names.fill(number).decode()
            check_subjects(subject, literal=True)
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox, max_msgs=replies)
            began = time.perf_counter()
            seen = 0
            with client.expecting(subject, subscription.end):
                await client.publish(subject, text.fill(number), reply=inbox, headers=headers)
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
                        typer.echo(f"Received with rtt {_shown(time.perf_counter() - began)}", err=True)
                        print_headers(message.header_block, err=True)
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
    text = Template(os.fsencode(body or ""))
    full, answered = asyncio.Event(), 0
    async with staying(ctx) as here:

        async def received(message: Msg) -> None:
            nonlocal answered
            if not message.reply or (count and answered >= count):
                return
            answered += 1
            typer.echo(plain(f"[#{answered}] Received on {message.subject}: {len(message.data)} bytes"))
            await asyncio.sleep(pause)
            data = message.data if body is None else text.fill(answered, message.data)
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
