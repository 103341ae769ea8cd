"""What nats-py wrote is read by us, and the other way round: values, histories, watches, conditions, times to live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import nats.js.errors as their
import pytest
from nats.js.api import KeyValueConfig

from penstock.buckets import KeyValue
from penstock.connection import Connection
from penstock.errors import ConditionError, NotFoundError
from penstock.server import Server


@pytest.fixture
async def js(server: Server) -> AsyncIterator[Any]:
    """JetStream as nats-py has it."""
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


@pytest.fixture(params=["ours", "theirs"])
async def pair(request: Any, nc: Connection, js: Any, unique: Callable[..., str]) -> tuple[KeyValue, Any]:
    """One bucket, opened by both, made by one of them: the other could have made it as well."""
    name = unique("b")
    if request.param == "ours":
        ours = await KeyValue.create_bucket(nc, name, history=5, description="both", marker_ttl=1)
        return ours, await js.key_value(name)
    config = KeyValueConfig(name, history=5, description="both", limit_marker_ttl=1)
    theirs = await js.create_key_value(config)
    await KeyValue.create_bucket(nc, name, history=5, description="both", marker_ttl=1)  # no error: it is the same
    return await KeyValue.open(nc, name), theirs


async def test_values_and_conditions(pair: tuple[KeyValue, Any]):
    """Each sees the other's values, revisions and refusals."""
    ours, theirs = pair
    first = await ours.create("a.b", b"ours")
    entry = await theirs.get("a.b")
    assert (entry.value, entry.revision) == (b"ours", first)
    with pytest.raises(their.KeyWrongLastSequenceError):
        await theirs.create("a.b", b"theirs")
    second = await theirs.update("a.b", b"theirs", last=first)
    found = await ours.get("a.b")
    assert (found.value, found.revision, found.operation) == (b"theirs", second, "PUT")
    with pytest.raises(ConditionError):
        await ours.update("a.b", b"late", first)
    await theirs.delete("a.b", last=second)
    with pytest.raises(NotFoundError, match="was deleted"):
        await ours.get("a.b")
    await ours.create("a.b", b"again")
    assert (await theirs.get("a.b")).value == b"again"
    await ours.delete("a.b")
    with pytest.raises(their.KeyNotFoundError):
        await theirs.get("a.b")
    assert await theirs.create("a.b", b"once more") == (await ours.get("a.b")).revision
    status = await theirs.status()
    assert (status.history, status.values) == (5, (await ours.status()).values)


async def test_histories_and_keys(pair: tuple[KeyValue, Any]):
    """Both read the same history of a key, deletes and purges included, and the same keys."""
    ours, theirs = pair
    await ours.put("k", b"1")
    await theirs.put("k", b"2")
    await ours.delete("k")
    await theirs.put("k", b"3")
    history = await theirs.history("k")
    mine = await ours.history("k")
    assert [(one.value, one.revision, one.operation or "PUT") for one in history] == [
        (one.value, one.revision, one.operation) for one in mine
    ]
    await theirs.purge("k")
    assert [entry.operation for entry in await ours.history("k")] == ["PURGE"]
    await theirs.put("x.1", b"")
    await ours.put("x.2", b"")
    assert sorted(await theirs.keys()) == await ours.keys() == ["x.1", "x.2"]


async def test_watches(pair: tuple[KeyValue, Any]):
    """A watcher on either side sees what the other writes, in order, after the current state."""
    ours, theirs = pair
    await theirs.put("a", b"1")
    watcher = await theirs.watchall()
    begun = [await watcher.updates() for _ in range(2)]  # now and then its mark comes before what is there
    assert [entry.value for entry in begun if entry is not None] == [b"1"]
    async with ours.watch() as watch:
        assert [entry.value async for entry in watch.current()] == [b"1"]
        await ours.put("b", b"2")
        await theirs.put("c", b"3")
        await ours.delete("a")
        await theirs.purge("b")
        mine = [await anext(watch) for _ in range(4)]
        seen = [await watcher.updates() for _ in range(4)]
    assert [(one.key, one.operation, one.revision) for one in mine] == [
        (one.key, one.operation or "PUT", one.revision) for one in seen
    ]
    await watcher.stop()


async def test_times_to_live(pair: tuple[KeyValue, Any]):
    """A key that one side gave a time to live ends for both."""
    ours, theirs = pair
    async with ours.watch() as watch:
        await theirs.create("t", b"1", msg_ttl=1)
        await ours.create("o", b"1", ttl=1)
        found = [await anext(watch) for _ in range(4)]
    assert {(one.key, one.operation, one.reason) for one in found[2:]} == {
        ("t", "PURGE", "MaxAge"),
        ("o", "PURGE", "MaxAge"),
    }
    assert await ours.keys() == []
