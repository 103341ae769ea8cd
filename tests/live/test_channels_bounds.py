"""Bounds and odd times: large messages, slow servers, lost answers, and streams that others change."""

from __future__ import annotations

import asyncio

import pytest

from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelStream
from penstock.channels.store import Store
from penstock.connection import api_request, connect
from penstock.connection.asking import store_frames
from penstock.errors import ChannelError, DeadlineError
from tests.channels_sets import deliveries, new_messages
from tests.live.cable import relay
from tests.live.stan import Got, until
from tests.scripted import Asked, log_in, playing, serve
from tests.scripted_stream import STREAM, Good

LARGE = 300_000


async def member_of(stan, channel: str):
    [member] = stan.gateways[-1].service.channels[channel].subscribers.members
    return member


async def forget_recent(stan, channel: str) -> None:
    """Make the gateway read from the stream, as it does for whoever is far behind."""
    stan.gateways[-1].service.channels[channel].recent.drop_before(1 << 62)


async def test_large_messages_are_read_ahead_by_bytes(stan):
    """A subscriber that is behind holds a few megabytes at the gateway, however many large messages wait for it."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(40):
        await client.publish("foo", b"x" * LARGE)
    await forget_recent(stan, "foo")
    held: list[int] = []

    def act(message) -> None:
        held.append(gateway.service.shared.held)
        message.ack()

    got = Got(act)
    subscription = await client.subscribe("foo", got, start="First", max_in_flight=1, manual_acks=True)
    await got.count(40)
    assert got.sequences == list(range(1, 41))
    assert 0 < max(held) < 3 * 1024 * 1024
    await subscription.close()
    assert gateway.service.shared.held == 0, "and nothing when it is gone"


async def test_large_messages_come_again_by_bytes(stan):
    """Large messages that a durable had pending all come again, in order, though they do not fit one read."""
    await stan.serve()
    client = await stan.client()
    got = Got()
    subscription = await client.subscribe("foo", got, durable="d", manual_acks=True)
    for _ in range(20):
        await client.publish("foo", b"x" * LARGE)
    await got.count(20)
    await subscription.close()
    await forget_recent(stan, "foo")
    again = Got(lambda message: message.ack())
    await client.subscribe("foo", again, durable="d", manual_acks=True, max_in_flight=1)
    await again.count(20)
    assert again.redelivered == list(range(1, 21))


async def test_large_messages_over_a_restart(stan):
    """After a restart large messages that were pending come again, each once, before new ones."""
    gateway = await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=3)
    for _ in range(8):
        await client.publish("foo", b"x" * LARGE)
    await got.count(8)
    await gateway.stop()
    got._act = lambda message: message.ack()
    await asyncio.sleep(3.0)  # the ack wait, so that all of them are due
    await stan.serve()
    await client.publish("foo", b"new")
    await got.count(17)
    assert got.sequences[8:] == [*range(1, 9), 9]
    assert got.redelivered == list(range(1, 9))


async def test_a_deleted_message_is_not_waited_for(stan):
    """A message that somebody deleted in the middle of a stream is settled when it would come again."""
    await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)
    got.messages[0].ack()
    got.messages[2].ack()
    await forget_recent(stan, "foo")
    await api_request(connection, f"STREAM.MSG.DELETE.{stan.stream('foo')}", {"seq": 2})
    member = await member_of(stan, "foo")
    await until(lambda: not member.pending)
    assert got.sequences == [1, 2, 3]


async def test_an_end_that_is_gone_keeps_nobody_busy(stan):
    """Where the last messages of a stream were deleted, a stalled feed does not ask for them again and again."""
    gateway = await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    for _ in range(10):
        await client.publish("foo", b"x")
    await forget_recent(stan, "foo")
    for sequence in (8, 9, 10):
        await api_request(connection, f"STREAM.MSG.DELETE.{stan.stream('foo')}", {"seq": sequence})
    got = Got()
    await client.subscribe("foo", got, start="First", max_in_flight=1, manual_acks=True)
    await got.count(1)
    asked = gateway._back._requests
    before = asked._number
    await asyncio.sleep(0.3)
    assert asked._number - before < 5
    got._act = lambda message: message.ack()
    got.messages[0].ack()
    await client.publish("foo", b"new")
    await got.count(8)
    assert got.sequences == [1, 2, 3, 4, 5, 6, 7, 11]


async def test_a_stream_that_was_deleted_is_made_again(stan):
    """A channel outlives its stream: what was in it is gone, sequences go on, and subscribers get what is new."""
    await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    got = Got()
    await client.subscribe("foo", got)
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)
    await api_request(connection, f"STREAM.DELETE.{stan.stream('foo')}")
    await client.publish("foo", b"new")
    await got.count(4)
    assert got.sequences == [1, 2, 3, 4]
    first = Got()
    await client.subscribe("foo", first, start="First")
    await first.count(1)
    assert first.sequences == [4]


async def test_a_deleted_stream_is_noticed(stan):
    """A stream that is deleted while a subscriber waits is made again without a publish."""
    await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    await client.subscribe("foo", Got())
    await client.publish("foo", b"x")
    await api_request(connection, f"STREAM.DELETE.{stan.stream('foo')}")
    info = None

    async def there() -> bool:
        nonlocal info
        names = (await api_request(connection, "STREAM.NAMES")).get("streams") or []
        if stan.stream("foo") in names:
            info = await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}")
        return info is not None

    async with asyncio.timeout(20):
        while not await there():
            await asyncio.sleep(0.05)
    assert info["state"]["last_seq"] == 1, "no sequence is given twice"


class Losing:
    """Stores frames, and fails as if their ack was lost, or as if they arrived late."""

    def __init__(self) -> None:
        self.lose = self.delay = 0
        self._late = []

    async def __call__(self, connection, make, subjects, **rest):
        if self.delay:
            self.delay -= 1
            self._late.append(make)
            raise DeadlineError("late")
        for late in self._late:
            connection.post(late(b"_INBOX.nobody"))
        self._late.clear()
        answer = await store_frames(connection, make, subjects, **rest)
        if self.lose:
            self.lose -= 1
            raise DeadlineError("lost")
        return answer


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("trouble", ["lose", "delay"])
async def test_a_lost_or_late_answer_stores_nothing_twice(stan, monkeypatch, trouble, large):
    """A batch whose answer is lost, or which the server takes only when it was sent again, is stored once."""
    store = Store(await stan.connection(), stan.cluster, prefix=f"{stan.cluster}.")
    stream = await store.create("foo", ChannelLimits())
    losing = Losing()
    monkeypatch.setattr("penstock.channels.store.store_frames", losing)
    setattr(losing, trouble, 1)
    contents = [b"%d" % number + b"x" * (LARGE if large else 0) for number in range(12)]
    stored = deliveries(await store.append(stream, new_messages(*contents)))
    assert [sequence for sequence, _ in stored] == list(range(1, 13))
    kept: dict = {}
    while len(kept) < 12:
        found, _ = await store.fetch(stream, list(range(len(kept) + 1, 13)))
        kept |= found
    assert [kept[sequence].data for sequence in range(1, 13)] == contents
    described = await store.describe("foo")
    assert described["state"]["last_seq"] == 12
    assert [kept[sequence].encode("foo") for sequence in range(1, 13)] == [content for _, content in stored]


async def test_pings_do_not_outrun_missed_heartbeats(stan):
    """A client that pings often and answers no heartbeat is closed all the same, and leaves nothing behind."""
    gateway = await stan.serve(hb_interval=0.1, hb_timeout=0.2, hb_fail_count=2)
    raw = await stan.raw("me")
    raw.answers_heartbeats = False
    await raw.connect()
    clients = gateway.service.clients
    ping = b"\x0a%c%b" % (len(raw.conn_id), raw.conn_id)
    async with asyncio.timeout(20):
        while clients.by_id.get("me") is not None:
            await raw.ask(f"_STAN.discover.{stan.cluster}.pings", ping, timeout=1.0)
            await asyncio.sleep(0.02)
    assert not clients._waiting
    assert raw.heartbeats >= 3


async def test_deliveries_come_before_the_ack(stan):
    """On one connection a subscriber has a message before its publisher has the ack, batch by batch."""
    await stan.serve()
    raw = await stan.raw("me")
    await raw.connect()
    order: list[str] = []
    await raw.subscribe("foo", lambda message: order.append(f"message {message.sequence}"), maxInFlight=100)
    for number in range(1, 6):
        await raw.publish("foo")
        order.append(f"ack {number}")
    assert order == [f"{what} {number}" for number in range(1, 6) for what in ("message", "ack")]


async def test_a_resumed_durable_has_a_new_ack_inbox(stan):
    """Each subscribe gives an ack inbox that nobody had; an ack to the old one changes nothing."""
    await stan.serve()
    raw = await stan.raw("me")
    await raw.connect()
    one = await raw.subscribe("foo", durableName="d")
    await raw.leave("subclose", "foo", one.ackInbox)
    got = []
    two = await raw.subscribe("foo", got.append, durableName="d", ackWaitInSecs=30)
    assert two.ackInbox != one.ackInbox
    await raw.publish("foo")
    await until(lambda: len(got) == 1)
    member = await member_of(stan, "foo")
    raw.ack(one.ackInbox, "foo", 1)
    await raw.connection.flush()
    assert (await raw.publish("foo")).error == ""
    assert 1 in member.pending
    raw.ack(two.ackInbox, "foo", 1)
    await until(lambda: 1 not in member.pending)


async def test_a_stream_that_does_not_take_its_subject_any_more(stan):
    """A publisher to a channel whose stream was given another subject is refused, not kept waiting; others go on."""
    await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    await client.publish("foo", b"x")
    config = (await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}"))["config"]
    await api_request(connection, f"STREAM.UPDATE.{stan.stream('foo')}", {**config, "subjects": ["elsewhere.foo"]})
    with pytest.raises(ChannelError, match="No stream takes this message"):
        await client.publish("foo", b"y")
    await client.publish("bar", b"x")
    await api_request(connection, f"STREAM.UPDATE.{stan.stream('foo')}", config)
    await client.publish("foo", b"z")
    await client.subscribe("foo", got := Got(), start="First")
    await got.count(2)
    assert got.data == [b"x", b"z"]


async def test_a_connection_that_breaks_in_the_middle_of_a_batch(stan, server):
    """Messages whose batch was on its way when the connection broke are stored once each, in order."""
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.01) as connection:
        store = Store(connection, stan.cluster, prefix=f"{stan.cluster}.")
        stream = await store.create("foo", ChannelLimits())
        contents = [b"%d" % number for number in range(600)]
        for place in range(0, 600, 100):
            wire.cut_up_at = wire.up + 3_000 + 40 * place  # somewhere in the frames of this part
            stored = deliveries(await store.append(stream, new_messages(*contents[place : place + 100])))
            assert [sequence for sequence, _ in stored] == list(range(place + 1, place + 101))
        assert wire.cuts > 3
        kept: dict = {}
        while len(kept) < 600:
            found, _ = await store.fetch(stream, list(range(len(kept) + 1, 601)))
            kept |= found
        assert [kept[sequence].data for sequence in range(1, 601)] == contents


async def test_little_room_for_the_newest_messages_loses_none(stan, monkeypatch):
    """What is no longer in memory comes from the stream, in order, each once, also between what others wrote there."""
    monkeypatch.setattr("penstock.channels.channel._RECENT", 30_000)
    gateway = await stan.serve()
    client, connection = await stan.client(), await stan.connection()
    for number in range(1, 61):
        for channel in ("one", "two", "three"):
            await client.publish(channel, b"%d" % number)
        if number % 20 == 0:
            await connection.request(f"{stan.cluster}.one", b"other")
    assert 0 < gateway.service.shared.recent.used <= 30_000
    for channel, count in (("one", 63), ("two", 60), ("three", 60)):
        recent = gateway.service.channels[channel].recent
        assert recent.size > 0
        assert 1 not in recent
        got = Got()
        await client.subscribe(channel, got, start="First")
        await got.stays(count)
        assert got.sequences == list(range(1, count + 1))
        assert [data for data in got.data if data != b"other"] == [b"%d" % number for number in range(1, 61)]


async def test_an_ack_that_does_not_count_a_batch_is_a_doubt():
    """Messages whose batch was acknowledged as a single message are looked for, and stored if they are not there."""
    commits = []

    def atomic(asked: Asked) -> bytes:
        if b"Nats-Batch-Commit" in asked.header:
            commits.append(asked)
        return Good().ack(asked) if len(commits) == 1 else Good().atomic(asked)

    stream = ChannelStream("x", "S", "s.x", ChannelLimits(), STREAM["created"], last=3)
    with playing(log_in(), serve(atomic=atomic)) as server:
        async with await connect(server.url) as nc:
            stored = deliveries(await Store(nc, "c").append(stream, new_messages(*[b"hello"] * 30)))
            assert [sequence for sequence, _ in stored] == list(range(4, 34))
            assert len(commits) == 2
