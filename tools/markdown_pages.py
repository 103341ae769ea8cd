"""Reads Markdown pages as a code host does: headings with their anchors, links, fences.

The site, and the tests of the pages, take from here what a page holds, so that both mean the same by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Heading", "Link", "anchor", "anchors", "headings", "links", "plain", "prose", "title"]

_FENCE = re.compile(r"^ {0,12}(`{3,}|~{3,})([^`]*)$")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *#* *$")
# A link or a picture; its text may hold pictures, and spans of code with brackets in them.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?: +\"[^\"]*\")?\)")


@dataclass(frozen=True)
class Heading:
    """A heading: its line, from 0, its level, its text without markup, and the anchor that leads to it."""

    line: int
    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Link:
    """A link or a picture: its text, where it leads, and where in the page that stands."""

    text: str
    target: str
    start: int
    end: int
    is_picture: bool


def prose(text: str) -> str:
    """Give a page of the same length in which code, in fences and in spans, is blank."""
    lines, fence = [], ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            lines.append(" " * len(line))
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
        elif found:
            fence = found[1]
            lines.append(" " * len(line))
        else:
            lines.append(line)
    # A span of code ends with its paragraph, or its row of a table, at the latest.
    parts = re.split(r"(\n[ \t]*\n|\n(?=\|))", "\n".join(lines))
    return "".join(_SPAN.sub(lambda span: re.sub(r"[^\n]", " ", span[0]), part) for part in parts)


def plain(text: str) -> str:
    """Give what a reader sees of a line: links by their text, code and emphasis without their marks."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = _SPAN.split(text)  # text, ticks, code, text, ...
    seen = ""
    for number in range(0, len(parts), 3):
        shown = re.sub(r"(\*\*|\*|(?<!\w)_|_(?!\w))", "", parts[number])
        seen += re.sub(r"\\([^\w\s])", r"\1", shown)
        seen += parts[number + 2].strip() if number + 2 < len(parts) else ""
    return seen


def anchor(text: str) -> str:
    """Give the anchor of a heading as a code host makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def headings(text: str) -> Iterator[Heading]:
    """Give the headings of a page; if two have the same text, the later anchor has a number."""
    shown, seen = prose(text).split("\n"), dict[str, int]()
    for number, line in enumerate(text.split("\n")):
        found = _HEADING.match(line)
        if found is None or not shown[number].startswith("#"):
            continue
        words = plain(found[2])
        name = base = anchor(words)
        while name in seen:
            seen[base] += 1
            name = f"{base}-{seen[base]}"
        seen[name] = 0
        yield Heading(number, len(found[1]), words, name)


def anchors(text: str) -> set[str]:
    """Give every anchor of a page."""
    return {heading.anchor for heading in headings(text)}


def title(text: str) -> str:
    """Give the title of a page: its first heading, which must be of the first level."""
    first = next(headings(text), None)
    if first is None or first.level != 1:
        raise ValueError("it does not begin with a heading of the first level")
    return first.text


def links(text: str) -> Iterator[Link]:
    """Give the links and pictures of a page, but not what stands in code."""
    # Blank code keeps its place, but the text of a link may be code: ticks and brackets within it are not marks.
    shown = prose(text)
    for found in _LINK.finditer(shown):
        start, end = found.span(3)
        yield Link(text[found.start(2) : found.end(2)], text[start:end], start, end, found[1] == "!")
