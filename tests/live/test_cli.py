"""The command, run as its users run it, against the real server."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.server import Server
from tests.live.command import Command, imported


@pytest.fixture
def penstock(server: Server, tmp_path: Path) -> Command:
    return Command(tmp_path, server.url)


@pytest.fixture
def stranger(tmp_path: Path) -> Command:
    """The command in a home without any server to talk to."""
    return Command(tmp_path)


def one_sentence(done, status: int, *words: str) -> None:
    """Assert the manner of every failure: a status, one line on stderr, no traceback."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("penstock: ")
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


# -- messages ---------------------------------------------------------------------------------------------------------


def test_pub_reaches_sub(penstock: Command, unique):
    """What pub sends, sub shows: subject, headers and body, with a timestamp where -t asks for one."""
    subject = unique("cli")
    with penstock.running("sub", f"{subject}.>", "-t", "--count", "2") as sub:
        sub.wait_for("Subscribing on")
        done = penstock("pub", f"{subject}.a", "hello", "-H", "Color:red", "-H", "Size:1")
        assert done.stdout == f"Published 5 bytes to {subject}.a\n"
        assert penstock("pub", f"{subject}.b", stdin="from stdin").returncode == 0
        lines = sub.rest()
        assert sub.process.returncode == 0
    text = "\n".join(lines)
    assert f"[#1] Received on {subject}.a" in text
    assert lines[1][:4].isdigit()
    assert "Color: red\nSize: 1\n\nhello" in text
    assert "from stdin" in text


def test_pub_counts_and_fills_templates(penstock: Command, unique):
    """--count sends so many, and {{Count}} is the number of each, in the subject too."""
    subject = unique("cli")
    with penstock.running("sub", f"{subject}.*", "--raw", "--count", "3", "--wait", "20s") as sub:
        with penstock.running("sub", f"{subject}.ready") as other:
            other.wait_for("Subscribing")  # started later, so the first one is subscribed or about to be
        while not sub.lines:
            penstock("pub", f"{subject}.0", "probe")
            try:
                sub.wait_for("probe", timeout=1)
            except AssertionError:
                continue
        penstock("pub", f"{subject}.{{{{Count}}}}", "order {{Count}}", "--count", "2")
        assert sub.rest()[-2:] == ["order 1", "order 2"]


def test_sub_headers_only_and_queue(penstock: Command, unique):
    """--headers-only leaves payloads out, and members of a queue share what comes."""
    subject = unique("cli")
    with (
        penstock.running("sub", subject, "--queue", "q", "--headers-only") as one,
        penstock.running("sub", subject, "--queue", "q", "--headers-only") as other,
    ):
        one.wait_for("Subscribing")
        other.wait_for("Subscribing")
        penstock("pub", subject, "secret-body", "-H", "K:{v}", "--count", "20", "-q")
        penstock("pub", subject, "x", "-H", "End:1", "--count", "40", "-q")
        one.wait_for("End: 1")
        other.wait_for("End: 1")
        assert one.interrupt() == 0
        assert other.interrupt() == 0
        lines = one.rest() + other.rest()
    assert sum("Received on" in line for line in lines) == 60
    assert not any("secret-body" in line for line in lines)


def test_sub_ends_when_nothing_comes(penstock: Command, unique):
    """--wait ends the command after so much silence, with status 0."""
    assert penstock("sub", unique("cli"), "--wait", "200ms").returncode == 0


def test_req_and_reply(penstock: Command, unique):
    """req shows what reply answers, and nothing else on standard output, so that programs can read it; reply counts."""
    subject = unique("cli")
    with penstock.running("reply", subject, "answer {{Count}}", "-H", "From:here", "--count", "1") as service:
        service.wait_for("Listening")
        done = penstock("req", subject, "question")
        assert service.process.wait(20) == 0
    assert done.returncode == 0
    assert "Received with rtt" in done.stderr
    assert "From: here\n" in done.stderr
    assert done.stdout == "answer 1\n"


def test_req_collects_several_replies(penstock: Command, unique):
    """--replies 2 waits for two answers; --replies 0 for all that come in time."""
    subject = unique("cli")
    with (
        penstock.running("reply", subject, "one", "--queue", "a") as one,
        penstock.running("reply", subject, "two", "--queue", "b") as two,
    ):
        one.wait_for("Listening")
        two.wait_for("Listening")
        exact = penstock("req", subject, "x", "--replies", "2", "--raw")
        every = penstock("req", subject, "x", "--replies", "0", "--raw", "--timeout", "700ms")
    assert sorted(exact.stdout.split()) == ["one", "two"]
    assert sorted(every.stdout.split()) == ["one", "two"]


def test_req_into_the_void(penstock: Command, unique):
    """A request that nobody listens to fails at once, and says so."""
    one_sentence(penstock("req", unique("cli"), "x", "--timeout", "30s"), 1, "Nobody listens")


def test_req_without_an_answer(penstock: Command, unique):
    """A request that is heard and not answered fails after the timeout."""
    subject = unique("cli")
    with penstock.running("sub", subject) as silent:
        silent.wait_for("Subscribing")
        one_sentence(penstock("req", subject, "x", "--timeout", "300ms"), 1, "No answer")


def test_pub_too_large(penstock: Command, unique):
    """A message above the server's limit is refused with the way out."""
    one_sentence(penstock("pub", unique("cli"), stdin="x" * 2_000_000), 1, "larger than the server takes", "chunks")


@pytest.mark.parametrize("header", ["novalue", ":x", "a b:c"])
def test_bad_headers(penstock: Command, header: str):
    """A header that cannot be sent is refused before anything is sent."""
    one_sentence(penstock("pub", "x", "y", "-H", header), 2, "header")


def test_rtt(penstock: Command):
    """rtt shows a table, and numbers for programs with --json."""
    assert "Round trips" in penstock("rtt").stdout
    (row,) = json.loads(penstock("rtt", "3", "--json").stdout)
    assert row["results"][0]["rtt"] > 0


def test_global_flags_may_follow_the_command(stranger: Command, server: Server, unique):
    """-s stands before or after the command, joined with its value or with = too."""
    subject = unique("cli")
    for arguments in (
        ("-s", server.url, "pub", subject, "x"),
        ("pub", "-s", server.url, subject, "x"),
        ("pub", subject, "x", f"--server={server.url}"),
        (f"-s{server.url}", "pub", subject, "x"),
        ("pub", subject, f"-s{server.url}", "x"),
    ):
        assert stranger(*arguments).returncode == 0


# -- server -----------------------------------------------------------------------------------------------------------


def test_server_run_prints_a_url_that_works(stranger: Command, tmp_path: Path):
    """server run prints one URL on stdout, keeps its store, and Ctrl-C ends it with status 0 and no child left."""
    store = tmp_path / "store"
    with stranger.running("server", "run", "--store", str(store), "--sync", "1m", "--token", "sesame") as run:
        url = run.wait_for("nats://")
        assert url.startswith("nats://sesame@127.0.0.1:")
        pid = int(run.wait_for("pid ").split("pid ")[1].split(",")[0])
        run.wait_for("is running")
        assert not any("is gone when it ends" in line for line in run.lines)
        assert stranger("pub", "a", "b", "-s", url).returncode == 0
        one_sentence(stranger("pub", "a", "b", "-s", url.replace("sesame@", "")), 1, "refuses the login")
        second = stranger("server", "run", "--store", str(store))
        one_sentence(second, 1, "in use")
        assert run.interrupt() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert store.is_dir()


def test_server_run_without_a_store_says_what_that_means(stranger: Command):
    """Whoever did not name a folder is told that nothing is kept, and how to keep it."""
    with stranger.running("server", "run") as run:
        run.wait_for("What it stores is gone when it ends; --store DIR keeps it.")
        run.wait_for("is running")
        assert run.interrupt() == 0


def test_server_run_three_nodes(stranger: Command):
    """server run --nodes 3 gives a cluster; a node that dies is named, and the others go on."""
    with stranger.running("server", "run", "--nodes", "3", "--no-auth", "--json", "--sync", "2m") as run:
        run.wait_for('"url"')
        text = "{" + run.lines[-1]
        while not text.rstrip().endswith("]\n}"):
            text += "\n" + run.wait_for("")
        shown = json.loads(text)
        assert len(shown["url"].split(",")) == 3
        os.kill(shown["nodes"][1]["pid"], signal.SIGKILL)
        run.wait_for("n2 is dead")
        assert stranger("pub", "a", "b", "-s", shown["url"]).returncode == 0
        assert run.interrupt(signal.SIGTERM) == 0


def test_server_info(penstock: Command, server: Server):
    """server info shows version, limits and JetStream, and never the token."""
    done = penstock("server", "info")
    assert server.version in done.stdout
    assert "JetStream: yes" in done.stdout
    facts = json.loads(penstock("server", "info", "--json").stdout)
    assert facts["server"]["max_payload"] == 1048576
    assert facts["jetstream"]["limits"]["max_streams"] == -1
    assert server.token not in done.stdout + json.dumps(facts)


def test_doctor(penstock: Command, server: Server):
    """doctor shows a table and ends with 0 where all is well; --json gives the same for programs."""
    done = penstock("doctor")
    assert done.returncode == 0, done.stdout
    findings = {finding["what"]: finding for finding in json.loads(penstock("doctor", "--json").stdout)}
    assert {"Python", "nats-server", "Wire", "pyspark", "pyarrow", "Java", "Disk", "Connection"} == set(findings)
    assert "a sync takes" in findings["Disk"]["found"]
    assert server.version in findings["Connection"]["found"]


def test_doctor_finds_what_is_bad(stranger: Command, tmp_path: Path):
    """doctor ends with 1 and names the remedy where the server binary or the connection is not right."""
    done = stranger("doctor", "--json", "-s", "nats://127.0.0.1:1", PENSTOCK_NATS_SERVER=str(tmp_path / "none"))
    assert done.returncode == 1
    bad = {finding["what"]: finding for finding in json.loads(done.stdout) if finding["state"] == "bad"}
    assert set(bad) == {"nats-server", "Connection"}
    assert all(finding["remedy"] for finding in bad.values())


def test_long_commands_show_progress_on_a_terminal(stranger: Command, server: Server, unique):
    """On a terminal a long command draws a bar; what it prints for programs stays clean."""
    terminal, child_side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "pub", unique("progress"), "x", "--count", "600", "-s", server.url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=child_side,
        env={**stranger.env, "TERM": "xterm"},
    ) as process:
        os.close(child_side)
        drawn = b""
        while process.poll() is None or select.select([terminal], [], [], 0)[0]:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    drawn += os.read(terminal, 65536)
                except OSError:  # Linux says EIO when the other side is closed
                    break
        printed = process.stdout.read()
        assert process.wait(30) == 0
    os.close(terminal)
    assert b"Publishing" in drawn
    assert b"600/600" in drawn
    assert b"Publishing" not in printed


# -- failures ---------------------------------------------------------------------------------------------------------


def test_wrong_url(stranger: Command):
    """An address where nobody listens is one sentence and status 1."""
    one_sentence(stranger("pub", "a", "b", "-s", "nats://127.0.0.1:1"), 1, "No NATS server answers", "refused")


def test_a_silent_listener(stranger: Command):
    """What accepts and says nothing is given up after the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        one_sentence(stranger("pub", "a", "b", "-s", url, "--timeout", "300ms"), 1, "greeted")


def test_a_url_that_is_none(stranger: Command):
    """A malformed address is bad input: status 2."""
    one_sentence(stranger("pub", "a", "b", "-s", "http://x"), 2, "scheme")


def test_refused_login(stranger: Command, server: Server):
    """A wrong token is one sentence, and the token is not in it."""
    address = urlsplit(server.url)
    done = stranger("pub", "a", "b", "-s", f"nats://wrong-token@{address.hostname}:{address.port}")
    one_sentence(done, 1, "refuses the login")
    assert "wrong-token" not in done.stderr


def test_port_in_use(stranger: Command, server: Server):
    """A port that is taken is named."""
    port = str(urlsplit(server.url).port)
    one_sentence(stranger("server", "run", "--port", port), 2, port, "in use")


def test_broken_context(stranger: Command, tmp_path: Path):
    """A context that is missing or broken is bad input, and the file is named."""
    one_sentence(stranger("rtt", "--context", "nope"), 2, "no context 'nope'")
    folder = tmp_path / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    one_sentence(stranger("rtt", "--context", "broken"), 2, "broken.json")


def test_tls_mismatch(penstock: Command, server: Server):
    """Asking a plain server for TLS is one sentence."""
    one_sentence(penstock("rtt", "-s", server.url.replace("nats://", "tls://")), 1, "does not offer TLS")


def test_bad_durations_and_options(stranger: Command):
    """Bad values are refused before anything is opened."""
    one_sentence(stranger("pub", "a", "b", "--timeout", "soon"), 2, "--timeout", "duration")
    one_sentence(stranger("server", "run", "--nodes", "2"), 2, "nodes")
    one_sentence(stranger("server", "run", "--token", "x", "--no-auth"), 2, "--no-auth")
    one_sentence(stranger("server", "run", "--config", "/nowhere"), 2, "/nowhere cannot be read: No such file")
    assert stranger("pub", "a", "b", "--no-such-flag").returncode == 2


def test_a_configuration_that_the_server_refuses(stranger: Command, tmp_path: Path):
    """The sentence says why; the end of the server's log stands below it, line by line, and escapes stay visible."""
    (tmp_path / "bad.conf").write_text("bad {{{")
    done = stranger("server", "run", "--config", str(tmp_path / "bad.conf"))
    first, *log = done.stderr.splitlines()
    assert (done.returncode, first.endswith("The end of its log:")) == (1, True)
    assert first.startswith("penstock: nats-server n1 ended with status 1: Parse error")
    assert log
    assert all(line.startswith("  ") and "\\n" not in line for line in log)


def test_sub_survives_nothing_silently(stranger: Command):
    """When the server dies, sub says that the connection is lost, and Ctrl-C still ends it cleanly."""
    with Server(sync="2m") as mortal, stranger.running("sub", "x", "-s", mortal.url) as sub:
        sub.wait_for("Subscribing")
        mortal.nodes[0].kill()
        sub.wait_for("Lost the connection")
        assert sub.interrupt() == 0


@pytest.mark.parametrize(
    ("arguments", "further"),
    [
        (["stream", "ls"], []),
        (["stream", "ls", "--json"], ["rich"]),
        (["pub", "a", "b"], ["rich", "penstock.jetstream.assets"]),
        (["rtt", "--json"], ["rich", "penstock.jetstream.assets"]),
    ],
)
def test_a_command_is_quick_because_it_loads_little(server: Server, arguments: list[str], further: list[str]):
    """A small command loads what it needs: no model, no table where none is drawn, nothing of Spark or the console."""
    heavy = {
        "aiohttp",
        "nats",
        "nkeys",
        "websockets",
        "cryptography",
        "google.protobuf",
        "importlib.metadata",
        "jinja2",
        "markdown_it",
        "pandas",
        "penstock.model",
        "penstock.server",
    }
    heavy |= {"penstock.chunks", "penstock.bus", "penstock.channels", "prometheus_client", "pyarrow", "pydantic"}
    heavy |= {"pygments", "pyspark", "rich.markdown", "rich.syntax", "starlette", "uvicorn", *further}
    assert not imported(*arguments, NATS_URL=server.url) & heavy
