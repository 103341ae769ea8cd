"""Connection options: what they take, what they refuse, and that no secret shows."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.options import DEFAULT_URL, ConnectionOptions, is_seed, is_text, mask_url
from tests.support import Key, credentials_text

SEED = Key.make().seed
CREDENTIALS = credentials_text("eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl", SEED)
PEM_KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"


# -- addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        (DEFAULT_URL, ["nats://127.0.0.1:4222"]),
        ("host", ["nats://host:4222"]),
        ("host:1", ["nats://host:1"]),
        ("nats://host", ["nats://host:4222"]),
        ("NATS://Host", ["nats://host:4222"]),
        ("nats://host/", ["nats://host:4222"]),
        ("tls://host:4443", ["tls://host:4443"]),
        ("ws://host", ["ws://host:80"]),
        ("wss://host/nats", ["wss://host:443/nats"]),
        ("nats://[::1]:4222", ["nats://[::1]:4222"]),
        ("nats://[fe80::1]", ["nats://[fe80::1]:4222"]),
        ("nats://token@[::1]:7", ["nats://[::1]:7"]),
        ("nats://a:1,nats://b:2", ["nats://a:1", "nats://b:2"]),
        (" a , b:2 ,", ["nats://a:4222", "nats://b:2"]),
        (["nats://a:1", "b"], ["nats://a:1", "nats://b:4222"]),
    ],
)
def test_addresses_get_their_scheme_and_port(given: Any, urls: list[str]) -> None:
    """Every form of address is brought into one."""
    assert list(ConnectionOptions(given).urls) == urls


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "url is empty"),
        (" , ", "url is empty"),
        ("http://host", "has an unknown scheme"),
        ("nats://", "is not an address"),
        ("nats://:4222", "is not an address"),
        ("nats://host/path", "is not an address"),
        ("nats://host?x=1", "is not an address"),
        ("nats://host#x", "is not an address"),
        ("nats://host:port", "cannot be read"),
        ("nats://host:99999", "cannot be read"),
        ("nats://host:0", "cannot be read"),
        ("nats://ho st", "cannot be read"),
        ("nats://ho\nst", "cannot be read"),
        ("nats://[::1", "cannot be read"),
        ("nats://@host", "carries an empty login"),
        ("nats://:password@host", "carries an empty login"),
        ("nats://a,ws://b", "mixes WebSocket and plain"),
        ("ws://a,wss://b", "mixes ws:// and wss://"),
        ("nats://x@a,nats://y@b", "different logins"),
        (None, "of type NoneType"),
        (4222, "of type int"),
        (b"nats://host", "of type bytes"),
        (["nats://host", 5], "of type list"),
    ],
)
def test_what_is_no_address_is_refused(url: Any, says: str) -> None:
    """A URL that cannot be used is refused at once, with what is wrong and how to write it."""
    with pytest.raises(OptionError, match=says) as caught:
        ConnectionOptions(url)
    assert caught.value.option == "url"
    assert caught.value.remedy


# -- logins in URLs ------------------------------------------------------------------------------------------


def test_a_token_is_lifted_out_of_the_url() -> None:
    """The address is left without its token, which becomes a field of its own."""
    options = ConnectionOptions("nats://s%2Fecret@host:4222")
    assert (options.url, options.token) == ("nats://host:4222", "s/ecret")


def test_a_user_is_lifted_out_of_the_url() -> None:
    """User and password lose their quoting on the way."""
    options = ConnectionOptions("nats://ann:p%40ss%2Cword@host")
    assert (options.url, options.user, options.password) == ("nats://host:4222", "ann", "p@ss,word")


def test_one_login_serves_all_addresses() -> None:
    """A login in one of several addresses, or the same in all, is the login."""
    assert ConnectionOptions("nats://t@a,b,nats://t@c").token == "t"


def test_the_same_login_may_be_given_twice() -> None:
    """URL and option may agree; where they do not, neither is chosen."""
    assert ConnectionOptions("nats://t@a", token="t").token == "t"
    with pytest.raises(OptionError, match="url carries a token and the option token is another one"):
        ConnectionOptions("nats://t@a", token="u")


# -- contradictions and unknown values -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says", "option"),
    [
        ({"token": "t", "user": "u", "password": "p"}, "token and user are given together", "user"),
        ({"token": "t", "credentials": "x.creds"}, "token and credentials are given together", "credentials"),
        ({"nkey": SEED, "credentials": "x.creds"}, "nkey and credentials are given together", "credentials"),
        ({"url": "nats://t@h", "nkey": SEED}, "token and nkey are given together", "nkey"),
        ({"user": "u"}, "user is given without password", "password"),
        ({"password": "p"}, "password is given without user", "user"),
        ({"tls_cert": "c.pem"}, "tls_cert is given without tls_key", "tls_key"),
        ({"tls_key": "k.pem"}, "tls_key is given without tls_cert", "tls_cert"),
        ({"domain": "hub", "api_prefix": "$JS.x"}, "domain and api_prefix are given together", "domain"),
        ({"domain": "a.b"}, "not one token", "domain"),
        ({"api_prefix": "$JS.>"}, "cannot begin a subject", "api_prefix"),
        ({"inbox_prefix": "_INBOX."}, "cannot begin a subject", "inbox_prefix"),
        ({"inbox_prefix": "a b"}, "cannot begin a subject", "inbox_prefix"),
        ({"inbox_prefix": ""}, "cannot begin a subject", "inbox_prefix"),
        ({"name": ""}, "name must be printable", "name"),
        ({"name": "a\nb"}, "name must be printable", "name"),
        ({"name": None}, "name is of type NoneType", "name"),
        ({"token": b"t"}, "token is of type bytes", "token"),
        ({"user": "u", "password": 5}, "password is of type int", "password"),
        ({"tls_first": "false"}, "tls_first is 'false'", "tls_first"),
        ({"reconnect": 1}, "reconnect is 1", "reconnect"),
        ({"connect_timeout": 0}, "connect_timeout is 0", "connect_timeout"),
        ({"connect_timeout": "5s"}, "connect_timeout is '5s'", "connect_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout is nan", "request_timeout"),
        ({"reconnect_wait": float("inf")}, "reconnect_wait is inf", "reconnect_wait"),
        ({"ping_interval": True}, "ping_interval is True", "ping_interval"),
        ({"reconnect_attempts": -2}, "reconnect_attempts is -2", "reconnect_attempts"),
        ({"reconnect_attempts": 1.5}, "reconnect_attempts is 1.5", "reconnect_attempts"),
        ({"url": "ws://h", "tls_ca": "ca.pem"}, "ws:// address, which has no TLS", "url"),
        ({"url": "wss://h", "tls_first": True}, "tls_first cannot be used with wss", "tls_first"),
        ({"url": "wss://h", "tls_hostname": "x"}, "tls_hostname cannot be used with wss", "tls_hostname"),
        ({"nkey": SEED[:-3]}, "not a whole one", "nkey"),
        ({"nkey": SEED.lower().replace("s", "S", 1)}, "not a whole one", "nkey"),
        ({"credentials": f"eyJ0eXAi.x.y\n{SEED}"}, "neither the path of a file nor the whole text", "credentials"),
    ],
)
def test_contradictions_and_unknown_values_are_refused(fields: dict[str, Any], says: str, option: str) -> None:
    """Options that cannot be honoured are refused, and the error names the one to change."""
    with pytest.raises(OptionError, match=says) as caught:
        ConnectionOptions(**fields)
    assert caught.value.option == option
    assert caught.value.remedy
    assert SEED[:-3] not in str(caught.value)


def test_empty_text_means_not_given() -> None:
    """Context files write "" for what is not there."""
    assert ConnectionOptions(token="", user="", tls_ca="", domain="") == ConnectionOptions()


# -- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "prefix"),
    [({}, "$JS.API"), ({"domain": "hub"}, "$JS.hub.API"), ({"api_prefix": "from.acct"}, "from.acct")],
)
def test_the_jetstream_prefix(fields: dict[str, Any], prefix: str) -> None:
    """A domain is short for a prefix."""
    assert ConnectionOptions(**fields).js_prefix == prefix


@pytest.mark.parametrize(
    ("fields", "insists"),
    [
        ({}, False),
        ({"url": "tls://h"}, True),
        ({"url": "nats://a,tls://b"}, True),
        ({"url": "wss://h"}, True),
        ({"url": "ws://h"}, False),
        ({"tls_ca": "ca.pem"}, True),
        ({"tls_cert": "c.pem", "tls_key": "k.pem"}, True),
        ({"tls_first": True}, True),
        ({"tls_hostname": "x"}, False),
    ],
)
def test_what_insists_on_tls(fields: dict[str, Any], insists: bool) -> None:
    """A TLS address, or a certificate, means that plain text will not do."""
    assert ConnectionOptions(**fields).tls is insists


def test_text_and_paths_are_told_apart() -> None:
    """PEM, credentials and seeds are known by their look; anything else is a path."""
    assert is_text(CREDENTIALS)
    assert is_text(PEM_KEY)
    assert not is_text("/etc/user.creds")
    assert is_seed(f" {SEED}\n")
    assert not is_seed("SUPER.nk")


def test_options_are_frozen_and_replaced() -> None:
    """Options never change; changed copies are checked like new ones."""
    options = ConnectionOptions(token="t")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.token = "u"  # type: ignore[misc]
    assert options.replace(name="x").name == "x"
    assert options.replace(token=None, url="nats://u@h").token == "u"
    with pytest.raises(OptionError, match="connect_timeout"):
        options.replace(connect_timeout=-1)


# -- secrets -------------------------------------------------------------------------------------------------

SECRETS = [
    {"token": "s3cr3t-token"},
    {"user": "ann", "password": "s3cr3t-pass"},
    {"url": "nats://ann:s3cr3t-pass@host"},
    {"url": "nats://s3cr3t-token@host"},
    {"nkey": SEED},
    {"credentials": CREDENTIALS},
    {"tls_cert": "c.pem", "tls_key": PEM_KEY},
]


@pytest.mark.parametrize("fields", SECRETS, ids="+".join)
def test_secrets_are_masked_and_survive_pickling(fields: dict[str, Any]) -> None:
    """Neither repr nor str shows a secret, before pickling and after; the pickled options still hold it."""
    options = ConnectionOptions(**fields)
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.secrets == options.secrets
    assert len(options.secrets) == 1
    for shown in (repr(options), str(options), f"{options}", repr(again), repr([options])):
        assert "***" in shown
        for secret in ("s3cr3t", SEED, "MIGHAgEAMBM", "c2lnbmF0dXJl"):
            assert secret not in shown


def test_paths_are_shown() -> None:
    """The path of a file that holds a secret is none, and helps whoever reads it."""
    options = ConnectionOptions(credentials="/etc/nats/user.creds")
    assert options.secrets == ()
    assert "/etc/nats/user.creds" in repr(options)


@pytest.mark.parametrize(
    "mangled",
    [SEED + "x", "x" + SEED, SEED.lower(), SEED[:45], "MIIE" + "x" * 60],
    ids=["longer", "shifted", "lower", "shorter", "bare-pem"],
)
def test_what_looks_like_key_material_is_hidden(mangled: str) -> None:
    """A key that was copied badly is no path, and is not shown either."""
    for fields in ({"nkey": mangled}, {"credentials": mangled}, {"tls_cert": "c.pem", "tls_key": mangled}):
        try:
            shown = repr(ConnectionOptions(**fields))
        except OptionError as error:
            shown = str(error) + repr(error.value)
        assert mangled not in shown


def test_scrub_takes_secrets_out_of_a_text() -> None:
    """Whatever form a secret takes in a text, it goes; the rest of the text stays."""
    options = ConnectionOptions("nats://ann:p%40ss@host")
    assert options.scrub("ann: p@ss, p%40ss at nats://ann:other@host and tls://t@h") == (
        "ann: ***, *** at nats://***@host and tls://***@h"
    )
    whole = ConnectionOptions(credentials=CREDENTIALS)
    assert whole.scrub(f"seed {SEED}, jwt eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl.") == "seed ***, jwt ***."
    nested = ConnectionOptions(token="abc", tls_cert="c.pem", tls_key=PEM_KEY + "abc")
    assert "MIGH" not in nested.scrub(PEM_KEY + "abc")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://t@host", "nats://***@host"),
        ("nats://u:p@ss/w@host", "nats://***@host"),
        ("nats://a@h1,nats://h2,tls://u:p@h3", "nats://***@h1,nats://h2,tls://***@h3"),
        ("see nats://t@host, or mail ann@example.org", "see nats://***@host, or mail ann@example.org"),
    ],
)
def test_mask_url(text: str, masked: str) -> None:
    """User information goes, hosts stay, and so does all that is no URL."""
    assert mask_url(text) == masked


secret_text = st.text(min_size=6, max_size=24).map(lambda text: f"§{text}§")
field_text = st.one_of(st.none(), st.just(""), st.text(max_size=8))


def show(**fields: Any) -> str:
    """Give all that a user may see of options, or of the error about them."""
    try:
        options = ConnectionOptions(**fields)
    except OptionError as error:
        pickled = pickle.loads(pickle.dumps(error))
        return f"{error} {error!r} {error.facts!r} {pickled!r} {error.__cause__!r}"
    return f"{options!r} {options} {options.url} {options.urls}"


@given(secret_text, field_text, field_text, st.sampled_from(["nats", "tls", "ws", "wss", "http", ""]))
def test_no_secret_in_a_field_ever_shows(secret: str, user: str | None, other: str | None, scheme: str) -> None:
    """Whatever else is right or wrong, a token or password is in no repr and in no error."""
    url = f"{scheme}://host" if scheme else "host"
    assert secret not in show(url=url, token=secret, user=user, domain=other)
    assert secret not in show(url=url, user=user, password=secret, tls_hostname=other)
    assert secret not in show(url=f"{scheme}://{other}@host", password=secret, token=user)


@given(secret_text, st.sampled_from(["nats", "tls", "ws", "http", "na ts"]), st.sampled_from(["", ":4222", ":x", "/p"]))
def test_no_secret_in_a_url_ever_shows(secret: str, scheme: str, tail: str) -> None:
    """A login in a URL is in no repr and in no error, quoted or not, in a good URL or a broken one."""
    quoted = quote(secret, safe="")
    for form in (secret.replace(",", ""), quoted):
        for url in (
            f"{scheme}://{form}@host{tail}",
            f"{scheme}://ann:{form}@host{tail}",
            f"{form}@host{tail}",
            f"ann:{form}@host{tail}",
            f"{scheme}://ann:{form}@host{tail},ws://other",
            f"a,{scheme}://{form}@host{tail},{form}@host",
        ):
            shown = show(url=url)
            assert secret not in shown
            assert quoted not in shown


@given(secret_text.map(lambda text: text + "/,:@x?#"))
def test_no_piece_of_an_unquoted_login_shows_in_an_error(secret: str) -> None:
    """A password with commas and slashes in it, put into a URL as it is, shows in no piece of the error."""
    shown = show(url=f"nats://ann:{secret}@host:4222")
    assert "§" not in shown


def test_advisories_are_heard_below_the_prefix():
    """Who imports JetStream's advisories from another account hears them under the prefix of the import."""
    subject = "$JS.EVENT.ADVISORY.>"
    assert ConnectionOptions().event_subject(subject) == subject
    assert ConnectionOptions(event_prefix="from.acct").event_subject(subject) == "from.acct.ADVISORY.>"
    with pytest.raises(OptionError, match="event_prefix"):
        ConnectionOptions(event_prefix="a.>")


def test_a_jwt_logs_in_with_a_seed_or_alone():
    """A JWT and an nkey are one login; a JWT beside any other is two, and a torn one is refused unseen."""
    jwt = "eyJ0.eyJq.s1g"
    assert ConnectionOptions(jwt=jwt).jwt == jwt
    assert jwt not in repr(ConnectionOptions(jwt=jwt, nkey=SEED))
    for other in ({"token": "t"}, {"user": "a", "password": "p"}, {"credentials": "/x"}):
        with pytest.raises(OptionError, match="are given together"):
            ConnectionOptions(jwt=jwt, **other)
    with pytest.raises(OptionError, match="is not a whole one") as caught:
        ConnectionOptions(jwt="eyJ0.s3cr3t")
    assert "s3cr3t" not in str(caught.value)
