"""The files of contexts: written as the `nats` command writes them, whole or not at all, and nothing lost."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from penstock import context_files, contexts
from penstock.contexts import change_context, embed_files, load_options, mask_context, shared_form
from penstock.errors import ContextError, OptionError
from tests.support import Key, Operator

# What `nats context add` (natscli 0.5.0) wrote for these, to the byte.
WRITTEN = b"""{
  "description": "a \\u003cb\\u003e \\u0026 \xc3\xbc",
  "url": "nats://localhost:4333",
  "socks_proxy": "",
  "token": "",
  "user": "bob",
  "password": "p\\u0026\\u003c",
  "creds": "",
  "nkey": "",
  "cert": "",
  "key": "",
  "ca": "",
  "nsc": "",
  "jetstream_domain": "hub",
  "jetstream_api_prefix": "",
  "jetstream_event_prefix": "",
  "inbox_prefix": "",
  "user_jwt": "",
  "user_seed": "",
  "color_scheme": "blue",
  "tls_first": false,
  "windows_cert_store": "",
  "windows_cert_match_by": "",
  "windows_cert_match": "",
  "windows_ca_certs_match": null
}"""
FIELDS = {
    "color_scheme": "blue",
    "jetstream_domain": "hub",
    "password": "p&<",
    "user": "bob",
    "url": "nats://localhost:4333",
    "description": "a <b> & ü",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def read(name: str, environ: dict[str, str]) -> dict:
    return context_files.read_context(context_files.context_path(name, environ), name)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_context_is_written_as_the_nats_command_writes_it(environ):
    """Order, indent and escapes are Go's, and only the owner reads it."""
    path = context_files.write_context("x", FIELDS, environ)
    assert path.read_bytes() == WRITTEN
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)
    assert sorted(item.name for item in path.parent.iterdir()) == ["x.json"]


def test_fields_that_nobody_knows_are_kept(environ):
    """What another version of the command wrote is there after a change, whatever kind it is."""
    strange = {"later": {"deep": [1, "\ud83d", None]}, "penstock": {"tls_hostname": "h"}, "url": "nats://a"}
    context_files.write_context("x", strange, environ)
    context_files.write_context("x", change_context(read("x", environ), {"description": "new"}), environ)
    found = read("x", environ)
    assert {name: found[name] for name in strange} == strange
    assert found["description"] == "new"


def test_a_write_that_fails_changes_nothing(environ, monkeypatch):
    """The old file stays whole, and nothing is left beside it."""
    path = context_files.write_context("x", FIELDS, environ)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ContextError, match="cannot be written: No space left on device"):
        context_files.write_context("x", {"url": "nats://new"}, environ)
    assert path.read_bytes() == WRITTEN
    assert sorted(item.name for item in path.parent.iterdir()) == ["x.json"]


def test_a_link_stays_a_link(environ, tmp_path):
    """Who keeps contexts elsewhere, and links to them, goes on doing so."""
    path = context_files.write_context("x", FIELDS, environ)
    kept = tmp_path / "kept.json"
    path.rename(kept)
    path.symlink_to(kept)
    context_files.write_context("x", {"url": "nats://new"}, environ)
    assert path.is_symlink()
    assert json.loads(kept.read_text())["url"] == "nats://new"


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a\\b", "a..b", "x.json", "a\nb", "a\x1b[1m", "x" * 300])
def test_a_name_stays_in_its_folder(environ, name: str):
    """What is no plain name of a file is refused, before anything is touched."""
    for act in (
        lambda: context_files.write_context(name, FIELDS, environ),
        lambda: context_files.select_context(name, environ),
        lambda: context_files.remove_context(name, environ),
    ):
        with pytest.raises(ContextError, match="cannot be the name of a context"):
            act()
    assert not Path(environ["XDG_CONFIG_HOME"]).exists()


def test_only_contexts_are_listed(environ):
    """Folders, empty files and other files are none; without a folder there are none at all."""
    assert context_files.known_contexts(environ) == []
    folder = context_files.write_context("b", FIELDS, environ).parent
    context_files.write_context("a ü", FIELDS, environ)
    (folder / "c.json").mkdir()
    (folder / "d.json").touch()
    (folder / "e.txt").write_text("{}")
    (folder / "f.json.tmp-1").write_text("{}")
    assert context_files.known_contexts(environ) == ["a ü", "b"]


def test_selecting_remembers_what_was_selected(environ):
    """Select, select another, go back, select none: two files say it, as with the `nats` command."""
    for name in ("a", "b"):
        context_files.write_context(name, FIELDS, environ)
    place = context_files.context_folder(environ).parent
    assert context_files.select_context("a", environ) is None
    assert context_files.previous_context(environ) is None
    assert context_files.select_context("b", environ) == "a"
    assert (place / "context.txt").read_bytes() == b"b"
    assert (place / "previous-context.txt").read_bytes() == b"a"
    assert mode(place / "context.txt") == 0o600
    assert context_files.unselect_context(environ) == "b"
    assert (context_files.selected_context(environ), context_files.previous_context(environ)) == (None, "b")
    with pytest.raises(ContextError, match="There is no context 'c'"):
        context_files.select_context("c", environ)
    context_files.select_context("a", environ)
    context_files.remove_context("a", environ)
    assert context_files.selected_context(environ) is None
    with pytest.raises(ContextError, match=r"There is no context 'a'\. Known contexts: b\."):
        context_files.remove_context("a", environ)


# -- changing and showing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({"user": "a", "password": "p"}, {"creds": "/x"}, {"creds": "/x"}),
        ({"creds": "/x"}, {"user": "a", "password": "p"}, {"user": "a", "password": "p"}),
        ({"user": "a", "password": "p"}, {"password": "q"}, {"user": "a", "password": "q"}),
        ({"user_jwt": "j", "user_seed": "s"}, {"token": "t"}, {"token": "t"}),
        ({"nsc": "nsc://o/a/u"}, {"nkey": "/n"}, {"nkey": "/n"}),
        ({"token": "t"}, {"url": "nats://u:p@h"}, {"url": "nats://u:p@h"}),
        ({"token": "t"}, {"url": "nats://h"}, {"url": "nats://h", "token": "t"}),
        ({"token": "t"}, {"token": ""}, {"token": ""}),
        ({"jetstream_domain": "d"}, {"jetstream_api_prefix": "p"}, {"jetstream_api_prefix": "p"}),
        ({"socks_proxy": "socks5://h"}, {"socks_proxy": "none"}, {"socks_proxy": ""}),
    ],
)
def test_a_login_takes_the_place_of_another(before: dict, changes: dict, after: dict):
    """Two logins never stand in one context; what is not named stays."""
    assert change_context({"kept": 1, **before}, changes) == {"kept": 1, **after}


def test_no_secret_is_shown():
    """Secrets are asterisks, in whatever field they stand; paths and references to secrets are shown."""
    seed = Key.make().seed
    shown = mask_context(
        {
            "url": "nats://s3cr3t@h,nats://u:s3cr3t@h",
            "socks_proxy": "socks5://u:s3cr3t@h",
            "token": "s3cr3t",
            "password": "s3cr3t",
            "creds": "data:;base64," + base64.b64encode(b"s3cr3t").decode(),
            "nkey": seed,
            "user_jwt": "eyJs.s3cr3t.x",
            "user_seed": seed,
            "description": ["s3cr3t"],
            "key": "-----BEGIN PRIVATE KEY-----\ns3cr3t\n-----END PRIVATE KEY-----\n",
            "tls_first": "s3cr3t",
            "windows_ca_certs_match": {"a": "s3cr3t"},
            "unknown": "s3cr3t",
            "penstock": {"tls_hostname": "h", "unknown": "s3cr3t"},
        }
    )
    assert "s3cr3t" not in json.dumps(shown)
    assert seed not in json.dumps(shown)
    assert (shown["url"], shown["penstock"]) == ("nats://***@h,nats://***@h", {"tls_hostname": "h"})
    plain = {
        "creds": "/x.creds",
        "nkey": "~/n.nk",
        "password": "env://PW",
        "token": "file:///t",
        "user": "a",
        "ca": "/ca",
    }
    assert {name: mask_context(plain)[name] for name in plain} == plain


# -- references -------------------------------------------------------------------------------------------------------


def test_a_secret_may_be_a_reference(environ, tmp_path):
    """file://, env:// and data: lead to the secret, in contexts and with the same meaning as for the `nats` command."""
    operator, key = Operator(), Key.make()
    text = operator.credentials()
    (tmp_path / "x.creds").write_text(text)
    (tmp_path / "password").write_text("pä\n")
    environ |= {"PLACE": str(tmp_path), "TOKEN": "t0k", "SEED": f"# mine\n{key.seed}\n"}

    def options(**fields: str) -> object:
        context_files.write_context("x", {"url": "nats://h", **fields}, environ)
        return load_options(context="x", environ=environ)

    assert options(creds="file://$PLACE/x.creds").credentials == str(tmp_path / "x.creds")
    assert options(creds="${PLACE}/x.creds").credentials == str(tmp_path / "x.creds")
    assert options(creds="FILE://~/x.creds").credentials == str(tmp_path / "x.creds")
    assert options(user="a", password="file://~/password").password == "pä"
    assert options(token="env://TOKEN").token == "t0k"
    assert options(nkey="env://SEED").nkey == key.seed
    embedded = embed_files({"creds": "~/x.creds", "token": "/x"}, environ)
    assert embedded == {"creds": "data:;base64," + base64.b64encode(text.encode()).decode(), "token": "/x"}
    assert options(creds=embedded["creds"]).credentials == text.strip("\n")
    assert options(token="a:b//c").token == "a:b//c"
    for fields in (
        {"creds": "env://NONE"},
        {"nkey": "env://TOKEN"},
        {"token": "file:///no/such"},
        {"token": "op://v/i/f"},
    ):
        with pytest.raises(ContextError, match="The context 'x' cannot be used") as caught:
            options(**fields)
        assert "t0k" not in str(caught.value)
    with pytest.raises(OptionError, match=r"file .*/none cannot be read"):
        embed_files({"creds": "/none"}, environ)


def test_what_is_kept_can_be_read_by_both_commands(tmp_path, monkeypatch):
    """The `nats` command takes nkey for a path and user_seed for the seed itself; anything else is a reference."""
    monkeypatch.chdir(tmp_path)
    seed, jwt = Key.make().seed, "eyJ0.eyJq.s1g"
    embedded = "data:;base64," + base64.b64encode(seed.encode()).decode()
    for field, given, kept in (
        ("nkey", "n.nk", f"{tmp_path}/n.nk"),
        ("nkey", seed, embedded),
        ("user_seed", seed, seed),
        ("user_seed", "s.nk", f"file://{tmp_path}/s.nk"),
        ("user_jwt", jwt, jwt),
        ("creds", "~/x.creds", "~/x.creds"),
        ("creds", "env://X", "env://X"),
        ("ca", "../ca.pem", f"{tmp_path.parent}/ca.pem"),
        ("token", "t", "t"),
        ("creds", "", ""),
    ):
        assert shared_form(field, given) == kept


def test_a_literal_that_looks_like_a_reference_survives():
    """What we hand to a child of ours as a context is never resolved twice."""
    from penstock import ConnectionOptions

    options = ConnectionOptions(user="a", password="env://HOME")
    found = contexts.to_context(options)
    assert contexts.check_context("x", found, {"HOME": "/h"}) == options
