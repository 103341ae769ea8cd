"""The console as an ASGI application: one route a page, one for its JSON twin, and an entrance before all of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.access import ADMISSION, HEADERS, NOBODY, Access, is_same_site, may_act
from penstock.console.audit import Audit
from penstock.console.backend import Backend, Data, Download, Page, PageRequest
from penstock.console.charts import plot
from penstock.console.formatting import FILTERS
from penstock.console.live import Feed, Painted, wants_events
from penstock.console.metrics import metrics
from penstock.console.pages import DOWNLOADS, PAGES
from penstock.console.tables import turn
from penstock.errors import DeadlineError, InputError, JetStreamError, LinkError, NotFoundError, PenstockError

__all__ = ["build_app"]

log = logging.getLogger("penstock.console")

HERE = Path(__file__).parent
_FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "search.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_READING = ("GET", "HEAD")
_REFUSALS = {
    400: ("This is not an address of a page.", "Write what is not ASCII as %NN, as browsers do."),
    401: (
        "This console wants its token.",
        "Open the address that the command printed, or send the header Authorization: Bearer TOKEN.",
    ),
    403: (
        "You may look here, and not act; or another page sent this.",
        "Open the address for acting, which the command printed, and begin on a page of the console.",
    ),
    404: ("There is no such page.", "The menu leads to those that are there."),
    405: ("The console only reads.", "Use the penstock command to change things."),
    421: (
        "This console is not known under that name.",
        "Use the address that the command printed; penstock console --name lets another name in.",
    ),
}
_AGAIN = 3.0  # seconds after which a page that failed is asked for again


def build_app(backend: Backend, access: Access, audit: Audit | None = None) -> ASGIApp:
    """Make the application; acts are part of it only if somebody may act."""
    painter = Painter(backend)
    routes = [Route("/", _home), Route("/static/{name}", _static), Route("/metrics", partial(metrics, backend.survey))]
    routes += [Route(f"{page.path}.json", partial(painter.twin, page)) for page in PAGES]
    routes += [Route(path, partial(painter.download, build)) for path, build in DOWNLOADS.items()]
    routes += [Route(page.path, partial(painter.page, page)) for page in PAGES]
    if access.write_token is not None:
        from penstock.console.act_pages import ActPages, act_link, acts_of

        routes += ActPages(painter, audit or Audit()).routes()
        painter.templates.globals.update(act_link=act_link, acts_of=acts_of)
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
        self.feeds: set[Feed] = set()
        """Open pages that are told what changes."""
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
        self.templates.globals.update(plot=plot, turn=turn, may_act=may_act)
        self.templates.globals["menu"] = [page for page in PAGES if page.menu]

    # -- endpoints ---------------------------------------------------------------------------------------------------

    async def page(self, page: Page, request: Request) -> Response | Feed:
        """Answer with a page, or with what changes on it as long as somebody looks."""
        if page.refresh and request.method == "GET" and wants_events(request.headers.get("accept", "")):
            return self._feed(page, request)
        data, status = await self._build(page.build, request)
        if status != 200:
            return self.failed(data, status, request.url.path, query=request.query_params.multi_items())
        return html_response(self._painted(page, request, data))

    def _feed(self, page: Page, request: Request) -> Response | Feed:
        # Each feed keeps a connection; at least half of them are for those who ask.
        if len(self.feeds) >= max(1, self.backend.settings.connections // 2):
            return json_response(
                self._error("Refused", "Too many pages are open.", "Close some, or turn live off."), 503
            )

        async def paint() -> Painted:
            data, status = await self._build(page.build, request)
            return (None, data["error"]) if status != 200 else (self._painted(page, request, data), {})

        return Feed(paint, page.refresh, self.backend.closing, self.feeds)

    def _painted(self, page: Page, request: Request, data: Data) -> str:
        path = asked_path(request)
        twin = f"{path}.json" + (f"?{request.url.query}" if request.url.query else "")
        return self.paint(
            f"{page.name}.html",
            data,
            page=page,
            path=path,
            twin=twin,
            query=request.query_params.multi_items(),
            refresh=page.refresh,
            title=page.title,
        )

    async def twin(self, page: Page, request: Request) -> Response:
        """Answer with a page's JSON twin."""
        return json_response(*await self._build(page.build, request))

    async def download(
        self, build: Callable[[Backend, PageRequest], Awaitable[Download]], request: Request
    ) -> Response:
        """Give a file, which no browser opens by itself."""
        data, status = await self._build(build, request)
        if status != 200:
            return self.failed(data, status, request.url.path)
        headers = {"content-disposition": f'attachment; filename="{data.name}"'}
        kind = Response if isinstance(data.content, bytes) else StreamingResponse
        return kind(data.content, media_type="application/octet-stream", headers=headers)

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
        except (PenstockError, TimeoutError) as error:
            return self.trouble(error)
        except Exception:
            log.exception("The page %s failed.", request.url.path)
            return self._error("Exception", "The console made a mistake.", "Its log in the terminal tells more."), 500

    async def _in_time(self, making: asyncio.Task[Any]) -> Any:
        """Wait for a page; DeadlineError if the console is ending, TimeoutError if it takes too long."""
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

    def trouble(self, error: PenstockError | TimeoutError) -> tuple[Data, int]:
        """Say what went wrong, and with which status."""
        if isinstance(error, PenstockError):
            return self._error(type(error).__name__, error.what, error.remedy), _status(error)
        what = f"NATS did not answer everything within {self.backend.settings.page_timeout:g} s."
        return self._error("DeadlineError", what, "The server may be busy, or far away."), 504

    def _error(self, kind: str, what: str, remedy: str) -> Data:
        mask = self.backend.mask
        return {"error": {"kind": kind, "what": mask.text(what), "remedy": mask.text(remedy)}}

    # -- responses ---------------------------------------------------------------------------------------------------

    def paint(self, template: str, data: Data, **about: Any) -> str:
        """Make the HTML of a page; whoever was not let in does not learn where NATS is."""
        where = self.backend.upstream.options.url if ADMISSION.get().how == "in" else ""
        return self.templates.get_template(template).render(data=data, server=where, **about)

    def failed(
        self, data: Data, status: int, path: str, *, query: list[tuple[str, str]] | None = None, again: bool = True
    ) -> Response:
        """Paint what went wrong; the page asks again by itself where that may help, if it is one that may."""
        wait = _AGAIN if again and status in (502, 503, 504) else 0.0
        about = {"page": None, "path": path, "twin": None, "query": query or [], "refresh": wait, "title": "Not now"}
        return html_response(self.paint("failed.html", data, **about), status)

    async def missing(self, request: Request, error: Exception) -> Response:
        """Say that there is no such page."""
        return self.refused(404, request.url.path)

    def refused(self, status: int, path: str) -> Response:
        """Turn a request away."""
        what, remedy = _REFUSALS[status]
        kind = "NotFoundError" if status == 404 else "Refused"
        data = {"error": {"kind": kind, "what": what, "remedy": remedy}}
        return json_response(data, status) if path.endswith(".json") else self.failed(data, status, path)


def html_response(text: str, status: int = 200) -> Response:
    """Give a page; what others wrote may hold half a character, which cannot be written."""
    return Response(text.encode("utf-8", "replace"), status_code=status, media_type="text/html; charset=utf-8")


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
        ADMISSION.set(NOBODY)  # of this request; whoever asked before on this connection may have been let in
        if (scope["raw_path"] + scope["query_string"]).isascii():
            answer = self._refusal(request)
        else:  # a browser would have quoted it, and nobody can say what text it is
            answer = self.painter.refused(400, "/")
        await (answer or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        path = request.url.path
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            return self.painter.refused(421, path)
        acting = path.startswith("/act/") and self.access.write_token is not None
        if request.method not in _READING and not (acting and request.method == "POST"):
            return self.painter.refused(405, path)
        if path.startswith("/static/") and path.removeprefix("/static/") in _FILES:
            return None  # nothing there is anybody's secret, and the page that asks for the token needs it
        cookie = cookie_name(request)
        admission = self.access.admit(
            query=request.query_params,
            cookie=request.cookies.get(cookie),
            authorization=request.headers.get("authorization"),
        )
        ADMISSION.set(admission)
        posted = request.method not in _READING
        if admission.how == "in":
            said = {"origin": request.headers.get("origin"), "fetch_site": request.headers.get("sec-fetch-site")}
            allowed = admission.role == "write" and (not posted or is_same_site(admission, host=hosts[0], **said))
            return self.painter.refused(403, path) if acting and not allowed else None
        if admission.how == "out" or posted:
            return self.painter.refused(401, path)
        # The token leaves the address at once, so that it stands in no history and no picture of the screen.
        rest = [(name, value) for name, value in request.query_params.multi_items() if name not in ("token", "code")]
        place = ("/" + asked_path(request).lstrip("/\\")) + (f"?{urlencode(rest)}" if rest else "")
        entering = RedirectResponse(place, status_code=303)
        # Lax: an address that is clicked in a mail or in a terminal must work, and who reads changes nothing.
        site: Literal["lax", "strict"] = "strict" if admission.role == "write" else "lax"
        entering.set_cookie(cookie, self.access.cookie(admission.role), httponly=True, samesite=site, path="/")
        return entering


def asked_path(request: Request) -> str:
    """Give the path as it was asked for: names may hold what means something else once it is decoded."""
    raw: bytes = request.scope["raw_path"]
    return raw.decode("ascii", "replace")


def cookie_name(request: Request) -> str:
    """Name the cookie after the port: browsers send cookies of one port to all others of the same host."""
    server = request.scope.get("server") or ("", 0)
    return f"penstock_console_{server[1]}"
