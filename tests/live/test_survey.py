"""The survey against a real server: it sees everything, says what it may not see, and costs no more than it may."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.jetstream import assets
from penstock.model import Consumer, Stream, StreamSource
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import ProgressFile
from penstock.pipelines.project import Project
from penstock.server import Server
from penstock.spark.offsets import Mark, Offset
from penstock.survey import Snapshot, Survey, SurveySettings
from tests.live.visitor import pull, visiting
from tests.support import eventually as until

Unique = Callable[..., str]

DENIED = """
accounts {
  A {
    jetstream: enabled
    users: [
      { user: owner, password: pass }
      { user: half, password: pass, permissions: {
          publish: { deny: ["$JS.API.CONSUMER.LIST.SECRET", "$JS.API.STREAM.MSG.GET.>"] },
          subscribe: { deny: "$JS.EVENT.>" } } }
      { user: none, password: pass, permissions: { publish: { deny: "$JS.API.>" } } }
    ]
  }
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that nobody else fills: a survey sees all of it."""
    with Server(sync="2m") as running:
        yield running


@asynccontextmanager
async def surveying(url: str | ConnectionOptions, **settings: Any) -> AsyncIterator[tuple[Survey, Connection]]:
    """Survey an account through a connection of its own."""
    async with await connect(url) as client:

        async def connected() -> Connection:
            return client

        survey = Survey(connected, SurveySettings(**{"every": 0.1, **settings}))
        going = asyncio.create_task(survey.run())
        try:
            yield survey, client
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)


async def fill(client: Connection, name: str, count: int, **more: Any) -> None:
    """Make a stream and store messages in it."""
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], **more))
    for _ in range(count):
        await client.jetstream().publish(f"{name}.a", b"x")


def about(snapshot: Snapshot, *subject: str) -> list[str]:
    return [trouble.kind for trouble in snapshot.trouble if trouble.subject == subject]


async def test_a_survey_sees_streams_consumers_and_ways(server: Server, unique: Unique):
    """Everything that is there is in the snapshot, with what flows where; what is gone leaves it."""
    name, copy = unique("ORDERS"), unique("COPY")
    async with surveying(server.url) as (survey, client):
        await fill(client, name, 5)
        await assets.add_stream(client, Stream(name=copy, subjects=[], mirror=StreamSource(name=name)))
        await assets.add_consumer(client, name, Consumer(durable="billing", filter_subject=f"{name}.a"))
        seen = await survey.fresh()
        assert (seen.problem, seen.jetstream, seen.covered.whole) == (None, True, True)
        state = seen.streams[name]
        assert (state.messages, state.last_sequence, state.consumers) == (5, 5, 1)
        reader = seen.consumers[name, "billing"]
        assert (reader.lag, reader.listened_to, reader.filter) == (5, False, (f"{name}.a",))
        assert reader.lag_seconds is not None
        assert reader.lag_seconds >= 0
        ways = {(edge.source, edge.target, edge.kind) for edge in seen.edges if name in edge.source}
        assert ways >= {
            (("subjects", name), ("stream", name), "publish"),
            (("stream", name), ("stream", copy), "mirror"),
            (("stream", name), ("consumer", name, "billing"), "consume"),
        }
        await assets.delete_consumer(client, name, "billing")
        await assets.delete_stream(client, copy)
        seen = await survey.fresh()
        assert copy not in seen.streams
        assert (name, "billing") not in seen.consumers


async def test_lag_grows_and_falls_in_messages_and_in_time(server: Server, unique: Unique):
    """A consumer that nobody asks falls behind in messages and seconds; once somebody takes, both fall."""
    name = unique("LAG")
    async with surveying(server.url) as (survey, client):
        await fill(client, name, 3)
        await assets.add_consumer(client, name, Consumer(durable="slow"))
        before = (await survey.fresh()).consumers[name, "slow"]
        await client.jetstream().publish(f"{name}.a", b"x")
        after = (await survey.fresh()).consumers[name, "slow"]
        assert (before.lag, after.lag) == (3, 4)
        assert after.lag_seconds > before.lag_seconds
        for message in await pull(client, name, "slow", 4):
            await client.request(message.reply, b"+ACK", 20)
        done = (await survey.fresh()).consumers[name, "slow"]
        assert (done.lag, done.lag_seconds, done.still, done.ack_pending) == (0, 0.0, 0.0, 0)
        assert done.rate > 0
        lags = [value for _, value in survey.series(("consumer", name, "slow"), "lag")]
        assert lags[0] == 3
        assert lags[-1] == 0


async def test_markers_of_the_sink_are_not_counted(server: Server, unique: Unique):
    """A stream tells its messages and its markers apart, and which query writes to it."""
    name = unique("REVENUE")
    async with surveying(server.url) as (survey, client):
        marks = f"$PENSTOCK.{name}.>"
        await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>", marks]))
        for subject in (f"{name}.a", f"{name}.b", f"$PENSTOCK.{name}.origin", f"$PENSTOCK.{name}.q1.head"):
            await client.jetstream().publish(subject, b"x")
        state = (await survey.fresh()).streams[name]
        assert (state.messages, state.markers) == (2, 2)
        await assets.purge_stream(client, name, subject=marks)
        state = (await survey.fresh()).streams[name]
        assert (state.messages, state.markers) == (2, 0)


async def test_a_consumer_whose_acks_are_missing_is_stuck(server: Server, unique: Unique):
    """One that may not deliver more is named as soon as nothing moved for two seconds, and no more once acks come."""
    name = unique("STUCK")
    async with surveying(server.url) as (survey, client):
        await fill(client, name, 3)
        await assets.add_consumer(client, name, Consumer(durable="c", max_ack_pending=2, ack_wait=300.0))
        taken = await pull(client, name, "c", 2)

        async def stuck() -> bool:
            return "stuck" in about(await survey.next(), "consumer", name, "c")

        await until(stuck, "the consumer being stuck", timeout=30)
        for message in taken:
            await client.request(message.reply, b"+ACK", 20)
        seen = await survey.fresh()
        assert about(seen, "consumer", name, "c") == []


async def test_sampled_acks_and_advisories_are_heard(server: Server, unique: Unique):
    """A consumer with samples tells how long acks take, and the server what was given back."""
    name = unique("SAMPLED")
    async with surveying(server.url) as (survey, client):
        await fill(client, name, 4)
        await assets.add_consumer(client, name, Consumer(durable="c", sample_freq="100%"))
        await survey.fresh()
        *good, last = await pull(client, name, "c", 4)
        for message in good:
            await client.request(message.reply, b"+ACK", 20)
        await client.publish(last.reply, b"-NAK")

        async def heard() -> bool:
            state = (await survey.fresh()).consumers[name, "c"]
            found = survey.ears.heard.get((name, "c"))
            return state.acks == 3 and found is not None and found.told["nak"] == 1

        await until(heard, "what the server tells being heard", timeout=30)
        state = survey.snapshot.consumers[name, "c"]
        assert 0 < state.ack_p50 <= state.ack_p99
        assert survey.series(("consumer", name, "c"), "ack_p99")


async def test_another_stream_of_the_same_name_is_another_stream(server: Server, unique: Unique):
    """A stream that is replaced under its name has no history of the one before."""
    name = unique("AGAIN")
    async with surveying(server.url) as (survey, client):
        await fill(client, name, 5)
        await survey.fresh()
        await client.jetstream().publish(f"{name}.a", b"x")
        assert (await survey.fresh()).streams[name].rate > 0
        await assets.delete_stream(client, name)
        await fill(client, name, 1)
        await survey.fresh()
        assert max(value for _, value in survey.series(("stream", name), "messages")) == 1


async def test_what_a_login_may_not_see_is_told():
    """Consumers that may not be listed are named with the reason; the others are seen. Nothing at all is an error."""
    with Server(sync="2m", auth=False, config=DENIED) as own:
        address = f"nats://{own.nodes[0].address}"
        async with await connect(address, user="owner", password="pass") as owner:
            for name in ("OPEN", "SECRET"):
                await fill(owner, name, 2)
                await assets.add_consumer(owner, name, Consumer(durable="c"))
        options = ConnectionOptions(address, user="half", password="pass")
        async with visiting(options) as visitor:
            seen = await visitor.survey.fresh()
            assert set(seen.consumers) == {("OPEN", "c")}
            assert (seen.covered.consumers, seen.covered.consumers_of, seen.covered.whole) == (1, 2, False)
            unseen = {item.what: item.why for item in seen.covered.unseen}
            assert unseen.keys() == {
                "the consumers of SECRET",
                "the age of messages that wait",
                "ack samples and advisories",
            }
            assert all("pass" not in why.split() for why in unseen.values())
            text, data = await visitor.both("/overview")
            assert not data["looked_at"]["whole"]
            assert "the consumers of SECRET" in text
            assert "Nothing: no stream" not in text
        async with surveying(options.replace(user="none")) as (survey, _):
            seen = await survey.fresh()
            assert seen.streams == {}
            assert "does not permit this" in str(seen.problem)


async def test_a_survey_outlives_its_server():
    """With the server gone the snapshot says so and stays; once it is back, everything is looked at again."""
    with Server(sync="2m") as own:
        async with visiting(own.url) as visitor:
            await fill(await visitor.nats(), "KEPT", 2)
            assert (await visitor.survey.fresh()).problem is None
            own.nodes[0].kill()
            await until(_says(visitor.survey, lambda seen: seen.problem is not None), "the problem", timeout=60)
            assert set(visitor.survey.snapshot.streams) == {"KEPT"}
            own.nodes[0].start()
            await until(_says(visitor.survey, lambda seen: seen.problem is None), "the recovery", timeout=60)


def _says(survey: Survey, what: Callable[[Snapshot], bool]) -> Callable[[], Any]:
    async def ask() -> bool:
        return what(await survey.next())

    return ask


async def test_a_flow_that_failed_is_no_running_pipeline(server: Server, unique: Unique, tmp_path: Path):
    """A pipeline that runs with a failed flow is troubled, on the overview too; what it reads and writes is drawn."""
    source, sink = unique("IN"), unique("OUT")
    project = Project.load(write_project(tmp_path, "sensors"))
    assert project.local_storage is not None
    async with await connect(server.url) as client:
        await fill(client, source, 7)
        await assets.add_stream(client, Stream(name=sink, subjects=[f"{sink}.>", f"$PENSTOCK.{sink}.>"]))
        await client.jetstream().publish(f"$PENSTOCK.{sink}.the-query.head", b"{}")
        made = (await assets.stream_info(client, source)).raw["created"]
    folder = project.local_storage / "_checkpoints" / "alerts" / "sum" / "0"
    for kind in ("offsets", "commits"):
        (folder / kind).mkdir(parents=True)
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(Offset({source: Mark(made, 1, 3)}).to_json())}")
    (folder / "commits" / "0").write_text("v1\n{}")
    (folder / "metadata").write_text('{"id":"the-query"}')
    outcome = Outcome()
    outcome.hear({"kind": "registered"})
    file = ProgressFile.of(project, ConnectionOptions(server.url), os.getpid(), continuous=True)
    file.write(outcome)
    async with visiting(server.url, pipelines=[project]) as visitor:
        (state,) = (await visitor.survey.fresh()).pipelines
        assert (state.state, [flow.lag for flow in state.flows]) == ("running", [5])
        outcome.hear({"kind": "event", "message": "Flow 'sum' has FAILED."})
        file.write(outcome, over=False)
        outcome.hear({"kind": "updated"})  # a word of another kind is written at once
        file.write(outcome)
        seen = await visitor.survey.fresh()
        assert [state.state for state in seen.pipelines] == ["troubled"]
        assert about(seen, "pipeline", "sensors") == ["failed"]
        flow = ("flow", "sensors", "sum")
        ways = {(edge.source, edge.target, edge.kind) for edge in seen.edges if flow in (edge.source, edge.target)}
        assert ways == {(("stream", source), flow, "read"), (flow, ("stream", sink), "write")}
        _, data = await visitor.both("/overview")
        assert [note["what"] for note in data["attention"] if note["kind"] == "pipeline"] == ["flow sum failed"]
        assert [box["state"] for box in data["picture"]["boxes"] if box["kind"] == "flow"] == ["bad"]
        figures = (await visitor.get("/metrics")).text
        assert 'penstock_pipeline_state{pipeline="sensors",state="troubled"} 1' in figures
        assert 'penstock_flow_lag_messages{pipeline="sensors",flow="sum"} 5' in figures


# -- many of everything ------------------------------------------------------------------------------------------------


async def make_many(client: Connection, streams: int, consumers: int) -> None:
    """Make many streams with a message and some consumers each, several at a time."""
    turn = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        async with turn:
            name = f"S{number:04}"
            await assets.add_stream(client, Stream(name=name, subjects=[name], storage="memory"))
            for reader in range(consumers):
                await assets.add_consumer(client, name, Consumer(durable=f"c{reader}", mem_storage=True))

    await asyncio.gather(*(one(number) for number in range(streams)))


async def stick(client: Connection, name: str) -> None:
    """Let a consumer wait for the ack of the only delivery that it may have under way."""
    await assets.add_consumer(client, name, Consumer(durable="stuck", max_ack_pending=1, ack_wait=300.0))
    await client.jetstream().publish(name, b"x")
    await pull(client, name, "stuck", 1)


async def found_stuck(survey: Survey, name: str, timeout: float) -> float:
    """Wait until a consumer of a stream is shown to be stuck, and give how long that took."""
    begun = time.monotonic()
    async with asyncio.timeout(timeout):
        while not any(
            item.kind == "stuck" and item.subject[:2] == ("consumer", name) for item in survey.snapshot.trouble
        ):
            await survey.next()
    return time.monotonic() - begun


async def test_every_consumer_of_many_streams_is_looked_at():
    """More streams than the server lists at once: the last one's stuck consumer is found, the page asks nobody."""
    with Server(sync="2m") as own:
        async with visiting(own.url) as visitor:
            client = await visitor.nats()
            await make_many(client, 270, 2)
            await stick(client, "S0269")
            seen = await visitor.survey.fresh()
            assert (seen.covered.streams, seen.covered.consumers, seen.covered.whole) == (270, 541, True)
            await found_stuck(visitor.survey, "S0269", timeout=60)
            visitor.surveying.cancel()
            await asyncio.gather(visitor.surveying, return_exceptions=True)
            before = (await assets.account_info(client))["api"]["total"]
            _, data = await visitor.both("/overview")
            after = (await assets.account_info(client))["api"]["total"]
            assert after - before == 1, "the page asked for nothing: this question is counted"
            assert next(note["about"] for note in data["attention"] if note["rule"] == "stuck").startswith("S0269")
            assert data["picture"]["streams_left_out"] > 200


@pytest.mark.heavy
async def test_a_stuck_consumer_among_ten_thousand_is_shown_within_half_a_minute(capsys: pytest.CaptureFixture[str]):
    """With 1,000 streams and 10,000 consumers, one that gets stuck is shown within 30 s, and a page costs little."""
    with Server(sync="2m") as own:
        async with visiting(own.url) as visitor:
            client = await visitor.nats()
            await make_many(client, 1000, 10)
            seen = await visitor.survey.fresh()
            assert (seen.covered.streams, seen.covered.consumers, seen.covered.whole) == (1000, 10_000, True)
            took = []
            for name in ("S0007", "S0513", "S0999"):
                await client.jetstream().publish(name, b"x")  # which nobody asks for
                took.append(await found_stuck(visitor.survey, name, timeout=30))
            pages = []
            for _ in range(5):
                begun = time.perf_counter()
                page = await visitor.get("/overview")
                pages.append(time.perf_counter() - begun)
                assert page.status == 200
            asked = min(pages)  # a round may be under way meanwhile
            assert asked < seen.covered.seconds / 10, "the page reads what the survey saw"
            figures = await visitor.get("/metrics")
            shown = ", ".join(f"{item:.1f}" for item in took)
            with capsys.disabled():
                print(f"\nround {seen.covered.seconds:.1f} s; stuck shown after {shown} s; overview in {asked:.3f} s")
                print(f"overview {len(page.body):,} bytes; metrics {len(figures.body):,} bytes")
