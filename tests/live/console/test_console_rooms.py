"""The pages of buckets, dead letters, channels and the cluster."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from penstock.buckets import KeyValue, ObjectStore
from penstock.connection import Connection
from penstock.console.settings import Settings
from penstock.console.upstream import Upstream
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.console.test_console_hostile import check_page
from tests.live.stan import Got, cluster_of
from tests.live.visitor import Visitor, visiting
from tests.support import eventually as until

Unique = Callable[..., str]


# -- buckets -----------------------------------------------------------------------------------------------------------


async def test_the_keys_of_a_bucket_are_shown_with_values_and_history(visitor: Visitor, unique: Unique):
    """Keys come in order with their last values; deleted ones say so; one key has its value, old ones and a link."""
    name = unique("KEYS")
    client = await visitor.nats()
    store = await KeyValue.create_bucket(client, name, history=5, description="<b>settings</b>")
    for key, value in (("eu.rate", b"1"), ("eu.rate", b"2"), ("us/rate", b"<i>3</i>"), ("old", b"x")):
        await store.put(key, value)
    await store.put("z=", b"\xff\x00")
    await store.delete("old")
    text, data = await visitor.both("/buckets?filter=" + name)
    (found,) = data["buckets"]
    assert (found["bucket"], found["kind"], found["held"], found["description"]) == (name, "keys", 4, "<b>settings</b>")
    check_page(text)
    text, data = await visitor.both(f"/buckets/keys/{name}")
    check_page(text)
    assert [(item["key"], item["operation"], item["entries"]) for item in data["keys"]] == [
        ("eu.rate", "PUT", 2),
        ("old", "DEL", 2),
        ("us/rate", "PUT", 1),
        ("z=", "PUT", 1),
    ]
    assert f'href="/buckets/keys/{name}/entry?key=us/rate"' in text
    _, data = await visitor.both(f"/buckets/keys/{name}?pattern=eu.*")
    assert [item["preview"] for item in data["keys"]] == ["2"]
    text, data = await visitor.both(f"/buckets/keys/{name}/entry?key=eu.rate")
    assert (data["text"], data["revision"]) == ("2", 2)
    assert [(item["revision"], item["preview"]) for item in data["history"]] == [(2, "2"), (1, "1")]
    assert (await visitor.twin(f"/buckets/keys/{name}/entry?key=eu.rate&revision=1"))["text"] == "1"
    gone = await visitor.twin(f"/buckets/keys/{name}/entry?key=old")
    assert (gone["operation"], gone["history"][1]["preview"]) == ("DEL", "x")
    text, _ = await visitor.both(f"/buckets/keys/{name}/entry?key=us/rate")
    check_page(text)
    assert (await visitor.twin(f"/buckets/keys/{name}/entry?key=not.there", 404))["error"]["kind"] == "NotFoundError"
    assert (await visitor.twin(f"/buckets/keys/{name}/entry", 400))["error"]["kind"] == "InputError"
    assert (await visitor.twin(f"/buckets/keys/{name}?pattern=a..b", 400))["error"]["kind"] == "InputError"
    assert (await visitor.twin("/buckets/keys/NOT_THERE", 404))["error"]["kind"] == "NotFoundError"


async def test_more_keys_than_a_table_has_rows_are_reached(server: Server, unique: Unique):
    """Keys are paged, filtered and counted; each is shown once."""
    name = unique("MANY")
    async with visiting(server.url, Settings(rows=4)) as visitor:
        store = await KeyValue.create_bucket(await visitor.nats(), name)
        for number in range(10):
            await store.put(f"k{number}", b"%d" % number)
        seen, query = [], ""
        while True:
            _, data = await visitor.both(f"/buckets/keys/{name}{query}")
            seen += [item["preview"] for item in data["keys"]]
            if data["next"] is None:
                break
            query = f"?offset={data['next']}"
        assert (seen, data["total"]) == ([str(number) for number in range(10)], 10)
        assert [item["key"] for item in (await visitor.twin(f"/buckets/keys/{name}?filter=k7"))["keys"]] == ["k7"]


async def test_objects_are_shown_and_downloaded(server: Server, unique: Unique):
    """Objects of any name are listed with size and digest; small ones are shown, all are downloaded whole."""
    name = unique("OBJECTS")
    async with visiting(server.url, Settings(payload_bytes=100, whole_bytes=10_000)) as visitor:
        client = await visitor.nats()
        store = await ObjectStore.create_bucket(client, name)
        evil, large = "<script>alert(1)</script>/../x?y", bytes(range(256)) * 2000
        await store.put("plain.json", b'{"a": 1}', headers={"X-Kind": "<b>"}, metadata={"owner": "me"})
        await store.put(evil, large)
        await store.put("gone", b"x")
        await store.delete("gone")
        await store.add_link("link", "plain.json")
        text, data = await visitor.both(f"/buckets/objects/{name}")
        check_page(text)
        rows = {item["name"]: item for item in data["objects"]}
        assert set(rows) == {"plain.json", evil, "gone", "link"}
        assert (rows[evil]["size"], rows["gone"]["deleted"]) == (512_000, True)
        assert rows["link"]["link"]["name"] == "plain.json"
        path = f"/buckets/objects/{name}/object?name="
        text, data = await visitor.both(f"{path}plain.json")
        check_page(text)
        assert (data["content"]["form"], data["metadata"], data["headers"]) == (
            "json",
            {"owner": "me"},
            [{"name": "X-Kind", "value": "<b>"}],
        )
        text, data = await visitor.both(path + quote(evil, safe=""))
        check_page(text)
        assert (data["content"]["cut"], data["content"]["bytes"]) == (True, 512_000)
        assert base64.b64decode(data["content"]["data"]) == large[:100]
        assert (await visitor.twin(f"{path}link"))["content"]["text"] == '{\n  "a": 1\n}'
        assert (await visitor.twin(f"{path}gone"))["content"] is None
        assert (await visitor.twin(f"{path}nothing", 404))["error"]["kind"] == "NotFoundError"
        file = await visitor.get(f"/buckets/objects/{name}/content?name={quote(evil, safe='')}")
        assert hashlib.sha256(file.body).digest() == hashlib.sha256(large).digest()
        assert file.headers["content-disposition"].startswith('attachment; filename="object-')


# -- dead letters ------------------------------------------------------------------------------------------------------


async def bury(client: Connection, name: str, bodies: list[bytes], reason: str) -> DeadLetters:
    """Make a stream, and dead letters of what is in it."""
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    for body in bodies:
        await client.jetstream().publish(f"{name}.a", body)
    await assets.add_consumer(client, name, Consumer(durable="worker"))
    dead = DeadLetters(client, name)
    await dead.ensure()
    async with Deliveries(client, name, "worker", limit=len(bodies)) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, reason)
            await delivery.ack()
    return dead


async def test_dead_letters_are_counted_and_listed(server: Server, unique: Unique):
    """The page counts letters by consumer; that of a stream tells why each died and leads to it, page by page."""
    name = unique("DYING")
    async with visiting(server.url, Settings(messages=2)) as visitor:
        client = await visitor.nats()
        await bury(client, name, [b"one", b"<b>two</b>", b"three"], "<script>no such order</script>")
        await client.jetstream().publish(f"PENSTOCK.DEAD.{name}.worker.99", b"no letter")
        await client.jetstream().publish(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{name}.worker", b"{}")
        text, data = await visitor.both(f"/dead-letters?filter={name}")
        check_page(text)
        (found,) = data["letters"]
        assert (found["stream"], found["consumer"], found["letters"], found["uncollected"]) == (name, "worker", 4, 1)
        path, seen = f"/dead-letters/{name}-DEAD?of={name}&consumer=worker", list[dict[str, Any]]()
        start = 1
        while True:
            text, data = await visitor.both(f"{path}&from={start}")
            check_page(text)
            seen += data["letters"]
            if data["next"] is None:
                break
            start = data["next"]
        assert [item["sequence"] for item in seen] == [1, 2, 3, None]
        assert seen[0]["reason"] == "<script>no such order</script>"
        assert (seen[0]["preview"], seen[0]["deliveries"], seen[0]["subject"]) == ("one", 1, f"{name}.a")
        assert "is not a dead letter" in seen[3]["wrong"]
        assert data["held"] == 4
        assert (await visitor.twin(f"/dead-letters/{name}-DEAD?consumer=worker", 400))["error"]["kind"] == "InputError"
        assert (await visitor.twin("/dead-letters/NOT_THERE", 404))["error"]["kind"] == "NotFoundError"


# -- channels ----------------------------------------------------------------------------------------------------------


async def test_channels_show_clients_subscriptions_and_positions(server: Server, unique: Unique):
    """A cluster that a gateway serves is shown with its clients, its channels, and the place and lag of durables."""
    cluster = unique("c")
    async with visiting(server.url) as visitor, cluster_of(server.url, cluster) as stan:
        await stan.serve()
        client = await stan.client("w1")
        got = Got()
        subscription = await client.subscribe("orders", got, durable="d")
        for number in range(3):
            await client.publish("orders", b"%d" % number)
        await got.count(3)
        await subscription.close()
        for number in range(4):
            await client.publish("orders", b"%d" % number)

        async def shown() -> bool:
            data = await visitor.twin(f"/channels/{cluster}")
            return bool(data["subscriptions"]) and data["subscriptions"][0]["lag"] == 4 and not data["trouble"]

        await until(shown, "the position being stored")
        text, data = await visitor.both(f"/channels/{cluster}")
        check_page(text)
        (one,) = data["subscriptions"]
        assert (one["channel"], one["durable"], one["online"], one["last"]) == ("orders", "d", False, 3)
        assert [item["id"] for item in data["clients"]] == ["w1"]
        assert [(item["name"], item["messages"]) for item in data["channels"]] == [("orders", 7)]
        assert data["served"]
        text, data = await visitor.both(f"/channels?filter={cluster}")
        check_page(text)
        assert [(item["cluster"], item["channels"]) for item in data["clusters"]] == [(cluster, 1)]
        assert (await visitor.twin(f"/channels/{cluster}x", 404))["error"]["kind"] == "NotFoundError"


async def test_what_somebody_else_wrote_into_a_state_is_told_in_its_part(visitor: Visitor, unique: Unique):
    """Garbage among what a gateway remembers is told in a sentence; the channels are shown all the same."""
    cluster = unique("c")
    client = await visitor.nats()
    head = f"_PENSTOCK.channels.{cluster}"
    await assets.add_stream(client, Stream(name=f"{cluster}=state", subjects=[f"{head}.>"], allow_direct=True))
    await assets.add_stream(client, Stream(name=f"{cluster}:orders", subjects=[f"{cluster}.orders"]))
    for subject, body in (("client.x", b"{}"), ("sub.x", b'{"v": 1}'), ("pos.1", b"\xff")):
        await client.jetstream().publish(f"{head}.{subject}", body)
        text, data = await visitor.both(f"/channels/{cluster}")
        check_page(text)
        assert data["trouble"], subject
        assert [item["name"] for item in data["channels"]] == ["orders"]
        await assets.purge_stream(client, f"{cluster}=state")


# -- the cluster -------------------------------------------------------------------------------------------------------


async def test_the_cluster_says_what_it_cannot_know(visitor: Visitor):
    """Without the system account and without monitoring ports the page says so, and what would help."""
    text, data = await visitor.both("/cluster")
    check_page(text)
    assert data["source"] is None
    assert "--system CONTEXT" in data["neither"]
    assert data["groups"] == []


async def test_nodes_are_told_by_the_system_account_and_by_monitoring_ports(unique: Unique):
    """A login of the system account, or a monitoring port, gives each node's version, memory and connections."""
    user = "users: [{user: a, password: pw}]"
    config = f"accounts {{ $SYS {{ users: [{{user: sys, password: pw}}] }}, A {{ jetstream: enabled, {user} }} }}"
    with Server(config=config, auth=False, sync="2m") as own:
        options = ConnectionOptions(own.url, user="a", password="pw")
        async with visiting(options) as visitor:
            system = Upstream(options.replace(user="sys"), timeout=5.0)
            try:
                object.__setattr__(visitor.backend, "system", system)
                text, data = await visitor.both("/cluster")
                check_page(text)
                (node,) = data["nodes"]
                assert (data["source"], node["told"], data["troubles"]) == ("the system account", True, [])
                assert node["memory"] > 0
                assert node["version"].startswith("2.")
            finally:
                await system.close()
            object.__setattr__(visitor.backend, "system", None)
            object.__setattr__(visitor.backend, "monitors", (own.monitor_urls[0], "http://127.0.0.1:1"))
            text, data = await visitor.both("/cluster")
            check_page(text)
            assert [item["name"] for item in data["nodes"]] == [node["name"]]
            assert data["source"] == "their monitoring ports"
            assert any("127.0.0.1:1 does not answer" in item for item in data["troubles"])


async def test_a_denied_part_leaves_the_rest_of_a_page(unique: Unique):
    """A login that may not read messages sees the keys of a bucket, and in each row why its value is not there."""
    name = unique("PARTS")
    denied = '["$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>"]'
    few = f"{{user: few, password: pw, permissions: {{publish: {{deny: {denied}}}}}}}"
    users = ["{user: all, password: pw}", few]
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as own:
        options = ConnectionOptions(own.url, user="few", password="pw")
        async with visiting(options.replace(user="all")) as able:
            store = await KeyValue.create_bucket(await able.nats(), name)
            await store.put("k", b"v")
        async with visiting(options, Settings(timeout=2.0)) as visitor:
            text, data = await visitor.both(f"/buckets/keys/{name}")
            check_page(text)
            assert [item["key"] for item in data["keys"]] == ["k"]
            assert "does not permit" in data["keys"][0]["trouble"]
