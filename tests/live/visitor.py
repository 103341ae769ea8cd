"""Asks the console's application without a socket: quick, and for what a real browser would never send."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from penstock.connection import Connection, Msg
from penstock.console.access import Access
from penstock.console.app import build_app
from penstock.console.audit import Audit
from penstock.console.backend import Backend
from penstock.console.masking import Mask
from penstock.console.pages import DOWNLOADS, PAGES
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.options import ConnectionOptions
from penstock.survey import Survey
from tests.live.browser import Answer

PORT = 8080


class Visitor:
    """Whoever looks at a console: `backend` is what its pages read from, `access` what lets in."""

    surveying: asyncio.Task[None]

    def __init__(
        self, options: ConnectionOptions, settings: Settings, pipelines: Sequence[Any], audit: Path | None = None
    ) -> None:
        self.access = Access(names=settings.names, write=audit is not None)
        upstream, mask = Upstream(options, timeout=settings.timeout), Mask(options)
        self.survey = Survey(upstream.client, pipelines=tuple(pipelines), scrub=mask.text)
        self.backend = Backend(settings, upstream, mask, self.survey, tuple(pipelines))
        self.app = build_app(self.backend, self.access, Audit(audit))

    async def nats(self) -> Connection:
        """Give the connection that the pages use, for what a test wants to be there."""
        return await self.backend.upstream.client()

    async def get(
        self,
        path: str,
        *,
        method: str = "GET",
        known: bool = True,
        host: str | None = "127.0.0.1",
        more: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        **headers: str,
    ) -> Answer:
        """Ask for a path, as one who has the token unless told otherwise; redirects are not followed."""
        sent = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        if known:
            sent.setdefault("authorization", f"Bearer {self.access.token}")
        if host is not None:
            sent["host"] = host
        raw, _, query = path.encode().partition(b"?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw.decode("ascii")),  # as uvicorn has it
            "raw_path": raw,
            "query_string": query,
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()] + list(more),
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 50_000),
            "root_path": "",
        }
        said: list[dict[str, Any]] = []

        sending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not sending:
                await asyncio.Event().wait()  # it stays until all is said
            return sending.pop()

        async def send(message: Any) -> None:
            said.append(message)

        await self.app(scope, receive, send)
        start, *parts = said
        assert start["type"] == "http.response.start"
        return Answer(
            start["status"],
            {name.decode().lower(): value.decode() for name, value in start["headers"]},
            b"".join(part.get("body", b"") for part in parts),
        )

    async def leave(self) -> None:
        """End the survey, and close the connection."""
        self.surveying.cancel()
        await asyncio.gather(self.surveying, return_exceptions=True)
        self.backend.closing.set()
        self.backend.disk.shutdown(cancel_futures=True)
        await self.backend.upstream.close()

    async def both(self, path: str) -> tuple[str, Any]:
        """Give a page and its JSON twin; both must be there."""
        before, mark, query = path.partition("?")
        page, twin = await self.get(path), await self.get(f"{before}.json{mark}{query}")
        assert (page.status, twin.status) == (200, 200), (path, page.text, twin.text)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert twin.headers["content-type"] == "application/json"
        return page.text, twin.json()

    async def twin(self, path: str, status: int = 200) -> Any:
        """Give what a JSON twin says; its page must answer with the same status."""
        before, mark, query = path.partition("?")
        page, twin = await self.get(path), await self.get(f"{before}.json{mark}{query}")
        assert (page.status, twin.status) == (status, status), (path, page.text, twin.text)
        return twin.json()


@asynccontextmanager
async def visiting(
    url: str | ConnectionOptions,
    settings: Settings | None = None,
    pipelines: Sequence[Any] = (),
    audit: Path | None = None,
) -> AsyncIterator[Visitor]:
    """Open a console on a NATS server for one visitor; its connection ends with it. One with a log of acts lets act."""
    options = url if isinstance(url, ConnectionOptions) else ConnectionOptions(url)
    visitor = Visitor(options, settings or Settings(), pipelines, audit)
    visitor.surveying = asyncio.create_task(visitor.survey.run())
    try:
        yield visitor
    finally:
        leaving = asyncio.ensure_future(visitor.leave())
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await asyncio.wait({leaving})  # what is half closed would stay open
            raise


def every_page(names: Mapping[str, str], asked: Mapping[str, str] | None = None) -> list[str]:
    """Give the path of every page with these names in it, and what it wants to know beside them."""
    return [_path(page.path, page.name, names, asked) for page in PAGES]


def every_download(names: Mapping[str, str], asked: Mapping[str, str] | None = None) -> list[str]:
    """Give the path of everything that can be downloaded, by the same rule."""
    return [_path(path, build.__name__, names, asked) for path, build in DOWNLOADS.items()]


def _path(path: str, name: str, names: Mapping[str, str], asked: Mapping[str, str] | None) -> str:
    filled = path.format(**{name: quote(value, safe="") for name, value in names.items()})
    return f"{filled}?{asked[name]}" if asked and name in asked else filled


def publish_raw(url: str, subject: bytes, headers: bytes, payload: bytes) -> None:
    """Publish what no well-behaved client would, and wait until a stream has it."""
    options = ConnectionOptions(url)
    host, _, port = options.url.removeprefix("nats://").partition(":")
    block, inbox = b"NATS/1.0\r\n" + headers + b"\r\n", b"_INBOX." + secrets.token_hex(8).encode()
    with socket.create_connection((host, int(port)), timeout=20) as link:
        login = json.dumps({"auth_token": options.token, "headers": True, "verbose": False, "pedantic": False})
        link.sendall(b"CONNECT " + login.encode() + b"\r\nSUB " + inbox + b" 1\r\n")
        sizes = (len(block), len(block) + len(payload))
        link.sendall(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, inbox, *sizes, block, payload))
        said = b""
        while b'"seq"' not in said:
            piece = link.recv(4096)
            assert piece, said
            said += piece


async def pull(client: Connection, stream: str, consumer: str, count: int, wait: float = 20.0) -> list[Msg]:
    """Ask a consumer for messages, as any client does, and leave their acks to the caller."""
    subscription = await client.subscribe(client.new_inbox())
    body = json.dumps({"batch": count, "expires": int(wait * 1e9)}).encode()
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, reply=subscription.subject)
    try:
        return [await subscription.next_msg(wait) for _ in range(count)]
    finally:
        await subscription.unsubscribe()
