"""Requests of the console, forms that are sent for acts, and the payloads that it shows.

In a long run a real server is behind it, with something of everything, so that what a request asks for meets data; in
`make test` nobody listens there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote_plus, unquote_to_bytes

from starlette.requests import Request

from penstock.channels.lease import _read_beat as read_sign
from penstock.connection import connect
from penstock.console.access import Access, Admission
from penstock.console.act_pages import ACTS, ActPages
from penstock.console.acts import ActRequest
from penstock.console.app import build_app, cookie_name
from penstock.console.audit import Audit, Record
from penstock.console.backend import Backend
from penstock.console.channels import _client, _read_known, _subscription
from penstock.console.masking import Mask
from penstock.console.payload import FORMS, preview, render
from penstock.console.prometheus import SPANS, Prometheus
from penstock.console.protobuf import ProtobufTypes, _read
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.errors import MonitorError, PenstockError
from penstock.options import ConnectionOptions
from penstock.survey import Survey
from penstock.wire.protocol import decode_headers
from tests.fuzz.target import as_message, target
from tests.fuzz.world import SECRET, fill, served

TOKEN = "a-token-that-nobody-guesses"
WRITE_TOKEN = "a-token-for-acting-that-nobody-guesses"
PORT = 8223
WHERE = "127.77.31.9"  # nobody listens there
_NOWHERE = f"nats://{SECRET}@{WHERE}:1"
_SECONDS = 30.0  # for a request, whatever it asks for
_worlds: list[World] = []  # the one that is around a long run, if there is one


@contextmanager
def _world() -> Iterator[None]:
    with served() as url, World(url) as world:
        _worlds.append(world)
        try:
            yield
        finally:
            _worlds.remove(world)


async def filled(url: str) -> None:
    """Fill the server at a URL."""
    client = await connect(url)
    try:
        await fill(client)
    finally:
        await client.close()


Work = Callable[["Desk"], Coroutine[Any, Any, None]]


# -- one request -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A request as it was read from bytes."""

    method: str
    raw: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""

    @classmethod
    def read(cls, content: bytes) -> Asked:
        """Read a line with method and path, headers, and behind an empty line the body."""
        head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
        first, *lines = head.split(b"\n")[:50]
        method, _, path = first.removesuffix(b" HTTP/1.1").partition(b" ")
        raw, _, query = path.partition(b"?")
        pairs = [line.partition(b":") for line in lines if b":" in line]
        headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
        return cls(method.decode("latin-1"), raw, query, headers, body)

    def scope(self) -> dict[str, Any]:
        """Give it as ASGI has it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote_to_bytes(self.raw).decode("utf-8", "replace"),
            "raw_path": self.raw,
            "query_string": self.query,
            "headers": self.headers,
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 1),
        }


@dataclass
class _Heard(Audit):
    """Keeps what was tried."""

    path: None = None
    tried: list[Record] = field(default_factory=list)

    def asked(self, record: Record) -> None:
        super().asked(record)
        self.tried.append(record)


class Desk:
    """A console; its locks and events belong to the loop in which it is first asked."""

    def __init__(self, url: str, *, write: bool) -> None:
        options = ConnectionOptions(url)
        self.upstream = Upstream(options, timeout=2.0)
        settings = Settings(search_seconds=0.2, page_timeout=10.0)
        self.backend = Backend(settings, self.upstream, Mask(options), Survey(self.upstream.client), write=write)
        self.access = Access(TOKEN, write=write, write_token=WRITE_TOKEN if write else None)
        self.audit = _Heard()
        self.app: Any = build_app(self.backend, self.access, self.audit)

    async def answer(self, asked: Asked) -> tuple[int, bytes]:
        """Give status and body of the answer."""
        status, parts = 0, []
        pieces = [asked.body[:100], asked.body[100:]]
        begun = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
            await begun.wait()  # who looks at a page that stays fresh goes once it is there
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name, value in message["headers"]:
                    assert b"\r" not in name + value
                    assert b"\n" not in name + value
            else:
                parts.append(message.get("body", b""))
                begun.set()

        async with asyncio.timeout(_SECONDS):
            await self.app(asked.scope(), receive, send)
        body = b"".join(parts)
        assert 200 <= status < 600, status
        assert status != 500, body[:300]
        assert b"The console made a mistake" not in body, body[:300]
        assert SECRET.encode() not in body
        return status, body

    async def close(self) -> None:
        """Close what was opened for it."""
        await self.upstream.close()
        self.backend.disk.shutdown(wait=False)

    # -- what makes a form right -----------------------------------------------------------------------------------

    def admission(self, asked: Asked) -> Admission:
        """Tell who sends a request."""
        request = Request(asked.scope())
        said = {"cookie": request.cookies.get(cookie_name(request)), "authorization": _header(asked, b"authorization")}
        return self.access.admit(query=request.query_params, **said)

    async def sealed(self, asked: Asked) -> Asked:
        """Make the seal of a form right, as the checksums of files are made right, and when it was made."""
        item = ACTS.get(asked.scope()["path"].removeprefix("/act/"))
        if item is None or b"seal=SEAL" not in asked.body:
            return asked
        given = dict(parse_qsl(asked.body.decode("latin-1"), keep_blank_values=True))
        try:
            targets = item.named(given)
            made = given.get("made", "")
            if made == "MADE":
                client = await self.upstream.client()
                made = (await item.look(ActRequest(self.backend, client, targets))).made
        except PenstockError:
            return asked
        routes = self.app.app.routes
        pages = next(route.endpoint.__self__ for route in routes if getattr(route, "path", "") == "/act/{act}")
        assert isinstance(pages, ActPages)
        seal = pages.seals.seal(self.admission(asked).session, item.name, targets, made)
        body = asked.body.replace(b"seal=SEAL", b"seal=" + seal.encode())
        return replace(asked, body=body.replace(b"made=MADE", b"made=" + quote_plus(made).encode()))


class World:
    """A server with something of everything, and two consoles before it: for those who look, and for those who act."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._desks = {write: Desk(url, write=write) for write in (False, True)}
        self._surveying: asyncio.Task[None] | None = None
        self._url = url

    def __enter__(self) -> World:
        self._runner.__enter__()
        self._runner.run(self._begin())
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self._runner.run(self._end())
        finally:
            self._runner.close()

    def run(self, work: Work, *, write: bool) -> None:
        """Do something before one of the consoles."""
        desk = self._desks[write]
        desk.audit.tried.clear()
        self._runner.run(work(desk))

    async def _begin(self) -> None:
        await filled(self._url)
        survey = self._desks[False].backend.survey
        self._surveying = asyncio.create_task(survey.run())
        await asyncio.wait_for(survey.next(), _SECONDS)

    async def _end(self) -> None:
        assert self._surveying is not None
        self._surveying.cancel()
        await asyncio.gather(self._surveying, return_exceptions=True)
        for desk in self._desks.values():
            await desk.close()


def _run(work: Work, *, write: bool) -> None:
    if _worlds:
        _worlds[-1].run(work, write=write)
        return

    async def alone() -> None:
        desk = Desk(_NOWHERE, write=write)
        try:
            await work(desk)
        finally:
            await desk.close()

    asyncio.run(alone())


def _header(asked: Asked, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in asked.headers if name == wanted), None)


@target("console", world=_world)
def console(content: bytes) -> None:
    """A request, a line with method and path and then headers: the answer is whole, and tells no secret."""
    asked = Asked.read(content)

    async def look(desk: Desk) -> None:
        status, body = await desk.answer(asked)
        if not any(TOKEN.encode() in part for part in (asked.query, *(value for _, value in asked.headers))):
            assert TOKEN.encode() not in body
            assert WHERE.encode() not in body, "a stranger learns where NATS is"
            assert asked.raw.startswith(b"/static/") or status != 200, "let in without the token"

    _run(look, write=False)


@target("console-acts", world=_world)
def acts(content: bytes) -> None:
    """A form that is sent: nothing is tried without the role and the seal, and nothing twice."""
    asked = Asked.read(content)

    async def act(desk: Desk) -> None:
        sent = await desk.sealed(asked)
        for _ in range(2 if sent.method == "POST" else 1):
            _, body = await desk.answer(sent)
            told = any(WRITE_TOKEN.encode() in part for part in (sent.query, sent.body, *map(b":".join, sent.headers)))
            assert told or WRITE_TOKEN.encode() not in body
        if desk.audit.tried:
            assert len(desk.audit.tried) == 1, "a form did something twice"
            assert sent.method == "POST"
            assert sent is not asked, "an act without a seal"
            assert desk.admission(sent).role == "write"
            await fill(await desk.upstream.client())

    _run(act, write=True)


@target("console-payload")
def payload(content: bytes) -> None:
    """Any payload and any headers can be shown."""
    block, data = as_message(content)
    mask = Mask(ConnectionOptions(_NOWHERE))
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


@target("prometheus")
def prometheus(content: bytes) -> None:
    """What answers in the place of a Prometheus: lines of figures, or MonitorError."""
    for status in (200, 400):
        try:
            found = Prometheus(f"http://{WHERE}:1")._read(status, content, SPANS["24h"].step)
        except MonitorError as error:
            str(error).encode()
            str(error.description).encode()
        else:
            assert len(found) <= 200
            assert all(value is None or isfinite(value) for line in found for _, value in line.points)


@target("beat")
def beat(content: bytes) -> None:
    """What a gateway remembers and its sign of life, a line each: a page shows it, or says that it cannot."""
    lines = [*content.split(b"\n"), b"", b"", b""]
    kept = dict(zip(("client.1", "sub.1", "pos.1", "beat"), lines, strict=False))
    clients, members, groups, sign = _read_known({name: item for name, item in kept.items() if item}, "test-cluster")
    backend: Any = SimpleNamespace(mask=Mask(ConnectionOptions(_NOWHERE)))
    shown: list[Any] = [_client(backend, item, members) for item in clients]
    shown += [_subscription(backend, item, groups, {}, number) for number, item in members.items()]
    json.dumps([*shown, bool(sign.get("released"))], allow_nan=False)
    read_sign(lines[3])
