"""`penstock store inspect`: what is in the store of a server that does not run, and what of it is damaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Json, argument, flag, stream_name
from penstock.cli.output import counts, print_json, print_sections, progress
from penstock.cli.tables import plain, print_table
from penstock.errors import InputError, StoreDamagedError
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.store.inspection import StreamFound

__all__ = ["inspect"]

SHOWN = 20  # holes


def inspect(
    folder: Annotated[Path, argument("Folder of a store: a server's, an account's or a stream's.", "DIR")],
    stream: Annotated[str | None, flag("Only this stream, block by block.", "STREAM", callback=stream_name)] = None,
    json: Json = False,
) -> None:
    """Look through a store without a server: streams, blocks, ranges, holes; exit status 1 if some of it is damaged."""
    from penstock.store.inspection import inspect_store

    with progress("Inspecting", None, as_bytes=True, on=not json) as advance:
        found = list(inspect_store(folder, stream, advance))
    if not found:
        what = f"holds no stream {stream}" if stream else "holds no stream"
        raise InputError(f"{folder} {what}.", remedy="Name the folder that nats-server was given as its store.")
    if json:
        print_json([dataclasses.asdict(each) for each in found])
    elif stream is None:
        _list(found)
    else:
        for each in found:
            _show(each)
    if damaged := [each for each in found if each.damage]:
        names = ", ".join(each.name for each in damaged[:SHOWN])
        raise StoreDamagedError(
            f"Of {len(found):,} streams in {folder} {len(damaged):,} are damaged: {names}.",
            remedy="Look for another copy; what is whole can be read with failOnDataLoss=false.",
            store=str(folder),
            losses=tuple(f"{each.name}: {what}" for each in damaged for what in each.damage),
        )


def _list(found: Sequence[StreamFound]) -> None:
    rows = [
        (
            each.account,
            each.name,
            *counts(each.messages, each.first, each.last, each.missing, len(each.blocks)),
            format_size(each.size),
            _state(each),
        )
        for each in found
    ]
    columns = ("Account", "Stream", "#Messages", "#First", "#Last", "#Missing", "#Blocks", "#Size", "~State")
    print_table("Streams", columns, rows)
    for each in found:
        for damage in each.damage:
            typer.echo(plain(f"{each.name}: {damage}"), err=True)


def _state(found: StreamFound) -> str:
    if found.damage:
        return "damaged"
    if found.encrypted:
        return "encrypted"
    said = [text for text, is_so in (("no index", bool(found.index)), ("torn end", found.torn)) if is_so]
    return ", ".join(said) or "whole"


def _show(found: StreamFound) -> None:
    holes = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in found.holes[:SHOWN]]
    more = [f"and {len(found.holes) - SHOWN:,} more"] if len(found.holes) > SHOWN else []
    print_sections(
        f"Stream {found.name} in {found.folder}",
        [
            (
                "",
                [
                    ("Account", found.account or None),
                    ("State", _state(found)),
                    ("Messages", None if found.encrypted else found.messages),
                    ("First Sequence", None if found.encrypted else found.first),
                    ("Last Sequence", None if found.encrypted else found.last),
                    ("Missing", None if found.encrypted else found.missing),
                    ("Holes", [*holes, *more] or None),
                    ("Size", format_size(found.size)),
                    ("Compression", None if found.encrypted else found.compression),
                    ("Index", found.index or None),
                    ("Torn", "the last record is not whole; a server drops it" if found.torn else None),
                    *(("Damage", damage) for damage in found.damage),
                ],
            )
        ],
    )
    if found.blocks:
        rows = [
            (
                str(each.number),
                *counts(each.messages, each.first, each.last, each.removed),
                format_size(each.size),
                "s2" if each.compressed else "",
                each.damage or "",
            )
            for each in found.blocks
        ]
        columns = ("#Block", "#Messages", "#First", "#Last", "#Removed", "#Size", "Packed", "~Damage")
        typer.echo()
        print_table("Blocks", columns, rows)
