"""The parts of the console that need no server: who is let in, what is masked, how payloads and figures are shown."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.addresses import is_loopback
from penstock.console.access import Access
from penstock.console.formatting import ago, cut, points
from penstock.console.masking import Mask
from penstock.console.payload import FORMS, preview, render, visible
from penstock.console.rates import Rates
from penstock.console.settings import Settings
from penstock.errors import OptionError
from penstock.options import ConnectionOptions
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import NAME, ProgressFile, read_progress

TEMPLATES = Path(__file__).resolve().parents[2] / "src" / "penstock" / "console" / "templates"


# -- access ------------------------------------------------------------------------------------------------------------


def admit(access: Access, *, cookie: str | None = None, authorization: str | None = None, **query: str) -> str:
    return access.admit(query=query, cookie=cookie, authorization=authorization).how


def test_the_token_lets_in_and_nothing_else_does():
    """The token in the address is an entry, in the cookie and as a bearer it is in; anything else stays out."""
    access = Access()
    assert len(access.token) >= 32
    assert admit(access, token=access.token) == "enter"
    assert admit(access, cookie=access.token) == "in"
    assert admit(access, authorization=f"Bearer {access.token}") == "in"
    for wrong in ("", "x", access.token[:-1], access.token + "x", access.token.swapcase(), "ü" * 32, "\ud800"):
        assert admit(access, token=wrong) == "out"
        assert admit(access, cookie=wrong) == "out"
        assert admit(access, authorization=f"Bearer {wrong}") == "out"
    assert admit(access) == "out"
    assert admit(access, authorization=f"Basic {access.token}") == "out"
    assert admit(access, cookie=access.token, token="wrong") == "out", "a wrong token is not forgiven"


def test_a_code_lets_one_browser_in_once():
    """A code for the browser works once; a wrong guess uses it up."""
    access = Access()
    code = access.code()
    assert admit(access, code=code) == "enter"
    assert admit(access, code=code) == "out"
    code = access.code()
    assert admit(access, code="guess") == "out"
    assert admit(access, code=code) == "out"


def test_names_that_others_can_make_lead_here_are_not_known():
    """Addresses in numbers, localhost and configured names are known; any other name may be a rebound one."""
    access = Access(names=("console.example.com",))
    for host in (
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:1",
        "LOCALHOST",
        "[::1]:80",
        "10.0.0.7:1",
        "console.example.com:9",
    ):
        assert access.knows_host(host), host
    for host in (
        None,
        "",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil@127.0.0.1",
        "[::1",
        "::1:80",
        "127.0.0.1 evil",
        "example.com",
        "console.example.com.evil",
    ):
        assert not access.knows_host(host), host


def test_a_token_of_ones_own_must_be_hard_to_guess():
    """A short token, or one that cannot stand in an address, is refused and not shown."""
    assert Access("a-good-long-token-0123").token == "a-good-long-token-0123"
    for weak in ("tiny0", "has spaces in it, and more", "x" * 300):
        with pytest.raises(OptionError) as caught:
            Access(weak)
        assert weak not in str(caught.value)


def test_settings_are_checked_before_anything_is_opened():
    """A host, port, name or limit that cannot be is refused with the name of the option."""
    assert Settings().host == "127.0.0.1"
    for wrong in ({"host": ""}, {"host": "a b"}, {"port": -1}, {"port": 65536}, {"rows": 0}, {"names": ("http://x",)}):
        with pytest.raises(OptionError) as caught:
            Settings(**wrong)
        assert caught.value.option == next(iter(wrong))
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.com")


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_secrets_of_the_connection_are_masked_wherever_they_stand():
    """A payload, a subject, a header or a configuration that repeats our own token shows asterisks."""
    mask = Mask(ConnectionOptions("nats://the-token-of-this-server@127.0.0.1:4222"))
    assert mask.data(b"see the-token-of-this-server!") == b"see ***!"
    assert mask.plain({"a": ["x the-token-of-this-server"], "n": 3}) == {"a": ["x ***"], "n": 3}
    assert mask.text("nats://u:p@host said the-token-of-this-server") == "nats://***@host said ***"
    assert mask.headers({"X-Note": ["the-token-of-this-server"]}) == {"X-Note": ["***"]}


def test_headers_that_carry_a_login_are_masked():
    """Values of headers and fields with telling names are masked whatever they are; others are shown."""
    mask = Mask(ConnectionOptions())
    headers = {"Authorization": ["Bearer x"], "X-Api-Key": ["k", "l"], "Set-Cookie": ["c"], "Nats-Msg-Id": ["7"]}
    shown = {"Authorization": ["***"], "X-Api-Key": ["***", "***"], "Set-Cookie": ["***"], "Nats-Msg-Id": ["7"]}
    assert mask.headers(headers) == shown
    assert mask.plain({"metadata": {"db-password": "p", "team": "t"}}) == {
        "metadata": {"db-password": "***", "team": "t"}
    }


# -- payloads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'{"a": [1, "\xc3\xa9"]}', "json"),
        (b"plain text", "text"),
        (b"12", "text"),
        (b"\x00\x01\xff\xfe", "hex"),
        (b"", "text"),
        (b"[" * 100_000, "text"),
        (b'{"n": ' + b"9" * 5000 + b"}", "text"),
        (b'{"half": "\\ud800"}', "json"),
    ],
)
def test_a_payload_is_shown_as_it_reads_best(data: bytes, form: str):
    """JSON is shown as JSON, text as text, anything else in hex; nesting without end and huge numbers stay text."""
    assert render(data, 200_000).form == form


@given(st.binary(max_size=300), st.integers(1, 100), st.sampled_from([None, *FORMS]))
def test_no_payload_breaks_its_page(data: bytes, most: int, wanted):
    """Whatever a payload is, showing it is bounded, fails never, and leaves no control character."""
    shown = render(data, most, wanted)
    assert shown.form in shown.possible
    assert shown.shown <= max(most, 16)
    assert shown.size == len(data)
    assert all(item.isprintable() or item in "\n\t" for item in shown.text)
    line = preview(data, most)
    assert line.isprintable()
    assert len(line) <= most + 2


def test_a_cut_falls_between_characters():
    """A text that is cut in the middle of a character is still a text."""
    shown = render("é".encode() * 10, 5)
    assert (shown.form, shown.text, shown.shown, shown.cut) == ("text", "éé", 4, True)


def test_signs_stand_for_what_would_do_something_unseen():
    """Control characters and those that turn the direction of writing are shown as signs."""
    assert visible("a\x00b\x7f\u202egnp.exe") == "a␀b␡\\u202egnp.exe"
    assert cut("x" * 500) == "x" * 299 + "…"


# -- figures -----------------------------------------------------------------------------------------------------------


def test_rates_come_from_two_looks():
    """One look gives no rate, the second does; a stream that was made anew begins anew."""
    rates = Rates()
    assert rates.take("S", "t1", 100, now=10.0) is None
    assert rates.take("S", "t1", 160, now=12.0) == 30.0
    assert rates.history("S") == [30.0]
    assert rates.take("S", "t1", 160, now=12.1) == 30.0, "too soon to tell"
    assert rates.take("S", "t1", 160, now=14.0) == 15.0
    assert rates.take("S", "t2", 5, now=16.0) is None
    assert rates.take("S", "t2", 1, now=18.0) is None, "it was purged and began anew"


def test_rates_forget():
    """No more streams are remembered than a bound says, and old samples tell nothing."""
    rates = Rates()
    for number in range(2100):
        rates.take(f"S{number}", None, 1, now=1.0)
    assert len(rates._seen) == 2000
    assert rates.take("S2099", None, 50, now=1000.0) is None


def test_figures_read_well():
    """Times and lines are written for people."""
    assert ago(None) == "never"
    assert points([0, 0, 0]) == ""
    assert points([1]) == ""
    assert points([0, 10]) == "0.0,19.0 100.0,1.0"


# -- templates ---------------------------------------------------------------------------------------------------------


def test_no_template_lets_anything_through_unescaped():
    """Templates neither switch escaping off nor mark anything as safe; no script, style or handler stands in a page."""
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup", text), path.name
        assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=|https?://", text), path.name


# -- what a run of a pipeline leaves -----------------------------------------------------------------------------------


def test_a_run_leaves_its_progress(tmp_path: Path):
    """The file says how far the run is, whether it still lives, and at the end how it ended; it holds no secret."""
    options = ConnectionOptions("nats://the-token-of-this-server@127.0.0.1:4222")
    file = ProgressFile(tmp_path, options, os.getpid(), continuous=True)
    outcome = Outcome()
    file.write(outcome)
    assert read_progress(tmp_path)["state"] == "running"
    outcome.hear({"kind": "ready", "spark": "4.2.0"})
    file.write(outcome)
    assert read_progress(tmp_path)["spark"] == "4.2.0", "a change of phase is written at once"
    outcome.failure = "no login with the-token-of-this-server"
    file.write(outcome, over=True)
    found = read_progress(tmp_path)
    assert (found["state"], found["failure"]) == ("failed", "no login with ***")
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_run_that_was_killed_is_known_by_its_process(tmp_path: Path):
    """A file that says `running` although its process is another one, or gone, is of a run that was cut off."""
    ProgressFile(tmp_path, ConnectionOptions(), os.getpid(), continuous=False).write(Outcome())
    content = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**content, "since": "1"}))
    assert read_progress(tmp_path)["state"] == "cut off"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v": 99}'])
def test_a_progress_that_cannot_be_read_is_none(tmp_path: Path, content: str):
    """Half a file, another one's or a newer version's is no progress, and no error."""
    assert read_progress(tmp_path) is None
    (tmp_path / NAME).write_text(content)
    assert read_progress(tmp_path) is None


def test_progress_that_cannot_be_written_stops_no_pipeline(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A storage that is gone or full is said once, and the run goes on."""
    file = ProgressFile(tmp_path / "gone", ConnectionOptions(), os.getpid(), continuous=False)
    file.write(Outcome())
    file.write(Outcome(), over=True)
    assert caplog.text.count("cannot be written") == 1
