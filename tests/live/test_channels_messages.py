"""Messages as clients publish and receive them: starts, acks, redelivery, handlers that fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.errors import DeadlineError, DisconnectedError
from tests.live.stan import Got, until


async def test_sync_publishes(stan):
    """1024 publishes, each after the ack of the one before, are stored in order from sequence 1."""
    gateway = await stan.serve()
    client = await stan.client()
    for number in range(1024):
        await client.publish("foo", b"%d" % number)
    assert gateway.service.channels["foo"].stream.last == 1024
    got = Got()
    await client.subscribe("foo", got, start="First")
    await got.count(1024)
    assert got.data == [b"%d" % number for number in range(1024)]
    assert got.sequences == list(range(1, 1025))


async def test_async_publishes(stan):
    """1024 publishes at once are all acknowledged, and stored in the order in which they were sent."""
    await stan.serve()
    client = await stan.client()
    await asyncio.gather(*[await client.publish_async("foo", b"%d" % number) for number in range(1024)])
    got = Got()
    await client.subscribe("foo", got, start="First")
    await got.count(1024)
    assert got.data == [b"%d" % number for number in range(1024)]
    stamps = [message.timestamp for message in got.messages]
    assert stamps == sorted(stamps)


async def test_max_pub_acks_in_flight(stan):
    """A publisher waits when as many messages as it may are unacknowledged, and goes on with the first ack."""
    await stan.serve()
    client = await stan.client(max_pub_acks_in_flight=1)
    first = await client.publish_async("foo", b"1")
    second = await client.publish_async("foo", b"2")
    assert first.done()
    await second
    await stan.gateways[0].stop()
    await client.publish_async("foo", b"3")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.publish_async("foo", b"4")


async def test_publishers_that_gave_up_leave_their_place(stan):
    """A publish that timed out does not count as in flight any more."""
    gateway = await stan.serve()
    client = await stan.client(max_pub_acks_in_flight=1, ack_timeout=0.1)
    await gateway.stop()
    for _ in range(3):
        with pytest.raises(DeadlineError):
            await client.publish("foo", b"x")


async def test_new_messages(stan):
    """A subscription without a start gets what is published after it, sequences 1 to 10 in a new channel."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got)
    for number in range(10):
        await client.publish("foo", b"%d" % number)
    assert got.sequences == list(range(1, 11)), "deliveries arrive before the ack of the publish"
    late = Got()
    await client.subscribe("foo", late)
    await client.publish("foo", b"later")
    await late.stays(1)
    assert late.sequences == [11]


async def test_unsubscribe_stops_delivery(stan):
    """After unsubscribing nothing comes; to end a subscription twice is an error."""
    await stan.serve()
    client = await stan.client()
    got, other = Got(), Got()
    subscription = await client.subscribe("foo", got)
    await client.subscribe("foo", other)
    for _ in range(5):
        await client.publish("foo", b"x")
    await got.count(5)
    await subscription.unsubscribe()
    for _ in range(5):
        await client.publish("foo", b"x")
    await other.count(10)
    assert len(got) == 5
    with pytest.raises(DisconnectedError):
        await subscription.unsubscribe()


async def test_one_blocked_subscription(stan):
    """A handler that hangs holds up its own subscription and no other."""
    await stan.serve()
    client = await stan.client()
    release = asyncio.Event()
    one, blocked, three = Got(), Got(lambda message: release.wait()), Got()
    await client.subscribe("foo", one)
    await client.subscribe("foo", blocked)
    await client.subscribe("foo", three)
    for _ in range(10):
        await client.publish("foo", b"x")
    await one.count(10)
    await three.count(10)
    assert len(blocked) == 1
    release.set()
    await blocked.count(10)


async def test_start_at_time(stan):
    """A subscription that starts some time ago gets what was published since then, by the server's clock."""
    await stan.serve()
    client = await stan.client()
    for _ in range(5):
        await client.publish("foo", b"old")
    await asyncio.sleep(2.0)
    middle = time.time() - 1.5  # the way there takes time, too
    for _ in range(5):
        await client.publish("foo", b"new")
    got = Got()
    await client.subscribe("foo", got, since=time.time() - middle)
    await got.stays(5)
    assert got.sequences == [6, 7, 8, 9, 10]
    everything, nothing, future = Got(), Got(), Got()
    await client.subscribe("foo", everything, since=1e6)
    await client.subscribe("foo", nothing, since=0.0)
    await client.subscribe("foo", future, since=-5.0)
    await everything.count(10)
    await client.publish("foo", b"newest")
    await everything.count(11)
    assert nothing.sequences == future.sequences == [11]


async def test_start_at_sequence(stan):
    """Sequences below the first mean the first, above the last mean new ones, 0 means the first."""
    await stan.serve()
    client = await stan.client()
    for _ in range(10):
        await client.publish("foo", b"x")
    starts = {6: Got(), 0: Got(), 1: Got(), 100: Got()}
    for start, got in starts.items():
        await client.subscribe("foo", got, sequence=start)
    await starts[6].stays(5)
    assert starts[6].sequences == [6, 7, 8, 9, 10]
    assert starts[0].sequences == starts[1].sequences == list(range(1, 11))
    assert len(starts[100]) == 0
    await client.publish("foo", b"x")
    await starts[100].count(1)
    assert starts[100].sequences == [11]


async def test_start_at_last_and_first(stan):
    """LastReceived begins with the newest message, First with the oldest; in an empty channel both mean the first."""
    await stan.serve()
    client = await stan.client()
    empty = Got()
    await client.subscribe("foo", empty, start="LastReceived")
    for _ in range(10):
        await client.publish("foo", b"x")
    assert empty.sequences == list(range(1, 11))
    last, first = Got(), Got()
    await client.subscribe("foo", last, start="LastReceived")
    await client.subscribe("foo", first, start="First")
    await first.count(10)
    await last.stays(1, 0.1)
    assert last.sequences == [10]


async def test_manual_acks_missing(stan):
    """With one message in flight and no ack, one message comes."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    for _ in range(10):
        await client.publish("foo", b"x")
    await client.subscribe("foo", got, start="First", manual_acks=True, max_in_flight=1)
    await got.stays(1)
    assert got.sequences == [1]


async def test_manual_acks(stan):
    """With one message in flight, each ack brings the next, to the last of a hundred."""
    await stan.serve()
    client = await stan.client()
    for _ in range(100):
        await client.publish("foo", b"x")
    got = Got(lambda message: message.ack())
    await client.subscribe("foo", got, start="First", manual_acks=True, max_in_flight=1)
    await got.count(100)
    assert got.sequences == list(range(1, 101))


async def test_pending_messages(stan):
    """What was received and not handled yet can be counted; its size on the wire is payload and 19 bytes."""
    await stan.serve()
    client = await stan.client()
    release = asyncio.Event()
    subscription = await client.subscribe("foo", Got(lambda message: release.wait()))
    for _ in range(100):
        await client.publish("foo", b"x" * 10)
    await until(lambda: subscription.pending == 99)
    release.set()
    await until(lambda: subscription.pending == 0)
    sizes = []
    raw = await stan.raw("other")
    await raw.connect()
    await raw.subscribe("foo", lambda message: sizes.append(message.ByteSize()), startPosition=4)
    await until(lambda: len(sizes) == 10)
    assert sizes == [10 + 19] * 10


async def test_redelivery_while_nobody_acks(stan):
    """With an ack wait of one second, no more than three deliveries happen in two and a half seconds."""
    await stan.serve()
    client = await stan.client()
    await client.publish("foo", b"x")
    got = Got()
    await client.subscribe("foo", got, start="First", manual_acks=True, ack_wait=1)
    await got.count(4)
    assert [message.redelivery_count for message in got.messages] == [0, 1, 2, 3]
    assert [message.redelivered for message in got.messages] == [False, True, True, True]
    assert got.times[3] - got.times[0] > 2.5


async def test_on_error(stan):
    """A handler that raises tells on_error, its message is not acknowledged, and the next one is handled."""
    await stan.serve()
    errors = []

    async def failed(error: Exception) -> None:
        errors.append(str(error))

    def act(message):
        if message.sequence == 1 and not message.redelivered:
            raise RuntimeError("first")

    client = await stan.client(on_error=failed)
    got = Got(act)
    await client.subscribe("foo", got, ack_wait=1)
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(4)
    assert errors == ["first"]
    assert got.sequences == [1, 2, 3, 1]


async def test_on_error_that_fails(stan):
    """An on_error that raises does not end the subscription."""
    await stan.serve()

    async def failed(error: Exception) -> None:
        raise ValueError("worse")

    def act(message):
        raise RuntimeError("bad")

    client = await stan.client(on_error=failed)
    got = Got(act)
    await client.subscribe("foo", got)
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)


async def test_iterating(stan):
    """Without a handler one iterates: asking for the next message acknowledges the one before."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(5):
        await client.publish("foo", b"x")
    subscription = await client.subscribe("foo", start="First", max_in_flight=1)
    got = []
    async for message in subscription:
        got.append(message.sequence)
        if len(got) == 5:
            break
    assert got == [1, 2, 3, 4, 5]
    group = gateway.service.channels["foo"].subscribers.groups[0]
    assert [list(member.pending) for member in group.members] == [[5]]
    with pytest.raises(TimeoutError):
        await subscription.next(0.1)
    await until(lambda: not group.members[0].pending)
    await subscription.close()
    with pytest.raises(DisconnectedError):
        await subscription.next(1)


async def test_reply_is_carried(stan):
    """The reply subject of a publish comes with every delivery, the first and those from the store."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got)
    await client.publish("foo", b"x", reply="_INBOX.answer")
    stan.gateways[0].service.channels["foo"].recent.drop_before(1 << 62)
    await client.subscribe("foo", got, start="First")
    await got.count(2)
    assert [message.reply for message in got.messages] == ["_INBOX.answer"] * 2


async def test_messages_are_not_changed(stan):
    """Payloads of any bytes, empty ones and nearly the largest included, arrive as they were sent."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    payloads = [b"", bytes(range(256)), b"\r\nPUB x 1\r\n", b"x" * (1024 * 1024 - 1000)]
    await client.subscribe("foo", got)
    for payload in payloads:
        await client.publish("foo", payload)
    await got.count(4)
    assert got.data == payloads


async def test_channels_that_no_subject_could_carry(stan):
    """Blanks and line breaks in a channel's name do no harm to the connection; the channel is called that."""
    await stan.serve()
    client = await stan.client()
    for name in ("a b", "tab\tbed", "line\r\nbreak", "é ü"):
        got = Got()
        await client.subscribe(name, got)
        await client.publish(name, b"x")
        await got.count(1)
        assert got.messages[0].channel == name
