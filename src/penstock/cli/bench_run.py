"""How a benchmark runs: connected, with what it needs made before and removed after, a bar, and figures at the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.bench_flags import Amount
from penstock.cli.output import print_json, print_sections, progress
from penstock.cli.running import connected
from penstock.cli.tables import plain, print_table
from penstock.errors import InputError, PenstockError
from penstock.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.bench.client_job import ClientJob
    from penstock.bench.results import Results
    from penstock.connection import Connection
    from penstock.options import ConnectionOptions

__all__ = ["Bench", "bench"]

_CLEANING = 10.0  # seconds to remove what was made


@dataclass
class Bench:
    """One benchmark: the connection that prepares it, and what it made."""

    kind: str
    amount: Amount
    client: Connection
    options: ConnectionOptions
    seconds: float
    """--timeout: how long the server may take to answer."""
    made: list[tuple[str, Callable[[], Any]]] = field(default_factory=list)

    @property
    def patience(self) -> float:
        """How long there may be no progress at all."""
        return max(30.0, self.seconds)

    def new_name(self) -> str:
        """Give a name that nobody else uses."""
        return f"bench_{secrets.token_hex(6)}"

    def remove_later(self, what: str, remove: Callable[[], Any]) -> None:
        """Note something that is to be removed at the end, whatever happens."""
        self.made.append((what, remove))

    async def clean(self) -> None:
        """Remove what was made, the last first; say what could not be removed."""
        while self.made:
            what, remove = self.made.pop()
            try:
                async with asyncio.timeout(_CLEANING):
                    await remove()
            except (PenstockError, TimeoutError) as error:
                why = str(error) or f"no answer within {_CLEANING:g} s"
                typer.echo(plain(f"penstock: {what} could not be removed: {why}"), err=True)

    async def run(
        self, jobs: Sequence[ClientJob], *, helpers: Sequence[ClientJob] = (), what: str = "", **asked: Any
    ) -> Results:
        """Run the jobs, show how far they are, and give the results."""
        from penstock.bench.crew import run_jobs
        from penstock.bench.results import Results

        total = sum(job.messages for job in jobs)
        shown = self.amount.progress
        kind = what or self.kind
        with progress(kind, total, on=shown) as advance:
            samples, helped = await run_jobs(jobs, advance, helpers=helpers)
        about: dict[str, Any] = {"msgs": total, "size": jobs[0].size, "clients": len(jobs), **asked}
        return Results(kind, {name: value for name, value in about.items() if value is not None}, samples, helped)

    def show(self, *found: Results) -> None:
        """Print the figures, for people or for programs, and write the file that --csv names."""
        if self.amount.json:
            printed = [results.to_json() for results in found]
            print_json(printed[0] if len(printed) == 1 else printed)
        else:
            for results in found:
                show(results)
        if self.amount.csv is not None:
            run = secrets.token_hex(8)
            text = "".join(results.to_csv(run) for results in found)
            try:
                with self.amount.csv.open("x") as file:
                    file.write(text)
            except OSError as error:
                what = f"--csv {self.amount.csv} cannot be written: {error.strerror}."
                raise InputError(what, remedy="Name a new file in a folder that you may write to.") from None
            if not self.amount.json:
                typer.echo(plain(f"Wrote {self.amount.csv}"), err=True)


@asynccontextmanager
async def bench(ctx: typer.Context, kind: str, amount: Amount) -> AsyncIterator[Bench]:
    """Connect for a benchmark; what it made is removed at the end, after Ctrl-C and SIGTERM, too."""
    from penstock.wire import arrow

    assert arrow  # says what is missing before there is a connection
    options = ctx.obj.options()
    with _term_is_interrupt():
        async with connected(ctx, options) as client:
            made = Bench(kind, amount, client, options, ctx.obj.seconds)
            try:
                yield made
            finally:
                await made.clean()


@contextmanager
def _term_is_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does: there is something to be removed."""
    loop, ends = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGHUP)
    for number in ends:
        loop.add_signal_handler(number, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        for number in ends:
            loop.remove_signal_handler(number)


def show(results: Results) -> None:
    """Print the figures of a run: of all together, and of each client if there are several."""
    if len(results.samples) > 1:
        rows = [
            (number, f"{one.messages:,}", f"{one.rate:,.0f}", f"{format_size(int(one.bytes / one.seconds))}/s")
            for number, one in enumerate(results.samples, 1)
        ]
        print_table("Clients", ("#Client", "#Messages", "#Messages/s", "#Throughput"), rows)
        typer.echo("")
    size = format_size(int(results.bytes / results.seconds))
    rates, latencies = results.rates(), results.latencies
    figures: list[tuple[str, Any]] = [
        ("Messages", results.messages),
        ("Seconds", f"{results.seconds:,.3f}"),
        ("Messages/s", f"{results.rate:,.0f}"),
        ("Throughput", f"{size}/s"),
        ("CPU time of ours", f"{results.cpu:,.2f} s, {results.cpu / results.messages * 1e6:,.2f} µs a message"),
    ]
    if len(results.samples) > 1:
        figures.append(("Rates of clients", " | ".join(f"{name} {value:,.0f}" for name, value in rates.items())))
    timed = [(name if name[0] != "p" else name.upper(), f"{value:,.1f} µs") for name, value in latencies.items()]
    asked = [(name.capitalize(), value) for name, value in results.asked.items()]
    print_sections(results.kind, [("", asked), ("Figures", figures), ("Latency", timed)])
