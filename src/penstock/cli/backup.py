"""`penstock stream backup|restore`, and the same as `penstock backup stream|restore stream`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.asset_commands import read_config
from penstock.cli.asset_show import info_json, show_stream
from penstock.cli.flags import Json, StreamName, argument, flag
from penstock.cli.late import model, snapshot
from penstock.cli.output import print_json, progress
from penstock.cli.running import connected
from penstock.cli.stream_flags import placement_from
from penstock.errors import InputError
from penstock.sizes import parse_size

__all__ = ["backup", "restore"]

ShowProgress = Annotated[bool, flag("Show progress on a terminal.", "--progress/--no-progress")]
Folder = Annotated[Path, argument("Folder of a backup.", "DIR")]
MOST_AHEAD = 64 * 1024 * 1024  # bytes that wait in memory at the worst


async def backup(
    ctx: typer.Context,
    name: StreamName,
    target: Annotated[Path, argument("Folder to make and write into.", "DIR")],
    consumers: Annotated[bool, flag("Back up consumers, too.")] = True,
    check: Annotated[bool, flag("Let the server check every message first.")] = False,
    chunk_size: Annotated[str, flag("Bytes that the server sends at once.", "SIZE")] = "128K",
    window_size: Annotated[str, flag("Bytes that it may send ahead.", "SIZE")] = "4M",
    show_progress: ShowProgress = True,
    json: Json = False,
) -> None:
    """Write a stream into a folder, which `restore` reads; the `nats` command reads it, too."""
    sizes = {"chunk_size": _size("--chunk-size", chunk_size, 1024), "window_size": _size("--window-size", window_size)}
    if sizes["chunk_size"] > sizes["window_size"]:
        raise InputError("--chunk-size is larger than --window-size.", remedy="Let a chunk fit into the window.")
    async with connected(ctx) as client:
        with progress(f"Backing up {name}", None, as_bytes=True, on=show_progress) as advance:
            made = await snapshot.backup(
                client, name, target, consumers=consumers, check=check, progress=advance, **sizes
            )
    count = made["state"]["messages"]
    if json:
        print_json({"stream": name, "folder": str(target), "messages": count, "bytes": made["size"]})
    else:
        typer.echo(f"Backed up {count:,} messages of Stream {name} into {target}, {made['size']:,} bytes.")


def _size(option: str, text: str, least: int = 1) -> int:
    size = parse_size(text, option=option)
    if not least <= size <= MOST_AHEAD:
        raise InputError(f"{option} is {text!r}.", remedy=f"Give {least:,} to {MOST_AHEAD:,} bytes.")
    return size


async def restore(
    ctx: typer.Context,
    folder: Folder,
    config: Annotated[Path | None, flag("JSON configuration to restore with.", "FILE")] = None,
    cluster: Annotated[str | None, flag("Cluster to live in.", "NAME")] = None,
    tag: Annotated[list[str] | None, flag("Tag that servers must carry; may be repeated.")] = None,
    replicas: Annotated[int | None, flag("Other number of replicas.", min=1, max=5)] = None,
    show_progress: ShowProgress = True,
    json: Json = False,
) -> None:
    """Make a stream anew from a backup."""
    snapshot.read_meta(folder)  # before anything is asked of a server
    wanted = None if config is None else read_config(model.Stream, config)
    placement = placement_from(cluster, tag) if cluster or tag else None
    size = snapshot.data_file(folder).stat().st_size
    async with connected(ctx) as client:
        with progress("Restoring", size, as_bytes=True, on=show_progress) as advance:
            info = await snapshot.restore(
                client, folder, config=wanted, replicas=replicas, placement=placement, progress=advance
            )
    if json:
        print_json(info_json(info))
    else:
        typer.echo(f"Restored Stream {info.name} with {info.messages:,} messages\n")
        show_stream(info)
