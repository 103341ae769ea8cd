"""The pages of the console, as data: the routes, the menu, the JSON twins and the docs follow from this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields

from penstock import __version__
from penstock.console.backend import Backend, Data, PageRequest
from penstock.console.consumers import consumer, consumers
from penstock.console.messages import message, messages
from penstock.console.overview import overview
from penstock.console.pipelines import pipelines
from penstock.console.streams import stream, streams
from penstock.console.transfers import transfers

__all__ = ["PAGES", "Page"]


@dataclass(frozen=True)
class Page:
    """One page: where it is, what it shows, and what makes its content."""

    name: str
    """The name of its template."""
    path: str
    """Its path; the JSON twin is at the same path with `.json` behind it."""
    title: str
    sentence: str
    """What it shows."""
    build: Callable[[Backend, PageRequest], Awaitable[Data]]
    refresh: float = 0.0
    """Seconds after which an open page asks again; 0 for never."""
    menu: bool = False
    """Whether the menu leads to it."""


async def about(backend: Backend, request: PageRequest) -> Data:
    """Show the settings of this console and its pages; NATS is not asked."""
    return {
        "version": __version__,
        "settings": {field.name: getattr(backend.settings, field.name) for field in fields(backend.settings)},
        "pages": [{"path": page.path, "json": f"{page.path}.json", "what": page.sentence} for page in PAGES],
    }


PAGES: tuple[Page, ...] = (
    Page(
        "overview",
        "/overview",
        "Overview",
        "The server, what the account uses, the streams written to last, and what needs attention.",
        overview,
        refresh=3,
        menu=True,
    ),
    Page(
        "streams",
        "/streams",
        "Streams",
        "Every stream: messages, bytes, first and last message, messages a second.",
        streams,
        refresh=3,
        menu=True,
    ),
    Page(
        "stream",
        "/streams/{stream}",
        "Stream",
        "One stream: configuration, state, subjects, consumers, last messages.",
        stream,
        refresh=5,
    ),
    Page(
        "messages",
        "/streams/{stream}/messages",
        "Messages",
        "Messages of a stream, newest first; with `?subject=` those of a subject, oldest first.",
        messages,
    ),
    Page(
        "message",
        "/streams/{stream}/messages/{sequence}",
        "Message",
        "One message: headers, and the payload as JSON, text or hex; `/payload` behind it downloads it.",
        message,
    ),
    Page(
        "consumers",
        "/consumers",
        "Consumers",
        "The consumers of all streams: lag, acks that are missing, redeliveries, the furthest behind first.",
        consumers,
        refresh=3,
        menu=True,
    ),
    Page(
        "consumer",
        "/streams/{stream}/consumers/{consumer}",
        "Consumer",
        "One consumer: how far it is, and its configuration.",
        consumer,
        refresh=3,
    ),
    Page(
        "pipelines",
        "/pipelines",
        "Pipelines",
        "Runs and flows of pipelines with their lag, and where each exactly-once query is.",
        pipelines,
        refresh=3,
        menu=True,
    ),
    Page(
        "transfers",
        "/transfers",
        "Transfers",
        "Payloads in chunks that streams hold, and how much of each is there.",
        transfers,
        refresh=10,
        menu=True,
    ),
    Page("about", "/about", "About", "The settings of this console, and its pages.", about),
)
