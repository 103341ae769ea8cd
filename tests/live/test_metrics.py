"""`penstock metrics serve` and the console's /metrics against a real server, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.bus import Bus, Request, Response
from penstock.chunks import Assembler, Publisher
from penstock.connection import Connection
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.jetstream.worker import Worker
from penstock.metrics import MetricsServer, exposition
from penstock.metrics.programs import program_families
from penstock.metrics.text import CONTENT_TYPE
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.survey import SurveySettings
from tests.live.browser import fill
from tests.live.command import Command
from tests.live.stan import cluster_of
from tests.live.visitor import visiting
from tests.support import eventually

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
Unique = Callable[..., str]
QUICK = SurveySettings(every=0.1)


def get(url: str, **headers: str) -> tuple[int, str, str]:
    """Ask for a page: status, kind and text."""
    parts = urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        link.request("GET", parts.path or "/", headers=headers)
        answer = link.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read().decode()
    finally:
        link.close()


def figures(text: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def _make(client: Connection, name: str) -> None:
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    for _ in range(3):
        await client.jetstream().publish(name, b"x")
    await assets.add_consumer(client, name, Consumer(durable="reader"))


def test_the_command_serves_figures_until_ctrl_c(
    server: Server, tmp_path: Path, unique: Unique, eventually: Callable[..., Any]
):
    """Streams and consumers are there with their lag in messages and seconds; Ctrl-C ends it with status 0."""
    name = unique("SCRAPED")
    fill(server.url, lambda client: _make(client, name))
    with Command(tmp_path, server.url).running("metrics", "serve", "--port", "0") as child:
        url = child.wait_for("Metrics: ").split()[-1]
        child.wait_for("It looks at")
        status, kind, text = get(url)
        assert (status, kind) == (200, CONTENT_TYPE)
        found = figures(text)
        assert found["penstock_up"][0].value == 1
        (lag,) = [item for item in found["jetstream_consumer_num_pending"] if item.labels["stream_name"] == name]
        assert (lag.value, lag.labels["consumer_name"]) == (3, "reader")

        def age() -> Any:
            known = figures(get(url)[2]).get("penstock_consumer_lag_seconds", [])
            return [item.value for item in known if item.labels["stream_name"] == name and item.value > 0]

        eventually(age)
        assert get(url.replace("/metrics", "/healthz"))[::2] == (200, "ok\n")
        assert get(url.replace("/metrics", "/other"))[0] == 404
        assert server.token not in text
        assert child.interrupt() == 0


async def test_a_console_serves_the_same_behind_its_token(server: Server, unique: Unique):
    """The console's /metrics wants the token, as every page does, and gives what a parser reads."""
    name = unique("SEEN")
    async with visiting(server.url) as visitor:
        await _make(await visitor.nats(), name)
        await visitor.survey.fresh()
        assert (await visitor.get("/metrics", known=False)).status == 401
        answer = await visitor.get("/metrics")
        assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
        known = figures(answer.text)["jetstream_stream_last_seq"]
        assert [item.value for item in known if item.labels["stream_name"] == name] == [3]


async def test_a_token_and_a_name_keep_others_out(server: Server):
    """With a token nobody reads without it; a name that is not known is turned away, as a stranger's page would be."""
    options = ConnectionOptions(server.url)
    async with MetricsServer(options, token="a-token-of-some-length", settings=QUICK, names=["here.example"]) as made:
        assert await made.problem() is None

        async def ask(**headers: str) -> int:
            return (await asyncio.to_thread(get, made.url, **headers))[0]

        assert await ask() == 401
        assert await ask(Authorization="Bearer nothing") == 401
        good = {"Authorization": "Bearer a-token-of-some-length"}
        assert await ask(**good) == 200
        assert await ask(Host="evil.example", **good) == 421
        assert await ask(Host="here.example:99", **good) == 200
        assert await ask(Host="localhost", **good) == 200


async def test_a_server_that_is_away_is_told():
    """Without NATS it serves penstock_up 0, and nothing that it cannot know; a port that is taken is one sentence."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        async with MetricsServer(ConnectionOptions(f"nats://127.0.0.1:{port}"), settings=QUICK) as made:
            assert await made.problem() is not None
            status, _, text = await asyncio.to_thread(get, made.url)
            found = figures(text)
            assert (status, found["penstock_up"][0].value) == (200, 0)
            assert "jetstream_stream_total_messages" not in found
            taken = urlsplit(made.url).port
            with pytest.raises(
                InputError, match=f"cannot be at 127.0.0.1:{taken}: address already in use. Choose another port"
            ):
                await MetricsServer(ConnectionOptions("nats://127.0.0.1"), port=taken or 0).start()


def test_a_folder_without_a_pipeline_is_told_first(tmp_path: Path):
    """A folder that is named and holds no pipeline is one sentence, before anything is asked or served."""
    done = Command(tmp_path, "nats://127.0.0.1:1")("metrics", "serve", "--pipeline", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert "There is no pipeline at" in done.stderr
    assert "Traceback" not in done.stderr


async def test_programs_tell_their_own_figures(server: Server, unique: Unique):
    """An assembler of chunks, a service of the bus, a gateway and a worker that run here have figures, by name.

    The page of the reference has each of them with the same words; counts have there the sentence of their field.
    """
    name, queue = unique("PROGRAM"), unique("q")
    async with visiting(server.url) as visitor, cluster_of(server.url, unique("c")) as stan:
        client = await visitor.nats()
        gateway = await stan.serve()
        await (await stan.client("w")).publish("orders", b"x")
        await _make(client, name)

        async def work(delivery: Any) -> None:
            """Take it."""

        worker = Worker(client, name, "reader", work, limit=3)
        await worker.run()
        done = asyncio.Event()

        async def whole(message_id: str, data: bytes) -> None:
            done.set()

        async def answer(request: Request, sender: Any) -> None:
            if request.body == b"fail":
                raise ValueError("no")
            await sender.respond(Response(data=b"y"))

        assembler = Assembler(client, handler=whole)
        await assembler.subscribe(f"{queue}.chunks")
        bus = Bus(client, {queue: 1})
        async with bus.serve(queue, answer) as service:
            wrong = {"X-Msg-Id": "wrong", "X-Offset": "nowhere", "X-Flags": "0"}
            await client.publish(f"{queue}.chunks", b"z", headers=wrong)
            await Publisher(client, chunk_size=10).publish(f"{queue}.chunks", b"z" * 25)
            await asyncio.wait_for(done.wait(), 30)
            for body in (b"ask", b"fail"):
                await bus.request(Request(queue, resource="prices", body=body))
            await eventually(lambda: service.handled == 2, "both handlers ending")
            programs = {"a": assembler, 'b"': service, "w": worker, "g": gateway}
            found = figures(exposition(programs=programs).decode())
            families = program_families(programs)
        await assembler.close()
    one = {key: [(item.labels["name"], item.value) for item in items] for key, items in found.items()}
    rows = {
        name: rest for name, *rest in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    }
    for family in families:
        kind, meaning = rows[family.name]
        assert kind == family.kind
        assert meaning == f"{family.help}." or family.help.startswith("The count ")
    assert {"penstock_chunks_failures", "penstock_bus_refused", "penstock_gateway_clients"} <= {
        family.name for family in families
    }
    assert one["penstock_chunks_failures_total"] == [("a", 1)]
    assert one["penstock_chunks_chunks_total"] == [("a", 4)]
    assert one["penstock_chunks_bytes_total"] == [("a", 25)]
    assert one["penstock_bus_handled_total"] == [('b"', 2)]
    assert [item.labels["status"] for item in found["penstock_bus_refused_total"]] == ["500"]
    assert one["penstock_bus_active"] == [('b"', 0)]
    assert one["penstock_gateway_clients"] == [("g", 1)]
    assert one["penstock_gateway_in_messages_total"] == [("g", 1)]
    assert one["penstock_worker_handled_total"] == [("w", 3)]
    with pytest.raises(InputError, match="of which there are no figures"):
        exposition(programs={"x": visitor})  # type: ignore[dict-item]  # what a user may do by mistake
