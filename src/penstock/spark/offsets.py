"""The offset of a query: for each stream, the next sequence to read, and which stream that is.

This is what Spark keeps in its checkpoint, so its form never changes; golden files in the tests freeze it::

    {"version": 1,
     "streams": {"ORDERS": {"created": "2026-01-31T23:59:59.123456789Z",   the stream's identity
                            "from": 1,         where this query began to read this stream
                            "next": 1001,      the next sequence to read; everything below is read
                            "skipped": 0,      how many sequences below were gone before they were read
                            "last": 1205,      the last message that the stream was seen to hold, and when that
                            "time": "2026-02-01T00:04:17.5Z"}}}   was stored; a stream that is set back shows by them

The offset before the first batch is `{"version": 1, "streams": {}, "fresh": true}`. It names no place, so the first
batch, which may be empty, is what fixes where the query began: a query that is stopped before any message came goes on
from there, and not from wherever "new" is by then.

A stream that was deleted and made again has another time of creation: its entry begins anew, and `from` tells the
sequence at which. So the range between two offsets is known from the two alone, and a replay of it is the same rows.
One whose server came up with an older store has the same time of creation, and less in it, or other messages under
the same sequences: `last` and `time` tell. Offsets of earlier versions do not have them, and those versions read past
them. Spark compares offsets as text: the keys are always written in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import InputError
from penstock.json_text import load_json

__all__ = ["Mark", "Offset", "Range"]

VERSION = 1


@dataclass(frozen=True)
class Mark:
    """Where a query stands in one stream."""

    created: str
    """When the stream was made, as the server writes it: the identity of the stream."""
    begun: int
    """The first sequence that this query reads, or read, of this stream; `from` in JSON."""
    next: int
    """The next sequence to read."""
    skipped: int = 0
    """How many sequences were gone before they could be read, all told."""
    last: int = field(default=0, compare=False)
    """The last sequence that the stream was seen to hold; 0 if that is not known."""
    time: str = field(default="", compare=False)
    """When the message at `last` was stored, as the server writes it."""

    def moved(self, to: int, skipped: int = 0) -> Mark:
        """Give the same mark further on."""
        return replace(self, next=to, skipped=self.skipped + skipped)

    def is_behind(self, other: Mark) -> bool:
        """Tell whether another mark of the same stream is further on."""
        return self.created == other.created and self.next < other.next

    @property
    def reach(self) -> int:
        """The sequence behind everything that the stream is known to have held."""
        return max(self.next, self.last + 1)

    def to_json(self) -> dict[str, Any]:
        """Give the mark as it stands in an offset."""
        seen = {"last": self.last, "time": self.time} if self.last else {}
        return {"created": self.created, "from": self.begun, "next": self.next, "skipped": self.skipped} | seen

    @classmethod
    def from_json(cls, content: Any) -> Mark:
        """Read a mark; InputError if it is something else."""
        try:
            texts = content["created"], content.get("time", "")
            numbers = content["from"], content["next"], content.get("skipped", 0), content.get("last", 0)
        except (KeyError, TypeError, AttributeError):
            raise _broken(content) from None
        if not all(type(text) is str for text in texts):
            raise _broken(content)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise _broken(content)
        return cls(texts[0], *numbers, texts[1])


@dataclass(frozen=True, order=True)
class Range:
    """Sequences of one stream, `[start, end)`."""

    stream: str
    start: int
    end: int

    @property
    def width(self) -> int:
        """How many sequences the range spans; there may be fewer messages."""
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Offset:
    """Where a query stands, in every stream that it reads."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    fresh: bool = False
    """Whether no batch was planned yet."""

    def to_json(self) -> dict[str, Any]:
        """Give the offset as Spark keeps it."""
        streams = {name: self.marks[name].to_json() for name in sorted(self.marks)}
        return {"version": VERSION, "streams": streams} | ({"fresh": True} if self.fresh else {})

    @classmethod
    def from_json(cls, content: Any) -> Offset:
        """Read an offset, as a dictionary or as its JSON text; InputError if it is none of ours."""
        if isinstance(content, str):
            try:
                content = load_json(content)
            except ValueError:
                raise _broken(content) from None
        if not isinstance(content, dict) or not isinstance(content.get("streams"), dict):
            raise _broken(content)
        if content.get("version") != VERSION:
            raise InputError(
                f"The checkpoint holds an offset of version {content.get('version')!r}; this Penstock knows {VERSION}.",
                remedy="Use the Penstock that wrote it, or a newer one.",
            )
        marks = {name: Mark.from_json(mark) for name, mark in content["streams"].items()}
        return cls(marks, fresh=content.get("fresh") is True)

    def range(self, stream: str, end: Mark) -> Range:
        """Give what lies between this offset and a later mark of a stream."""
        mark = self.marks.get(stream)
        # Another stream under the same name, or one that is new to the query, is read from where it entered.
        start = mark.next if mark is not None and mark.created == end.created else end.begun
        return Range(stream, start, max(start, end.next))

    def ranges(self, end: Offset) -> Iterator[Range]:
        """Give what lies between this offset and a later one, stream by stream; empty ranges are left out."""
        for stream in sorted(end.marks):
            found = self.range(stream, end.marks[stream])
            if found.width:
                yield found

    def lag(self, latest: Offset) -> dict[str, int]:
        """Tell how many sequences lie between this offset and the latest, stream by stream."""
        return {stream: self.range(stream, mark).width for stream, mark in sorted(latest.marks.items())}


def _broken(content: Any) -> InputError:
    shown = str(content)
    return InputError(
        f"{shown[:200]} is not an offset of the format nats.",
        remedy="Does the checkpoint belong to a query with another source? Name another checkpointLocation.",
    )
