"""Charts of more than an hour, from what a real Prometheus answered; and what a page says if it does not."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.console import Console
from penstock.console.prometheus import Prometheus
from penstock.console.settings import Settings
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.metrics import MetricsServer
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.browser import Browser
from tests.live.console.prometheus_answers import GOLDEN, answering
from tests.live.console.test_console_hostile import check_page
from tests.live.visitor import Visitor, visiting
from tests.pure.test_house import ROOT
from tests.support import eventually

Unique = Callable[..., str]


async def made(visitor: Visitor, name: str) -> float:
    """Make a stream, and give when that was."""
    client = await visitor.nats()
    info = await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    assert info.created is not None
    return info.created.timestamp()


def let(visitor: Visitor, url: str) -> None:
    """Name a Prometheus to a console."""
    object.__setattr__(visitor.backend, "prometheus", Prometheus(url))


async def test_a_week_of_a_stream_is_drawn_and_what_has_its_name_is_told(visitor: Visitor, unique: Unique):
    """Figures of the very stream are drawn; those of another NATS, and of one before it, are left out and named."""
    name = unique("WEEK")
    with answering(await made(visitor, name)) as answers:
        let(visitor, answers.url)
        text, data = await visitor.both(f"/streams/{name}?range=7d")
        check_page(text)
        for wanted in ("rate", "messages", "bytes"):
            values = [value for _, value in data["history"][wanted] if value is not None]
            recorded = GOLDEN["answers"][wanted]["data"]["result"][0]["values"]
            assert values == [float(value) for _, value in recorded], wanted
        assert (data["span"]["range"], data["span"]["source"], data["span"]["trouble"]) == ("7d", "Prometheus", None)
        notes = " ".join(data["span"]["notes"])
        assert "told by instance 127.0.0.1:7777, job other: its figures are left out" in notes
        assert "another one had this name, and was deleted" in notes
        assert '<a data-turn href="?range=24h">24 hours</a>' in text
        assert "7.0 d ago" in text
        assert len(answers.asked) == 4, "the JSON twin asked for the same, and nobody asked again"
        (asked,) = {(item["step"], int(item["end"]) - int(item["start"])) for item in answers.asked}
        assert asked == ("2520", 7 * 86400)
        hour = await visitor.twin(f"/streams/{name}")
        assert (hour["span"]["range"], hour["span"]["source"], hour["span"]["notes"]) == ("1h", "memory", [])
        assert len(answers.asked) == 4, "the last hour is in memory"
        assert (await visitor.get(f"/streams/{name}?range=8d")).status == 400


async def test_a_stream_that_prometheus_knows_nothing_of_says_so(visitor: Visitor, unique: Unique):
    """If it has no figure of the very stream, nothing is drawn, and the page says what to do."""
    name = unique("OTHER")
    await made(visitor, name)
    with answering(1.0) as answers:
        answers.instead = 200, json.dumps(GOLDEN["empty"]).encode()
        let(visitor, answers.url)
        text, data = await visitor.both(f"/streams/{name}?range=24h")
        assert data["history"]["messages"] == []
        assert "has nothing of it" in data["span"]["notes"][0]
        assert "Nothing is known of this time." in text


_WITH = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[%s,"1"]]}]}}'


async def test_a_prometheus_that_does_not_answer_leaves_the_hour_from_memory(server: Server, unique: Unique):
    """Nobody there, a refusal, no Prometheus at all, or one byte now and then: the page says so, and shows the hour."""
    name = unique("HOUR")
    async with visiting(server.url, Settings(timeout=1.0)) as visitor:
        created = await made(visitor, name)
        await visitor.survey.fresh()
        await visitor.survey.fresh()
        with answering(created) as answers:
            for status, body, said in (
                (400, json.dumps(GOLDEN["refused"]).encode(), "refuses the question: bad_data"),
                (401, b"Unauthorized\n", "is not a Prometheus"),
                (200, b"<html><script>alert(1)</script>", "is not a Prometheus"),
                (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', "is not a Prometheus"),
                (200, b'{"status":"error","errorType":"<b>","error":[1]}', "refuses the question: &lt;b&gt;"),
                (200, b'{"status":"error","errorType":"\\ud800","error":"x"}', "refuses the question: ?: x"),
                (200, _WITH % (b"9" * 400), "is not a Prometheus"),
                (200, b" " * (9 * 2**20), "more than"),
                (301, b"", "is not a Prometheus"),
            ):
                answers.instead = status, body
                let(visitor, answers.url)
                text, data = await visitor.both(f"/streams/{name}?range=6h")
                check_page(text)
                assert said in text, (status, text)
                assert "The hour from memory is shown." in text
                assert (data["span"]["source"], data["span"]["since"]) == ("memory", None)
                assert len(data["history"]["messages"]) >= 2, "what the survey saw"
            answers.stalls.set()
            let(visitor, answers.url)
            begun = time.monotonic()
            data = await visitor.twin(f"/streams/{name}?range=6h")
            assert "no answer in 1 s" in data["span"]["trouble"]
            assert time.monotonic() - begun < 15
        let(visitor, answers.url)
        data = await visitor.twin(f"/streams/{name}?range=6h")
        assert "does not answer" in data["span"]["trouble"]
        object.__setattr__(visitor.backend, "prometheus", None)
        text, data = await visitor.both(f"/streams/{name}?range=6h")
        assert "penstock console --prometheus URL" in text
        assert data["span"]["choices"] == []


async def test_a_login_in_the_address_is_sent_and_told_nobody(server: Server, unique: Unique):
    """Prometheus gets it as a header; no page, twin or error has it, and none can be read from the console."""
    name = unique("LOGIN")
    async with visiting(server.url) as visitor:
        with answering(await made(visitor, name)) as answers:
            url = answers.url.replace("http://", "http://joe:s%2Fcr3t-of-joe@")
            async with Console(ConnectionOptions(server.url), prometheus=url) as console:
                browser = Browser(console.url)
                seen = [await asyncio.to_thread(browser.both, f"/streams/{name}?range=24h")]
                answers.instead = 403, b"no"
                seen.append(await asyncio.to_thread(browser.both, f"/streams/{name}?range=7d"))
                seen.append(await asyncio.to_thread(browser.both, "/about"))
                assert repr(console._backend.prometheus) == f"Prometheus('{answers.url.removeprefix('http://')}')"
        assert set(answers.logins) == {"Basic am9lOnMvY3IzdC1vZi1qb2U="}
        assert "cr3t" not in json.dumps(seen)
    for wrong in ("127.0.0.1:9090", "ftp://joe:s3cr3t-of-joe@x", "http://x/?a=s3cr3t-of-joe", "http://a b"):
        with pytest.raises(InputError) as told:
            Prometheus(wrong)
        assert "of-joe" not in str(told.value) or "@" not in wrong


# -- a real one --------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus here")
async def test_a_real_prometheus_is_asked(unused_tcp_port: int, tmp_path: Path, unique: Unique):
    """Debian's Prometheus takes our figures and answers every question, of names that look like PromQL, too."""
    name, consumer = 'ORD"ERS{x="1"}ü\ufffd', 'b"{$}'
    with Server(sync="2m") as one, Server(sync="2m") as other:
        url = f"http://127.0.0.1:{unused_tcp_port}"
        async with (
            Console(ConnectionOptions(one.url), prometheus=url) as console,
            MetricsServer(ConnectionOptions(one.url)) as ours,
            MetricsServer(ConnectionOptions(other.url)) as theirs,
        ):
            for server in (one, other):
                async with visiting(server.url) as visitor:
                    client = await visitor.nats()
                    await assets.add_stream(client, Stream(name=name, subjects=["orders"]))
                    await assets.add_consumer(client, name, Consumer(durable=consumer))
                    await client.jetstream().publish("orders", b"x")
            jobs = {"ours": ours, "theirs": theirs}
            scraped = [
                f'  - {{job_name: {job}, static_configs: [{{targets: ["{made.url.split("/")[2]}"]}}]}}'
                for job, made in jobs.items()
            ]
            config = tmp_path / "prometheus.yaml"
            shutil.copy(ROOT / "deploy" / "prometheus" / "alerts.yaml", tmp_path / "alerts.yaml")
            lines = ["global: {scrape_interval: 1s}", "rule_files: [alerts.yaml]", "scrape_configs:", *scraped]
            config.write_text("\n".join(lines) + "\n")
            for checked in (config, ROOT / "deploy" / "prometheus" / "prometheus.yaml"):
                subprocess.run(["promtool", "check", "config", str(checked)], check=True, capture_output=True)
            place = [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{unused_tcp_port}"]
            running = subprocess.Popen(
                ["prometheus", f"--config.file={config}", *place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                await _drawn(Browser(console.url), name, consumer)
            finally:
                running.terminate()
                running.wait(30)


async def _drawn(browser: Browser, name: str, consumer: str) -> None:
    from urllib.parse import quote

    there = f"/streams/{quote(name, safe='')}"
    found: dict[str, Any] = {}

    async def answered() -> bool:
        answer = await asyncio.to_thread(browser.get, f"{there}.json?range=6h")
        found.update(answer.json())
        return bool(found["history"]["messages"]) and bool(found["span"]["notes"])

    await eventually(answered, "the first figures", timeout=120)
    assert found["span"]["trouble"] is None
    assert found["history"]["messages"][-1][1] == 1
    assert "job theirs: its figures are left out" in found["span"]["notes"][0]
    page = f"{there}/consumers/{quote(consumer, safe='')}.json?range=6h"
    data = (await asyncio.to_thread(browser.get, page)).json()
    assert data["span"]["trouble"] is None
    assert data["history"]["lag"][-1][1] == 1
