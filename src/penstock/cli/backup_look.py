"""`penstock backup info|validate|lookup`: what a backup holds, and whether it is whole, without a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import local, print_json, print_sections, progress
from penstock.cli.tables import plain, print_table
from penstock.durations import format_duration
from penstock.errors import InputError
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.store.backup_report import BackupFound

__all__ = ["info", "lookup", "validate"]

Folder = Annotated[Path, argument("Folder of a backup.", "DIR")]
ShowProgress = Annotated[bool, flag("Show progress on a terminal.", "--progress/--no-progress")]


def info(
    folder: Folder,
    subjects: Annotated[bool, flag("List every subject, and how many messages it has.")] = False,
    show_progress: ShowProgress = True,
    json: Json = False,
) -> None:
    """Show what a backup holds: every message of it is read."""
    found = _read(folder, "Reading", show_progress and not json)
    if json:
        print_json(_as_json(found, subjects))
        return
    _show(found, folder)
    if subjects:
        rows = [(subject, f"{count:,}") for subject, count in sorted(found.subjects.items())]
        typer.echo()
        print_table(f"{len(rows):,} Subjects", ("Subject", "#Messages"), rows)


def validate(folder: Folder, show_progress: ShowProgress = True) -> None:
    """Check that a backup is whole: its end is there, and every message is what its checksums say."""
    found = _read(folder, "Validating", show_progress)
    held = f"sequences {found.first:,} to {found.last:,}" if found.messages else "no messages"
    typer.echo(
        f"OK: {found.entries:,} entries, {len(found.consumers):,} consumers, {found.messages:,} messages, "
        f"{len(found.subjects):,} subjects, {held}"
    )


def lookup(
    keyfile: Annotated[Path, argument("Key file beside an obfuscated backup.", "KEYFILE")],
    value: Annotated[list[str], argument("What to look up; a subject is looked up token by token.", "VALUE")],
) -> None:
    """Look up what obfuscated names and subjects stand for."""
    from penstock.store.key_file import read_key_file, reveal

    try:
        content = keyfile.read_bytes()
    except OSError as error:
        raise InputError(f"{keyfile} cannot be read: {error.strerror}.", remedy="Check the path.") from None
    words = read_key_file(content, str(keyfile))
    for each in value:
        typer.echo(plain(reveal(each, words)))


def _read(folder: Path, what: str, show_progress: bool) -> BackupFound:
    from penstock.store.backup_report import report_backup

    with progress(what, None, as_bytes=True, on=show_progress) as advance:
        return report_backup(folder, advance)


def _as_json(found: BackupFound, with_subjects: bool) -> dict[str, Any]:
    told = {
        "config": found.config,
        "declared": found.declared,
        "declared_counts_advisory": _is_advisory(found),
        "edit": found.edit,
        "consumers": list(found.consumers),
        "messages": found.messages,
        "num_subjects": len(found.subjects),
        "subjects": dict(found.subjects) if with_subjects else None,
        "bytes": found.size,
        "first_seq": found.first,
        "last_seq": found.last,
        "first_time": None if found.first_time is None else found.first_time.isoformat(),
        "last_time": None if found.last_time is None else found.last_time.isoformat(),
    }
    return {name: value for name, value in told.items() if value is not None or name.endswith("_time")}


def _is_advisory(found: BackupFound) -> bool:
    return found.messages > 0 and not (found.declared.get("messages") and found.declared.get("bytes"))


def _show(found: BackupFound, folder: Path) -> None:
    config, declared, edit = found.config, found.declared, found.edit or {}
    age = config.get("max_age") or 0
    print_sections(
        f"Information for backup of Stream {config['name']} in {os.fspath(folder)}",
        [
            (
                "Configuration",
                [
                    ("Name", config["name"]),
                    ("Subjects", config.get("subjects") or None),
                    ("Storage", str(config.get("storage", "file")).capitalize()),
                    ("Retention", str(config.get("retention", "limits")).capitalize()),
                    ("Replicas", config.get("num_replicas")),
                    ("Maximum Messages", _limit(config.get("max_msgs"))),
                    ("Maximum Per Subject", _limit(config.get("max_msgs_per_subject"))),
                    ("Maximum Bytes", _limit(config.get("max_bytes"), as_bytes=True)),
                    ("Maximum Age", format_duration(age / 1e9) if age > 0 else "unlimited"),
                    ("Maximum Message Size", _limit(config.get("max_msg_size"), as_bytes=True)),
                    ("Maximum Consumers", _limit(config.get("max_consumers"))),
                ],
            ),
            ("Consumers", [("Count", len(found.consumers)), ("Names", list(found.consumers) or None)]),
            (
                "Messages",
                [
                    ("Messages", found.messages),
                    ("Bytes", format_size(found.size)),
                    ("First Sequence", f"{found.first:,} @ {local(found.first_time)}" if found.messages else None),
                    ("Last Sequence", f"{found.last:,} @ {local(found.last_time)}" if found.messages else None),
                    ("Subjects", len(found.subjects)),
                ],
            ),
            (
                "Declared State (counts are advisory)" if _is_advisory(found) else "Declared State",
                [
                    ("Messages", declared.get("messages", 0)),
                    ("Bytes", format_size(declared.get("bytes", 0))),
                    ("First Sequence", declared.get("first_seq", 0)),
                    ("Last Sequence", declared.get("last_seq", 0)),
                    ("Consumers", declared.get("consumer_count", 0)),
                ],
            ),
            (
                "Edit",
                [
                    ("Tool Version", edit.get("version")),
                    ("Options", ", ".join(map(str, edit.get("options") or ())) or "none"),
                    ("Source Digest", edit.get("source_digest")),
                    ("Obfuscated", bool(edit.get("obfuscated"))),
                ]
                if edit
                else [],
            ),
        ],
    )


def _limit(value: Any, *, as_bytes: bool = False) -> str:
    if not isinstance(value, int) or value <= 0:
        return "unlimited"
    return format_size(value) if as_bytes else f"{value:,}"
