"""Key-value buckets against the real server: values, conditions, deletes, times to live, many at a time, mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.buckets import BucketStatus, Entry, KeyValue, bucket_source, many
from penstock.connection import Connection, connect
from penstock.errors import (
    ConditionError,
    DeniedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
)
from penstock.jetstream import assets
from penstock.model import Republish, Stream
from penstock.server import Server
from tests.live.cable import relay
from tests.live.connecting import free_port
from tests.support import eventually

NewBucket = Callable[..., Awaitable[KeyValue]]


@pytest.fixture
def new_bucket(nc: Connection, unique: Callable[..., str]) -> NewBucket:
    """Make buckets of names of their own."""

    async def make(**fields: Any) -> KeyValue:
        return await KeyValue.create_bucket(nc, unique("b"), **fields)

    return make


def told(entries: list[Entry]) -> list[tuple[str, str, bytes]]:
    return [(entry.operation, entry.key, entry.value) for entry in entries]


async def test_a_value_is_read_back_with_its_revision(new_bucket: NewBucket):
    """The last value is given, an older one by its revision, and the time is the server's."""
    kv = await new_bucket(history=3)
    first, second = await kv.put("eu.berlin", b"1"), await kv.put("eu.berlin", b"2")
    assert second == first + 1
    entry = await kv.get("eu.berlin")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == (kv.bucket, "eu.berlin", b"2", second)
    assert entry.time is not None
    assert (await kv.get("eu.berlin", first)).value == b"1"
    assert await kv.get("eu.berlin", current=True) == entry
    assert await kv.put("empty", b"") == second + 1
    assert (await kv.get("empty")).value == b""


async def test_a_key_that_is_not_there(new_bucket: NewBucket):
    """A key that was never written, was deleted, or is another one at that revision, is NotFoundError."""
    kv = await new_bucket()
    revision = await kv.put("a", b"1")
    await kv.put("gone", b"1")
    await kv.delete("gone")
    for key, at in (("b", None), ("gone", None), ("b", revision), ("a", 99)):
        with pytest.raises(NotFoundError, match=f"no key {key}"):
            await kv.get(key, at)
    with pytest.raises(NotFoundError, match="it was deleted"):
        await kv.get("gone", current=True)
    with pytest.raises(NotFoundError):
        await kv.history("b")


async def test_create_and_update_are_conditions(new_bucket: NewBucket):
    """A new key is created once, an update needs the last revision, and a refused one stores nothing."""
    kv = await new_bucket(history=5)
    first = await kv.create("a", b"1")
    with pytest.raises(ConditionError, match="has a value: nothing was stored"):
        await kv.create("a", b"2")
    second = await kv.update("a", b"2", first)
    with pytest.raises(ConditionError, match=f"is at revision {second}, and {first} was expected") as caught:
        await kv.update("a", b"3", first)
    assert (caught.value.expected, caught.value.actual) == (first, second)
    with pytest.raises(ConditionError, match="none was expected"):
        await kv.update("a", b"3", 0)
    with pytest.raises(ConditionError):
        await kv.delete("a", revision=first)
    with pytest.raises(ConditionError):
        await kv.purge("a", revision=first)
    assert told(await kv.history("a")) == [("PUT", "a", b"1"), ("PUT", "a", b"2")]
    marker = await kv.delete("a", revision=second)
    assert await kv.create("a", b"4") == marker + 1
    assert told(await kv.history("a"))[2:] == [("DEL", "a", b""), ("PUT", "a", b"4")]
    await kv.purge("a")
    assert told(await kv.history("a")) == [("PURGE", "a", b"")]
    await kv.create("a", b"5")


async def test_one_of_many_that_create_a_key_gets_it(new_bucket: NewBucket):
    """Compare and set holds between writers, also for a key that was deleted."""
    kv = await new_bucket()
    for _ in range(2):
        won = await asyncio.gather(*(kv.create("lock", b"%d" % n) for n in range(20)), return_exceptions=True)
        assert sum(isinstance(item, int) for item in won) == 1
        assert all(isinstance(item, int | ConditionError) for item in won)
        await kv.delete("lock")


async def test_keys_and_entries_follow_filters(new_bucket: NewBucket):
    """Deleted keys are left out, and several filters give each key once."""
    kv = await new_bucket(history=3)
    assert await kv.keys() == []
    assert [item async for item in kv.entries()] == []
    for key in ("eu.a", "eu.b", "us.a", "x"):
        await kv.put(key, b"old")
        await kv.put(key, key.encode())
    await kv.delete("x")
    assert await kv.keys() == ["eu.a", "eu.b", "us.a"]
    assert await kv.keys("eu.*", "us.>") == ["eu.a", "eu.b", "us.a"]
    assert await kv.keys("*.a") == ["eu.a", "us.a"]
    assert {entry.key: entry.value async for entry in kv.entries("eu.>")} == {"eu.a": b"eu.a", "eu.b": b"eu.b"}
    with pytest.raises(InputError, match="overlap"):
        await kv.keys("eu.>", "eu.a")


async def test_many_values_at_a_time(new_bucket: NewBucket):
    """Each key is given with its revision, in order, and values of one key are stored in their order."""
    kv = await new_bucket(history=64)
    pairs = [(f"k{number % 50}", b"%d" % number) for number in range(500)]
    done = [item async for item in kv.put_all(pairs)]
    assert [key for key, _ in done] == [key for key, _ in pairs]
    assert [int(entry.value) for entry in await kv.history("k7")] == list(range(7, 500, 50))
    assert (await kv.get("k7")).revision == dict(done)["k7"]
    assert [key async for key, _ in kv.put_all({"m": b"1"})] == ["m"]
    with pytest.raises(InputError, match="cannot be a key"):
        [item async for item in kv.put_all([("good", b"1"), ("bad key", b"2")])]
    with pytest.raises(InputError, match="not a pair"):
        [item async for item in kv.put_all(["k"])]  # type: ignore[list-item]


async def test_many_values_over_a_wire_that_breaks(
    server: Server, new_bucket: NewBucket, monkeypatch: pytest.MonkeyPatch
):
    """What has no ack is sent again, each value is stored once, and those of one key in their order."""
    monkeypatch.setattr(many, "ACK_TIMEOUT", 0.5)
    kv = await new_bucket(history=64)
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as client:
        there = await KeyValue.open(client, kv.bucket)
        wire.cut_up_at = wire.up + 20_000
        done = []
        async for item in there.put_all((f"k{number % 20}", b"%d" % number) for number in range(600)):
            done.append(item)
            if wire.cuts < 3 and wire.cut_up_at is None:
                wire.cut_up_at = wire.up + 15_000
    assert wire.cuts >= 2
    assert len(done) == (await kv.status()).values == 600
    for key in range(20):
        assert [int(entry.value) for entry in await kv.history(f"k{key}")] == list(range(key, 600, 20))


async def test_keys_end_by_themselves_and_say_so(new_bucket: NewBucket):
    """A key with a time to live ends with a marker of the server's, also one that was deleted before."""
    kv = await new_bucket(history=3, marker_ttl="1s")
    await kv.put("again", b"old")
    await kv.delete("again")
    async with kv.watch(updates_only=True) as watch:
        await kv.create("once", b"1", ttl=1)
        await kv.create("again", b"1", ttl="1s")
        found = [await anext(watch) for _ in range(4)]
    assert told(found[:2]) == [("PUT", "once", b"1"), ("PUT", "again", b"1")]
    assert {(item.operation, item.key, item.reason) for item in found[2:]} == {
        ("PURGE", "once", "MaxAge"),
        ("PURGE", "again", "MaxAge"),
    }
    with pytest.raises(NotFoundError):
        await kv.get("once")
    await kv.create("once", b"2")
    await kv.purge("once", ttl=1)
    await eventually(lambda: _is_empty(kv, "once"), "the marker's end")


async def _is_empty(kv: KeyValue, key: str) -> bool:
    try:
        await kv.history(key)
    except NotFoundError:
        return True
    return False


async def test_a_time_to_live_that_the_server_would_lengthen_is_refused(new_bucket: NewBucket):
    """With history a key lives for as long as its marker at least; without it, for as long as is asked."""
    kv = await new_bucket(history=2, marker_ttl="1m")
    with pytest.raises(InputError, match="keeps a key for 60 s at least"):
        await kv.create("a", b"1", ttl="5s")
    await kv.create("a", b"1", ttl="1m")
    with pytest.raises(InputError, match="at least"):
        await kv.purge("a", ttl=5)
    kv = await new_bucket(marker_ttl="1m")
    async with kv.watch() as watch:
        await kv.create("a", b"1", ttl=1)
        assert told([await anext(watch), await anext(watch)]) == [("PUT", "a", b"1"), ("PURGE", "a", b"")]
    with pytest.raises(NotFoundError, match="it was purged"):
        await kv.get("a")


async def test_a_bucket_without_markers_refuses_a_time_to_live(new_bucket: NewBucket):
    """Nothing is stored, and the remedy is named; shorter than a second is refused before anything is sent."""
    kv = await new_bucket()
    with pytest.raises(JetStreamError, match=r"no time to live.*--marker-ttl"):
        await kv.create("a", b"1", ttl=5)
    with pytest.raises(InputError, match="shortest is a second"):
        await kv.create("a", b"1", ttl=0.5)
    assert await kv.keys() == []


async def test_deletes_are_cleared_away(new_bucket: NewBucket):
    """Young markers stay unless asked, history goes, and what is there or came back stays."""
    kv = await new_bucket(history=4)
    for key in ("a", "b", "c"):
        await kv.put(key, b"1")
        await kv.put(key, b"2")
    await kv.delete("a")
    await kv.purge("b")
    assert await kv.purge_deletes() == 2
    assert told(await kv.history("a")) == [("DEL", "a", b"")]
    assert await kv.purge_deletes(0) == 2
    assert (await kv.status()).values == 2
    assert await kv.keys() == ["c"]


async def test_wrong_input_is_said_before_anything_is_sent(new_bucket: NewBucket, nc: Connection):
    """Keys, values, revisions and names are checked first."""
    kv = await new_bucket()
    for call in (
        lambda: kv.put("a b", b""),
        lambda: kv.put("a", "text"),  # type: ignore[arg-type]
        lambda: kv.get("a", 0),
        lambda: kv.update("a", b"", -1),
        lambda: kv.update("a", b"", "1"),  # type: ignore[arg-type]
        lambda: kv.keys("a*"),
        lambda: KeyValue.open(nc, "a.b"),
        lambda: KeyValue.create_bucket(nc, "x", history=100),
    ):
        with pytest.raises(InputError):
            await call()
    with pytest.raises(InputError, match="updates only, and has history"):
        kv.watch(updates_only=True, history=True)


async def test_buckets_are_made_listed_edited_and_deleted(nc: Connection, unique: Callable[..., str]):
    """The same bucket again is no error, another one is; an edit leaves what it does not name."""
    name = unique("b")
    kv = await KeyValue.create_bucket(nc, name, history=5, description="words", metadata={"owner": "me"})
    await KeyValue.create_bucket(nc, name, history=5, description="words", metadata={"owner": "me"})
    with pytest.raises(JetStreamError, match="configured otherwise"):
        await KeyValue.create_bucket(nc, name, history=6)
    await kv.put("a", b"1")
    republish = Republish(src=">", dest=f"{name}.again.>")
    await KeyValue.edit_bucket(nc, name, ttl="1h", republish=republish, marker_ttl="1m")
    status = await kv.status()
    assert (status.history, status.ttl, status.description, status.values) == (5, 3600.0, "words", 1)
    assert status.stream.config.metadata["owner"] == "me"
    assert status.stream.config.republish == republish
    assert (status.marker_ttl, status.stream.config.duplicate_window, status.revision) == (60.0, 120.0, 1)
    listed = {item.bucket: item for item in await KeyValue.buckets(nc)}
    assert isinstance(listed[name], BucketStatus)
    heard = await nc.subscribe(f"{name}.again.>")
    await nc.flush()
    await kv.put("a", b"2")
    assert (await heard.next_msg(5)).data == b"2"
    await KeyValue.delete_bucket(nc, name)
    for call in (
        lambda: KeyValue.open(nc, name),
        lambda: KeyValue.delete_bucket(nc, name),
        lambda: KeyValue.edit_bucket(nc, name, ttl=1),
        kv.status,
        lambda: kv.get("a"),
        kv.keys,
    ):
        with pytest.raises(NotFoundError, match=f"no bucket {name}"):
            await call()
    with pytest.raises(NoRespondersError, match="Was it deleted"):
        await kv.put("a", b"1")


async def test_a_stream_that_is_no_bucket_is_not_opened(nc: Connection, unique: Callable[..., str]):
    """A stream of a bucket's name that keeps everything is refused, as nats.go does."""
    name = unique("b")
    await assets.add_stream(nc, Stream(name=f"KV_{name}", subjects=[f"{name}.>"]))
    with pytest.raises(InputError, match="is not a bucket"):
        await KeyValue.open(nc, name)


async def test_a_full_bucket_refuses_values_and_keeps_what_it_has(new_bucket: NewBucket):
    """The oldest values are not dropped for new ones; a value that is too large is refused."""
    kv = await new_bucket(max_bytes=2000, max_value_size=1000)
    await kv.put("a", b"x" * 900)
    with pytest.raises(JetStreamError):
        await kv.put("big", b"x" * 1100)
    await kv.put("b", b"x" * 900)
    with pytest.raises(JetStreamError):
        await kv.put("c", b"x" * 900)
    assert "a" in await kv.keys()


async def test_a_bucket_without_direct_gets(new_bucket: NewBucket, nc: Connection):
    """The leader answers."""
    kv = await new_bucket()
    await kv.put("a", b"1")
    stream = f"KV_{kv.bucket}"
    await assets.edit_stream(nc, (await assets.stream_info(nc, stream)).config.changed(allow_direct=False))
    for reading in (kv, await KeyValue.open(nc, kv.bucket)):
        assert (await reading.get("a")).value == b"1"


async def test_a_mirror_is_read_here_and_written_at_its_origin(new_bucket: NewBucket, nc: Connection):
    """Keys have the names of the origin; revisions are the same; nothing that a mirror holds stands for the origin."""
    kv = await new_bucket(history=2)
    await kv.put("a", b"1")
    copy = await new_bucket(history=2, mirror=kv.bucket)
    revision = await copy.put("b.c", b"2")
    assert revision == (await kv.get("b.c")).revision
    await eventually(lambda: _has(copy, "b.c"), "the copy")
    assert (await copy.get("b.c")).revision == revision
    assert await copy.keys() == ["a", "b.c"]
    assert [key async for key, _ in copy.put_all({"d": b"3"})] == ["d"]
    assert (await copy.get("d", current=True)).value == b"3"
    status = await copy.status()
    assert (status.mirror, (await kv.status()).mirror) == (kv.bucket, None)
    with pytest.raises(ConditionError):
        await copy.create("a", b"2")
    with pytest.raises(InputError, match=f"Compact bucket {kv.bucket}"):
        await copy.purge_deletes()
    # The mirror still has what is purged here, and answers for the origin: that is not believed.
    await assets.purge_stream(nc, f"KV_{kv.bucket}")
    for _ in range(20):
        with pytest.raises(NotFoundError):
            await kv.get("a")


async def _has(kv: KeyValue, key: str) -> bool:
    return key in await kv.keys()


async def test_sources_are_gathered(new_bucket: NewBucket):
    """What other buckets get is there under its key, and more can be written."""
    one, other = await new_bucket(), await new_bucket()
    both = await new_bucket(sources=[one.bucket, other.bucket])
    await one.put("a", b"1")
    await other.put("b", b"2")
    await both.put("c", b"3")
    await eventually(lambda: _are(both, ["a", "b", "c"]), "the copies")


async def _are(kv: KeyValue, keys: list[str]) -> bool:
    return await kv.keys() == keys


@pytest.fixture(scope="module")
def domains() -> Any:
    """Two servers with a JetStream domain each, one a leaf of the other."""
    port = free_port()
    hub = Server(
        sync="2m", auth=False, config=f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}'
    )
    remote = f'{{ url: "nats-leaf://127.0.0.1:{port}" }}'
    leaf = Server(sync="2m", auth=False, config=f"jetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {remote} ] }}")
    with hub, leaf:
        yield hub, leaf


async def test_a_bucket_of_another_domain(domains: tuple[Server, Server], unique: Callable[..., str]):
    """All that a bucket does goes over a leaf; a mirror there is written where its origin is."""
    hub, leaf = domains
    name = unique("b")
    async with await connect(leaf.url, domain="hub") as far, await connect(leaf.url) as near:
        await eventually(lambda: _reached(far), "the link between the servers")
        kv = await KeyValue.create_bucket(far, name, history=3)
        async with kv.watch() as watch:
            assert await kv.create("a", b"1") == 1
            assert (await anext(watch)).value == b"1"
        assert (await kv.get("a")).value == b"1"
        assert [item async for item in kv.put_all({"b": b"2"})] == [("b", 2)]
        copy = await KeyValue.create_bucket(near, f"{name}-copy", history=3, mirror=bucket_source(name, "hub"))
        await copy.put("c", b"3")
        assert (await kv.get("c")).value == b"3"
        await eventually(lambda: _are(copy, ["a", "b", "c"]), "the copy")
        assert (await copy.get("c")).value == b"3"
        with pytest.raises(InputError, match="another domain"):
            await copy.get("c", current=True)
        with pytest.raises(NotFoundError):
            await KeyValue.open(near, name)
    async with await connect(hub.url) as there:
        assert (await (await KeyValue.open(there, name)).get("c")).value == b"3"


async def _reached(client: Connection) -> bool:
    try:
        await assets.account_info(client)
    except NoRespondersError:
        return False
    return True


# -- permissions -----------------------------------------------------------------------------------------------------

CONFIG = """
authorization { users: [
    { user: all, password: p }
    { user: reader, password: p, permissions: { publish: [
        "$JS.API.INFO", "$JS.API.STREAM.INFO.KV_b", "$JS.API.STREAM.MSG.GET.KV_b"
        "$JS.API.DIRECT.GET.KV_b.$KV.b.open.>", "$JS.API.CONSUMER.CREATE.KV_b.>", "$JS.API.CONSUMER.DELETE.KV_b.>"
    ] } }
] }
"""


@pytest.fixture(scope="module")
def guarded() -> Any:
    with Server(config=CONFIG, auth=False, sync="2m") as server:
        yield server.nodes[0].address


@pytest.fixture
async def reader(guarded: str) -> AsyncIterator[KeyValue]:
    async with await connect(f"nats://all:p@{guarded}") as admin:
        kv = await KeyValue.create_bucket(admin, "b", history=2)
        await kv.put("open.a", b"1")
        await kv.put("secret", b"1")
    async with await connect(f"nats://reader:p@{guarded}") as client:
        yield await KeyValue.open(client, "b")


async def test_what_a_user_may_not_do_is_said_at_once(reader: KeyValue):
    """A get names its key, so that permissions see it; writes that are denied are told, and never waited for."""
    async with asyncio.timeout(5):
        assert (await reader.get("open.a")).value == b"1"
        for call in (
            lambda: reader.get("secret"),
            lambda: reader.put("open.a", b"2"),
            lambda: reader.delete("open.a"),
        ):
            with pytest.raises(DeniedError):
                await call()
        assert await reader.keys() == ["open.a", "secret"]
