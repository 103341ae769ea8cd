"""What the console keeps out: whoever has no token, what others wrote as markup, and every secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from urllib.parse import quote

from penstock.connection import Connection
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.browser import Browser, fill
from tests.live.visitor import publish_raw

# -- who is let in -----------------------------------------------------------------------------------------------------


def test_nothing_is_shown_without_the_token(browser: Browser):
    """Pages, twins and downloads all want the token, and say so in their own form; the style sheet does not."""
    for path in ("/", "/overview", "/streams", "/about", "/streams/X/messages/1/payload", "/nothing"):
        answer = browser.get(path, known=False)
        assert answer.status == 401, path
        assert "wants its token" in answer.text
        assert "nats://" not in answer.text, "not even where NATS is"
        assert browser.get(path, Authorization="Bearer wrong-wrong-wrong").status == 401
    twin = browser.get("/streams.json", known=False)
    assert (twin.status, twin.json()["error"]["kind"]) == (401, "Refused")
    assert browser.get("/static/console.css", known=False).status == 200
    for path in ("/static/..%2fapp.py", "/static/app.py"):
        assert (browser.get(path, known=False).status, browser.get(path).status) == (401, 404), path


def test_the_token_becomes_a_cookie_and_leaves_the_address(browser: Browser):
    """The printed address answers with a cookie and leads on to a page without the token in it."""
    answer = browser.get(f"/streams?offset=0&token={browser.token}", known=False)
    assert answer.status == 303
    assert answer.headers["location"] == "/streams?offset=0"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"penstock_console_{browser.port}=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert browser.get("/streams", known=False, Cookie=cookie.partition(";")[0]).status == 200
    assert browser.get("/streams?token=wrong", known=False).status == 401
    away = browser.get(f"//evil.example/x?token={browser.token}", known=False)
    assert away.headers["location"] == "/evil.example/x", "a token leads nobody to another site"


def test_a_name_that_was_made_to_lead_here_is_turned_away(browser: Browser):
    """A request under an unknown host name is refused, token or not: a rebound name shows nothing."""
    for host in ("evil.example", f"evil.example:{browser.port}", "127.0.0.1.evil.example", ""):
        assert browser.get("/overview", Host=host).status in (400, 421), host
    for host in (f"localhost:{browser.port}", "127.0.0.1", f"[::1]:{browser.port}"):
        assert browser.get("/about", Host=host).status == 200, host


def test_the_console_only_reads(browser: Browser):
    """Whatever would change something is refused, and HEAD answers without a body."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert browser.get("/streams", method=method, body=b"{}").status == 405, method
    head = browser.get("/streams", method="HEAD")
    assert (head.status, head.body) == (200, b"")


def test_every_answer_forbids_what_comes_from_elsewhere(browser: Browser):
    """Every answer, refusals included, has a policy that lets nothing in from elsewhere and no frame around it."""
    for path, has_token in (
        ("/overview", True),
        ("/overview.json", True),
        ("/overview", False),
        ("/static/console.js", True),
    ):
        headers = browser.get(path, known=has_token).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    assert not re.search(r"(src|href)=\"(https?:)?//", browser.get("/overview").text)


# -- what others wrote -------------------------------------------------------------------------------------------------


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u202e"


def test_nothing_that_others_wrote_becomes_part_of_a_page(browser: Browser, server: Server, unique: Callable[..., str]):
    """Names, subjects, descriptions, headers and payloads full of markup are shown as text on every page."""
    name = unique("E<b'\"&;#?%41")
    root = unique("evil")
    consumer = "c<i'\"&"
    notes = {"note": HOSTILE, "db_password": "hunter2"}

    async def work(client: Connection) -> None:
        await assets.add_stream(
            client,
            Stream(
                name=name,
                subjects=[f"{root}.>"],
                description=HOSTILE,
                metadata=notes,
            ),
        )
        await assets.add_consumer(client, name, Consumer(durable=consumer, description=HOSTILE))

    fill(server.url, work)
    subject = f"{root}.<script>alert(3)</script>".encode()
    publish_raw(
        server.url,
        subject,
        b'X-<b>Name</b>: "><script>alert(4)</script>\r\nNot-Text: \xff\xfe\r\nX-Msg-Id: <script>\r\n',
        b"</pre><script>alert(document.domain)</script>",
    )
    publish_raw(server.url, subject, b"", b'{"a": "</script><script>alert(5)</script>"}')
    publish_raw(server.url, subject, b"", b"\xff\x00<script>")
    there = quote(name, safe="")
    pages = ["/overview", "/streams", f"/streams/{there}", f"/streams/{there}/messages", "/consumers", "/transfers"]
    pages += [
        f"/streams/{there}/messages/{number}{form}" for number in (1, 2, 3) for form in ("", "?as=text", "?as=hex")
    ]
    pages += [f"/streams/{there}/consumers/{quote(consumer, safe='')}", "/pipelines"]
    pages += [
        f"/streams/{there}/messages?subject={quote(HOSTILE.split('<img')[0])}",
        f"/streams/{there}?x={quote(HOSTILE)}",
    ]
    for path in pages:
        text, _ = browser.both(path)
        tags = re.findall(r"<\s*(script|img|b|i)\b[^>]*>", text)
        assert tags.count("script") == 1 + ("messages?" in path), path  # our own
        assert tags.count("img") == 1, path  # the icon
        assert not {"b", "i"} & set(tags), path
        assert "onerror=alert" not in re.sub(r"&lt;[^<]*?&gt;", "", text), path
        assert "\u202e" not in text, path
        assert "hunter2" not in text, path
    assert "&lt;script&gt;alert(document.domain)&lt;/script&gt;" in browser.get(f"/streams/{there}/messages/1").text
    assert "hunter2" not in browser.get(f"/streams/{there}.json").text
    for path in (f"/streams/{there}", f"/streams/{there}/messages/1"):
        links = [unescape(link) for link in re.findall(r'href="(/[^"]*)"', browser.get(path).text)]
        assert any(link.startswith(f"{path}.json") for link in links)
        assert [link for link in links if browser.get(link).status != 200] == [], "every link leads somewhere"


def test_no_secret_reaches_a_page(browser: Browser, server: Server, unique: Callable[..., str]):
    """The server's token stands on no page, in no twin and no error, also where a message repeats it."""
    name = unique("SECRETS")
    token = server.token
    assert token is not None

    async def work(client: Connection) -> None:
        await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], description=f"with {token}"))
        await client.jetstream().publish(f"{name}.{token}", f"my token is {token}".encode(), headers={"Note": token})

    fill(server.url, work)
    base = f"/streams/{name}"
    paths = [
        "/overview",
        "/streams",
        base,
        f"{base}/messages",
        f"{base}/messages/1",
        "/about",
        "/consumers",
        "/pipelines",
    ]
    for path in paths:
        page, data = browser.both(path)
        for text in (page, json.dumps(data)):
            assert token not in text, path
            assert browser.token not in text, path
    assert token.encode() not in browser.get(f"{base}/messages/1/payload").body
    assert token.encode().hex(" ") not in browser.get(f"{base}/messages/1?as=hex").text
