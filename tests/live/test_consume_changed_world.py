"""Consuming while the world changes: consumers and streams made anew, restored, trimmed; letters and backups."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.connection.asking import api_request
from penstock.connection.requests import late
from penstock.errors import (
    DataLossError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream import DeadLetters, Deliveries, Delivery, Publisher, Reject, Worker, assets
from penstock.jetstream.snapshot import backup, restore
from penstock.model import Consumer, Stream, StreamSource, SubjectTransform
from penstock.server import Server
from tests.live.connecting import free_port
from tests.live.relay import Relay, relayed

Unique = Callable[..., str]
ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"


@pytest.fixture
def orders(nc: Connection, unique: Unique) -> Any:
    """Create a stream with these messages, and a consumer `c` of it; give the stream's name."""

    async def make(*messages: bytes, stream: dict[str, Any] | None = None, **fields: Any) -> str:
        name = unique("CON")
        await assets.add_stream(nc, Stream(**{"name": name, "subjects": [f"{name}.>"], **(stream or {})}))
        await publish(nc, name, *messages)
        await assets.add_consumer(nc, name, Consumer(**{"durable": "c", "ack_wait": 30.0, **fields}))
        return name

    return make


async def publish(nc: Connection, stream: str, *messages: bytes) -> None:
    for message in messages:
        await nc.jetstream().publish(f"{stream}.x", message)


async def until(check: Callable[[], Any], timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while not check():
            await asyncio.sleep(0.02)


async def letters(nc: Connection, stream: str) -> list[bytes]:
    return [letter.data async for letter in DeadLetters(nc, stream).letters()]


async def fail(delivery: Delivery) -> None:
    raise Reject("no good")


# -- consumers and streams that are made anew ------------------------------------------------------------------------


class Away:
    """A worker on a connection that can be cut off while things change."""

    def __init__(self, relay: Relay, client: Connection, stream: str) -> None:
        self.relay, self.client = relay, client
        self.handled: list[bytes] = []
        self.worker = Worker(client, stream, "c", self._handle, expires=1.0, heartbeat=0.2)
        self.task = asyncio.ensure_future(self.worker.run())

    async def _handle(self, delivery: Delivery) -> None:
        self.handled.append(delivery.data)

    def cut(self) -> None:
        self.relay.refusing = True
        self.relay.cut()

    async def come_back(self) -> None:
        self.relay.refusing = False
        await self.client.standing(20)


@pytest.fixture
async def away(server: Server) -> AsyncIterator[Callable[[str], Any]]:
    with relayed(server) as relay:
        client = await connect(relay.url(server), reconnect_wait=0.05)
        made: list[Away] = []

        def begin(stream: str) -> Away:
            made.append(Away(relay, client, stream))
            return made[-1]

        yield begin
        for item in made:
            item.worker.stop()
            with suppress(PenstockError):
                await item.task
        await client.close()


async def test_a_store_from_an_older_copy(tmp_path: Path):
    """A server that comes back with an older store has other messages under old sequences: a worker handles them,
    and a publisher is told that acknowledged ones are gone."""
    store, copy, handled = tmp_path / "store", tmp_path / "copy", []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.data)

    with Server(store=store, port=free_port()) as server:
        async with await connect(server.url, reconnect_wait=0.05) as nc:
            await assets.add_stream(nc, Stream(name="S", subjects=["S.>"]))
            await assets.add_consumer(nc, "S", Consumer(durable="c"))
            worker = Worker(nc, "S", "c", handle, heartbeat=0.2, expires=1.0)
            task = asyncio.ensure_future(worker.run())
            async with Publisher(nc, "S") as publisher:
                await publisher.publish("S.x", b"a")
                await until(lambda: worker.counts.handled == 1)
                await asyncio.to_thread(shutil.copytree, store, copy)
                await publisher.publish("S.x", b"lost")
                await until(lambda: worker.counts.handled == 2)
                await asyncio.to_thread(server.nodes[0].kill)
                await asyncio.to_thread(shutil.rmtree, store)
                await asyncio.to_thread(shutil.copytree, copy, store)
                await asyncio.to_thread(server.nodes[0].start)
                with pytest.raises(DataLossError, match=r"up to 2, and stored the next one as 2: .* older copy"):
                    await publisher.publish("S.x", b"new")
            await until(lambda: b"new" in handled)
            worker.stop()
            await task
    assert handled == [b"a", b"lost", b"new"]


@pytest.mark.parametrize("how", ["made", "restored"])
async def test_a_consumer_that_was_made_anew_is_told(nc: Connection, orders: Any, away: Any, tmp_path: Path, how: str):
    """Behind our back another consumer of the same name knows nothing of what was acknowledged: reading ends."""
    stream = await orders(b"a", b"b")
    worker = away(stream)
    await until(lambda: worker.worker.counts.handled == 2)
    await backup(nc, stream, tmp_path / "backup")
    worker.cut()
    if how == "made":
        await assets.delete_consumer(nc, stream, "c")
        await assets.add_consumer(nc, stream, Consumer(durable="c"))
    else:
        await assets.delete_stream(nc, stream)
        await restore(nc, tmp_path / "backup")
    await worker.come_back()
    with pytest.raises(NotFoundError, match=r"c of .* was deleted, and another one of that name made"):
        await worker.task
    assert worker.handled == [b"a", b"b"]


class Leaderless:
    """A connection on which nobody answers for a stream for a while, as where its leader is being chosen."""

    def __init__(self, client: Connection, seconds: float) -> None:
        self._client, self._until = client, asyncio.get_running_loop().time() + seconds
        self.unanswered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 5.0, **about: Any) -> Any:
        if ".STREAM.INFO." in subject and asyncio.get_running_loop().time() < self._until:
            self.unanswered += 1
            await asyncio.sleep(timeout)
            raise late(subject, timeout)
        return await self._client.request(subject, payload, timeout, **about)


@pytest.mark.parametrize("dead_letters", [None, "letters"])
async def test_a_worker_starts_while_a_leader_is_chosen(
    server: Server, orders: Any, unique: Unique, dead_letters: str | None
):
    """A worker that begins where a consumer left off sits out that nobody answers for the stream at that moment."""
    stream = await orders(b"1", b"2")
    async with await connect(server.url, request_timeout=0.2) as client:
        async with Deliveries(client, stream, "c", limit=1) as deliveries:
            await (await anext(deliveries)).ack()
        leaderless, handled = Leaderless(client, 0.7), list[bytes]()

        async def handle(delivery: Delivery) -> None:
            handled.append(delivery.data)

        letters = unique("DEAD") if dead_letters else None
        await Worker(leaderless, stream, "c", handle, limit=1, dead_letters=letters).run()  # type: ignore[arg-type]
    assert handled == [b"2"]
    assert leaderless.unanswered > 1


async def test_what_is_removed_while_it_is_handled(nc: Connection, orders: Any):
    """A message that is purged under a handler is handled and done; one that fails is kept whole, as a letter."""
    stream = await orders(b"good", b"bad", max_deliver=1)

    async def handle(delivery: Delivery) -> None:
        if delivery.data == b"good":
            assert await assets.purge_stream(nc, stream) == 2
        else:
            raise ValueError("bad")

    counts = await Worker(nc, stream, "c", handle, dead_letters=f"{stream}-DEAD", limit=2).run()
    assert (counts.handled, counts.dead) == (1, 1)
    assert await letters(nc, stream) == [b"bad"]


async def test_what_limits_took_while_no_worker_was_there_is_told(
    nc: Connection, orders: Any, caplog: pytest.LogCaptureFixture
):
    """Messages that were never delivered, and are gone when the next worker starts, are counted and named."""
    stream = await orders(b"1", b"2", stream={"max_msgs": 5})

    async def handle(delivery: Delivery) -> None:
        pass

    assert (await Worker(nc, stream, "c", handle, limit=2).run()).missed == 0
    await publish(nc, stream, *(b"%d" % number for number in range(20)))
    counts = await Worker(nc, stream, "c", handle, limit=5).run()
    assert (counts.handled, counts.missed) == (5, 15)
    assert f"15 messages of {stream}, [3, 18), are gone" in caplog.text


async def test_a_consumer_that_is_set_back_is_handled_again(nc: Connection, orders: Any, caplog: Any):
    """Whoever resets a consumer wants its messages once more: a worker that remembers them does not skip them."""
    stream, got, twice = await orders(b"1", b"2"), [], asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        got.append(delivery.sequence)
        if len(got) == 4:
            twice.set()

    worker = Worker(nc, stream, "c", handle)
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(30):
        while worker.counts.handled < 2:
            await asyncio.sleep(0.01)
        await api_request(nc, f"CONSUMER.RESET.{stream}.c", {"seq": 1})
        await twice.wait()
        worker.stop()
        counts = await task
    assert (sorted(got), counts.repeats) == ([1, 1, 2, 2], 0)
    assert "was set back" in caplog.text


async def test_messages_that_are_given_up_are_counted(nc: Connection, orders: Any):
    """Without dead letters, what was refused or failed for the last time is counted, so that nobody must read logs."""
    stream = await orders(b"refused", b"failed", max_deliver=1)

    async def handle(delivery: Delivery) -> None:
        raise Reject("never") if delivery.data == b"refused" else ValueError("not now")

    counts = await Worker(nc, stream, "c", handle, limit=2).run()
    assert (counts.handled, counts.dead, counts.given_up) == (0, 0, 2)


async def test_what_is_given_back_unread_with_its_last_delivery(nc: Connection, orders: Any):
    """Each delivery counts: messages that a worker fetched and never handled are counted if they never come again."""
    stream = await orders(*(b"%d" % number for number in range(5)), max_deliver=1)
    started, go = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        started.set()
        await go.wait()

    worker = Worker(nc, stream, "c", handle)
    task = asyncio.ensure_future(worker.run())
    await started.wait()
    await until(lambda: len(worker._deliveries._queue) == 4)
    worker.stop()
    go.set()
    counts = await task
    assert (counts.handled, counts.given_up) == (1, 4)


async def test_a_message_that_runs_out_of_deliveries_is_told(
    nc: Connection, orders: Any, caplog: pytest.LogCaptureFixture
):
    """A client that dies with the last delivery is heard of by the worker that is left, also without dead letters."""
    stream = await orders(b"dies", max_deliver=1, ack_wait=0.2)
    async with Deliveries(nc, stream, "c", limit=1, keep_alive=False) as deliveries:
        await anext(deliveries)  # and never answered for
        worker = Worker(nc, stream, "c", fail)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: f"Message 1 of {stream} was delivered 1 times and is given up" in caplog.text)
        worker.stop()
        await task


async def test_the_next_of_a_consumer_that_is_gone_is_told(nc: Connection, orders: Any):
    """Asking for the next message with an ack tells a consumer that has none now from one that was deleted."""
    stream = await orders(b"a", b"b")
    async with Deliveries(nc, stream, "c", batch=1, limit=1) as deliveries:
        last = await (await anext(deliveries)).ack_next()
        assert last is not None
        asking = asyncio.ensure_future(last.ack_next(wait=20))
        async with asyncio.timeout(20):
            while (await assets.consumer_info(nc, stream, "c")).waiting < 1:
                await asyncio.sleep(0.02)
        await assets.delete_consumer(nc, stream, "c")
        with pytest.raises(NotFoundError, match="was deleted"):
            await asking


# -- dead letters ----------------------------------------------------------------------------------------------------


@pytest.fixture
def advised() -> Any:
    """A server of its own: a stream that archives advisories is there for all."""
    with Server(sync="2m") as running:
        yield running


async def test_dead_letters_beside_an_archive_of_advisories(advised: Server):
    """Where a stream archives advisories, dead letters are copied from it; a client that dies loses nothing."""
    async with await connect(advised.url) as nc:
        await assets.add_stream(nc, Stream(name="ARCHIVE", subjects=["$JS.EVENT.ADVISORY.>"]))
        await assets.add_stream(nc, Stream(name="S", subjects=["S.>"]))
        await assets.add_consumer(nc, "S", Consumer(durable="c", max_deliver=1, ack_wait=0.3))
        await publish(nc, "S", b"refused", b"dies")
        dead = DeadLetters(nc, "S")
        await dead.ensure()
        await dead.ensure()  # it is there now, and right
        async with Deliveries(nc, "S", "c", limit=2, keep_alive=False) as deliveries:
            first = await anext(deliveries)
            await dead.put(first, "no good")
            await first.term(sync=True)
            await anext(deliveries)  # and never answered for
            worker = Worker(nc, "S", "c", fail, dead_letters="S-DEAD", wait=20)
            task = asyncio.ensure_future(worker.run())
            async with asyncio.timeout(20):
                while await letters(nc, "S") != [b"refused", b"dies"]:
                    await asyncio.sleep(0.05)
            worker.stop()
            await task
        # An archive that goes is told: nobody would hear of the next one that dies.
        await assets.delete_stream(nc, "ARCHIVE")
        with pytest.raises(NotFoundError, match="no stream ARCHIVE"):
            await dead.ensure()


async def test_advisories_that_cannot_be_had_name_the_stream(advised: Server):
    """A stream that has advisories in a way that they cannot be copied from is named, with what to do."""
    async with await connect(advised.url) as nc:
        await assets.add_stream(nc, Stream(name="S", subjects=["S.>"]))
        every = {"subjects": ["$JS.EVENT.ADVISORY.>"]}
        for fields in (
            {"subjects": [f"{ADVISORIES}.S.one"]},
            {**every, "retention": "workqueue"},
            {**every, "subject_transform": SubjectTransform(src="$JS.EVENT.ADVISORY.>", dest="advised.>")},
        ):
            await assets.add_stream(nc, Stream(name="TAKEN", **fields))
            with pytest.raises(InputError, match=r"need the advisories on .*, which go to stream TAKEN \("):
                await DeadLetters(nc, "S").ensure()
            await assets.delete_stream(nc, "TAKEN")
        await assets.add_stream(nc, Stream(name="TAKEN", subjects=["PENSTOCK.>"]))
        with pytest.raises(JetStreamError, match=r"TAKEN captures PENSTOCK\.DEAD\.S\.>"):
            await DeadLetters(nc, "S").ensure()


async def test_letters_that_cannot_be_kept_end_the_worker(nc: Connection, orders: Any):
    """A dead-letter stream that takes no more is an error of the worker, not a line in a log for each message."""
    stream = await orders(b"one", b"two", b"three")
    await DeadLetters(nc, stream).ensure()
    made = (await assets.stream_info(nc, f"{stream}-DEAD")).config
    await assets.edit_stream(nc, made.model_copy(update={"max_msgs": 1, "discard": "new"}))
    with pytest.raises(JetStreamError, match="maximum messages exceeded"):
        await Worker(nc, stream, "c", fail, dead_letters=f"{stream}-DEAD").run()
    assert await letters(nc, stream) == [b"one"]


async def test_a_letter_of_a_chained_message_goes_back(nc: Connection, orders: Any):
    """What a message said of its order, in its time, does not keep it from being put back."""
    stream = await orders()
    async with Publisher(nc, stream, order="chained") as publisher:
        for message in (b"a", b"b", b"c"):
            await publisher.send(f"{stream}.x", message)
    assert "Nats-Expected-Last-Msg-Id" in (await assets.get_message(nc, stream, 2)).headers
    await Worker(nc, stream, "c", fail, dead_letters=f"{stream}-DEAD", limit=3).run()
    dead = DeadLetters(nc, stream)
    assert [await dead.redeliver(letter) for letter in [letter async for letter in dead.letters()]] == [4, 5, 6]


async def test_a_letter_is_not_taken_for_that_of_another_message(nc: Connection, orders: Any):
    """A stream that is made anew counts from 1 again: a message is kept though a letter of that number is there."""
    stream = await orders(b"old")
    await Worker(nc, stream, "c", fail, dead_letters=f"{stream}-DEAD", limit=1).run()
    await assets.delete_stream(nc, stream)
    await assets.add_stream(nc, Stream(name=stream, subjects=[f"{stream}.>"]))
    await assets.add_consumer(nc, stream, Consumer(durable="c"))
    await publish(nc, stream, b"new")
    counts = await Worker(nc, stream, "c", fail, dead_letters=f"{stream}-DEAD", limit=1).run()
    assert counts.dead == 1
    assert await letters(nc, stream) == [b"old", b"new"]
    assert [letter.sequence async for letter in DeadLetters(nc, stream).letters("c")] == [1, 1]


async def test_a_letter_is_put_back_once_for_each_death(nc: Connection, orders: Any):
    """A dead-letter stream that is made anew counts from 1 again: what is put back is not taken for a repeat."""
    stream = await orders(b"one", b"two", max_deliver=-1)
    for _ in range(2):
        await Worker(nc, stream, "c", fail, dead_letters=f"{stream}-DEAD", limit=1).run()
        dead = DeadLetters(nc, stream)
        for letter in [letter async for letter in dead.letters()]:
            await dead.redeliver(letter)
        await assets.delete_stream(nc, dead.dead)
    info = await assets.stream_info(nc, stream)
    found = [(await assets.get_message(nc, stream, number)).data for number in range(1, info.last_sequence + 1)]
    assert found == [b"one", b"two", b"one", b"two"]


async def test_a_letter_of_a_mirror_goes_back_to_its_origin(nc: Connection, orders: Any, unique: Unique):
    """What died behind a mirror is put back where it came from, once, and comes to the mirror as everything does."""
    origin, mirror = await orders(b"bad"), unique("MIRROR")
    await assets.add_stream(nc, Stream(name=mirror, mirror=StreamSource(name=origin)))
    await assets.add_consumer(nc, mirror, Consumer(durable="c"))
    await Worker(nc, mirror, "c", fail, dead_letters=f"{mirror}-DEAD", limit=1).run()
    dead = DeadLetters(nc, mirror)
    for letter in [letter async for letter in dead.letters()]:
        assert await dead.redeliver(letter) == 2
    assert await letters(nc, mirror) == []
    counts = await Worker(nc, mirror, "c", fail, dead_letters=f"{mirror}-DEAD", limit=1).run()
    assert (counts.dead, await letters(nc, mirror)) == (1, [b"bad"])


# -- backups ---------------------------------------------------------------------------------------------------------


async def backed_up(nc: Connection, stream: str, folder: Path, size: int = 1000) -> dict[str, Any]:
    await publish(nc, stream, *(os.urandom(size) for _ in range(200)))  # nothing that could be compressed
    return await backup(nc, stream, folder)


async def test_a_backup_that_is_cut_short_is_not_restored(nc: Connection, orders: Any, tmp_path: Path):
    """A file that lost its end, or a middle part, is refused by the server, and nothing is left of the attempt."""
    stream = await orders()
    await backed_up(nc, stream, tmp_path / "b")
    await assets.delete_stream(nc, stream)
    data = tmp_path / "b" / "stream.arc.s2"
    whole = data.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:1000] + whole[2000:], b""):
        data.write_bytes(broken)
        with pytest.raises((JetStreamError, DataLossError)):
            await restore(nc, tmp_path / "b")
        with suppress(NotFoundError):
            await assets.delete_stream(nc, stream)
    data.write_bytes(whole)
    assert (await restore(nc, tmp_path / "b")).messages == 200
    with pytest.raises(JetStreamError, match="already in use"):
        await restore(nc, tmp_path / "b")
    assert (await assets.stream_info(nc, stream)).messages == 200


async def test_a_restore_that_brings_less_is_told(nc: Connection, orders: Any, tmp_path: Path):
    """A stream that holds less than its backup says is an error that names both."""
    stream = await orders()
    await backed_up(nc, stream, tmp_path / "b")
    await assets.delete_stream(nc, stream)
    meta = json.loads((tmp_path / "b" / "backup.json").read_text())
    meta["state"]["messages"], meta["state"]["last_seq"] = 300, 300
    (tmp_path / "b" / "backup.json").write_text(json.dumps(meta))
    with pytest.raises(DataLossError, match="holds 300 messages up to 300, and the restored stream 200") as caught:
        await restore(nc, tmp_path / "b")
    assert (caught.value.stream, caught.value.end, caught.value.last) == (stream, 301, 200)


async def test_a_backup_with_a_hole_is_not_kept(nc: Connection, server: Server, orders: Any, tmp_path: Path):
    """A chunk that is lost on the way, or a connection that breaks meanwhile, ends the backup; nothing is left."""
    stream = await orders()
    await backed_up(nc, stream, tmp_path / "whole", size=10_000)

    class Holed:
        """A connection that loses one chunk of a backup."""

        def __init__(self) -> None:
            self.seen = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(nc, name)

        async def subscribe(self, *about: Any, **more: Any) -> Any:
            made = await nc.subscribe(*about, **more)
            plain = made.next_msg

            async def next_msg(*given: Any) -> Any:
                self.seen += 1
                return await plain(*given) if self.seen != 3 else (await plain(*given), await plain(*given))[1]

            class Lossy:
                def __getattr__(self, name: str) -> Any:
                    return next_msg if name == "next_msg" else getattr(made, name)

            return Lossy()

    with pytest.raises(RemoteProtocolError, match="Chunk 3 of the backup"):
        await backup(Holed(), stream, tmp_path / "holed")  # type: ignore[arg-type]
    assert not (tmp_path / "holed").exists()
    await publish(nc, stream, *(os.urandom(900_000) for _ in range(8)))  # more than the server sends ahead of our acks
    with relayed(server) as relay:
        async with await connect(relay.url(server), reconnect_wait=0.05) as shaky:
            begun = False

            def progress(_: int) -> None:
                nonlocal begun
                if not begun:
                    begun = True
                    relay.cut()

            with pytest.raises((DisconnectedError, JetStreamError, RemoteProtocolError)):
                await backup(shaky, stream, tmp_path / "cut", progress=progress)
    assert not (tmp_path / "cut").exists()
