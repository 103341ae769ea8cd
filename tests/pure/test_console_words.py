"""What the console makes of values before they reach a page: figures, configurations, settings, notes, masks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.backend import Backend, PageRequest, all_of, iso
from penstock.console.config import config_rows
from penstock.console.consumers import consumer_row
from penstock.console.formatting import FILTERS, ago
from penstock.console.masking import Mask
from penstock.console.payload import encoded, preview, render
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.errors import InputError, OptionError
from penstock.info import ConsumerInfo
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.survey import Survey
from penstock.survey.looks import see_consumer

MASK = Mask(ConnectionOptions("nats://a-token-of-some-length@127.0.0.1:4222"))

# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("count", None, "–"),
        ("count", 0, "0"),
        ("count", 1234567, "1,234,567"),
        ("size", None, "–"),
        ("size", 1536, "1.5 KiB"),
        ("rate", None, "–"),
        ("rate", 0.0, "0"),
        ("rate", 0.04, "0.0"),
        ("rate", 9.96, "10.0"),
        ("rate", 12345.6, "12,346"),
        ("seconds", None, "–"),
        ("seconds", 0.0000005, "0 µs"),
        ("seconds", 0.00012, "120 µs"),
        ("seconds", 0.0123, "12.3 ms"),
        ("seconds", 0.456, "456 ms"),
        ("seconds", 1.5, "1.5 s"),
        ("seconds", 42.0, "42 s"),
        ("seconds", 90.0, "1.5 min"),
        ("seconds", 3600.0 * 12, "12 h"),
        ("seconds", 86400.0 * 1.5, "1.5 d"),
        ("clock", None, ""),
    ],
)
def test_figures_are_written_for_people(name: str, value: Any, text: str):
    """Counts have their thousands apart, durations a fitting unit, and what is not known is a dash."""
    assert FILTERS[name](value) == text


def test_times_are_told_from_now():
    """A moment ago is now, and so is a moment that another clock puts into the future; nothing is never."""
    now = datetime(2026, 1, 2, 12, tzinfo=UTC)
    for passed, text in (
        (0.2, "now"),
        (-30.0, "now"),
        (5.0, "5.0 s ago"),
        (7200.0, "2.0 h ago"),
        (864000.0, "10 d ago"),
    ):
        assert ago((now - timedelta(seconds=passed)).isoformat(), now) == text
    assert ago(None) == "never"
    assert iso(None) is None


@given(st.integers(0, 2**64), st.one_of(st.none(), st.integers(0, 2**64)))
def test_a_share_is_a_width(part: int, whole: int | None):
    """However large a part is, its bar is between nothing and the whole width."""
    assert 0 <= FILTERS["share"](part, whole) <= 100


@given(st.lists(st.floats(-10, 1e12), max_size=80))
def test_a_line_stays_in_its_picture(values: list[float]):
    """Every point of a line lies in the picture, whatever the values are."""
    points = FILTERS["points"](values).split()
    assert len(points) in (0, len(values))
    for point in points:
        x, y = point.split(",")
        assert 0 <= float(x) <= 100
        assert 0 <= float(y) <= 20


@given(st.text(max_size=400), st.integers(1, 100))
def test_what_others_wrote_is_cut_and_printable(text: str, most: int):
    """A subject or name of any length and content is one printable text of bounded length."""
    shown = FILTERS["cut"](text, most)
    assert len(shown) <= most
    assert shown.isprintable()


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_hex_is_laid_out_in_sixteens():
    """A line of hex has its place, two halves, and the letters; a last line that is short keeps its columns."""
    shown = render(bytes(range(0x41, 0x41 + 18)), 1000, "hex")
    assert shown.text.splitlines() == [
        "00000000  41 42 43 44 45 46 47 48  49 4a 4b 4c 4d 4e 4f 50  ABCDEFGHIJKLMNOP",
        "00000010  51 52                                             QR",
    ]
    assert render(b"\x00\xff" * 100, 64).shown == 16, "hex shows an eighth of the bytes, and a line at least"


def test_a_preview_is_one_line():
    """Line breaks and runs of blanks become one blank; what is cut, and bytes that are no text, say so."""
    assert preview(b"a\r\n\n  b\tc") == "a b c"
    assert preview(b"") == ""
    assert preview(b"x" * 200, 10) == "x" * 10 + "…"
    assert preview(b"\x00\x01\x02\x03\xff" * 10, 40) == "00 01 02 03 ff 00 01 02 03 ff …"
    assert preview("é".encode() * 50, 100) == "é" * 50
    assert encoded(b"abcdef", 3) == "YWJj"


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"a": 1, "b": {"a": 2}}', "json"),
        (b'{"a": 1, "a": 1}', "text"),
        (b'[{"x": {"a": 1, "a": 2}}]', "text"),
        (b'{"a": NaN}', "text"),
        (b'{"a": -1e400}', "text"),
        (b'{"a": 1e308}', "json"),
        (b"\xef\xbb\xbf{}", "text"),
        (b"{}", "json"),
        (b"[]", "json"),
        (b'"only a text"', "text"),
        (b"null", "text"),
    ],
)
def test_json_is_laid_out_only_if_nothing_is_lost(body: bytes, form: str):
    """A name that stands there twice, and numbers that are none, keep a payload from being laid out as JSON."""
    assert render(body, 1000).form == form


# -- masks -------------------------------------------------------------------------------------------------------------


def test_two_headers_that_look_alike_when_masked_are_both_shown():
    """Names of headers are masked, too, and no value is lost where two of them become the same."""
    token = "a-token-of-some-length"
    headers = {f"X-{token}": ["1"], "X-***": ["2"], "My-Secret": ["s1", "s2"], "Plain": [f"see {token}"]}
    assert MASK.headers(headers) == {"X-***": ["***", "2"], "My-Secret": ["***", "***"], "Plain": ["see ***"]}


def test_a_short_secret_masks_no_messages_and_no_error_tells_it():
    """A password that may be a common word leaves payloads readable; in our own sentences it is masked as well."""
    mask = Mask(ConnectionOptions("nats://127.0.0.1:4222", user="shop", password="orders"))
    assert mask.data(b"new orders") == b"new orders"
    assert mask.plain(["orders", {"orders": "orders"}]) == ["orders", {"orders": "orders"}]
    assert "orders" not in mask.text("the password orders was refused")


def test_values_that_are_no_text_pass_the_mask():
    """Numbers, truths and nothing are as they were, in lists and under any name; tuples become lists."""
    value = {"token": 5, "password": None, "secret": True, 3: ("a", 1.5), "list": [{"api-key": ["k"]}]}
    assert MASK.plain(value) == {
        "token": 5,
        "password": None,
        "secret": True,
        3: ["a", 1.5],
        "list": [{"api-key": ["k"]}],
    }


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["-1", "+1", "1_000", "1.0", "x", "²", "٣", " ", "9" * 19, "9" * 20, "1" * 5000, "\x00"]
)
def test_a_number_in_an_address_is_a_number(text: str):
    """What is no whole number that NATS can read is refused, with its beginning and what would do."""
    with pytest.raises(InputError, match="offset is") as caught:
        PageRequest(query={"offset": text}).number("offset", 0)
    assert len(str(caught.value)) < 300


def test_a_number_that_is_not_given_has_a_default():
    """No number, an empty one and the largest one are each read."""
    assert PageRequest().number("offset", 7) == 7
    assert PageRequest(query={"offset": ""}).number("offset", 7) == 7
    assert PageRequest(query={"offset": str(2**63 - 1)}).number("offset", 0) == 2**63 - 1
    with pytest.raises(InputError, match="from 1 on"):
        PageRequest(query={"at": "0"}).number("at", 5, least=1)


async def test_all_of_keeps_the_order_and_the_first_failure():
    """Answers come in the order of what was asked for, some at a time; one failure ends all, as itself."""
    under_way, most = 0, 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(100 - number):
            await asyncio.sleep(0)
        under_way -= 1
        if number == 60:
            raise InputError("sixty")
        return number * 2

    assert await all_of(range(50), ask) == [number * 2 for number in range(50)]
    assert most == 16
    with pytest.raises(InputError, match="sixty"):
        await all_of(range(100), ask)
    assert await all_of([], ask) == []


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", True),
        ("port", "80"),
        ("port", 1.5),
        ("port", None),
        ("rows", "5"),
        ("rows", 1.5),
        ("rows", True),
        ("rows", -1),
        ("rows", 2**40),
        ("messages", None),
        ("timeout", "5s"),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", 0),
        ("idle", False),
        ("host", None),
        ("host", "http://x"),
        ("host", "x" * 300),
        ("names", "localhost"),
        ("names", (7,)),
        ("names", ("ok.example", "not ok")),
        ("names", ("a.example:80",)),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused(option: str, value: Any):
    """Each setting is checked for its type and range when it is given, and the error names it."""
    with pytest.raises(OptionError) as caught:
        Settings(**{option: value})
    assert (caught.value.option, bool(caught.value.remedy)) == (option, True)
    assert option in caught.value.what


def test_settings_take_what_can_be():
    """Addresses of both kinds, names, whole seconds and the largest port are settings."""
    for name, value in (("host", "::1"), ("host", "a.example"), ("port", 65535), ("timeout", 1), ("names", ("a.b",))):
        assert getattr(Settings(**{name: value}), name) == value


# -- configurations ----------------------------------------------------------------------------------------------------


def test_a_consumer_is_told_in_words():
    """Durations, lists, nothing and texts of a consumer's configuration read as people write them."""
    consumer = Consumer(
        durable="c",
        ack_wait=30.0,
        backoff=[1.0, 60.0],
        filter_subjects=["a.>", "b\u202e"],
        max_deliver=-1,
        headers_only=True,
        max_ack_pending=-1,
        metadata={"_nats.ver": "2.15", "password": "p", "team": "x"},
    )
    rows = dict(config_rows(consumer, MASK))
    assert rows["ack wait"] == "30s"
    assert rows["backoff"] == "1s, 1m0s"
    assert rows["filter subjects"] == "a.>, b\\u202e"
    assert rows["headers only"] == "yes"
    assert rows["max ack pending"] == "no limit"
    assert rows["metadata"] == "password=***, team=x"
    assert rows["ack policy"] == "explicit", "shown although it is as always"
    assert "max deliver" not in rows
    assert "flow control" not in rows
    only_ours = Consumer(durable="c", metadata={"_nats.ver": "2.15"})
    assert "metadata" not in dict(config_rows(only_ours, MASK))


def test_a_stream_without_limits_says_so():
    """Limits that are none read as such, and a stream that captures nothing has no subjects."""
    rows = dict(config_rows(Stream(name="S", subjects=[]), MASK))
    assert (rows["max msgs"], rows["max age"], rows["subjects"]) == ("no limit", "no limit", "none")
    assert rows["num replicas"] == "1"


# -- what needs attention ----------------------------------------------------------------------------------------------


def consumer_info(**more: Any) -> ConsumerInfo:
    """Give what a server says of a consumer, changed in places."""
    config = {"durable_name": "c", "max_ack_pending": more.pop("most", 10), **more.pop("config", {})}
    return ConsumerInfo.from_json({"stream_name": "S", "name": "c", "config": config, **more})


def test_the_row_of_a_consumer_says_who_listens():
    """A pull consumer is listened to while requests wait, a push consumer while somebody is bound to it."""
    options = ConnectionOptions("nats://a-token-of-some-length@127.0.0.1:1")
    upstream = Upstream(options, timeout=1.0)
    backend = Backend(Settings(), upstream, Mask(options), Survey(upstream.client))

    def row(**answer: Any) -> Any:
        return consumer_row(backend, see_consumer(consumer_info(**answer), None, 0.0))

    push = {"deliver_subject": "d"}
    assert row(num_waiting=1)["listened_to"] is True
    assert row()["listened_to"] is False
    assert row(config=push, push_bound=True)["listened_to"] is True
    assert row(config=push, num_waiting=1)["listened_to"] is False
    found = row(most=-1, config={"filter_subject": "s.a-token-of-some-length"})
    assert (found["max_ack_pending"], found["filter"], found["durable"]) == (None, ["s.***"], True)
