"""What pages are made from: the connection, the settings, what is remembered; and what a request asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.connection import Connection, api_request
from penstock.console.masking import Mask
from penstock.console.rates import Rates
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.errors import InputError
from penstock.info import StreamInfo

if TYPE_CHECKING:
    from penstock.pipelines.project import Project

__all__ = ["Backend", "Data", "PageRequest", "all_of", "iso", "stream_page"]

Data = dict[str, Any]
Item = TypeVar("Item")
Found = TypeVar("Found")
_AT_ONCE = 16  # requests of one page that are under way together


@dataclass(frozen=True)
class Backend:
    """What all pages read from."""

    settings: Settings
    upstream: Upstream
    mask: Mask
    projects: tuple[Project, ...] = ()
    rates: Rates = field(default_factory=Rates)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end: nobody waits for pages in the making."""
    disk: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "penstock-console"))
    """Reads files, one look at a time: a slow disk must not fill up threads with looks that nobody waits for."""


@dataclass(frozen=True)
class PageRequest:
    """What is asked of a page: the parts of its path, and the words behind the question mark."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Give a number of the query; InputError where it is none."""
        text = self.query.get(name, "")
        if not text:
            return default
        # The length comes first: Python refuses to read a number of some thousand digits.
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) < 2**63):
            raise InputError(f"{name} is {text[:40]!r}.", remedy=f"Give a number from {least} on.")
        return int(text)


async def all_of(items: Iterable[Item], ask: Callable[[Item], Awaitable[Found]]) -> list[Found]:
    """Ask for all of them, some at a time; the answers are in the order of the items."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Item) -> Found:
        async with turn:
            return await ask(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the others were cancelled because of it
    return [task.result() for task in tasks]


async def stream_page(client: Connection, offset: int = 0) -> tuple[list[StreamInfo], int]:
    """Give one page of the server's list of streams, by name, and how many there are in all."""
    answer = await api_request(client, "STREAM.LIST", {"offset": offset})
    found = [StreamInfo.from_json(item) for item in answer.get("streams") or []]
    return sorted(found, key=lambda info: info.name), int(answer.get("total", len(found)))


def iso(moment: datetime | None) -> str | None:
    """Write a time for JSON."""
    return None if moment is None else moment.isoformat()
