"""The entrance of the console, asked in this process: what no honest browser sends, and what nobody may learn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.console import Console
from penstock.console import access as access_module
from penstock.console.access import HEADERS
from penstock.console.pages import PAGES
from penstock.console.settings import Settings
from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.browser import Browser
from tests.live.visitor import PORT, Visitor, visiting

NOWHERE = "nats://somebody:a-password-of-theirs@127.0.0.1:1"
PATHS = [page.path.format(stream="S", consumer="c", sequence=1, bucket="B", cluster="C") for page in PAGES]


@pytest.fixture
async def stranger() -> AsyncIterator[Visitor]:
    """One who looks at a console whose NATS is away: what happens at the entrance needs none."""
    async with visiting(NOWHERE, Settings(timeout=0.2, names=("console.example.com",))) as made:
        yield made


async def test_no_path_is_open_without_the_token(stranger: Visitor):
    """Every page, twin and download is closed, in its own form, and tells neither token nor where NATS is."""
    paths = [*PATHS, *(f"{path}.json" for path in PATHS), "/streams/S/messages/1/payload", "/", "/x", "/%2e%2e/", "//"]
    paths += ["/static/", "/static/x", "/static/console.css/x", "/static/../overview", "/static/%2e%2e/overview"]
    for path in paths:
        for method in ("GET", "HEAD"):
            answer = await stranger.get(path, known=False, method=method)
            assert answer.status == 401, path
            assert answer.headers["content-type"].startswith(
                "application/json" if path.endswith(".json") else "text/html"
            ), path
            for secret in (stranger.access.token, "127.0.0.1:1", "a-password-of-theirs", "nats://"):
                assert secret not in answer.text, (path, secret)
            assert "set-cookie" not in answer.headers


async def test_a_method_that_changes_things_is_refused_and_learns_nothing(stranger: Visitor):
    """Whoever posts without the token gets 405, and does not see on the way where NATS is."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "BREW"):
        for known in (True, False):
            answer = await stranger.get("/streams", method=method, known=known)
            assert answer.status == 405, method
            assert "127.0.0.1:1" not in answer.text, method
        assert (await stranger.get("/streams.json", method=method)).json()["error"]["kind"] == "Refused"


async def test_an_address_that_is_not_ascii_tells_a_stranger_nothing(stranger: Visitor):
    """It is refused before anybody looks at the token, so nobody learns by it where NATS is."""
    for known in (True, False):
        answer = await stranger.get("/overview?name=é", known=known)
        assert (answer.status, "127.0.0.1:1" in answer.text) == (400, False)
    assert "127.0.0.1:1" in (await stranger.get("/nowhere")).text
    assert "127.0.0.1:1" not in (await stranger.get("/nowhere", known=False)).text


async def test_a_name_that_is_not_ours_is_refused_before_anything_else(stranger: Visitor):
    """Without a host name, with two, or with a foreign one, not even the right token gets an answer."""
    right = (b"host", b"localhost")
    assert (await stranger.get("/about", host=None)).status == 421
    assert (await stranger.get("/about", host=None, more=[right, right])).status == 421
    assert (await stranger.get("/about", host=None, more=[right, (b"host", b"evil.example")])).status == 421
    for name in (
        "evil.example",
        "127.0.0.1@evil.example",
        "127.0.0.1\\.evil.example",
        "localhost/",
        "0x7f.1.evil",
        "::1",
    ):
        answer = await stranger.get(f"/about?token={stranger.access.token}", host=name)
        assert (answer.status, answer.headers.get("set-cookie")) == (421, None), name
        assert "127.0.0.1:1" not in answer.text
    for name in ("console.example.com", "CONSOLE.example.com:443", "console.example.com.", "[::1]", "10.1.2.3:99"):
        assert (await stranger.get("/about", host=name)).status == 200, name
    assert (await stranger.get("/static/console.css", host="evil.example", known=False)).status == 421


async def test_the_cookie_of_another_console_does_not_count(stranger: Visitor):
    """The cookie is named after the port; the token in a cookie of another name, or half of it, stays outside."""
    token, name = stranger.access.token, f"penstock_console_{PORT}"
    for cookie, status in (
        (f"{name}={token}", 200),
        (f"a=b; {name}={token}; c=d", 200),
        (f"penstock_console_{PORT + 1}={token}", 401),
        (f"{name}={token[:-1]}", 401),
        (f"{name}=", 401),
        (f"{name}; {token}", 401),
        (f"{name}=wrong; {name.upper()}={token}", 401),
        ("=;;=;", 401),
    ):
        assert (await stranger.get("/about", known=False, cookie=cookie)).status == status, cookie


async def test_the_bearer_token_is_read_as_browsers_and_programs_write_it(stranger: Visitor):
    """The scheme has no case and spaces may surround the token; another scheme, or more behind it, is wrong."""
    token = stranger.access.token
    for shown, status in (
        (f"bearer {token}", 200),
        (f"BEARER  {token} ", 200),
        (f"Bearer {token} extra", 401),
        (f"Token {token}", 401),
        (token, 401),
        ("Bearer", 401),
        ("", 401),
    ):
        assert (await stranger.get("/about", authorization=shown)).status == status, shown


async def test_the_token_leaves_the_address_and_the_rest_stays(stranger: Visitor):
    """The answer to the printed address leads to the same page with the other words of the question, encoded anew."""
    token = stranger.access.token
    for asked, leads in (
        (f"/?token={token}", "/"),
        (f"/streams/A%2FB?token={token}&x=1", "/streams/A%2FB?x=1"),
        (f"/streams?a=%0d%0aX&token={token}&a=2", "/streams?a=%0D%0AX&a=2"),
        (f"/streams?token=wrong&token={token}", "/streams"),
        (f"//evil.example/?token={token}", "/evil.example/"),
        (f"/\\evil.example?token={token}", "/evil.example"),
        (f"/%2f%2fevil.example?token={token}", "/%2f%2fevil.example"),
        (f"/overview.json?token={token}", "/overview.json"),
    ):
        answer = await stranger.get(asked, known=False)
        assert (answer.status, answer.headers["location"]) == (303, leads), asked
        assert answer.headers["set-cookie"].startswith(f"penstock_console_{PORT}={token}; "), asked
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert answer.body == b""
    assert (await stranger.get(f"/streams?token={token}&token=wrong", known=False)).status == 401, "the last one counts"


async def test_a_code_is_good_once_and_for_a_minute(stranger: Visitor, monkeypatch: pytest.MonkeyPatch):
    """A code opens one browser; used, late or replaced by a newer one it opens none, and a page still asks for one."""
    first, second = stranger.access.code(), stranger.access.code()
    assert (await stranger.get(f"/?code={first}", known=False)).status == 401
    assert (await stranger.get(f"/?code={second}", known=False)).status == 401, "a wrong guess used it up"
    third = stranger.access.code()
    answer = await stranger.get(f"/streams?code={third}", known=False)
    assert (answer.status, answer.headers["location"]) == (303, "/streams")
    assert (await stranger.get(f"/about?code={third}", known=False)).status == 401
    assert (await stranger.get(f"/about?code={third}")).status == 200, "who is in already stays in"
    late = stranger.access.code()
    now = access_module.time.monotonic()
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now + 61)
    assert (await stranger.get(f"/?code={late}", known=False)).status == 401


async def test_every_answer_carries_the_same_policy(stranger: Visitor):
    """Pages, twins, errors, refusals, redirects and files all forbid frames, sniffing, caches and foreign content."""
    token = stranger.access.token
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/about", {}),
        ("/about.json", {}),
        ("/overview", {}),
        ("/nothing", {}),
        ("/", {}),
        ("/streams/", {}),
        ("/about", {"known": False}),
        ("/about", {"method": "POST"}),
        ("/about", {"host": "evil.example"}),
        (f"/?token={token}", {"known": False}),
        ("/static/console.js", {"known": False}),
        ("/static/nothing", {"known": False}),
        ("/streams/S/messages/1/payload", {}),
    ]
    seen = set()
    for path, more in asked:
        answer = await stranger.get(path, **more)
        seen.add(answer.status)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
    assert seen == {200, 303, 307, 401, 404, 405, 421, 503}


async def test_files_of_the_console_and_no_others(stranger: Visitor):
    """Style, script and icon are served with their types to everybody; nothing else is, however it is written."""
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answer = await stranger.get(f"/static/{name}", known=False)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        assert answer.body
    for name in (
        "app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "../app.py",
        "console.css/",
        "CONSOLE.CSS",
        "",
        "console.css%00",
    ):
        answer = await stranger.get(f"/static/{name}", known=False)
        assert answer.status != 200, name
        assert b"import" not in answer.body, name


async def test_what_is_no_http_request_is_let_be(stranger: Visitor):
    """A websocket, or the messages of a server's own life, get nothing from the application."""
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    for kind in ("websocket", "lifespan"):
        await stranger.app({"type": kind, "path": "/", "headers": []}, receive, send)
    assert said == []


async def test_one_who_knows_the_token_of_one_console_knows_no_other(server: Server):
    """Two consoles of the same server have tokens of their own."""
    async with visiting(server.url) as one, visiting(server.url) as other:
        assert one.access.token != other.access.token
        assert (await other.get("/about", authorization=f"Bearer {one.access.token}")).status == 401


# -- the console that listens ------------------------------------------------------------------------------------------


async def test_a_console_starts_once():
    """Before its start a console has no address; it starts once, and keeps its address after the end."""
    console = Console(ConnectionOptions(NOWHERE), token="a-token-of-my-own-123")
    with pytest.raises(PenstockError, match="not started"):
        _ = console.url
    async with console:
        address = console.address
        assert console.url == f"{address}/?token=a-token-of-my-own-123"
        with pytest.raises(PenstockError, match="started before"):
            await console.start()
        assert (await asyncio.to_thread(Browser(console.url).get, "/about")).status == 200
    assert console.address == address
    with pytest.raises(PenstockError, match="started before"):
        await console.start()
    await console.stop()


async def test_the_address_is_one_that_a_browser_can_open():
    """Listening everywhere prints an address of this machine; a name that was asked for stays a name."""
    for host, shown in (
        ("0.0.0.0", "http://127.0.0.1:"),
        ("localhost", "http://localhost:"),
        ("127.0.0.2", "http://127.0.0.2:"),
    ):
        async with Console(ConnectionOptions(NOWHERE), Settings(host=host)) as console:
            assert console.address.startswith(shown)
            assert (await asyncio.to_thread(Browser(console.url).get, "/about")).status == 200


def flood(browser: Browser) -> int:
    """Send a header without end, and give how many bytes left us before the console hung up."""
    sent = 0
    with socket.create_connection((browser.host, browser.port), timeout=20) as link:
        link.sendall(b"GET /about HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        try:
            while sent < 2**30:
                sent += link.send(b"x" * 65536)
        except ConnectionError:
            return sent
    return sent


async def test_a_header_without_end_is_cut_off():
    """A request that never comes to its end takes no room: its connection is closed, and the next visitor is served."""
    async with Console(ConnectionOptions(NOWHERE), Settings(idle=60.0)) as console:
        browser = Browser(console.url)
        assert await asyncio.to_thread(flood, browser) < 2**26
        assert (await asyncio.to_thread(browser.get, "/about")).status == 200
