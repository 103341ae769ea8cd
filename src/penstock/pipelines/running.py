"""`run`: apply the topology, run the pipeline, give the outcome."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contexts import load_options
from penstock.errors import InputError, OptionError
from penstock.options import ConnectionOptions
from penstock.pipelines.order import RunOrder
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.process import PipelineRun
from penstock.pipelines.project import Project
from penstock.pipelines.remote import check_remote
from penstock.pipelines.replays import beside, current_replay, database

if TYPE_CHECKING:
    from penstock.jetstream.changes import Plan

__all__ = ["apply_topology", "blocking", "check_where", "follow", "run", "start"]

T = TypeVar("T")


def run(
    path: str | Path | Project = ".",
    *,
    url: str | None = None,
    options: ConnectionOptions | None = None,
    continuous: bool = False,
    pause: float = 1.0,
    master: str | None = None,
    remote: str | None = None,
    storage: str | Path | None = None,
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
    dry: bool = False,
    conf: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    watch: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Run the pipeline in a folder: once over all that is there, or continuously until `stop` is set.

    The streams and consumers of its `topology.toml` are made or changed first. `watch` is called with the outcome so
    far, several times a second. PipelineError says why a run failed; whatever was done before stays done, and the next
    run goes on from there.
    """
    check_where(master, remote)
    if continuous and (dry or full_refresh or full_refresh_all):
        what = "A continuous run can be neither dry nor a full refresh."
        raise OptionError(what, remedy="Run once first, then continuously.", option="continuous")
    order = RunOrder(
        continuous=continuous,
        pause=pause,
        master=master or "local[*]",
        remote=remote,
        full_refresh=tuple(full_refresh),
        full_refresh_all=full_refresh_all,
        dry=dry,
        conf=dict(conf or {}),
    )
    return follow(start(path, url=url, options=options, storage=storage, order=order), watch, stop, timeout)


def check_where(master: str | None, remote: str | None) -> None:
    """Refuse two places for one Spark."""
    if master is not None and remote is not None:
        raise OptionError(
            "Both master and remote are given.",
            remedy="A remote Spark Connect server has a master of its own: leave one out.",
            option="remote",
        )


def follow(
    begun: PipelineRun,
    watch: Callable[[Outcome], None] | None = None,
    stop: threading.Event | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Follow a run to its end, however that comes, and close it; PipelineError if it failed."""
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    asked = False
    with closing(begun):
        while begun.poll():
            if watch is not None:
                watch(begun.outcome)
            if stop is not None and stop.is_set() and not asked:
                asked = True
                begun.stop()
            if time.monotonic() > deadline:
                begun.outcome.failure = f"it is not done after {timeout:g} s"
                break
        if watch is not None:
            watch(begun.outcome)
        return begun.check()


def start(
    path: str | Path | Project = ".",
    *,
    url: str | None = None,
    options: ConnectionOptions | None = None,
    storage: str | Path | None = None,
    order: RunOrder | None = None,
) -> PipelineRun:
    """Apply the topology and start the pipeline; the caller follows it with `poll` and ends it with `close`."""
    if isinstance(path, Project):
        project = path if storage is None else path.at(storage)
    else:
        project = Project.load(path, storage=storage)
    if options is not None and url is not None:
        raise InputError("Both url and options are given.", remedy="Give one of them.")
    found = options or load_options(url)
    order = order or RunOrder()
    if order.remote is not None:
        check_remote(order.remote)
    kept = current_replay(project)
    apply_topology(project, found)
    if kept is not None:
        shared = database(project, kept.name, order.remote, order.conf)
        order = replace(order, replay=kept.settings(switched=True), database=shared)
        project = beside(project, kept.name)
    return PipelineRun(project, found, order).start()


def apply_topology(project: Project, options: ConnectionOptions) -> Plan | None:
    """Make the streams and consumers that the project declares; give what was changed."""
    topology = project.topology
    if topology is None:
        return None

    async def work() -> Plan:
        from penstock.connection import connect
        from penstock.jetstream import apply

        async with await connect(options) as client:
            return await apply(client, topology)

    return blocking(work())


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from ordinary code, also if this thread has a loop that runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
