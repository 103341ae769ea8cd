"""Writes the table of docs/why/guarantees.md from the page's own sections, and refuses a cell that says nothing."""

from __future__ import annotations

import re
from pathlib import Path

CHANGES = (
    "restored",
    "copied",
    "mirrored",
    "replaced",
    "reused",
    "trimmed",
    "refused",
    "overloaded",
    "moved",
    "upgraded",
)
VERDICTS = ("survived", "prevented", "told", "cannot")
_TABLE = re.compile(r"(?<=## The table\n\n).*?(?=\n## The cells\n)", re.DOTALL)
_ROW = re.compile(r"^\| (\w+) \| ((?:[^|\n]|\\\|)+) \| ((?:[^|\n]|\\\|)+) \|$", re.MULTILINE)


class SilentCell(ValueError):
    """A guarantee does not say what happens when the world changes in some way."""


def sections(text: str) -> dict[str, dict[str, tuple[tuple[str, ...], str]]]:
    """Give each guarantee's cells: for every change its verdicts, and what tries them."""
    found = {}
    for section in text.partition("\n## The cells\n")[2].split("\n### ")[1:]:
        title = section.partition("\n")[0].strip()
        cells = {}
        for change, what, tests in _ROW.findall(section):
            if change in CHANGES:
                cells[change] = (_verdicts(title, change, what), tests.strip())
        if tuple(cells) != CHANGES:
            raise SilentCell(f"{title}: the rows are {', '.join(cells)}, not {', '.join(CHANGES)}")
        for change, (verdicts, tests) in cells.items():
            if "`test_" not in tests and verdicts != ("cannot",):
                raise SilentCell(f"{title}, {change}: no test tries it")
        found[title] = cells
    return found


def _verdicts(title: str, change: str, what: str) -> tuple[str, ...]:
    said = tuple(word.lower() for word in re.findall(r"\*\*(\w+)\*\*", what) if word.lower() in VERDICTS)
    if not said:
        raise SilentCell(f"{title}, {change}: none of {', '.join(VERDICTS)} is said")
    return tuple(dict.fromkeys(said))


def page(path: Path) -> str:
    """Give the page with its table written anew."""
    text = path.read_text()
    lines = [f"| guarantee | {' | '.join(CHANGES)} |", f"|{'---|' * (len(CHANGES) + 1)}"]
    for title, cells in sections(text).items():
        row = " | ".join(", ".join(cells[change][0]) for change in CHANGES)
        lines.append(f"| [{title}](#{_anchor(title)}) | {row} |")
    return _TABLE.sub(lambda _: "\n".join(lines) + "\n", text)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
