"""Moving channels over when something goes wrong on the way: broken off, killed, lost messages, gaps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from penstock.channels.limits import ChannelLimits
from penstock.channels.migrate import RunningServer, copy_channel, verify_channel
from penstock.channels.store import Store
from penstock.channels.subscription import Subscription
from penstock.connection import api_request
from penstock.errors import DataLossError, DisconnectedError
from tests.channels_sets import new_messages
from tests.live.command import Command, environment
from tests.live.inprocess import invoke
from tests.live.stan import cluster_of


@pytest.fixture
async def stan(stan):
    await stan.serve()
    return stan


@pytest.fixture
async def target(server, unique):
    async with cluster_of(server.url, unique("t")) as made:
        yield made


@pytest.fixture
async def store(target):
    return Store(await target.connection(), target.cluster, prefix=f"{target.cluster}.")


async def fill(stan, count: int, gaps: tuple[int, ...] = ()):
    """Publish messages, delete some, and give the client."""
    client = await stan.client("me")
    await asyncio.gather(*[await client.publish_async("foo", b"%d" % number) for number in range(1, count + 1)])
    connection = await stan.connection()
    for sequence in gaps:
        await api_request(connection, f"STREAM.MSG.DELETE.{stan.stream('foo')}", {"seq": sequence})
    if gaps:
        stan.gateways[0].service.channels["foo"].recent.drop_before(1 << 62)
    return client


def ignore(step: int) -> None:
    pass


async def test_a_copy_that_broke_off_goes_on(stan, store):
    """What was copied before a break is not copied again, and the whole is the same as the source."""
    client = await fill(stan, 2500)
    ends = await RunningServer(client).ends("foo")
    steps: list[int] = []

    def once(step: int) -> None:
        steps.append(step)
        if sum(steps) >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy_channel(RunningServer(client), store, "foo", ends, once)
    reached = (await store.describe("foo"))["state"]["last_seq"]
    assert 1000 <= reached < 2500
    copied = await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    assert (copied.first, copied.end, copied.copied) == (1, 2501, 2500 - reached)
    assert await verify_channel(RunningServer(client), store, "foo", ends, ignore) == 2500


async def test_a_break_in_a_gap(stan, store, monkeypatch):
    """Places that were to stay empty, and were filled when the copy broke off, are emptied by the next run."""
    client = await fill(stan, 10, gaps=(4, 5, 6))
    ends = await RunningServer(client).ends("foo")

    async def broken(*_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_remove", broken)
        with pytest.raises(KeyboardInterrupt):
            await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    assert (await store.describe("foo"))["state"]["messages"] == 6
    copied = await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    assert (copied.end, copied.copied) == (11, 4)
    assert await verify_channel(RunningServer(client), store, "foo", ends, ignore) == 7
    assert (await store.describe("foo"))["state"]["messages"] == 7


async def test_a_message_too_many_is_found(stan, store):
    """A copy that has a message where the source has none is not the same."""
    client = await fill(stan, 10, gaps=(4, 5))
    ends = await RunningServer(client).ends("foo")
    stream = await store.create("foo", ChannelLimits())
    await store.append(stream, new_messages(*(b"%d" % number for number in range(1, 11)), first_origin=1))
    with pytest.raises(DataLossError, match="differs"):
        await verify_channel(RunningServer(client), store, "foo", ends, ignore)
    await api_request(store.connection, f"STREAM.DELETE.{stream.name}")
    await copy_channel(RunningServer(client), store, "foo", (1, 3), ignore)
    stream = await store.open("foo", await store.describe("foo"), ChannelLimits())
    await store.append(stream, new_messages(b"4", first_origin=4))
    await store.skip(stream, 5)
    await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    with pytest.raises(DataLossError, match=r"Message 4 of foo is in .* and not at the source"):
        await verify_channel(RunningServer(client), store, "foo", ends, ignore)


async def test_messages_lost_on_the_way_stop_the_copy(stan, store, monkeypatch):
    """A message that does not arrive is not taken for one that the source has lost: the copy stops, and goes on."""
    client = await fill(stan, 10)
    ends = await RunningServer(client).ends("foo")
    receive = Subscription._receive

    def lossy(self, subject, reply, data, header) -> None:
        if data[:2] != b"\x08\x05":
            receive(self, subject, reply, data, header)

    with monkeypatch.context() as patch:
        patch.setattr(Subscription, "_receive", lossy)
        patch.setattr("penstock.channels.migrate._SILENCE", 0.2)
        with pytest.raises(DisconnectedError, match="after 4 were lost on the way"):
            await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    copied = await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    assert copied.end == 11
    assert await verify_channel(RunningServer(client), store, "foo", ends, ignore) == 10


async def test_a_source_that_drops_messages_meanwhile(stan, store):
    """Where the source drops the rest of what was to be copied, the copy ends there and does not wait."""
    client = await fill(stan, 10)
    ends = await RunningServer(client).ends("foo")
    connection = await stan.connection()
    await api_request(connection, f"STREAM.PURGE.{stan.stream('foo')}", {"seq": 10})
    await client.publish("foo", b"11")
    await api_request(connection, f"STREAM.PURGE.{stan.stream('foo')}", {"seq": 11})
    channel = stan.gateways[0].service.channels["foo"]
    channel.recent.drop_before(1 << 62)
    await stan.gateways[0].service.store.refresh(channel.stream)
    copied = await copy_channel(RunningServer(client), store, "foo", ends, ignore)
    assert copied.copied == 0


async def test_a_killed_migrate_goes_on(stan, target, server, tmp_path):
    """kill -9 in the middle of a copy: the same command again copies the rest, and compares everything."""
    total = 12_000
    await fill(stan, total)
    command = Command(tmp_path, server.url)
    arguments = (
        *("channels", "migrate", "foo", "--from", server.url, "--from-cluster", stan.cluster),
        *("--cluster-id", target.cluster, "--subject-prefix", f"{target.cluster}.", "--json"),
    )
    connection = await target.connection()

    async def reached() -> int:
        names = (await api_request(connection, "STREAM.NAMES")).get("streams") or []
        if target.stream("foo") not in names:
            return 0
        return (await api_request(connection, f"STREAM.INFO.{target.stream('foo')}"))["state"]["last_seq"]

    with command.running(*arguments) as running:
        async with asyncio.timeout(60):
            while not await reached():
                await asyncio.sleep(0.005)
        running.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(running.process.wait, 10)
    before = await reached()
    assert 0 < before < total
    done = await asyncio.to_thread(invoke, server.url, *arguments)
    assert done.status == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert (row["end"], row["copied"], row["verified"]) == (total + 1, total - before, total)


async def test_migrate_shows_a_bar(stan, target, server, tmp_path):
    """On a terminal the command shows how far the copy and the comparison are."""
    await fill(stan, 100)
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "channels", "migrate", "foo", "--from", server.url),
            *("--from-cluster", stan.cluster, "--cluster-id", target.cluster),
            *("--subject-prefix", f"{target.cluster}."),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=theirs,
            env=environment(tmp_path, NATS_URL=server.url, TERM="xterm"),
        )
        os.close(theirs)
        seen = await asyncio.to_thread(_read_all, ours)
        assert await process.wait() == 0
    finally:
        os.close(ours)
    assert "copy foo" in seen
    assert "verify foo" in seen
    assert "100/100" in seen


def _read_all(descriptor: int) -> str:
    seen = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how Linux says that the other side was closed
            return seen.decode()
        if not part:
            return seen.decode()
        seen += part
