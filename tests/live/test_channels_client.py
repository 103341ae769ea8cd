"""What clients of NATS Streaming rely on: connecting, publishing, subscribing, staying alive."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.channels import Client, Message
from penstock.channels.unacked import Unacked
from penstock.channels.wire import MsgProto, Text, UnsubscribeRequest, frame
from penstock.connection import Connection, Msg, api_request
from penstock.errors import (
    ChannelError,
    DeadlineError,
    DisconnectedError,
    LocalProtocolError,
    OptionError,
)
from penstock.server import Server
from tests.live.stan import Got, cluster_of, until


async def test_connect_and_close(stan):
    """A client is registered until it closes; to close it a second time is refused by the server."""
    gateway = await stan.serve()
    client = await stan.client("me")
    assert gateway.service.clients.by_id.get("me") is not None
    await client.close()
    assert gateway.service.clients.by_id.get("me") is None
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


async def test_close_cleans_up(stan):
    """Closing a client ends its subscriptions at the gateway."""
    gateway = await stan.serve()
    client = await stan.client()
    for _ in range(3):
        await client.subscribe("foo", Got())
    assert len(gateway.service.channels["foo"].subscribers) == 3
    await client.close()
    assert len(gateway.service.channels["foo"].subscribers) == 0
    assert not gateway.service._acks.entries


async def test_duplicate_id(stan):
    """A second client with the same id is refused at once while the first is alive, and the first goes on."""
    await stan.serve(duplicate_timeout=60.0)
    first = await stan.client("same")
    with pytest.raises(ChannelError) as error:
        await stan.client("same", connect_timeout=20.0)  # a refusal does not wait for the time that silence takes
    assert error.value.text == Text.CLIENT_EXISTS
    await first.publish("foo", b"still here")


async def test_a_client_waits_for_a_gateway_that_starts(stan, monkeypatch):
    """A request that nobody hears is sent again: a client that comes a moment before its gateway is connected."""
    request, asked = Connection.request, []

    async def spy(connection: Connection, subject: str, payload: bytes, *rest, **more) -> Msg:
        if subject == f"_STAN.discover.{stan.cluster}":
            asked.append(payload)
        return await request(connection, subject, payload, *rest, **more)

    monkeypatch.setattr(Connection, "request", spy)
    connecting = asyncio.ensure_future(stan.client(connect_timeout=60.0))
    await until(lambda: len(asked) > 1)
    await stan.serve()
    client = await asyncio.wait_for(connecting, 30)
    await client.publish("foo", b"hello")
    assert len(set(asked)) == 1


async def test_wrong_cluster(stan):
    """A cluster id that nobody serves is told by a deadline, and the error says what to check."""
    with pytest.raises(DeadlineError, match=f"No server of the cluster {stan.cluster}"):
        await stan.client(connect_timeout=0.3)


async def test_failed_connect_leaves_nothing(stan):
    """A connect that fails on a borrowed connection leaves no subscription behind."""
    connection = await stan.connection()
    await api_request(connection, "INFO")  # the inbox of all requests stays
    before = set(connection._subscriptions)
    client = Client(connection, cluster_id=stan.cluster, client_id="me", connect_timeout=0.2)
    with pytest.raises(DeadlineError):
        await client.connect()
    assert set(connection._subscriptions) == before


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

    client = await stan.client(ping_interval=-20, ping_max_out=1000, on_lost=lost)
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
    known.remove(known.by_id["me"])
    await until(lambda: "on_lost failed itself" in caplog.text)
    assert not client.connected


@pytest.mark.parametrize("handled", [False, True])
async def test_messages_that_nobody_may_send_do_not_pile_up(stan, handled, caplog):
    """More than a server may send without our acks is not kept, which is told once, and ends nothing."""
    await stan.serve()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(message: Message) -> None:
        begun.set()
        await may_end.wait()

    client = await stan.client()
    subscription = await client.subscribe("foo", slow if handled else None, max_in_flight=2)
    other = await stan.connection()
    for sequence in range(1, 1001):
        content = MsgProto(sequence=sequence, subject="foo", data=b"x", timestamp=sequence).SerializeToString()
        await other.publish(subscription.inbox, content)
        if handled:
            async with asyncio.timeout(20):
                await begun.wait()
    await until(lambda: subscription.pending >= 32)
    await other.flush()
    await client.connection.flush()
    assert subscription.pending == 32
    assert caplog.text.count("32 messages of foo wait to be read, and more come. They are not kept") == 1
    if handled:
        may_end.set()
    else:
        assert [(await subscription.next(5)).sequence for _ in range(32)] == list(range(1, 33))
    await until(lambda: subscription.pending == 0)
    await subscription.close()


async def test_a_slow_member_of_a_queue_group_gets_new_messages_again(stan, monkeypatch, caplog):
    """A member whose messages went to another one after ack_wait, more than are kept, goes on when it reads again."""
    monkeypatch.setattr("penstock.channels.subscription._BEYOND", 2)
    await stan.serve()
    client = await stan.client()
    begun, may_go_on, slow, got = asyncio.Event(), asyncio.Event(), [], Got()

    async def stuck(message: Message) -> None:
        slow.append(message.sequence)
        begun.set()
        await may_go_on.wait()

    async def publish(number: int) -> None:
        """Publish the next message, and wait until one of the members has it."""
        await client.publish("foo", b"x")
        await until(lambda: number in got.sequences or number in slow)

    how = {"queue": "workers", "max_in_flight": 1, "ack_wait": 1}
    blocked = await client.subscribe("foo", stuck, **how)
    await client.publish("foo", b"x")
    await asyncio.wait_for(begun.wait(), 10)
    other = await client.subscribe("foo", got, **how)
    last = 1
    while "They are not kept" not in caplog.text:
        last += 1
        await publish(last)  # what went to the blocked one comes to the other after ack_wait
    assert blocked.pending == 2
    may_go_on.set()
    kept = last
    while max(slow) <= kept:
        last += 1
        await publish(last)
    await other.close()
    await blocked.close()


async def test_a_subscription_whose_handler_was_cancelled_is_closed_at_the_server(stan):
    """A handler that ends by a cancelled future ends its subscription, and the server gives its messages to others."""
    await stan.serve()
    client = await stan.client()

    async def cancelled(message: Message) -> None:
        raise asyncio.CancelledError

    got, how = Got(), {"queue": "workers", "max_in_flight": 1}
    ended = await client.subscribe("foo", cancelled, **how)
    await client.subscribe("foo", got, **how)
    for _ in range(4):
        await client.publish("foo", b"x")
    await got.count(4)
    await ended.close()


async def test_room_that_a_publisher_gave_up_goes_to_the_next(stan):
    """Who is cancelled in the moment in which there is room for his message holds up nobody who waits behind him."""
    connection, unacked = await stan.connection(), Unacked(1)
    unacked.add(connection, "_STAN.pub.x", "first")
    waiting = [asyncio.create_task(unacked.room()) for _ in range(3)]
    await asyncio.sleep(0)  # so that they wait
    waiting[1].cancel()
    unacked.settle("first")
    waiting[0].cancel()
    await asyncio.wait_for(waiting[2], 5)
    assert [task.cancelled() for task in waiting] == [True, True, False]


async def test_a_publish_that_waits_for_room_goes_on_when_others_give_up(stan):
    """An ack that never comes holds its place until its publisher gives up, and not for ever."""
    connection, unacked = await stan.connection(), Unacked(2)
    lost = [unacked.add(connection, "_STAN.pub.x", guid) for guid in ("first", "second")]
    waiting = [asyncio.create_task(unacked.room()) for _ in range(2)]
    await asyncio.sleep(0)  # so that they wait
    for future in lost:
        future.cancel()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert len(unacked) == 0


async def test_a_publish_that_fails_passes_its_room_on(stan):
    """Who is let in and then cannot send, because the message is too large, holds up nobody who waits behind him."""
    await stan.serve()
    client = await stan.client(max_pub_acks_in_flight=1)
    client._unacked.add(client.connection, "_STAN.pub.x", "first")
    large = b"x" * (client.connection.max_payload + 1)
    waiting = [asyncio.create_task(client.publish("foo", data)) for data in (large, b"small")]
    await asyncio.sleep(0)  # so that they wait
    client._unacked.settle("first")
    with pytest.raises(LocalProtocolError, match="larger than the server takes"):
        await waiting[0]
    await asyncio.wait_for(waiting[1], 5)


async def test_a_publish_that_gives_up_in_the_middle_frees_its_place(stan, monkeypatch):
    """A message that was sent, whose publisher was cancelled before he got its future, holds no place for ever."""
    monkeypatch.setattr("penstock.channels.client._UNSENT", -1)  # so that each publish waits for the server
    gateway = await stan.serve()
    client = await stan.client(max_pub_acks_in_flight=1)
    await gateway.stop()  # so that no ack comes
    publishing = asyncio.create_task(client.publish_async("foo", b"x"))
    await asyncio.sleep(0)  # so that it was sent
    assert len(client._unacked) == 1
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await asyncio.wait_for(client._unacked.room(), 5)
