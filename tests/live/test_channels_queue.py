"""Queues: how messages are shared, and what becomes of them when members stall, sicken or leave."""

from __future__ import annotations

import asyncio

import pytest

from penstock.channels.wire import Text
from penstock.errors import ChannelError
from tests.live.stan import Got, until


async def test_five_members_share(stan):
    """Five members of a queue get a fifth of 2048 messages each, all of them once."""
    await stan.serve()
    gots = [Got() for _ in range(5)]
    for number, got in enumerate(gots):
        client = await stan.client(f"c{number}")
        await client.subscribe("foo", got, queue="q")
    for _ in range(0, 2048, 16):  # few at a time: whoever is late with many acks rightly gets fewer messages
        await asyncio.gather(*[await client.publish_async("foo", b"x") for _ in range(16)])
    await until(lambda: sum(map(len, gots)) == 2048)
    assert all(len(got) > 400 for got in gots), [len(got) for got in gots]
    assert sorted(sequence for got in gots for sequence in got.sequences) == list(range(1, 2049))


async def test_a_fresh_queue_takes_turns(stan):
    """Two members with nothing in flight get messages in turn."""
    await stan.serve()
    client = await stan.client()
    one, two = Got(), Got()
    await client.subscribe("foo", one, queue="q", manual_acks=True)
    await client.subscribe("foo", two, queue="q", manual_acks=True)
    for _ in range(10):
        await client.publish("foo", b"x")
    assert (one.sequences, two.sequences) == ([1, 3, 5, 7, 9], [2, 4, 6, 8, 10])


async def test_queue_and_durable_queue_of_one_name(stan):
    """A queue and a durable queue of the same name share nothing; a colon in the durable's name is refused."""
    await stan.serve()
    client = await stan.client()
    plain, durable = Got(), Got()
    await client.subscribe("foo", plain, queue="q")
    await client.subscribe("foo", durable, queue="q", durable="d")
    for _ in range(5):
        await client.publish("foo", b"x")
    assert plain.sequences == durable.sequences == [1, 2, 3, 4, 5]
    with pytest.raises(ChannelError) as error:
        await client.subscribe("foo", Got(), queue="q", durable="d:e")
    assert error.value.text == Text.INVALID_DURABLE
    await client.subscribe("foo", Got(), durable="d:e")


async def test_a_queue_named_like_a_durable_queue_joins_it(stan):
    """A queue literally called durable:queue is the durable queue of that name."""
    gateway = await stan.serve()
    client = await stan.client()
    await client.subscribe("foo", Got(), queue="q", durable="d")
    await client.subscribe("foo", Got(), queue="d:q")
    assert [len(group.members) for group in gateway.service.channels["foo"].subscribers.groups] == [2]


async def test_a_durable_queue_keeps_its_position(stan):
    """A durable queue that everybody closed goes on where it was, for whoever comes, pending messages first."""
    gateway = await stan.serve()
    one = await stan.client("one")
    got = Got(lambda message: message.ack() if message.sequence != 2 else None)
    await one.subscribe("foo", got, queue="q", durable="d", manual_acks=True, ack_wait=30)
    for _ in range(3):
        await one.publish("foo", b"x")
    await got.count(3)
    await one.close()
    subscribers = gateway.service.channels["foo"].subscribers
    assert len(subscribers) == 1
    assert not subscribers.active
    two = await stan.client("two")
    await two.publish("foo", b"y")
    again = Got()
    subscription = await two.subscribe("foo", again, queue="q", durable="d", start="First")
    await again.count(2)
    assert again.sequences == [2, 4]
    assert again.redelivered == [2]
    await subscription.unsubscribe()
    assert len(subscribers) == 0
    anew = Got()
    await two.subscribe("foo", anew, queue="q", durable="d", start="First")
    await anew.count(4)


async def test_a_queue_is_gone_with_its_last_member(stan):
    """A plain queue forgets its position when the last member leaves, by close or unsubscribe."""
    gateway = await stan.serve()
    client = await stan.client()
    for leave in ("close", "unsubscribe"):
        got = Got()
        one = await client.subscribe("foo", got, queue="q")
        two = await client.subscribe("foo", got, queue="q")
        await getattr(one, leave)()
        assert len(gateway.service.channels["foo"].subscribers) == 1
        await getattr(two, leave)()
        assert len(gateway.service.channels["foo"].subscribers) == 0


async def test_a_leaving_member_hands_over(stan):
    """What a leaving member had pending goes to the others soon, marked as redelivered."""
    await stan.serve()
    client, leaver = await stan.client("stays"), await stan.client("leaves")
    stays, leaves = Got(), Got()
    await leaver.subscribe("foo", leaves, queue="q", manual_acks=True, ack_wait=30)
    await client.subscribe("foo", stays, queue="q", manual_acks=True, ack_wait=30)
    for _ in range(10):
        await client.publish("foo", b"x")
    assert (leaves.sequences, stays.sequences) == ([1, 3, 5, 7, 9], [2, 4, 6, 8, 10])
    await leaver.close()
    await stays.count(10, timeout=5)
    assert stays.redelivered == [1, 3, 5, 7, 9]
    await stays.stays(10)


async def test_a_crashed_member_hands_over(stan):
    """A member whose client dies is found out by its heartbeats, and its messages go to the others."""
    await stan.serve(hb_interval=0.2, hb_timeout=0.5, hb_fail_count=1)
    client, victim = await stan.client("stays"), await stan.client("dies")
    stays, dies = Got(), Got()
    await victim.subscribe("foo", dies, queue="q", manual_acks=True, ack_wait=30)
    await client.subscribe("foo", stays, queue="q", manual_acks=True, ack_wait=30)
    for _ in range(6):
        await client.publish("foo", b"x")
    assert len(dies) == 3
    await victim.connection.close()
    await stays.count(6)
    assert sorted(stays.sequences) == [1, 2, 3, 4, 5, 6]


async def test_redelivery_goes_to_another_member(stan):
    """A message that one member does not acknowledge goes to the one with the least to do; counts go on."""
    gateway = await stan.serve()
    client = await stan.client()
    mute, free = Got(), Got()
    await client.subscribe("foo", mute, queue="q", manual_acks=True, ack_wait=1, max_in_flight=1)
    await client.publish("foo", b"x")
    await mute.count(1)
    await client.subscribe("foo", free, queue="q", manual_acks=True, ack_wait=1)
    await free.count(1)
    assert free.messages[0].redelivery_count == 1
    group = gateway.service.channels["foo"].subscribers.groups[0]
    assert sum(len(member.pending) for member in group.members) == 1
    mute.messages[0].ack()
    await until(lambda: not any(member.pending for member in group.members))
    await asyncio.sleep(1.2)
    assert len(mute) + len(free) == 2, "the first member's late ack settled it for all"


async def test_redelivery_counts_survive_moving(stan):
    """The count belongs to the queue, and grows whichever member gets the message."""
    await stan.serve()
    client = await stan.client()
    gots = [Got(), Got()]
    for got in gots:
        await client.subscribe("foo", got, queue="q", manual_acks=True, ack_wait=1)
    await client.publish("foo", b"x")
    await until(lambda: sum(map(len, gots)) == 4)
    counts = [message.redelivery_count for got in gots for message in got.messages]
    assert sorted(counts) == [0, 1, 2, 3]


async def test_members_with_different_ack_waits(stan):
    """Each member's messages come again by its own ack wait."""
    await stan.serve()
    client = await stan.client()
    short, long = Got(), Got()
    await client.subscribe("foo", short, queue="q", manual_acks=True, ack_wait=1)
    await client.subscribe("foo", long, queue="q", manual_acks=True, ack_wait=30)
    await client.publish("foo", b"1")
    await client.publish("foo", b"2")
    await until(lambda: len(short) + len(long) == 3)
    assert [m.sequence for got in (short, long) for m in got.messages if m.redelivered] == [1]


async def test_max_in_flight_of_a_queue(stan):
    """Each member has its own max in flight; the queue stalls when all are full, and any ack lets one more through."""
    await stan.serve()
    client = await stan.client()
    one, two = Got(), Got()
    await client.subscribe("foo", one, queue="q", manual_acks=True, max_in_flight=1, ack_wait=30)
    await client.subscribe("foo", two, queue="q", manual_acks=True, max_in_flight=3, ack_wait=30)
    for _ in range(8):
        await client.publish("foo", b"x")
    await until(lambda: (len(one), len(two)) == (1, 3))
    two.messages[0].ack()
    await two.count(4)
    one.messages[0].ack()
    await one.count(2)
    assert (len(one), len(two)) == (2, 4)


async def test_a_new_member_releases_a_stalled_queue(stan):
    """When all are full, somebody who joins gets the next messages."""
    await stan.serve()
    client = await stan.client()
    full, fresh = Got(), Got()
    await client.subscribe("foo", full, queue="q", manual_acks=True, max_in_flight=1, ack_wait=30)
    for _ in range(3):
        await client.publish("foo", b"x")
    assert len(full) == 1
    await client.subscribe("foo", fresh, queue="q", manual_acks=True, ack_wait=30)
    await fresh.count(2)
    assert fresh.sequences == [2, 3]


async def test_a_full_member_that_leaves_does_not_stall_the_rest(stan):
    """When a full member leaves, the others go on, and get its messages, too."""
    await stan.serve()
    client = await stan.client()
    full, free = Got(), Got()
    leaving = await client.subscribe("foo", full, queue="q", manual_acks=True, max_in_flight=1, ack_wait=30)
    await client.subscribe("foo", free, queue="q", ack_wait=30)
    for _ in range(5):
        await client.publish("foo", b"x")
    await leaving.unsubscribe()
    await client.publish("foo", b"x")
    await until(lambda: sorted(set(full.sequences + free.sequences)) == [1, 2, 3, 4, 5, 6])
    await until(lambda: set(free.sequences) >= set(full.sequences))


async def test_a_sick_member_is_passed_over(stan):
    """A member that misses heartbeats gets no new messages while a sound one is there; its own go to the sound one."""
    gateway = await stan.serve(hb_interval=0.1, hb_timeout=0.05, hb_fail_count=1000)
    client = await stan.client("sound")
    sick = await stan.raw("sick")
    await sick.connect()
    lost, sound = [], Got()
    await sick.subscribe("foo", lost.append, qGroup="q", ackWaitInSecs=1)
    await client.subscribe("foo", sound, queue="q", ack_wait=1)
    await client.publish("foo", b"x")
    await until(lambda: len(lost) == 1)
    sick.answers_heartbeats = False
    await until(lambda: gateway.service.clients.by_id.get("sick").failures > 0)
    for _ in range(4):
        await client.publish("foo", b"x")
    await sound.count(5)
    assert len(lost) == 1
    assert sound.redelivered == [1]


async def test_rejoining_a_durable_queue_redelivers(stan):
    """The first to come back to a durable queue gets what was pending; others that come get new messages."""
    await stan.serve()
    client = await stan.client("one")
    got = Got()
    await client.subscribe("foo", got, queue="q", durable="d", manual_acks=True, ack_wait=30)
    for _ in range(4):
        await client.publish("foo", b"x")
    await got.count(4)
    await client.close()
    back = await stan.client("two")
    first, second = Got(), Got()
    await back.subscribe("foo", first, queue="q", durable="d", ack_wait=30)
    await back.subscribe("foo", second, queue="q", durable="d", ack_wait=30)
    await first.count(4)
    assert first.redelivered == [1, 2, 3, 4]
    for _ in range(4):
        await back.publish("foo", b"y")
    await until(lambda: len(first) + len(second) == 8)
    assert not second.redelivered
