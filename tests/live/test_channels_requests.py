"""Bad requests and odd ones: each gets the exact text, or the exact silence, of the old server."""

from __future__ import annotations

import asyncio

import pytest

from penstock.channels.wire import (
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    PubAck,
    PubMsg,
    SubscriptionRequest,
    SubscriptionResponse,
    Text,
    frame,
)
from tests.live.stan import Got, cluster_of, until


@pytest.fixture
async def stan(stan):
    await stan.serve()
    return stan


@pytest.fixture
async def raw(stan):
    made = await stan.raw()
    assert not (await made.connect()).error
    return made


@pytest.mark.parametrize(
    ("subject", "kind", "text"),
    [
        ("discover", ConnectResponse, Text.INVALID_CONNECT),
        ("pub", PubAck, Text.INVALID_PUBLISH),
        ("sub", SubscriptionResponse, Text.INVALID_SUBSCRIBE),
        ("unsub", SubscriptionResponse, Text.INVALID_UNSUBSCRIBE),
        ("subclose", SubscriptionResponse, Text.INVALID_UNSUBSCRIBE),
        ("close", CloseResponse, Text.INVALID_CLOSE),
    ],
)
@pytest.mark.parametrize("content", [b"dummy", b"\x0b\x0c", b"\x08\x01", b"\x0a\xff", b"\xff\xff\xff"])
async def test_bad_bytes(stan, raw, subject, kind, text, content):
    """Bytes that are no request are answered with the text for that subject."""
    where = f"_STAN.{subject}.{stan.cluster}" + (".foo" if subject == "pub" else "")
    assert (await raw.ask(where, content, kind)).error == text
    assert (await raw.publish("foo")).error == "", "and the gateway goes on"


async def test_bad_acks_are_silent(stan, raw):
    """Bytes that are no ack, and acks for what is not pending, change nothing and are not answered."""
    got = []
    answer = await raw.subscribe("foo", got.append, maxInFlight=1, ackWaitInSecs=30)
    await raw.publish("foo")
    await raw.publish("foo")
    await until(lambda: len(got) == 1)
    for content in (b"", b"dummy", b"\x0a\x03foo\x10\x63", b"\x0a\x03bar\x10\x01"):
        assert await raw.ask(answer.ackInbox, content, timeout=0.1) is None
    assert len(got) == 1
    raw.ack(answer.ackInbox, "foo", 1)
    await until(lambda: len(got) == 2)


async def test_empty_requests(stan, raw):
    """A request of no bytes is a request with nothing in it, and each has its own text."""
    empty = [
        ("discover", ConnectResponse, Text.INVALID_CONNECT),
        ("pub", PubAck, Text.INVALID_PUBLISH),
        ("sub", SubscriptionResponse, Text.CLIENT_MISSING),
        ("unsub", SubscriptionResponse, Text.UNKNOWN_CHANNEL),
        ("close", CloseResponse, Text.UNKNOWN_CLIENT),
    ]
    for subject, kind, text in empty:
        where = f"_STAN.{subject}.{stan.cluster}" + (".foo" if subject == "pub" else "")
        assert (await raw.ask(where, b"", kind)).error == text


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "é", "a/b"])
async def test_invalid_client_ids(stan, raw, name):
    """A client id with other than letters, digits, - and _ is refused."""
    request = ConnectRequest(clientID=name, heartbeatInbox="_INBOX.x")
    answer = await raw.ask(f"_STAN.discover.{stan.cluster}", request, ConnectResponse)
    assert answer.error == Text.INVALID_CLIENT


@pytest.mark.parametrize("inbox", ["", "a b", "a\r\nPUB x 0\r\n", "$a", "a.*"])
async def test_invalid_inboxes(stan, raw, inbox):
    """An inbox that would harm others is refused, and can smuggle nothing into the gateway's connection."""
    request = ConnectRequest(clientID="other", heartbeatInbox=inbox)
    answer = await raw.ask(f"_STAN.discover.{stan.cluster}", request, ConnectResponse)
    assert answer.error == Text.INVALID_CONNECT
    if inbox:
        assert (await raw.subscribe("foo", inbox=inbox)).error == Text.INVALID_SUBSCRIBE


async def test_invalid_subscriptions(stan, raw):
    """Each thing that can be wrong with a subscription has its text, checked in this order."""
    wrong_all = {
        "ackWaitInSecs": 0,
        "maxInFlight": 0,
        "startPosition": 9,
        "channel": "foo.*",
        "clientID": "nobody",
    }
    texts = [
        Text.INVALID_ACK_WAIT,
        Text.INVALID_MAX_IN_FLIGHT,
        Text.INVALID_START,
        Text.INVALID_SUBJECT,
        Text.UNKNOWN_CLIENT,
    ]
    assert (await raw.subscribe("foo", clientID="", ackWaitInSecs=0)).error == Text.CLIENT_MISSING
    for text in texts:
        assert (await raw.subscribe(**{"channel": "foo", **wrong_all})).error == text
        del wrong_all[next(iter(wrong_all))]  # mend the first thing that is wrong
    for wrong, text in (
        ({"ackWaitInSecs": -1}, Text.INVALID_ACK_WAIT),
        ({"maxInFlight": -1}, Text.INVALID_MAX_IN_FLIGHT),
        ({"startPosition": -1}, Text.INVALID_START),
    ):
        assert (await raw.subscribe("foo", **wrong)).error == text
    for name in ("", "foo.", ".foo", "a..b", "foo.*", "foo.>", "a/b"):
        assert (await raw.subscribe(name)).error == Text.INVALID_SUBJECT
        assert (await raw.publish(name)).error == Text.INVALID_PUBLISH


async def test_invalid_unsubscribes(stan, raw):
    """An unknown channel, an unknown inbox and a stranger's client id each have their text."""
    answer = await raw.subscribe("foo")
    for what in ("unsub", "subclose"):
        assert (await raw.leave(what, "bar", answer.ackInbox)).error == Text.UNKNOWN_CHANNEL
        assert (await raw.leave(what, "foo", "_INBOX.unknown")).error == Text.INVALID_SUBSCRIPTION
        assert (await raw.leave(what, "foo", answer.ackInbox, client="nobody")).error == Text.UNKNOWN_CLIENT
    other = await stan.raw("other")
    await other.connect()
    assert (await other.leave("unsub", "foo", answer.ackInbox)).error == Text.UNKNOWN_CLIENT
    assert (
        await raw.ask(
            f"_STAN.unsub.{stan.cluster}",
            b"\x0a\x02me\x12\x03foo\x1a%c%b" % (len(answer.ackInbox), answer.ackInbox.encode()),
        )
        == b""
    ), "success is an empty payload"


async def test_close_of_a_stranger(stan, raw):
    """Closing an unknown client is an error, closing a known one is an empty answer."""
    assert (await raw.close("nobody")).error == Text.UNKNOWN_CLIENT
    where = f"_STAN.close.{stan.cluster}"
    assert await raw.ask(where, CloseRequest(clientID="me")) == b""


async def test_connection_and_client_id_of_a_publish(stan, raw):
    """Where a connection is named it counts, whatever the client id says; where none is, the client id counts."""
    assert (await raw.publish("foo", clientID="nobody")).error == ""
    assert (await raw.publish("foo", connID=b"unknown")).error == Text.INVALID_PUBLISH
    assert (await raw.publish("foo", connID=b"")).error == ""
    assert (await raw.publish("foo", connID=b"", clientID="nobody")).error == Text.INVALID_PUBLISH
    assert (await raw.publish("foo", guid="")).error == Text.INVALID_PUBLISH


async def test_guids_are_only_echoed(stan, raw):
    """The same guid twice stores two messages and is acknowledged twice."""
    for _ in range(2):
        answer = await raw.publish("foo", guid="same")
        assert (answer.guid, answer.error) == ("same", "")
    assert stan.gateways[0].service.channels["foo"].stream.last == 2


async def test_the_channel_is_the_one_in_the_message(stan, raw):
    """The channel comes from the message, not from the subject that it was sent to."""
    request = PubMsg(clientID="me", guid="g", subject="inside", data=b"x")
    assert (await raw.ask(f"_STAN.pub.{stan.cluster}.outside", request, PubAck)).error == ""
    assert list(stan.gateways[0].service.channels) == ["inside"]


async def test_publish_without_reply(stan, raw):
    """A publish that nobody waits for is stored all the same."""
    request = PubMsg(clientID="me", guid="g", subject="foo", data=b"x").SerializeToString()
    raw.connection.post(frame(f"_STAN.pub.{stan.cluster}.foo".encode(), request))
    service = stan.gateways[0].service
    await until(lambda: "foo" in service.channels and service.channels["foo"].stream.last == 1)


async def test_case_clash(stan, raw):
    """Two channels may not differ in case alone, for publishers and subscribers alike."""
    await raw.publish("Foo.Bar")
    text = 'rejecting channel "foo.bar" because channel "Foo.Bar" alreay exists (different cases not allowed)'
    assert (await raw.publish("foo.bar")).error == text
    assert (await raw.subscribe("foo.bar")).error == text
    assert (await raw.publish("Foo.Bar")).error == ""


async def test_odd_channel_names(stan, raw):
    """Blanks and other letters are allowed in a channel's name, and find their way into a stream."""
    for name in ("a b", "é.ü", 'q"uote', "a:b", "a=b", "$x"):
        got = []
        assert (await raw.publish(name, b"1")).error == ""
        await raw.subscribe(name, got.append, startPosition=4)
        await until(lambda got=got: len(got) == 1)
        assert got[0].subject == name


async def test_connect_waits_for_nobody_else(server, unique):
    """While a silent client's id is looked into, others connect at once, and the same id is refused at once."""
    async with cluster_of(server.url, unique("c")) as stan:
        await stan.serve(duplicate_timeout=2.0)
        silent = await stan.raw("silent")
        await silent.connect()
        silent.answers_heartbeats = False
        first, second, other = await stan.raw("silent"), await stan.raw("silent"), await stan.raw("other")
        waiting = asyncio.ensure_future(first.connect(timeout=20))
        await until(lambda: silent.heartbeats == 1)
        assert (await second.connect()).error == Text.CLIENT_EXISTS
        assert (await other.connect()).error == ""
        assert not waiting.done()
        assert (await waiting).error == ""


async def took_over(stan):
    """Let a client, which gives up before the answer, take the place of a silent one of its id."""
    silent = await stan.raw("silent")
    await silent.connect()
    silent.answers_heartbeats = False
    late = await stan.raw("silent")
    assert await late.connect(timeout=0.1) is None
    service = stan.gateways[0].service
    await until(lambda: service.clients.by_id["silent"].record.conn_id == late.conn_id)
    return service, late


async def test_a_requester_who_left_is_registered_all_the_same(stan):
    """The new client has the id after the half second, also if whoever asked has given up by then."""
    await took_over(stan)


async def test_a_client_that_asks_again_keeps_what_it_has(stan):
    """A connect whose answer was lost is asked again by the same connection: it is answered, and replaces nobody."""
    raw = await stan.raw("patient")
    assert (await raw.connect()).error == ""
    got: list = []
    assert (await raw.subscribe("foo", got.append)).error == ""
    raw.answers_heartbeats = False
    before = raw.heartbeats
    again = await raw.connect()
    assert (again.error, bool(again.pubPrefix)) == ("", True)
    assert raw.heartbeats == before, "nobody was asked whether it lives"
    assert (await raw.publish("foo")).error == ""
    await until(lambda: len(got) == 1)


async def test_a_client_that_took_over_and_asks_again(stan):
    """A connect that took a silent owner's place is asked again, because it took so long: it replaces nobody."""
    service, late = await took_over(stan)
    registered = service.clients.by_id["silent"]
    late.answers_heartbeats = False
    assert (await late.connect()).error == ""
    assert service.clients.by_id["silent"] is registered


async def test_a_replaced_client(stan):
    """A replaced client can still subscribe, and its close closes its successor: both carry the client id only."""
    old = await stan.raw("same")
    await old.connect()
    old.answers_heartbeats = False
    new = await stan.raw("same")
    assert (await new.connect()).error == ""
    assert (await old.subscribe("foo")).error == ""
    assert (await old.publish("foo")).error == Text.INVALID_PUBLISH
    assert (await old.close()).error == ""
    assert (await new.publish("foo")).error == Text.INVALID_PUBLISH


async def test_nothing_is_sent_before_the_answer(stan):
    """A subscription's answer comes before its first message, also while messages keep coming."""
    publisher = await stan.client("publisher")
    raw = await stan.raw()
    await raw.connect()
    stop = asyncio.Event()

    async def publish():
        while not stop.is_set():
            await publisher.publish("foo", b"x")

    task = asyncio.ensure_future(publish())
    try:
        for number in range(20):
            order: list[str] = []
            inbox = f"_INBOX.{stan.cluster}.order{number}"
            await raw.connection.tap(inbox, lambda *_, order=order: order.append("message"))
            reply = f"_INBOX.{stan.cluster}.reply{number}"
            await raw.connection.tap(reply, lambda *_, order=order: order.append("answer"))
            request = SubscriptionRequest(
                clientID="me", subject="foo", inbox=inbox, maxInFlight=5, ackWaitInSecs=1, startPosition=4
            )
            raw.connection.post(
                frame(f"_STAN.sub.{stan.cluster}".encode(), request.SerializeToString(), reply.encode())
            )
            await until(lambda order=order: "message" in order)
            assert order[0] == "answer"
    finally:
        stop.set()
        await task


async def test_what_was_sent_before_a_close_counts(stan):
    """A thousand publishes and a close, sent without waiting: all are stored."""
    raw = await stan.raw()
    await raw.connect()
    where = f"_STAN.pub.{stan.cluster}.foo".encode()
    publishes = [
        frame(where, PubMsg(clientID="me", guid=f"{n}", subject="foo", data=b"x").SerializeToString())
        for n in range(1000)
    ]
    raw.connection.post(b"".join(publishes))
    assert (await raw.close()).error == ""
    assert stan.gateways[0].service.channels["foo"].stream.last == 1000


async def test_acks_before_a_close_count(stan):
    """Acks sent right before a durable is closed take effect: nothing comes again on resume."""
    for turn in range(5):
        client = await stan.client(f"c{turn}")
        got = Got()
        subscription = await client.subscribe(f"foo{turn}", got, durable="d", manual_acks=True)
        for _ in range(20):
            await client.publish(f"foo{turn}", b"x")
        await got.count(20)
        for message in got.messages:
            message.ack()
        await (subscription.close() if turn % 2 else client.close())
        if turn % 2 == 0:
            client = await stan.client(f"c{turn}")
        again = Got()
        await client.subscribe(f"foo{turn}", again, durable="d", manual_acks=True)
        await client.publish(f"foo{turn}", b"new")
        await again.stays(1, 0.1)
        assert again.sequences == [21]


async def test_subscribe_and_unsubscribe_while_closing(stan):
    """Requests that race with the close of their client end in one way or the other, and leave nothing behind."""
    service = stan.gateways[0].service
    for turn in range(10):
        raw = await stan.raw(f"c{turn}")
        await raw.connect()
        there = await raw.subscribe("foo")
        leave = raw.leave("unsub" if turn % 2 else "subclose", "foo", there.ackInbox)
        answers = await asyncio.gather(raw.subscribe("foo"), raw.close(), raw.subscribe("foo"), leave)
        assert answers[1].error == ""
        assert {answers[0].error, answers[2].error} <= {"", Text.UNKNOWN_CLIENT}
        assert answers[3].error in ("", Text.INVALID_SUBSCRIPTION)
        assert (await raw.subscribe("foo")).error == Text.UNKNOWN_CLIENT
    assert len(service.channels["foo"].subscribers) == 0


async def test_automatic_acks_before_a_close_count(stan):
    """What a handler has handled when its client closes is acknowledged: on resume only new messages come."""
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, durable="d")
    for _ in range(50):
        await client.publish_async("foo", b"x")
    await got.count(50)
    await client.close()
    client = await stan.client()
    again = Got()
    await client.subscribe("foo", again, durable="d")
    await client.publish("foo", b"new")
    await again.stays(1, 0.1)
    assert again.sequences == [51]
