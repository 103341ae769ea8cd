"""Writes what `make load` measured into the table of docs/why/load.md, a row for each part, and its picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HEAD = ("| part | what was done | seconds |", "|---|---|---|")
_TABLE = re.compile(r"(?<=## What was measured\n\n).*?(?=\n\n)", re.DOTALL)


def row(part: str, found: dict[str, Any]) -> str:
    """Give the row of a part."""
    if part == "soak":
        turns = sum(found["rounds"].values())
        grew = ", ".join(sorted(found["grew"])) or "nothing"
        done = f"{found['last']['seconds'] / 60:.0f} minutes, {turns:,} turns; {grew} grew"
        return f"| `{part}` | {done} | {found['took']:,.0f} |"
    steps = [
        f"{name.removesuffix('_seconds')} in {seconds:,.1f} s"
        for name, seconds in found.items()
        if name.endswith("_seconds")
    ]
    return f"| `{part}` | {', '.join([f'{found[part]:,} {part}', *steps])} | {found['took']:,.1f} |"


def with_load(text: str, found: dict[str, Any]) -> str:
    """Give the page with the parts that went well in it; rows of other parts stay."""
    place = _TABLE.search(text)
    if place is None:
        raise ValueError("the page has no place for what was measured")
    rows = {line.split("`")[1]: line for line in place.group().splitlines() if line.startswith("| `")}
    rows |= {part: row(part, figures) for part, figures in found.items() if "wrong" not in figures}
    return _TABLE.sub(lambda _: "\n".join([*HEAD, *rows.values()]), text)


def write(page: Path, found: dict[str, Any], picture: str | None = None) -> None:
    """Write figures into the page, and the picture of a soak beside it."""
    page.write_text(with_load(page.read_text(), found))
    if picture is not None:
        (page.parent / "load" / "soak.svg").write_text(picture)
