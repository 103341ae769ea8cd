"""`penstock bench` against a real server: figures of every kind, nothing left behind, and no silence."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.command import Command
from tests.live.inprocess import Done, Talk, invoke

KINDS = {
    "pub": "pub SUBJECT --msgs 3000 --clients 2",
    "many subjects": "pub SUBJECT --msgs 500 --multisubject --multisubjectmax 100 --header A:b",
    "a pace": "pub SUBJECT --throughput 500 --duration 200ms",
    "sync": "js pub sync SUBJECT --msgs 60 --dedup",
    "async": "js pub async SUBJECT --msgs 600 --multisubject --header A:b --clients 2",
    "batch": "js pub batch SUBJECT --msgs 600 --batch 100 --storage memory",
    "fast": "js pub fast SUBJECT --msgs 2000 --dedup",
    "consume": "js consume --msgs 600 --clients 2 --batch 50",
    "consume, ack all": "js consume --msgs 300 --acks all",
    "fetch": "js fetch --msgs 600 --batch 100",
    "fetch, double acks": "js fetch --msgs 100 --batch 50 --doubleack",
    "ordered": "js ordered --msgs 600",
    "get": "js get sync --msgs 60",
    "get by batches": "js get batch --msgs 600 --batch 250",
    "kv put": "kv put --msgs 60 --clients 2",
    "kv get": "kv get --msgs 60 --randomize 10",
    "object put": "object put --msgs 3 --size 300KB",
    "object get": "object get --msgs 3 --size 300KB",
    "chunks": "chunks --msgs 3 --size 2MB --digest",
    "bus": "bus --msgs 30",
    "bus, elements": "bus --msgs 3 --elements 100 --window 16",
}
TIMED = {"sync", "fetch", "fetch, double acks", "get", "get by batches", "kv put", "kv get"}
TIMED |= {"object put", "object get", "chunks", "bus", "bus, elements"}


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of this file: what is left on it is what a benchmark left."""
    with Server(sync="2m") as running:
        yield running


def bench(server: Server, line: str, **how: Any) -> Done:
    return invoke(server.url, "bench", *line.split(), **how)


def left_on(server: Server) -> list[str]:
    with BulkConnection(server.url) as bulk:
        return list(bulk.api("STREAM.NAMES").get("streams") or [])


# Variations that take another process or two each: `make faults` runs them.
RARE = {
    "many subjects",
    "consume, ack all",
    "fetch, double acks",
    "bus, elements",
    "object put",
    "kv put",
    "get",
    "a pace",
}


@pytest.mark.parametrize("kind", [pytest.param(one, marks=[pytest.mark.heavy] * (one in RARE)) for one in KINDS])
def test_every_kind(own: Server, unique: Callable[..., str], kind: str):
    """Each gives the messages that it was asked for, a rate, our CPU time and, if each is waited for, latencies."""
    done = bench(own, f"{KINDS[kind]} --json".replace("SUBJECT", unique("bench")))
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    words = KINDS[kind].split()
    wanted = 100 if kind == "a pace" else int(words[words.index("--msgs") + 1])
    wanted *= 100 if kind == "bus, elements" else 1
    assert found["messages"] == wanted
    assert found["messages_per_second"] > 0
    assert found["bytes"] > 0
    assert found["cpu_seconds"] >= 0
    assert sum(one["messages"] for one in found["clients"]) == wanted
    assert bool(found["latency_microseconds"]) == (kind in TIMED)
    assert left_on(own) == []


def test_subscribe_and_publish(own: Server, unique: Callable[..., str]):
    """Each client of `sub` gets all messages that `pub` sends meanwhile."""
    subject = unique("bench")

    def beside(talk: Talk) -> None:
        talk.wait_for("Waiting")
        # Nobody says when the last client is subscribed: the server knows.
        with BulkConnection(own.url) as bulk:
            for _ in range(600):
                try:
                    bulk.request(f"{subject}.0", b"x", timeout=0.05)
                except TimeoutError as error:
                    if type(error).__name__ == "DeadlineError":  # heard, and not answered
                        break
                time.sleep(0.05)
        again = ["pub", subject, "--msgs", "400", "--multisubject", "-s", own.url]
        subprocess.run([sys.executable, "-m", "penstock", "bench", *again], check=True, capture_output=True)

    done = bench(own, f"sub {subject} --multisubject --msgs 300 --json", beside=beside)
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 300


def test_requests_and_who_answers_them(own: Server, unique: Callable[..., str], tmp_path: Path):
    """Without anybody to answer, a request fails at once; `service serve` answers until Ctrl-C, and counts."""
    subject = unique("bench")
    nobody = bench(own, f"request {subject} --msgs 5")
    assert nobody.status == 1
    assert f"penstock bench service serve {subject}" in nobody.stderr
    with Command(tmp_path, own.url).running("bench", "service", "serve", subject, "--size", "16") as serving:
        serving.wait_for("Answering")
        done = bench(own, f"service request {subject} --msgs 50 --json")
        assert done.status == 0, done.stderr
        assert json.loads(done.stdout)["latency_microseconds"]["p99"] > 0
        assert serving.interrupt() == 0
        assert any("Answered 50 requests" in line for line in serving.rest())


def test_channels(own: Server):
    """A gateway of its own serves the channels; it and its streams are gone afterwards."""
    done = bench(own, "channels --msgs 200 --json")
    assert done.status == 0, done.stderr
    sent, got = json.loads(done.stdout)
    assert (sent["messages"], got["messages"]) == (200, 200)
    assert left_on(own) == []


def test_streams_of_others_are_left_alone(own: Server, unique: Callable[..., str]):
    """A stream that was there is published to if it is named, emptied only if somebody says yes, and never removed."""
    name = unique("bench")
    made = bench(own, f"js pub fast {name}.a --create --stream {name} --msgs 100 --json")
    assert made.status == 0, made.stderr
    assert left_on(own) == [name]
    assert bench(own, f"js pub async {name}.a --stream {name} --msgs 50").status == 0
    refused = bench(own, f"js pub async {name}.a --stream {name} --msgs 50 --purge")
    assert (refused.status, "Not confirmed" in refused.stderr) == (2, True)
    overlapping = bench(own, f"js pub async {name}.a --msgs 50")
    assert (overlapping.status, name in overlapping.stderr) == (1, True)
    few = bench(own, f"js consume --stream {name} --msgs 151")
    assert (few.status, "has 150 messages" in few.stderr) == (2, True)
    read = bench(own, f"js ordered --stream {name} --msgs 120 --filter {name}.a --json")
    assert json.loads(read.stdout)["messages"] == 120
    assert bench(own, f"js consume --stream {name} --msgs 150").status == 0
    with BulkConnection(own.url) as bulk:
        state = bulk.api(f"STREAM.INFO.{name}")["state"]
        assert (state["messages"], state["consumer_count"]) == (150, 0)
        emptied = bench(own, f"js pub async {name}.a --stream {name} --msgs 50 --purge -f")
        assert emptied.status == 0, emptied.stderr
        assert bulk.api(f"STREAM.INFO.{name}")["state"]["messages"] == 50
        bulk.api(f"STREAM.DELETE.{name}")


def test_nothing_of_others_is_lost_unasked(own: Server, unique: Callable[..., str]):
    """A work queue is not eaten, a message lands in no other stream, and values are not put over those of others."""
    name, other = unique("bench"), unique("bench")
    with BulkConnection(own.url) as bulk:
        for stream, kept in ((name, "workqueue"), (other, "limits")):
            bulk.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream], "retention": kept})
        bulk.request(name, b"x")
        refused = bench(own, f"js consume --stream {name} --msgs 1")
        assert (refused.status, "removes what is acknowledged" in refused.stderr) == (2, True)
        refused = bench(own, f"js pub sync {name} --stream {other} --msgs 1")
        assert (refused.status, "does not take" in refused.stderr) == (2, True)
        assert [bulk.api(f"STREAM.INFO.{one}")["state"]["messages"] for one in (name, other)] == [1, 0]
        assert bench(own, f"kv put --bucket {name} --msgs 3").status == 0
        refused = bench(own, f"kv put --bucket {name} --msgs 3")
        assert (refused.status, "Put over its keys" in refused.stderr) == (2, True)
        for stream in (name, other, f"KV_{name}"):
            bulk.api(f"STREAM.DELETE.{stream}")


@pytest.mark.parametrize("number", [2, 15])
def test_interrupted(own: Server, unique: Callable[..., str], tmp_path: Path, eventually: Any, number: int):
    """Ctrl-C and SIGTERM end it with its processes, and what it made is gone."""
    line = f"bench js pub async {unique('bench')} --throughput 100 --duration 1h"
    with Command(tmp_path, own.url).running(*line.split()) as running:
        eventually(lambda: left_on(own))
        children = [int(pid) for pid in _children(running.process.pid)]
        eventually(lambda: children or children.extend(int(pid) for pid in _children(running.process.pid)))
        assert running.interrupt(number) == 130
        assert not any("Traceback" in line for line in running.rest())
    assert left_on(own) == []
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_file_and_a_terminal(own: Server, unique: Callable[..., str], tmp_path: Path):
    """--csv writes a new file; a terminal of 80 columns gets a bar, and figures that fit."""
    file = tmp_path / "out.csv"
    line = f"js pub sync {unique('bench')} --msgs 400 --clients 2 --csv {file}"
    terminal, child_side = pty.openpty()
    environment = {**Command(tmp_path, own.url).env, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "bench", *line.split()],
        stdin=subprocess.DEVNULL,
        stdout=child_side,
        stderr=child_side,
        env=environment,
    ) as process:
        os.close(child_side)
        drawn = b""
        while process.poll() is None or select.select([terminal], [], [], 0)[0]:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    drawn += os.read(terminal, 65536)
                except OSError:  # Linux says EIO when the other side is closed
                    break
        assert process.wait(30) == 0
    os.close(terminal)
    text = drawn.decode()
    shown = text[text.rindex("Clients") :]
    assert "P99.9" in shown
    assert "\x1b[?25l" in text  # a bar was drawn
    assert [line for line in shown.splitlines() if len(line.rstrip()) > 80 and str(file) not in line] == []
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["MsgCount"] for row in rows] == ["200", "200"]
    again = bench(own, line)
    assert (again.status, "cannot be written" in again.stderr) == (2, True)
    nowhere = bench(own, f"pub {unique('bench')} --msgs 10 --csv /proc/out.csv")  # a folder that takes no files
    assert nowhere.status == 2
    assert nowhere.stderr.splitlines()[-1].startswith("penstock: --csv /proc/out.csv cannot be written")


DENIED = """
accounts {
  JS { jetstream: enabled, users: [
    {user: some, password: pw, permissions: {publish: {deny: ["secret.>", "$JS.API.STREAM.CREATE.>"]},
                                             subscribe: {deny: "secret.>"}}}
  ] }
  BARE { users: [ {user: bare, password: pw} ] }
}
"""


def test_denied_and_without_jetstream():
    """What is not permitted and JetStream that is off are told at once, in one sentence, by the first client."""
    with Server(config=DENIED, auth=False, sync="2m") as server:

        def run(user: str, line: str) -> str:
            done = invoke(f"nats://{user}:pw@{server.nodes[0].address}", "bench", *line.split(), "--timeout", "20s")
            assert (done.status, done.stdout) == (1, ""), done.stderr
            last = done.stderr.splitlines()[-1]
            assert last.startswith("penstock: ")
            return last

        began = time.monotonic()
        for line in ("pub secret.a --msgs 100", "sub secret.a --msgs 5", "request secret.a --msgs 5"):
            assert "secret.a" in run("some", line)
        assert "STREAM.CREATE" in run("some", "js pub fast a --msgs 5")
        for line in ("js pub fast a", "js consume", "kv put", "object get", "channels"):
            assert "JetStream" in run("bare", f"{line} --msgs 5")
        assert time.monotonic() - began < 9 * 15  # none of them waited for its timeout of 20 s
