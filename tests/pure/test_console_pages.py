"""The parts of the console's pages that need no server: what is looked for, drawn, remembered and masked."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.cluster import groups_of, node_of
from penstock.console.criteria import MessageCriteria
from penstock.console.flow_graph import draw_flows
from penstock.console.masked_pieces import masked_pieces
from penstock.console.masking import Mask
from penstock.console.monitor import check_monitor
from penstock.errors import InputError
from penstock.info import ConsumerInfo, Replica, StreamInfo
from penstock.options import ConnectionOptions
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import RUNS, ProgressFile, read_progress, read_runs
from penstock.survey import ConsumerState, FlowSeen, StreamState
from penstock.survey.looks import see_consumer, see_stream
from penstock.survey.state import PipelineSeen
from tests.pure.surveyed import BEGUN, consumer_answer, stream_answer

MASK = Mask(ConnectionOptions("nats://the-token-of-this-server@127.0.0.1:4222"))


# -- what is looked for ------------------------------------------------------------------------------------------------


def test_what_an_address_asks_for_is_read_and_written_again():
    """Every field of a search survives the way into an address and back; empty ones are left out."""
    asked = {"subject": "orders.>", "header": "X-Kind: a", "text": "needle", "from": "10m", "markers": "yes"}
    criteria = MessageCriteria.read(asked)
    assert (criteria.subject, criteria.start, criteria.markers, criteria.is_search) == ("orders.>", "10m", True, True)
    assert criteria.query() == "?subject=orders.%3E&header=X-Kind%3A+a&text=needle&from=10m&markers=yes"
    assert criteria.query(from_=7) == "?subject=orders.%3E&header=X-Kind%3A+a&text=needle&from=7&markers=yes"
    assert MessageCriteria.read({}).query() == "?"
    assert MessageCriteria.read({}, 9).query() == "?before=9"
    assert MessageCriteria.read({"subject": "$PENSTOCK.S.>"}).markers, "who names them wants them"


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": "a b"},
        {"subject": "a..b"},
        {"header": "two words"},
        {"header": ": value"},
        {"from": "soon"},
        {"from": "0"},
        {"text": "x" * 501},
    ],
)
def test_what_cannot_be_looked_for_is_refused(wrong: dict[str, str]):
    """A field that means nothing is refused before anything is asked, in a short sentence."""
    with pytest.raises(InputError) as caught:
        MessageCriteria.read(wrong)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=40), st.binary(max_size=60))
def test_a_search_never_fails_on_what_others_wrote(text: str, data: bytes):
    """Whatever is looked for in whatever payload, there is an answer."""
    criteria = MessageCriteria(text=text.strip()[:500])
    assert criteria.matches(MASK, {"X": [text]}, data) in (True, False)
    assert MessageCriteria(header="X").matches(MASK, {"x": [text]}, data)


def test_a_text_is_found_in_either_case_and_never_in_a_secret():
    """Letters are compared without their case; what is masked on the page cannot be found."""
    assert MessageCriteria(text="NEEDLE").matches(MASK, {}, b"a needle")
    assert not MessageCriteria(text="of-this").matches(MASK, {}, b"the-token-of-this-server")
    assert not MessageCriteria(header="Authorization: abc").matches(MASK, {"Authorization": ["abc"]}, b"")
    assert MessageCriteria(header="Authorization").matches(MASK, {"Authorization": ["abc"]}, b"")
    assert MessageCriteria(header="x-id=b").matches(MASK, {"X-Id": ["a", "B"]}, b"")


# -- downloads ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 50))
def test_a_secret_across_pieces_is_masked(size: int, before: int):
    """However a payload is cut into pieces, the secret in it is masked, and nothing else is lost."""
    data = b"a" * before + b"the-token-of-this-server" + b"b" * 7

    async def pieces() -> AsyncIterator[bytes]:
        for place in range(0, len(data), size):
            yield data[place : place + size]

    async def body() -> bytes:
        return b"".join([piece async for piece in masked_pieces(MASK, pieces())])

    assert asyncio.run(body()) == b"a" * before + b"***" + b"b" * 7


def test_a_broken_download_lacks_its_end():
    """What fails at the end, such as a digest, fails before the last piece is given."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 100
        yield b"y" * 100
        raise InputError("the digest is wrong")

    got: list[bytes] = []

    async def body() -> None:
        async for piece in masked_pieces(MASK, pieces()):
            got.append(piece)

    with pytest.raises(InputError):
        asyncio.run(body())
    assert len(b"".join(got)) < 200


# -- the cluster -------------------------------------------------------------------------------------------------------


def stream(name: str, **fields: Any) -> StreamState:
    return replace(see_stream(StreamInfo.from_json(stream_answer(name, 0.0)), None, BEGUN, None), **fields)


def consumer(of: str, name: str, **fields: Any) -> ConsumerState:
    return replace(see_consumer(ConsumerInfo.from_json(consumer_answer(of, name, 0.0)), None, BEGUN), **fields)


def replica(name: str, *, lag: int = 0, current: bool = True, offline: bool = False) -> Replica:
    return Replica(name, current, offline, 0.1, lag, "id", False)


def test_groups_that_are_behind_or_without_a_leader_are_found():
    """A replica that lags, is not current or offline, and a group without a leader, are named; others are not."""
    found = groups_of(
        [
            stream("WELL", cluster="c", leader="n1", others=(replica("n2"),)),
            stream("LATE", cluster="c", leader="n1", others=(replica("n2", lag=7), replica("n3"))),
            stream("LOST", cluster="c", leader=None),
            stream("LONE"),
            consumer("WELL", "worker", cluster="c", leader="n2", others=(replica("n1", offline=True),)),
        ]
    )
    assert [(item["name"], item["leader"], item["lag"]) for item in found] == [
        ("LATE", "n1", 7),
        ("LOST", None, 0),
        ("WELL › worker", "n2", 0),
    ]
    assert found[0]["replicas"][0]["name"] == "n2"
    assert found[2]["path"] == "/streams/WELL/consumers/worker"


def test_a_server_without_jetstream_is_a_node_all_the_same():
    """What a server leaves out is nothing, not an error."""
    node = node_of({"server_name": "n1", "mem": 5})
    assert (node["name"], node["memory"], node["jetstream"], node["meta_leader"]) == ("n1", 5, False, False)
    told = {"server_name": "n1", "jetstream": {"config": {"max_storage": 9}, "meta": {"leader": "n1"}}}
    assert (node_of(told)["meta_leader"], node_of(told)["store"]) == (True, {"used": 0, "limit": 9})


def test_monitoring_ports_are_checked():
    """An address that is no HTTP one is refused; a login in it is not repeated."""
    assert check_monitor("http://127.0.0.1:8222/") == "http://127.0.0.1:8222"
    for wrong in ("127.0.0.1:8222", "nats://x", "http://", "http://h:99999", "file:///etc/passwd", "http://h/?a=1"):
        with pytest.raises(InputError):
            check_monitor(wrong)
    with pytest.raises(InputError) as caught:
        check_monitor("ftp://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def flow(name: str, **fields: Any) -> FlowSeen:
    nothing = dict.fromkeys(("status", "complete", "rows", "rows_out", "rate", "batch_seconds", "state_rows", "lag"))
    known: dict[str, Any] = {"target": None, "batches": 1, "state_bytes": 0, "streams": {}, "latest": {}}
    return FlowSeen(name=name, **{**nothing, **known, **fields})


def pipeline(name: str, flows: tuple[FlowSeen, ...]) -> PipelineSeen:
    nothing = dict.fromkeys(("replay", "phase", "failure", "note", "begun", "told", "pid", "spark"))
    known: dict[str, Any] = {"in_use": True, "looked": 0.0, "folder": "", "storage": "", "state": "running"}
    return PipelineSeen(name=name, **nothing, **known, continuous=False, updates=0, flows=flows, batches=())


def test_the_flows_of_a_pipeline_are_drawn_between_what_they_read_and_write():
    """Streams lead into flows, flows into tables or streams, and tables into further flows; what failed is marked."""
    made = pipeline(
        "shop",
        flows=(
            flow("raw", target="raw", streams={"ORDERS": 5}, latest={"ORDERS": 9}, lag=4),
            flow("totals", target="out", tables=("raw",), writes=("REVENUE",), status="failed", error="no such column"),
            flow("lost", target="lost", streams={"GONE": 1}, latest={"GONE": None}),
        ),
    )
    drawn = draw_flows(made)
    boxes = {box["title"]: box for box in drawn["boxes"]}
    assert set(boxes) == {"ORDERS", "raw", "totals", "REVENUE", "lost", "GONE"}
    assert [box["title"] for box in drawn["boxes"]].count("raw") == 2, "the flow and the table"
    assert (boxes["totals"]["state"], boxes["GONE"]["state"]) == ("bad", "bad")
    assert "no such column" in boxes["totals"]["says"]
    assert len(drawn["ways"]) == 6
    assert any("4 messages wait" in way["says"] for way in drawn["ways"])
    places = {box["title"]: box["x"] for box in drawn["boxes"] if box["kind"] != "table"}
    assert places["ORDERS"] < places["raw"] < places["totals"] < places["REVENUE"]


def test_runs_are_remembered_by_the_one_that_follows(tmp_path: Path):
    """Each run that begins puts the one before it to the others, with how it ended; a killed one, too."""
    options = ConnectionOptions("nats://the-token-of-this-server@127.0.0.1:4222")
    for number in range(53):
        file = ProgressFile(tmp_path, options, os.getpid() if number else 2**22 + 1, continuous=False)
        outcome = Outcome()
        file.write(outcome)
        if number == 1:
            outcome.failure = "no login with the-token-of-this-server"
        if number:
            outcome.ended = number != 1
            file.write(outcome, over=True)
        if number == 2:
            runs = read_runs(tmp_path)
            assert [item["state"] for item in runs] == ["cut off", "failed"]
            assert runs[1]["failure"] == "no login with ***"
    runs = read_runs(tmp_path)
    assert (len(runs), {item["state"] for item in runs[2:]}) == (50, {"done"})
    assert read_progress(tmp_path)["begun"] > runs[-1]["begun"]
    for broken in (b"", b"[]", b'{"v": 1}', b'{"v": 1, "runs": 3}', b"\xff"):
        (tmp_path / RUNS).write_bytes(broken)
        assert read_runs(tmp_path) == []


def test_batches_tell_their_phases_and_their_state():
    """A progress of Spark becomes a micro-batch with the seconds of each phase, and the size of the state."""
    outcome = Outcome()
    outcome.hear({"kind": "ready", "spark": "4.2.0", "ui": "http://127.0.0.1:4040"})
    progress = {
        "name": "spark_catalog.default.totals",
        "id": "q",
        "batchId": 3,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": {"triggerExecution": 1500, "addBatch": 1200, "walCommit": 200, "getBatch": 0},
        "sources": [{"description": "FileStreamSource[file:/tmp/warehouse/raw]", "numInputRows": 10}],
        "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 4096}],
    }
    event = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
    outcome.read({"Event": event, "progress": progress})
    (batch,) = outcome.history
    assert (batch.seconds, batch.phases) == (1.5, {"addBatch": 1.2, "walCommit": 0.2})
    assert (batch.state_rows, batch.state_bytes) == (4, 4096)
    assert (outcome.flows["totals"].tables, outcome.ui) == (["raw"], "http://127.0.0.1:4040")
    outcome.hear({"kind": "event", "message": "Flow 'totals' has FAILED.\nError: boom: it broke"})
    assert outcome.flows["totals"].error
    outcome.hear({"kind": "event", "message": "Flow 'totals' has COMPLETED."})
    assert outcome.flows["totals"].error is None
    json.dumps([flow.plain() for flow in outcome.flows.values()])
