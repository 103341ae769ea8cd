"""The monitoring pages: those of the old server, field by field, and those of the NATS server beside them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from penstock.channels import Gateway
from penstock.channels.monitoring import Monitor
from penstock.errors import OptionError
from tests.live.stan import Got, until

PAGES = Path(__file__).parent.parent / "golden" / "nats_streaming_pages"


async def get(url: str, path: str) -> tuple[int, str]:
    """Give the status and the content of a page."""

    def read() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{url}{path}", timeout=10) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(read)


def shape(value, path: str = "") -> set[tuple[str, str]]:
    """Give the names in a page with the kinds of their values; entries of a list, and channels, count as one."""
    if isinstance(value, dict):
        named = "*" if path.endswith(".subscriptions") else None
        return {found for key, inner in value.items() for found in shape(inner, f"{path}.{named or key}")}
    if isinstance(value, list):
        return {found for inner in value for found in shape(inner, path)}
    return {(path, type(value).__name__)}


async def test_all_fields_of_the_old_server(stan):
    """Every page has the fields that the real server shows, with values of the same kinds, and no others."""
    gateway = await stan.serve(monitor="127.0.0.1:0")
    client = await stan.client("w1")
    got = Got()
    for options in ({"durable": "d"}, {"queue": "q"}, {"queue": "q", "durable": "e"}, {}):
        await client.subscribe("orders", got, **options)
    await client.subscribe("quiet", Got(), durable="d")
    await client.publish("orders", b"x")
    await got.count(4)
    url = gateway.monitor_url.removesuffix("/streaming")
    for name, query in (("serverz", ""), ("storez", ""), ("clientsz", "?subs=1"), ("channelsz", "?subs=1")):
        status, content = await get(url, f"/streaming/{name}{query}")
        assert status == 200
        assert shape(json.loads(content)) == shape(json.loads((PAGES / f"{name}.json").read_text())), name
    assert json.loads((await get(url, "/streaming/channelsz"))[1])["names"] == ["orders", "quiet"]
    cut = json.loads((await get(url, "/streaming/channelsz?offset=1&limit=1"))[1])
    assert (cut["offset"], cut["limit"], cut["count"], cut["total"], cut["names"]) == (1, 1, 1, 2, ["quiet"])
    for limit in ("9" * 5000, "\u0662", "9" * 20):
        asked = await get(url, f"/streaming/channelsz?limit={quote(limit)}")
        assert (asked[0], json.loads(asked[1])["limit"]) == (200, 1024), limit[:30]
    beyond = json.loads((await get(url, "/streaming/channelsz?offset=9&limit=-1"))[1])
    assert (beyond["limit"], beyond["count"], "names" in beyond) == (1024, 0, False)
    assert json.loads((await get(url, "/streaming/clientsz?client=w1"))[1])["subs_count"] == 5
    assert (await get(url, "/streaming"))[0] == 200
    assert (await get(url, "/streaming/isFTActive"))[0] == 204


async def test_not_ready_before_it_serves(server):
    """Until a gateway serves, its pages and its health are 503; of one that stands by, serverz says so."""
    for standby in (False, True):
        gateway = Gateway(server.url, standby=standby)
        monitor = Monitor(gateway, "127.0.0.1:0")
        await monitor.start()
        try:
            url = monitor.url.removesuffix("/streaming")
            status, content = await get(url, "/streaming/serverz")
            if standby:
                page = json.loads(content)
                assert (page["state"], page["clients"], page["in_msgs"]) == ("FT_STANDBY", 0, 0)
                assert set(json.loads((PAGES / "serverz.json").read_text())) == set(page)
                assert (await get(url, "/healthz"))[0] == 200
            else:
                assert (status, (await get(url, "/healthz"))[0]) == (503, 503)
                assert "starting" in content
            assert (await get(url, "/streaming/isFTActive"))[0] == 204
            for name in ("storez", "clientsz", "channelsz"):
                assert (await get(url, f"/streaming/{name}"))[0] == 503
        finally:
            await monitor.stop()


async def test_a_standby_that_took_over(stan):
    """isFTActive is 200 at the gateway of a pair that serves, and 204 at the other."""
    first = await stan.serve(monitor="127.0.0.1:0", standby=True)
    await first.wait_leading()
    second = await stan.serve(monitor="127.0.0.1:0", standby=True)
    pages = [gateway.monitor_url for gateway in (first, second)]
    assert [(await get(page, "/isFTActive"))[0] for page in pages] == [200, 204]
    await first.stop()
    await until(lambda: second.leading)
    assert (await get(pages[1], "/isFTActive"))[0] == 200
    assert json.loads((await get(pages[1], "/serverz"))[1])["state"] == "FT_ACTIVE"


async def test_pages_of_the_nats_server(stan, server):
    """varz, connz and the others are the server's own, with their parameters; without one to ask they are 404."""
    gateway = await stan.serve(monitor="127.0.0.1:0", nats_monitor=server.monitor_urls[0])
    url = gateway.monitor_url.removesuffix("/streaming")
    for name, field in (("varz", "server_id"), ("connz", "connections"), ("subsz", "num_subscriptions")):
        status, content = await get(url, f"/{name}")
        assert (status, field in json.loads(content)) == (200, True)
    assert json.loads((await get(url, "/connz?limit=1"))[1])["limit"] == 1
    assert (await get(url, "/routez"))[0] == 200
    assert urlsplit(server.monitor_urls[0]).path not in (await get(url, "/varz"))[1], "the way to all other pages"
    direct = server.monitor_urls[0]
    for _ in range(100):  # other tests make and delete streams of this server, which is unwell for moments
        before, shown, after = [await get(page, "/healthz") for page in (direct, url, direct)]
        if before == after:
            assert shown == before
            break
    else:
        pytest.fail("the server's own page does not stay the same")
    assert (await get(url, "/stacksz"))[0] == 404
    assert (await get(url, "/../varz"))[0] == 404
    other = await stan.serve(monitor="127.0.0.1:0", cluster_id=f"{stan.cluster}-2")
    url = other.monitor_url.removesuffix("/streaming")
    assert (await get(url, "/varz"))[0] == 404
    assert await get(url, "/healthz") == (200, '{"status":"ok"}\n')
    with pytest.raises(OptionError, match="nats_monitor"):
        Gateway(server.url, nats_monitor="file:///etc/passwd")


async def test_a_nats_server_that_does_not_answer(stan):
    """A page that the NATS server does not give is a 502, and the pages of the gateway go on."""
    gateway = await stan.serve(monitor="127.0.0.1:0", nats_monitor="http://127.0.0.1:9")
    url = gateway.monitor_url.removesuffix("/streaming")
    assert (await get(url, "/varz"))[0] == 502
    assert (await get(url, "/streaming/serverz"))[0] == 200
