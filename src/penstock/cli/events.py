"""`penstock events`: what servers tell by themselves, as it comes."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, flag
from penstock.cli.late import assets, model
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json
from penstock.cli.running import Staying, staying
from penstock.cli.tables import plain
from penstock.cli.values import refuse_both, words
from penstock.durations import parse_duration
from penstock.errors import DeniedError, InputError, PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.system.events import ServerEvent

__all__ = ["events"]


async def events(
    ctx: typer.Context,
    all: Annotated[bool, flag("Show everything that there is.", "-a", "--all")] = False,
    short: Annotated[bool, flag("A line for each.")] = False,
    filter: Annotated[str, flag("Only those that match this, in upper or lower case.", "REGEX", "--filter")] = "",
    js_metric: Annotated[bool, flag("Show JetStream's metrics, such as ack samples.")] = False,
    js_advisory: Annotated[bool, flag("Show JetStream's advisories.")] = False,
    srv_advisory: Annotated[bool, flag("Show connections that come and go; for the system account.")] = True,
    subjects: Annotated[list[str] | None, flag("Show what comes on these, too.", "SUBJECTS", "--subjects")] = None,
    stream: Annotated[str | None, flag("Show the events that this stream holds, and that it gets.", "NAME")] = None,
    since: Annotated[str | None, flag("Begin this long ago; needs --stream.", "DURATION")] = None,
    cloudevent: Annotated[bool, flag("Print CloudEvents 1.0.", "--cloudevent")] = False,
    json: Json = False,
) -> None:
    """Show what servers tell: connections, advisories and metrics, until Ctrl-C."""
    extra = words(subjects or ())
    check_subjects(*extra)
    chosen = all or js_metric or js_advisory or bool(extra)
    refuse_both("--stream", stream is not None, "--all, --js-metric, --js-advisory or --subjects", chosen)
    if stream is None and not chosen and not srv_advisory:
        raise InputError("No events are chosen.", remedy="Give --js-advisory, --js-metric, --subjects or --all.")
    if since is not None and stream is None:
        raise InputError("--since is given without --stream.", remedy="Only a stream holds what happened before.")
    ago = parse_duration(since, option="--since") if since is not None else None
    printer = _Printer(filter, json=json, cloudevent=cloudevent, short=short)
    async with staying(ctx) as here:
        if stream is not None:
            await _follow(here, stream, ago, printer)
            return
        from penstock.system.events import JS_ADVISORIES, JS_METRICS, SERVER_ADVISORIES

        told = [*(JS_ADVISORIES if js_advisory or all else ()), *(JS_METRICS if js_metric or all else ())]
        wanted = [*extra, *map(here.client.options.event_subject, told)]
        if (srv_advisory or all) and await _may_hear_servers(here, alone=not wanted):
            wanted += SERVER_ADVISORIES

        async def heard(message: Any) -> None:
            printer.show(message.data)

        await here.confirm(*[await here.client.subscribe(subject, cb=heard) for subject in wanted])
        typer.echo(f"Listening on {plain(', '.join(wanted))}", err=True)
        await here.until()


async def _may_hear_servers(here: Staying, *, alone: bool) -> bool:
    """Tell whether servers tell this login about connections; refuse to wait for them if nothing else is wanted."""
    from penstock.system.gathering import in_system_account

    if await in_system_account(here.client, here.seconds):
        return True
    what = "Connections that come and go are shown to users of the system account alone, and this login is not one."
    if alone:
        raise DeniedError(
            what,
            remedy="Log in as one, or ask for JetStream's events: --js-advisory, --js-metric.",
            subject="$SYS.ACCOUNT.*.CONNECT",
            operation="subscribe",
        )
    typer.echo(f"penstock: {what} The others are shown.", err=True)
    return False


async def _follow(here: Staying, stream: str, ago: float | None, printer: _Printer) -> None:
    from penstock.jetstream import Deliveries

    start = None if ago is None else datetime.now(UTC) - timedelta(seconds=ago)

    async def read(consumer: str) -> None:
        async with Deliveries(here.client, stream, consumer, keep_alive=False) as found:
            async for delivery in found:
                printer.show(delivery.data)

    async with _passing_consumer(here, stream, start) as consumer:
        typer.echo(f"Listening on the stream {plain(stream)}", err=True)
        await here.until(read(consumer))


@asynccontextmanager
async def _passing_consumer(here: Staying, stream: str, start: datetime | None) -> AsyncIterator[str]:
    """Make a consumer that is gone afterwards, also if we cannot delete it."""
    await assets.stream_info(here.client, stream)  # which says it better if there is none
    made = await assets.add_consumer(
        here.client,
        stream,
        model.Consumer(
            name=f"penstock-events-{secrets.token_hex(8)}",
            deliver_policy="all" if start is None else "by_start_time",
            opt_start_time=start,
            ack_policy="none",
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=300.0,
        ),
    )
    try:
        yield made.name
    finally:
        if here.client.is_connected:
            with suppress(PenstockError):  # the server deletes it by itself, later
                await assets.delete_consumer(here.client, stream, made.name)


class _Printer:
    """Prints events, each at once."""

    def __init__(self, pattern: str, *, json: bool, cloudevent: bool, short: bool) -> None:
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise InputError(
                f"--filter is {pattern!r}, which is not a regular expression: {error}.",
                remedy="Check brackets and backslashes.",
            ) from None
        self._json, self._cloudevent, self._short = json, cloudevent, short

    def show(self, data: bytes) -> None:
        """Print one event, if it matches."""
        from penstock.system.events import read_event

        if not self._pattern.search(data.decode(errors="replace")):
            return
        try:
            event = read_event(data)
        except RemoteProtocolError as error:
            typer.echo(f"penstock: {plain(str(error))}", err=True)
            return
        if self._cloudevent:
            print_json(event.to_cloudevent())
        elif self._json:
            print_json(event.raw, line=True)
        else:
            self._print(event)
        sys.stdout.flush()

    def _print(self, event: ServerEvent) -> None:
        when = event.time.astimezone().strftime("%H:%M:%S") if event.time else ""
        if self._short:
            typer.echo(plain(f"{when} {event.short}"))
            return
        width = max((len(name) for name, _ in event.facts), default=0) + 2
        typer.echo(plain(f"[{when}] [{event.id}] {event.title}"))
        typer.echo("")
        for name, value in event.facts:
            typer.echo(f"{plain(name):>{width}}: {plain(value)}")
        typer.echo("")
