"""`penstock kv`: what it prints for people and for programs, what it refuses, and what it asks."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buckets import KeyValue
from penstock.server import Server
from tests.live.command import environment
from tests.live.inprocess import Done, Peer, Talk, runner

Run = Callable[..., Done]


@pytest.fixture
def kv(server: Server) -> Run:
    """Run `penstock kv`; it must end well unless it is said how else."""
    return runner(server.url, "kv")


@pytest.fixture
def bucket(kv: Run, unique: Callable[..., str]) -> str:
    """A bucket that keeps five values of a key."""
    name = unique("b")
    kv("add", name, "--history", "5", "--description", "words")
    return name


def test_a_value_is_put_and_shown(kv: Run, bucket: str):
    """For people with its revision, raw as it is, and as JSON in base64."""
    assert kv("put", bucket, "a.b", "héllo").stdout == "héllo\n"
    assert kv("get", bucket, "a.b", "--raw").stdout == "héllo"
    assert f"{bucket} > a.b revision: 1 created @ 20" in (shown := kv("get", bucket, "a.b").stdout)
    assert shown.endswith("\n\nhéllo\n\n")
    told = json.loads(kv("get", bucket, "a.b", "--json").stdout)
    assert (told["key"], told["value"], told["revision"], told["operation"]) == ("a.b", "aMOpbGxv", 1, "PUT")
    assert kv("put", bucket, "piped", stdin="line\n").stdout == "\n"
    assert kv("get", bucket, "piped", "--raw").stdout == "line\n"
    assert "bGluZQo=" in kv("get", bucket, "piped").stdout  # what cannot be printed is base64
    kv("put", bucket, "long", "x" * 200)
    assert "Showing first 120 bytes of 200, use --raw for full data" in kv("get", bucket, "long").stdout


def test_conditions(kv: Run, bucket: str):
    """A key is created once, and updated at its revision."""
    kv("create", bucket, "k", "1")
    assert "has a value: nothing was stored" in kv("create", bucket, "k", "2", status=1).stderr
    kv("update", bucket, "k", "2", "1")
    assert "is at revision 2, and 1 was expected" in kv("update", bucket, "k", "3", "1", status=1).stderr
    kv("del", bucket, "k", "--force")
    assert "no key k: it was deleted." in kv("get", bucket, "k", status=1).stderr
    kv("create", bucket, "k", "3")
    shown = kv("history", bucket, "k").stdout
    assert [word for word in shown.split() if word in ("PUT", "DELETE")] == ["PUT", "PUT", "DELETE", "PUT"]
    kv("revert", bucket, "k", "2", "--force")
    assert [one["value"] for one in json.loads(kv("history", bucket, "k", "--json").stdout)][-1] == "Mg=="
    kv("purge", bucket, "k", "-f")
    assert "has one entry" in kv("revert", bucket, "k", "1", "--force", status=2).stderr


def test_what_is_lost_is_asked_for(kv: Run, bucket: str):
    """Deletes, purges, reverts and compaction want a yes; without one nothing happens."""
    kv("put", bucket, "k", "1")
    kv("put", bucket, "k", "2")
    for words in (["del", bucket], ["del", bucket, "k"], ["purge", bucket, "k"], ["compact", bucket]):
        assert "Not confirmed" in kv(*words, status=2).stderr
    assert "Not confirmed" in kv("revert", bucket, "k", "1", status=2).stderr
    assert kv("get", bucket, "k", "--raw").stdout == "2"
    kv("del", bucket, "k", stdin="y\n")
    assert kv("compact", bucket, "-f").stderr == "Removed 2 entries\n"
    kv("rm", bucket, stdin="y\n")
    assert f"There is no bucket {bucket}" in kv("info", bucket, status=1).stderr


def test_lists(kv: Run, bucket: str):
    """Buckets and keys, for people and for programs."""
    assert kv("ls", bucket).stdout == "No keys found in bucket\n"
    assert kv("ls", bucket, "--names").stdout == ""
    for key in ("b", "a.x", "a.y"):
        kv("put", bucket, key, f"value of {key}")
    assert kv("ls", bucket).stdout == "a.x\na.y\nb\n"
    assert json.loads(kv("ls", bucket, "a.*", "--json").stdout) == ["a.x", "a.y"]
    shown = kv("ls", bucket, "--verbose", "--display-value").stdout
    assert "value of a.x" in shown
    assert "value of a.x" not in kv("ls", bucket, "-v").stdout
    assert bucket in kv("ls", "--names").stdout.splitlines()
    assert bucket in json.loads(kv("ls", "--json").stdout)
    assert "Key-Value Buckets" in (table := kv("ls").stdout)
    assert bucket in table


def test_a_bucket_is_shown_and_edited(kv: Run, bucket: str, unique: Callable[..., str]):
    """With the words of the nats command; what an edit does not name stays."""
    shown = kv("edit", bucket, "--ttl", "1h", "--marker-ttl", "1m", "--metadata", "team=blue").stdout
    for line in (
        "History Kept: 5",
        "Per-Key TTL Supported: true",
        "Limit Marker TTL: 1m0s",
        "Maximum Age: 1h0m0s",
        "Description: words",
        f"JetStream Stream: KV_{bucket}",
        "team: blue",
    ):
        assert line in shown
    assert json.loads(kv("status", bucket, "--json").stdout)["config"]["max_msgs_per_subject"] == 5
    copy = unique("b")
    assert f"Origin Bucket: {bucket}" in kv("add", copy, "--mirror", bucket).stdout
    assert "Origin Bucket" not in kv("edit", copy, "--no-mirror", "--history", "2").stdout
    kv("put", copy, "own", "1")
    gathered = unique("b")
    kv("add", gathered, "--source", copy)
    assert f"Source Bucket: {bucket}" in kv("edit", gathered, "--source", bucket).stdout
    refused = kv("add", bucket, "--history", "6", status=1).stderr
    assert "configured otherwise: description: words -> nothing; " in refused
    assert "max_msgs_per_subject: 5 -> 6" in refused


def test_a_watch_shows_what_is_there_and_what_changes(kv: Run, peer: Peer, bucket: str):
    """Until Ctrl-C; deletes can be left out, and programs get a line of JSON for each entry."""
    kv("put", bucket, "k", "1")
    kv("put", bucket, "k", "2")
    theirs = peer.do(KeyValue.open(peer.client, bucket))

    def change(talk: Talk) -> None:
        talk.wait_for(f"PUT {bucket} > k: 2")
        peer.do(theirs.put("k", b"3"))
        talk.wait_for("k: 3")
        peer.do(theirs.delete("k"))
        talk.wait_for(f"DELETE {bucket} > k")
        talk.interrupt()

    assert len(kv("watch", bucket, beside=change).stdout.splitlines()) == 3

    def last(talk: Talk) -> None:
        talk.wait_for('"revision": 3')
        peer.do(theirs.delete("k"))
        peer.do(theirs.put("k", b"6"))
        talk.wait_for('"revision": 6')
        talk.interrupt()

    shown = kv("watch", bucket, "--history", "--no-deletes", "--json", beside=last).stdout
    assert [json.loads(line)["revision"] for line in shown.splitlines()] == [1, 2, 3, 6]


def test_a_terminal_obeys_no_value(kv: Run, bucket: str):
    """Controls in a value are not printed as they are, but for raw output."""
    kv("put", bucket, "k", "\x1b[31mred")
    for words in (["get", bucket, "k"], ["history", bucket, "k"], ["ls", bucket, "-v", "--display-value"]):
        assert "\x1b" not in kv(*words).stdout
    assert "\x1b" in kv("get", bucket, "k", "--raw").stdout


def test_the_nats_command_reads_what_ours_wrote(server: Server, kv: Run, bucket: str, tmp_path: Path):
    """And the other way round, where it is installed."""
    program = shutil.which("nats")
    if program is None:
        pytest.skip("the nats command is not installed")

    def theirs(*words: str) -> str:
        surroundings = {**environment(tmp_path), "NATS_URL": server.url}
        command = [program, "kv", *words]
        return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True).stdout

    kv("put", bucket, "ours", "1")
    assert theirs("get", bucket, "ours", "--raw") == "1"
    theirs("put", bucket, "theirs", "2")
    assert kv("get", bucket, "theirs", "--raw").stdout == "2"
    assert theirs("ls", bucket).split() == kv("ls", bucket).stdout.split()
    assert labels(theirs("info", bucket)) == labels(kv("info", bucket).stdout)


def labels(shown: str) -> list[str]:
    found = [line.partition(":")[0].strip() for line in shown.splitlines()[1:] if ":" in line]
    return found[: found.index("Storage") + 1]  # a lone server is no cluster here
