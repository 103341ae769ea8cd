"""`penstock consumer copy|find|state|reset` and what else the `nats` command has, and consumers of the server's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection
from penstock.errors import InputError
from penstock.jetstream import Topology, apply, assets, peers, plan
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.inprocess import Done, Peer, runner

Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Run a verb of `consumer`; it must succeed unless a status is given."""
    return runner(server.url, "consumer")


@pytest.fixture
def stream(peer: Peer, unique: Callable[..., str]) -> str:
    """A stream with three messages, and a pull consumer `c` that took none of them."""
    name = unique("CV")
    peer.do(assets.add_stream(peer.client, Stream(name=name, subjects=[f"{name}.>"])))
    peer.do(assets.add_consumer(peer.client, name, Consumer(durable="c", description="the first", max_deliver=7)))
    peer.publish(f"{name}.x", b"1", b"2", b"3")
    return name


def read(done: Done) -> Any:
    return json.loads(done.stdout)


# -- copy, state, reset, find ----------------------------------------------------------------------------------------


def test_copy_takes_all_but_what_flags_say(run: Run, stream: str):
    """A copy has the configuration of the other one, begins anew, and never replaces what is there."""
    run("next", stream, "c", "--count", "2")
    shown = run("copy", stream, "c", "d", "--max-deliver", "9").stdout
    assert f"Information for Consumer {stream} > d" in shown
    assert "Description: the first" in shown
    made = read(run("cp", stream, "c", "e", "--ephemeral", "--deliver", "2", "--json"))
    assert (made["config"].get("durable_name"), made["config"]["opt_start_seq"], made["num_pending"]) == (None, 2, 2)
    assert "has another consumer d already" in run("copy", stream, "c", "d", status=2).stderr
    assert "There is no consumer NOPE" in run("copy", stream, "NOPE", "x", status=1).stderr
    assert run("next", stream, "d", "--raw").stdout == "1\n"


def test_copy_to_the_other_kind(run: Run, stream: str):
    """A pull consumer is copied to a push consumer and back; what only one kind has stays behind."""
    pushing = ["--target", f"to.{stream}", "--heartbeat", "1s", "--flow-control", "--deliver-group", "g"]
    push = read(run("copy", stream, "c", "push", *pushing, "--json"))["config"]
    assert push["deliver_subject"] == f"to.{stream}"
    assert "max_waiting" not in push
    pull = read(run("copy", stream, "push", "pull", "--pull", "--json"))["config"]
    assert not {"deliver_subject", "deliver_group", "idle_heartbeat", "flow_control"} & set(pull)


def test_state_is_how_it_stands(run: Run, stream: str):
    """`state` shows no configuration; its JSON is that of `info`, without the kind of answer."""
    shown = run("state", stream, "c").stdout
    assert shown.startswith(f"State for Consumer {stream} > c created 2")
    assert "Unprocessed Messages: 3" in shown
    assert re.search(r"Host Version: 2\.", shown)
    assert "Configuration" not in shown
    one, other = read(run("state", stream, "c", "--json")), read(run("info", stream, "c", "--json"))
    assert set(one) == set(other)
    assert "type" not in one
    assert (one["name"], one["num_pending"], one["config"]["durable_name"]) == ("c", 3, "c")


def test_reset_delivers_again(run: Run, stream: str):
    """Without a sequence it begins behind the ack floor, with one there; both ask, and show how it stands."""
    run("next", stream, "c", "--count", "3")
    assert f"Really reset Consumer {stream} > c to sequence 4" in run("reset", stream, "c", status=2).stderr
    answer = read(run("reset", stream, "c", "--sequence", "2", "-f", "--json"))
    assert (answer["reset_seq"], answer["num_pending"]) == (2, 2)
    assert run("next", stream, "c", "--raw").stdout == "2\n"
    run("next", stream, "c", "--no-ack")
    assert "Unprocessed Messages: 1" in run("reset", stream, "c", "-f").stdout
    assert run("next", stream, "c", "--raw").stdout == "3\n"
    run("add", stream, "late", "--deliver", "3")
    assert "The server refused" in run("reset", stream, "late", "--sequence", "1", "-f", status=1).stderr
    assert "There is no consumer NOPE" in run("reset", stream, "NOPE", "-f", status=1).stderr


def test_find(run: Run, stream: str):
    """All criteria must hold, each the other way round with --invert; names are printed, also for programs."""
    run("add", stream, "push", "--target", f"to.{stream}", "--ack", "none", "--defaults")
    run("add", stream, "done", "--deliver", "new", "--defaults")
    run("next", stream, "c", "--no-ack")

    def found(*criteria: str) -> list[str]:
        listed = run("find", stream, *criteria).stdout.split()
        assert read(run("query", stream, *criteria, "--json")) == listed
        return listed

    assert found() == ["c", "done", "push"]
    assert found("--push") == ["push"]
    assert found("--pull") == found("--push", "--invert") == ["c", "done"]
    assert found("--pull", "--pending", "1") == ["done"]
    assert found("--ack-pending", "1", "--invert") == ["c"]
    assert found("--idle", "1h") == ["done", "push"]
    assert found("--created", "1h") == found("--bound") == found("--pinned") == found("--leader", "nobody") == []
    assert found("--replicas", "1", "--waiting", "1") == ["c", "done", "push"]
    assert found("--api-level", "1") == []


def test_report_in_plain_numbers(run: Run, stream: str):
    """Unprocessed messages are shown with their share of the stream; --raw prints numbers alone."""
    run("next", stream, "c")
    assert re.search(r"│ c +│ Pull │ Explicit +│ +30s │ +0 │ +0 │ +2 / 66% │ +1 │ +0 │", run("report", stream).stdout)
    assert re.search(r"│ c +│ Pull │ Explicit +│ +30s │ +0 │ +0 │ +2 │ +1 │ +0 │", run("report", stream, "-r").stdout)


# -- flags -----------------------------------------------------------------------------------------------------------


def test_a_filter_that_matches_nothing_is_told(run: Run, stream: str, caplog: pytest.LogCaptureFixture):
    """The server takes it, and so do we, with a word; a topology says the same."""
    done = run("add", stream, "idle", "--filter", "elsewhere.x")
    assert done.stderr == f"The filter elsewhere.x matches none of the subjects of stream {stream}: {stream}.>.\n"
    Topology([Stream(name="A", subjects=["a"])], {"A": [Consumer(durable="c", filter_subject="b")]})
    assert "Consumer c: its filter 'b' matches none of the subjects of stream A." in caplog.messages


def test_words_of_the_nats_command(run: Run, stream: str):
    """--deliver takes its other words, and the last of each subject needs no filter."""
    assert read(run("add", stream, "n", "--deliver", "next", "--json"))["config"]["deliver_policy"] == "new"
    held = read(run("add", stream, "s", "--deliver", "subject", "--json"))["config"]
    assert (held["deliver_policy"], held["filter_subject"]) == ("last_per_subject", ">")


def test_edit_takes_what_the_server_takes(run: Run, stream: str):
    """Deliveries of a consumer without acks may be limited, though nothing is ever delivered again."""
    run("add", stream, "none", "--ack", "none", "--defaults")
    assert read(run("edit", stream, "none", "--max-deliver", "3", "-f", "--json"))["config"]["max_deliver"] == 3


def test_edit_in_an_editor(run: Run, stream: str, tmp_path: Path):
    """-i changes the configuration as the editor leaves it."""
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/the first/the second/' \"$1\"\n")
    editor.chmod(0o700)
    done = run("edit", stream, "c", "-i", "-f", "--json", EDITOR=str(editor))
    assert read(done)["config"]["description"] == "the second"
    assert "description: the first -> the second" in done.stderr


# -- consumers of the server's own -----------------------------------------------------------------------------------


def test_a_consumer_that_feeds_another_stream(run: Run, peer: Peer, unique: Callable[..., str]):
    """What a server makes to copy a work queue, acknowledged by flow control, is shown, and left alone."""
    queue, copy = unique("CV"), unique("CV")
    peer.do(assets.add_stream(peer.client, Stream(name=queue, subjects=[f"{queue}.>"], retention="workqueue")))
    peer.do(assets.add_stream(peer.client, Stream(name=copy, sources=[{"name": queue}])))
    while not (names := run("ls", queue, "-n").stdout.split()):
        pass
    (name,) = names
    info = read(run("info", queue, name, "--json"))
    assert (info["config"]["ack_policy"], info["config"]["sourcing"]) == ("flow_control", True)
    shown = run("info", queue, name).stdout
    assert "Ack Policy: Flow Control" in shown
    assert f"Stream: {copy}" in shown
    assert f"│ {name}" in run("report", queue).stdout
    assert "feeds another stream" in run("sub", queue, name, status=2).stderr
    run("add", queue, "whole", "--defaults")
    declared = Topology([Stream(name=queue, subjects=[f"{queue}.>"], retention="workqueue")], {})
    planned = peer.do(plan(peer.client, declared, prune=True))
    assert [step.name for step in planned.steps if step.action == "delete"] == ["whole"]
    peer.do(apply(peer.client, declared, prune=True))
    assert run("ls", queue, "-n").stdout.split() == [name]


def test_a_consumer_with_acks_by_flow_control(run: Run, stream: str):
    """One that you make yourself, for `sources[].consumer`, is made, shown and edited."""
    made = read(run("add", stream, "fc", "--ack", "flow_control", "--target", f"to.{stream}", "--json"))["config"]
    assert (made["ack_policy"], made["flow_control"], made["idle_heartbeat"]) == ("flow_control", True, 10**9)
    assert read(run("edit", stream, "fc", "--description", "x", "-f", "--json"))["config"]["description"] == "x"
    assert re.search(r"│ fc +│ Push │ Flow Control │", run("report", stream).stdout)


# -- in Python -------------------------------------------------------------------------------------------------------


def test_reset_and_step_down_in_python(peer: Peer, stream: str):
    """A sequence begins with 1; a consumer of a lone server has nobody to lead it instead."""

    async def tried(client: Connection) -> None:
        with pytest.raises(InputError, match="The sequence is 0"):
            await assets.reset_consumer(client, stream, "c", 0)
        assert (await assets.reset_consumer(client, stream, "c", 3)).pending == 1
        with pytest.raises(InputError, match="is kept by one server alone"):
            await peers.step_down_consumer(client, stream, "c")

    peer.do(tried(peer.client))
