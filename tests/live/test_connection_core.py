"""Publishing, subscribing and asking on our own connection, against the real server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.connection import Connection, Msg, connect
from penstock.errors import (
    DeadlineError,
    InputError,
    LocalProtocolError,
    NoRespondersError,
)
from penstock.server import Server
from tests.support import eventually

Unique = Callable[..., str]


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as made:
        yield made


# -- publishing and subscribing ----------------------------------------------------------------------------------------


async def test_a_callback_gets_every_message_in_order(nc: Connection, other: Connection, unique: Unique):
    """Messages reach a callback one after the other, in the order in which they were published."""
    subject, got, running = unique("cb"), [], 0

    async def received(message: Msg) -> None:
        nonlocal running
        running += 1
        assert running == 1
        if len(got) % 50 == 0:
            await asyncio.sleep(0)
        got.append((message.subject, message.data))
        running -= 1

    subscription = await nc.subscribe(f"{subject}.*", cb=received)
    await nc.flush()
    for number in range(1000):
        await other.publish(f"{subject}.{number % 7}", b"%d" % number)
    await eventually(lambda: len(got) == 1000, "all messages")
    assert got == [(f"{subject}.{number % 7}", b"%d" % number) for number in range(1000)]
    assert (subscription.delivered, subscription.dropped, subscription.pending_msgs) == (1000, 0, 0)
    assert (subscription.subject, subscription.queue, subscription.id) == (f"{subject}.*", "", 1)


async def test_iteration_and_next_msg(nc: Connection, unique: Unique):
    """The same messages can be read one by one, or with `async for`; what waits is counted."""
    one, other = await nc.subscribe(unique("one")), await nc.subscribe(unique("other"))
    for subscription in (one, other):
        for number in range(5):
            await nc.publish(subscription.subject, b"%d" % number, reply="answers.go.here")
    await nc.flush()
    assert (one.pending_msgs, one.pending_bytes) == (5, 5)
    first = await one.next_msg()
    assert (first.subject, first.data, first.reply, first.headers, first.sid) == (
        one.subject,
        b"0",
        "answers.go.here",
        None,
        one.id,
    )
    assert [(await one.next_msg()).data for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert (one.pending_msgs, one.pending_bytes, one.delivered) == (0, 0, 5)
    with pytest.raises(DeadlineError, match=f"No message on {one.subject} within 0.05 s") as caught:
        await one.next_msg(timeout=0.05)
    assert (caught.value.seconds, caught.value.subject) == (0.05, one.subject)
    got = []
    async for message in other.messages:
        got.append(message.data)
        if len(got) == 5:
            break
    assert got == [b"0", b"1", b"2", b"3", b"4"]


async def test_several_readers_share_a_subscription(nc: Connection, unique: Unique):
    """Each message goes to one of those that wait for it, none is lost, none is doubled."""
    subscription = await nc.subscribe(unique("shared"))
    got: list[bytes] = []

    async def read() -> None:
        while True:
            got.append((await subscription.next_msg(timeout=None)).data)

    readers = [asyncio.create_task(read()) for _ in range(5)]
    for number in range(500):
        await nc.publish(subscription.subject, b"%d" % number)
        if number % 10 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: len(got) == 500, "all messages")
    assert sorted(map(int, got)) == list(range(500))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def test_a_queue_group_gets_each_message_once(nc: Connection, other: Connection, unique: Unique):
    """Members of a group share the messages, whichever connection they are on; others get all of them."""
    subject, counts = unique("q"), Counter[str]()

    def member(name: str) -> Callable[[Msg], Any]:
        async def received(message: Msg) -> None:
            counts[name] += 1

        return received

    await nc.subscribe(subject, queue="workers", cb=member("a"))
    await nc.subscribe(subject, "workers", member("b"))  # as nats-py has them, in this order
    await other.subscribe(subject, queue="workers", cb=member("c"))
    await other.subscribe(subject, cb=member("all"))
    await asyncio.gather(nc.flush(), other.flush())
    for _ in range(300):
        await nc.publish(subject)
    await eventually(lambda: counts.total() == 600, "all messages")
    assert counts["all"] == 300
    assert counts["a"] + counts["b"] + counts["c"] == 300
    assert min(counts["a"], counts["b"], counts["c"]) > 0


async def test_a_future_gets_the_first_message(nc: Connection, unique: Unique):
    """`future` is done with the first message, and with no other."""
    wanted: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    subscription = await nc.subscribe(unique("future"), future=wanted)
    await nc.publish(subscription.subject, b"first")
    await nc.publish(subscription.subject, b"second")
    assert (await wanted).data == b"first"
    assert (await subscription.next_msg()).data == b"second"


async def test_max_msgs_ends_a_subscription(nc: Connection, other: Connection, unique: Unique):
    """After so many messages a subscription ends by itself, here and at the server, with all of them handled."""
    subject, got = unique("max"), []

    async def received(message: Msg) -> None:
        await asyncio.sleep(0)
        got.append(message.data)

    await nc.subscribe(subject, cb=received, max_msgs=3)
    read = await nc.subscribe(subject, max_msgs=4)
    iterated = await nc.subscribe(subject, max_msgs=2)
    future = await nc.subscribe(subject, max_msgs=1)
    await nc.flush()
    for number in range(10):
        await other.publish(subject, b"%d" % number)
    await other.flush()
    await nc.flush()
    await eventually(lambda: len(got) == 3, "the callbacks")
    assert got == [b"0", b"1", b"2"]
    assert [message.data async for message in iterated.messages] == [b"0", b"1"]
    assert [(await read.next_msg()).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(ConnectionError, match="was unsubscribed"):
        await read.next_msg()
    assert (read.delivered, future.delivered) == (4, 1)
    assert nc.stats["in_msgs"] == 10


async def test_unsubscribe_with_a_limit(nc: Connection, unique: Unique):
    """A limit counts all messages that came: later ones than that are not sent; one that is reached ends at once."""
    subject = unique("limit")
    one, other = await nc.subscribe(subject), await nc.subscribe(subject)
    for number in range(3):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    await one.unsubscribe(limit=5)
    await other.unsubscribe(limit=2)
    for number in range(3, 9):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    assert [message.data async for message in one.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.data async for message in other.messages] == [b"0", b"1", b"2"]


async def test_unsubscribe_ends_at_once(server: Server, nc: Connection, unique: Unique):
    """After `unsubscribe` nothing comes any more, a callback is not called with what waited, and the server knows."""
    subject, got, go_on = unique("end"), [], asyncio.Event()

    async def received(message: Msg) -> None:
        got.append(message.data)
        await go_on.wait()

    subscription = await nc.subscribe(subject, cb=received)
    for number in range(3):
        await nc.publish(subject, b"%d" % number)
    await nc.flush()
    await eventually(lambda: got, "the first callback")
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    go_on.set()
    await nc.publish(subject, b"late")
    await nc.flush()
    assert got == [b"0"]
    page = f"{server.nodes[0].monitor_url}/connz?subs=1&cid={nc.client_id}"
    with urllib.request.urlopen(page, timeout=10) as answer:
        (listed,) = json.load(answer)["connections"]
    assert listed.get("subscriptions_list", []) == []


async def test_a_callback_is_the_only_reader(nc: Connection, unique: Unique):
    """A subscription with a callback cannot be read besides; a callback is a coroutine function."""

    async def received(message: Msg) -> None:
        raise AssertionError

    subscription = await nc.subscribe(unique("cb"), cb=received)
    with pytest.raises(InputError, match="has a callback"):
        await subscription.next_msg()
    with pytest.raises(InputError, match="has a callback"):
        _ = subscription.messages
    for wrong in (print, lambda message: None, "text", received(None)):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="cb is not a coroutine function"):
            await nc.subscribe(unique("cb"), cb=wrong)  # type: ignore[arg-type]
        if asyncio.iscoroutine(wrong):
            wrong.close()


async def test_anything_that_gives_a_coroutine_calls_back(nc: Connection, unique: Unique):
    """Methods, partial functions and objects with an asynchronous call are callbacks as good as functions."""
    import functools

    got: list[str] = []

    class Handler:
        async def method(self, message: Msg) -> None:
            got.append("method")

        async def __call__(self, message: Msg) -> None:
            got.append("object")

    async def named(name: str, message: Msg) -> None:
        got.append(name)

    subject = unique("cb")
    for callback in (Handler().method, Handler(), functools.partial(named, "partial")):
        await nc.subscribe(subject, cb=callback)
    await nc.publish(subject)
    await eventually(lambda: sorted(got) == ["method", "object", "partial"], "all of them")


async def test_no_echo(server: Server, unique: Unique):
    """With `no_echo` a connection does not hear itself; others do."""
    subject = unique("echo")
    async with await connect(server.url, no_echo=True) as quiet, await connect(server.url) as other:
        mine, theirs = await quiet.subscribe(subject), await other.subscribe(subject)
        await asyncio.gather(quiet.flush(), other.flush())
        await quiet.publish(subject, b"mine")
        await other.publish(subject, b"theirs")
        await asyncio.gather(quiet.flush(), other.flush())
        assert {(await theirs.next_msg()).data for _ in range(2)} == {b"mine", b"theirs"}
        assert (await mine.next_msg()).data == b"theirs"
        await quiet.flush()
        assert mine.pending_msgs == 0


# -- asking ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def service(other: Connection, unique: Unique) -> str:
    """A service that gives back what it gets, after as many milliseconds as the header Wait says."""
    subject = unique("service")

    async def answer(message: Msg) -> None:
        wait = float((message.headers or {}).get("Wait", 0))
        back = {"Heard": message.headers["Say"]} if message.headers and "Say" in message.headers else None
        if wait:
            asyncio.get_running_loop().call_later(wait / 1000, lambda: other.send(message.reply, message.data))
        else:
            await message.respond(b"re: " + message.data, headers=back)

    await other.subscribe(f"{subject}.>", cb=answer)
    await other.flush()
    return f"{subject}.ask"


async def test_a_request_and_its_answer(nc: Connection, service: str):
    """A request gets its answer, with headers both ways; many in flight each get their own."""
    answer = await nc.request(service, b"hello", headers={"Say": "this"})
    assert (answer.data, answer.headers) == (b"re: hello", {"Heard": "this"})
    assert answer.subject.startswith("_INBOX.")
    assert answer.reply == ""
    answers = await asyncio.gather(*(nc.request(service, b"%d" % number, timeout=20) for number in range(2000)))
    assert [answer.data for answer in answers] == [b"re: %d" % number for number in range(2000)]
    assert (await nc.request(service, b"old", old_style=True)).data == b"re: old"


async def test_answers_out_of_order(nc: Connection, service: str):
    """An answer that overtakes another one goes to whoever asked for it."""
    waits = [30, 5, 20, 1, 10]
    asked = (nc.request(service, b"%d" % wait, headers={"Wait": str(wait)}, timeout=10) for wait in waits)
    assert [int(answer.data) for answer in await asyncio.gather(*asked)] == waits


async def test_nobody_answers(nc: Connection, unique: Unique):
    """Where nobody listens that is known at once; where somebody stays silent, after the timeout that was given."""
    nowhere, silent = unique("nowhere"), unique("silent")
    await nc.subscribe(silent)
    with pytest.raises(NoRespondersError, match=f"Nobody listens on {nowhere}") as caught:
        await nc.request(nowhere, timeout=60)
    assert caught.value.subject == nowhere
    with pytest.raises(DeadlineError, match=rf"No answer on {silent} in time \(0.1 s\)") as late:
        await nc.request(silent, timeout=0.1)
    assert not isinstance(late.value, NoRespondersError)
    assert (late.value.subject, late.value.seconds) == (silent, 0.1)
    for wrong in (0, -1):
        with pytest.raises(DeadlineError):
            await nc.request(silent, timeout=wrong)


async def test_the_timeout_of_the_options_holds(server: Server, unique: Unique):
    """A request without a timeout waits as long as `request_timeout` says."""
    async with await connect(server.url, request_timeout=0.1) as nc:
        await nc.subscribe(subject := unique("silent"))
        with pytest.raises(DeadlineError, match=r"in time \(0.1 s\)"):
            await nc.request(subject)


async def test_late_and_second_answers_are_passed_by(nc: Connection, other: Connection, unique: Unique):
    """An answer that comes too late, or twice, goes to nobody: not to the next request either."""
    subject, replies = unique("late"), []

    async def twice(message: Msg) -> None:
        replies.append(message.reply)
        for reply in replies:
            await other.publish(reply, message.data)
            await other.publish(reply, message.data)

    silent = unique("silent")

    async def keep(message: Msg) -> None:
        replies.append(message.reply)

    await other.subscribe(subject, cb=twice)
    await other.subscribe(silent, cb=keep)
    await other.flush()
    with pytest.raises(DeadlineError):
        await nc.request(silent, timeout=0.05)
    for number in range(10):
        assert (await nc.request(subject, b"%d" % number, timeout=10)).data == b"%d" % number
    await nc.flush()


async def test_inboxes_are_all_different(nc: Connection, other: Connection):
    """No two inboxes are the same, and each is a subject below the prefix."""
    made = {nc.new_inbox() for _ in range(1000)} | {other.new_inbox() for _ in range(1000)}
    assert len(made) == 2000
    assert all(name.startswith("_INBOX.") and len(name) > 20 for name in made)
    subscription = await nc.subscribe(name := nc.new_inbox())
    await nc.flush()
    await other.publish(name, b"here")
    assert (await subscription.next_msg()).data == b"here"


async def test_answering_a_message_that_wants_none(nc: Connection, unique: Unique):
    """`respond` to a message without a reply subject is the caller's mistake."""
    subscription = await nc.subscribe(unique("plain"))
    await nc.publish(subscription.subject)
    message = await subscription.next_msg()
    with pytest.raises(LocalProtocolError, match="wants no answer"):
        await message.respond(b"x")
    assert repr(message) == f"<Msg on {subscription.subject}, 0 bytes>"
