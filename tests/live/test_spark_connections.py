"""Connections that a worker keeps from task to task."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import JetStreamError, RemoteProtocolError
from penstock.options import ConnectionOptions
from penstock.spark import connections
from penstock.spark.survey import Survey
from tests.scripted import js, log_in, playing, serve
from tests.scripted_stream import STATE, STREAM, Good


@pytest.fixture(autouse=True)
def none_left():
    """Each test begins and ends without a kept connection."""
    connections.close_idle()
    yield
    connections.close_idle()


def test_a_connection_is_kept_for_the_next_task(server):
    """Two tasks in a row use one connection; one that failed gives none back."""
    options = ConnectionOptions(server.url)
    with connections.borrow(options) as first:
        pass
    with connections.borrow(options) as second:
        assert second is first
    with pytest.raises(ValueError, match="bad row"), connections.borrow(options):
        raise ValueError("bad row")
    assert not first.wire.is_open
    with connections.borrow(options) as third:
        assert third is not first


def test_tasks_at_the_same_time_have_a_connection_each(server):
    """Of two that come back for the same address, one is kept and the other closed."""
    options = ConnectionOptions(server.url)
    with connections.borrow(options) as first, connections.borrow(options) as second:
        assert first is not second
    assert sorted([first.wire.is_open, second.wire.is_open]) == [False, True]


def test_the_one_that_waited_longest_makes_room(server):
    """A worker keeps a few connections, the ones of its newest tasks."""
    given = [ConnectionOptions(server.url, name=f"task {number}") for number in range(connections.KEPT + 1)]
    made = []
    for options in given:
        with connections.borrow(options) as bulk:
            made.append(bulk)
    assert [bulk.wire.is_open for bulk in made] == [False] + [True] * connections.KEPT
    with connections.borrow(given[-1]) as bulk:
        assert bulk is made[-1]


@pytest.mark.parametrize(("answer", "stored"), [(Good().atomic, True), (Good().ack, False)])
def test_messages_are_stored_together_if_the_ack_says_so(answer, stored):
    """An ack that does not count the batch is not one of all its messages: a server without batches gives such."""
    messages = [(f"s.{number}", {}, b"hello") for number in range(3)]
    with playing(log_in(), serve(atomic=answer)) as server, connections.borrow(ConnectionOptions(server.url)) as bulk:
        if stored:
            assert bulk.store("S", messages) == 6
            return
        with pytest.raises(RemoteProtocolError, match="atomic batch of 3 messages names no batch"):
            bulk.store("S", messages)


STRANGE = [5, "x", True, [5], [["a"]], [{"a": ["b"]}], {"a": {"b": 1}}, {"a": "x"}, -1, 1.5]


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("field", ["total", "streams", "state", "subjects"])
def test_lists_that_cannot_be(field, value):
    """A list of names or of subjects that is none is an error that names the field."""
    listed = {"total": 1, "streams": ["S"], **({field: value} if field in ("total", "streams") else {})}
    state = value if field == "state" else {**STATE, "subjects": value if field == "subjects" else {"s.x": 3}}
    counted = {**STREAM, "state": state, **({"total": value} if field == "total" else {"total": 1})}
    answers = {"api": js(listed), "stream_info": js(counted)}
    with playing(log_in(), serve(**answers)) as server, connections.borrow(ConnectionOptions(server.url)) as bulk:
        asked = []
        if field in ("total", "streams"):
            asked.append(lambda: bulk.list_names("STREAM.NAMES", "streams"))
        if field != "streams":
            asked.append(lambda: bulk.totals("S", ">"))
        for ask in asked:
            if (field, value) == ("total", 5) or (field == "state" and isinstance(value, dict)):
                continue  # that may be
            with pytest.raises(RemoteProtocolError, match="of JetStream's answer is not"):
                ask()


@pytest.mark.parametrize("left_out", ["config", "state", "created"])
def test_a_stream_that_lacks_a_part(left_out):
    """A description of a stream that lacks what each has is an error that names the field."""
    said = js({name: value for name, value in STREAM.items() if name != left_out})
    with (
        playing(log_in(), serve(stream_info=said)) as server,
        connections.borrow(ConnectionOptions(server.url)) as bulk,
        pytest.raises(RemoteProtocolError, match=f"{left_out!r} of JetStream's answer is not"),
    ):
        bulk.stream_info("S")


def test_a_probe_whose_consumer_may_still_be_there():
    """A consumer of ours that the server does not say it deleted is an error, and not left there unheard."""
    with (
        playing(log_in(), serve(deleted=js({}))) as server,
        connections.borrow(ConnectionOptions(server.url)) as bulk,
        pytest.raises(JetStreamError, match="did not do it"),
    ):
        Survey(bulk, "S", None)._consumer({"deliver_policy": "all"})


def test_a_process_closes_what_it_kept(server):
    """A driver that wrote leaves no open socket behind when it ends."""
    program = f"""
from penstock.options import ConnectionOptions
from penstock.spark.connections import borrow
with borrow(ConnectionOptions({server.url!r})):
    pass
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
