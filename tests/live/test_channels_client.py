"""What clients of NATS Streaming rely on: connecting, publishing, subscribing, staying alive."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.channels import Client
from penstock.channels.link import frame
from penstock.channels.wire import Text, UnsubscribeRequest
from penstock.errors import ChannelError, DeadlineError, DisconnectedError, LocalProtocolError, OptionError
from penstock.server import Server
from tests.live.stan import Got, cluster_of, until


@pytest.fixture
async def stan(server, unique):
    async with cluster_of(server.url, unique("c")) as made:
        yield made


async def test_connect_and_close(stan):
    """A client is registered until it closes; to close it a second time is refused by the server."""
    gateway = await stan.serve()
    client = await stan.client("me")
    assert gateway.service.clients.get("me") is not None
    await client.close()
    assert gateway.service.clients.get("me") is None
    raw = await stan.raw("me")
    assert (await raw.close()).error == Text.UNKNOWN_CLIENT
    await client.close()
    with pytest.raises(DisconnectedError):
        await client.publish("foo", b"x")


async def test_borrowed_connection(stan):
    """A connection that the client was given stays open when the client closes; one of its own does not."""
    await stan.serve()
    connection = await stan.connection()
    client = Client(connection, cluster_id=stan.cluster, client_id="borrower")
    async with client:
        await client.publish("foo", b"x")
    assert connection.is_connected
    owner = await stan.client("owner")
    below = owner.connection
    await owner.close()
    assert below.is_closed


async def test_sync_publishes(stan):
    """1024 publishes, each after the ack of the one before, are stored in order from sequence 1."""
    gateway = await stan.serve()
    client = await stan.client()
    for number in range(1024):
        await client.publish("foo", b"%d" % number)
    assert gateway.service.channels["foo"].log.last == 1024
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


async def test_close_cleans_up(stan):
    """Closing a client ends its subscriptions at the gateway."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(3):
        await client.subscribe("foo", Got())
    assert len(gateway.service.channels["foo"].subscribers) == 3
    await client.close()
    assert len(gateway.service.channels["foo"].subscribers) == 0
    assert not gateway.service._acks


async def test_duplicate_id(stan):
    """A second client with the same id is refused at once while the first is alive, and the first goes on."""
    await stan.serve(duplicate_timeout=60.0)
    first = await stan.client("same")
    with pytest.raises(ChannelError) as error:
        await stan.client("same", connect_timeout=20.0)  # a refusal does not wait for the time that silence takes
    assert error.value.text == Text.CLIENT_EXISTS
    await first.publish("foo", b"still here")


async def test_wrong_cluster(stan):
    """A cluster id that nobody serves is told by a deadline, and the error says what to check."""
    with pytest.raises(DeadlineError, match=f"No server of the cluster {stan.cluster}"):
        await stan.client(connect_timeout=0.3)


async def test_failed_connect_leaves_nothing(stan):
    """A connect that fails on a borrowed connection leaves no subscription behind."""
    connection = await stan.connection()
    before = len(connection._subs)
    client = Client(connection, cluster_id=stan.cluster, client_id="me", connect_timeout=0.2)
    with pytest.raises(DeadlineError):
        await client.connect()
    assert len(connection._subs) == before


async def test_silent_client_is_replaced(stan):
    """A client that does not answer loses its id after half a second, and its publishes and pings are refused."""
    await stan.serve()
    old = await stan.raw("same")
    assert not (await old.connect()).error
    old.answers_heartbeats = False
    began = time.monotonic()
    new = await stan.client("same")
    assert time.monotonic() - began > 0.4
    assert old.heartbeats == 1
    assert (await old.publish("foo")).error == Text.INVALID_PUBLISH
    await new.publish("foo", b"x")
    await new.close()
    assert (await old.close()).error == Text.UNKNOWN_CLIENT


async def test_reconnect_without_close(stan):
    """A client whose NATS connection died comes back under its id, after the half second that NATS cannot shorten.

    NATS reports at once that nobody listens on the old heartbeat inbox. That is taken for silence, not for an answer.
    """
    await stan.serve()
    old = await stan.client("same")
    await old.subscribe("foo", Got(), durable="d")
    await old.connection.close()
    began = time.monotonic()
    new = await stan.client("same")
    assert time.monotonic() - began > 0.4
    got = Got()
    await new.subscribe("foo", got, durable="d")
    await new.publish("foo", b"x")
    await got.count(1)


async def test_ping_says_replaced(stan):
    """A replaced client hears it with its next ping: on_lost gets the server's words, and all else raises them."""
    await stan.serve()
    heard: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def lost(error: Exception) -> None:
        heard.set_result(error)

    client = await stan.client("same", ping_interval=-50, on_lost=lost)
    waiting = await client.subscribe("foo", Got())
    raw = await stan.raw("same")
    await raw.close()
    error = await asyncio.wait_for(heard, 10)
    assert error.text == "client has been replaced or is no longer registered"
    assert waiting._ended
    for call in (client.publish("foo", b"x"), client.subscribe("foo", Got()), client.publish_async("foo", b"x")):
        with pytest.raises(ChannelError, match="replaced"):
            await call


async def test_missing_pongs(stan):
    """A client whose pings are not answered gives up after as many as it allows, and publishers that wait are freed."""
    gateway = await stan.serve()
    heard: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def lost(error: Exception) -> None:
        heard.set_result(error)

    client = await stan.client(ping_interval=-50, ping_max_out=2, on_lost=lost)
    await gateway.stop()
    unacked = await client.publish_async("foo", b"x")
    error = await asyncio.wait_for(heard, 10)
    assert error.text == "stan: connection lost due to PING failure"
    with pytest.raises(ChannelError, match="PING failure"):
        await unacked


async def test_closing_calls_nobody(stan):
    """on_lost is silent when the client closes in order."""
    await stan.serve()
    heard = []

    async def lost(error: Exception) -> None:
        heard.append(error)

    client = await stan.client(ping_interval=-20, on_lost=lost)
    await asyncio.sleep(0.1)
    await client.close()
    await asyncio.sleep(0.1)
    assert not heard


async def test_pings(stan):
    """A ping of a known connection gets an empty answer; of an unknown one, the text; bad ones get silence."""
    await stan.serve()
    raw = await stan.raw()
    response = await raw.connect(interval=7, out=9)
    assert (response.pingInterval, response.pingMaxOut, response.protocol) == (7, 9, 1)
    assert response.pingRequests == f"_STAN.discover.{stan.cluster}.pings"
    pings = response.pingRequests
    assert await raw.ask(pings, b"\x0a%c%b" % (len(raw.conn_id), raw.conn_id)) == b""
    assert Text.REPLACED.encode() in await raw.ask(pings, b"\x0a\x02xx")
    assert await raw.ask(pings, b"", timeout=0.3) is None
    assert await raw.ask(pings, b"dummy", timeout=0.3) is None


@pytest.mark.parametrize("interval", [-50, 5, 0])
async def test_ping_numbers_are_echoed(stan, interval):
    """The server gives a client's ping numbers back as they are, negative ones included."""
    await stan.serve()
    raw = await stan.raw()
    assert (await raw.connect(interval=interval, out=88)).pingInterval == interval


async def test_old_protocol_gets_no_ping_subject(stan):
    """A client of protocol 0 is told nothing about pings, and publishes by its id alone."""
    await stan.serve()
    raw = await stan.raw()
    response = await raw.connect(protocol=0)
    assert (response.pingRequests, response.pingInterval, response.pingMaxOut) == ("", 0, 0)
    assert response.protocol == 1
    assert response.subCloseRequests == f"_STAN.subclose.{stan.cluster}"
    assert (await raw.publish("foo", connID=b"")).error == ""


async def test_start_at_time(stan):
    """A subscription that starts some time ago gets what was published since then, by the server's clock."""
    await stan.serve()
    client = await stan.client()
    for _ in range(5):
        await client.publish("foo", b"old")
    await asyncio.sleep(0.6)
    middle = time.time() - 0.3  # the way there takes time, too
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
    stan.gateways[0].service.channels["foo"].recent.clear()
    await client.subscribe("foo", got, start="First")
    await got.count(2)
    assert [message.reply for message in got.messages] == ["_INBOX.answer"] * 2


async def test_bad_input_is_refused_before_anything_is_sent(stan):
    """What cannot be right is refused by the client itself."""
    await stan.serve()
    client = await stan.client()
    with pytest.raises(LocalProtocolError):
        await client.publish("foo.*", b"x")
    with pytest.raises(LocalProtocolError, match="larger"):
        await client.publish("foo", b"x" * (1024 * 1024))
    with pytest.raises(OptionError):
        await client.subscribe("foo", Got(), ack_wait=0.02)
    with pytest.raises(OptionError):
        await client.subscribe("foo", Got(), start="Sometime")
    with pytest.raises(OptionError):
        Client(stan.url, client_id="not ok")


async def test_timeouts_on_requests(stan):
    """Each request that nobody answers is told by a deadline."""
    gateway = await stan.serve()
    client = await stan.client(connect_timeout=0.3, ack_timeout=0.3)
    subscription = await client.subscribe("foo", Got())
    await gateway.stop()
    for call in (
        client.publish("foo", b"x"),
        client.subscribe("foo", Got()),
        subscription.unsubscribe(),
        client.close(),
    ):
        with pytest.raises(DeadlineError):
            await call


async def test_a_subscription_that_timed_out_is_closed_by_its_inbox(stan):
    """A close that names the delivery inbox, and no reply, ends a subscription whose answer the client never saw."""
    gateway = await stan.serve()
    raw = await stan.raw()
    await raw.connect()
    inbox = "_INBOX.lost"
    await raw.subscribe("foo", lambda message: None, inbox=inbox)
    assert len(gateway.service.channels["foo"].subscribers) == 1
    request = UnsubscribeRequest(clientID="me", subject="foo", inbox=inbox).SerializeToString()
    raw.connection.post(frame(f"_STAN.subclose.{stan.cluster}".encode(), request))
    await until(lambda: len(gateway.service.channels["foo"].subscribers) == 0)


async def test_login(unique):
    """Gateway and clients log in to NATS with user and password, as any NATS client does."""
    config = 'authorization { user: "foo", password: "bar" }'
    with Server(sync="2m", auth=False, config=config) as guarded:
        url = guarded.url.replace("nats://", "nats://foo:bar@")
        async with cluster_of(url, unique("c")) as stan:
            await stan.serve()
            client = await stan.client()
            got = Got()
            await client.subscribe("foo", got)
            await client.publish("foo", b"x")
            await got.count(1)


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


async def test_a_subscribe_that_timed_out_leaves_nothing_at_the_server(stan):
    """A client that gave up waiting for a subscription tells the server so, by the inbox, and asks for no answer."""
    gateway = await stan.serve()
    client = await stan.client()
    client._connect_timeout = 1e-6
    with pytest.raises(DeadlineError):
        await client.subscribe("foo", Got())
    await client.publish("foo", b"x")  # requests are handled in order
    assert "foo" in gateway.service.channels
    assert len(gateway.service.channels["foo"].subscribers) == 0
    client._connect_timeout = 2.0


async def test_on_lost_that_fails(stan, caplog):
    """An on_lost that raises is told in the log, and the client is closed all the same."""

    async def fail(reason) -> None:
        raise RuntimeError("no luck")

    gateway = await stan.serve()
    client = await stan.client(ping_interval=-20, on_lost=fail)
    known = gateway.service.clients
    known.remove(known.get("me"))
    await until(lambda: "on_lost failed itself" in caplog.text)
    assert not client.connected
