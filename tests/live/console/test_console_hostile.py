"""What others can store in NATS to harm whoever looks: markup, bytes that are no text, names without end, secrets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock import console
from penstock.console.settings import Settings
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.markers import Head, MarkerSubjects
from tests.live.visitor import Visitor, publish_raw, visiting

Unique = Callable[..., str]

# What our own templates write; whatever else stands in a page came from outside.
OURS = "".join(path.read_text() for path in (Path(console.__file__).parent / "templates").glob("*.html"))
TAGS = frozenset(re.findall(r"<([a-z0-9]+)", OURS))
ATTRIBUTES = frozenset(name.lower() for name in re.findall(r"[\s}]([a-zA-Z-]+)=\"", OURS)) | {
    "checked",
    "data-live",
    "data-turn",
    "defer",
    "download",
    "hidden",
    "open",
}


class Reader(HTMLParser):
    """Reads a page as a browser would, and keeps what it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_page(text: str) -> Reader:
    """Read a page; it has nothing but our own tags, links that stay here, and no character that acts unseen."""
    page = Reader(text)
    assert set(page.tags) <= TAGS
    scripts = [value for name, value in page.attributes if name == "src" and value.endswith(".js")]
    assert page.tags.count("script") == len(scripts)
    assert scripts in (["/static/console.js"], ["/static/console.js", "/static/search.js"])
    assert page.tags.count("img") == 1
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    for name, value in page.attributes:
        if name in ("href", "src"):
            assert value == "#main" or re.match(r"[/?](?!/)", value), value
    shown = "".join(page.words)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", shown)
    return page


MARKUP = [
    b"<script>alert(1)</script>",
    b"</pre></main><script>alert(1)</script>",
    b"<img src=x onerror=alert(1)>",
    b'"><svg onload=alert(1)>',
    b"{{ 7 * 7 }}{% include 'about.html' %}",
    b"javascript:alert(1)",
    b"&lt;b&gt;&#60;i&#62;",
    b"<!-- --><![CDATA[<b>]]><!doctype html>",
    b'{"<script>alert(1)</script>": ["</script>", "<img src=x>"]}',
    "\u202e\u2066txt.exe\ufeff\u200b\x07\x1b[31mred\x1b[0m".encode(),
    b"\xff\xfe<\x00s\x00c\x00r\x00i\x00p\x00t\x00>\x00",
    b"+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
]


@pytest.mark.parametrize("body", MARKUP, ids=range(len(MARKUP)))
async def test_a_payload_is_text_in_every_form(visitor: Visitor, unique: Unique, body: bytes):
    """Whatever a payload or a header says, every form of its page has our own tags alone, and the download is exact."""
    name = unique("MARKUP")
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    one_line = body.replace(b"\r", b"").replace(b"\n", b"")
    publish_raw(visitor_url(visitor), name.encode(), b"X-Say: " + one_line + b"\r\n", body)
    base = f"/streams/{name}"
    for form in ("", "?as=json", "?as=text", "?as=hex"):
        text, data = await visitor.both(f"{base}/messages/1{form}")
        check_page(text)
        assert base64.b64decode(data["data"]) == body
        assert data["form"] in data["forms"]
    for path in (base, f"{base}/messages", "/overview", "/streams"):
        check_page((await visitor.get(path)).text)
    file = await visitor.get(f"{base}/messages/1/payload")
    assert (file.body, file.headers["content-type"]) == (body, "application/octet-stream")
    assert file.headers["content-disposition"] == 'attachment; filename="message-1.bin"'


def visitor_url(visitor: Visitor) -> str:
    """Give the address with its token: what the visitor's own connection was made with."""
    options = visitor.backend.upstream.options
    return options.url.replace("://", f"://{options.token}@", 1)


async def test_names_and_subjects_are_text_wherever_they_stand(visitor: Visitor, unique: Unique):
    """Streams, consumers, subjects, filters and descriptions full of markup are shown as they are on every page."""
    evil = "<b\tonclick=alert(1)>'\"&;{{7*7}}"
    plain = "<b'\"&;{{7+7}}"  # a name has no spaces, stars or >
    name, root, consumer = unique(f"E{plain}"), unique("evil"), f"c{plain}"
    client = await visitor.nats()
    subject = f"{root}.<script>{plain}</script>"
    stream = Stream(name=name, subjects=[f"{root}.>"], description=evil, metadata={evil: evil})
    await assets.add_stream(client, stream)
    await assets.add_consumer(client, name, Consumer(durable=consumer, filter_subject=subject, description=evil))
    publish_raw(visitor_url(visitor), subject.encode(), b"X-Msg-Id: " + evil.encode() + b"\r\n", evil.encode())
    there, who = quote(name, safe=""), quote(consumer, safe="")
    paths = ["/overview", "/streams", "/consumers", "/transfers", "/pipelines", f"/streams/{there}"]
    paths += [f"/streams/{there}/messages", f"/streams/{there}/messages/1", f"/streams/{there}/consumers/{who}"]
    paths += [f"/streams/{there}/messages?subject={quote(subject)}"]
    for path in paths:
        text, _ = await visitor.both(path)
        page = check_page(text)
        if path.startswith(f"/streams/{there}"):
            assert name in "".join(page.words), path
            assert not {"49", "14"} & {word.strip() for word in page.words}, "no template is made of what others wrote"
        links = {value for key, value in page.attributes if key == "href" and there in value}
        for link in links - {f"/streams/{there}/messages/2"}:  # the message behind the last one is not there yet
            assert (await visitor.get(link)).status == 200, link
    data = await visitor.twin(f"/streams/{there}/consumers/{who}")
    assert (data["consumer"]["name"], data["consumer"]["filter"]) == (consumer, [subject])


async def test_a_question_with_markup_is_answered_as_text(visitor: Visitor, unique: Unique):
    """What an address asks for comes back as text: in errors, in the form's field and in the link to the twin."""
    name = unique("ASKING")
    await assets.add_stream(await visitor.nats(), Stream(name=name, subjects=[name]))
    evil = quote('"><script>alert(1)<img src=x onerror=alert(1)>')
    for path, status in (
        (f"/streams/{evil}", 400),
        (f"/streams/{name}/consumers/{evil}", 400),
        (f"/streams/{name}/messages/{evil}", 400),
        (f"/streams/{name}/messages/1?as={evil}", 400),
        (f"/streams?offset={evil}", 400),
        (f"/{evil}", 404),
        (f"/streams/{name}/messages?subject={evil.replace('%20', '')}", 200),
        (f"/streams/{name}?{evil}={evil}", 200),
        (f"/streams/{name}/messages?before=&from={evil}", 400),
        (f"/streams/{name}/messages?text={evil}&header=X-{evil.replace('%20', '').replace('%3A', '')}", 200),
        (f"/streams/{name}/tail?text={evil}", 200),
        (f"/buckets/keys/{evil}", 400),
        (f"/buckets/keys/B/entry?key={evil}", 400),
        (f"/buckets/objects/{evil}", 400),
        (f"/channels/{evil}", 400),
        (f"/dead-letters/{evil}", 400),
        (f"/dead-letters/{name}?of={evil}", 400),
        (f"/pipelines/one?name={evil}", 404),
    ):
        answer = await visitor.get(path)
        assert answer.status == status, path
        check_page(answer.text)


async def test_headers_of_any_kind_are_listed(visitor: Visitor, unique: Unique):
    """Headers that are no text, come twice, have no value or no end are listed or cut, and their number is told."""
    name = unique("HEADERS")
    await assets.add_stream(await visitor.nats(), Stream(name=name, subjects=[name]))
    lines = [b"Twice: 1", b"Twice: 2", b"Empty:", b"Bytes: \xff\xfe\x80", b"Colon: a:b: c", b"Long: " + b"x" * 5000]
    lines += [b"%d: n" % number for number in range(200)]
    publish_raw(visitor_url(visitor), name.encode(), b"\r\n".join(lines) + b"\r\n", b"")
    text, data = await visitor.both(f"/streams/{name}/messages/1")
    page = check_page(text)
    found = [(item["name"], item["value"]) for item in data["headers"]]
    assert found[:3] == [("Twice", "1"), ("Twice", "2"), ("Empty", "")]
    assert found[3] == ("Bytes", "\ufffd\ufffd\ufffd")
    assert found[4] == ("Colon", "a:b: c")
    assert found[5] == ("Long", "x" * 5000)
    assert len(found) == 206
    assert "And 106 more." in text
    assert max(len(word) for word in page.words) <= 1000
    assert (await visitor.twin(f"/streams/{name}/messages"))["messages"][0]["headers"] == 205


async def test_a_subject_without_end_is_cut_on_pages_and_whole_in_twins(visitor: Visitor, unique: Unique):
    """A subject of three thousand characters leaves its table readable; the twin has all of it."""
    root = unique("deep")
    subject = f"{root}.{'.'.join(['token' * 20] * 30)}"
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=root, subjects=[f"{root}.>"]))
    await client.jetstream().publish(subject, b"x")
    for path in (f"/streams/{root}/messages", f"/streams/{root}"):
        text, data = await visitor.both(path)
        assert max(len(word) for word in check_page(text).words) <= 300
        assert data["messages"][0]["subject"] == subject
    text, data = await visitor.both(f"/streams/{root}/messages/1")
    assert max(len(word) for word in check_page(text).words) <= 500
    assert data["subject"] == subject


async def test_a_huge_payload_costs_a_page_what_is_shown_of_it(server: Server, unique: Unique):
    """A page and its twin hold the first bytes of 900 kB; previews are short; the download has all of it."""
    name = unique("HUGE")
    binary, digits = bytes(range(256)) * 3600, b"[" + b"1," * 450_000 + b"1]"
    async with visiting(server.url, Settings(payload_bytes=1000)) as visitor:
        client = await visitor.nats()
        await assets.add_stream(client, Stream(name=name, subjects=[name]))
        for body in (binary, digits, b"[" * 900_000, b"\n" * 900_000):
            await client.jetstream().publish(name, body)
        for number, form in ((1, "hex"), (2, "text"), (3, "text"), (4, "text")):
            text, data = await visitor.both(f"/streams/{name}/messages/{number}")
            check_page(text)
            assert (data["form"], data["cut"]) == (form, True)
            assert len(text) < 20_000
            assert len(json.dumps(data)) < 20_000
            assert len(base64.b64decode(data["data"])) == 1000
        text, data = await visitor.both(f"/streams/{name}/messages")
        assert all(len(item["preview"]) < 200 for item in data["messages"])
        assert (await visitor.get(f"/streams/{name}/messages/1/payload")).body == binary


async def test_half_a_character_breaks_no_page(visitor: Visitor, unique: Unique):
    """JSON with half a character is shown, although it cannot be written as it is."""
    name = unique("HALF")
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    await client.jetstream().publish(name, b'{"half": "\\ud83d", "nul": "\\u0000", "rtl": "\\u202e"}')
    text, data = await visitor.both(f"/streams/{name}/messages/1")
    check_page(text)
    assert data["form"] == "json"
    assert data["text"] == '{\n  "half": "\\ud83d",\n  "nul": "\\u0000",\n  "rtl": "\\u202e"\n}'


# -- what only Penstock writes, written by somebody else ---------------------------------------------------------------


async def test_markers_that_are_none_are_named_and_the_others_shown(visitor: Visitor, unique: Unique):
    """Garbage where the Spark sink keeps its progress is told in its row, hides no query and breaks no page."""
    name = unique("SINK")
    client = await visitor.nats()
    subjects = [f"{name}.rows", f"$PENSTOCK.{name}.>"]
    await assets.add_stream(client, Stream(name=name, subjects=subjects, allow_atomic=True))
    bodies = {
        "good": Head(3, "run", "sealing", past=("a", "b")).body(),
        "garbage": b"\xff\x00<script>",
        "list": b"[1, 2]",
        "newer": b'{"v": 99}',
        "deep": b"[" * 100_000,
        "half": b'{"v": 1, "batch": 1}',
        "odd": Head(3, "run", "done").body().replace(b'"done"', b'"<b>"'),
        "huge": b'{"v":1,"batch":' + b"9" * 5000 + b"}",
    }
    for query, body in bodies.items():
        await client.jetstream().publish(MarkerSubjects(name, query).head, body)
    text, data = await visitor.both("/pipelines")
    check_page(text)
    found = {item["query"]: item for item in data["sinks"] if item["stream"] == name}
    assert set(found) == set(bodies)
    assert (found["good"]["batch"], found["good"]["state"], found["good"]["retries"]) == (3, "sealing", 2)
    assert "locking an old run out" in text
    for query in set(bodies) - {"good"}:
        assert found[query]["batch"] is None, query
        assert "marker" in found[query]["state"], query


async def test_more_queries_than_are_read_are_counted(server: Server, unique: Unique):
    """A hundred queries of a stream are read, a table has its rows, and what is left out of both is counted."""
    name = unique("QUERIES")
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(rows=30)) as visitor:
            client = await visitor.nats()
            await assets.add_stream(client, Stream(name=name, subjects=[f"$PENSTOCK.{name}.>"], allow_atomic=True))
            body = Head(1, "run", "done").body()
            for number in range(104):
                await client.publish(MarkerSubjects(name, f"q{number:03}").head, body)
            await client.jetstream().publish(MarkerSubjects(name, "q000").head, body)
            text, data = await visitor.both("/pipelines")
            assert (len(data["sinks"]), data["sinks_left_out"]) == (30, 74)
            assert "74 more are left out" in text


# -- secrets -----------------------------------------------------------------------------------------------------------


async def test_a_secret_of_the_connection_is_masked_wherever_a_stream_repeats_it(visitor: Visitor, unique: Unique):
    """The console's own token is shown in no subject, filter, header name, metadata, transfer or search."""
    name = unique("REPEAT")
    client = await visitor.nats()
    token = visitor.backend.upstream.options.token
    assert token is not None
    subject = f"{name}.{token}"
    await assets.add_stream(client, Stream(name=name, subjects=[subject], metadata={"note": token, token: "x"}))
    await assets.add_consumer(client, name, Consumer(durable="c", filter_subject=subject, description=token))
    headers = f"X-{token}: {token}\r\nX-Msg-Id: {token}\r\nX-Offset: 0\r\nX-Flags: 0\r\n"
    publish_raw(visitor_url(visitor), subject.encode(), headers.encode(), token.encode())
    base = f"/streams/{name}"
    for path in (
        base,
        f"{base}/messages",
        f"{base}/messages/1",
        f"{base}/consumers/c",
        "/streams",
        "/consumers",
        "/transfers",
    ):
        text, data = await visitor.both(path)
        assert token not in text, path
        assert token not in json.dumps(data), path
    data = await visitor.twin(f"{base}/messages/1")
    assert {"name": "X-***", "value": "***"} in data["headers"]
    assert base64.b64decode(data["data"]) == b"***"
    (found,) = [item for item in (await visitor.twin("/transfers"))["transfers"] if item["stream"] == name]
    assert (found["id"], found["subject"]) == ("***", f"{name}.***")


async def test_a_password_that_is_refused_is_not_told():
    """A login that NATS refuses is an error that names neither password nor user information, on page and twin."""
    with Server(sync="2m") as own:
        options = ConnectionOptions(f"nats://{own.nodes[0].address}", user="visitor", password="hunter2-hunter2")
        async with visiting(options, Settings(timeout=2.0)) as visitor:
            for path in ("/overview", "/streams"):
                data = await visitor.twin(path, 503)
                assert data["error"]["kind"] == "LoginError"
                text = (await visitor.get(path)).text
                assert "NATS refuses the login" in text
                for said in (text, json.dumps(data)):
                    assert "hunter2" not in said
