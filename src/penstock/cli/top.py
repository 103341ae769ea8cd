"""`penstock top`: streams, consumers and pipelines in a terminal, live; or once, as tables."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import find_pipelines
from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import print_json
from penstock.cli.running import connected, until_signal
from penstock.cli.tables import plain, print_table, terminal
from penstock.cli.top_view import BLOCKS, FIRST, PLAIN_BLOCKS, VIEWS, View, clock, fitted
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, OptionError, PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import Console
    from rich.text import Text

    from penstock.survey import Snapshot, Survey

__all__ = ["top"]

_ROUNDS = 2  # looks without which there are no rates
_SILENT = 60.0  # seconds without a snapshot after which nobody waits any longer
_HEAD, _FOOT = 4, 1  # lines above and below the rows
_KEYS = "q quit  s c p t views  1-9 < > sort  r turn  / filter  space hold"


async def top(
    ctx: typer.Context,
    what: Annotated[str, argument("What to look at first.", "streams|consumers|pipelines|trouble")] = "streams",
    sort: Annotated[str | None, flag("Column to sort by.", "COLUMN")] = None,
    filter_: Annotated[str, flag("Only names that hold this.", "TEXT", "--filter")] = "",
    interval: Annotated[str, flag("Time between two looks.", "DURATION", "-d", "--interval")] = "2s",
    max_refresh: Annotated[
        int, flag("End after this many pictures; -1 for never.", "COUNT", "-r", "--max-refresh")
    ] = -1,
    once: Annotated[bool, flag("Print tables once, and end; a pipe gets that always.", "--once")] = False,
    pipelines: Annotated[
        list[str] | None, flag("Folder of a pipeline to show; the one here, if none is named.", "DIR", "--pipeline")
    ] = None,
    json: Json = False,
) -> None:
    """Show streams, consumers and pipelines live, with rates, lag and trouble; keys sort, filter, change the view."""
    from penstock.survey import SurveySettings

    if what not in VIEWS:
        raise OptionError(f"There is no view {what!r}.", remedy=f"Use one of {', '.join(VIEWS)}.", option="WHAT")
    view = View(what, filter=filter_)
    view = view if sort is None else view.sorted_by(sort)
    every = parse_duration(interval.removesuffix("s") + "s" if interval.isdecimal() else interval, option="--interval")
    if not 0.2 <= every <= 3600:
        raise OptionError(f"--interval is {interval!r}.", remedy="Give 200ms to 1h.", option="--interval")
    settings, projects = SurveySettings(every=every), find_pipelines(pipelines)
    async with _surveying(ctx, settings, projects) as survey:
        if once or json or not sys.stdout.isatty():
            snapshot = await _settled(survey)
            _print_json(snapshot) if json else _print(snapshot, view)
        else:
            await _live(survey, view, max_refresh, str(ctx.obj.options().url))


@asynccontextmanager
async def _surveying(ctx: typer.Context, settings: Any, projects: Any) -> AsyncIterator[Survey]:
    from penstock.survey import Survey

    async with connected(ctx) as client:

        async def connection() -> Any:
            return client

        survey = Survey(connection, settings, pipelines=projects, scrub=client.options.scrub)
        running = asyncio.create_task(survey.run())
        try:
            yield survey
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _settled(survey: Survey) -> Snapshot:
    """Wait until everything was looked at often enough to know rates."""
    snapshot = survey.snapshot
    while snapshot.covered.rounds < _ROUNDS:
        try:
            async with asyncio.timeout(_SILENT):
                snapshot = await survey.next(snapshot)
        except TimeoutError:
            what = f"Nothing was heard of the server for {_SILENT:g} s."
            raise DeadlineError(what, remedy="Is it busy, or far away?") from None
        if snapshot.problem is not None:
            raise PenstockError(snapshot.problem, remedy="`penstock doctor` and `penstock account info` tell more.")
    return snapshot


# -- once --------------------------------------------------------------------------------------------------------------


def _print(snapshot: Snapshot, view: View) -> None:
    for name, columns in VIEWS.items():
        shown = View(name, view.sort if name == view.name else FIRST, view.rising and name == view.name, view.filter)
        rows = shown.rows(snapshot)
        if not rows and name != view.name:
            continue
        listed = [item for item in columns if not item.trend]
        heads = [("#" if item.right else "~" if item.name == "says" else "") + item.head for item in listed]
        cells = [
            [row.name if item.name == "name" else item.show(row.values.get(item.name)) for item in listed]
            for row in rows
        ]
        print_table(name.capitalize(), heads, cells)
    if covered := _covered(snapshot):
        typer.echo(plain(covered), err=True)


def _print_json(snapshot: Snapshot) -> None:
    from dataclasses import asdict

    states = {
        "streams": [asdict(state) for state in snapshot.streams.values()],
        "consumers": [asdict(state) for state in snapshot.consumers.values()],
        "trouble": [asdict(item) for item in snapshot.trouble],
        "covered": asdict(snapshot.covered),
    }
    rows = [{"name": row.name, **row.values} for row in View("pipelines").rows(snapshot)]
    print_json({"taken": snapshot.taken, **states, "pipelines": rows})


def _covered(snapshot: Snapshot) -> str:
    """Say what was not looked at; nothing if everything was."""
    seen = snapshot.covered
    if seen.whole:
        return ""
    said = []
    for kind, looked, there in (
        ("streams", seen.streams, seen.streams_of),
        ("consumers", seen.consumers, seen.consumers_of),
        ("pipelines", seen.pipelines, seen.pipelines_of),
    ):
        if looked < there:
            said.append(f"{looked:,} of {there:,} {kind}")
    not_seen = [f"{item.what}: {item.why}" for item in seen.unseen[:3]]
    return f"Looked at {', '.join(said)} so far." if said else f"Not seen: {'; '.join(not_seen)}" if not_seen else ""


# -- live --------------------------------------------------------------------------------------------------------------


async def _live(survey: Survey, view: View, most: int, url: str) -> None:
    from rich.live import Live

    from penstock.cli.keyboard import keys

    console = terminal()
    shown = seen = survey.snapshot  # what is shown stays while it is on hold; what was seen is never waited for again
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    with until_signal() as stop, keys() as pressed:
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        try:
            with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:

                def draw() -> None:
                    live.update(_picture(survey, shown, view, console, url), refresh=True)

                draw()
                pictures = 0
                while not stop.is_set() and (most < 0 or pictures < most):
                    news = asyncio.create_task(survey.next(seen))
                    key = asyncio.create_task(pressed.get())
                    try:
                        await _any(news, key, stop.wait(), changed.wait())
                        changed.clear()
                        if key.done():
                            after = None if key.result() == "end" else view.pressed(key.result(), _room(console.height))
                            if after is None:
                                return
                            view = after
                        if news.done():
                            seen = news.result()
                        if shown is not seen and not view.frozen:
                            shown, pictures = seen, pictures + 1
                    finally:
                        for task in (news, key):
                            task.cancel()
                        await asyncio.gather(news, key, return_exceptions=True)
                    view = view.within(len(view.rows(shown)))
                    draw()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


async def _any(*awaitables: Any) -> None:
    """Wait until something happened; what was made here for waiting is ended."""
    own = [asyncio.ensure_future(item) for item in awaitables]
    try:
        await asyncio.wait(own, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for made, given in zip(own, awaitables, strict=True):
            if made is not given:
                made.cancel()


def _room(height: int) -> int:
    return max(1, height - _HEAD - _FOOT)


def _picture(survey: Survey, snapshot: Snapshot, view: View, console: Console, url: str) -> Text:
    """Draw everything, as wide and as high as the terminal."""
    from rich.text import Text

    width, height = console.size
    blocks = BLOCKS if console.encoding.lower().replace("-", "") == "utf8" else PLAIN_BLOCKS
    counts = f"{len(snapshot.streams):,} streams, {len(snapshot.consumers):,} consumers"
    moment = clock(snapshot.taken) if snapshot.taken else "looking"
    hold = "  on hold" if view.frozen else ""
    lines = [Text(fitted(plain(f"penstock top  {moment}{hold}  {counts}  {url}"), width), style="bold")]
    lines.append(_trouble_line(snapshot, width))
    arrow = "rising" if view.rising else "falling"
    tabs = "  ".join(f"[{name}]" if name == view.name else name for name in VIEWS)
    typed = f"  /{view.filter}{'_' if view.typing else ''}" if view.filter or view.typing else ""
    lines.append(Text(fitted(plain(f"{tabs}  by {view.by}, {arrow}{typed}"), width)))
    columns = view.fitting(width)
    heads = [fitted(item.head, size, right=item.right) for item, size in columns]
    lines.append(Text(fitted("  " + " ".join(heads), width), style="reverse"))
    rows, room = view.rows(snapshot), _room(height)
    for row in rows[view.top : view.top + room]:
        style = {"!": "red", "~": "yellow"}.get(row.trouble, "")
        for number, cells in enumerate(view.cells(row, columns, survey.series, snapshot.taken, blocks)):
            mark = row.trouble if number == 0 and row.trouble else " "
            lines.append(Text(fitted(f"{mark} " + " ".join(cells), width), style=style))
    del lines[_HEAD + room :]
    if not rows:
        lines.append(Text(fitted("  None." if not view.filter else "  None that match.", width)))
    lines += [Text("")] * (_HEAD + room - len(lines))
    last = min(len(rows), view.top + room)
    shown = f"{view.top + 1:,}-{last:,} of {len(rows):,}  " if rows else ""
    lines.append(Text(fitted(f"{shown}{_KEYS}", width), style="dim"))
    return Text("\n", end="").join(lines[:height])


def _trouble_line(snapshot: Snapshot, width: int) -> Text:
    from rich.text import Text

    if snapshot.problem is not None:
        return Text(fitted(plain(f"! {snapshot.problem}"), width), style="bold red")
    if not snapshot.trouble:
        said = _covered(snapshot) or ("No trouble." if snapshot.covered.rounds else "Looking for the first time.")
        return Text(fitted(plain(said), width))
    one, more = snapshot.trouble[0], len(snapshot.trouble) - 1
    rest = f" (and {more:,} more: t)" if more else ""
    text = fitted(plain(f"{'!' if one.severe else '~'} {one.about}: {one.says}"), width - len(rest)) + rest
    return Text(text, style="bold red" if one.severe else "yellow")
