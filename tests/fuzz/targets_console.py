"""Requests of the console, and the payloads that it shows."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes

from penstock.console.access import Access
from penstock.console.app import build_app
from penstock.console.backend import Backend
from penstock.console.masking import Mask
from penstock.console.payload import FORMS, preview, render
from penstock.console.protobuf import ProtobufTypes, _read
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.options import ConnectionOptions
from penstock.survey import Survey
from penstock.wire.protocol import decode_headers
from tests.fuzz.target import as_message, target

TOKEN = "a-token-that-nobody-guesses"


@cache
def _app() -> Any:
    options = ConnectionOptions("nats://the-secret-of-the-server@127.0.0.1:1")  # where nobody listens
    upstream = Upstream(options, timeout=1.0)
    backend = Backend(Settings(), upstream, Mask(options), Survey(upstream.client))
    return build_app(backend, Access(TOKEN))


@target("console")
def console(content: bytes) -> None:
    """A request, a line with method and path and then headers: the answer is whole, and tells no secret."""
    first, *lines = content.split(b"\n")[:30]
    method, _, path = first.partition(b" ")
    raw, _, query = path.partition(b"?")
    pairs = [line.partition(b":") for line in lines if b":" in line]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
    status, body = asyncio.run(_asked(method.decode("latin-1"), raw, query, headers))
    assert 200 <= status < 600, status
    assert status != 500, body[:300]
    assert b"the-secret-of-the-server" not in body
    if not any(TOKEN.encode() in part for part in (query, *(value for _, value in headers))):
        assert TOKEN.encode() not in body
        assert raw.startswith(b"/static/") or status != 200, "let in without the token"


async def _asked(method: str, raw: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message["headers"]:
                assert b"\r" not in name + value
                assert b"\n" not in name + value
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(raw).decode("utf-8", "replace"),
        "raw_path": raw,
        "query_string": query,
        "headers": headers,
        "server": ("127.0.0.1", 8223),
        "client": ("127.0.0.1", 1),
    }
    _app.cache_clear()  # locks and events belong to the loop of one request
    await _app()(scope, receive, send)
    return status, b"".join(parts)


@target("console-payload")
def payload(content: bytes) -> None:
    """Any payload and any headers can be shown."""
    block, data = as_message(content)
    mask = Mask(ConnectionOptions("nats://the-secret-of-the-server@127.0.0.1:1"))
    for form in (None, *FORMS):
        shown = render(mask.data(data), 200, form)
        shown.text.encode()
    preview(data).encode()
    if block is not None:
        str(mask.headers(decode_headers(block)[2])).encode()


@target("protobuf")
def protobuf(content: bytes) -> None:
    """A file of Protobuf types, and a payload that is said to have each of them."""
    types = ProtobufTypes(*_read(content, "types.binpb"))
    for name in types.types[:20]:
        types.show(name, content)
