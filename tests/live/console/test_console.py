"""The pages of the console and their JSON twins, from a real server, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from penstock.chunks import Archive, Publisher
from penstock.connection import Connection
from penstock.console import Console, Settings
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.markers import Head, MarkerSubjects
from tests.live.browser import Browser, client_of, fill
from tests.live.visitor import pull
from tests.support import eventually

# -- the pages ---------------------------------------------------------------------------------------------------------


def test_streams_consumers_and_lag(browser: Browser, server: Server, unique: Callable[..., str]):
    """A stream, its messages, and its consumers with their lag and missing acks are shown, and the same as JSON."""
    name = unique("ORDERS")

    async def work(client: Connection) -> None:
        await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], description="the shop's"))
        for number in range(7):
            await client.jetstream().publish(f"{name}.eu", json.dumps({"order": number}).encode())
        await assets.add_consumer(client, name, Consumer(durable="billing", max_ack_pending=3))
        await pull(client, name, "billing", 2)

    fill(server.url, work)
    page, data = browser.both(f"/streams/{name}")
    assert (data["stream"]["messages"], data["stream"]["last"]["sequence"]) == (7, 7)
    assert [item["sequence"] for item in data["messages"]] == [7, 6, 5, 4, 3, 2, 1]
    assert data["subjects"]["rows"] == [{"subject": f"{name}.eu", "messages": 7}]
    (consumer,) = data["consumers"]
    assert (consumer["lag"], consumer["ack_pending"], consumer["max_ack_pending"]) == (5, 2, 3)
    assert data["config"]["subjects"] == [f"{name}.>"]
    assert "the shop&#39;s" in page
    assert "&#34;order&#34;: 6" in page

    # Where there are many streams with consumers, the survey tells of them, a moment later.
    def told() -> bool:
        return any(item["stream"] == name for item in browser.both("/consumers")[1]["consumers"])

    asyncio.run(eventually(told, "the survey's look"))
    page, data = browser.both("/consumers")
    (row,) = [item for item in data["consumers"] if item["stream"] == name]
    assert (row["name"], row["lag"]) == ("billing", 5)
    lags = [item["lag"] for item in data["consumers"]]
    assert lags == sorted(lags, reverse=True)
    page, data = browser.both(f"/streams/{name}/consumers/billing")
    assert (data["consumer"]["lag"], data["stream_last"]) == (5, 7)
    page, data = browser.both("/streams")
    (row,) = [item for item in data["streams"] if item["name"] == name]
    assert row["messages"] == 7
    assert f'href="/streams/{name}"' in page


def test_the_overview_names_what_needs_attention(
    browser: Browser, server: Server, unique: Callable[..., str], eventually: Callable[..., Any]
):
    """The overview shows server and account, a consumer that waits for acks and a stream that is nearly full."""
    name = unique("FULL")

    async def work(client: Connection) -> None:
        await assets.add_stream(client, Stream(name=name, subjects=[name], max_msgs=10, discard="new"))
        for _ in range(9):
            await client.jetstream().publish(name, b"x")
        await assets.add_consumer(client, name, Consumer(durable="stuck", max_ack_pending=2))
        await pull(client, name, "stuck", 2)

    fill(server.url, work)

    def notes() -> dict[str, Any]:
        return {note["about"]: note for note in browser.get("/overview.json").json()["attention"]}

    found = eventually(lambda: {name, f"{name} › stuck"} <= notes().keys() and notes())
    assert "90 %" in found[name]["what"]
    assert "gets no more" in found[f"{name} › stuck"]["what"]
    assert browser.get(found[f"{name} › stuck"]["link"]).status == 200
    _, data = browser.both("/overview")
    assert data["server"]["version"] == server.version
    assert data["server"]["login"] == "token"
    assert data["jetstream"]["streams"]["used"] >= 1


def test_rates_appear_with_the_second_look(
    browser: Browser, server: Server, unique: Callable[..., str], eventually: Callable[..., Any]
):
    """A stream that grows between two looks has a rate above zero."""
    name = unique("RATE")
    fill(server.url, lambda client: assets.add_stream(client, Stream(name=name, subjects=[name])))
    assert browser.get(f"/streams/{name}.json").json()["stream"]["rate"] is None

    def grown() -> Any:
        fill(server.url, lambda client: client.jetstream().publish(name, b"x"))
        return browser.get(f"/streams/{name}.json").json()["stream"]["rate"]

    assert eventually(grown) > 0


def test_messages_go_on_page_by_page(browser: Browser, server: Server, unique: Callable[..., str]):
    """Pages of messages go down to the first one, over gaps, without leaving one out or showing one twice."""
    name = unique("PAGES")

    async def work(client: Connection) -> None:
        await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.*"]))
        for number in range(69):
            await client.publish(f"{name}.{number % 2}", str(number).encode())
        await client.jetstream().publish(f"{name}.1", b"69")
        for sequence in (*range(20, 60), 70):
            await assets.delete_message(client, name, sequence, erase=False)

    fill(server.url, work)
    seen: list[int] = []
    path = f"/streams/{name}/messages"
    query = ""
    while True:
        page, data = browser.both(path + query)
        seen += [item["sequence"] for item in data["messages"]]
        if data["next"] is None:
            break
        assert f"?before={data['next']}" in page
        query = f"?before={data['next']}"
    assert seen == [*range(69, 59, -1), *range(19, 0, -1)]
    data = browser.get(f"{path}.json?subject={name}.1&from=10").json()
    assert [item["sequence"] for item in data["messages"]][:3] == [10, 12, 14]
    assert browser.get(f"{path}?before=x").status == 400
    assert browser.get(f"{path}?subject=a%20b").status == 400


def test_markers_of_the_spark_sink_are_hidden(browser: Browser, server: Server, unique: Callable[..., str]):
    """The last messages of a stream that a query writes to are its rows, however many markers follow them."""
    name = unique("REVENUE")
    places = MarkerSubjects(name, "query-1")

    async def work(client: Connection) -> None:
        subjects = [f"{name}.rows", f"$PENSTOCK.{name}.>"]
        await assets.add_stream(client, Stream(name=name, subjects=subjects, allow_atomic=True))
        for number in range(5):
            await client.jetstream().publish(f"{name}.rows", str(number).encode())
            await client.publish(places.of_task(1, number, 1), b"{}")
        for number in range(500):
            await client.publish(places.of_task(2, number, 1), b"{}")
        await client.jetstream().publish(places.head, Head(7, "run", "done", past=("older",)).body())

    fill(server.url, work)
    page, data = browser.both(f"/streams/{name}")
    assert [item["preview"] for item in data["messages"]] == ["4", "3", "2", "1", "0"]
    assert data["subjects"]["markers"] == 506
    assert data["subjects"]["rows"] == [{"subject": f"{name}.rows", "messages": 5}]
    assert f"$PENSTOCK.{name}" not in page
    _, data = browser.both(f"/streams/{name}/messages?markers=yes")
    assert data["messages"][0]["subject"] == places.head
    page, data = browser.both("/pipelines")
    (sink,) = [item for item in data["sinks"] if item["stream"] == name]
    assert (sink["query"], sink["batch"], sink["state"], sink["retries"]) == ("query-1", 7, "done", 1)
    assert "all stored" in page


def test_transfers_show_how_much_is_there(browser: Browser, server: Server, unique: Callable[..., str]):
    """Payloads in chunks are whole, in part or broken; streams that keep for consumers are not touched."""
    name, queue = unique("SCANS"), unique("QUEUE")

    async def work(client: Connection) -> str:
        await Archive.create(client, name, name)
        whole = await Publisher.persistent(client, name, 1000).publish(name, bytes(2500))
        js = client.jetstream()
        await js.publish(f"{name}.half", bytes(100), headers={"X-Msg-Id": "half", "X-Offset": "0", "X-Flags": "0"})
        await js.publish(f"{name}.odd", b"", headers={"X-Msg-Id": "odd", "X-Offset": "<b>", "X-Flags": "0"})
        await assets.add_stream(client, Stream(name=queue, subjects=[queue], retention="workqueue"))
        await js.publish(queue, b"job", headers={"X-Msg-Id": "job", "X-Offset": "0", "X-Flags": "0"})
        return whole

    whole = fill(server.url, work)
    page, data = browser.both("/transfers")
    found = {item["id"]: item for item in data["transfers"] if item["stream"] == name}
    assert set(found) == {whole, "half", "odd"}
    assert (found[whole]["state"], found[whole]["received"], found[whole]["total"]) == ("whole", 2500, 2500)
    assert (found["half"]["state"], found["half"]["total"]) == ("in part", None)
    assert found["odd"]["state"] == "broken"
    assert queue not in {item["stream"] for item in data["transfers"]}
    assert data["looked_at"]["kept_for_consumers"] >= 1
    assert "&lt;b&gt;" in page

    async def look(client: Connection) -> tuple[int, int]:
        return len(await assets.consumers(client, name)), (await assets.stream_info(client, queue)).messages

    assert fill(server.url, look) == (0, 1), "no consumer is left behind, and the work queue keeps its job"


def test_one_message_in_every_form(browser: Browser, server: Server, unique: Callable[..., str]):
    """A message shows its headers and its payload as JSON, text or hex, bounded; the download has all of it."""
    name = unique("FORMS")
    large = b"0123456789" * 20_000

    async def work(client: Connection) -> None:
        await assets.add_stream(client, Stream(name=name, subjects=[name]))
        await client.jetstream().publish(name, b'{"a":1}', headers={"Kind": "json", "Authorization": "Bearer abc"})
        await client.jetstream().publish(name, bytes(range(256)))
        await client.jetstream().publish(name, large)
        await client.jetstream().publish(name, b"")

    fill(server.url, work)
    base = f"/streams/{name}/messages"
    _, data = browser.both(f"{base}/1")
    assert (data["form"], data["text"], data["forms"]) == ("json", '{\n  "a": 1\n}', ["json", "text", "hex"])
    assert {"name": "Kind", "value": "json"} in data["headers"]
    assert {"name": "Authorization", "value": "***"} in data["headers"]
    assert browser.both(f"{base}/1?as=hex")[1]["text"].startswith("00000000  7b 22 61")
    assert browser.both(f"{base}/2")[1]["form"] == "hex"
    page, data = browser.both(f"{base}/3")
    assert (data["cut"], data["shown"], data["size"]) == (True, 65536, 200_000)
    assert len(page) < 100_000
    assert "first 64.0 KiB" in page
    file = browser.get(f"{base}/3/payload")
    assert file.body == large
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment")
    assert "Empty" in browser.both(f"{base}/4")[0]
    for path, status in (("5", 404), ("0", 400), ("-1", 400), ("x", 400), ("9" * 30, 400), ("1?as=pdf", 400)):
        assert browser.get(f"{base}/{path}").status == status, path


def test_what_is_not_there_says_so(browser: Browser):
    """A stream, consumer or page that is not there is a 404 with a sentence, in HTML and in JSON."""
    for path in ("/streams/NOT_THERE", "/streams/NOT_THERE/consumers/c", "/streams/NOT_THERE/messages", "/nothing"):
        assert browser.get(path).status == 404, path
        twin = browser.get(f"{path}.json")
        assert twin.status == 404
        assert twin.json()["error"]["what"].startswith("There is no")
    assert browser.get("/streams/a.b").status == 400
    assert browser.get(f"/streams/{quote('a b')}").status == 400
    assert browser.get("/streams?offset=-1").status == 400


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_tables_are_bounded_and_say_so(server: Server, unique: Callable[..., str]):
    """No table has more rows than the settings allow; what is left out is counted, or reached with a link."""
    root = unique("MANY")
    settings = Settings(rows=3, messages=2, lookups=5, subjects=4, payload_bytes=32)
    with Server(sync="2m") as own:
        async with client_of(own.url) as client, Console(ConnectionOptions(own.url), settings) as console:
            for number in range(5):
                await assets.add_stream(client, Stream(name=f"{root}_{number}", subjects=[f"{root}.{number}.>"]))
            for number in range(4):
                await client.jetstream().publish(f"{root}.0.{number}", b"x" * 100)
                await assets.add_consumer(client, f"{root}_0", Consumer(durable=f"c{number}"))
            ask = Browser(console.url).get
            data = (await asyncio.to_thread(ask, "/streams.json")).json()
            assert (len(data["streams"]), data["total"], data["next"], data["previous"]) == (3, 5, 3, None)
            data = (await asyncio.to_thread(ask, "/streams.json?offset=3")).json()
            assert (len(data["streams"]), data["next"], data["previous"]) == (2, None, 0)
            data = (await asyncio.to_thread(ask, "/consumers.json")).json()
            assert (len(data["consumers"]), data["left_out"]) == (3, 1)
            data = (await asyncio.to_thread(ask, f"/streams/{root}_0.json")).json()
            assert len(data["messages"]) == 2
            assert (len(data["subjects"]["rows"]), data["subjects"]["left_out"]) == (3, 1)
            assert (len(data["consumers"]), data["consumers_total"]) == (3, 4)
            await client.jetstream().publish(f"{root}.0.4", b"x")
            data = (await asyncio.to_thread(ask, f"/streams/{root}_0.json")).json()
            assert (data["subjects"]["rows"], data["subjects"]["left_out"]) == ([], 5), "too many to count"
            data = (await asyncio.to_thread(ask, f"/streams/{root}_0/messages/1.json")).json()
            assert (data["shown"], data["cut"]) == (32, True)
