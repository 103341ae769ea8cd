"""`chunks`, `bus` and `channels` on the command line, in one process with those they talk to."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bus import Bus, Request, Response, Sender
from penstock.channels import Client as ChannelClient
from penstock.chunks import Publisher
from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke

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


# -- chunks ----------------------------------------------------------------------------------------------------------


def test_chunks_are_received_while_they_come(run: Run, peer: Peer, unique: Callable[..., str], tmp_path: Path):
    """Files are named by message and told as lines of JSON; --count ends it; a wildcard receives from many subjects."""
    subject = unique("ch")

    async def send(name: str) -> None:
        await Publisher(peer.client, 1000).publish(f"{subject}.{name}", name.encode() * 5000, message_id=name)

    def talk_to(talk: Talk) -> None:
        talk.wait_for(f"Receiving on {subject}.*")
        for name in ("one", "two"):
            peer.do(send(name))

    done = run("chunks", "receive", f"{subject}.*", "--to", str(tmp_path), "--count", "2", "--json", beside=talk_to)
    told = {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: line["bytes"] for name, line in told.items()} == {"one": 15000, "two": 15000}
    assert told["one"]["subject"] == f"{subject}.one"
    assert Path(told["two"]["file"]).read_bytes() == b"two" * 5000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_chunks_of_a_stream_are_remembered(run: Run, unique: Callable[..., str], tmp_path: Path):
    """--durable remembers what was received, and no more than that; --id fetches one that is there."""
    subject, stream, inbox = unique("ch"), unique("CH"), tmp_path / "in"
    inbox.mkdir()
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 400)
        sent = run("chunks", "send", str(tmp_path / name), subject, "--persistent", stream, "--id", name)
        assert f"Sent 1,200 bytes to {subject} into {stream} as {name}" in sent.stdout
    receive = ["chunks", "receive", subject, "--persistent", stream, "--to", str(inbox)]
    done = run(*receive, "--durable", "d", "--count", "1")
    assert f"[#1] Received 1,200 bytes on {subject} as {inbox / 'one'}" in done.stdout
    info = read(run("consumer", "info", stream, "d", "--json"))
    assert info["ack_floor"]["stream_seq"] == 1, "what was not kept is not acknowledged, and comes again"
    assert [path.name for path in inbox.iterdir()] == ["one"]
    assert (inbox / "one").read_bytes() == b"one" * 400
    assert read(run(*receive, "--id", "one", "--json"))["file"] == str(inbox / "one.1")
    assert "no message three" in run(*receive, "--id", "three", status=1).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["send", "/nowhere", "a"], "There is no file"),
        (["send", "/", "a"], "There is no file"),
        (["send", "FILE"], "subject"),
        (["send", "FILE", "a", "--chunk-size", "0"], "--chunk-size"),
        (["receive", "a", "--to", "/nowhere"], "not a folder"),
        (["receive", "a", "--to", "FILE"], "not a folder"),
        (["receive", "a", "--durable", "d"], "--persistent"),
        (["receive", "a", "--idle", "0s"], "--idle"),
        (["receive", "a", "--idle", "x"], "--idle"),
        (["receive", "a", "--count", "-1"], "--count"),
    ],
)
def test_chunks_refuse_bad_input_before_they_connect(tmp_path: Path, arguments: list[str], words: str):
    """What cannot be sent or received is bad input: the server named here is not there."""
    (tmp_path / "file").touch()
    done = invoke("nats://127.0.0.1:1", "chunks", *(word.replace("FILE", str(tmp_path / "file")) for word in arguments))
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr


# -- bus -------------------------------------------------------------------------------------------------------------


async def answer(request: Request, sender: Sender) -> None:
    """Answer with what was asked: `bus serve` loads this by name."""
    if request.resource == "bad":
        await sender.respond(Response(500, "text/plain", b"no"))
        return
    await sender.respond(Response(data=json.dumps([request.method, request.resource, request.body.decode()]).encode()))


def test_bus_serves_and_counts_its_partitions(run: Run, server: Server, unique: Callable[..., str]):
    """`serve` says what it serves, tells each request as JSON, and ends with 0 at Ctrl-C."""
    queue, replies = unique("q"), []

    def ask(talk: Talk) -> None:
        talk.wait_for(f"Serving {queue}, partitions 1 to 1 of 2")
        peer = Peer(server.url)

        async def call() -> None:
            async with Bus(peer.client, {queue: 2}) as bus:
                for resource in ("fine", "bad"):
                    reply = await bus.request(Request(queue, 1, "POST", resource, body=b"x"))
                    replies.append((reply.response.status, reply.response.data))

        peer.do(call())
        peer.close()
        talk.interrupt()

    arguments = ("bus", "serve", f"{__name__}:answer", "--queue", queue, "--partitions", "2", "--parts", "2")
    done = run(*arguments, "--part", "2", "--json", beside=ask)
    assert replies == [(200, b'["POST", "fine", "x"]'), (500, b"no")]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["partition"], line["resource"], line["bytes"]) for line in told] == [(1, "fine", 1), (1, "bad", 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["call", ""], "queue"),
        (["call", "q:many"], "not a partition"),
        (["call", "q:70000"], "partitions"),
        (["call", "q", "x", "-X", "BREW"], "method"),
        (["call", "q", "x", "--window", "-1"], "--window"),
        (["call", "q", "x", "--window", "70000"], "window"),
        (["call", "q", "x", "--query", "novalue"], "KEY=VALUE"),
        (["call", "q", "x", "-H", ":v"], "KEY:VALUE"),
        (["serve", "nofunction", "--queue", "q"], "names no function"),
        (["serve", "os:nothing", "--queue", "q"], "is not there in os"),
        (["serve", "os:path", "--queue", "q"], "not a coroutine function"),
        (["serve", "os:path"], "--queue"),
        (["serve", "MODULE:answer", "--queue", "q", "--stop-timeout", "x"], "--stop-timeout"),
        (["serve", "MODULE:answer", "--queue", "q", "--concurrency", "0"], "--concurrency"),
        (["serve", "MODULE:answer", "--queue", "q", "--partitions", "0"], "--partitions"),
    ],
)
def test_bus_refuses_bad_input_before_it_connects(arguments: list[str], words: str):
    """What cannot be asked or served is bad input: the server named here is not there."""
    done = invoke("nats://127.0.0.1:1", "bus", *(word.replace("MODULE", __name__) for word in arguments))
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr


# -- channels --------------------------------------------------------------------------------------------------------


def test_channels_are_served_and_shown(
    run: Run, server: Server, peer: Peer, unique: Callable[..., str], tmp_path: Path
):
    """`serve` says for which cluster; ls, info and export show what a client left, for people and for programs."""
    cluster, seen = unique("cl"), {}

    async def use() -> None:
        async with ChannelClient(server.url, cluster_id=cluster, client_id="me") as client:
            await client.publish("orders.new", b"\x00one")
            await client.publish("orders.new", b"two")

    def talk_to(talk: Talk) -> None:
        said = talk.wait_for("}\n")
        seen.update(json.loads(said[said.index("{") :]))  # the largest message of this server stands before it
        peer.do(use())
        talk.interrupt()

    flags = ["--cluster-id", cluster]
    run("channels", "serve", *flags, "--subject-prefix", f"{cluster}.", "-m", "0", "--json", beside=talk_to)
    assert (seen["cluster_id"], seen["url"], seen["leading"]) == (cluster, None, True)
    assert seen["monitor"].startswith("http://127.0.0.1:")
    assert re.search(rf"│ orders.new +│ {cluster}:orders:new │ +2 │", run("channels", "ls", *flags).stdout)
    info = read(run("channels", "info", "orders.new", *flags, "--json"))
    assert (info["messages"], info["first"], info["last"], info["subscriptions"]) == (2, 1, 2, [])
    assert "Sequences: 1 to 2" in run("channels", "info", "orders.new", *flags).stdout
    lines = [json.loads(line) for line in run("channels", "export", "orders.new", *flags).stdout.splitlines()]
    assert [(line["sequence"], base64.b64decode(line["data"])) for line in lines] == [(1, b"\x00one"), (2, b"two")]
    assert run("channels", "export", "orders.new", "--start", "9", *flags).stdout == ""
    target = ["--output", str(tmp_path / "no" / "file")]
    assert "cannot be written" in run("channels", "export", "orders.new", *target, *flags, status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ls", "--cluster-id", "a b"], "cluster_id is 'a b'"),
        (["info", "x", "--cluster-id", "a.b"], "cluster_id"),
        (["export", "x", "--cluster-id", ">"], "cluster_id"),
        (["export", "x", "--start", "0"], "--start"),
        (["export", "x", "--start", "5", "--end", "2"], "--start"),
        (["migrate", "x"], "--from is missing"),
        (["migrate", "--from", "nats://127.0.0.1:1"], "No channel is named"),
        (["migrate", "x", "--from", "nats://127.0.0.1:1", "--replicas", "2"], "replicas is 2"),
        (["migrate", "x", "--from", "nats://127.0.0.1:1", "--from-cluster", "a b"], "cluster_id"),
        (["migrate", "x", "--from", "nats://127.0.0.1:1", "--subject-prefix", "a *"], "subject_prefix"),
        (["migrate", "x", "--from", "http://x"], "scheme"),
        (["serve", "--hb-interval", "0s"], "hb_interval"),
        (["serve", "--hb-timeout", "x"], "--hb-timeout"),
        (["serve", "--hb-fail-count", "-1"], "hb_fail_count"),
        (["serve", "--max-channels", "-1"], "max_channels"),
        (["serve", "--max-bytes", "x"], "--max-bytes"),
        (["serve", "--monitor", "x"], "monitor"),
        (["serve", "--lease", "0s"], "lease"),
        (["serve", "--limits", "foo:bar=1"], "bar=1"),
        (["serve", "--token", "t"], "embedded"),
        (["serve", "--no-auth"], "embedded"),
    ],
)
def test_channels_refuse_bad_input_before_they_connect(arguments: list[str], words: str):
    """What would become part of a subject, and what makes no sense, is checked before a server is asked."""
    done = invoke("nats://127.0.0.1:1", "channels", *arguments)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
