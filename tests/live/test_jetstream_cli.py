"""`penstock stream`, `consumer` and `apply`, as their users run them, against the real server."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server import Server
from tests.live.command import Command, environment
from tests.live.inprocess import Done, invoke, runner


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    """Run the command; it must succeed unless a status is given."""
    return runner(server.url)


@pytest.fixture
def stream(run: Callable[..., Done], unique: Callable[..., str]) -> str:
    name = unique("CLI")
    run("stream", "add", name, "--subjects", f"{name}.>", "--defaults")
    return name


def squeezed(done: Done) -> str:
    return " ".join(done.stdout.split())


# -- streams ---------------------------------------------------------------------------------------------------------


def test_every_flag_of_a_stream_reaches_the_server(
    run: Callable[..., Done], unique: Callable[..., str], tmp_path: Path
):
    """What the flags say is what the server holds, and --output with --config gives the same stream."""
    name = unique("CLI")
    flags = f"""--subjects {name}.a,{name}.b --subjects {name}.c --description words --storage file --compression s2
        --replicas 1 --ack --retention work --discard new --discard-per-subject --max-age 1h --max-bytes 1MB
        --max-consumers 5 --max-msg-size 1K --max-msgs 100 --max-msgs-per-subject 10 --dupe-window 30s --allow-batch
        --allow-fast --allow-rollup --no-allow-direct --allow-msg-ttl --subject-del-markers-ttl 10s
        --transform-source {name}.a --transform-destination {name}.z --limit-consumer-inactive 1h
        --limit-consumer-max-pending 50 --metadata team=a --metadata x:y --first-sequence 10
        --republish-source {name}.> --republish-destination again.{name}.> --republish-headers --deny-delete""".split()
    file = tmp_path / "s.json"
    run("stream", "add", name, *flags, "--output", str(file))
    assert run("stream", "add", name, *flags, "--validate").stdout == f"Stream {name} is valid.\n"
    held = json.loads(run("stream", "add", "--config", str(file), "--json").stdout)["config"]
    wanted = json.loads(file.read_text())
    held["metadata"] = {key: text for key, text in held["metadata"].items() if not key.startswith("_nats.")}
    assert {key: held.get(key) for key in wanted} == wanted
    assert (held["retention"], held["discard"], held["max_bytes"]) == ("workqueue", "new", 1024**2)
    assert held["metadata"] == {"team": "a", "x": "y"}
    shown = squeezed(run("stream", "info", name))
    for words in ("Retention: WorkQueue", "Discard Policy: New per subject", "Compression: s2", "team: a"):
        assert words in shown


def test_streams_are_listed_and_reported(run: Callable[..., Done], stream: str, unique: Callable[..., str]):
    """ls, report and subjects show streams as tables, names, and JSON; aliases are the same commands."""
    copy = unique("CLI")
    run("str", "create", copy, "--mirror", stream, "--defaults")
    run("pub", f"{stream}.x", "one", "-q")
    run("pub", f"{stream}.y", "two", "--count", "2", "-q")
    assert {stream, copy} <= set(run("s", "ls", "-n").stdout.split())
    assert run("stream", "list", "--subject", f"{stream}.x", "--names").stdout == f"{stream}\n"
    table = run("stream", "ls", "--subject", f"{stream}.x").stdout
    assert re.search(rf"│ {stream} .*│ +3 │", table)
    assert {stream, copy} <= set(json.loads(run("stream", "ls", "--json").stdout))
    report = run("stream", "report").stdout
    assert "Stream Report" in report
    assert re.search(rf"│ {copy} +│ Mirror │ {stream} ", report)
    assert json.loads(run("stream", "subjects", stream, "--json").stdout) == {f"{stream}.y": 2, f"{stream}.x": 1}
    assert run("stream", "subjects", stream, "*.x", "--names").stdout == f"{stream}.x\n"
    state = json.loads(run("stream", "info", stream, "--state", "--json").stdout)["state"]
    assert (state["messages"], state["num_subjects"]) == (3, 2)


def test_messages_are_shown_fetched_and_removed(run: Callable[..., Done], stream: str):
    """view pages through a stream, get shows one message, rmm removes one and asks first."""
    for number in range(1, 13):
        run("pub", f"{stream}.{number % 2}", f"order {number}", "-H", f"N:{number}", "-q")
    page = run("stream", "view", stream).stdout
    assert "[1] Subject:" in page
    assert "order 10" in page
    assert "order 11" not in page
    assert run("stream", "view", stream, "--id", "11", "--raw").stdout == "order 11\norder 12\n"
    assert run("stream", "view", stream, "25", "--subject", f"{stream}.0", "--raw").stdout.count("order") == 6
    assert len(json.loads(run("stream", "view", stream, "--since", "1h", "--json").stdout)) == 10
    message = json.loads(run("stream", "get", stream, "3", "--json").stdout)
    assert (message["subject"], message["seq"], message["data"]) == (f"{stream}.1", 3, "b3JkZXIgMw==")
    assert "order 12" in run("stream", "get", stream, "-S", f"{stream}.0").stdout
    run("stream", "rmm", stream, "3", stdin="n\n", status=2)
    run("stream", "rmm", stream, "3", stdin="y\n")
    assert f"Stream {stream} holds no message 3" in run("stream", "get", stream, "3", status=1).stderr
    assert "Which message?" in run("stream", "get", stream, status=2).stderr


def test_purging_and_deleting_ask_first(run: Callable[..., Done], stream: str):
    """Without a yes, nothing is removed; -f removes without asking; parts can be chosen."""
    run("pub", f"{stream}.x", "m", "--count", "10", "-q")
    run("pub", f"{stream}.y", "m", "--count", "5", "-q")
    for answer in ("", "n\n", "maybe\n"):
        assert "Not confirmed" in run("stream", "purge", stream, stdin=answer, status=2).stderr
    assert "Purged 5 messages" in run("stream", "purge", stream, "--subject", f"{stream}.y", "-f", "--json").stderr
    assert "Purged 4 messages" in run("stream", "purge", stream, "--seq", "5", "-f").stdout
    assert "Purged 4 messages" in run("stream", "purge", stream, "--keep", "2", "-f").stdout
    run("stream", "purge", stream, "--seq", "5", "--keep", "2", "-f", status=2)
    run("stream", "rm", stream, stdin="no\n", status=2)
    assert "was deleted" in run("stream", "del", stream, stdin="y\n").stdout
    assert f"There is no stream {stream}" in run("stream", "info", stream, status=1).stderr


def test_editing_shows_asks_and_refuses(server: Server, run: Callable[..., Done], stream: str):
    """edit shows each change, asks, tells what would be lost, and names what cannot be changed."""
    run("pub", f"{stream}.x", "m", "--count", "10", "-q")
    dry = invoke(server.url, "stream", "edit", stream, "--max-msgs", "4", "--description", "d", "--dry-run").stdout
    assert "max_msgs: -1 -> 4 (it would drop 6 of 10 messages)" in dry
    assert "description: nothing -> d" in dry
    planned = invoke(server.url, "stream", "edit", stream, "--max-age", "1h", "--dry-run", "--json")
    assert (planned.status, len(json.loads(planned.stdout)["steps"])) == (1, 1)
    run("stream", "edit", stream, "--max-msgs", "4", stdin="n\n", status=2)
    assert "Messages: 4" in squeezed(run("stream", "update", stream, "--max-msgs", "4", "-f"))
    assert "is like that already" in run("stream", "edit", stream, "--max-msgs", "4").stderr
    error = run("stream", "edit", stream, "--storage", "memory", "-f", status=2).stderr
    assert f"stream {stream}: storage is file and cannot become memory" in error


def test_sealing(run: Callable[..., Done], stream: str):
    """A sealed stream takes nothing more; sealing asks."""
    run("stream", "seal", stream, stdin="n\n", status=2)
    assert "is sealed" in run("stream", "seal", stream, "-f").stdout
    assert "sealed already" in run("stream", "seal", stream, "-f").stdout
    assert "sealed" in run("req", f"{stream}.x", "m").stdout
    assert "Sealed: true" in squeezed(run("stream", "info", stream))


def test_backup_and_restore(run: Callable[..., Done], stream: str, tmp_path: Path):
    """A stream goes into a folder and comes back from it, with its consumers."""
    run("pub", f"{stream}.x", "m", "--count", "50", "-q")
    run("consumer", "add", stream, "c", "--defaults")
    folder = str(tmp_path / "b")
    assert f"Backed up 50 messages of Stream {stream}" in run("stream", "backup", stream, folder).stdout
    run("stream", "rm", stream, "-f")
    assert f"Restored Stream {stream} with 50 messages" in run("stream", "restore", folder).stdout
    assert run("consumer", "ls", stream, "-n").stdout == "c\n"
    assert "holds no complete backup" in run("stream", "restore", str(tmp_path), status=2).stderr


def test_size_asks_no_server():
    """The cost of messages is computed, also as JSON."""
    done = invoke(None, "stream", "size", "--messages", "10", "--payload", "1K", "--subject", "a.b", "--json")
    assert json.loads(done.stdout) == {"messages": 10, "record": 1057, "total": 10570, "overhead": 0.0312}
    for flags in (["--payload", "much"], ["--payload", "5", "--storage", "tape"]):
        done = invoke(None, "stream", "size", "--messages", "1", "--subject", "a", *flags)
        assert (done.status, done.stderr.count("\n")) == (2, 1)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("stream add A.B --subjects x", "a name has no dots"),
        ("stream add", "The stream has no name"),
        ("stream add NEW", "Stream NEW captures nothing"),
        ("stream add NEW --subjects x..y", "has an empty token"),
        ("stream add NEW --subjects x --max-msgs -5", "max_msgs is -5"),
        ("stream add NEW --subjects x --max-bytes much", "--max-bytes is 'much'"),
        ("stream add NEW --subjects x --max-age soon", "--max-age is 'soon'"),
        ("stream add NEW --subjects x --retention forever", "Use one of limits, interest, work"),
        ("stream add NEW --subjects x --discard-per-subject", "discard new per subject requires"),
        ("stream add NEW --subjects x --mirror OLD", "a mirror cannot have subjects"),
        ("stream add NEW --subjects STREAM.x", "Stream NEW overlaps with what is there: STREAM"),
        ("stream add STREAM --subjects other", "There is a stream STREAM already"),
        ("stream add NEW --subjects x --metadata team", "is not a pair"),
        ("stream add NEW --subjects x --config /nowhere", "cannot be read as JSON"),
        ("stream add NEW --subjects x --transform-source a", "is given alone"),
        ("stream subjects STREAM --sort size", "Use name or messages"),
        ("consumer add STREAM", "The consumer has no name"),
        ("consumer add STREAM a.b", "A name has no dots"),
        ("consumer add STREAM c --deliver whenever", "--deliver is 'whenever'"),
        ("consumer add STREAM c --ack maybe", "ack_policy is 'maybe'"),
        ("consumer add STREAM c --pull --target out", "--pull and --target are given together"),
        ("consumer add STREAM c --heartbeat 5s", "idle_heartbeat is for push consumers"),
        ("consumer add STREAM c --sample 200", "--sample is '200'"),
        ("consumer add STREAM c --backoff linear --backoff-steps 0", "is not possible"),
        ("consumer add STREAM c --backoff 1s,2s --max-deliver 1", "backoff has 2 steps"),
        ("consumer next STREAM c --nak --term", "given together"),
        ("consumer redeliver STREAM --seq 5", "There is no dead-letter stream"),
    ],
)
def test_bad_input_is_one_sentence(server: Server, run: Callable[..., Done], stream: str, arguments: str, says: str):
    """What is wrong is said in one line before anything is changed."""
    before = run("stream", "ls", "-n").stdout
    words = [word.replace("STREAM", stream) for word in arguments.split()]
    done = invoke(server.url, *words)
    assert done.status in (1, 2), done.stdout
    assert done.stderr.count("\n") == 1
    assert says.replace("STREAM", stream) in done.stderr
    assert run("stream", "ls", "-n").stdout == before


# -- consumers -------------------------------------------------------------------------------------------------------


def test_every_flag_of_a_consumer_reaches_the_server(run: Callable[..., Done], stream: str, tmp_path: Path):
    """What the flags say is what the server holds, for pull and push, durable and not."""
    pull = f"""--pull --filter {stream}.a,{stream}.b --ack all --wait 5s --max-deliver 12 --max-pending 7
        --backoff linear --backoff-steps 3 --backoff-min 1s --backoff-max 4s --replay original --deliver 5
        --sample 50 --max-waiting 9 --max-pull-batch 8 --max-pull-expire 10s --max-pull-bytes 1K --headers-only
        --inactive-threshold 1h --memory --metadata a=b --description words --pause 1h --replicas 1""".split()
    held = json.loads(run("consumer", "add", stream, "pull", *pull, "--json").stdout)["config"]
    assert held["filter_subjects"] == [f"{stream}.a", f"{stream}.b"]
    assert held["backoff"] == [10**9, 2 * 10**9, 3 * 10**9]  # the longest wait is where they lead to
    wanted = {
        "ack_policy": "all",
        "max_deliver": 12,
        "max_ack_pending": 7,
        "replay_policy": "original",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 5,
        "sample_freq": "50",
        "max_waiting": 9,
        "max_batch": 8,
        "max_bytes": 1024,
        "headers_only": True,
        "mem_storage": True,
        "description": "words",
    }
    assert {key: held[key] for key in wanted} == wanted
    push = ["--target", "out.x", "--deliver-group", "g", "--heartbeat", "5s", "--flow-control", "--bps", "8000"]
    push += ["--ack", "none", "--deliver", "new"]
    shown = squeezed(run("consumer", "add", stream, "--ephemeral", *push))
    for words in ("Delivery Subject: out.x", "Durable: false", "Rate Limit: 1000 B / second", "Flow Control: true"):
        assert words in shown
    pinned = json.loads(
        run("con", "create", stream, "p", "--pinned-groups", "g", "--pinned-ttl", "5s", "--json").stdout
    )["config"]
    assert (pinned["priority_policy"], pinned["priority_timeout"]) == ("pinned_client", 5 * 10**9)
    file = tmp_path / "c.json"
    run("consumer", "add", stream, "copy", "--max-deliver", "3", "--output", str(file))
    run("consumer", "add", stream, "--config", str(file))
    assert "Maximum Deliveries: 3" in squeezed(run("c", "i", stream, "copy"))
    assert "has another consumer copy already" in run("consumer", "add", stream, "copy", status=2).stderr


@pytest.mark.parametrize("start", ["all", "last", "new", "subject", "10", "2m", "2026-01-31T12:00:00Z"])
def test_every_start(run: Callable[..., Done], stream: str, start: str):
    """--deliver takes a policy, a sequence, a duration and a time."""
    done = run("consumer", "add", stream, "c", "--deliver", start, "--filter", f"{stream}.>", "--json")
    policies = {"subject": "last_per_subject", "10": "by_start_sequence", "2m": "by_start_time"}
    wanted = policies.get(start, "by_start_time" if "T" in start else start)
    assert json.loads(done.stdout)["config"]["deliver_policy"] == wanted


def test_consumers_are_listed_edited_paused_and_removed(run: Callable[..., Done], stream: str):
    """ls, report, edit, pause, resume and rm do what they say, and ask where something is lost."""
    assert "No Consumers are defined" in run("consumer", "ls", stream).stdout
    run("consumer", "add", stream, "c", "--defaults")
    assert run("consumer", "ls", stream, "-n").stdout == "c\n"
    assert json.loads(run("consumer", "list", stream, "--json").stdout) == ["c"]
    assert re.search(r"│ c +│ Pull │ Explicit +│ +30s │", run("consumer", "report", stream).stdout)
    run("consumer", "edit", stream, "c", "--max-deliver", "4", stdin="n\n", status=2)
    assert "Maximum Deliveries: 4" in squeezed(run("consumer", "edit", stream, "c", "--max-deliver", "4", "-f"))
    refused = run("consumer", "edit", stream, "c", "--ack", "none", "--max-deliver", "-1", "-f", status=2).stderr
    assert "ack_policy is explicit and cannot become none" in refused
    assert "Paused Consumer" in run("consumer", "pause", stream, "c", "1h", "-f").stdout
    assert "remaining" in run("consumer", "info", stream, "c").stdout
    assert "goes on" in run("consumer", "resume", stream, "c", "-f").stdout
    assert "is not paused" in run("consumer", "resume", stream, "c", "-f", status=2).stderr
    run("consumer", "rm", stream, "c", stdin="n\n", status=2)
    assert "was deleted" in run("consumer", "rm", stream, "c", "-f").stdout
    assert f"There is no consumer c of stream {stream}" in run("consumer", "info", stream, "c", status=1).stderr


def test_next_in_every_way(run: Callable[..., Done], stream: str):
    """next takes several, acks, naks, terminates, prints JSON or payloads, and says when nothing comes."""
    run("pub", f"{stream}.x", "order {{Count}}", "--count", "4", "-q")
    run("consumer", "add", stream, "c", "--defaults")
    assert "Gave the message back" in run("consumer", "next", stream, "c", "--nak").stdout
    assert run("consumer", "next", stream, "c", "--count", "2", "--raw").stdout == "order 1\norder 2\n"
    assert "Refused the message for good" in run("consumer", "next", stream, "c", "--term").stdout
    (last,) = json.loads(run("consumer", "next", stream, "c", "--json").stdout)
    assert (last["sequence"], last["delivered"], last["pending"], last["consumer"]) == (4, 1, 0, "c")
    done = run("consumer", "next", stream, "c", "--wait", "200ms", status=1)
    assert "No messages came in 0.2 s" in done.stderr
    info = json.loads(run("consumer", "info", stream, "c", "--json").stdout)
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 4)


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_sub_reads_both_kinds(run: Callable[..., Done], server: Server, stream: str, tmp_path: Path, kind: str):
    """sub shows what a consumer delivers, push with flow control or pull, acks it, and ends at Ctrl-C."""
    push = ["--target", f"out_{stream}", "--heartbeat", "200ms", "--flow-control"] if kind == "push" else ["--pull"]
    run("consumer", "add", stream, "c", *push, "--defaults")
    run("pub", f"{stream}.x", "order {{Count}}", "--count", "3", "-q")
    done = run("consumer", "sub", stream, "c", "--count", "3")
    assert done.stdout.count("--- received on") == 3
    assert "order 3" in done.stdout
    run("consumer", "sub", stream, "c", "--wait", "300ms")
    child = Command(tmp_path, server.url)
    with child.running("consumer", "sub", stream, "c") as sub:
        sub.wait_for("Reading")
        run("pub", f"{stream}.x", "late", "-q")
        sub.wait_for("late")
        assert sub.interrupt() == 0
    deadline = time.monotonic() + 10
    while json.loads(run("consumer", "info", stream, "c", "--json").stdout)["num_ack_pending"]:
        assert time.monotonic() < deadline
    assert json.loads(run("consumer", "info", stream, "c", "--json").stdout)["ack_floor"]["stream_seq"] == 4


def test_samples(run: Callable[..., Done], server: Server, stream: str, tmp_path: Path):
    """samples lists sampled acks and advisories, then the figures; --watch draws them; JSON gives them."""
    run("consumer", "add", stream, "c", "--sample", "100", "--defaults")
    run("pub", f"{stream}.x", "m", "--count", "8", "-q")
    child = Command(tmp_path, server.url)
    for flags in ([], ["--watch"], ["--json"]):
        with child.running("consumer", "samples", stream, "c", *flags, "--count", "2") as samples:
            samples.wait_for("Listening for samples")
            run("consumer", "next", stream, "c", "--count", "2")
            said = "\n".join(samples.rest())
            assert samples.process.returncode == 0, said
        if flags == ["--json"]:
            figures = json.loads(said[said.index("{") :])[f"{stream} > c"]
            assert figures["samples"] == 2
            assert figures["ack_seconds"]["max"] > 0
        else:
            assert re.search(rf"{stream} > c *│ *2 │", said)
        if not flags:
            assert said.count("ack of ") == 2
    run("consumer", "add", stream, "quiet", "--defaults")
    done = run("consumer", "samples", stream, "quiet", "--wait", "100ms")
    assert "samples no acks" in done.stderr


def test_redeliver(run: Callable[..., Done], stream: str):
    """Dead letters are listed and put back, all or some; it asks first."""
    run("pub", f"{stream}.x", "order {{Count}}", "--count", "2", "-q")
    run("consumer", "add", stream, "c", "--max-deliver", "1", "--wait", "300ms", "--defaults")
    dead = f"{stream}-DEAD"
    subjects = f"PENSTOCK.DEAD.{stream}.>,$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.*"
    run("stream", "add", dead, "--subjects", subjects, "--defaults")
    run("consumer", "next", stream, "c", "--no-ack", "--count", "2")
    deadline = time.monotonic() + 20
    while len(letters := json.loads(run("consumer", "redeliver", stream, "--list", "--json").stdout)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert sorted((letter["sequence"], letter["consumer"], letter["deliveries"]) for letter in letters) == [
        (1, "c", 1),
        (2, "c", 1),
    ]
    assert "No dead letter for 9" in run("consumer", "redeliver", stream, "--seq", "9", "-f", status=2).stderr
    run("consumer", "redeliver", stream, "c", stdin="n\n", status=2)
    assert "Message 2 is back as 3" in run("consumer", "redeliver", stream, "c", "--seq", "2", "-f").stdout
    done = run("consumer", "redeliver", stream, "-f", "--json")
    assert json.loads(done.stdout) == [{"sequence": 1, "new_sequence": 4}]
    assert run("stream", "get", stream, "3").stdout.count("Penstock-Redelivered") == 1


# -- apply -----------------------------------------------------------------------------------------------------------


def test_apply(run: Callable[..., Done], unique: Callable[..., str], tmp_path: Path):
    """A file is planned and applied; again, nothing changes; drift, conflicts and losses are told."""
    name, file = unique("CLI"), tmp_path / "t.toml"
    text = f'[streams.{name}]\nsubjects = ["{name}.>"]\n[streams.{name}.consumers.c]\nack_wait = "5s"\n'
    file.write_text(text)
    planned = run("apply", str(file), "--plan").stdout
    assert planned == f"+ stream {name}\n+ consumer {name} > c\n"
    assert name not in run("stream", "ls", "-n").stdout.split()
    assert "Applied: 2 created, 0 updated" in run("apply", str(file)).stdout
    assert "Nothing to change." in run("apply", str(file), "--plan").stdout
    run("stream", "edit", name, "--max-msgs", "7", "-f")
    assert "max_msgs: 7 -> -1" in run("apply", str(file), "--plan").stdout
    steps = json.loads(run("apply", str(file), "--json").stdout)["steps"]
    assert [(step["action"], [item["field"] for item in step["changes"]]) for step in steps] == [
        ("update", ["max_msgs"]),
        ("none", []),
    ]
    run("pub", f"{name}.x", "m", "--count", "5", "-q")
    file.write_text(text.replace("\nsubjects", "\nmax_msgs = 2\nsubjects"))
    assert "This would lose data" in run("apply", str(file), status=2).stderr
    assert "1 updated" in run("apply", str(file), "--may-lose-data").stdout
    file.write_text(text.replace("\nsubjects", '\nstorage = "memory"\nsubjects'))
    assert "storage is file and cannot become memory" in run("apply", str(file), status=2).stderr
    file.write_text(f'[streams.{name}]\nsubjects = ["{name}.>"]\nmax_msgs = 2\n')
    assert f"? consumer {name} > c is not in the file" in run("apply", str(file)).stdout
    run("apply", str(file), "--prune", stdin="n\n", status=2)
    assert "1 deleted" in run("apply", str(file), "--prune", "-f").stdout
    (tmp_path / "t.yaml").write_text(f'streams: {{{name}: {{subjects: ["{name}.>"], max_msgs: 2}}}}')
    assert "Nothing to change." in run("apply", str(tmp_path / "t.yaml"), "--dry-run").stdout
    (tmp_path / "t.json").write_text(json.dumps({"streams": {name: {"description": "\x1b[2J", "max_msgs": 2}}}))
    assert "description: nothing -> \\x1b[2J" in run("apply", str(tmp_path / "t.json"), "--plan").stdout
    (tmp_path / "t.yaml").write_text(f"streams:\n  {name}:\n    sealed: no\n")
    assert "t.yaml: 'no' can be read in several ways (at line 3, column 13). Write true or false" in " ".join(
        run("apply", str(tmp_path / "t.yaml"), status=2).stderr.split()
    )
    file.write_text("[streams.A]\nmax_mgs = 5")
    assert (
        "t.toml: Stream A: there is no field 'max_mgs', did you mean 'max_msgs'?"
        in run("apply", str(file), status=2).stderr
    )


# -- a terminal ------------------------------------------------------------------------------------------------------


class Terminal:
    """The command on a pseudo-terminal, with answers typed at its questions."""

    def __init__(self, home: Path, url: str, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(home, NATS_URL=url),
        )
        os.close(theirs)
        self.text = ""

    def answer(self, question: str, text: str) -> None:
        self.read_until(question)
        os.write(self.ours, text.encode() + b"\n")

    def read_until(self, wanted: str | None, timeout: float = 30.0) -> None:
        deadline, seen = time.monotonic() + timeout, len(self.text)
        while wanted is None or wanted not in self.text[seen:]:
            ready, _, _ = select.select([self.ours], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"no {wanted!r}; so far: {self.text}"
            try:
                data = os.read(self.ours, 4096)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                assert wanted is None, f"ended without {wanted!r}: {self.text}"
                return
            self.text += data.decode()

    def end(self) -> int:
        self.read_until(None)
        os.close(self.ours)
        return self.process.wait(20)


def test_a_terminal_is_asked(server: Server, run: Callable[..., Done], unique: Callable[..., str], tmp_path: Path):
    """What no flag says is asked for, with defaults; a wrong answer is asked again; flags are not asked for."""
    name = unique("CLI")
    add = Terminal(tmp_path, server.url, "stream", "add", "--retention", "limits", "--max-msgs", "50")
    answers: list[tuple[str, str]] = [
        ("Stream Name", name),
        ("Subjects", ""),
        ("at least one subject", f"{name}.>"),
        ("Storage", "tape"),
        ("Use one of file", "memory"),
        ("Replication", ""),
        ("Discard Policy", "new"),
        ("Per Subject Messages Limit", "5"),
        ("Total Stream Size", "1MB"),
        ("Message TTL", "1h"),
        ("Max Message Size", ""),
        ("Duplicate tracking time window", ""),
        ("Allow message Roll-ups", "y"),
        ("Deny message deletion", ""),
        ("Deny purging", ""),
    ]
    for question, text in answers:
        add.answer(question, text)
    assert add.end() == 0, add.text
    assert "Retention Policy" not in add.text
    config = json.loads(run("stream", "info", name, "--json").stdout)["config"]
    assert (config["storage"], config["discard"], config["max_bytes"]) == ("memory", "new", 1024**2)
    assert (config["max_msgs_per_subject"], config["max_msgs"], config["max_age"]) == (5, 50, 3600 * 10**9)
    assert (config["allow_rollup_hdrs"], config["duplicate_window"]) == (True, 120 * 10**9)

    add = Terminal(tmp_path, server.url, "consumer", "add", name, "--deliver", "all")
    for question, text in [
        ("Consumer name", "c"),
        ("Delivery target", ""),
        ("Acknowledgment policy", "explicit"),
        ("Replay policy", ""),
        ("Filter Stream", f"{name}.x"),
        ("Maximum Allowed Deliveries", "4"),
        ("Maximum Acknowledgments Pending", ""),
        ("Backoff policy", "1s,2s"),
        ("headers only", "n"),
    ]:
        add.answer(question, text)
    assert add.end() == 0, add.text
    config = json.loads(run("consumer", "info", name, "c", "--json").stdout)["config"]
    assert (config["max_deliver"], config["backoff"]) == (4, [10**9, 2 * 10**9])
    assert config["filter_subject"] == f"{name}.x"

    chosen = Terminal(tmp_path, server.url, "consumer", "info", name)
    chosen.answer("Which", "c")
    assert chosen.end() == 0
    removed = Terminal(tmp_path, server.url, "stream", "rm", name)
    removed.answer("Really delete", "y")
    assert removed.end() == 0
    assert "was deleted" in removed.text


def test_defaults_ask_nothing(server: Server, unique: Callable[..., str], tmp_path: Path):
    """With --defaults a terminal is asked nothing."""
    name = unique("CLI")
    add = Terminal(tmp_path, server.url, "stream", "add", name, "--subjects", f"{name}.>", "--defaults")
    assert add.end() == 0
    assert "Storage (file" not in add.text
    assert f"Stream {name} was created" in add.text


def test_a_pipe_is_told_what_is_missing(run: Callable[..., Done], stream: Any):
    """Where nobody can be asked, the error names what there is."""
    error = run("stream", "info", status=2).stderr
    assert "Which stream?" in error
    assert stream in error or " more." in error, "twenty names are enough for a sentence"
