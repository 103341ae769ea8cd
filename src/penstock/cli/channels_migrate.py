"""`penstock channels migrate`: move channels and the positions of durables over from a NATS Streaming server."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.channels import Prefix, Replicas, check_names
from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import counts, print_json, progress
from penstock.cli.running import connected
from penstock.cli.server import started
from penstock.cli.tables import print_table
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.channels.migrate import ChannelSource
    from penstock.channels.old_durables import OldSubscribers
    from penstock.channels.old_sql import OldDatabase
    from penstock.channels.old_store import OldStore
    from penstock.channels.positions import Planned
    from penstock.channels.store import Store
    from penstock.connection import Connection
    from penstock.options import ConnectionOptions

    Kept = OldStore | OldDatabase

__all__ = ["migrate"]

Ends = dict[str, tuple[int, int] | None]


async def migrate(
    ctx: typer.Context,
    channels: Annotated[list[str] | None, argument("Channels to move; all that the source lists if none.")] = None,
    source: Annotated[str, flag("NATS address of the NATS Streaming server to copy from.", "URL", "--from")] = "",
    from_cluster: Annotated[str, flag("Cluster id of that server.", "ID")] = "test-cluster",
    from_monitor: Annotated[
        str | None, flag("Its monitoring address, for channels and, with --positions, durables.", "URL")
    ] = None,
    from_store: Annotated[Path | None, flag("The folder of its file store, when it is stopped.", "DIR")] = None,
    from_sql: Annotated[
        str | None,
        flag("Its SQL database, when it is stopped: a DB-API module and what it takes.", "MODULE:KEY=VALUE&..."),
    ] = None,
    cluster_id: Annotated[
        str | None,
        flag("Cluster id to move to; the one of the source if none.", "ID", "-cid", "--cluster-id", "--cluster_id"),
    ] = None,
    store: Annotated[Path | None, flag("Move into an embedded server's folder, and not to -s.", "DIR")] = None,
    subject_prefix: Prefix = "",
    replicas: Replicas = 1,
    positions: Annotated[
        bool | None, flag("Bring the positions of durables; on with --from-store and --from-sql, off otherwise.")
    ] = None,
    replace_positions: Annotated[bool, flag("Put durables back that clients of a gateway have used already.")] = False,
    dry_run: Annotated[bool, flag("Say what would be moved, and change nothing.")] = False,
    verify: Annotated[bool, flag("Compare every message at the end.")] = True,
    truncate_bad_eof: Annotated[
        bool, flag("Go on without a record of the store that the end of its file cut off.")
    ] = False,
    crc_poly: Annotated[
        int, flag("The polynomial of the store's checksums, if it had -file_crc_poly.", "N", min=1, max=0xFFFFFFFF)
    ] = 0xEDB88320,
    json: Json = False,
) -> None:
    """Copy channels and durables of a NATS Streaming server; run it again to go on where it stopped."""
    _check_source(channels, source, from_monitor, [("--from-store", from_store), ("--from-sql", from_sql)], positions)
    check_names(from_cluster)
    check_names(cluster_id or from_cluster, subject_prefix, replicas)
    address = _addressed(ctx, source, store)
    with _opened(from_store, from_sql, truncate=truncate_bad_eof, polynomial=crc_poly) as old:
        if old is not None and not dry_run:
            old.check_unused()
        cluster = cluster_id or (old.cluster_id if old is not None else from_cluster)
        check_names(cluster)
        job = _Migration(await _listed(channels or [], from_monitor, old), from_monitor, old, json=json)
        async with _target(ctx, store) as client, _source(ctx, old, address, from_cluster) as opened:
            from penstock.channels.store import Store

            await job.run(
                opened,
                Store(client, cluster, prefix=subject_prefix, replicas=replicas),
                positions=old is not None if positions is None else positions,
                replace=replace_positions,
                verify=verify,
                dry_run=dry_run,
            )


def _addressed(ctx: typer.Context, source: str, folder: Path | None) -> ConnectionOptions:
    """Check where to copy from and where to, before anything is asked or opened."""
    from penstock.options import ConnectionOptions

    if folder is not None and ctx.obj.names_a_server:
        raise OptionError(
            "--store is for the embedded server, and another one is named.",
            remedy="Leave --store out, or leave out the server's address and context.",
            option="--store",
        )
    return ConnectionOptions(source) if source else ConnectionOptions()


@contextmanager
def _opened(folder: Path | None, database: str | None, **how: Any) -> Iterator[Kept | None]:
    """Open what the old server left behind; None if it runs."""
    from penstock.channels.old_sql import OldDatabase
    from penstock.channels.old_store import OldStore

    if folder is not None:
        yield OldStore(folder, **how)
    elif database is not None:
        with closing(OldDatabase(database)) as opened:
            yield opened
    else:
        yield None


def _check_source(
    channels: list[str] | None,
    source: str,
    from_monitor: str | None,
    left: list[tuple[str, object]],
    positions: bool | None,
) -> None:
    given = [name for name, value in left if value is not None]
    if len(given) > 1 or (given and (source or from_monitor)):
        raise OptionError(
            f"{given[0]} is given, and another source.",
            remedy=f"Copy from the running server with --from; when it is stopped, use {given[0]} alone.",
            option=given[0],
        )
    if given:
        return
    if not source:
        raise OptionError(
            "--from is missing.", remedy="Give the old server's NATS address, or --from-store.", option="--from"
        )
    if positions and not from_monitor:
        raise OptionError(
            "--positions needs to know the durables.",
            remedy="Give --from-monitor, or stop the old server and give --from-store.",
            option="--positions",
        )
    if not channels and not from_monitor:
        raise OptionError(
            "No channel is named.", remedy="Name some, or give --from-monitor to copy all.", option="--from-monitor"
        )


async def _listed(named: list[str], monitor: str | None, old: Kept | None) -> list[str]:
    """Give the channels to move: those that were named, or all that the source lists."""
    from penstock.channels.old_durables import names_from_monitor

    if old is None:
        return named or await names_from_monitor(monitor or "")
    known = old.channels()
    for name in named:
        if name not in known:
            remedy = f"It has {', '.join(known) or 'none'}."
            raise OptionError(f"The store has no channel {name}.", remedy=remedy, option="channels", value=name)
    return named or known


@asynccontextmanager
async def _target(ctx: typer.Context, folder: Path | None) -> AsyncIterator[Connection]:
    """Connect to where the channels go: to a server that runs, or to one of our own for as long as it takes."""
    if folder is None:
        async with connected(ctx) as client:
            yield client
        return
    from penstock.channels.limits import PAYLOAD
    from penstock.options import ConnectionOptions
    from penstock.server import Server

    server = Server(store=folder, max_payload=PAYLOAD)
    async with started(server, asyncio.Event()), connected(ctx, ConnectionOptions(server.url)) as client:
        yield client


@asynccontextmanager
async def _source(
    ctx: typer.Context, old: Kept | None, address: ConnectionOptions, from_cluster: str
) -> AsyncIterator[ChannelSource]:
    from penstock.channels import Client
    from penstock.channels.migrate import RunningServer

    if old is not None:
        yield old
        return
    client_id = f"penstock-{secrets.token_hex(6)}"
    async with Client(address, cluster_id=from_cluster, client_id=client_id, connect_timeout=ctx.obj.seconds) as client:
        yield RunningServer(client)


class _Migration:
    """One run: the messages of each channel, then the durables."""

    def __init__(self, channels: list[str], monitor: str | None, old: Kept | None, *, json: bool) -> None:
        self._channels = channels
        self._monitor = monitor
        self._old = old
        self._json = json

    async def run(
        self, source: ChannelSource, store: Store, *, positions: bool, replace: bool, verify: bool, dry_run: bool
    ) -> None:
        from penstock.channels.positions import plan_positions, set_positions

        rows, ends = [], Ends()
        for name in self._channels:
            ends[name] = await source.ends(name)
            if dry_run:
                rows.append(await self._look(store, name, ends[name]))
            else:
                rows.append(await self._copy(source, store, name, ends[name], verify=verify))
        if not positions:
            self._print(rows, None, [], dry_run=dry_run)
            return
        found = await self._durables()
        planned = await plan_positions(store, found.durables, ends, again=replace)
        if not dry_run:
            if self._old is not None:
                self._old.check_unchanged()
            planned = await set_positions(store, planned, ends)
        self._print(rows, found, planned, dry_run=dry_run)

    async def _durables(self) -> OldSubscribers:
        from penstock.channels.old_durables import from_monitor, from_store

        if self._old is not None:
            return from_store(self._old, self._channels)  # here: a database belongs to the thread that opened it
        return await from_monitor(self._monitor or "", self._channels)

    async def _copy(
        self, source: ChannelSource, store: Store, name: str, ends: tuple[int, int] | None, *, verify: bool
    ) -> dict[str, Any]:
        from penstock.channels.migrate import copy_channel, verify_channel

        copied, same = None, 0
        if ends is not None:
            total = ends[1] - ends[0] + 1
            with progress(f"copy {name}", total) as advance:
                copied = await copy_channel(source, store, name, ends, advance)
            if verify:
                with progress(f"verify {name}", total) as advance:
                    same = await verify_channel(source, store, name, ends, advance)
        nothing = {"channel": name, "stream": None, "first": 0, "end": 0, "copied": 0}
        if not self._json:
            what = f"{copied.copied:,} copied, {same:,} compared" if copied else "nothing there"
            typer.echo(f"{name}: {what}", err=True)
        return {**(dataclasses.asdict(copied) if copied else nothing), "verified": same if verify else None}

    async def _look(self, store: Store, name: str, ends: tuple[int, int] | None) -> dict[str, Any]:
        """Tell what a run would copy of a channel."""
        from penstock.channels.migrate import UNLIMITED

        stream = await store.find(name, UNLIMITED)
        there = stream.last if stream is not None else 0
        first, end = (ends[0], ends[1] + 1) if ends is not None else (0, 0)
        missing = max(0, end - max(first, there + 1))
        known = stream.name if stream is not None else None
        return {"channel": name, "stream": known, "first": first, "end": end, "to_copy": missing}

    def _print(
        self, rows: list[dict[str, Any]], found: OldSubscribers | None, planned: list[Planned], *, dry_run: bool
    ) -> None:
        notes = [] if found is None else list(found.notes)
        if found is not None and found.others:
            notes.append(f"{found.others} subscriptions that are not durable end with the old server")
        if self._json:
            durables = [{**dataclasses.asdict(item.durable), "fate": item.fate, "why": item.why} for item in planned]
            # A list of channels is what this command printed before it knew of durables.
            print_json(rows if found is None else {"channels": rows, "durables": durables, "notes": notes})
            return
        for note in notes:
            typer.echo(f"{note}.", err=True)
        title, done = ("Would be copied", ("#To copy",)) if dry_run else ("Copied", ("#Copied", "#Verified"))
        table = [(*row.values(),) if row["stream"] else (row["channel"], "", *list(row.values())[2:]) for row in rows]
        print_table(title, ("Channel", "Stream", "#First", "#End", *done), table)
        if found is None:
            typer.echo("Durables were not asked for: --from-store, --from-sql or --positions brings them.", err=True)
            return
        if not planned:
            typer.echo("No durables.")
            return
        table = [
            (
                item.durable.channel,
                item.durable.title,
                *counts(item.durable.last, len(item.durable.pending) + item.durable.unknown),
                f"{item.fate}: {item.why}" if item.why else item.fate,
            )
            for item in planned
        ]
        title = "Durables that would be brought" if dry_run else "Durables"
        print_table(title, ("Channel", "Durable", "#Last sent", "#Pending", "What"), table)
