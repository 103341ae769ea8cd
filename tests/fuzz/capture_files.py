"""What programs write and browsers send, for the corpus: contexts, configurations, requests, Spark's logs.

Secrets, paths and ports of the machine that captures are replaced by words that are always the same. Keys that sign are
made for the moment; what they signed stays as it is, and the private halves do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock.console import Console
from penstock.errors import PenstockError
from penstock.jetstream import assets
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from tests.fuzz.recorder import Recorder
from tests.fuzz.targets_console import PORT, TOKEN, WRITE_TOKEN, filled
from tests.fuzz.world import SECRET
from tests.live.chromium import ARGUMENTS, CHROMIUM, WAIT
from tests.live.socks import proxy
from tests.pure.test_context_files import WRITTEN
from tests.support import Operator

__all__ = ["from_browser", "from_programs", "from_spark"]

Write = Callable[..., None]
_READ = (
    *("/overview", "/streams/ORDERS", "/streams/ORDERS/messages?from=1&text=order", "/streams/ORDERS/consumers/reader"),
    *(
        "/buckets/keys/settings/entry?key=rate",
        "/buckets/objects/settings/object?name=plan.pdf",
        "/dead-letters/ORDERS",
    ),
)
_ACTS: dict[str, dict[str, str]] = {
    "/act/publish?stream=ORDERS": {"subject": "orders.1", "headers": "A: 1\nB: é", "payload": '{"order": 7}'},
    "/act/stream-purge?stream=ORDERS": {"keep": "3", "typed": "ORDERS"},
    "/act/key-put?bucket=settings&key=rate": {"value": "1.3"},
    "/act/consumer-add?stream=ORDERS": {"name": "late"},
    "/act/consumer-delete?stream=ORDERS&consumer=reader": {"typed": "reader"},
    "/act/stream-add": {"name": "NEW", "subjects": "new.>"},
}


# -- programs ----------------------------------------------------------------------------------------------------------


async def from_programs(write: Write, folder: Path) -> None:
    """Take contexts, credentials, topologies, configurations of servers, and what a SOCKS proxy answers."""
    write("context", [WRITTEN, _context(folder)])
    operator = Operator()
    behind = [operator.credentials(expired=late).partition("\n")[2] for late in (False, True)]
    write("credentials", [re.sub(r"SU[A-Z2-7]{56}", "SU" + "A" * 56, text).encode() for text in behind])
    (folder / "project").mkdir()
    project = write_project(folder / "project", "sensors")
    confs = []
    for nodes in (1, 3):
        with penstock.Server(nodes=nodes, store=folder / f"store-{nodes}", token=SECRET) as server:
            confs += [_masked(node._config.read_text()) for node in server.nodes[:1]]
            if nodes == 1:
                await filled(server.url)
                exported = await _exported(server.url)
                answered = await _proxied(server.url)
    write("conf", confs)
    write("topology", [(project / "topology.toml").read_bytes(), exported])
    write("socks", answered)


def _context(folder: Path) -> bytes:
    """Give the file that `penstock context add` writes."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    words = ["-m", "penstock", "context", "add", "here", "--server", "nats://127.0.0.1:4222", "--user", "bob"]
    subprocess.run([sys.executable, *words, "--password", "p&<"], env=environment, check=True, capture_output=True)
    return next(folder.rglob("here.json")).read_bytes()


def _masked(text: str) -> bytes:
    text = re.sub(r'(password: |route:)"?[A-Za-z0-9_-]{8,}"?(?=[,@])', r"\1a-password", text)
    text = re.sub(r'"/[^"]*/([^"/]*)"', r'"/srv/nats/\1"', text)
    text = re.sub(r'(http_base_path: )"[^"]*"', r'\1"/a-path"', text)
    text = re.sub(r"(max_file_store: )[0-9]+", r"\g<1>10000000000", text)
    return re.sub(r"(?<=:)[0-9]{4,5}\b", "6222", text).encode()


async def _exported(url: str) -> bytes:
    """Give the streams and consumers of a server as a topology."""
    client = await penstock.connect(url)
    try:
        found = {}
        for stream in await assets.streams(client):
            consumers = await assets.consumers(client, stream.name)
            held = {item.name: item.config.to_json() for item in consumers}
            found[stream.name] = stream.config.to_json() | ({"consumers": held} if held else {})
    finally:
        await client.close()
    return json.dumps({"streams": found}, indent=1).encode()


async def _proxied(url: str) -> list[bytes]:
    """Give what a proxy answers a client of ours: with and without a login, and if it refuses."""
    heard = []
    for login, reply in ((None, 0), (("bob", "p"), 0), (("bob", "q"), 0), (None, 5)):
        with proxy(login, reply) as running:
            recorder = Recorder(running.server_address[1])
            port = await recorder.start()
            user = "bob:p@" if login else ""
            options = ConnectionOptions(url, socks_proxy=f"socks5://{user}127.0.0.1:{port}", reconnect=False)
            with suppress(PenstockError):
                await (await penstock.connect(options)).close()
            recorder.close()
            heard += [bytes(kept[:40]) for kept in recorder.heard]
    return heard


# -- a browser ---------------------------------------------------------------------------------------------------------


async def from_browser(write: Write) -> None:
    """Take the requests of a real browser: pages that it opens, what stays fresh on them, and forms that it sends."""
    from playwright.async_api import async_playwright

    if CHROMIUM is None:
        print("There is no Chromium: the requests of a browser stay as they are.")
        return
    with penstock.Server(token=SECRET, sync="2m") as server:
        await filled(server.url)
        options = {"token": TOKEN, "write": True, "write_token": WRITE_TOKEN}
        async with Console(ConnectionOptions(server.url), **options) as console, async_playwright() as driver:
            port = int(console.address.rpartition(":")[2])
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            try:
                looked, acted = Recorder(port), Recorder(port)
                await _look(browser, f"http://127.0.0.1:{await looked.start()}")
                await _act(browser, f"http://127.0.0.1:{await acted.start()}")
            finally:
                await browser.close()
            looked.close()
            acted.close()
    asked = {item.split(b" HTTP")[0]: item for item in _requests(looked, port) if b"event-stream" not in item}
    fresh = [item for item in _requests(looked, port) if b"event-stream" in item]
    write("console", [*(asked[b"GET " + path.encode()] for path in _READ), *fresh[:1]])
    sent = [item for item in _requests(acted, port) if b" /act/" in item[:12]]
    write("console-acts", [item for item in sent if item.startswith(b"POST")] + sent[:1])


async def _look(browser: Any, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}/overview?token={TOKEN}", timeout=WAIT)
    for path in _READ:
        await page.goto(f"{address}{path}", timeout=WAIT, wait_until="domcontentloaded")
    await page.close()


async def _act(browser: Any, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}/overview?token={WRITE_TOKEN}", timeout=WAIT)
    for path, values in _ACTS.items():
        await page.goto(f"{address}{path}", timeout=WAIT)
        for _ in range(2):
            for name, value in values.items():
                field = page.locator(f"form.act [name={name}]:visible")
                if await field.count():
                    await field.fill(value)
            if await page.locator("form.act button").count():
                async with page.expect_navigation(timeout=WAIT):
                    await page.locator("form.act button").click()
    await page.close()


def _requests(recorder: Recorder, port: int) -> list[bytes]:
    """Give each request, as it would be to the port of the target; seals and times are made right when it is read."""
    starts = re.compile(rb"(?=(?:GET|POST) /[^ \r\n]* HTTP/1\.1\r\n)")
    found = []
    for said in recorder.said:
        text = re.sub(rb"127\.0\.0\.1:[0-9]+", b"127.0.0.1:%d" % PORT, bytes(said))
        text = text.replace(b"penstock_console_%d=" % port, b"penstock_console_%d=" % PORT)
        text = re.sub(rb"\bseal=[^&\r\n]+", b"seal=SEAL", re.sub(rb"\bmade=[^&\r\n]+", b"made=MADE", text))
        found += [item for item in starts.split(text) if item]
    return found


# -- Spark -------------------------------------------------------------------------------------------------------------


def from_spark(write: Write, folder: Path) -> None:
    """Take the event log and the progress of a query of a real Spark, and the options that Spark hands over."""
    from tests.spark.java import set_up_java

    set_up_java()
    from penstock.spark.sessions import session
    from tests.fuzz.capture_tables import from_tables

    (folder / "events").mkdir()
    conf = {"spark__eventLog__enabled": "true", "spark__eventLog__dir": (folder / "events").as_uri()}
    conf |= {"spark__eventLog__rolling__enabled": "true", "spark__eventLog__compress": "false"}
    conf |= {"spark__ui__enabled": "false", "spark__sql__warehouse__dir": str(folder / "warehouse")}
    conf |= {"spark__driver__host": "127.0.0.1", "spark__local__dir": str(folder / "local")}
    spark = session("capture", master="local[1]", **conf)
    try:
        with penstock.Server(token=SECRET, sync="2m") as server:
            asyncio.run(filled(server.url))
            spark.dataSource.register(_recording(folder / "options"))
            given = {"url": server.url, "stream": "ORDERS", "start": "1", "maxMessagesPerTrigger": "3"}
            rows = spark.readStream.format("recording").options(**given).load()
            kept = str(folder / "checkpoint")
            sink = {
                "url": server.url,
                "stream": "OUT",
                "subject": "out.all",
                "prepare": "true",
                "checkpointLocation": kept,
            }
            asyncio.run(_add_out(server.url))
            query = (
                rows.select("data", "headers")
                .writeStream.format("recording")
                .options(**sink)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
            told = [progress.json for progress in query.recentProgress]
            from_tables(write, spark, folder)
    finally:
        spark.stop()
    hidden = re.compile(rf"{re.escape(str(folder))}|nats://[^\"\\ ]*")
    write("query-progress", [hidden.sub("X", item).encode() for item in told])
    lines = [line for path in folder.rglob("events_*") if path.is_file() for line in path.read_text().splitlines()]
    write("event-log", [hidden.sub("X", text).encode() for text in _events(lines)], whole=True)
    handed = [re.sub(r"nats://[^\n]*", "nats://127.0.0.1:4222", text) for text in _options(folder / "options")]
    write("spark-options", [text.replace(str(folder), "/srv").encode() for text in handed])


async def _add_out(url: str) -> None:
    client = await penstock.connect(url)
    try:
        await assets.add_stream(client, penstock.Stream(name="OUT", subjects=["out.>"]))
    finally:
        await client.close()


def _recording(path: Path) -> type:
    """Make the data source that writes down what Spark hands to it; Spark's workers get it by value."""
    from pyspark_nats import DefaultSource

    class Recording(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "recording"

        def __init__(self, options: Any) -> None:
            with path.open("a") as file:
                file.write("".join(f"{key}={value}\n" for key, value in sorted(dict(options).items())) + "\n")
            super().__init__(options)

    return Recording


def _options(path: Path) -> list[str]:
    return sorted({text.strip() for text in path.read_text().split("\n\n") if text.strip()})


def _events(lines: Iterable[str]) -> list[str]:
    """Give a log of each kind of event that is read; the properties of the machine are left out of it."""
    chosen: dict[str, str] = {}
    started: list[str] = []
    for line in lines:
        event = json.loads(line)
        kind = str(event["Event"]).rpartition("$")[2]
        if kind not in ("QueryStartedEvent", "QueryProgressEvent", "SparkListenerJobStart", "SparkListenerTaskEnd"):
            continue
        if "Properties" in event:
            kept = {key: value for key, value in event["Properties"].items() if key.startswith("sql.streaming")}
            event |= {"Properties": kept, "Stage Infos": []}
        if "Task Info" in event:
            event["Task Info"] |= {"Accumulables": [], "Host": "127.0.0.1"}
        text = json.dumps(event)
        chosen.setdefault(kind, text)
        started.append(text)
    return [*(f"{text}\n" for text in chosen.values()), "".join(f"{text}\n" for text in started[:12])]
