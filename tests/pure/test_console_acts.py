"""Who may act, what a form must show, and the command that is shown beside it; no server is needed for that."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console import forms
from penstock.console.access import Access, Admission, is_same_site
from penstock.console.act_pages import ACTS, act_link
from penstock.console.audit import Audit, Record, Who
from penstock.console.forms import Field, FormError, Seals, read_form
from penstock.console.shell import command, quoted
from penstock.errors import InputError, OptionError

TARGETS = {"stream": "ORDERS"}


# -- roles -------------------------------------------------------------------------------------------------------------


def admitted(access: Access, cookie: str | None = None, **query: str) -> Admission:
    return access.admit(query=query, cookie=cookie, authorization=None)


def test_there_is_no_token_for_acting_unless_somebody_may():
    """Without `write` nothing lets act, not even a cookie that is signed with nothing; a token for it is refused."""
    access = Access()
    assert access.write_token is None
    for cookie in ("x.y", ".", "..", "x." + Access(write=True)._signed("x")):
        assert admitted(access, cookie).how == "out"
    with pytest.raises(OptionError):
        Access(write_token="a-good-long-token-0123")


def test_each_token_has_its_role():
    """The read token reads, the write token writes, in the address, as a code, as a bearer; the two must differ."""
    access = Access(write=True)
    assert admitted(access, token=access.token) == Admission("enter", "read")
    assert access.write_token is not None
    assert admitted(access, token=access.write_token) == Admission("enter", "write")
    assert admitted(access, code=access.code("write")).role == "write"
    assert admitted(access, code=access.code()).role == "read"
    bearer = access.admit(query={}, cookie=None, authorization=f"Bearer {access.write_token}")
    assert (bearer.how, bearer.role, bearer.by) == ("in", "write", "bearer")
    with pytest.raises(OptionError):
        Access("a-good-long-token-0123", write=True, write_token="a-good-long-token-0123")


def test_the_cookie_of_one_who_acts_is_a_session_of_its_own():
    """Each browser has another one; neither the write token itself nor a changed or foreign cookie is one."""
    access, other = Access(write=True), Access(write=True)
    one, two = access.cookie("write"), access.cookie("write")
    assert access.write_token is not None
    assert one != two
    assert access.write_token not in one
    assert (admitted(access, one).role, admitted(access, one).how) == ("write", "in")
    assert admitted(access, one).session != admitted(access, two).session
    assert access.write_token not in admitted(access, one).session
    for wrong in (
        access.write_token,
        one[:-1],
        one[1:],
        "." + one,
        other.cookie("write"),
        one.partition(".")[0],
        "ü.x",
    ):
        assert admitted(access, wrong).how == "out", wrong
    assert admitted(access, access.cookie("read")).role == "read"


def test_a_request_of_another_site_is_known_by_what_the_browser_says():
    """Both headers must say that it is ours, where they are; without both it must be a program with a bearer token."""
    cookie, bearer = Admission("in", "write"), Admission("in", "write", by="bearer")
    ours = {"host": "console.example.com", "origin": "https://console.example.com"}
    assert is_same_site(cookie, **ours, fetch_site="same-origin")
    assert is_same_site(cookie, **ours, fetch_site=None)
    assert is_same_site(cookie, host="[::1]:80", origin="http://[::1]:80", fetch_site="same-origin")
    for site in ("cross-site", "same-site", "none", ""):
        assert not is_same_site(cookie, **ours, fetch_site=site)
        assert not is_same_site(bearer, **ours, fetch_site=site)
    for origin in (
        "null",
        "",
        "https://evil.example",
        "https://console.example.com.evil",
        "file://",
        "console.example.com",
    ):
        assert not is_same_site(cookie, host="console.example.com", origin=origin, fetch_site="same-origin"), origin
    assert is_same_site(bearer, host="h", origin=None, fetch_site=None)
    assert not is_same_site(cookie, host="h", origin=None, fetch_site=None)


# -- forms -------------------------------------------------------------------------------------------------------------


def test_a_seal_is_good_for_what_it_was_made_for(monkeypatch: pytest.MonkeyPatch):
    """Another session, act, target or state, a changed seal, another console, an hour later: none of them is taken."""
    seals = Seals()
    seal = seals.seal("me", "purge", TARGETS, "then")
    assert seals.check(seal, "me", "purge", TARGETS, "then")
    for wrong in (
        (seal, "you", "purge", TARGETS, "then"),
        (seal, "me", "delete", TARGETS, "then"),
        (seal, "me", "purge", {"stream": "OTHER"}, "then"),
        (seal, "me", "purge", {}, "then"),
        (seal, "me", "purge", TARGETS, "now"),
        (seal[:-1], "me", "purge", TARGETS, "then"),
        ("9" + seal, "me", "purge", TARGETS, "then"),
        ("", "me", "purge", TARGETS, "then"),
        ("ü.ü.ü", "me", "purge", TARGETS, "then"),
    ):
        with pytest.raises(FormError):
            seals.check(*wrong)
    with pytest.raises(FormError):
        Seals().check(seal, "me", "purge", TARGETS, "then")
    monkeypatch.setattr(forms, "_LIFE", -1.0)
    with pytest.raises(FormError, match="too old"):
        seals.check(seal, "me", "purge", TARGETS, "then")


def test_a_form_is_taken_once_and_the_memory_of_it_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """What was sent is refused, and if too much is remembered, everything is: nothing old is forgotten early."""
    seals = Seals()
    seals.use("a")
    with pytest.raises(FormError, match="sent before"):
        seals.use("a")
    monkeypatch.setattr(forms, "_MOST", 2)
    seals.use("b")
    with pytest.raises(FormError, match="Too many"):
        seals.use("c")
    with pytest.raises(FormError, match="sent before"):
        seals.use("b")
    monkeypatch.setattr(forms, "_LIFE", -1.0)
    seals.use("c")


def test_only_forms_are_read():
    """A form keeps repeated fields in order; another kind, bytes that are no text, and very many fields are refused."""
    kind = "application/x-www-form-urlencoded; charset=utf-8"
    assert read_form(b"a=1&b=%C3%BC+x&a=2&c=", kind) == {"a": ["1", "2"], "b": ["ü x"], "c": [""]}
    for body, other in ((b"a=1", "text/plain"), (b"a=1", ""), (b"{}", "application/json"), (b"\xff", kind)):
        with pytest.raises(InputError):
            read_form(body, other)
    with pytest.raises(InputError):
        read_form(b"a=%ff", kind)
    with pytest.raises(InputError):
        read_form(b"&".join([b"a=1"] * 2000), kind)


def test_fields_refuse_what_cannot_be_meant():
    """A field that is needed, a choice, a box and a line each take what they are for."""
    assert Field("a", "A", "text").checked("x\r\ny\t") == "x\ny\t"
    assert Field("a", "A").checked("  x ") == "x"
    for field, text in (
        (Field("a", "A", needed=True), " "),
        (Field("a", "A", "choice", choices=("x",)), "y"),
        (Field("a", "A", "check"), "no"),
        (Field("a", "A"), "x\x1by"),
        (Field("a", "A"), "x\u202ey"),
    ):
        with pytest.raises(InputError):
            field.checked(text)


def test_acts_name_what_they_are_about():
    """A target that is missing, too long, or no name is refused before anybody is asked; links carry all of them."""
    purge = ACTS["stream-purge"]
    for wrong in ({}, {"stream": ""}, {"stream": "a.b"}, {"stream": "x" * 256}, {"stream": "a\nb"}):
        with pytest.raises(InputError):
            purge.named(wrong)
    assert act_link(ACTS["consumer-reset"], {"stream": "a&b", "consumer": "c d"}) == (
        "/act/consumer-reset?stream=a%26b&consumer=c+d"
    )
    assert act_link(ACTS["stream-add"], {}) == "/act/stream-add"
    assert all(act.sentence.endswith(".") and act.label for act in ACTS.values())


def test_whatever_loses_something_wants_a_name_typed():
    """Acts that remove or overwrite have a name to type."""
    typed = {name for name, act in ACTS.items() if act.typed}
    assert typed >= {
        "stream-edit",
        "stream-purge",
        "stream-delete",
        "message-delete",
        "consumer-edit",
        "consumer-reset",
    }
    assert typed >= {"consumer-delete", "key-delete", "letters-again", "pipeline-replay"}


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_says_who_and_what_and_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A line before, a line after, in the file and in the log; private fields by length; controls are escaped."""
    publish = ACTS["publish"]
    audit = Audit(tmp_path / "acts.log")
    given_values = publish.told({"subject": "a\x1b", "payload": "a password", "headers": "", "x": "y"})
    record = Record("n", Who("write", "10.0.0.1", "5d0f"), "publish", {"stream": "S\x1b[2J"}, given_values)
    with caplog.at_level(logging.INFO, "penstock.console.acts"):
        audit.asked(record)
        audit.ended(record, "done", "stored")
    text = (tmp_path / "acts.log").read_text()
    assert [json.loads(line)["outcome"] for line in text.splitlines()] == ["asked", "done"]
    assert json.loads(text.splitlines()[0])["with"] == {"subject": "a\x1b", "payload": "10 bytes"}
    assert "password" not in text
    assert "\x1b" not in text + caplog.text
    assert text.splitlines() == [item.getMessage() for item in caplog.records]
    assert (tmp_path / "acts.log").stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="cannot be written"):
        Audit(tmp_path / "nowhere" / "acts.log")


# -- commands ----------------------------------------------------------------------------------------------------------


def test_names_are_never_taken_for_flags():
    """What begins with a dash stands behind `--`, and flags before it."""
    assert command("stream rm", "S", flags=["-f"]) == ("penstock", "stream", "rm", "S", "-f")
    assert command("stream rm", "-S", flags=["-f"]) == ("penstock", "stream", "rm", "-f", "--", "-S")
    assert quoted(["a b", "'", "$x", ""]) == """'a b' ''"'"'' '$x' ''"""


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=1, max_size=5))
def test_a_shell_reads_the_words_that_were_meant(words: list[str]):
    """Whatever the words hold, bash makes the same of them, and nothing that a terminal obeys stands there."""
    text = quoted(words)
    assert text.isprintable()
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, timeout=30)
    assert done.stdout.decode().split("\0")[:-1] == words
    if "$'" not in text:
        assert shlex.split(text) == words
