"""Limits of channels, monitoring, and a channel's life from its first message to its deletion."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest

from penstock.channels import ChannelLimits, Limits
from penstock.channels.limits import gather_limits
from penstock.channels.wire import MsgProto, Text
from penstock.connection import api_request
from penstock.errors import ChannelError, NotFoundError, OptionError, ServerError
from tests.live.stan import Got, until


def only(**limits) -> Limits:
    return Limits(default=ChannelLimits(**limits))


async def held(stan, channel: str) -> list[int]:
    """Ask JetStream which sequences a channel's stream holds."""
    connection = await stan.connection()
    state = (await api_request(connection, f"STREAM.INFO.{stan.stream(channel)}"))["state"]
    return list(range(state["first_seq"], state["last_seq"] + 1)) if state["messages"] else []


async def test_too_many_channels(stan):
    """The channel that is one too many is refused, to publishers and subscribers, by the text without a prefix."""
    await stan.serve(limits=Limits(channels=2))
    client = await stan.client()
    await client.publish("one", b"x")
    await client.subscribe("two", Got())
    for call in (client.publish("three", b"x"), client.subscribe("three", Got())):
        with pytest.raises(ChannelError) as error:
            await call
        assert error.value.text == "too many channels"
    futures = [await client.publish_async(f"many{number}", b"x") for number in range(5)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, ChannelError) for result in results)
    await client.publish("two", b"x")


async def test_too_many_subscriptions(stan):
    """A channel's subscriptions are counted, durable ones that are offline included; resuming is not a new one."""
    await stan.serve(limits=only(max_subs=2))
    client = await stan.client()
    subscription = await client.subscribe("foo", Got(), durable="d")
    await subscription.close()
    plain = await client.subscribe("foo", Got())
    with pytest.raises(ChannelError) as error:
        await client.subscribe("foo", Got())
    assert error.value.text == Text.TOO_MANY_SUBSCRIPTIONS
    await client.subscribe("foo", Got(), durable="d")
    await plain.unsubscribe()
    await client.subscribe("foo", Got())


async def test_max_messages(stan):
    """The oldest messages make room for the newest, and sequences go on."""
    await stan.serve(limits=only(max_msgs=3))
    client = await stan.client()
    for number in range(10):
        await client.publish("foo", b"%d" % number)
    assert await held(stan, "foo") == [8, 9, 10]
    got = Got()
    await client.subscribe("foo", got, start="First")
    await got.stays(3, 0.1)
    assert got.sequences == [8, 9, 10]


async def test_max_bytes(stan):
    """Bytes are those of the messages as they are delivered; the newest stays even if it is larger than the limit."""
    size = len(MsgProto(sequence=1, subject="foo", data=b"x" * 100, timestamp=1700000000000000000).SerializeToString())
    await stan.serve(limits=only(max_bytes=size * 5))
    client = await stan.client()
    for _ in range(5):
        await client.publish("foo", b"x" * 100)
    assert await held(stan, "foo") == [1, 2, 3, 4, 5]
    for _ in range(3):
        await client.publish("foo", b"x" * 100)
    assert await held(stan, "foo") == [4, 5, 6, 7, 8]
    await client.publish("foo", b"x" * 5000)
    assert await held(stan, "foo") == [9]
    await client.publish("foo", b"x")
    assert await held(stan, "foo") == [10]


async def test_max_bytes_of_batches_and_after_a_restart(stan):
    """The bytes are known again after a restart, and a batch of publishes is trimmed like single ones."""
    size = len(MsgProto(sequence=1, subject="foo", data=b"x" * 100, timestamp=1700000000000000000).SerializeToString())
    gateway = await stan.serve(limits=only(max_bytes=size * 50))
    client = await stan.client()
    await asyncio.gather(*[await client.publish_async("foo", b"x" * 100) for _ in range(40)])
    await gateway.stop()
    await stan.serve(limits=only(max_bytes=size * 50))
    await asyncio.gather(*[await client.publish_async("foo", b"x" * 100) for _ in range(40)])
    assert await held(stan, "foo") == list(range(31, 81))


async def test_max_age(stan):
    """Messages go when they are old enough, all of them; sequences go on after that, and every start means new."""
    await stan.serve(limits=only(max_age=0.5))
    client = await stan.client()
    for _ in range(3):
        await client.publish("foo", b"x")
    await asyncio.sleep(0.6)
    while await held(stan, "foo"):
        await asyncio.sleep(0.05)
    gots = [Got() for _ in range(5)]
    starts = [{"start": "First"}, {"start": "LastReceived"}, {"sequence": 1}, {"since": 100.0}, {}]
    for got, start in zip(gots, starts, strict=True):
        await client.subscribe("foo", got, **start)
    await client.publish("foo", b"new")
    for got in gots:
        await got.count(1)
        assert got.sequences == [4]


async def test_limits_of_patterns(stan):
    """A channel has the limits of the narrowest pattern that matches it."""
    patterns = gather_limits(["orders.>:max_msgs=5", "orders.*:max_msgs=3", "orders.eu:max_msgs=-1"])
    await stan.serve(limits=Limits(default=ChannelLimits(max_msgs=2), patterns=patterns))
    client = await stan.client()
    for channel, count in (("other", 2), ("orders.a.b", 5), ("orders.us", 3), ("orders.eu", 8)):
        for _ in range(8):
            await client.publish(channel, b"x")
        assert len(await held(stan, channel)) == count


async def test_limits_apply_to_new_data(stan):
    """Narrower limits after a restart drop nothing by themselves; the next message makes them felt."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(10):
        await client.publish("foo", b"x")
    await gateway.stop()
    await stan.serve(limits=only(max_msgs=4))
    assert len(await held(stan, "foo")) == 10
    got = Got()
    await client.subscribe("foo", got, start="First")
    await got.count(10)
    await client.publish("foo", b"x")
    assert await held(stan, "foo") == [8, 9, 10, 11]


async def test_slow_subscribers_skip_what_was_dropped(stan):
    """A subscriber, or a queue, that is behind moves on to the oldest message that is still there."""
    gateway = await stan.serve(limits=only(max_msgs=5))
    client = await stan.client()
    for kind in ({}, {"queue": "q"}):
        channel = f"foo{len(kind)}"
        got = Got()
        await client.subscribe(channel, got, manual_acks=True, max_in_flight=1, ack_wait=30, **kind)
        for _ in range(20):
            await client.publish(channel, b"x")
        await got.count(1)
        got.messages[0].ack()
        await got.count(2)
        assert got.sequences == [1, 16]
        assert gateway.service.channels[channel].stream.first == 16


async def test_inactivity(stan):
    """A channel that nobody uses is deleted with all that belongs to it; a subscriber or a publisher keeps it."""
    gateway = await stan.serve(limits=only(max_inactivity=1.5))
    client = await stan.client()
    service = gateway.service
    await client.publish("idle", b"x")
    await client.subscribe("used", Got())
    offline = await client.subscribe("durable", Got(), durable="d")
    await offline.close()
    while {"idle", "durable"} & service.channels.keys():
        await client.publish("busy", b"x")
        await asyncio.sleep(0.05)
    assert sorted(service.channels) == ["busy", "used"]
    await until(lambda: "busy" not in service.channels)
    with pytest.raises(NotFoundError):
        await held(stan, "idle")
    got = Got()
    await client.subscribe("idle", got, start="First")
    await client.publish("idle", b"anew")
    await got.count(1)
    assert got.sequences == [1]


async def test_a_new_subscription_stops_the_clock(stan):
    """A channel about to be deleted stays when somebody subscribes in time."""
    gateway = await stan.serve(limits=only(max_inactivity=0.6))
    client = await stan.client()
    await client.publish("foo", b"x")
    await asyncio.sleep(0.3)
    subscription = await client.subscribe("foo", Got())
    await asyncio.sleep(0.6)
    assert "foo" in gateway.service.channels
    await subscription.close()
    await until(lambda: "foo" not in gateway.service.channels)


async def test_monitoring(stan):
    """The pages of the old server say what is there, with the names that they had."""
    gateway = await stan.serve(monitor="127.0.0.1:0")
    client = await stan.client("me")
    got = Got()
    await client.subscribe("foo", got, durable="d", manual_acks=True, max_in_flight=2, ack_wait=30)
    queued = await client.subscribe("foo", Got(), queue="q", durable="e")
    await queued.close()
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(2)

    async def page(path: str) -> dict:
        def read() -> bytes:
            with urllib.request.urlopen(f"{gateway.monitor_url}/{path}", timeout=5) as answer:
                return answer.read()

        return json.loads(await asyncio.to_thread(read))

    server = await page("serverz")
    assert server["cluster_id"] == stan.cluster
    assert (server["clients"], server["channels"], server["subscriptions"]) == (1, 1, 2)
    assert (server["total_msgs"], server["in_msgs"], server["out_msgs"]) == (3, 3, 2)
    assert (await page("storez"))["limits"]["max_msgs"] == 1_000_000
    clients = await page("clientsz?subs=1")
    assert clients["clients"][0]["id"] == "me"
    assert len(clients["clients"][0]["subscriptions"]["foo"]) == 1
    assert (await page("clientsz?client=me"))["subs_count"] == 1
    assert (await page("channelsz"))["names"] == ["foo"]
    channel = (await page("channelsz?subs=1"))["channels"][0]
    assert (channel["msgs"], channel["first_seq"], channel["last_seq"]) == (3, 1, 3)
    one, two = channel["subscriptions"]
    assert set(one) == {
        *("client_id", "inbox", "ack_inbox", "durable_name", "is_durable", "is_offline"),
        *("max_inflight", "ack_wait", "last_sent", "pending_count", "is_stalled"),
    }
    assert (one["durable_name"], one["pending_count"], one["is_stalled"], one["last_sent"]) == ("d", 2, True, 2)
    assert (two["queue_name"], two["is_offline"], two["is_durable"]) == ("e:q", True, True)
    for path, status in (("channelsz?channel=none", 404), ("clientsz?client=none", 404), ("else", 404)):
        with pytest.raises(urllib.error.HTTPError) as error:
            await page(path)
        assert error.value.code == status
        error.value.close()


async def test_one_cluster_has_one_gateway(stan):
    """A second gateway for the same cluster refuses to start, and says what to do."""
    await stan.serve()
    with pytest.raises(ServerError, match="served by somebody else") as error:
        await stan.serve()
    assert "--standby" in error.value.remedy
    client = await stan.client()
    await client.publish("foo", b"x")


async def test_unknown_options_are_refused(stan):
    """An option that a gateway does not have is refused before anything is opened."""
    with pytest.raises(OptionError, match="no option 'max_magic'"):
        await stan.serve(max_magic=1)


async def test_a_subject_that_is_taken(stan):
    """A channel whose subject another stream holds is refused with the server's reason; others go on."""
    connection = await stan.connection()
    name = f"{stan.cluster}:"
    await api_request(connection, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{stan.cluster}.taken.>"]})
    await stan.serve()
    client = await stan.client()
    with pytest.raises(ChannelError, match="overlap"):
        await client.publish("taken.foo", b"x")
    await client.publish("foo", b"x")
