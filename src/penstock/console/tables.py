"""Which rows of a long table a page shows: sorted, filtered and cut into pages by what its address says.

The address says it all, so that every view has a link and works without script: `sort=-lag` (the minus turns the
order round), `filter=orders eu` (every word must be there), `offset=100`. A page with several tables gives each a
prefix, as in `subjects_sort=name`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from penstock.console.backend import Data, PageRequest
from penstock.errors import InputError

__all__ = ["Listing", "fields", "turn"]

Item = TypeVar("Item")
_FILTER = 200  # letters of a filter


@dataclass(frozen=True)
class Listing(Generic[Item]):
    """The rows of one view of a table, and how it came about."""

    items: Sequence[Item]
    total: int
    """How many there are without the filter."""
    matching: int
    """How many the filter lets through."""
    offset: int
    most: int
    sort: str
    filter: str
    prefix: str
    sorts: tuple[str, ...]
    """What it can be sorted by."""

    @classmethod
    def of(
        cls,
        request: PageRequest,
        items: Iterable[Item],
        values: Mapping[str, Callable[[Item], Any]],
        *,
        sort: str,
        words: Callable[[Item], Iterable[str]],
        most: int,
        prefix: str = "",
    ) -> Listing[Item]:
        """Choose what a request asks for: `values` are what can be sorted by, `words` what the filter looks through."""
        wanted = request.query.get(f"{prefix}sort", "") or sort
        name = wanted.removeprefix("-")
        if name not in values:
            raise InputError(f"There is nothing to sort by as {name[:40]!r}.", remedy=f"Known: {', '.join(values)}.")
        text = request.query.get(f"{prefix}filter", "").strip()
        if len(text) > _FILTER:
            raise InputError(f"The filter has more than {_FILTER} letters.", remedy="Write a part of a name.")
        found = list(items)
        total = len(found)
        if needles := text.casefold().split():
            found = [item for item in found if _has(words(item), needles)]
        value = values[name]
        # Nothing known comes last whichever way it is sorted; what is equal keeps the order in which it came.
        known = [(found_value, item) for item in found if (found_value := value(item)) is not None]
        known.sort(key=lambda pair: pair[0], reverse=wanted.startswith("-"))
        ordered = [item for _, item in known] + [item for item in found if value(item) is None]
        offset = request.number(f"{prefix}offset", 0)
        shown = ordered[offset : offset + most]
        return cls(shown, total, len(ordered), offset, most, wanted, text, prefix, tuple(values))

    def about(self) -> Data:
        """Give what the macro `table` and the JSON twin say of it, beside the rows."""
        following = self.offset + len(self.items)
        return {
            "total": self.total,
            "matching": self.matching,
            "offset": self.offset,
            "sort": self.sort,
            "filter": self.filter,
            "prefix": self.prefix,
            "sorts": list(self.sorts),
            "next": following if self.items and following < self.matching else None,
            "previous": max(0, min(self.offset, self.matching) - self.most) if self.offset else None,
        }


def fields(*names: str) -> dict[str, Callable[[Data], Any]]:
    """Give what rows that are dicts can be sorted by; a dot leads into a dict within, as in `last.time`."""

    def reader(name: str) -> Callable[[Data], Any]:
        def read(row: Data) -> Any:
            found: Any = row
            for part in name.split("."):
                found = None if found is None else found[part]
            return found

        return read

    return {name: reader(name) for name in names}


def turn(query: Sequence[tuple[str, str]], changes: Mapping[str, Any]) -> str:
    """Give the address of another view of the same page: the same question but for what changes; None takes out."""
    kept = [(name, value) for name, value in query if name not in changes]
    kept += [(name, str(value)) for name, value in changes.items() if value is not None]
    return f"?{urlencode(kept, errors='replace')}" if kept else "?"


def _has(texts: Iterable[str], needles: Sequence[str]) -> bool:
    hay = "\n".join(texts).casefold()
    return all(needle in hay for needle in needles)
