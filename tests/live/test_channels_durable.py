"""Durable subscriptions and redelivery: what is kept, what comes again, and when."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.channels import ChannelLimits, Limits
from penstock.channels.delivery import TOLERANCE
from penstock.channels.wire import Text
from penstock.connection import api_request
from penstock.errors import ChannelError, DisconnectedError
from tests.live.stan import Got, until


async def test_the_example_of_the_seed(stan):
    """Two in flight, ack wait two seconds: 1, 2; ack 2; 3; 1 again after its wait; 3 after its own; ack 1; then 4."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, max_in_flight=2, ack_wait=2)
    first_sent = time.monotonic()  # at the earliest: when it comes says less, on a machine that is slow at that moment
    await client.publish("foo", b"1")
    await client.publish("foo", b"2")
    await got.count(2)
    got.messages[1].ack()
    await asyncio.sleep(0.3)
    third_sent = time.monotonic()
    await client.publish("foo", b"3")
    await client.publish("foo", b"4")
    await got.count(3)
    assert got.sequences == [1, 2, 3]
    await got.count(4)
    assert got.sequences == [1, 2, 3, 1], "4 waits: 1 and 3 are in flight"
    assert got.times[3] - first_sent >= 2 - TOLERANCE, "not before the ack wait is over"
    await got.count(5)
    assert got.sequences == [1, 2, 3, 1, 3]
    assert got.times[4] - third_sent >= 2 - TOLERANCE, "each message has its own ack wait"
    got.messages[3].ack()
    await got.count(6)
    assert got.sequences == [1, 2, 3, 1, 3, 4]
    assert [message.redelivery_count for message in got.messages] == [0, 0, 0, 1, 1, 0]


async def test_the_cadence_of_redelivery(stan):
    """A message that nobody acknowledges comes each ack wait, counted from its first sending, with its count."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    sent = time.monotonic()  # at the earliest
    await client.publish("foo", b"x")
    await got.count(4)
    assert [message.redelivery_count for message in got.messages] == [0, 1, 2, 3]
    for turn, moment in enumerate(got.times):
        assert moment - sent >= turn - TOLERANCE
    got.messages[-1].ack()
    await got.stays(4, 1.2)


async def test_four_kinds_together(stan):
    """Plain, durable, queue and durable queue on one channel, across a reconnect, each with its own position."""
    await stan.serve()
    client = await stan.client("me")
    plain, durable, queued, both = Got(), Got(), Got(), Got()
    await client.subscribe("foo", plain)
    await client.subscribe("foo", durable, durable="quux")
    await client.subscribe("foo", queued, queue="bar")
    await client.subscribe("foo", both, queue="bar", durable="quux")
    for _ in range(5):
        await client.publish("foo", b"x")
    for got in (plain, durable, queued, both):
        await got.count(5)
    with pytest.raises(ChannelError) as error:
        await client.subscribe("foo", Got(), durable="quux")
    assert error.value.text == Text.DUPLICATE_DURABLE
    await client.close()
    other = await stan.client("other")
    for _ in range(4):
        await other.publish("foo", b"y")
    client = await stan.client("me")
    fresh = Got()
    await client.subscribe("foo", durable, durable="quux", start="LastReceived")
    await client.subscribe("foo", fresh)
    for _ in range(5):
        await client.publish("foo", b"z")
    await durable.count(14)
    await fresh.count(5)
    assert durable.sequences == list(range(1, 15)), "the position counts, not the start that was asked for"
    assert (len(plain), len(queued), len(both)) == (5, 5, 5)


async def test_closing_all_four_kinds(stan):
    """Closed, each kind stops; closed again, it is an error; resumed, the durable ones know their position."""
    await stan.serve()
    client = await stan.client()
    kinds = [{}, {"durable": "d"}, {"queue": "q"}, {"queue": "q", "durable": "d"}]
    gots = [Got() for _ in kinds]
    subscriptions = [await client.subscribe("foo", got, **kind) for got, kind in zip(gots, kinds, strict=True)]
    for _ in range(10):
        await client.publish("foo", b"x")
    for got, subscription in zip(gots, subscriptions, strict=True):
        await got.count(10)
        await subscription.close()
        with pytest.raises(DisconnectedError):
            await subscription.close()
    for _ in range(10):
        await client.publish("foo", b"y")
    await asyncio.sleep(0.1)
    assert [len(got) for got in gots] == [10] * 4
    later = [Got() for _ in kinds]
    for got, kind in zip(later, kinds, strict=True):
        await client.subscribe("foo", got, **kind)
    await later[1].count(10)
    await later[3].count(10)
    await client.publish("foo", b"z")
    for got in later:
        await until(lambda got=got: got.sequences[-1:] == [21])
    assert [len(got) for got in later] == [1, 11, 1, 11]


async def test_durable_unsubscribed(stan):
    """An unsubscribed durable is gone: it begins anew, and its name is free at once."""
    gateway = await stan.serve()
    client = await stan.client()
    got = Got()
    subscription = await client.subscribe("foo", got, durable="d")
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)
    await subscription.unsubscribe()
    assert len(gateway.service.channels["foo"].subscribers) == 0
    again = Got()
    await client.subscribe("foo", again, durable="d", start="First")
    await again.count(3)
    assert again.redelivered == []


async def test_durables_are_the_clients_own(stan):
    """The same durable name on another channel or of another client is another durable."""
    gateway = await stan.serve()
    one, other = await stan.client("one"), await stan.client("other")
    for client in (one, other):
        for channel in ("foo", "bar"):
            await client.subscribe(channel, Got(), durable="d")
    assert [len(channel.subscribers) for channel in gateway.service.channels.values()] == [2, 2]


async def test_pending_of_a_durable(stan):
    """What a durable had pending comes first on resume, all of it, in order, marked, beyond the new max in flight."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    subscription = await client.subscribe("foo", got, durable="d", manual_acks=True, ack_wait=30)
    for _ in range(5):
        await client.publish("foo", b"x")
    await got.count(5)
    await subscription.close()
    for _ in range(3):
        await client.publish("foo", b"y")
    again = Got()
    await client.subscribe("foo", again, durable="d", manual_acks=True, max_in_flight=1, ack_wait=30)
    await again.stays(5)
    assert again.sequences == again.redelivered == [1, 2, 3, 4, 5]
    for message in again.messages[:4]:
        message.ack()
    await again.stays(5, 0.1)
    again.messages[4].ack()
    await again.count(6)
    assert not again.messages[5].redelivered
    assert again.sequences[5] == 6


async def test_acknowledged_messages_do_not_come_again(stan):
    """A durable that acknowledged some of its messages gets the others only."""
    await stan.serve()
    client = await stan.client()
    got = Got(lambda message: message.ack() if message.sequence in (1, 3) else None)
    await client.subscribe("foo", got, durable="d", manual_acks=True, ack_wait=30)
    for _ in range(4):
        await client.publish("foo", b"x")
    await got.count(4)
    await client.close()
    client = await stan.client()
    again = Got()
    await client.subscribe("foo", again, durable="d", manual_acks=True)
    await again.stays(2, 0.2)
    assert again.redelivered == [2, 4]


async def test_an_offline_durable_gets_nothing(stan):
    """Nothing is sent to the inbox of a durable that was closed, whatever its ack wait says."""
    await stan.serve()
    raw = await stan.raw()
    await raw.connect()
    sent = []
    answer = await raw.subscribe("foo", sent.append, durableName="d", ackWaitInSecs=1)
    await raw.publish("foo")
    await until(lambda: len(sent) == 1)
    await raw.leave("subclose", "foo", answer.ackInbox)
    await raw.publish("foo")
    await asyncio.sleep(1.3)
    assert len(sent) == 1
    back = await raw.subscribe("foo", sent.append, durableName="d")
    assert back.ackInbox != answer.ackInbox
    await until(lambda: len(sent) == 3)


async def test_replace_durable(stan):
    """With replace_durable a new subscription takes over from an active durable of its client."""
    await stan.serve(replace_durable=True)
    client = await stan.client()
    old, new = Got(), Got()
    await client.subscribe("foo", old, durable="d", manual_acks=True, ack_wait=30)
    await client.publish("foo", b"1")
    await old.count(1)
    await client.subscribe("foo", new, durable="d", manual_acks=True, ack_wait=30)
    await new.count(1)
    await client.publish("foo", b"2")
    await new.count(2)
    assert new.sequences == [1, 2]
    assert new.redelivered == [1]
    assert len(old) == 1


async def test_redelivery_flag(stan):
    """Messages that were acknowledged never come marked; those that were not do, each with its own count."""
    await stan.serve()
    client = await stan.client()
    got = Got(lambda message: message.ack() if message.sequence % 2 or message.redelivery_count == 2 else None)
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    for _ in range(10):
        await client.publish("foo", b"x")
    await got.stays(20, 0.2)
    assert sorted(got.redelivered) == sorted([2, 4, 6, 8, 10] * 2)
    assert got.sequences[10:15] == [2, 4, 6, 8, 10]


async def test_an_ack_just_in_time(stan):
    """An ack that crosses a redelivery settles the message: it comes no more after that."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    await asyncio.gather(*[await client.publish_async("foo", b"x") for _ in range(100)])
    await got.count(150)
    for message in got.messages[:]:
        message.ack()
    await asyncio.sleep(1.3)
    settled = len(got)
    await got.stays(settled, 1.2)
    assert settled <= 200


async def test_dropped_messages_are_not_redelivered(stan):
    """A message that the channel dropped before it was acknowledged is forgotten without an error."""
    gateway = await stan.serve(limits=Limits(default=ChannelLimits(max_msgs=2)))
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    for _ in range(4):
        await client.publish("foo", b"x")
    await got.count(6)
    assert got.sequences == [1, 2, 3, 4, 3, 4]
    group = gateway.service.channels["foo"].subscribers.groups[0]
    assert list(group.members[0].pending) == [3, 4]


async def test_stalled_subscriptions(stan):
    """At max in flight delivery stops; each ack lets one more through; others on the channel do not notice."""
    await stan.serve()
    client = await stan.client()
    for kind in ({}, {"durable": "d"}, {"queue": "q"}):
        channel = f"foo{len(str(kind))}"
        got, free = Got(), Got()
        await client.subscribe(channel, got, manual_acks=True, max_in_flight=3, **kind)
        await client.subscribe(channel, free)
        for _ in range(6):
            await client.publish(channel, b"x")
        await free.count(6)
        await got.stays(3, 0.1)
        got.messages[1].ack()
        await got.count(4)
        await got.stays(4, 0.1)
        assert got.sequences == [1, 2, 3, 4]


async def test_no_duplicates_for_a_new_subscriber(stan):
    """A subscriber that joins while messages keep coming gets each of them once, in order."""
    await stan.serve()
    client, publisher = await stan.client("me"), await stan.client("publisher")
    futures = [await publisher.publish_async("foo", b"x") for _ in range(500)]
    got = Got()
    await client.subscribe("foo", got, start="First")
    futures += [await publisher.publish_async("foo", b"x") for _ in range(500)]
    await asyncio.gather(*futures)
    await got.stays(1000, 0.2)
    assert got.sequences == list(range(1, 1001))


async def test_gaps_are_moved_over(stan):
    """Sequences that are missing in the middle of a channel hold nobody up."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(10):
        await client.publish("foo", b"x")
    connection = await stan.connection()
    for sequence in (1, 4, 5, 6, 10):
        await api_request(connection, f"STREAM.MSG.DELETE.{stan.stream('foo')}", {"seq": sequence})
    gateway.service.channels["foo"].recent.drop_before(1 << 62)
    got = Got()
    await client.subscribe("foo", got, start="First")
    await got.count(5)
    await client.publish("foo", b"x")
    await got.count(6)
    assert got.sequences == [2, 3, 7, 8, 9, 11]


async def test_messages_from_elsewhere(stan):
    """What a JetStream client writes to a channel's stream is delivered to its subscribers, in its place."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got)
    await client.publish("foo", b"1")
    connection = await stan.connection()
    jetstream = connection.jetstream()
    await jetstream.publish(f"{stan.cluster}.foo", b"2")
    await client.publish("foo", b"3")
    await jetstream.publish(f"{stan.cluster}.foo", b"4")
    await got.count(4)
    assert got.data == [b"1", b"2", b"3", b"4"]
    assert got.sequences == [1, 2, 3, 4]
    assert abs(got.messages[1].timestamp / 1e9 - time.time()) < 60


async def test_streams_are_plain(stan):
    """A channel is a stream with a plain subject, from sequence 1, that any JetStream client reads."""
    await stan.serve(subject_prefix="")
    channel = f"plain.{stan.cluster}"
    client = await stan.client()
    for number in range(3):
        await client.publish(channel, b"%d" % number)
    connection = await stan.connection()
    jetstream = connection.jetstream()
    assert await jetstream.find_stream_name_by_subject(channel) == stan.stream(channel)
    for sequence in (1, 2, 3):
        message = await jetstream.get_msg(stan.stream(channel), sequence)
        assert message.data == b"%d" % (sequence - 1)
        assert message.subject == channel
        [stamp] = message.headers["Penstock-Time"]
        assert stamp.isdigit()


async def test_failed_heartbeats(stan):
    """A client that misses heartbeats gets nothing again until it answers, and is closed after too many."""
    gateway = await stan.serve(hb_interval=0.05, hb_timeout=0.05, hb_fail_count=25)
    raw = await stan.raw()
    await raw.connect()
    sent = []
    await raw.subscribe("foo", sent.append, durableName="d")
    raw.answers_heartbeats = False
    await until(lambda: gateway.service.clients.by_id.get("me").failures >= 1)
    await raw.publish("foo")
    await until(lambda: len(sent) == 1)
    await asyncio.sleep(1.4)
    assert len(sent) == 1, "new messages go out to a sick client, old ones do not"
    raw.answers_heartbeats = True
    await until(lambda: len(sent) == 2)
    assert sent[1].redelivered
    raw.answers_heartbeats = False
    await until(lambda: gateway.service.clients.by_id.get("me") is None)
    assert not gateway.service.channels["foo"].subscribers.active
    assert len(gateway.service.channels["foo"].subscribers) == 1, "the durable stays"


async def test_a_ping_of_a_sick_client(stan):
    """A ping of a client that missed heartbeats brings one at once, so that it is well again."""
    gateway = await stan.serve(hb_interval=0.2, hb_timeout=0.1)
    raw = await stan.raw()
    response = await raw.connect()
    raw.answers_heartbeats = False
    client = gateway.service.clients.by_id.get("me")
    await until(lambda: client.failures == 1)
    gateway.service.clients._options = type(gateway.options)(hb_interval=60.0)
    client.timer.cancel()
    raw.answers_heartbeats = True
    seen = raw.heartbeats
    await raw.ask(response.pingRequests, b"\x0a%c%b" % (len(raw.conn_id), raw.conn_id))
    await until(lambda: client.failures == 0, timeout=2)
    assert raw.heartbeats == seen + 1


async def test_a_resumed_durable_is_well(stan):
    """A durable that comes back is not marked by the heartbeats that its predecessor missed."""
    gateway = await stan.serve(hb_interval=0.1, hb_timeout=0.05, hb_fail_count=2)
    raw = await stan.raw()
    await raw.connect()
    await raw.subscribe("foo", durableName="d")
    raw.answers_heartbeats = False
    await until(lambda: gateway.service.clients.by_id.get("me") is None)
    member = gateway.service.channels["foo"].subscribers.members[0]
    assert member.sick
    again = await stan.raw()
    await again.connect()
    await again.subscribe("foo", durableName="d")
    [member] = gateway.service.channels["foo"].subscribers.members
    assert not member.sick
    assert member.online


async def test_a_crashed_client_comes_back(stan):
    """A client that crashed and connects again gets what its durable had not acknowledged."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, durable="d", manual_acks=True, ack_wait=30)
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)
    got.messages[0].ack()
    await client.connection.flush()
    await client.connection.close()
    client = await stan.client()
    again = Got()
    await client.subscribe("foo", again, durable="d", manual_acks=True)
    await again.count(2)
    assert again.redelivered == [2, 3]
