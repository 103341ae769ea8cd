"""Consuming against the real server: every ack, heartbeats, recovery, workers, dead letters and samples."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.connection import Connection, api_request, connect
from penstock.errors import DeadlineError, DisconnectedError, InputError, NotFoundError, RemoteProtocolError
from penstock.jetstream import (
    AckSample,
    Advisory,
    DeadLetters,
    Deliveries,
    Delivery,
    Publisher,
    Reject,
    Samples,
    Worker,
    assets,
)
from penstock.jetstream.ordered import OrderedRead
from penstock.model import Consumer, Stream
from penstock.server import Server
from penstock.wire.jetstream import names


@pytest.fixture
def orders(nc: Connection, unique: Any) -> Any:
    """Create a stream with so many orders, and a consumer `c` of it; give the stream's name."""

    async def make(count: int = 3, **fields: Any) -> str:
        name = unique("CON")
        await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
        async with Publisher(nc, name) as publisher:
            for number in range(1, count + 1):
                await publisher.send(f"{name}.x", f"order {number}".encode(), id=str(number))
        await assets.add_consumer(nc, name, Consumer(**{"durable": "c", "ack_wait": 30.0, **fields}))
        return name

    return make


async def one(nc: Connection, stream: str, **options: Any) -> Delivery:
    async with Deliveries(nc, stream, "c", limit=1, wait=10, **options) as deliveries:
        return await anext(deliveries)


async def until(check: Any, timeout: float = 20.0) -> Any:
    async with asyncio.timeout(timeout):
        while not (found := await check()):
            await asyncio.sleep(0.02)
        return found


def status(nc: Connection, stream: str, **wanted: int) -> Any:
    """A check that the consumer's figures are these."""

    async def look() -> bool:
        info = await assets.consumer_info(nc, stream, "c")
        return all(getattr(info, name) == value for name, value in wanted.items())

    return look


# -- every ack -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
async def test_ack(nc: Connection, orders: Any, sync: bool):
    """An ack ends a delivery; a double ack has ended it when it returns."""
    stream = await orders(1)
    delivery = await one(nc, stream)
    assert (delivery.data, delivery.id, delivery.sequence, delivery.delivered) == (b"order 1", "1", 1, 1)
    if sync:
        await delivery.ack_sync()
        info = await assets.consumer_info(nc, stream, "c")
        assert (info.ack_pending, info.ack_floor.stream) == (0, 1)
    else:
        await delivery.ack()
        await until(status(nc, stream, ack_pending=0))
    with pytest.raises(InputError, match="was answered already"):
        await delivery.nak()


@pytest.mark.parametrize("sync", [False, True])
async def test_nak(nc: Connection, orders: Any, sync: bool):
    """A nak brings the message again, at once."""
    stream = await orders(1)
    await (await one(nc, stream)).nak(sync=sync)
    again = await one(nc, stream)
    assert (again.data, again.delivered) == (b"order 1", 2)


async def test_nak_with_a_delay(nc: Connection, orders: Any):
    """A nak with a delay brings the message again after it, and others before it."""
    stream = await orders(2)
    await (await one(nc, stream)).nak("600ms")
    async with Deliveries(nc, stream, "c", limit=2, wait=10) as deliveries:
        order = []
        async for delivery in deliveries:
            order.append((delivery.sequence, delivery.delivered))
            await delivery.ack()
    assert order == [(2, 1), (1, 2)]


@pytest.mark.parametrize("sync", [False, True])
async def test_in_progress(nc: Connection, orders: Any, sync: bool):
    """Progress starts the ack wait anew: the message does not come again while it is sent."""
    stream = await orders(1, ack_wait=0.6)
    delivery = await one(nc, stream)
    for _ in range(6):
        await asyncio.sleep(0.2)
        await delivery.in_progress(sync=sync)
    info = await assets.consumer_info(nc, stream, "c")
    assert (info.ack_pending, info.redelivered) == (1, 0)
    await delivery.ack_sync()


@pytest.mark.parametrize("sync", [False, True])
async def test_term(nc: Connection, orders: Any, sync: bool):
    """A terminated message never comes again, and the advisory tells why."""
    stream = await orders(1, ack_wait=0.3)
    async with Samples(nc, stream) as events:
        await (await one(nc, stream)).term("cannot  be\nread", sync=sync)
        event = await asyncio.wait_for(anext(events), 10)
    assert isinstance(event, Advisory)
    assert (event.kind, event.facts["reason"], event.facts["stream_seq"]) == ("terminated", "cannot be read", 1)
    await until(status(nc, stream, ack_pending=0))
    async with Deliveries(nc, stream, "c", wait=0.6) as deliveries:
        assert [delivery async for delivery in deliveries] == []


async def test_ack_next(nc: Connection, orders: Any):
    """+NXT acknowledges, and brings the next message; at the end there is none."""
    stream = await orders(2)
    first = await one(nc, stream)
    second = await first.ack_next()
    assert second is not None
    assert second.data == b"order 2"
    assert await second.ack_next(wait=0.2) is None
    await until(status(nc, stream, ack_pending=0))


async def test_ack_next_brings_several(nc: Connection, orders: Any):
    """+NXT asks for many at once, or only for what is there; a nonsense wish is refused before the ack."""
    stream = await orders(6)
    first = await one(nc, stream)
    with pytest.raises(InputError):
        await first.ack_next_batch(0)
    batch = await first.ack_next_batch(3)
    assert [delivery.sequence for delivery in batch] == [2, 3, 4]
    rest = await batch[-1].ack_next_batch(10, no_wait=True)
    assert [delivery.sequence for delivery in rest] == [5, 6]
    assert await rest[-1].ack_next(no_wait=True) is None
    await until(status(nc, stream, ack_pending=3))


async def test_a_double_ack_that_nobody_confirms_is_an_error(nc: Connection, orders: Any):
    """Where the consumer is gone, a double ack says so in time."""
    stream = await orders(1)
    delivery = await one(nc, stream)
    await assets.delete_consumer(nc, stream, "c")
    with pytest.raises(DeadlineError, match=r"did not confirm \+ACK for message 1"):
        await delivery.ack_sync(timeout=0.5)


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_all_messages_come_once_and_in_order(nc: Connection, orders: Any):
    """Pulling in small batches gives every message once, in order, with no more held than a batch."""
    stream = await orders(500)
    seen = []
    async with Deliveries(nc, stream, "c", batch=20, limit=500) as deliveries:
        async for delivery in deliveries:
            seen.append(delivery.sequence)
            assert len(deliveries._queue) <= 20
            await delivery.ack()
    assert seen == list(range(1, 501))
    await until(status(nc, stream, ack_pending=0, pending=0))


async def test_taking_some(nc: Connection, orders: Any):
    """take gives what is there, and fewer when the wait is over."""
    stream = await orders(3)
    async with Deliveries(nc, stream, "c") as deliveries:
        assert len(await deliveries.take(2)) == 2
        assert [delivery.sequence for delivery in await deliveries.take(5, wait="300ms")] == [3]


async def test_taking_no_more_than_the_limit(nc: Connection, orders: Any):
    """take gives fewer when the limit is reached."""
    stream = await orders(3)
    async with Deliveries(nc, stream, "c", limit=2) as deliveries:
        assert [delivery.sequence for delivery in await deliveries.take(5)] == [1, 2]
        assert await deliveries.take(1) == []


async def test_what_is_not_read_is_given_back(nc: Connection, orders: Any):
    """Leaving gives back what was fetched and not read: another reader has it at once."""
    stream = await orders(10)
    async with Deliveries(nc, stream, "c", batch=10) as deliveries:
        await (await anext(deliveries)).ack()
        await until(status(nc, stream, pending=0))
    async with Deliveries(nc, stream, "c", limit=9, wait=10) as deliveries:
        assert sorted([delivery.sequence async for delivery in deliveries]) == list(range(2, 11))


async def test_a_cancelled_read_loses_nothing(nc: Connection, orders: Any):
    """A read that is cancelled takes no message with it."""
    stream = await orders(0)
    async with Deliveries(nc, stream, "c") as deliveries:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(deliveries)
        await nc.publish(f"{stream}.x", b"late")
        assert (await asyncio.wait_for(anext(deliveries), 10)).data == b"late"


async def test_held_messages_are_kept_alive(nc: Connection, orders: Any):
    """What waits unread, and what is being worked on, does not come again while it is held."""
    stream = await orders(5, ack_wait=2.0)
    async with Deliveries(nc, stream, "c", limit=5) as deliveries:
        async for delivery in deliveries:
            if delivery.sequence == 1:
                await asyncio.sleep(4.0)
            assert delivery.delivered == 1
            await delivery.ack_sync()
    info = await assets.consumer_info(nc, stream, "c")
    assert (info.delivered.consumer, info.ack_pending) == (5, 0)


async def test_bytes_of_a_pull_are_bounded(nc: Connection, orders: Any):
    """max_bytes bounds what one pull brings; a message that can never fit is an error, not silence."""
    stream = await orders(20)
    async with Deliveries(nc, stream, "c", batch=20, max_bytes=400, limit=20) as deliveries:
        assert len([await delivery.ack() async for delivery in deliveries]) == 20
    await nc.publish(f"{stream}.x", b"x" * 1000)
    async with Deliveries(nc, stream, "c", max_bytes=400) as deliveries:
        with pytest.raises(InputError, match="larger than max_bytes"):
            await asyncio.wait_for(anext(deliveries), 10)


async def test_bytes_of_a_pull_that_are_used_up(nc: Connection, orders: Any):
    """A pull whose bytes are used up to the last one ends without a word of the server: the next one is asked for."""
    stream = await orders(8)
    first = await one(nc, stream)
    size = len(first.subject) + len(first.reply) + len(first.data) + len(first.header_block or b"")
    await first.nak(sync=True)
    async with Deliveries(nc, stream, "c", batch=8, max_bytes=2 * size, limit=8, wait=5) as deliveries:
        assert sorted([delivery.sequence async for delivery in deliveries]) == list(range(1, 9))


async def test_what_cannot_be_read(nc: Connection, orders: Any):
    """No such consumer, a push consumer, impossible options: one sentence each."""
    stream = await orders(1)
    await assets.add_consumer(nc, stream, Consumer(durable="push", deliver_subject=f"{stream}_out"))
    for consumer, says in (("nobody", "There is no consumer nobody"), ("push", "is a push consumer")):
        with pytest.raises((NotFoundError, InputError), match=says):
            async with Deliveries(nc, stream, consumer):
                pass
    with pytest.raises(NotFoundError, match="There is no stream NOWHERE"):
        async with Deliveries(nc, "NOWHERE", "c"):
            pass
    for options in ({"batch": 0}, {"heartbeat": 20}, {"heartbeat": 0.01}, {"limit": 0}, {"expires": "soon"}):
        with pytest.raises(InputError):
            Deliveries(nc, stream, "c", **options)
    with pytest.raises(InputError, match="cannot be the name"):
        Deliveries(nc, "a.b", "c")


async def test_a_paused_consumer_waits(nc: Connection, orders: Any):
    """A paused consumer delivers nothing, keeps its heartbeat, and goes on when it is resumed."""
    stream = await orders(1)
    answer = await assets.pause_consumer(nc, stream, "c", datetime.now(UTC) + timedelta(hours=1))
    assert answer["paused"]
    async with Deliveries(nc, stream, "c", heartbeat=0.2) as deliveries:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(deliveries), 1.2)
        await assets.pause_consumer(nc, stream, "c", None)
        assert (await asyncio.wait_for(anext(deliveries), 10)).sequence == 1


async def test_priority_groups(nc: Connection, orders: Any):
    """Of a pinned group one reader gets everything; another takes over when the pin is taken away."""
    stream = await orders(6, priority_policy="pinned_client", priority_groups=["g"])
    async with (
        Deliveries(nc, stream, "c", group="g", batch=1) as one_reader,
        Deliveries(nc, stream, "c", group="g", batch=1) as other,
    ):
        for number in (1, 2, 3):
            assert (await asyncio.wait_for(anext(one_reader), 10)).sequence == number
        waiting = asyncio.ensure_future(anext(other))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await one_reader.close()
        await api_request(nc, names.consumer_unpin(stream, "c"), {"group": "g"})
        assert (await asyncio.wait_for(waiting, 10)).sequence >= 4


# -- never silence ---------------------------------------------------------------------------------------------------


async def test_a_deleted_consumer_is_told(nc: Connection, orders: Any):
    """A consumer that is deleted while it is read ends the reading with an error."""
    stream = await orders(1)
    async with Deliveries(nc, stream, "c") as deliveries:
        await (await anext(deliveries)).ack()
        await assets.delete_consumer(nc, stream, "c")
        with pytest.raises(NotFoundError, match=r"was deleted|no consumer c"):
            await asyncio.wait_for(anext(deliveries), 20)


async def test_a_stream_that_goes_is_told(nc: Connection, orders: Any):
    """So does a stream that is deleted."""
    stream = await orders(1)
    async with Deliveries(nc, stream, "c", heartbeat=0.2) as deliveries:
        await (await anext(deliveries)).ack()
        await assets.delete_stream(nc, stream)
        with pytest.raises(NotFoundError):
            await asyncio.wait_for(anext(deliveries), 20)


async def test_a_server_that_freezes_dies_and_returns(unique: Any):
    """Reading goes on over a frozen server and over a killed one; one that stays away is an error in time."""
    with Server(sync="always") as server:
        node = server.nodes[0]
        async with await connect(server.url, reconnect_wait=0.1, ping_interval=1, request_timeout=1.0) as nc:
            await assets.add_stream(nc, Stream(name="S", subjects=["s.>"]))
            await assets.add_consumer(nc, "S", Consumer(durable="c"))
            options = {"heartbeat": 0.3, "expires": 5.0, "patience": 6.0}
            async with Deliveries(nc, "S", "c", **options) as deliveries:
                for trouble in ("freeze", "kill"):
                    waiting = asyncio.ensure_future(anext(deliveries))
                    await asyncio.to_thread(node.pause if trouble == "freeze" else node.kill)
                    await asyncio.sleep(1.0)
                    await asyncio.to_thread(node.resume if trouble == "freeze" else node.start)
                    async with Publisher(nc, "S", ack_timeout=1.0) as publisher:
                        await publisher.publish("s.x", trouble.encode())
                    delivery = await asyncio.wait_for(waiting, 20)
                    while delivery.data != trouble.encode():
                        # A lone server writes acks behind its answer: killed at once, it may have forgotten one.
                        assert delivery.data == b"freeze"
                        await delivery.ack_sync()
                        delivery = await asyncio.wait_for(anext(deliveries), 20)
                    await delivery.ack_sync()
                await asyncio.to_thread(node.kill)
                with pytest.raises(DisconnectedError, match="gave no sign for 6 s"):
                    await asyncio.wait_for(anext(deliveries), 30)


async def test_what_is_on_its_way_to_a_reader_that_leaves_is_given_back(nc: Connection, orders: Any):
    """Who leaves early gives back what came and what was coming: the next one gets all of it without an ack wait."""
    stream = await orders(0, ack_wait=60.0)
    async with Publisher(nc, stream) as publisher:
        for _ in range(200):
            await publisher.send(f"{stream}.x", bytes(50_000))
    async with Deliveries(nc, stream, "c", batch=200) as deliveries:
        await (await anext(deliveries)).nak()
    async with Deliveries(nc, stream, "c", batch=200, limit=200, wait=10) as deliveries:
        assert len({delivery.sequence async for delivery in deliveries}) == 200


async def test_a_closed_connection_is_told(server: Server, orders: Any):
    """A connection that is closed while a read waits ends the read."""
    stream = await orders(0)
    other = await connect(server.url)
    async with Deliveries(other, stream, "c") as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(0.05)
        await other.close()
        with pytest.raises(DisconnectedError):
            await asyncio.wait_for(waiting, 10)


# -- workers and dead letters ----------------------------------------------------------------------------------------


async def test_a_worker_handles_everything_once(nc: Connection, orders: Any):
    """Each message is handled once, several at a time, and its ack is confirmed."""
    stream = await orders(200)
    seen: Counter[int] = Counter()
    together = most = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.005)
        seen[delivery.sequence] += 1
        together -= 1

    counts = await Worker(nc, stream, "c", handle, workers=5, limit=200).run()
    assert (counts.handled, counts.failed) == (200, 0)
    assert set(seen.values()) == {1}
    assert len(seen) == 200
    assert 1 < most <= 5
    info = await assets.consumer_info(nc, stream, "c")
    assert (info.ack_pending, info.pending) == (0, 0)


async def test_slow_handlers_keep_their_messages(nc: Connection, orders: Any):
    """A handler that takes longer than the ack wait is not disturbed: its message does not come again."""
    stream = await orders(4, ack_wait=2.0)
    seen = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.sequence)
        await asyncio.sleep(4.0 if delivery.sequence == 1 else 0)

    await Worker(nc, stream, "c", handle, workers=2, limit=4).run()
    assert sorted(seen) == [1, 2, 3, 4]
    assert (await assets.consumer_info(nc, stream, "c")).delivered.consumer == 4


async def test_failures_come_again_after_the_backoff(nc: Connection, orders: Any):
    """A handler that raises gets the message again, later and later, until it succeeds."""
    stream = await orders(1, backoff=[0.2, 0.5], max_deliver=5)
    times, told = [], []

    async def handle(delivery: Delivery) -> None:
        times.append(asyncio.get_running_loop().time())
        if delivery.delivered < 3:
            raise ValueError("not yet")

    def failed(delivery: Delivery, error: Exception) -> None:
        told.append(str(error))

    worker = Worker(nc, stream, "c", handle, on_failure=failed, wait=4)
    counts = await worker.run()
    assert (counts.handled, counts.failed, told) == (1, 2, ["not yet", "not yet"])
    first, second = times[1] - times[0], times[2] - times[1]
    assert first > 0.15
    assert second > 0.4


async def test_dead_letters_tell_why_and_come_back(nc: Connection, orders: Any):
    """What fails too often, or is rejected, is kept with why, from where and how often, and can be put back."""
    stream = await orders(4, max_deliver=2, backoff=[0.1])
    bad = {2, 3}

    async def handle(delivery: Delivery) -> None:
        if delivery.sequence == 3:
            raise Reject("not an order")
        if delivery.sequence in bad:
            raise ValueError("boom")

    worker = Worker(nc, stream, "c", handle, dead_letters=f"{stream}-DEAD", wait=3)
    counts = await worker.run()
    assert (counts.handled, counts.dead) == (2, 2)
    letters = DeadLetters(nc, stream)
    found = {letter.sequence: letter async for letter in letters.letters("c")}
    assert sorted(found) == [2, 3]
    two, three = found[2], found[3]
    assert (two.reason, two.deliveries, two.subject, two.stream) == ("ValueError: boom", 2, f"{stream}.x", stream)
    assert (two.consumer, two.data, two.headers["Nats-Msg-Id"]) == ("c", b"order 2", ["2"])
    assert (three.reason, three.deliveries) == ("not an order", 1)
    assert (await assets.consumer_info(nc, stream, "c")).ack_pending == 0

    assert await letters.redeliver(two) == 5
    back = await assets.get_message(nc, stream, 5)
    assert (back.subject, back.data, back.headers["Penstock-Redelivered"]) == (f"{stream}.x", b"order 2", ["1"])
    assert [letter.sequence async for letter in letters.letters()] == [3]
    assert (await Worker(nc, stream, "c", handle, limit=1, wait=5).run()).handled == 1


async def test_heartbeats_do_not_stretch_the_wait(nc: Connection, orders: Any):
    """A wait ends the iteration when nothing was delivered for so long, however often heartbeats come."""
    stream = await orders(1)
    async with asyncio.timeout(5), Deliveries(nc, stream, "c", heartbeat=0.1, expires=0.4, wait=0.8) as deliveries:
        assert [delivery.sequence async for delivery in deliveries] == [1]


async def test_headers_with_several_values_survive_death(nc: Connection, orders: Any):
    """Every value of a header is in the letter, and in the message that is put back."""
    stream = await orders(0)
    await nc.request(f"{stream}.x", b"m", headers={"Tag": ["a", "b"]})

    async def handle(delivery: Delivery) -> None:
        raise Reject("no")

    await Worker(nc, stream, "c", handle, dead_letters=f"{stream}-DEAD", limit=1).run()
    letters = DeadLetters(nc, stream)
    letter = await anext(letters.letters())
    assert letter.headers["Tag"] == ["a", "b"]
    sequence = await letters.redeliver(letter)
    assert (await assets.get_message(nc, stream, sequence)).headers["Tag"] == ["a", "b"]


async def test_a_client_that_dies_with_the_last_delivery_loses_nothing(nc: Connection, orders: Any):
    """Where nobody answers for the last delivery, the letter is written from the server's advisory, once."""
    stream = await orders(1, max_deliver=1, ack_wait=0.3)
    letters = DeadLetters(nc, stream)
    await letters.ensure()
    await one(nc, stream, keep_alive=False)  # and nobody answers

    async def told() -> int:
        return await letters.collect()

    assert await until(told) == 1
    found = [letter async for letter in letters.letters()]
    assert [(letter.sequence, letter.deliveries) for letter in found] == [(1, 1)]
    assert "no answer" in found[0].reason
    assert await letters.collect() == 0
    # A worker does the same by itself.
    await nc.publish(f"{stream}.x", b"again")
    await one(nc, stream, keep_alive=False)

    async def handle(delivery: Delivery) -> None:
        return None

    worker = Worker(nc, stream, "c", handle, dead_letters=letters)
    running = asyncio.ensure_future(worker.run())

    async def second() -> bool:
        return len([letter async for letter in letters.letters()]) == 2

    await until(second)
    worker.stop()
    await running


async def test_a_worker_that_cannot_keep_its_word_is_refused(nc: Connection, orders: Any):
    """Without acks, or with ack all and several workers, nothing can be handled once."""

    async def handle(delivery: Delivery) -> None:
        return None

    for policy, workers in (("none", 1), ("all", 2)):
        stream = await orders(1, ack_policy=policy, ack_wait=None)
        with pytest.raises(InputError):
            await Worker(nc, stream, "c", handle, workers=workers).run()
    with pytest.raises(InputError):
        Worker(nc, stream, "c", handle, workers=0)
    with pytest.raises(InputError, match="its own dead letters"):
        DeadLetters(nc, stream, stream)


async def test_stopping_waits_for_handlers(nc: Connection, orders: Any):
    """stop lets the handler that runs end, acks its message, and gives the others back."""
    stream = await orders(10)
    begun, seen = asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        seen.append(delivery.sequence)

    worker = Worker(nc, stream, "c", handle)
    running = asyncio.ensure_future(worker.run())
    await begun.wait()
    worker.stop()
    counts = await asyncio.wait_for(running, 10)
    assert counts.handled == len(seen)
    assert len(seen) < 10
    async with Deliveries(nc, stream, "c", limit=10 - len(seen), wait=10) as deliveries:
        assert len([delivery async for delivery in deliveries]) == 10 - len(seen)


# -- samples ---------------------------------------------------------------------------------------------------------


async def test_samples_and_advisories_are_told(nc: Connection, orders: Any):
    """Each sampled ack tells how long it took and how often it was delivered; figures add up."""
    stream = await orders(3, sample_freq="100")
    async with Samples(nc, stream, "c") as events:
        await (await one(nc, stream)).nak(sync=True)
        async with Deliveries(nc, stream, "c", limit=3, wait=10) as deliveries:
            async for delivery in deliveries:
                await delivery.ack_sync()
        seen = [await asyncio.wait_for(anext(events), 10) for _ in range(4)]
    samples = [event for event in seen if isinstance(event, AckSample)]
    assert sorted((sample.sequence, sample.deliveries) for sample in samples) == [(1, 2), (2, 1), (3, 1)]
    assert all(sample.ack_time > 0 for sample in samples)
    figures = events.figures[stream, "c"]
    assert (figures.samples, figures.redelivered, figures.naks, figures.most_deliveries) == (3, 1, 1, 2)


async def test_events_of_ever_new_consumers_do_not_pile_up(nc: Connection, unique: Any, caplog: Any) -> None:
    """Consumers come and go, and anybody may name some: the figures of those that were heard last are kept."""
    stream, count = unique("EVENTS"), 1200
    event = {"type": "io.nats.jetstream.advisory.v1.nak", "timestamp": "2026-01-31T23:59:59Z", "stream": stream}
    async with Samples(nc, stream) as events:
        for number in range(count):
            payload = json.dumps({**event, "consumer": f"c{number}"}).encode()
            await nc.publish(f"{names.ADVISORY}.CONSUMER.MSG_NAKED.{stream}.c{number}", payload)
        for _ in range(count):
            await asyncio.wait_for(anext(events), 10)
        assert list(events.figures) == [(stream, f"c{number}") for number in range(200, count)]
        assert events.forgotten == 200
    assert sum("heard last" in record.getMessage() for record in caplog.records) == 1


# -- what nobody asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"batch": 10}, {"max_bytes": 1000}])
async def test_what_nobody_asked_for_does_not_pile_up(nc: Connection, orders: Any, options: dict[str, Any]) -> None:
    """Deliveries without end that were not asked for fill no memory: the read ends with an error that says so."""
    stream = await orders()
    async with Deliveries(nc, stream, "c", **options) as deliveries:
        await until(lambda: _holds(deliveries, 3))
        for _ in range(20_000):
            deliveries._heard(b"x", f"{names.ACK}.{stream}.c.1.9.9.1763560000000000000.0".encode(), b"", None)
        assert len(deliveries._queue) < 1000
        with pytest.raises(RemoteProtocolError, match="wait to be read, and"):
            await _read_out(deliveries)


async def test_what_an_ordered_read_did_not_ask_for_does_not_pile_up(
    nc: Connection, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of a read in order, if messages come in their order, but nobody waits for our answer."""
    monkeypatch.setattr("penstock.jetstream.ordered._UNREAD", 100_000)
    stream = await orders()
    async with OrderedRead(nc, stream) as read:
        await until(lambda: _holds(read, 3))
        for number in range(4, 2000):
            order, reply = read._order, f"{names.ACK}.{stream}.c.1.{number}.{number}.1763560000000000000.9"
            if order is not None:
                read._hear(order, b"x", reply.encode(), bytes(100), None)
        assert len(read._queue) < 1000
        with pytest.raises(RemoteProtocolError, match="wait to be read, and the server goes on"):
            await _read_out(read)


async def test_questions_that_nobody_answers_yet_do_not_pile_up(
    nc: Connection, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server waits for the answer to its question; one that asks on and on ends the read with an error."""
    monkeypatch.setattr("penstock.jetstream.ordered._UNREAD", 100_000)
    stream = await orders()
    async with OrderedRead(nc, stream) as read:
        await until(lambda: _holds(read, 3))
        for number in range(4000):
            if read._order is not None:
                asked = f"$JS.FC.{stream}.c.{number % 2}".encode()
                read._hear(read._order, b"x", asked, b"", b"NATS/1.0 100 FlowControl Request\r\n\r\n")
        assert len(read._queue) < 2000
        with pytest.raises(RemoteProtocolError, match="wait to be read, and the server goes on"):
            await _read_out(read)


async def _holds(reading: Deliveries | OrderedRead, count: int) -> bool:
    return len(reading._queue) >= count


async def _read_out(reading: Deliveries | OrderedRead) -> None:
    async with asyncio.timeout(20):
        async for _ in reading:
            pass
