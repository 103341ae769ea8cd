"""What the command shows of a stream that the Spark sink writes to: the data, and markers only to those who ask."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from tests.live.inprocess import Done, invoke
from tests.live.sinking import Crash, Writer, make_stream

ROWS = [b"row-%d" % number for number in range(12)]


@pytest.fixture
def run(server) -> Callable[..., Done]:
    def call(*arguments: str, status: int = 0) -> Done:
        done = invoke(server.url, *arguments)
        assert done.status == status, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    return call


@pytest.fixture
def stream(server, unique, eventually) -> str:
    """A stream in the middle of a batch: rows, and between them every kind of marker that a first run leaves."""
    name = unique("SINK")
    with TaskConnection(ConnectionOptions(server.url)) as bulk:
        make_stream(bulk, name)
        with pytest.raises(Crash):
            Writer(server.url, name, rows=4).attempt(ROWS, crash_after=12)
        # What was under way at the crash is stored a moment later.
        rows = {f"{name}.rows": len(ROWS)}
        asked = {"subjects_filter": f"{name}.rows"}
        eventually(lambda: bulk.api(f"STREAM.INFO.{name}", asked)["state"].get("subjects") == rows)
    return name


def test_view_shows_the_data(run, stream):
    """A page holds messages of the data, as many as were asked for; what is left out is said beside it."""
    done = run("stream", "view", stream, "10", "--raw")
    assert done.stdout.split() == [row.decode() for row in ROWS[:10]]
    assert "markers of the Spark sink" in done.stderr
    shown = json.loads(run("stream", "view", stream, "25", "--json").stdout)
    assert {item["subject"] for item in shown} == {f"{stream}.rows"}


@pytest.mark.parametrize("asked", [["--all"], ["--subject", "$PENSTOCK.>"]])
def test_view_shows_markers_to_those_who_ask(run, stream, asked):
    """`--all`, or a subject that names them, shows markers."""
    done = run("stream", "view", stream, "25", "--json", *asked)
    assert any(item["subject"].startswith(f"$PENSTOCK.{stream}.") for item in json.loads(done.stdout))
    assert "Not shown" not in done.stderr


def test_get_shows_the_data(run, stream):
    """A marker's sequence is refused with the reason; a subject that names it, or --all, shows it."""
    done = run("stream", "get", stream, "1", status=2)
    assert f"Message 1 of stream {stream} is a marker of the Spark sink" in done.stderr
    for asked in (["1", "--all"], ["-S", f"$PENSTOCK.{stream}.origin"]):
        assert json.loads(run("stream", "get", stream, *asked, "--json").stdout)["seq"] == 1
    assert json.loads(run("stream", "get", stream, "-S", f"{stream}.rows", "--json").stdout)["subject"] != ""


def test_subjects_are_those_of_the_data(run, stream):
    """The list of subjects holds the data's; --all and a filter that names markers bring the others."""
    done = run("stream", "subjects", stream, "--json")
    assert list(json.loads(done.stdout)) == [f"{stream}.rows"]
    assert "Not shown" in done.stderr
    everything = json.loads(run("stream", "subjects", stream, "--all", "--json").stdout)
    assert f"$PENSTOCK.{stream}.q.head" in everything
    named = json.loads(run("stream", "subjects", stream, f"$PENSTOCK.{stream}.>", "--json").stdout)
    assert set(named) == set(everything) - {f"{stream}.rows"}


def test_info_tells_markers_from_messages(run, stream):
    """The count of messages is the server's; how many of them are markers stands below it."""
    everything = json.loads(run("stream", "subjects", stream, "--all", "--json").stdout)
    markers = sum(everything.values()) - everything[f"{stream}.rows"]
    assert f"Markers of the Spark sink: {markers}" in run("stream", "info", stream).stdout


def test_consumers_deliver_the_data(run, stream):
    """`consumer next` and `consumer sub` pass over markers, acknowledge them, and give as many messages as asked."""
    for name in ("one", "two", "three"):
        run("consumer", "add", stream, name, "--pull", "--defaults")
    done = run("consumer", "next", stream, "one", "--count", "7", "--raw")
    assert done.stdout.split() == [row.decode() for row in ROWS[:7]]
    assert "of the Spark sink; see --all." in done.stderr
    done = run("consumer", "sub", stream, "two", "--count", "12", "--raw")
    assert done.stdout.split() == [row.decode() for row in ROWS]
    given = json.loads(run("consumer", "next", stream, "three", "--count", "3", "--json", "--all").stdout)
    assert given[0]["subject"] == f"$PENSTOCK.{stream}.origin"
    state = json.loads(run("consumer", "info", stream, "one", "--json").stdout)
    assert state["num_ack_pending"] == 0


def test_a_push_consumer_delivers_the_data(run, stream):
    """Markers that are pushed are passed over, too."""
    run("consumer", "add", stream, "pushed", "--target", f"to.{stream}", "--deliver", "all", "--defaults")
    done = run("consumer", "sub", stream, "pushed", "--count", "12", "--raw")
    assert done.stdout.split() == [row.decode() for row in ROWS]
