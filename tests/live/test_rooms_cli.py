"""`server`, `apply`, `doctor`, `console` and `pipeline` on the command line: what other tests leave out of them."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke
from tests.support import Authority

Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Run the command; it must succeed unless a status is given, and a failure ends with one sentence."""

    def call(*arguments: str, status: int = 0, url: str | None = server.url, **further: Any) -> Done:
        done = invoke(url, *arguments, **further)
        assert done.status == status, f"{arguments}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        if status in (1, 2):
            assert re.match(r"penstock: |Error: ", done.stderr.splitlines()[-1])
        return done

    return call


def read(done: Done) -> Any:
    """Read the JSON that a command printed, and nothing beside it."""
    return json.loads(done.stdout)


# -- server ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_server_run_tells_programs_where_it_is(run: Run, tmp_path: Path, number: signal.Signals):
    """--json prints one object with the address, the version and each node; a signal ends it, and its process."""
    shown: dict[str, Any] = {}

    def use(talk: Talk) -> None:
        shown.update(json.loads(talk.wait_for("\n}\n")))
        peer = Peer(shown["url"])
        shown["limit"] = peer.client.max_payload
        peer.close()
        talk.interrupt(number)

    store = tmp_path / "store"
    flags = ["--store", str(store), "--sync", "1m", "--json", "--max-payload", "2048", "--token", "sesame"]
    done = run("server", "run", *flags, url=None, beside=use)
    assert (done.stderr, shown["limit"]) == ("", 2048)
    assert shown["url"].startswith("nats://sesame@127.0.0.1:")
    (node,) = shown["nodes"]
    assert set(node) == {"name", "pid", "monitor", "log"}
    assert store in Path(node["log"]).parents
    with pytest.raises(ProcessLookupError):
        os.kill(node["pid"], 0)


def test_server_run_with_tls_and_more_configuration(run: Run, tmp_path: Path):
    """--cert, --key and --ca make a server that wants TLS both ways; --config adds what the file says."""
    authority = Authority(tmp_path / "ca")
    ours, theirs = authority.issue("server", "127.0.0.1"), authority.issue("client", "client")
    extra = tmp_path / "extra.conf"
    extra.write_text('server_tags: ["from-the-file"]\nmax_connections: 7\n')
    facts: dict[str, Any] = {}

    def use(talk: Talk) -> None:
        url = re.search(r"(tls|nats)://\S+", talk.wait_for("Ctrl-C stops it"))
        assert url is not None
        facts["url"] = url.group()
        talk.interrupt()

    flags = ["--cert", str(ours.cert), "--key", str(ours.key), "--ca", str(authority.ca), "--config", str(extra)]
    done = run("server", "run", "--sync", "2m", *flags, url=None, beside=use)
    assert done.stdout == f"{facts['url']}\n"
    assert done.stderr.endswith("Stopped.\n")
    with Server(sync="2m", tls_cert=ours.cert, tls_key=ours.key, tls_ca=authority.ca) as secured:
        flags = ["--tlsca", str(authority.ca), "--tlscert", str(theirs.cert), "--tlskey", str(theirs.key)]
        assert "TLS required: yes" in run("server", "info", *flags, url=secured.url).stdout
        run("rtt", "1", "--tlsca", str(authority.ca), "--timeout", "2s", url=secured.url, status=1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nodes", "2"], "nodes"),
        (["--nodes", "three"], "--nodes"),
        (["--port", "65536"], "port"),
        (["--port", "-1"], "port"),
        (["--sync", "never"], "sync"),
        (["--max-payload", "0"], "max_payload"),
        (["--token", "x", "--no-auth"], "--no-auth"),
        (["--cert", "/nowhere"], "tls_key"),
        (["--config", "/nowhere"], "/nowhere"),
        (["--store", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_server_run_refuses_what_cannot_be(flags: list[str], words: str):
    """Options that make no sense end it with one sentence, and without a server."""
    done = invoke(None, "server", "run", *flags)
    assert done.status in (1, 2), done.stdout
    assert (done.stdout, words in done.stderr) == ("", True), done.stderr


def test_server_run_ends_with_its_server(run: Run):
    """When every node is dead the command says so, and where the log is, with status 1."""

    def kill(talk: Talk) -> None:
        pid = re.search(r"pid (\d+)", talk.wait_for("is running"))
        assert pid is not None
        os.kill(int(pid.group(1)), signal.SIGKILL)

    done = run("server", "run", "--sync", "2m", status=1, url=None, beside=kill)
    assert "n1 is dead; its log is " in done.stderr
    assert "The nats-server that this command started has ended" in done.stderr


def test_server_info(run: Run, server: Server):
    """It names version and limits, for people and for programs, and shows no secret."""
    shown = run("server", "info").stdout
    for words in (f"Version: {server.version}", "Max payload: 1,048,576 bytes", "Login required: yes", "of unlimited"):
        assert words in shown
    facts = read(run("server", "info", "--json"))
    assert set(facts) == {"server", "rtt", "jetstream"}
    assert facts["rtt"] > 0
    assert not {"nonce", "client_ip"} & set(facts["server"])
    assert server.token not in shown + json.dumps(facts)


# -- apply -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("[streams", "t.toml"),
        ('[streams.A]\nsubjects = "a"\n', "subjects"),
        ("[streams.A]\nmax_msgs = -9\nsubjects = ['a']\n", "max_msgs"),
        ("[streams.'a.b']\nsubjects = ['a']\n", "a name has no dots"),
        ("[streams.A]\nsubjects = ['a']\n[streams.B]\nsubjects = ['a']\n", "overlap"),
        ("[streams.A]\nsubjects = ['a']\n[streams.A.consumers.c]\nfilter_subject = 'a..b'\n", "empty token"),
        ("[strems.A]\nsubjects = ['a']\n", "strems"),
    ],
)
def test_a_topology_that_is_wrong(tmp_path: Path, content: str | None, words: str):
    """A file that cannot be read, or declares what cannot be, is bad input, told before a server is asked."""
    file = tmp_path / "t.toml"
    if content is not None:
        file.write_text(content)
    done = invoke("nats://127.0.0.1:1", "apply", str(file))
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr


def test_apply_for_programs(run: Run, unique: Callable[..., str], tmp_path: Path):
    """The plan and the outcome are the same shape; pruning asks for what it deletes by name."""
    name, file = unique("AP"), tmp_path / "t.toml"
    declared = f"[streams.{name}]\nsubjects = ['{name}']\n"
    file.write_text(f"{declared}[streams.{name}.consumers.c]\nack_wait = '5s'\n")
    plan = read(run("apply", str(file), "--plan", "--json"))
    assert [(step["kind"], step["action"]) for step in plan["steps"]] == [("stream", "create"), ("consumer", "create")]
    assert read(run("apply", str(file), "--json"))["steps"] == plan["steps"]
    again = read(run("apply", str(file), "--json"))
    assert [step["action"] for step in again["steps"]] == ["none", "none"]
    file.write_text(declared)
    assert read(run("apply", str(file), "--plan", "--json"))["undeclared"] == [f"{name} > c"]
    pruned = read(run("apply", str(file), "--plan", "--prune", "--json"))
    assert [step["action"] for step in pruned["steps"]] == ["none", "delete"]
    asked = run("apply", str(file), "--prune", stdin="n\n", status=2).stderr
    assert f"Really delete consumer {name} > c" in asked
    assert "1 deleted" in run("apply", str(file), "--prune", stdin="y\n").stdout


# -- doctor and console ----------------------------------------------------------------------------------------------


def test_doctor_looks_at_everything(run: Run, server: Server, tmp_path: Path):
    """Each finding says what, how it is, and what to do; a server is asked where one is named."""
    findings = read(run("doctor", "--json", "--store", str(tmp_path)))
    assert {tuple(sorted(finding)) for finding in findings} == {("found", "remedy", "state", "what")}
    assert {finding["state"] for finding in findings} <= {"ok", "note"}
    assert f"nats-server {server.version}" in {finding["found"] for finding in findings}
    assert "Connection" not in {finding["what"] for finding in read(run("doctor", "--json", url=None))}
    shown = run("doctor").stdout
    assert re.search(r"Python +│ ✓ ok", shown)


@pytest.mark.parametrize(
    ("flags", "env", "what"),
    [
        (["--store", "/nowhere"], {}, "Disk"),
        (["-s", "nats://127.0.0.1:1"], {}, "Connection"),
        ([], {"PENSTOCK_NATS_SERVER": "/nowhere"}, "nats-server"),
        ([], {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}, "Java"),
    ],
)
def test_doctor_ends_with_one_where_something_is_bad(flags: list[str], env: dict[str, str], what: str):
    """What is bad is marked, has a remedy, and makes the status 1; the rest is shown all the same."""
    done = invoke(None, "doctor", "--json", *flags, **env)
    assert done.status == 1
    bad = {finding["what"]: finding["remedy"] for finding in read(done) if finding["state"] == "bad"}
    assert list(bad) == [what]
    assert bad[what]
    assert len(read(done)) >= 7


def test_console_says_where_it_is(run: Run, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The address that is printed lets a browser in; Ctrl-C ends it with 0."""
    monkeypatch.chdir(tmp_path)
    pages: list[str] = []

    def look(talk: Talk) -> None:
        url = re.search(r"Console: (\S+)", talk.wait_for("Ctrl-C ends it"))
        assert url is not None
        address, _, token = url.group(1).partition("/?token=")
        asked = urllib.request.Request(f"{address}/streams.json", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            pages.append(answer.read().decode())
        talk.interrupt()

    done = run("console", beside=look)
    assert json.loads(pages[0]) is not None
    assert server.token not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "65536"], "--port"),
        (["--host", ""], "host"),
        (["--pipeline", "/nowhere"], "/nowhere"),
        (["--timeout", "x"], "--timeout"),
        (["-s", "http://x"], "scheme"),
    ],
)
def test_console_refuses_bad_input(flags: list[str], words: str):
    """What cannot be is refused before anything listens."""
    done = invoke(None, "console", *flags)
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr


# -- pipelines without Spark -----------------------------------------------------------------------------------------


def test_a_new_pipeline(run: Run, tmp_path: Path):
    """`new` makes a folder that can be looked at and reset at once, and never writes over one that is there."""
    said = run("pipeline", "new", "shop", "--in", str(tmp_path)).stdout
    folder = tmp_path / "shop"
    assert f"Made {folder}" in said
    assert {"spark-pipeline.yaml", "topology.toml", "transformations"} <= {path.name for path in folder.iterdir()}
    assert "is there already" in run("pipeline", "new", "shop", "--in", str(tmp_path), status=2).stderr
    state = read(run("pipeline", "status", str(folder), "--json"))
    assert (state["name"], state["running"], state["flows"]) == ("shop", False, [])
    said = run("pipeline", "status", str(folder)).stdout
    assert (
        said
        == f"Pipeline shop is not running.\nNo flow has begun a batch yet. `penstock pipeline run {folder}` runs it.\n"
    )
    assert run("pipeline", "reset", str(folder)).stdout == "There is nothing to reset.\n"


def test_a_reset_asks(run: Run, tmp_path: Path):
    """What is to be deleted is named, and stays without a yes."""
    run("pipeline", "new", "shop", "--in", str(tmp_path))
    storage = tmp_path / "kept"
    (storage / "_checkpoints").mkdir(parents=True)
    flags = [str(tmp_path / "shop"), "--storage", str(storage)]
    refused = invoke(None, "pipeline", "reset", *flags, stdin="n\n")
    assert refused.status == 2
    assert "Not confirmed; nothing was changed." in refused.stderr
    assert str(storage) in refused.stdout + refused.stderr
    assert (storage / "_checkpoints").is_dir()
    assert "Reset." in run("pipeline", "reset", *flags, "-f").stdout
    assert not (storage / "_checkpoints").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "a b"], "cannot be the name"),
        (["new", "../x"], "cannot be the name"),
        (["run", "/nowhere"], "There is no pipeline at /nowhere"),
        (["status", "/nowhere"], "There is no pipeline at /nowhere"),
        (["reset", "/nowhere"], "There is no pipeline at /nowhere"),
        (["replay", "/nowhere"], "There is no pipeline at /nowhere"),
        (["replay", "SHOP", "--into", "A"], "--into"),
        (["replay", "SHOP", "--into", "=B"], "--into"),
        (["replay", "SHOP", "--from", "whenever"], "whenever"),
        (["replay", "SHOP", "--name", "a b"], "a b"),
        (["run", "SHOP", "--pause", "x"], "--pause"),
        (["run", "SHOP", "--remote", "http://x"], "sc://"),
        (["switch", "SHOP"], "--to"),
        (["switch", "SHOP", "--to", "x", "--back"], "--to"),
        (["switch", "SHOP", "--to", "x"], "has no replay x"),
        (["switch", "SHOP", "--back"], "is not switched"),
    ],
)
def test_pipelines_refuse_bad_input_before_spark(run: Run, tmp_path: Path, arguments: list[str], words: str):
    """What cannot be done is said at once, and Spark is not started for it."""
    run("pipeline", "new", "shop", "--in", str(tmp_path))
    words_of = [word.replace("SHOP", str(tmp_path / "shop")) for word in arguments]
    assert words in run("pipeline", *words_of, status=2).stderr
    assert not (tmp_path / "shop" / "storage" / "spark.log").exists()
