"""The main job, small: the demo through a kill, and an audit that sees whatever is off."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.bus import Bus
from penstock.cli.demo import Signals, conclude, keep_running
from penstock.demo import ongoing
from penstock.demo.audit import Stage, audit_streams, audit_tables, read_revenue
from penstock.demo.ledger import Order, Volume
from penstock.demo.play import Play, Result
from penstock.demo.report import write_report
from penstock.demo.service import QUEUE, ask
from penstock.errors import PenstockError
from penstock.pipelines.process import _take_lock, is_running
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.browser import Browser
from tests.live.command import Command, environment
from tests.pipelines.projects import api
from tests.screen import shown
from tests.secret_forms import files_in, leaks, leaks_in_files
from tests.spark.java import java_home

SLOW = pytest.mark.timeout(600)  # Spark starts twice here, on a machine that may be busy


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    """A server of its own, because the example's streams have names that are everybody's."""
    with Server(sync="2m") as server:
        yield server


@pytest.fixture(scope="module")
def played(shop: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Play, Result]:
    """The example, small, with Spark killed once in the middle."""
    volume = Volume(orders=700, customers=12, documents=3, document_bytes=700_000, broken=0.05, unacked=0.03)
    play = Play(shop.url, tmp_path_factory.mktemp("orders"), volume, kills=1, pace=0.0)
    return play, asyncio.run(play.run())


@SLOW
def test_nothing_is_lost_or_repeated_through_a_kill(played: tuple[Play, Result], tmp_path: Path):
    """Every stage of the example adds up to the ledger although Spark was killed, and the report says so."""
    _, result = played
    assert any("SIGKILL" in text for _, text in result.notes)
    assert [stage for stage in result.stages if not stage.ok] == []
    assert all(stage.expected for stage in result.stages), "a stage that expects nothing proves nothing"
    assert result.duplicates > 0
    page = write_report(result, tmp_path / "report.html").read_text()
    assert "nothing lost, nothing repeated" in page
    assert page.count("<svg") >= 3
    assert "http" not in page, "the report needs nothing from elsewhere"
    assert conclude(result, tmp_path / "report.html") is None


@SLOW
def test_the_report_and_the_storage_hold_no_token(played: tuple[Play, Result], shop: Server, tmp_path: Path):
    """The server's token stands neither in the report and its JSON, nor in checkpoints, logs and progress of Spark."""
    play, result = played
    token = penstock.ConnectionOptions(shop.url).token
    assert token
    assert leaks(shop.url, [token])
    write_report(result, tmp_path / "report.html")
    for folder in (tmp_path, play.warehouse.parent):
        assert not leaks_in_files(folder, [token])
    assert {"report.html", "report.json"} <= {file.name for file in files_in(tmp_path)}
    assert {"spark.log", "progress.json", "offsets"} <= {path.name for path in play.warehouse.parent.rglob("*")}


def faults(play: Play, options: penstock.ConnectionOptions) -> dict[str, tuple[int, int]]:
    """What the audit finds wrong."""
    stages = [*audit_streams(play.ledger, options), *audit_tables(play.ledger, play.warehouse)]
    return {stage.name: (stage.lost, stage.repeated) for stage in stages if not stage.ok}


async def eventually(what: str, done: Callable[[], bool], keeping: asyncio.Task[None]) -> None:
    """Wait for something while everything is kept running; Spark may have to start on a busy machine."""
    deadline = time.monotonic() + 300
    while not await asyncio.to_thread(done):
        if keeping.done():
            keeping.result()
        assert not keeping.done(), f"it ended before {what}"
        assert time.monotonic() < deadline, f"not yet: {what}"
        await asyncio.sleep(0.1)


async def ask_on(url: str, found: list[int]) -> None:
    """Ask for the top customers again and again; an answer that is an error ends it."""
    client = await penstock.connect(url)
    try:
        async with Bus(client, {QUEUE: 1}) as bus:
            while True:
                found.append(sum(row["orders"] for row in await ask(bus, "top-customers", limit="1000")))
                await asyncio.sleep(0.02)
    finally:
        await client.close()


@SLOW
def test_everything_goes_on_running_with_the_console_on_it(
    played: tuple[Play, Result],
    shop: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """`--keep` runs Spark on: later orders come out in the tables, on the bus and in REVENUE, once, until Ctrl-C.

    The bus answers with all customers all the while, from a bucket that each update writes to.
    """
    play, _ = played
    ledger, options = play.ledger, penstock.ConnectionOptions(shop.url)
    before = len(ledger.whole)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where all that must be gone would be left
    said = ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return text in said

    async def body(signals: Signals) -> tuple[Browser, list[int]]:
        keeping = asyncio.create_task(keep_running(play, shop.url, tmp_path / "report.html", signals, orders=4))
        totals: list[int] = []
        await eventually("the service is there", lambda: has_said("penstock bus call"), keeping)
        asking = asyncio.create_task(ask_on(shop.url, totals))
        try:
            await eventually("the orders are out", lambda: has_said("4 more orders are in"), keeping)
            # The first is in a minute of its own, which the second closes.
            last = ledger.orders[-1].ordered.replace(second=0)
            client = await penstock.connect(shop.url)
            try:
                for minutes in (2, 14):
                    ordered = last + timedelta(minutes=minutes)
                    ledger.orders.append(Order(f"mine-{minutes}", "c-001", 990, ordered, "once"))
                    await client.publish("orders.c-001", ledger.orders[-1].encode())
                await client.flush()
            finally:
                await client.close()
            await eventually("everything is out once", lambda: not faults(play, options), keeping)
            minute = f"{last + timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"
            assert (ledger.regions()["c-001"], minute, 990, 1) in read_revenue(options)
            await eventually("the bus says it", lambda: totals[-1] == len(ledger.whole), keeping)
            browser = Browser(next(word for word in said.split() if word.startswith("http")))
            page, data = await asyncio.to_thread(browser.both, "/pipelines")
            (shown,) = data["pipelines"]
            assert (shown["name"], shown["run"]["state"], shown["run"]["failure"]) == ("orders", "running", None)
            assert shown["run"]["continuous"]
            flows = {flow["flow"]: flow for flow in shown["flows"]}
            assert flows["incoming"]["lag"] == 0
            assert sum(stream["next"] - 1 for stream in flows["incoming"]["streams"]) == len(ledger.orders)
            assert flows["incoming"]["rows_in"] > 0
            assert {sink["stream"] for sink in data["sinks"]} == {"REVENUE", "KV_SUMS"}
            assert "continuously" in page
            _, data = await asyncio.to_thread(browser.both, "/transfers")
            assert [item["state"] for item in data["transfers"]] == ["whole"] * len(ledger.documents)
            assert is_running(play.project)
            assert not asking.done(), "no answer was an error"
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            for _ in range(2):  # the second Ctrl-C changes nothing
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(keeping, 60)
        return browser, totals

    async def main() -> tuple[Browser, list[int]]:
        with Signals() as signals:
            return await body(signals)

    browser, totals = asyncio.run(main())
    assert totals == sorted(totals), "no answer had less than the one before"
    assert (totals[0], totals[-1]) == (before, len(ledger.whole))
    with pytest.raises(ConnectionRefusedError):
        browser.get("/about")
    assert not is_running(play.project)
    assert has_said("is up (pid ")
    pid = int(said.partition("is up (pid ")[2].partition(")")[0])
    assert not Path(f"/proc/{pid}").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_go_on_says_so_and_waits_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Spark that cannot run is tried three times, then the command is said; so is the end of orders that cannot go."""
    monkeypatch.setattr(ongoing, "REST", 0.0)
    nowhere = "nats://127.0.0.1:1"
    play, said = Play(nowhere, tmp_path, Volume(orders=100, documents=0)), list[str]()

    async def body() -> None:
        stop = asyncio.Event()
        keeping = asyncio.create_task(ongoing.Ongoing(play, nowhere, say=said.append).run(stop))
        await eventually("both were said", lambda: any("penstock pipeline run" in line for line in said), keeping)
        await eventually("both were said", lambda: any("sample orders have ended" in line for line in said), keeping)
        assert not keeping.done()
        stop.set()
        await asyncio.wait_for(keeping, 60)

    held = _take_lock(play.project)  # somebody else runs the pipeline
    assert held is not None
    try:
        asyncio.run(body())
    finally:
        os.close(held)
    assert len([line for line in said if "runs already" in line]) == ongoing.TRIES
    assert f"--storage {tmp_path / 'storage'} --continuous -s {nowhere}" in next(
        line for line in said if "penstock pipeline run" in line
    )


SMALL = ("--orders", "300", "--documents", "1", "--document-size", "100KB", "--kills", "0")


@SLOW
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: int, status: int):
    """Ctrl-C or SIGTERM while Spark starts, and once more: the status says it, and all that was made is gone.

    A terminal of 80 columns shows that without a line that is cut or written over.
    """
    place = tmp_path / "tmp"
    place.mkdir()
    env = environment(tmp_path, JAVA_HOME=java_home() or "", TMPDIR=str(place))
    line = [sys.executable, "-m", "penstock", "demo", *SMALL, "--folder", str(tmp_path)]
    with shown(line, env, 80) as child:
        child.wait_for("Orders: starting Spark", timeout=120)
        said = re.search(r"nats-server .*\(pid\s+(\d+)\)", child.screen.text, re.DOTALL)
        assert said is not None, child.screen.text
        child.process.send_signal(number)
        child.wait_for("Ending.", timeout=120)
        child.process.send_signal(number)
        assert child.end(120) == status, child.screen.text
    assert "Traceback" not in child.screen.text
    assert "Orders: starting Spark" not in child.screen.text, "nothing of the picture is left"
    assert "are refused" not in child.screen.text, "and no warning comes before the first order"
    assert child.screen.wraps == []
    pid = said[1]
    assert list(place.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


@SLOW
@pytest.mark.heavy
def test_the_demo_keeps_everything_running(tmp_path: Path):
    """The whole command: orders that people send come out, Spark that dies comes back, and Ctrl-C removes it all."""
    place = tmp_path / "tmp"
    place.mkdir()
    command = Command(tmp_path)
    there = {"JAVA_HOME": java_home() or "", "TMPDIR": str(place)}

    def pid_in(line: str) -> int:
        return int(line.partition("(pid ")[2].partition(")")[0])

    with command.running("demo", *SMALL, "--keep", "--folder", str(tmp_path), **there) as child:
        server = pid_in(child.wait_for("nats-server", timeout=120))
        child.wait_for("Nothing is lost", timeout=500)
        browser = Browser(child.wait_for("console", timeout=120).split()[-1])
        publish = shlex.split(child.wait_for("penstock pub"))
        call = shlex.split(child.wait_for("penstock bus call"))
        spark = pid_in(child.wait_for("is up", timeout=300))
        assert command(*publish[1:]).returncode == 0

        def orders() -> str:
            answer = command(*call[1:])
            assert answer.returncode == 0, answer.stderr
            return answer.stdout

        def shown() -> dict[str, Any]:
            return browser.get("/pipelines.json").json()["pipelines"][0]["run"]

        wait_until(lambda: "mine-1" in orders())
        os.kill(spark, signal.SIGKILL)
        child.wait_for("SIGKILL. Starting it again", timeout=120)
        assert orders().count("mine-1") == 1, "the service answers without Spark"
        again = pid_in(child.wait_for("is up", timeout=300))
        assert again != spark
        wait_until(lambda: shown()["state"] == "running" and shown()["updates"] >= 2)
        assert orders().count("mine-1") == 1
        for _ in range(2):
            child.process.send_signal(signal.SIGINT)
        assert child.process.wait(120) == 0, child.rest()
    assert list(place.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in (server, spark, again))


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@SLOW
def test_the_audit_sees_what_is_dropped_and_doubled(played: tuple[Play, Result], shop: Server):
    """A message that is taken out of a stream or put in twice, and a row that is there twice, fail the audit."""
    play, result = played
    options = penstock.ConnectionOptions(shop.url)

    def off() -> dict[str, tuple[int, int]]:
        # A run that was cut off may have left this one behind: the next run would go on there.
        return {name: found for name, found in faults(play, options).items() if "their sums" not in name}

    assert off() == {}
    with BulkConnection(options) as bulk:
        first = next(iter(bulk.read("REVENUE", subjects="revenue.*", on_loss=print))).slice(0, 2).to_pylist()
    api(shop.url, "STREAM.MSG.DELETE.REVENUE", {"seq": first[0]["sequence"]})
    assert off() == {"revenue in the stream REVENUE": (1, 0)}

    async def double() -> None:
        client = await penstock.connect(shop.url)
        try:
            await client.publish(first[1]["subject"], first[1]["data"])
            await client.publish("orders.c-000", result.ledger.orders[0].encode())
            await client.flush()
        finally:
            await client.close()

    asyncio.run(double())
    assert off()["revenue in the stream REVENUE"] == (1, 1)
    assert off()["orders in the stream ORDERS"][1] == 1
    gone = result.ledger.orders.pop()
    assert off()["whole orders, joined with customers"] == (0, 1)
    result.ledger.orders += [gone, gone]
    assert off()["whole orders, joined with customers"] == (1, 0)
    result.ledger.orders.pop()


def test_a_bad_audit_ends_the_demo_with_an_error(tmp_path: Path):
    """One stage that is off is enough for a status that is not zero."""
    result = Result(Play("nats://127.0.0.1:1", tmp_path).ledger, [Stage("a", 1, 1, 0, 0), Stage("b", 1, 0, 1, 0)])
    with pytest.raises(PenstockError, match="does not add up"):
        conclude(result, tmp_path)
