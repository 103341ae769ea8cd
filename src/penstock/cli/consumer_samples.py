"""`penstock consumer samples`: sampled acks and advisories, listed or drawn live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import connected
from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, first, print_json, print_table, run, until_signal
from penstock.cli.stream_show import local
from penstock.durations import parse_duration

if TYPE_CHECKING:
    from penstock.jetstream.samples import AckSample, Advisory, Samples

__all__ = ["samples"]

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]


def samples(
    ctx: typer.Context,
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer; all of the stream without.")] = "*",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Draw the figures live, until Ctrl-C.")] = False,
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many events; 0 for never.")] = 0,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="Stop when nothing came for so long.")
    ] = None,
    json: Json = False,
) -> None:
    """Show sampled acks and advisories as they come, and what they add up to."""
    silence = parse_duration(wait, option="--wait") if wait else None
    run(_samples(ctx.obj, stream, name, watch, count, silence, json))


async def _samples(
    given: Globals, stream: str, name: str, watch: bool, count: int, silence: float | None, json: bool
) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.samples import Samples

    with until_signal() as stop:
        async with connected(given) as client:
            if name != "*":
                info = await assets.consumer_info(client, stream, name)
                if not info.config.sample_freq:
                    typer.echo(
                        f"Consumer {name} samples no acks; `penstock consumer edit {stream} {name} --sample 100` "
                        "turns it on. Advisories are shown.",
                        err=True,
                    )
            else:
                await assets.stream_info(client, stream)
            async with Samples(client, stream, name) as events:
                typer.echo(f"Listening for samples of {stream} > {name}", err=True)
                reading = _watch(events, count, silence) if watch else _print(events, count, silence, json)
                await first(stop.wait(), reading)
    if json:
        print_json({f"{one} > {other}": figures.to_json() for (one, other), figures in events.figures.items()})
    else:
        _figures(events)


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


async def _print(events: Samples, count: int, silence: float | None, json: bool) -> None:
    from penstock.jetstream.samples import AckSample

    async for event in _events(events, count, silence):
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
    for (stream, consumer), figures in sorted(events.figures.items()):
        times = [figures.percentile(share) for share in PERCENTILES.values()]
        rows.append(
            (
                f"{stream} > {consumer}",
                *(
                    f"{value:,}"
                    for value in (
                        figures.samples,
                        figures.redelivered,
                        figures.most_deliveries,
                        figures.naks,
                        figures.terminated,
                        figures.exceeded,
                    )
                ),
                *("" if value is None else f"{value * 1000:.3f}ms" for value in times),
            )
        )
    return rows


_COLUMNS = (
    "Consumer",
    "#Samples",
    "#Redelivered",
    "#Most Deliveries",
    "#Naks",
    "#Refused",
    "#Ran Out",
    "#p50",
    "#p90",
    "#p99",
    "#Max",
)


def _figures(events: Samples) -> None:
    print_table("Ack samples", _COLUMNS, _rows(events))
    if events.missed:
        typer.echo(f"{events.missed:,} events came too fast to be shown; the figures count them.", err=True)


async def _watch(events: Samples, count: int, silence: float | None) -> None:
    """Draw the table anew a few times a second while events come."""
    from rich import box
    from rich.live import Live
    from rich.table import Table

    def draw() -> Table:
        table = Table(title="Ack samples", box=box.ROUNDED, title_justify="left")
        for column in _COLUMNS:
            table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
        for row in _rows(events):
            table.add_row(*row)
        return table

    with Live(get_renderable=draw, refresh_per_second=4, transient=True):
        async for _ in _events(events, count, silence):
            pass
