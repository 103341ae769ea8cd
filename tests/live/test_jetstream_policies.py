"""Every policy of the model against the real server: retention, discard, deliver, ack and replay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.connection import Connection
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.jetstream import Deliveries, Delivery, Outgoing, Publisher, assets
from penstock.jetstream.delivery import is_delivery
from penstock.jetstream.size import record_size
from penstock.model import Consumer
from penstock.wire.protocol import encode_headers
from tests.live.conftest import NewStream


async def fill(nc: Connection, stream: str, *bodies: str, subject: str = "x") -> None:
    async with Publisher(nc, stream) as publisher:
        for body in bodies:
            await publisher.send(f"{stream}.{subject}", body.encode())


async def read(nc: Connection, stream: str, consumer: Consumer, count: int, ack: bool = True) -> list[str]:
    """Create a consumer, and give the first bodies that it delivers."""
    made = await assets.add_consumer(nc, stream, consumer)
    found = []
    async with Deliveries(nc, stream, made.name, limit=count, wait=5, batch=count) as deliveries:
        async for delivery in deliveries:
            found.append(delivery.data.decode())
            if ack and consumer.ack_policy != "none":
                await delivery.ack_sync()
    return found


async def state(nc: Connection, stream: str) -> list[str]:
    """Give the bodies that a stream holds."""
    info = await assets.stream_info(nc, stream)
    bodies = []
    for sequence in range(max(info.first_sequence, 1), info.last_sequence + 1):
        try:
            bodies.append((await assets.get_message(nc, stream, sequence)).data.decode())
        except NotFoundError:
            continue
    return bodies


async def until(check: Any, timeout: float = 20.0) -> Any:
    """Wait until a coroutine gives something true."""
    async with asyncio.timeout(timeout):
        while not (found := await check()):
            await asyncio.sleep(0.02)
        return found


# -- retention -------------------------------------------------------------------------------------------------------


async def test_limits_keep_what_is_acked(nc: Connection, new_stream: NewStream):
    """With limits retention an ack removes nothing: only limits do."""
    stream = await new_stream()
    await fill(nc, stream, "a", "b")
    assert await read(nc, stream, Consumer(durable="c"), 2) == ["a", "b"]
    assert await state(nc, stream) == ["a", "b"]


async def test_a_work_queue_forgets_what_is_acked(nc: Connection, new_stream: NewStream):
    """A work queue keeps a message until its one consumer acks it."""
    stream = await new_stream(retention="workqueue")
    await fill(nc, stream, "a", "b")
    assert await read(nc, stream, Consumer(durable="c"), 1) == ["a"]
    assert await state(nc, stream) == ["b"]


async def test_consumers_of_a_work_queue_cannot_overlap(nc: Connection, new_stream: NewStream):
    """The server refuses a second consumer for the same subjects, and we refuse it before that; apart they may be."""
    stream = await new_stream(retention="workqueue")
    await assets.add_consumer(nc, stream, Consumer(durable="a", filter_subject=f"{stream}.a"))
    await assets.add_consumer(nc, stream, Consumer(durable="b", filter_subject=f"{stream}.b"))
    for filters in ({}, {"filter_subject": f"{stream}.*"}):
        with pytest.raises(JetStreamError, match=r"unfiltered|unique|multiple"):
            await assets.add_consumer(nc, stream, Consumer(durable="c", **filters))


async def test_interest_keeps_until_all_have_acked(nc: Connection, new_stream: NewStream):
    """With interest retention a message goes when every consumer has acked it, and is not kept for nobody."""
    stream = await new_stream(retention="interest")
    await fill(nc, stream, "for nobody")
    assert await state(nc, stream) == []
    for name in ("one", "two"):
        await assets.add_consumer(nc, stream, Consumer(durable=name))
    await fill(nc, stream, "a")
    for name, left in (("one", ["a"]), ("two", [])):
        async with Deliveries(nc, stream, name, limit=1) as deliveries:
            await (await anext(deliveries)).ack_sync()
        assert await state(nc, stream) == left


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_limits_hold_under_every_retention(nc: Connection, new_stream: NewStream, retention: str):
    """The number of messages, their bytes and their age are upper bounds whatever else removes messages."""
    stream = await new_stream(retention=retention, max_msgs=2)
    if retention == "interest":
        await assets.add_consumer(nc, stream, Consumer(durable="c"))
    await fill(nc, stream, "a", "b", "c")
    assert await state(nc, stream) == ["b", "c"]


async def test_bytes_and_age_are_limits(nc: Connection, new_stream: NewStream):
    """Old messages give way to the limit of bytes, and to their age."""
    stream = await new_stream(max_bytes=250)
    for _ in range(3):
        await nc.request(f"{stream}.x", b"y" * 60)
    assert len(await state(nc, stream)) == 2
    stream = await new_stream(max_age=0.2)
    await fill(nc, stream, "a")

    async def gone() -> bool:
        return (await assets.stream_info(nc, stream)).messages == 0

    await until(gone)


async def test_a_subject_has_its_own_limit(nc: Connection, new_stream: NewStream):
    """max_msgs_per_subject keeps the last of each subject."""
    stream = await new_stream(max_msgs_per_subject=1)
    await fill(nc, stream, "a", "b", subject="x")
    await fill(nc, stream, "c", subject="y")
    assert await state(nc, stream) == ["b", "c"]


async def test_large_messages_are_refused(nc: Connection, new_stream: NewStream):
    """max_msg_size refuses a larger message, with its headers counted."""
    stream = await new_stream(max_msg_size=1024)
    async with Publisher(nc, stream) as publisher:
        assert (await publisher.publish(f"{stream}.x", b"x" * 900)).sequence == 1
        with pytest.raises(JetStreamError, match="message size exceeds maximum"):
            await publisher.publish(f"{stream}.x", b"x" * 1025)


async def test_messages_can_outlive_or_die_young(nc: Connection, new_stream: NewStream):
    """A message's own TTL removes it, and it alone."""
    stream = await new_stream(allow_msg_ttl=True)
    async with Publisher(nc, stream) as publisher:
        await publisher.publish(f"{stream}.x", b"short", ttl="1s")
        await publisher.publish(f"{stream}.x", b"long")

    async def gone() -> bool:
        return await state(nc, stream) == ["long"]

    await until(gone)


# -- discard ---------------------------------------------------------------------------------------------------------


async def test_discard_new_refuses(nc: Connection, new_stream: NewStream):
    """A full stream that discards what is new says so, and keeps what it has."""
    stream = await new_stream(max_msgs=2, discard="new")
    async with Publisher(nc, stream) as publisher:
        for body in (b"a", b"b"):
            await publisher.publish(f"{stream}.x", body)
        with pytest.raises(JetStreamError, match="maximum messages exceeded") as caught:
            await publisher.publish(f"{stream}.x", b"c")
    assert caught.value.err_code == 10077
    assert await state(nc, stream) == ["a", "b"]


async def test_discard_old_forgets(nc: Connection, new_stream: NewStream):
    """A full stream that discards what is old takes the new message."""
    stream = await new_stream(max_msgs=2, discard="old")
    await fill(nc, stream, "a", "b", "c")
    assert await state(nc, stream) == ["b", "c"]


async def test_discard_new_per_subject(nc: Connection, new_stream: NewStream):
    """With discard new per subject, a full subject refuses and another one does not."""
    stream = await new_stream(max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    async with Publisher(nc, stream) as publisher:
        await publisher.publish(f"{stream}.x", b"a")
        with pytest.raises(JetStreamError, match="maximum messages per subject exceeded"):
            await publisher.publish(f"{stream}.x", b"b")
        await publisher.publish(f"{stream}.y", b"c")
    assert await state(nc, stream) == ["a", "c"]


# -- where a consumer begins -----------------------------------------------------------------------------------------


async def test_deliver_policies(nc: Connection, new_stream: NewStream):
    """all, last, by sequence and last per subject choose the first message; after it, everything comes."""
    stream = await new_stream()
    async with Publisher(nc, stream) as publisher:
        for number in range(1, 101):
            await publisher.send(f"{stream}.{number % 2}", f"order {number}".encode())
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"deliver_policy": "all"}, ["order 1", "order 2"]),
        ({"deliver_policy": "last"}, ["order 100"]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 10}, ["order 10", "order 11"]),
        ({"deliver_policy": "last_per_subject", "filter_subject": f"{stream}.>"}, ["order 99", "order 100"]),
    ]
    for fields, bodies in cases:
        assert await read(nc, stream, Consumer(ack_policy="none", **fields), len(bodies)) == bodies


async def test_deliver_new_sees_what_comes(nc: Connection, new_stream: NewStream):
    """new begins with what is stored after the consumer was made."""
    stream = await new_stream()
    await fill(nc, stream, "before")
    info = await assets.add_consumer(nc, stream, Consumer(deliver_policy="new", ack_policy="none"))
    async with Deliveries(nc, stream, info.name, limit=1) as deliveries:
        await fill(nc, stream, "after")
        assert (await anext(deliveries)).data == b"after"


async def test_deliver_by_time(nc: Connection, new_stream: NewStream):
    """by_start_time begins with the first message stored at that time or later."""
    stream = await new_stream()
    await fill(nc, stream, "order 1")
    await asyncio.sleep(0.05)
    begin = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await fill(nc, stream, "order 2", "order 3")
    consumer = Consumer(deliver_policy="by_start_time", opt_start_time=begin, ack_policy="none")
    assert await read(nc, stream, consumer, 1) == ["order 2"]


# -- ack policies ----------------------------------------------------------------------------------------------------


async def test_explicit_acks_are_for_one(nc: Connection, new_stream: NewStream):
    """With explicit acks, the ack of a later message leaves the earlier one outstanding."""
    stream = await new_stream()
    await fill(nc, stream, "a", "b", "c")
    await assets.add_consumer(nc, stream, Consumer(durable="c"))
    async with Deliveries(nc, stream, "c", limit=3, batch=3) as deliveries:
        held = [delivery async for delivery in deliveries]
        await held[2].ack_sync()
        info = await assets.consumer_info(nc, stream, "c")
    assert (info.ack_pending, info.ack_floor.stream, info.delivered.stream) == (2, 0, 3)


async def test_ack_all_is_for_all_before(nc: Connection, new_stream: NewStream):
    """With ack all, one ack acknowledges everything before it."""
    stream = await new_stream()
    await fill(nc, stream, "a", "b", "c")
    await assets.add_consumer(nc, stream, Consumer(durable="c", ack_policy="all"))
    async with Deliveries(nc, stream, "c", limit=3, batch=3) as deliveries:
        held = [delivery async for delivery in deliveries]
        await held[2].ack_sync()
        info = await assets.consumer_info(nc, stream, "c")
    assert (info.ack_pending, info.ack_floor.stream) == (0, 3)


async def test_ack_none_counts_a_delivery_as_done(nc: Connection, new_stream: NewStream):
    """Without acks nothing is outstanding, and nothing comes again."""
    stream = await new_stream()
    await fill(nc, stream, "a", "b")
    assert await read(nc, stream, Consumer(durable="c", ack_policy="none"), 2) == ["a", "b"]
    info = await assets.consumer_info(nc, stream, "c")
    assert (info.ack_pending, info.pending, info.ack_floor.stream) == (0, 0, 2)


# -- push, replay, storage -------------------------------------------------------------------------------------------


async def test_replay_keeps_the_pace_or_does_not(nc: Connection, new_stream: NewStream, unique: Any):
    """original replay takes the time between the messages; instant replay does not."""
    stream = await new_stream()
    for body in ("a", "b"):
        await fill(nc, stream, body)
        await asyncio.sleep(1.0 if body == "a" else 0)
    gaps = {}
    for replay in ("instant", "original"):
        target, times = unique("out"), []
        subscription = await nc.subscribe(target)
        await assets.add_consumer(nc, stream, Consumer(deliver_subject=target, ack_policy="none", replay_policy=replay))
        for _ in range(2):
            await subscription.next_msg(timeout=10)
            times.append(asyncio.get_running_loop().time())
        gaps[replay] = times[1] - times[0]
        await subscription.unsubscribe()
    assert gaps["original"] > 0.7
    assert gaps["instant"] < gaps["original"]


async def test_an_ephemeral_consumer_goes_with_its_subscriber(nc: Connection, new_stream: NewStream, unique: Any):
    """A push consumer without a durable name lives while somebody listens, and a little longer."""
    stream, target = await new_stream(), unique("monitor")
    subscription = await nc.subscribe(target)
    info = await assets.add_consumer(
        nc, stream, Consumer(deliver_subject=target, ack_policy="none", inactive_threshold=0.2)
    )
    await fill(nc, stream, "a")
    assert (await subscription.next_msg(timeout=10)).data == b"a"
    assert (await assets.consumer_info(nc, stream, info.name)).push_bound
    await subscription.unsubscribe()

    async def gone() -> bool:
        return not await assets.consumers(nc, stream)

    await until(gone)


async def test_push_with_heartbeats_flow_control_and_a_rate(nc: Connection, new_stream: NewStream, unique: Any):
    """A push consumer shows life, asks whether it is heard, and keeps to its rate."""
    stream, target = await new_stream(), unique("out")
    subscription = await nc.subscribe(target)
    config = Consumer(
        deliver_subject=target,
        ack_policy="none",
        idle_heartbeat=0.1,
        flow_control=True,
        rate_limit_bps=1_000_000,
        headers_only=True,
    )
    await assets.add_consumer(nc, stream, config)
    first = await subscription.next_msg(timeout=10)
    assert (first.headers["Status"], first.headers["Description"]) == ("100", "Idle Heartbeat")
    await fill(nc, stream, "payload")
    while not is_delivery(message := await subscription.next_msg(timeout=10)):
        pass
    assert (message.data, message.headers["Nats-Msg-Size"]) == (b"", "7")
    assert Delivery.of(message).sequence == 1


async def test_no_ack_streams_answer_nothing(nc: Connection, new_stream: NewStream):
    """A stream with no_ack stores without a word, and a publisher refuses to work on it."""
    stream = await new_stream(no_ack=True)
    with pytest.raises(TimeoutError):
        await nc.request(f"{stream}.x", b"a", timeout=0.3)
    assert await state(nc, stream) == ["a"]
    with pytest.raises(InputError, match="gives no acks"):
        async with Publisher(nc, stream):
            pass


async def test_mirrors_and_sources_copy(nc: Connection, new_stream: NewStream, unique: Any):
    """A mirror copies with sequences, a source collects, each as its filter says."""
    origin = await new_stream()
    await fill(nc, origin, "a", subject="x")
    await fill(nc, origin, "b", subject="y")
    mirror = await new_stream(subjects=[], mirror={"name": origin})
    source = await new_stream(subjects=[], sources=[{"name": origin, "filter_subject": f"{origin}.y"}])

    async def copied() -> bool:
        return await state(nc, mirror) == ["a", "b"] and await state(nc, source) == ["b"]

    await until(copied)
    with pytest.raises(InputError, match="is a mirror and takes no messages"):
        async with Publisher(nc, mirror):
            pass


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("headers", [{}, {"Color": "red", "Size": "1"}])
async def test_the_size_of_a_record_is_what_the_server_counts(
    nc: Connection, new_stream: NewStream, storage: str, headers: dict[str, str]
):
    """The formula of a record gives the bytes that the stream reports, with headers and without."""
    stream = await new_stream(storage=storage)
    subject, payload = f"{stream}.size", b"hello"
    await nc.request(subject, payload, headers=headers or None)
    reported = (await assets.stream_info(nc, stream)).bytes
    block = encode_headers(headers) if headers else b""
    assert record_size(len(subject), len(payload), len(block), storage=storage) == reported


async def test_batch_ways_can_be_chosen(nc: Connection, new_stream: NewStream):
    """The stream decides how a batch goes: atomic, fast, or plain."""
    ways = {}
    for fields in ({"allow_atomic": True}, {"allow_batched": True}, {}):
        stream = await new_stream(**fields)
        async with Publisher(nc, stream) as publisher:
            ack = await publisher.publish_batch([Outgoing(f"{stream}.x", b"%d" % n) for n in range(5)])
        ways[ack.how] = (ack.count, ack.sequence)
        assert await state(nc, stream) == ["0", "1", "2", "3", "4"]
    assert ways == {"atomic": (5, 5), "fast": (5, 5), "plain": (5, 5)}
