"""`penstock context`, and the global flags that say where the server is and as whom we come."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, invoke
from tests.support import Key, Operator


class Home:
    """A configuration folder of our own."""

    def __init__(self, folder: Path) -> None:
        self.env = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
        self.folder = folder / "config" / "nats" / "context"

    def __call__(self, *arguments: str, url: str | None = None, **env: str) -> Done:
        return invoke(url, *arguments, **{**self.env, **env})

    def read(self, name: str) -> dict:
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def good(done: Done) -> str:
    assert done.status == 0, done.stderr
    return done.stdout


def refused(done: Done, *words: str, status: int = 2) -> None:
    assert (done.status, done.stdout) == (status, ""), done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


# -- add, change, copy ------------------------------------------------------------------------------------------------


def test_a_context_is_made_used_and_removed(home: Home, server: Server):
    """add, ls, select, info, rtt with it, unselect, rm: a day of a context, which never shows its token."""
    token, _, place = server.url.partition("://")[2].partition("@")
    said = good(home("context", "add", "one", "-s", f"nats://{place}", "--token", token, "--description", "the first"))
    assert token not in said
    assert home.read("one")["token"] == token
    assert home.read("one")["url"] == f"nats://{place}"
    good(home("context", "add", "two", "--select"))
    assert home.read("two")["url"] == "nats://127.0.0.1:4222"
    assert "two*" in good(home("context", "ls"))
    assert good(home("ctx", "ls", "--names")) == "one\ntwo\n"
    said = good(home("context", "select", "one"))
    assert "Selected: true" in said
    assert token not in said
    good(home("rtt", "1"))
    assert "Connection: OK" in good(home("context", "info", "--connect"))
    listed = json.loads(good(home("context", "ls", "--json")))
    assert [(item["name"], item["token"]) for item in listed] == [("one", "***"), ("two", "")]
    assert json.loads(good(home("context", "show", "one", "--json"))) == listed[0]
    assert "two" in good(home("context", "-"))
    assert "one" in good(home("context", "previous"))
    refused(home("context", "rm", "one"), "is the selected one")
    good(home("context", "rm", "one", "-f"))
    refused(home("context", "info"), "No context is selected")
    refused(home("context", "rm", "one", "-f"), "There is no context 'one'", "two")
    done = home("context", "rm", "two")
    assert (done.status, home.read("two")["url"]) == (2, "nats://127.0.0.1:4222")
    assert "Not confirmed" in done.stderr
    good(invoke(None, "context", "rm", "two", stdin="y\n", **home.env))
    assert good(home("context", "ls", "--json")) == "[]\n"


def test_add_changes_what_is_named_and_nothing_else(home: Home, tmp_path: Path):
    """A second add keeps the rest, replaces a login whole, and an empty value takes a setting back."""
    good(home("context", "add", "x", "--user", "ann", "--password", "p", "--js-domain", "hub", "--colors", "red"))
    path = home.folder / "x.json"
    path.write_text(json.dumps({**home.read("x"), "later": {"kept": True}}))
    (tmp_path / "seed.nk").write_text(Key.make().seed)
    done = home(
        "context", "add", "x", "--nkey", os.path.relpath(tmp_path / "seed.nk"), "--js-domain", "", "--domain=h2"
    )
    assert "(found)" in good(done)
    found = home.read("x")
    assert (found["user"], found["password"], found["nkey"]) == ("", "", str(tmp_path / "seed.nk"))
    assert (found["jetstream_domain"], found["color_scheme"], found["later"]) == ("h2", "red", {"kept": True})
    assert "Other Settings: later" in done.stdout
    good(home("context", "copy", "x", "y", "--description", "a copy", "--embed"))
    assert home.read("y")["nkey"].startswith("data:;base64,")
    assert home.read("y")["later"] == {"kept": True}
    refused(home("context", "copy", "x", "y"), "There is a context 'y' already")
    good(home("context", "add", "z", "--context", "x"))
    assert home.read("z") == home.read("x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "../x"), ["cannot be the name"]),
        (("add", "x", "-s", "http://s3cr3t@h"), ["unknown scheme"]),
        (("add", "x", "--creds", "/no/such.creds"), ["/no/such.creds cannot be read"]),
        (("add", "x", "--token", "s3cr3t", "--creds", "/x"), ["token and credentials are given together"]),
        (("add", "x", "--jwt", "eyJs.s3cr3t"), ["is not a whole one"]),
        (("add", "x", "--password", "s3cr3t"), ["password is given without user"]),
        (("add", "x", "--tlscert", "/no/such"), ["tls_cert is given without tls_key"]),
        (("add", "x", "--creds", "nsc://o/a/u"), ["nsc lookup"]),
        (("add", "x", "--colors", "pink"), ["--colors is 'pink'", "rounded"]),
        (("add", "x", "--user", "s3cr3t", "--token", "other"), ["--user without --password is a token"]),
        (("add", "x", "--nkey", "/n", "--seed", "/s"), ["--nkey and --seed"]),
        (("copy", "none", "x"), ["There is no context 'none'"]),
        (("select", "none"), ["There is no context 'none'"]),
        (("select",), ["There is no context"]),
        (("previous",), ["No context was selected before"]),
        (("edit", "none"), ["There is no context 'none'"]),
        (("validate", "none"), ["There is no context 'none'"]),
    ],
)
def test_what_cannot_be_kept_is_refused(home: Home, arguments: tuple[str, ...], words: list[str]):
    """One sentence, status 2, no secret, and no file."""
    done = home("context", *arguments)
    refused(done, *words)
    assert "s3cr3t" not in done.stderr
    assert not home.folder.exists()


def test_the_environment_counts_as_flags_do_and_is_told(home: Home):
    """What is taken from a variable is said, so that nobody keeps a setting unawares."""
    done = home("context", "add", "x", NATS_URL="nats://h:1", NATS_TOKEN="t0k")
    assert home.read("x")["token"] == "t0k"
    assert "NATS_URL" in done.stderr
    assert "NATS_TOKEN" in done.stderr
    assert "t0k" not in done.stderr + done.stdout
    said = good(home("context", "add", "later", "--user", "ann", "--password", "env://NOT_YET"))
    assert home.read("later")["password"] == "env://NOT_YET"
    assert "the variable NOT_YET is not set" in said
    done = home("context", "info", "x", NATS_URL="nats://h:1")
    assert "NATS_URL" in done.stderr


# -- edit and validate ------------------------------------------------------------------------------------------------


def test_edit_checks_what_comes_of_it(home: Home, tmp_path: Path):
    """The editor gets a private copy; what is broken, given up or no context changes nothing, and no copy stays."""
    good(home("context", "add", "x", "--token", "s3cr3t"))
    before = (home.folder / "x.json").read_bytes()
    seen = tmp_path / "seen"
    script = f'sed -i s,127.0.0.1:4222,h:9, "$1"; stat -c "%a %n" "$(dirname "$1")" > {seen}; echo "$1" >> {seen}'
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o755)
    said = good(home("context", "edit", "x", EDITOR=f"'{editor}'"))
    assert "nats://h:9" in said
    assert "s3cr3t" not in said
    assert home.read("x") == {**json.loads(before), "url": "nats://h:9"}
    permissions, path = seen.read_text().splitlines()
    assert permissions.startswith("700 ")
    assert not Path(path).parent.exists()
    after = (home.folder / "x.json").read_bytes()
    for editor_text, word in (
        ("false", "failed"),
        ("/no/such", "failed"),
        ("'", "failed"),
        ("", "No editor"),
        ("sed -i s,nats:,http:,", "unknown scheme"),
        ("sed -i s,{,[,", "cannot be read"),
        ("sed -i d", "cannot be read"),
    ):
        refused(home("context", "vi", "x", EDITOR=editor_text, VISUAL=""), word)
        assert (home.folder / "x.json").read_bytes() == after
    good(home("context", "select", "x"))
    meanwhile = f"sh -c 'echo {{}} > {home.folder}/x.json'"
    refused(home("context", "edit", "x", EDITOR=meanwhile), "was changed by somebody else")


def test_a_broken_context_can_be_mended_or_removed(home: Home):
    """Nobody is told to use a command that then refuses for the same reason."""
    good(home("context", "add", "x", "--select"))
    (home.folder / "x.json").write_text('{"url": "nats://h:9"')
    (home.folder.parent / "context.txt").write_bytes(b"\xff")
    refused(home("context", "add", "x"), "cannot be read", "penstock context edit")
    good(home("context", "edit", "x", EDITOR="sed -i s,$,},"))
    assert home.read("x")["url"] == "nats://h:9"
    good(home("context", "select", "x"))
    (home.folder / "x.json").write_text("{")
    good(home("context", "rm", "x", "-f"))
    assert not (home.folder / "x.json").exists()


def test_validate_names_what_is_wrong(home: Home, server: Server, tmp_path: Path):
    """All contexts are looked at; a file that is gone, JSON that is broken and a server that is away give status 1."""
    creds = tmp_path / "x.creds"
    creds.write_text(Operator().credentials())
    good(home("context", "add", "fine", "-s", server.url))
    good(home("context", "add", "gone", "--creds", str(creds)))
    good(home("context", "validate"))
    creds.unlink()
    (home.folder / "torn.json").write_text("{")
    (home.folder / "old.json").write_text('{"nsc": "nsc://o/a/u"}')
    done = home("context", "validate")
    assert done.status == 1
    assert "3 of 4 contexts cannot be used" in done.stderr
    for words in ("(missing)", "torn.json cannot be read", "asks for an nsc lookup", "x.creds cannot be read"):
        assert words in done.stdout
    assert "Connection: OK" in good(home("context", "validate", "fine", "--connect"))
    done = home("context", "ls")
    assert done.status == 0
    assert "torn.json" in done.stderr


# -- flags ------------------------------------------------------------------------------------------------------------


def test_no_context_takes_none(home: Home, server: Server):
    """--no-context leaves the selected context and NATS_CONTEXT alone, and contradicts --context."""
    good(home("context", "add", "x", "-s", "nats://127.0.0.1:1", "--select"))
    assert home("rtt", "1", url=None).status == 1
    assert home("rtt", "1", url=server.url, NATS_CONTEXT="x").status == 0
    good(home("rtt", "1", "--no-context", url=server.url, NATS_CONTEXT="gone"))
    refused(home("rtt", "--no-context", "--context", "x"), "--context and --no-context")


def test_a_typed_login_goes_before_the_environment(home: Home, server: Server):
    """A token that is typed is used, whatever NATS_CREDS or NATS_USER say; two of the environment contradict."""
    token, _, place = server.url.partition("://")[2].partition("@")
    address = f"nats://{place}"
    good(home("rtt", "1", "--token", token, url=address, NATS_CREDS="/no/such", NATS_USER="ann"))
    good(home("rtt", "1", "--user", token, url=address, NATS_NKEY="/no/such"))
    good(home("rtt", "1", url=address, NATS_TOKEN=token))
    refused(home("rtt", url=address, NATS_TOKEN=token, NATS_CREDS="/no/such"), "are given together")
    good(home("rtt", "1", "--token", "env://MINE", url=address, MINE=token))


@pytest.mark.parametrize("flag", ["--creds", "--nkey", "--jwt", "--tlsca"])
def test_a_missing_file_is_told_before_anything_is_opened(flag: str):
    """Status 2, with the path: no server is asked."""
    refused(invoke("nats://127.0.0.1:1", "rtt", flag, "/no/such/file"), "/no/such/file", "cannot be read")


@pytest.fixture(scope="module")
def operated() -> Iterator[tuple[Server, Operator]]:
    """A server that lets in who holds a JWT of its account, and the one who signs them."""
    operator = Operator()
    with Server(sync="2m", auth=False, config=operator.config()) as running:
        yield running, operator


def test_a_jwt_and_its_seed_log_in(home: Home, operated: tuple[Server, Operator], tmp_path: Path):
    """As text, as files and in a context; a JWT without its seed is refused by the server."""
    server, operator = operated
    lines = operator.credentials().splitlines()
    jwt, seed = lines[1], next(line for line in lines if line.startswith("SU"))
    (tmp_path / "jwt").write_text(f"{jwt}\n")
    (tmp_path / "seed").write_text(f"{seed}\n")
    good(home("rtt", "1", "--jwt", jwt, "--seed", seed, url=server.url))
    good(home("rtt", "1", url=server.url, NATS_JWT=str(tmp_path / "jwt"), NATS_SEED=str(tmp_path / "seed")))
    said = good(home("context", "add", "x", "-s", server.url, "--jwt", jwt, "--seed", seed))
    assert jwt not in said
    assert seed not in said
    assert (home.read("x")["user_jwt"], home.read("x")["user_seed"], home.read("x")["nkey"]) == (jwt, seed, "")
    good(home("rtt", "1", "--context", "x"))
    files = ("--jwt", str(tmp_path / "jwt"), "--seed", str(tmp_path / "seed"))
    assert good(home("context", "add", "y", "-s", server.url, *files)).count("(found)") == 2
    good(home("rtt", "1", "--context", "y"))
    done = home("rtt", "1", "--jwt", jwt, url=server.url)
    assert (done.status, "refuses the login with a JWT" in done.stderr) == (1, True)
    (tmp_path / "x.creds").write_text(operator.credentials())
    said = good(home("account", "info", "--creds", str(tmp_path / "x.creds"), url=server.url))
    assert f"({operator.account.public})" in said or operator.account.public in said


# -- beside the nats command ------------------------------------------------------------------------------------------


if shutil.which("nats"):  # where it is installed

    def test_the_nats_command_reads_and_writes_the_same_files(home: Home):
        """What we write it reads, and writes again to the byte; what it selects and changes we see."""

        def nats(*arguments: str) -> str:
            env = {**os.environ, **home.env}
            return subprocess.run(["nats", *arguments], capture_output=True, text=True, check=True, env=env).stdout

        flags = (
            "-s",
            "nats://h:1",
            "--user",
            "bob",
            "--password",
            "p&<ü",
            "--js-event-prefix",
            "e",
            "--description",
            "é>",
        )
        good(home("context", "add", "ours", *flags))
        nats("context", "add", "theirs", *flags)
        assert (home.folder / "ours.json").read_bytes() == (home.folder / "theirs.json").read_bytes()
        nats("context", "select", "ours")
        assert "ours*" in good(home("context", "ls"))
        good(home("context", "select", "theirs"))
        assert "theirs*" in nats("context", "ls")
        ours = json.loads(good(home("context", "info", "ours", "--json")))
        theirs = json.loads(nats("context", "info", "ours", "--json"))
        assert list(ours) == list(theirs)
        assert {**ours, "password": "p&<ü"} == theirs
