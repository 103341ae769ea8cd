"""What an open page is told: which parts of it have changed, how a table is turned, and how a chart is drawn."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.backend import PageRequest
from penstock.console.charts import HEIGHT, WIDTH, plot, written
from penstock.console.live import Feed, parts, wants_events
from penstock.console.tables import Listing, fields, turn
from penstock.errors import InputError

PAGE = """<title>A &amp; B</title><main id="main"><h1>No part</h1>
<div class="x" id="one" data-live><div>in <div>it</div></div><div id="inner" data-live>too</div></div>
<p data-live id="two">b</p><svg id="three" data-live><svg/></svg><div id="four">no part</div></main>"""


# -- parts -------------------------------------------------------------------------------------------------------------


def test_parts_are_whole_elements():
    """A part reaches to its own end, whatever is in it; a part within a part belongs to the outer one."""
    found = parts(PAGE)
    assert list(found) == ["one", "two", "three"]
    assert found["one"].startswith('<div class="x"')
    assert found["one"].endswith("too</div></div>")
    assert found["two"] == '<p data-live id="two">b</p>'
    assert found["three"] == '<svg id="three" data-live><svg/></svg>'


@given(st.recursive(st.text("ab &;", max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_parts_are_what_a_parser_of_html_finds(tree: Any):
    """Nested elements of the same name never end a part too early or too late."""
    number = iter(range(1000))

    def write(node: Any, live: bool) -> str:
        if isinstance(node, str):
            return node.replace("&", "&amp;")
        mark = f' id="p{next(number)}" data-live' if live else ""
        return f"<div{mark}>{''.join(write(item, False) for item in node)}</div>"

    page = "<main>" + "".join(write(node, True) for node in (tree if isinstance(tree, list) else [])) + "</main>"

    class Depths(HTMLParser):
        depth = 0
        found = 0

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.depth += 1
            self.found += any(name == "data-live" for name, _ in attrs)

        def handle_endtag(self, tag: str) -> None:
            self.depth -= 1

    whole = Depths()
    whole.feed(page)
    found = parts(page)
    assert len(found) == whole.found
    for text in found.values():
        one = Depths()
        one.feed(text)
        assert (one.depth, one.found) == (0, 1)
        assert text in page


def test_only_an_event_source_gets_events():
    """Browsers that ask for a page, and programs that take anything, get the page."""
    assert wants_events("text/event-stream")
    assert wants_events("text/event-stream; q=1, */*")
    for other in ("", "*/*", "text/html,text/event-stream", "application/json"):
        assert not wants_events(other)


# -- a feed ------------------------------------------------------------------------------------------------------------


class Reader:
    """The other end of a feed: what it was sent, and when it goes."""

    def __init__(self, *pages: str | None) -> None:
        self.pages = list(pages)
        self.closing, self.gone = asyncio.Event(), asyncio.Event()
        self.events: list[tuple[str, Any]] = []
        self.sent: list[Any] = []
        self.among: set[Feed] = set()

    async def paint(self) -> tuple[str | None, dict[str, str]]:
        if not self.pages:
            self.gone.set()
            await asyncio.Event().wait()
        page = self.pages.pop(0)
        return page, {"what": "NATS is away.", "remedy": ""} if page is None else {}

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        text = message.get("body", b"").decode()
        if match := re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", text):
            self.events.append((match[1], json.loads(match[2])))
        assert len(self.among) == (0 if message.get("more_body") is False or "status" in message else 1)

    async def read(self) -> list[tuple[str, Any]]:
        feed = Feed(self.paint, 0.0001, self.closing, self.among)
        async with asyncio.timeout(60):
            await feed({}, self.receive, self.send)
        return self.events


async def test_a_feed_tells_only_what_has_changed():
    """The whole page comes first; then the parts that changed, or that nothing did; other parts make a whole page."""
    changed = PAGE.replace(">b<", ">c\n<")
    other = PAGE.replace('id="two"', 'id="new"')
    reader = Reader(PAGE, PAGE, changed, other)
    first, same, part, whole = await reader.read()
    assert first[0] == "page"
    assert first[1]["title"] == "A &amp; B"
    assert first[1]["main"] == PAGE[PAGE.index("<main") :]
    assert same == ("same", {})
    assert part == ("parts", {"two": '<p data-live id="two">c\n</p>'})
    assert whole[0] == "page"
    start, *_, end = reader.sent
    assert start["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not reader.among


async def test_a_page_that_fails_is_told_and_comes_back_whole(monkeypatch: pytest.MonkeyPatch):
    """What went wrong is told in words; the next page that can be made is sent whole, even if it is as before."""
    monkeypatch.setattr("penstock.console.live._AGAIN", 0.0001)
    events = await Reader(PAGE, None, PAGE).read()
    assert [kind for kind, _ in events] == ["page", "failed", "page"]
    assert events[1][1] == {"what": "NATS is away.", "remedy": ""}


async def test_a_feed_ends_with_the_console():
    """Nobody who looks keeps the console from ending."""
    reader = Reader(PAGE)
    reader.pages *= 1
    reader.gone = asyncio.Event()
    ending = asyncio.create_task(reader.read())
    while not reader.events:
        await asyncio.sleep(0.001)
    reader.closing.set()
    assert (await ending)[0][0] == "page"


# -- tables ------------------------------------------------------------------------------------------------------------

ROWS = [
    {"name": f"s{number:02}", "size": number % 7, "last": {"time": None if number % 5 else number}}
    for number in range(30)
]


def table(query: dict[str, str], most: int = 10, prefix: str = "") -> Listing[Any]:
    request = PageRequest({}, query)
    sorts = fields("name", "size", "last.time")
    return Listing.of(request, ROWS, sorts, sort="name", words=lambda row: (row["name"],), most=most, prefix=prefix)


@pytest.mark.parametrize("sort", ["name", "-name", "size", "-size", "last.time", "-last.time"])
def test_following_the_pages_of_a_table_shows_every_row_once(sort: str):
    """However it is sorted, no row is left out and none comes twice; nothing known comes last."""
    seen, offset = [], "0"
    while True:
        found = table({"sort": sort, "offset": offset}, most=7)
        seen += found.items
        about = found.about()
        if about["next"] is None:
            break
        offset = str(about["next"])
    assert sorted(row["name"] for row in seen) == [row["name"] for row in ROWS]
    if sort.endswith("time"):
        known = [row["last"]["time"] for row in seen]
        there = [value for value in known if value is not None]
        assert known == [*sorted(there, reverse=sort.startswith("-")), *[None] * (30 - len(there))]
    assert about["previous"] == 21


def test_a_filter_wants_every_word_in_any_case():
    """All words must be there; what was filtered out is counted; a prefix keeps two tables apart."""
    assert [row["name"] for row in table({"filter": "S 07"}).items] == ["s07"]
    assert table({"filter": "0"}).about()["matching"] == 12
    assert table({"filter": "nothing"}).about() | {"sorts": []} == {
        **{"total": 30, "matching": 0, "offset": 0, "sort": "name", "filter": "nothing", "prefix": "", "sorts": []},
        **{"next": None, "previous": None},
    }
    assert table({"filter": "nothing", "a_filter": "01"}, prefix="a_").matching == 1


def test_beyond_the_end_there_is_a_way_back():
    """An offset that is too large shows nothing and leads to the last page."""
    about = table({"offset": "500"}).about()
    assert (about["next"], about["previous"]) == (None, 20)


@pytest.mark.parametrize("query", [{"sort": "shoe"}, {"sort": "--name"}, {"filter": "x" * 201}, {"offset": "-1"}])
def test_a_view_that_cannot_be_is_refused(query: dict[str, str]):
    """An address that somebody wrote by hand is refused in a sentence."""
    with pytest.raises(InputError):
        table(query)


def test_a_turn_keeps_the_rest_of_the_question():
    """A link to another view changes what it names and keeps everything else, also what stands there twice."""
    query = [("a", "1"), ("sort", "x"), ("a", "2&3")]
    assert turn(query, {"sort": "-y", "offset": None}) == "?a=1&a=2%263&sort=-y"
    assert turn([("offset", "5")], {"offset": None}) == "?"
    assert "javascript" not in turn([], {"filter": "\ud800"})


# -- charts ------------------------------------------------------------------------------------------------------------

NUMBERS = re.compile(r"-?\d+\.\d|-?\d+")


@given(
    st.lists(
        st.tuples(st.floats(0.1, 500), st.one_of(st.none(), st.floats(0, 1e15), st.integers(0, 2**62))), max_size=400
    ),
    st.sampled_from(["", "bytes", "s", "messages", "messages/s"]),
)
def test_a_chart_stays_in_its_picture(steps: list[tuple[float, float | None]], unit: str):
    """Whatever was seen, every point lies in the picture, and words stand beside it."""
    when, points = 1_700_000_000.0, []
    for step, value in steps:
        when += step
        points.append((when, value))
    drawn = plot(points, unit)
    if sum(value is not None for _, value in points) < 2:
        assert drawn is None
        return
    assert drawn is not None
    (line,) = drawn.lines
    for text in (line.path, line.area):
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", text):
            assert -0.1 <= float(x) <= WIDTH + 0.1
            assert 2.9 <= float(y) <= HEIGHT
    assert line.path.count("L") + line.path.count("M") <= 201
    assert drawn.top
    assert drawn.last


def test_a_trend_is_told_in_words():
    """A lag that falls says when it is gone, one that grows how fast, a steady one nothing."""
    times = [1000.0 + 5 * place for place in range(100)]
    falling = plot([(at, 1000 - 2 * (at - 1000)) for at in times], "messages")
    assert falling is not None
    assert (falling.direction, falling.trend) == ("down", "falling by 120 a minute, gone in 5.0 s")
    rising = plot([(at, 3 * (at - 1000)) for at in times], "messages")
    assert rising is not None
    assert (rising.direction, rising.trend) == ("up", "rising by 180 a minute")
    steady = plot([(at, 700 + place % 2) for place, at in enumerate(times)], "messages")
    assert steady is not None
    assert (steady.direction, steady.trend) == ("", "")


def test_what_was_not_seen_is_no_line():
    """While nothing was looked at the line is broken; what stays the same for long is joined."""
    there = [(float(at), float(at % 7)) for at in range(0, 100, 5)]
    away = plot([*there, *[(at + 1000, value + 9) for at, value in there]])
    assert away is not None
    assert away.lines[0].path.count("M") == 2
    flat = plot([(0.0, 4.0), (3000.0, 4.0), (3005.0, 5.0), (3010.0, 6.0), (3015.0, 5.0)])
    assert flat is not None
    assert flat.lines[0].path.count("M") == 1


def test_several_lines_share_one_scale():
    """Two percentiles are drawn in one picture; one of which nothing is known is left out."""
    both = plot({"half": [(0, 1), (5, 2)], "most": [(0, 4), (5, 8)], "none": [(0, None)]}, "s")
    assert both is not None
    assert [(line.name, line.last) for line in both.lines] == [("half", "2.0 s"), ("most", "8.0 s")]
    assert both.top == "8.0 s"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234.4, "messages", "1,234"),
        (0, "s", "0 s"),
        (1536, "bytes", "1.5 KiB"),
        (2.5, "messages/s", "2.5"),
        (None, "s", "–"),
    ],
)
def test_values_are_written_in_their_unit(value: float | None, unit: str, text: str):
    """Bytes, seconds, rates and counts read as elsewhere on the pages."""
    assert written(value, unit) == text
