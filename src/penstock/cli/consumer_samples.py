"""`penstock consumer samples`: sampled acks and advisories, listed or drawn live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Json, StreamName, Wait, argument, flag
from penstock.cli.late import assets
from penstock.cli.output import counts, local, make_table, print_json, print_table
from penstock.cli.running import connected, first, until_signal
from penstock.durations import parse_duration

if TYPE_CHECKING:
    from penstock.jetstream.samples import AckSample, Advisory, Samples

__all__ = ["samples"]

_COLUMNS = ("Consumer", "#Samples", "#Redelivered", "#Most Deliveries", "#Naks", "#Refused", "#Ran Out")
_TIMES = ("#p50", "#p90", "#p99", "#Max")


async def samples(
    ctx: typer.Context,
    stream: StreamName,
    name: Annotated[str, argument("The consumer; all of the stream without.", "CONSUMER")] = "*",
    watch: Annotated[bool, flag("Draw the figures live, until Ctrl-C.", "-w", "--watch")] = False,
    count: Annotated[int, flag("Stop after so many events; 0 for never.", min=0)] = 0,
    wait: Wait = None,
    json: Json = False,
) -> None:
    """Show sampled acks and advisories as they come, and what they add up to."""
    from penstock.jetstream.samples import Samples

    silence = parse_duration(wait, option="--wait") if wait else None
    with until_signal() as stop:
        async with connected(ctx) as client:
            if name == "*":
                await assets.stream_info(client, stream)
            elif not (await assets.consumer_info(client, stream, name)).config.sample_freq:
                typer.echo(
                    f"Consumer {name} samples no acks; `penstock consumer edit {stream} {name} --sample 100` "
                    "turns it on. Advisories are shown.",
                    err=True,
                )
            async with Samples(client, stream, name) as events:
                typer.echo(f"Listening for samples of {stream} > {name}", err=True)
                coming = _events(events, count, silence)
                await first(stop.wait(), _watch(events, coming) if watch else _print(coming, json))
    if json:
        print_json({f"{one} > {other}": figures.to_json() for (one, other), figures in events.figures.items()})
        return
    print_table("Ack samples", (*_COLUMNS, *_TIMES), _rows(events))
    if events.missed:
        typer.echo(f"{events.missed:,} events came too fast to be shown; the figures count them.", err=True)


async def _events(events: Samples, count: int, silence: float | None) -> AsyncIterator[AckSample | Advisory]:
    seen = 0
    while not count or seen < count:
        try:
            async with asyncio.timeout(silence):
                event = await anext(events)
        except TimeoutError:
            return
        seen += 1
        yield event


async def _print(events: AsyncIterator[AckSample | Advisory], json: bool) -> None:
    from penstock.jetstream.samples import AckSample

    async for event in events:
        if json:
            continue
        if isinstance(event, AckSample):
            text = f"ack of {event.sequence} after {event.ack_time * 1000:.3f}ms, delivered {event.deliveries} times"
        else:
            text = f"{event.kind}: {event.summary}"
        typer.echo(f"[{local(event.time)}] {event.stream} > {event.consumer}: {text}")


def _rows(events: Samples) -> list[tuple[str, ...]]:
    from penstock.jetstream.samples import PERCENTILES

    rows = []
    for (stream, consumer), one in sorted(events.figures.items()):
        times = [one.percentile(share) for share in PERCENTILES.values()]
        rows.append(
            (
                f"{stream} > {consumer}",
                *counts(one.samples, one.redelivered, one.most_deliveries, one.naks, one.terminated, one.exceeded),
                *("" if value is None else f"{value * 1000:.3f}ms" for value in times),
            )
        )
    return rows


async def _watch(events: Samples, coming: AsyncIterator[AckSample | Advisory]) -> None:
    """Draw the table anew a few times a second while events come."""
    from rich import box
    from rich.live import Live
    from rich.table import Table

    def draw() -> Table:
        return make_table(
            (*_COLUMNS, *_TIMES), _rows(events), title="Ack samples", box=box.ROUNDED, title_justify="left"
        )

    with Live(get_renderable=draw, refresh_per_second=4, transient=True):
        async for _ in coming:
            pass
