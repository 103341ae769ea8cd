"""What a login may not do is told at once, to whoever asked for it, with the subject; the connection stays."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.connection import Connection, Msg, api_request, connect
from penstock.errors import DeniedError, LoginError
from penstock.server import Server
from tests.live.connecting import plain
from tests.live.peer import Talk, peer
from tests.support import eventually

USERS = """
    jetstream {}
    authorization {
        users: [
            { user: free, password: p4ss }
            { user: bound, password: p4ss, permissions: {
                publish: { allow: ["open.>", "_INBOX.>"] }
                subscribe: { allow: ["open.>", "_INBOX.>", "shared good.*"], deny: ["open.secret"] }
            } }
            { user: deaf, password: p4ss, permissions: { publish: ">", subscribe: { deny: ["_INBOX.>"] } } }
            { user: wordy, password: "closed", permissions: { publish: "_INBOX.>", subscribe: "_INBOX.>" } }
        ]
    }
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with logins that may do a few things."""
    with Server(sync="2m", auth=False, config=USERS) as running:
        yield running


class Told:
    """An error callback that keeps what it is told."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def __call__(self, error: Exception) -> None:
        self.errors.append(error)

    @property
    def subjects(self) -> list[str | None]:
        return [error.subject for error in self.errors if isinstance(error, DeniedError)]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def nc(guarded: Server, told: Told) -> AsyncIterator[Connection]:
    async with await connect(plain(guarded), user="bound", password="p4ss", error_cb=told) as made:
        yield made
        assert made.stretch == 1, "the connection stayed"


@pytest.fixture
async def free(guarded: Server) -> AsyncIterator[Connection]:
    async with await connect(plain(guarded), user="free", password="p4ss") as made:
        yield made


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Nothing here waits for a timeout: the server says no at once."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 10


# -- publishing --------------------------------------------------------------------------------------------------------


async def test_a_denied_publish_is_told_to_the_error_callback(nc: Connection, told: Told):
    """Who publishes without waiting for anything hears of it from the callback, with the subject."""
    await nc.publish("closed.subject", b"x")
    await nc.publish("open.subject", b"x")
    await nc.flush()
    await eventually(lambda: told.errors, "the callback")
    (error,) = told.errors
    assert isinstance(error, DeniedError)
    assert isinstance(error, LoginError)
    assert (error.operation, error.subject) == ("publish", "closed.subject")
    assert 'Permissions Violation for Publish to "closed.subject"' in str(error)
    assert nc.last_error is error
    assert nc.stats["errors_received"] == 1


async def test_a_denied_request_raises_at_once(nc: Connection, told: Told, free: Connection):
    """A request to a subject that is closed to us raises DeniedError naming it; others in flight are not disturbed."""

    async def answer(message: Msg) -> None:
        await asyncio.sleep(0.05)
        await message.respond(message.data)

    await free.subscribe("open.service", cb=answer)
    await free.flush()
    allowed = [asyncio.create_task(nc.request("open.service", b"%d" % number, timeout=60)) for number in range(3)]
    denied = [asyncio.create_task(nc.request(f"closed.{number % 2}", timeout=60)) for number in range(4)]
    outcomes = await asyncio.gather(*denied, return_exceptions=True)
    assert [(type(error), error.subject, error.operation) for error in outcomes] == [
        (DeniedError, f"closed.{number % 2}", "publish") for number in range(4)
    ]
    assert [answer.data for answer in await asyncio.gather(*allowed)] == [b"0", b"1", b"2"]
    await nc.flush()
    assert told.errors == [], "who asked was told, nobody else"


async def test_every_denial_is_told_once(nc: Connection, told: Told):
    """Denials of requests that failed with the first of them tell nobody again; that of a plain publish is told."""
    for _ in range(3):
        asked = [asyncio.create_task(nc.request("closed.same", timeout=60)) for _ in range(3)]
        await asyncio.sleep(0)  # the requests are sent before the message is
        await nc.publish("closed.same", b"nobody waits for this one")
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in outcomes] == [DeniedError] * 3
        await nc.flush()
        await eventually(lambda: told.errors, "the callback")
        assert told.subjects == ["closed.same"], "of the four denials one had nobody who waited for it"
        told.errors.clear()


@pytest.mark.parametrize("pieces", ["together", "apart"])
async def test_denials_that_come_in_any_number_of_pieces(told: Told, pieces: str):
    """Whether the server's denials come in one piece or each on its own, the callback is told of the plain one only."""
    denial = b"-ERR 'Permissions Violation for Publish to \"closed\"'\r\n"

    async def play(talk: Talk) -> None:
        await talk.welcome()
        for _ in range(3):
            await talk.hear(b"PUB closed ")
        if pieces == "together":
            await talk.say(denial * 3)
        for number in range(3 if pieces == "apart" else 0):
            await talk.say(denial)
            await eventually(lambda number=number: nc.stats["errors_received"] > number, "the denial being heard")
        await talk.serve()

    async with peer(play) as (url, _), await connect(url, error_cb=told) as nc:
        asked = [asyncio.create_task(nc.request("closed", timeout=60)) for _ in range(2)]
        await asyncio.sleep(0)  # the requests are sent before the message is
        await nc.publish("closed", b"")
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in outcomes] == [DeniedError] * 2
        await eventually(lambda: nc.stats["errors_received"] == 3, "all three denials")
        await nc.flush()
        await eventually(lambda: told.errors, "the callback")
        await asyncio.sleep(0)  # whatever else is to be told is told by now
        assert told.subjects == ["closed"]


async def test_a_question_to_jetstream_that_is_denied(nc: Connection, told: Told):
    """The API of JetStream is closed to this login: each call says so at once, patience or not."""
    for call in (
        lambda: nc.jetstream().stream_info("S"),
        lambda: nc.jetstream().publish("closed.stream", b"x"),
        lambda: api_request(nc, "STREAM.LIST", timeout=60, patience=60),
        lambda: api_request(nc, "STREAM.DELETE.S", timeout=60, again=True),
    ):
        with pytest.raises(DeniedError, match="Permissions Violation for Publish"):
            await call()


async def test_expecting_is_told_of_its_own_subject(nc: Connection, told: Told):
    """Within `expecting` a denial of that subject goes to its function, each time, and of another one does not."""
    failures: list[DeniedError] = []
    more: list[DeniedError] = []
    with nc.expecting("closed.a", failures.append):
        with nc.expecting("closed.a", more.append):
            await nc.publish("closed.a")
            await nc.publish("closed.b")
            await nc.publish("open.a")
            await nc.flush()
        await nc.publish("closed.a")
        await nc.flush()
    await nc.publish("closed.a")
    await nc.flush()
    assert [error.subject for error in failures] == ["closed.a", "closed.a"]
    assert len(more) == 1
    await eventually(lambda: told.subjects == ["closed.b", "closed.a"], "what nobody expected")


async def test_a_denied_reply_is_not_the_subject(told: Told):
    """A message that is denied for its reply subject does not count as denied where it went."""
    failures: list[DeniedError] = []

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"PUB orders forbidden.reply 1\r\nx\r\n")
        await talk.say(b"-ERR 'Permissions Violation for Publish with Reply of \"forbidden.reply\"'\r\n")
        await talk.serve()

    async with peer(play) as (url, _):
        nc = await connect(url, error_cb=told)
        with nc.expecting("orders", failures.append), nc.expecting("forbidden.reply", failures.append):
            await nc.publish("orders", b"x", reply="forbidden.reply")
            await nc.flush()
        assert failures == []
        await eventually(lambda: told.subjects == ["forbidden.reply"], "the callback being told")
        await nc.close()


async def test_a_request_whose_reply_is_denied(told: Told):
    """A request that the server refuses for the sake of its reply subject raises at once."""

    async def play(talk: Talk) -> None:
        await talk.welcome()
        await talk.hear(b"PUB service ")
        await talk.hear(b"\r\n")
        reply = bytes(talk.heard).partition(b"PUB service ")[2].split(b" ")[0]
        await talk.say(b"-ERR 'Permissions Violation for Publish with Reply of \"%b\"'\r\n" % reply)
        await talk.serve()

    async with peer(play) as (url, _):
        nc = await connect(url, error_cb=told)
        with pytest.raises(DeniedError, match="with Reply of"):
            await nc.request("service", timeout=60)
        await nc.close()
    assert told.errors == []


async def test_a_secret_that_is_part_of_a_subject(guarded: Server):
    """A denial is matched to what was asked also where the secret of the login stands in it; the text hides that."""
    async with await connect(plain(guarded), user="wordy", password="closed") as nc:
        with pytest.raises(DeniedError, match=r'Publish to "\*\*\*\.service"') as caught:
            await nc.request("closed.service", timeout=60)
        assert caught.value.subject == "closed.service"
        with pytest.raises(DeniedError, match=r'Subscription to "\*\*\*\.news"'):
            await (await nc.subscribe("closed.news")).next_msg(timeout=60)


# -- subscribing -------------------------------------------------------------------------------------------------------


async def test_a_denied_subscription_with_a_callback(nc: Connection, told: Told):
    """The callback never runs, the error callback is told, and the subscription knows why it is over."""

    async def never(message: Msg) -> None:
        raise AssertionError

    subscription = await nc.subscribe("open.secret", cb=never)
    await nc.flush()
    await eventually(lambda: told.subjects == ["open.secret"], "the callback being told")
    assert subscription.ended
    assert isinstance(subscription.error, DeniedError)
    assert subscription.error.operation == "subscribe"
    await subscription.unsubscribe()
    await subscription.drain()


async def test_a_denied_subscription_that_is_read(nc: Connection, told: Told):
    """Whoever waits for a message, or iterates, gets the error at once; so does who comes later."""
    first, second = await nc.subscribe("closed.a"), await nc.subscribe("closed.b")

    async def iterate() -> list[Msg]:
        return [message async for message in second.messages]

    waiting = [asyncio.create_task(first.next_msg(timeout=60)), asyncio.create_task(iterate())]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [(type(error), error.subject) for error in outcomes] == [
        (DeniedError, "closed.a"),
        (DeniedError, "closed.b"),
    ]
    with pytest.raises(DeniedError, match=r"closed\.a"):
        await first.next_msg(timeout=60)
    assert told.subjects == ["closed.a", "closed.b"]


async def test_a_denied_queue_group_does_not_end_another_one(nc: Connection, free: Connection, told: Told):
    """A login may be bound to certain groups: the subscription in another group, and it alone, is over."""
    good, bad = await nc.subscribe("shared", queue="good.one"), await nc.subscribe("shared", queue="bad")
    plain_one = await nc.subscribe("shared")
    await nc.flush()
    with pytest.raises(DeniedError, match='Subscription to "shared" using queue "bad"'):
        await bad.next_msg(timeout=60)
    with pytest.raises(DeniedError, match='Subscription to "shared"'):
        await plain_one.next_msg(timeout=60)
    await free.publish("shared", b"hello")
    assert (await good.next_msg(timeout=10)).data == b"hello"
    assert not good.ended


async def test_a_tap_that_is_denied(nc: Connection, told: Told):
    """A tap has nobody who waits: the callback is told."""
    tap = await nc.tap("closed.tap", lambda *given: None)
    await nc.flush()
    await eventually(lambda: told.subjects == ["closed.tap"], "the callback being told")
    assert tap.ended


async def test_a_login_that_may_not_hear_answers(guarded: Server, told: Told):
    """Where our inbox is denied, requests say so at once; with a prefix that is allowed they work."""
    async with await connect(plain(guarded), user="deaf", password="p4ss", error_cb=told) as nc:
        service = await nc.subscribe("service")
        for _ in range(2):
            with pytest.raises(DeniedError, match="Permissions Violation for Subscription to") as caught:
                await nc.request("service", timeout=60)
            assert caught.value.operation == "subscribe"
            assert str(caught.value.subject).startswith("_INBOX.")
        await service.unsubscribe()
    assert told.errors == []

    async def answer(message: Msg) -> None:
        await message.respond(b"heard")

    async with await connect(plain(guarded), user="deaf", password="p4ss", inbox_prefix="_MINE") as nc:
        await nc.subscribe("service", cb=answer)
        assert (await nc.request("service", timeout=10)).data == b"heard"


async def test_a_permission_that_is_taken_away(told: Told):
    """A subscription that a new configuration forbids ends with the reason, and another one goes on."""
    with Server(sync="2m", auth=False, config=USERS) as server:
        node = server.nodes[0]
        async with await connect(plain(server), user="bound", password="p4ss", error_cb=told) as nc:
            kept, lost = await nc.subscribe("open.kept"), await nc.subscribe("open.lost")
            await nc.publish("open.lost", b"before")
            await nc.flush()
            node._config.write_text(node._config.read_text().replace('"open.secret"', '"open.secret", "open.lost"'))
            os.kill(node.pid, signal.SIGHUP)
            assert (await lost.next_msg()).data == b"before"
            with pytest.raises(DeniedError, match=r"open\.lost"):
                await lost.next_msg(timeout=20)
            await nc.publish("open.kept", b"after")
            assert (await kept.next_msg(timeout=10)).data == b"after"


async def test_too_many_subscriptions(told: Told):
    """A server that takes no more subscriptions says so; nobody knows which one it was, so the callback is told."""
    with Server(sync="2m", config="max_subscriptions: 3") as server:
        async with await connect(server.url, error_cb=told) as nc:
            made: list[Any] = [await nc.subscribe(f"a.{number}") for number in range(5)]
            await nc.flush()
            await eventually(lambda: len(told.errors) == 2, "both being told")
            assert {str(error).count("maximum subscriptions exceeded") for error in told.errors} == {1}
            await nc.publish("a.0", b"still here")
            assert (await made[0].next_msg()).data == b"still here"
            assert nc.stretch == 1
