"""`penstock consumer`, verb by verb: what each prints for people and for programs, what it asks, and how it fails."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import Deliveries
from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke, runner

Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Run a verb of `consumer`; it must succeed unless a status is given."""
    return runner(server.url, "consumer")


@pytest.fixture
def stream(server: Server, unique: Callable[..., str]) -> str:
    name = unique("CO")
    done = invoke(server.url, "stream", "add", name, "--subjects", f"{name}.>", "--defaults")
    assert done.status == 0, done.stderr
    return name


def read(done: Done) -> Any:
    """Read the JSON that a command printed, and nothing beside it."""
    return json.loads(done.stdout)


def squeezed(done: Done) -> str:
    return " ".join(done.stdout.split())


# -- add -------------------------------------------------------------------------------------------------------------


def test_add_shows_what_the_server_made(run: Run, stream: str):
    """People get the configuration and the state; programs the server's answer."""
    shown = squeezed(run("add", stream, "one", "--defaults"))
    assert shown.startswith(f"Information for Consumer {stream} > one created 2")
    assert "Waiting Pulls: 0 of maximum 512" in shown
    answer = read(run("new", stream, "two", "--filter", f"{stream}.a", "--json"))
    assert (answer["stream_name"], answer["name"]) == (stream, "two")
    assert answer["config"]["filter_subject"] == f"{stream}.a"


def test_add_without_a_server(tmp_path: Path):
    """--validate and --output need no server: the one named here is not there."""
    words = ["consumer", "add", "S", "c", "--wait", "5s", "--ack", "all"]
    checked = invoke("nats://127.0.0.1:1", *words, "--validate")
    assert (checked.status, checked.stdout) == (0, "Consumer c is valid.\n")
    config = read(invoke("nats://127.0.0.1:1", *words, "--validate", "--json"))
    assert (config["durable_name"], config["ack_wait"], config["ack_policy"]) == ("c", 5 * 10**9, "all")
    file = tmp_path / "c.json"
    assert invoke("nats://127.0.0.1:1", *words, "--output", str(file)).status == 0
    assert json.loads(file.read_text()) == config
    again = invoke("nats://127.0.0.1:1", *words, "--output", str(file))
    assert (again.status, "cannot be written" in again.stderr) == (2, True)


def test_a_configuration_goes_round(run: Run, stream: str, tmp_path: Path):
    """What `info --json` prints is a --config of `add`, for the same or another name, and flags win over it."""
    run("add", stream, "one", "--max-deliver", "7", "--description", "from one", "--defaults")
    file = tmp_path / "one.json"
    file.write_text(run("info", stream, "one", "--json").stdout)
    made = read(run("add", stream, "two", "--config", str(file), "--max-deliver", "8", "--json"))["config"]
    assert (made["durable_name"], made["max_deliver"], made["description"]) == ("two", 8, "from one")
    assert (
        "has another consumer one already"
        in run("add", stream, "--config", str(file), "--max-deliver", "9", status=2).stderr
    )
    assert read(run("add", stream, "--config", str(file), "--json"))["config"]["max_deliver"] == 7


def test_a_name_of_the_servers_own(run: Run, stream: str):
    """An ephemeral consumer without a name gets one from the server; with a name it has that, and is not durable."""
    made = read(run("add", stream, "--ephemeral", "--json"))
    assert made["name"]
    assert "durable_name" not in made["config"]
    assert read(run("add", stream, "short", "--ephemeral", "--json"))["config"]["name"] == "short"
    assert {"short", made["name"]} <= set(run("ls", stream, "-n").stdout.split())


def test_add_refuses_what_cannot_be(run: Run, stream: str):
    """What does not fit the stream, or is there already, is told before the server is asked to."""
    assert "3 replicas" in run("add", stream, "c", "--replicas", "3", status=2).stderr
    error = run("add", stream, "c", "--filter", f"{stream}.a,{stream}.>", status=2).stderr
    assert "overlap" in error
    run("add", stream, "c", "--defaults")
    assert "has another consumer c already" in run("add", stream, "c", "--ack", "none", status=2).stderr
    assert run("ls", stream, "-n").stdout == "c\n"


def test_a_work_queue_is_read_once(run: Run, server: Server, unique: Callable[..., str]):
    """Two consumers of a work queue may not want the same messages, and the second one is refused by name."""
    queue = unique("CO")
    invoke(server.url, "stream", "add", queue, "--subjects", f"{queue}.*", "--retention", "work", "--defaults")
    run("add", queue, "all", "--defaults")
    error = run("add", queue, "part", "--filter", f"{queue}.a", status=2).stderr
    assert "all" in error
    assert run("ls", queue, "-n").stdout == "all\n"


# -- edit, rm, pause -------------------------------------------------------------------------------------------------


def test_edit_tells_programs_apart_from_people(run: Run, stream: str, server: Server):
    """With --json the changes go to standard error, and the answer or the plan to standard output."""
    run("add", stream, "c", "--defaults")
    dry = [
        invoke(server.url, "consumer", "edit", stream, "c", "--max-deliver", "5", "--dry-run", *more)
        for more in ([], ["-j"])
    ]
    (step,) = read(dry[1])["steps"]
    assert (step["kind"], step["stream"], step["name"], step["action"]) == ("consumer", stream, "c", "update")
    assert [(item["field"], item["old"], item["new"]) for item in step["changes"]] == [("max_deliver", -1, 5)]
    assert [done.status for done in dry] == [1, 1]
    assert dry[0].stdout == "  max_deliver: -1 -> 5\n"
    done = run("update", stream, "c", "--max-deliver", "5", "-f", "--json")
    assert (read(done)["config"]["max_deliver"], done.stderr) == (5, "  max_deliver: -1 -> 5\n")
    again = run("edit", stream, "c", "--max-deliver", "5", "--json")
    assert read(again)["config"]["max_deliver"] == 5
    assert again.stderr == "Consumer c is like that already.\n"


def test_edit_to_a_configuration(run: Run, stream: str, tmp_path: Path):
    """--config makes it what the file says; a yes through a pipe is enough."""
    run("add", stream, "c", "--max-deliver", "3", "--defaults")
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"durable_name": "x", "ack_policy": "explicit", "description": "new"}))
    assert "Really edit" in run("edit", stream, "c", "--config", str(file), stdin="n\n", status=2).stderr
    run("edit", stream, "c", "--config", str(file), stdin="y\n")
    config = read(run("info", stream, "c", "--json"))["config"]
    assert (config["description"], config["max_deliver"]) == ("new", -1)


def test_rm_asks(run: Run, stream: str):
    """Without a yes the consumer stays; afterwards it is not there."""
    run("add", stream, "c", "--defaults")
    asked = run("rm", stream, "c", stdin="\n", status=2).stderr
    assert f"Really delete Consumer {stream} > c" in asked
    assert run("delete", stream, "c", stdin="y\n").stdout == f"Consumer {stream} > c was deleted.\n"
    assert run("ls", stream).stdout == f"No Consumers are defined for stream {stream}\n"


def test_pausing(run: Run, stream: str, peer: Peer):
    """A paused consumer delivers nothing until it goes on; programs get the server's answer."""
    run("add", stream, "c", "--defaults")
    peer.publish(f"{stream}.a", b"x")
    assert "Really pause" in run("pause", stream, "c", "1h", stdin="n\n", status=2).stderr
    answer = read(run("pause", stream, "c", "2099-01-31 10:00", "-f", "--json"))
    assert (answer["paused"], answer["pause_until"]) == (True, "2099-01-31T10:00:00Z")
    run("next", stream, "c", "--wait", "100ms", status=1)
    assert "Really resume" in run("resume", stream, "c", stdin="n\n", status=2).stderr
    assert run("resume", stream, "c", stdin="y\n").stdout == f"Consumer {stream} > c goes on.\n"
    assert run("next", stream, "c", "--raw").stdout == "x\n"
    assert "is past" in run("pause", stream, "c", "2020-01-01", "-f", status=2).stderr
    assert read(run("info", stream, "c", "--json")).get("paused") in (None, False)


# -- looking ---------------------------------------------------------------------------------------------------------


def test_lists_and_reports(run: Run, stream: str, peer: Peer):
    """ls and report are tables, names and JSON, in the order of the names."""
    run("add", stream, "b", "--description", "what it is for", "--defaults")
    run("add", stream, "a", "--target", f"to.{stream}", "--ack", "none", "--defaults")
    peer.publish(f"{stream}.x", b"1", b"2")
    run("next", stream, "b", "--no-ack")
    table = run("list", stream).stdout
    assert re.search(r"│ b +│ what it is for +│ .* │ +1 │ +1 │", table)
    assert run("ls", stream, "--names").stdout == "a\nb\n"
    assert read(run("ls", stream, "--names", "--json")) == read(run("ls", stream, "--json")) == ["a", "b"]
    shown = run("report", stream).stdout
    assert "with 2 consumers" in " ".join(shown.split())
    assert re.search(r"│ a +│ Push │ None +│ +0s │", shown)
    assert re.search(r"│ b +│ Pull │ Explicit +│ +30s │ +1 │ +0 │ +1 / 50% │ +0 │ +0 │", shown)
    assert [item["num_ack_pending"] for item in read(run("report", stream, "--json"))] == [0, 1]


def test_a_list_of_nothing(run: Run, stream: str):
    """A stream without consumers has an empty list, and that is no failure."""
    assert run("ls", stream).stdout == f"No Consumers are defined for stream {stream}\n"
    assert run("ls", stream, "-n").stdout == ""
    assert read(run("ls", stream, "--json")) == []
    assert read(run("report", stream, "--json")) == []


def test_a_pipe_is_told_what_there_is(run: Run, stream: str):
    """Where nobody can be asked which one, the error lists them."""
    assert f"There is no {stream} consumer" in run("info", stream, status=2).stderr
    run("add", stream, "c", "--defaults")
    assert f"Which {stream} consumer? There are: c." in run("info", stream, status=2).stderr
    for verb in ("info", "ls", "report", "rm"):
        error = run(verb, status=2).stderr
        assert "Which stream?" in error
        assert stream in error


@pytest.mark.parametrize(
    "arguments",
    [
        "info STREAM NOPE",
        "edit STREAM NOPE --max-deliver 1",
        "rm STREAM NOPE -f",
        "pause STREAM NOPE 1h -f",
        "resume STREAM NOPE -f",
        "next STREAM NOPE",
        "sub STREAM NOPE",
        "samples STREAM NOPE --wait 100ms",
    ],
)
def test_a_consumer_that_is_not_there(run: Run, stream: str, arguments: str):
    """Every verb says that the consumer is not there, with status 1 and where to look."""
    done = run(*arguments.replace("STREAM", stream).split(), status=1)
    assert done.stderr.startswith(f"penstock: There is no consumer NOPE of stream {stream}.")
    assert f"penstock consumer ls {stream}" in done.stderr


def test_a_consumer_of_no_stream(run: Run):
    """If the stream is not there either, the sentence says where to look for streams."""
    done = run("info", "NOPE", "c", status=1)
    assert done.stderr == "penstock: There is no stream NOPE. `penstock stream ls` shows those that are there.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "add NOPE c --defaults",
        "info NOPE c",
        "ls NOPE",
        "report NOPE",
        "rm NOPE c -f",
        "pause NOPE c 1h -f",
        "next NOPE c",
        "sub NOPE c",
        "samples NOPE --wait 100ms",
        "redeliver NOPE",
    ],
)
def test_a_stream_that_is_not_there(run: Run, arguments: str):
    """Every verb says that the stream is not there, with status 1."""
    assert run(*arguments.split(), status=1).stderr.startswith("penstock: There is no stream NOPE.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "S"], "no name"),
        (["add", "S", "a.b"], "A name has no dots"),
        (["add", "S", "c", "--ack", "some"], "ack_policy"),
        (["add", "S", "c", "--replay", "fast"], "replay_policy"),
        (["add", "S", "c", "--sample", "101"], "--sample"),
        (["add", "S", "c", "--max-deliver", "x"], "--max-deliver"),
        (["add", "S", "c", "--heartbeat", "1s"], "push consumers"),
        (["add", "S", "c", "--target", "a b"], "deliver_subject"),
        (["add", "S", "c", "--filter", "a..b"], "empty token"),
        (["add", "S", "c", "--overflow-groups", "a", "--pinned-groups", "b"], "--overflow-groups and --pinned-groups"),
        (["add", "S", "c", "--pause", "99999y"], "out of the range of dates"),
        (["edit", "S", "a.b"], "cannot be the name of a consumer"),
        (["info", "a b", "c"], "cannot be the name of a stream"),
        (["info", "S", "--no-select"], "Which consumer?"),
        (["ls", "--no-select"], "Which stream?"),
        (["copy", "S", "c"], "DESTINATION"),
        (["find", "S", "--pull", "--push"], "given together"),
        (["find", "S", "--idle", "x"], "--idle"),
        (["find", "S", "--waiting", "0"], "--waiting"),
        (["reset", "S", "c", "--sequence", "-1"], "--sequence"),
        (["next", "S", "c", "--min-pending", "5"], "means nothing without a group"),
        (["next", "S", "c", "--group", "g", "--priority", "10"], "--priority"),
        (["edit", "S", "c", "--config", "/nowhere"], "/nowhere"),
        (["pause", "S", "c"], "UNTIL"),
        (["pause", "S", "c", "soon", "-f"], "UNTIL"),
        (["pause", "S", "c", "2026-02-30", "-f"], "is not a time"),
        (["next", "S"], "CONSUMER"),
        (["next", "S", "c", "--count", "0"], "--count"),
        (["next", "S", "c", "--nak", "--term"], "given together"),
        (["next", "S", "c", "--wait", "x"], "--wait"),
        (["sub", "S", "c", "--count", "-1"], "--count"),
        (["sub", "S", "c", "--wait", "x"], "--wait"),
        (["samples", "S", "--count", "-1"], "--count"),
        (["samples", "S", "--wait", "x"], "--wait"),
        (["redeliver", "S", "--seq", "x"], "--seq"),
    ],
)
def test_bad_input_is_refused_before_a_connection(arguments: list[str], words: str):
    """What makes no sense is status 2 and said at once: the server named here is not there."""
    done = invoke("nats://127.0.0.1:1", "consumer", *arguments)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "127.0.0.1" not in done.stderr


# -- next ------------------------------------------------------------------------------------------------------------


def test_next_leaves_what_it_does_not_ack(run: Run, stream: str, peer: Peer):
    """--no-ack leaves the delivery outstanding; --nak gives it back to come again; --term ends it."""
    run("add", stream, "c", "--defaults")
    peer.publish(f"{stream}.a", b"one", headers={"K": "v"})
    shown = run("next", stream, "c", "--nak").stdout
    assert "(stream sequence 1, consumer sequence 1, delivery 1, 0 pending)\nK: v\n\none\n" in shown
    assert shown.endswith("Gave the message back\n\n")
    (again,) = read(run("next", stream, "c", "--nak", "--json"))
    assert (again["delivered"], again["consumer_sequence"], again["sequence"]) == (2, 2, 1)
    assert "Acknowledged" not in run("next", stream, "c", "--no-ack").stdout
    assert read(run("info", stream, "c", "--json"))["num_ack_pending"] == 1
    peer.publish(f"{stream}.a", b"two")
    assert "Refused the message for good" in run("next", stream, "c", "--term").stdout
    assert read(run("info", stream, "c", "--json"))["num_ack_pending"] == 1


def test_next_gives_what_came(run: Run, stream: str, peer: Peer):
    """Fewer messages than asked for are shown and acknowledged, and the command says how many came."""
    run("add", stream, "c", "--defaults")
    peer.publish(f"{stream}.a", b"1", b"2")
    done = run("next", stream, "c", "--count", "5", "--wait", "200ms", "--raw", status=1)
    assert done.stdout == "1\n2\n"
    assert "Only 2 of 5 messages came in 0.2 s" in done.stderr
    assert read(run("info", stream, "c", "--json"))["ack_floor"]["stream_seq"] == 2
    nothing = run("next", stream, "c", "--json", "--timeout", "100ms", status=1)
    assert read(nothing) == []


def test_next_of_consumers_of_other_kinds(run: Run, stream: str, peer: Peer):
    """Without acks nothing is acknowledged; a push consumer is not read this way, and the error says how it is."""
    run("add", stream, "quiet", "--ack", "none", "--defaults")
    run("add", stream, "push", "--target", f"to.{stream}", "--defaults")
    peer.publish(f"{stream}.a", b"x")
    shown = run("next", stream, "quiet").stdout
    assert shown.count("\n") == 3
    assert "Acknowledged" not in shown
    assert f"to.{stream}" in run("next", stream, "push", status=2).stderr


# -- sub -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_sub_without_acks(run: Run, stream: str, peer: Peer, kind: str):
    """--no-ack shows messages and leaves them outstanding; --raw prints payloads; --count ends it."""
    target = [] if kind == "pull" else ["--target", f"to.{stream}"]
    run("add", stream, "c", *target, "--defaults")
    peer.publish(f"{stream}.a", b"1", b"2", b"3")
    done = run("sub", stream, "c", "--no-ack", "--raw", "--count", "2")
    assert (done.stdout, done.stderr) == ("1\n2\n", f"Reading {stream} > c\n")
    assert read(run("info", stream, "c", "--json"))["ack_floor"]["stream_seq"] == 0


def test_sub_shares_a_queue_group(run: Run, stream: str, peer: Peer):
    """A push consumer with a group is read in it; a pull consumer has none, and that is bad input."""
    run("add", stream, "push", "--target", f"to.{stream}", "--deliver-group", "g", "--defaults")
    run("add", stream, "pull", "--defaults")
    peer.publish(f"{stream}.a", b"1")
    assert run("sub", stream, "push", "--deliver-group", "g", "--raw", "--count", "1").stdout == "1\n"
    assert "has no deliver group" in run("sub", stream, "pull", "--deliver-group", "g", status=2).stderr


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_sub_says_that_its_consumer_is_gone(run: Run, stream: str, peer: Peer, kind: str):
    """A consumer that is deleted while it is read ends the command with 1 and a sentence, not in silence."""
    target = [] if kind == "pull" else ["--target", f"to.{stream}", "--heartbeat", "100ms"]
    run("add", stream, "c", *target, "--defaults")
    peer.publish(f"{stream}.a", b"1")

    def delete(talk: Talk) -> None:
        talk.wait_for("received on")
        peer.request(f"$JS.API.CONSUMER.DELETE.{stream}.c")

    done = run("sub", stream, "c", status=1, beside=delete)
    assert "onsumer c" in done.stderr


def test_sub_ends_at_ctrl_c(run: Run, stream: str, peer: Peer):
    """Ctrl-C is the ordinary end: status 0, and what was shown is acknowledged."""
    run("add", stream, "c", "--defaults")

    def press(talk: Talk) -> None:
        talk.wait_for("Reading")
        peer.publish(f"{stream}.a", b"late")
        talk.wait_for("late")
        talk.interrupt()

    run("sub", stream, "c", beside=press)
    deadline = time.monotonic() + 20
    while read(run("info", stream, "c", "--json"))["num_ack_pending"]:
        assert time.monotonic() < deadline


# -- samples and dead letters ----------------------------------------------------------------------------------------


def test_samples_of_a_whole_stream(run: Run, stream: str, peer: Peer):
    """Without a consumer's name all of the stream are listened to: sampled acks, and what was refused for good."""
    run("add", stream, "c", "--sample", "100", "--defaults")
    peer.publish(f"{stream}.a", b"1", b"2")

    async def take() -> None:
        async with Deliveries(peer.client, stream, "c", limit=2) as deliveries:
            async for delivery in deliveries:
                await (delivery.ack_sync() if delivery.place.sequence == 1 else delivery.term("no good", sync=True))

    def answer(talk: Talk) -> None:
        talk.wait_for(f"Listening for samples of {stream} > *")
        peer.do(take())

    done = run("samples", stream, "--count", "2", beside=answer)
    assert f"{stream} > c: ack of 1 after" in done.stdout
    assert re.search(rf"│ {stream} > c │ +1 │ +0 │ +1 │ +0 │ +1 │ +0 │", done.stdout)


def test_samples_of_nothing(run: Run, stream: str):
    """--wait ends it with what there was: nothing, for people and for programs."""
    run("add", stream, "c", "--sample", "100", "--defaults")
    assert "Ack samples" in run("samples", stream, "c", "--wait", "50ms").stdout
    done = run("samples", stream, "c", "--wait", "50ms", "--json")
    assert read(done) == {}


def test_dead_letters_that_are_not_there(run: Run, server: Server, stream: str, unique: Callable[..., str]):
    """Without a dead-letter stream the error says so; with an empty one there is nothing to put back."""
    assert f"There is no dead-letter stream {stream}-DEAD" in run("redeliver", stream, status=1).stderr
    dead = unique("DEAD")
    assert f"There is no dead-letter stream {dead}" in run("redeliver", stream, "--dead", dead, status=1).stderr
    subjects = f"PENSTOCK.DEAD.{stream}.>,$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.*"
    made = invoke(server.url, "stream", "add", dead, "--subjects", subjects, "--defaults")
    assert made.status == 0, made.stderr
    assert read(run("redeliver", stream, "--dead", dead, "--list", "--json")) == []
    assert "Dead letters of" in run("redeliver", stream, "--dead", dead, "-f").stdout
    assert (
        "No dead letter for 3, 5."
        in run("redeliver", stream, "--dead", dead, "--seq", "5", "--seq", "3", status=2).stderr
    )
