"""`penstock bench pub|sub|request|service`: core NATS, with the words of `nats bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.bench.client_job import Subjects
from penstock.cli.bench_flags import SERVED, Amount, Rate, Sending, Sleep, Subject, jobs_of, parse_headers
from penstock.cli.bench_run import bench
from penstock.cli.flags import Headers, flag
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json
from penstock.cli.running import first, until_signal
from penstock.cli.tables import plain
from penstock.durations import parse_duration

__all__ = ["pub", "request", "serve", "sub"]


async def pub(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    messages: Sending,
    rate: Rate,
    sleep: Sleep = "0s",
) -> None:
    """Publish messages of core NATS, until the server has handled the last one."""
    subjects, total = messages.subjects(subject), rate.messages(amount)
    fields: dict[str, Any] = {
        "subjects": subjects,
        "payload": amount.payload(messages.payload),
        "headers": parse_headers(messages.header),
        "sleep": parse_duration(sleep, option="--sleep"),
        "throughput": rate.throughput,
    }
    async with bench(ctx, "Publish", amount) as run:
        jobs = jobs_of("core.publish", run.options, amount, total, patience=run.patience, **fields)
        run.show(await run.run(jobs, subject=subjects.pattern))


async def sub(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    multisubject: Annotated[bool, flag("Subscribe to all subjects with a number behind this one.")] = False,
) -> None:
    """Receive messages of core NATS, all of them with each client; the clock starts with the first one."""
    check_subjects(subject)
    subjects = Subjects(subject, multisubject)
    async with bench(ctx, "Subscribe", amount) as run:
        typer.echo(plain(f"Waiting for messages on {subjects.pattern}; Ctrl-C ends it."), err=True)
        fields: dict[str, Any] = {"subjects": subjects, "payload": amount.payload(), "patience": run.patience}
        jobs = jobs_of("core.subscribe", run.options, amount, amount.msgs, each=True, **fields)
        run.show(await run.run(jobs, subject=subjects.pattern))


async def request(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    rate: Rate,
    sleep: Sleep = "0s",
    payload: Annotated[Path | None, flag("File to send instead of zeros.", "FILE")] = None,
    header: Headers = None,
) -> None:
    """Send requests, each client one after the other, and time the answer of each."""
    check_subjects(subject, literal=True)
    fields: dict[str, Any] = {
        "subjects": Subjects(subject),
        "payload": amount.payload(payload),
        "headers": parse_headers(header),
        "sleep": parse_duration(sleep, option="--sleep"),
        "throughput": rate.throughput,
    }
    async with bench(ctx, "Request", amount) as run:
        total = rate.messages(amount)
        jobs = jobs_of("core.request", run.options, amount, total, patience=run.patience, **fields)
        run.show(await run.run(jobs, subject=subject))


async def serve(
    ctx: typer.Context,
    subject: Subject,
    amount: Amount,
    sleep: Annotated[str, flag(SERVED, "DURATION")] = "0s",
) -> None:
    """Answer requests with messages of --size, until Ctrl-C; several that serve share the requests."""
    from penstock.bench.crew import Crew

    check_subjects(subject)
    pause = parse_duration(sleep, option="--sleep")
    fields: dict[str, Any] = {"subjects": Subjects(subject), "payload": amount.payload(), "sleep": pause}
    async with bench(ctx, "Serve", amount) as run:
        jobs = jobs_of("core.serve", run.options, amount, amount.clients, patience=run.patience, **fields)
        async with Crew() as crew:
            with until_signal() as stop:
                await crew.help(jobs)
                typer.echo(plain(f"Answering on {subject}; Ctrl-C ends it."), err=True)
                await first(stop.wait(), *(process.result(lambda step: None) for process in crew.helpers))
            samples = await crew.stop_helpers()
    served, seconds = sum(one.messages for one in samples), sum(one.cpu for one in samples)
    if amount.json:
        print_json({"kind": "Serve", "answers": served, "cpu_seconds": round(seconds, 4)})
    else:
        typer.echo(f"Answered {served:,} requests; CPU time of ours: {seconds:,.2f} s")
