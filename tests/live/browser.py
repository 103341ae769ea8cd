"""A browser for the tests of the console: plain HTTP, a cookie jar for one cookie, and no manners."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.connection import Connection, connect
from tests.live.command import Running

PRINTED = re.compile(r"http://\S+")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Asks one console; `token` is what its printed address carries."""

    def __init__(self, printed: str) -> None:
        parts = urlsplit(printed)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.token = (parse_qs(parts.query).get("token") or [""])[0]

    def get(
        self, path: str, *, method: str = "GET", known: bool = True, body: bytes | None = None, **headers: str
    ) -> Answer:
        """Ask for a path, as one who has the token unless told otherwise; redirects are not followed."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if known:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def both(self, path: str) -> tuple[str, Any]:
        """Give a page and its JSON twin; both must be there."""
        before, mark, query = path.partition("?")
        page, twin = self.get(path), self.get(f"{before}.json{mark}{query}")
        assert (page.status, twin.status) == (200, 200), (path, page.text, twin.text)
        assert page.headers["content-type"].startswith("text/html")
        assert twin.headers["content-type"] == "application/json"
        return page.text, twin.json()


def address(child: Running) -> str:
    found = PRINTED.search(child.wait_for("Console:"))
    assert found is not None
    return found.group()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Connection]:
    client = await connect(url)
    try:
        yield client
    finally:
        await client.close()


def fill(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do something on the server, in a loop of its own."""

    async def body() -> Any:
        async with client_of(url) as client:
            return await work(client)

    return asyncio.run(body())
