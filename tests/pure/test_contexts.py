"""Contexts and environment: which one wins, what a broken one says, and that no login goes astray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.contexts import context_folder, load_context, load_options, selected_context
from penstock.errors import ContextError, OptionError
from tests.support import Key

SEED = Key.make().seed


class House:
    """A configuration folder of our own, with contexts in it, and an environment that points there."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
        self.folder = folder / "config" / "nats" / "context"
        self.folder.mkdir(parents=True)

    def write(self, name: str, **fields: Any) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(fields))
        return path

    def select(self, name: str) -> None:
        (self.folder.parent / "context.txt").write_text(name + "\n")

    def load(self, url: str | None = None, *, env: dict[str, str] | None = None, **given: Any) -> Any:
        return load_options(url, environ={**self.environ, **(env or {})}, **given)


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    made.write("named", url="nats://named:1", token="named-token")
    made.write("env", url="nats://env:1", token="env-token")
    made.write("chosen", url="nats://chosen:1", token="chosen-token")
    return made


# -- the table at the head of contexts.py --------------------------------------------------------------------

NAMED = {"NATS_CONTEXT": "env"}
ADDRESS = {"NATS_URL": "nats://address:1"}


@pytest.mark.parametrize("env", [{}, NAMED, ADDRESS, NAMED | ADDRESS])
@pytest.mark.parametrize("selected", [False, True])
class TestWhatTheCallerNames:
    def test_a_url_is_used_alone(self, house: House, env: dict[str, str], selected: bool) -> None:
        """A URL from the caller wins over everything, and no context's login goes there."""
        if selected:
            house.select("chosen")
        options = house.load("nats://mine:1", env=env)
        assert (options.url, options.token) == ("nats://mine:1", None)

    def test_a_context_is_used_alone(self, house: House, env: dict[str, str], selected: bool) -> None:
        """A context from the caller keeps its URL: its login is not sent to whatever NATS_URL says."""
        if selected:
            house.select("chosen")
        options = house.load(context="named", env=env)
        assert (options.url, options.token) == ("nats://named:1", "named-token")

    def test_both_are_the_context_at_the_url(self, house: House, env: dict[str, str], selected: bool) -> None:
        """Who names both wants the context's login at that URL."""
        if selected:
            house.select("chosen")
        options = house.load("nats://mine:1", context="named", env=env)
        assert (options.url, options.token) == ("nats://mine:1", "named-token")


@pytest.mark.parametrize("selected", [False, True])
def test_the_environments_context_comes_second(house: House, selected: bool) -> None:
    """NATS_CONTEXT wins over the selected context."""
    if selected:
        house.select("chosen")
    options = house.load(env=NAMED)
    assert (options.url, options.token) == ("nats://env:1", "env-token")


def test_the_environment_may_name_both(house: House) -> None:
    """NATS_URL takes the place of the URL of NATS_CONTEXT."""
    options = house.load(env=NAMED | ADDRESS)
    assert (options.url, options.token) == ("nats://address:1", "env-token")


def test_the_environments_address_comes_third(house: House) -> None:
    """NATS_URL wins over the selected context, whose login does not go there."""
    house.select("chosen")
    options = house.load(env=ADDRESS)
    assert (options.url, options.token) == ("nats://address:1", None)


def test_the_selected_context_comes_fourth(house: House) -> None:
    """Where nobody names anything, `nats context select` decides."""
    house.select("chosen")
    options = house.load()
    assert (options.url, options.token) == ("nats://chosen:1", "chosen-token")


def test_loopback_comes_last(house: House) -> None:
    """Where nothing is selected, the server is on this machine."""
    assert house.load().url == "nats://127.0.0.1:4222"
    assert house.load(env={"NATS_URL": "", "NATS_CONTEXT": ""}).url == "nats://127.0.0.1:4222"


# -- what the caller adds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "given", "login"),
    [
        ({"token": "t"}, {}, {"token": "t"}),
        ({"token": "t"}, {"token": None, "user": ""}, {"token": "t"}),
        ({"token": "t"}, {"token": "u"}, {"token": "u"}),
        ({"token": "t"}, {"user": "ann", "password": "p"}, {"user": "ann", "password": "p"}),
        ({"creds": "/x.creds"}, {"token": "u"}, {"token": "u"}),
        ({"url": "nats://t@h"}, {"credentials": "/y.creds"}, {"credentials": "/y.creds"}),
        ({"user": "ann", "password": "p"}, {"password": "q"}, {"user": "ann", "password": "q"}),
        ({"user": "ann", "password": "p"}, {"nkey": SEED}, {"nkey": SEED}),
    ],
)
def test_the_callers_login_takes_the_place_of_the_contexts(
    house: House, context: dict[str, Any], given: dict[str, Any], login: dict[str, Any]
) -> None:
    """A login is replaced whole, so that two of them never mix."""
    house.write("mine", **context)
    options = house.load(context="mine", **given)
    names = ("token", "user", "password", "nkey", "credentials")
    assert {name: value for name in names if (value := getattr(options, name))} == login


def test_a_new_user_needs_a_password_of_its_own(house: House) -> None:
    """The context's password is not offered for another user."""
    house.write("mine", user="ann", password="p")
    with pytest.raises(OptionError, match="user is given without password"):
        house.load(context="mine", user="bob")


def test_the_login_in_an_address_takes_the_place_of_the_contexts(house: House) -> None:
    """NATS_URL with a login beside NATS_CONTEXT is that login at that address."""
    options = house.load(env=NAMED | {"NATS_URL": "nats://ann:p@address:1"})
    assert (options.url, options.user, options.token) == ("nats://address:1", "ann", None)


def test_the_callers_own_contradictions_stay_errors(house: House) -> None:
    """Where the caller gives two logins, none is chosen."""
    with pytest.raises(OptionError, match="the option token is another one"):
        house.load("nats://t@h", token="u")
    with pytest.raises(OptionError, match="token and credentials are given together"):
        house.load("nats://t@h", credentials="/x.creds")


def test_a_domain_takes_the_place_of_a_prefix(house: House) -> None:
    """Domain and prefix say the same thing; the caller's wins."""
    house.write("mine", jetstream_api_prefix="from.acct")
    assert house.load(context="mine", domain="hub").js_prefix == "$JS.hub.API"


# -- reading contexts ----------------------------------------------------------------------------------------


def test_every_field_arrives(house: House) -> None:
    """Each field of a context becomes the option of the same meaning; ~ is the home of the environment."""
    house.write(
        "full",
        description="ours",
        url="tls://a:1,tls://b:2",
        creds="~/x.creds",
        cert="~/c.pem",
        key="~/k.pem",
        ca="/ca.pem",
        tls_first=True,
        jetstream_domain="hub",
        inbox_prefix="_MINE",
        token="",
        user="",
        nsc="",
        color_scheme="blue",
    )
    options = house.load(context="full")
    home = house.environ["HOME"]
    assert options.urls == ("tls://a:1", "tls://b:2")
    assert options.credentials == f"{home}/x.creds"
    assert (options.tls_cert, options.tls_key, options.tls_ca) == (f"{home}/c.pem", f"{home}/k.pem", "/ca.pem")
    assert (options.tls_first, options.domain, options.inbox_prefix) == (True, "hub", "_MINE")


@pytest.mark.parametrize(
    ("fields", "option", "value"),
    [
        ({"user": "ann", "password": "p"}, "user", "ann"),
        ({"nkey": "~/user.nk"}, "nkey", "{home}/user.nk"),
        ({"user_seed": SEED}, "nkey", SEED),
        ({"jetstream_api_prefix": "from.acct"}, "js_prefix", "from.acct"),
    ],
    ids=["user", "nkey", "user_seed", "prefix"],
)
def test_other_fields_arrive(house: House, fields: dict[str, Any], option: str, value: str) -> None:
    """Each way to log in has its field."""
    house.write("one", url="nats://h", **fields)
    assert getattr(house.load(context="one"), option) == value.format(home=house.environ["HOME"])


def test_a_context_may_be_named_by_its_path(house: House, tmp_path: Path) -> None:
    """A path, also one below ~, names a context that lives elsewhere."""
    path = tmp_path / "elsewhere.json"
    path.write_text('{"url": "nats://elsewhere:1"}')
    assert house.load(context=str(path)).url == "nats://elsewhere:1"
    assert house.load(context="~/elsewhere.json").url == "nats://elsewhere:1"


def test_where_contexts_live(tmp_path: Path) -> None:
    """XDG_CONFIG_HOME decides, and ~/.config where it is not set."""
    assert context_folder({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/nats/context")
    assert context_folder({"HOME": "/h"}) == Path("/h/.config/nats/context")
    assert selected_context({"HOME": str(tmp_path)}) is None


# -- broken ones ---------------------------------------------------------------------------------------------


def test_a_missing_context_names_the_known_ones(house: House) -> None:
    """Who misspells a context sees the ones there are."""
    with pytest.raises(ContextError, match=r"There is no context 'nmaed'\. Known contexts: chosen, env, named\."):
        house.load(context="nmaed")
    with pytest.raises(ContextError, match="There is no context 'gone'"):
        house.load(env={"NATS_CONTEXT": "gone"})
    house.select("vanished")
    with pytest.raises(ContextError, match="There is no context 'vanished'") as caught:
        house.load()
    assert caught.value.context == "vanished"
    assert caught.value.path == str(house.folder / "vanished.json")


def test_no_context_at_all(tmp_path: Path) -> None:
    """Where there are no contexts, the error says so."""
    with pytest.raises(ContextError, match="There are no contexts in"):
        load_context("any", {"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read: Expecting value"),
        (b'{"token": "s3cr3t",', "cannot be read: "),
        (b"\xff\xfe", "cannot be read: it is not text"),
        (b"[]", "holds no JSON object"),
        (b"5", "holds no JSON object"),
        (b'{"url": 5}', "has a url of the wrong type"),
        (b'{"token": ["s3cr3t"]}', "has a token of the wrong type"),
        (b'{"tls_first": "yes"}', "has a tls_first of the wrong type"),
        (
            b'{"socks_proxy": "http://s3cr3t@h"}',
            "context 'bad' cannot be used: socks_proxy .* is not a SOCKS5 proxy",
        ),
        (b'{"creds": "nsc://o/a/u"}', "The context 'bad' cannot be used: credentials is an nsc lookup"),
        (
            b'{"password": "env://NO_SUCH", "user": "a"}',
            "cannot be used: password cannot be found: the variable NO_SUCH",
        ),
        (b'{"creds": "data:;base64,czNjcjN0"}', "what is embedded there holds no credentials"),
        (b'{"creds": "data:;base64,s3cr3t!"}', "what is embedded there is not text in base64"),
        (b'{"nkey": "/x", "user_jwt": "eyJ.s3cr3t"}', "nkey and user_jwt are given together"),
        (b'{"nsc": "nsc://o/a/u"}', "an nsc lookup"),
        (b'{"user_jwt": "eyJ", "token": "s3cr3t"}', "cannot be used: token and jwt are given together"),
        (b'{"url": "http://s3cr3t@h"}', r"The context 'bad' cannot be used: url .* unknown scheme"),
        (b'{"user": "ann", "token": "s3cr3t"}', "The context 'bad' cannot be used: token and user"),
        (b'{"password": "s3cr3t"}', "The context 'bad' cannot be used: password is given without user"),
    ],
)
def test_a_broken_context_is_one_sentence(house: House, content: bytes, says: str) -> None:
    """A context that cannot be used is named, with what is wrong, and shows no secret of it."""
    (house.folder / "bad.json").write_bytes(content)
    with pytest.raises(ContextError, match=says) as caught:
        house.load(context="bad")
    assert caught.value.context == "bad"
    assert caught.value.path == str(house.folder / "bad.json")
    assert caught.value.remedy
    assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__}"


def test_a_folder_is_no_context(house: House) -> None:
    """What is there and cannot be read says why."""
    (house.folder / "folder.json").mkdir()
    with pytest.raises(ContextError, match="cannot be read: Is a directory"):
        house.load(context="folder")


@pytest.mark.parametrize("spoil", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_broken_selection_says_what_to_do(house: House, spoil: Callable[[Path], object]) -> None:
    """A selection that cannot be read is an error; a program that names its server never looks at it."""
    path = house.folder.parent / "context.txt"
    spoil(path)
    with pytest.raises(ContextError, match="selected context cannot be read") as caught:
        house.load()
    assert caught.value.path == str(path)
    assert house.load("nats://mine:1").url == "nats://mine:1"


def test_a_good_context_is_not_blamed_for_the_callers_mistake(house: House) -> None:
    """An error that the caller made is the caller's."""
    with pytest.raises(OptionError, match="connect_timeout"):
        house.load(context="named", connect_timeout=-1)
