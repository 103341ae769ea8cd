"""Open pages stay fresh: a page that is asked for as server-sent events tells which of its parts have changed.

The address is the page's own; what differs is the header `Accept: text/event-stream`, which browsers send for an
`EventSource`. The page is made again every few seconds by the same template. Its parts are the elements with
`data-live` and an `id`; what is sent are those whose text is another one than before:

    event: page     {"title": HTML, "main": HTML}   at first, and whenever the parts are others than before
    event: parts    {ID: HTML, ...}                 the parts that have changed
    event: same     {}                              nothing has changed: the console is still there
    event: failed   {"what": ..., "remedy": ...}    the page cannot be made now; it is tried again

It ends with the reader or with the console; who does not take what is sent is hung up on (`console.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

__all__ = ["Feed", "Painted", "parts", "wants_events"]

# Attributes hold no bare `>`: everything that comes in is escaped, and so are our own templates.
_PART = re.compile(r'<([a-z][a-z0-9]*)(?=[^>]*\sdata-live[\s>=])(?=[^>]*\sid="([^"]+)")[^>]*>')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_AGAIN = 3.0  # seconds after which a page that failed is made again
_SHARE = 4  # a page that takes long to make is made less often: it rests this many times as long as it took
_LONGEST = 60.0  # seconds between two looks, whatever they cost

Painted = tuple[str | None, Mapping[str, str]]
"""The HTML of a page; or None, and what went wrong."""


def wants_events(accept: str) -> bool:
    """Tell whether a request is that of an EventSource."""
    return accept.partition(",")[0].partition(";")[0].strip() == "text/event-stream"


def parts(page: str) -> dict[str, str]:
    """Give the parts of a page that stay fresh, by their ids; a part within a part belongs to it."""
    found: dict[str, str] = {}
    place = 0
    while (match := _PART.search(page, place)) is not None:
        place = _end(page, match[1], match.start())
        found[match[2]] = page[match.start() : place]
    return found


def main_of(page: str) -> str:
    """Give the element `main` of a page."""
    start = page.index("<main")
    return page[start : _end(page, "main", start)]


def _end(page: str, name: str, start: int) -> int:
    """Find where the element that starts there ends."""
    depth = 0
    for tag in re.compile(rf"<(/?){name}\b[^>]*>").finditer(page, start):
        if not tag[0].endswith("/>"):
            depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.end()
    return len(page)


class Feed:
    """One open page and the one who looks at it: an ASGI response that goes on until either is gone."""

    def __init__(
        self, paint: Callable[[], Awaitable[Painted]], refresh: float, closing: asyncio.Event, among: set[Feed]
    ) -> None:
        self._paint = paint
        self._among = among
        self._refresh = refresh
        self._closing = closing
        self._sent: dict[str, str] | None = None
        """The parts as they were sent last; None while the reader has none of them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell what changes, until the reader or the console goes."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._among.add(self)
        telling = asyncio.create_task(self._tell(send))
        ends = [asyncio.create_task(_gone(receive)), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait([telling, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._among.discard(self)
            for task in (telling, *ends):
                task.cancel()
            await asyncio.gather(telling, *ends, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        while True:
            begun = time.monotonic()
            page, trouble = await self._paint()
            took = time.monotonic() - begun
            await send({"type": "http.response.body", "body": self._event(page, trouble), "more_body": True})
            wait = self._refresh if page is not None else _AGAIN
            await asyncio.sleep(min(_LONGEST, max(wait, _SHARE * took)))

    def _event(self, page: str | None, trouble: Mapping[str, str]) -> bytes:
        if page is None:
            self._sent = None
            return _written("failed", trouble)
        found, before = parts(page), self._sent
        self._sent = found
        if before is None or before.keys() != found.keys():
            title = _TITLE.search(page)
            return _written("page", {"title": title[1] if title else "", "main": main_of(page)})
        changed = {name: text for name, text in found.items() if before[name] != text}
        return _written("parts" if changed else "same", changed)


def _written(kind: str, data: Mapping[str, Any]) -> bytes:
    # ASCII on one line, whatever others wrote: a line break would end the event.
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode("ascii")


async def _gone(receive: Receive) -> None:
    """Wait until the one who looks has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
