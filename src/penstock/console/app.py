"""The console as an ASGI application: one route a page, one for its JSON twin, and an entrance before all of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.access import HEADERS, Access
from penstock.console.backend import Backend, Data, Page, PageRequest
from penstock.console.formatting import FILTERS
from penstock.console.messages import payload
from penstock.console.pages import PAGES
from penstock.errors import DeadlineError, InputError, JetStreamError, LinkError, NotFoundError, PenstockError

__all__ = ["build_app"]

log = logging.getLogger("penstock.console")

HERE = Path(__file__).parent
_FILES = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_READING = ("GET", "HEAD")
_REFUSALS = {
    401: (
        "This console wants its token.",
        "Open the address that the command printed, or send the header Authorization: Bearer TOKEN.",
    ),
    404: ("There is no such page.", "The menu leads to those that are there."),
    405: ("The console only reads.", "Use the penstock command to change things."),
    421: (
        "This console is not known under that name.",
        "Use the address that the command printed; penstock console --name lets another name in.",
    ),
}
_AGAIN = 3.0  # seconds after which a page that failed is asked for again


def build_app(backend: Backend, access: Access) -> ASGIApp:
    """Make the application."""
    painter = Painter(backend)
    routes = [Route("/", _home), Route("/static/{name}", _static)]
    routes += [Route(f"{page.path}.json", partial(painter.twin, page)) for page in PAGES]
    # The payload comes before its message: the longer path is the more exact one.
    routes.append(Route("/streams/{stream}/messages/{sequence}/payload", painter.download))
    routes += [Route(page.path, partial(painter.page, page)) for page in PAGES]
    return Entrance(Starlette(routes=routes, exception_handlers={404: painter.missing}), access, painter)


async def _home(request: Request) -> Response:
    return RedirectResponse("/overview", status_code=307)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return Response("There is no such file.", status_code=404, media_type="text/plain")
    content = (HERE / "static" / name).read_bytes()
    return Response(content, media_type=_FILES[name])


class Painter:
    """Makes responses of pages: HTML through templates that escape everything, or JSON."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.turn = asyncio.Semaphore(backend.settings.pages)
        # No file of ours is HTML by another name: everything that comes in is escaped.
        self.templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(FILTERS)
        self.templates.globals["menu"] = [page for page in PAGES if page.menu]

    # -- endpoints ---------------------------------------------------------------------------------------------------

    async def page(self, page: Page, request: Request) -> Response:
        """Answer with a page."""
        data, status = await self._build(page.build, request)
        if status != 200:
            return self.failed(data, status, request.url.path)
        path = asked_path(request)
        twin = f"{path}.json" + (f"?{request.url.query}" if request.url.query else "")
        return self.html(
            f"{page.name}.html", data, page=page, path=path, twin=twin, refresh=page.refresh, title=page.title
        )

    async def twin(self, page: Page, request: Request) -> Response:
        """Answer with a page's JSON twin."""
        return json_response(*await self._build(page.build, request))

    async def download(self, request: Request) -> Response:
        """Give a payload as a file, which no browser opens by itself."""
        data, status = await self._build(payload, request)
        if status != 200:
            return self.failed(data, status, request.url.path)
        sequence = request.path_params["sequence"]
        headers = {"content-disposition": f'attachment; filename="message-{sequence}.bin"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _build(
        self, build: Callable[[Backend, PageRequest], Awaitable[Any]], request: Request
    ) -> tuple[Any, int]:
        """Make the content of a page, or say what went wrong and with which status."""
        asked = PageRequest(request.path_params, request.query_params)

        async def in_turn() -> Any:
            async with self.turn:
                return await build(self.backend, asked)

        try:
            return await self._in_time(asyncio.create_task(in_turn())), 200
        except PenstockError as error:
            return self._error(type(error).__name__, error.what, error.remedy), _status(error)
        except TimeoutError:
            what = f"NATS did not answer everything within {self.backend.settings.page_timeout:g} s."
            return self._error("DeadlineError", what, "The server may be busy, or far away."), 504
        except Exception:
            log.exception("The page %s failed.", request.url.path)
            return self._error("Exception", "The console made a mistake.", "Its log in the terminal tells more."), 500

    async def _in_time(self, making: asyncio.Task[Any]) -> Any:
        """Wait for a page; DeadlineError where the console is ending, TimeoutError where it takes too long."""
        closing = asyncio.create_task(self.backend.closing.wait())
        try:
            await asyncio.wait(
                [making, closing], timeout=self.backend.settings.page_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if making.done():
                return making.result()
            if closing.done():
                raise DeadlineError("The console is ending.", remedy="Start it again: penstock console.")
            raise TimeoutError
        finally:
            closing.cancel()
            if not making.done():
                making.cancel()
                await asyncio.gather(making, return_exceptions=True)

    def _error(self, kind: str, what: str, remedy: str) -> Data:
        mask = self.backend.mask
        return {"error": {"kind": kind, "what": mask.text(what), "remedy": mask.text(remedy)}}

    # -- responses ---------------------------------------------------------------------------------------------------

    def html(self, template: str, data: Data, *, status: int = 200, **about: Any) -> Response:
        """Paint a page; who is turned away at the entrance does not learn where NATS is."""
        server = "" if status in (401, 405, 421) else self.backend.upstream.options.url
        text = self.templates.get_template(template).render(data=data, server=server, **about)
        # What others wrote may hold half a character, which cannot be written.
        return Response(text.encode("utf-8", "replace"), status_code=status, media_type="text/html; charset=utf-8")

    def failed(self, data: Data, status: int, path: str) -> Response:
        """Paint what went wrong; the page asks again by itself where that may help."""
        again = _AGAIN if status in (502, 503, 504) else 0.0
        return self.html(
            "failed.html", data, status=status, page=None, path=path, twin=None, refresh=again, title="Not now"
        )

    async def missing(self, request: Request, error: Exception) -> Response:
        """Say that there is no such page."""
        return self.refused(404, request.url.path)

    def refused(self, status: int, path: str) -> Response:
        """Turn a request away."""
        what, remedy = _REFUSALS[status]
        kind = "NotFoundError" if status == 404 else "Refused"
        data = {"error": {"kind": kind, "what": what, "remedy": remedy}}
        return json_response(data, status) if path.endswith(".json") else self.failed(data, status, path)


def json_response(data: Data, status: int = 200) -> Response:
    """Give data as JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=True)  # half a character is written as it was read
    return Response(text + "\n", status_code=status, media_type="application/json")


def _status(error: PenstockError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, InputError):
        return 400
    if isinstance(error, LinkError | DeadlineError):
        return 503
    # A cluster without a leader says 503 of itself.
    return 503 if isinstance(error, JetStreamError) and error.code == 503 else 502


class Entrance:
    """Stands before the application: the name, the method and the token of a request, and the headers of an answer."""

    def __init__(self, app: ASGIApp, access: Access, painter: Painter) -> None:
        self.app = app
        self.access = access
        self.painter = painter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope, receive)
        answer = self._refusal(request)
        await (answer or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        path = request.url.path
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            return self.painter.refused(421, path)
        if request.method not in _READING:
            return self.painter.refused(405, path)
        if path.startswith("/static/"):
            return None  # nothing there is anybody's secret, and the page that asks for the token needs it
        cookie = cookie_name(request)
        admission = self.access.admit(
            query=request.query_params,
            cookie=request.cookies.get(cookie),
            authorization=request.headers.get("authorization"),
        )
        if admission == "in":
            return None
        if admission == "out":
            return self.painter.refused(401, path)
        # The token leaves the address at once, so that it stands in no history and no picture of the screen.
        rest = [(name, value) for name, value in request.query_params.multi_items() if name not in ("token", "code")]
        place = ("/" + asked_path(request).lstrip("/\\")) + (f"?{urlencode(rest)}" if rest else "")
        entering = RedirectResponse(place, status_code=303)
        # Lax: an address that is clicked in a mail or in a terminal must work, and there is nothing here to change.
        entering.set_cookie(cookie, self.access.token, httponly=True, samesite="lax", path="/")
        return entering


def asked_path(request: Request) -> str:
    """Give the path as it was asked for: names may hold what means something else once it is decoded."""
    raw: bytes = request.scope["raw_path"]
    return raw.decode("ascii", "replace")


def cookie_name(request: Request) -> str:
    """Name the cookie after the port: browsers send cookies of one port to all others of the same host."""
    server = request.scope.get("server") or ("", 0)
    return f"penstock_console_{server[1]}"
