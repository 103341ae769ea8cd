"""What pages are made from: the connection, the settings, what is remembered; and what a request asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.connection import Connection, api_request
from penstock.console.masking import Mask
from penstock.console.pipeline_runs import PipelineRuns
from penstock.console.rates import Rates
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.errors import DeniedError, InputError, LinkError, NotFoundError, PenstockError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream.assets import checked
from penstock.survey import Survey
from penstock.wire.jetstream.answers import number, parts

if TYPE_CHECKING:
    from penstock.console.prometheus import Prometheus
    from penstock.console.protobuf import ProtobufTypes
    from penstock.pipelines.project import Project

__all__ = [
    "Backend",
    "Data",
    "Download",
    "Page",
    "PageRequest",
    "all_of",
    "consumers_of",
    "if_there",
    "iso",
    "page",
    "part_of",
    "stream_page",
]

Data = dict[str, Any]
Build = Callable[["Backend", "PageRequest"], Coroutine[Any, Any, Data]]
Item = TypeVar("Item")
Found = TypeVar("Found")
_AT_ONCE = 16  # requests of one page that are under way together


@dataclass(frozen=True)
class Backend:
    """What all pages read from."""

    settings: Settings
    upstream: Upstream
    mask: Mask
    survey: Survey
    """Looks at everything in the background; its snapshot costs nothing to read."""
    projects: tuple[Project, ...] = ()
    runs: PipelineRuns = field(default_factory=PipelineRuns)
    """Runs of pipelines that were started from here."""
    protobuf: ProtobufTypes | None = None
    """The types of Protobuf payloads, if somebody gave them."""
    system: Upstream | None = None
    """A connection of the system account, if somebody gave one."""
    monitors: tuple[str, ...] = ()
    """Where servers have their monitoring pages, if somebody said so."""
    prometheus: Prometheus | None = None
    """Keeps figures for longer than an hour, if somebody named one."""
    write: bool = False
    """Whether somebody may act."""
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
        """Give a number of the query; InputError if it is not a number."""
        text = self.query.get(name, "")
        if not text:
            return default
        # The length comes first: Python refuses to read a number of some thousand digits.
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) < 2**63):
            raise InputError(f"{name} is {text[:40]!r}.", remedy=f"Give a number from {least} on.")
        return int(text)


@dataclass(frozen=True)
class Page:
    """One page: where it is, and what makes its content. The routes, the menu, the JSON twins and the docs follow."""

    path: str
    """Its path; the JSON twin is at the same path with `.json` behind it."""
    build: Build
    refresh: float = 0.0
    """Seconds after which an open page asks again; 0 for never."""
    menu: bool = False
    """Whether the menu leads to it."""

    @property
    def name(self) -> str:
        """The name of its template."""
        return self.build.__name__

    @property
    def title(self) -> str:
        """What stands in the menu, and over it."""
        return self.name.capitalize().replace("_", " ")

    @property
    def sentence(self) -> str:
        """What it shows, as the function that makes its content says it."""
        return " ".join((self.build.__doc__ or "").split())


@dataclass(frozen=True)
class Download:
    """A file that no browser opens by itself."""

    name: str
    """Its name, of plain letters."""
    content: bytes | AsyncIterator[bytes]
    """All of it, or its pieces; an error among these breaks the download off."""


def page(path: str, *, refresh: float = 0.0, menu: bool = False) -> Callable[[Build], Page]:
    """Make a page of the function below; its name is the page's, and its docstring says what the page shows."""

    def make(build: Build) -> Page:
        return Page(path, build, refresh, menu)

    return make


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


async def if_there(asked: Awaitable[Found]) -> Found | None:
    """Give what was asked for, or None if the server has no such thing: it may have gone a moment ago."""
    try:
        return await asked
    except NotFoundError:
        return None


async def part_of(backend: Backend, asked: Awaitable[Found]) -> tuple[Found | None, str | None]:
    """Give a part of a page, or the sentence that says why it is not there: the rest of the page is shown.

    That NATS is away is no matter of a part.
    """
    try:
        return await asked, None
    except PenstockError as error:
        if isinstance(error, LinkError) and not isinstance(error, DeniedError):
            raise
        return None, backend.mask.text(str(error))


async def _listed(client: Connection, method: str, key: str, kind: Any, offset: int) -> tuple[list[Any], int]:
    """Give one page of a list of the server's, by name, and how many there are in all."""
    answer = await api_request(client, method, {"offset": offset})
    found = [kind.from_json(item) for item in parts(answer, key)]
    return sorted(found, key=lambda info: info.name), number(answer, "total", len(found))


async def stream_page(client: Connection, offset: int = 0) -> tuple[list[StreamInfo], int]:
    """Give one page of the server's list of streams, and how many there are in all."""
    return await _listed(client, "STREAM.LIST", "streams", StreamInfo, offset)


async def consumers_of(client: Connection, stream: str) -> tuple[list[ConsumerInfo], int]:
    """Give the first page of a stream's consumers, and how many there are; none if the stream is just gone."""
    method = f"CONSUMER.LIST.{checked(stream, 'stream')}"
    return await if_there(_listed(client, method, "consumers", ConsumerInfo, 0)) or ([], 0)


def iso(moment: datetime | None) -> str | None:
    """Write a time for JSON."""
    return None if moment is None else moment.isoformat()
