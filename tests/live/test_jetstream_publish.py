"""The publisher against the real server: order, ids, conditions, lost acks, batches, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import (
    ConditionError,
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream import Outgoing, Publisher, assets
from penstock.jetstream.batch import Route
from penstock.model import Stream
from penstock.server import Server


@pytest.fixture
async def stream(nc: Connection, unique: Any) -> str:
    name = unique("PUB")
    await assets.add_stream(
        nc, Stream(name=name, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True, allow_msg_ttl=True)
    )
    return name


async def bodies(nc: Connection, stream: str) -> list[bytes]:
    info = await assets.stream_info(nc, stream)
    return [(await assets.get_message(nc, stream, number)).data for number in range(1, info.last_sequence + 1)]


class LossyClient:
    """A connection that loses some acks, or some messages, on the way; everything else is the real client's."""

    def __init__(self, client: Connection, lose_ack: Any = None, lose_message: Any = None) -> None:
        self._client, self._lose_ack, self._lose_message = client, lose_ack, lose_message
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def publish(self, subject: str, payload: bytes = b"", **about: Any) -> None:
        if self._lose_message and self._lose_message(payload):
            self.lost += 1
            return
        await self._client.publish(subject, payload, **about)

    def send_checked(self, subject: bytes, payload: bytes, reply: bytes = b"", block: bytes | None = None) -> int:
        if self._lose_message and self._lose_message(payload):
            self.lost += 1
            return 0
        return self._client.send_checked(subject, payload, reply, block)

    async def tap(self, subject: str, handler: Any, **about: Any) -> Any:
        def sieve(name: bytes, reply: bytes, payload: bytes, block: bytes | None) -> Any:
            if self._lose_ack and self._lose_ack(payload):
                self.lost += 1
                return None
            return handler(name, reply, payload, block)

        return await self._client.tap(subject, sieve, **about)


def once_each(chosen: set[int]) -> Any:
    """Lose the first copy of chosen ones, counted from 1."""
    count = 0

    def lose(_: Any) -> bool:
        nonlocal count
        count += 1
        return count in chosen

    return lose


# -- the ordinary way ------------------------------------------------------------------------------------------------


async def test_results_say_stored_or_duplicate(nc: Connection, stream: str):
    """A result names the stream and sequence, and tells a repeat, which adds nothing."""
    async with Publisher(nc, stream) as publisher:
        first = await publisher.publish(f"{stream}.x", b"a", id="1")
        again = await publisher.publish(f"{stream}.x", b"b", id="1")
        other = await publisher.publish(f"{stream}.x", b"c", headers={"K": "v"})
    assert (first.sequence, first.duplicate) == (1, False)
    assert (again.sequence, again.duplicate) == (1, True)
    assert (other.sequence, other.stream, publisher.stored, publisher.duplicates) == (2, stream, 2, 1)
    assert await bodies(nc, stream) == [b"a", b"c"]
    assert (await assets.get_message(nc, stream, 2)).headers["K"] == ["v"]


async def test_ids_come_from_a_function(nc: Connection, stream: str):
    """An id may follow from the message; an empty one is refused before anything is sent."""
    async with Publisher(nc, stream, ids=lambda out: out.data.decode()) as publisher:
        acks = [await publisher.publish(f"{stream}.x", body) for body in (b"a", b"b", b"a")]
        with pytest.raises(InputError, match="ids gave ''"):
            await publisher.publish(f"{stream}.x", b"")
    assert [ack.duplicate for ack in acks] == [False, False, True]


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_many_are_in_flight_and_in_order(nc: Connection, stream: str, order: str):
    """Many messages on their way at once end up in the order in which they were sent."""
    async with Publisher(nc, stream, order=order, in_flight=64) as publisher:
        for number in range(1000):
            await publisher.send(f"{stream}.x", b"%d" % number)
            assert len(publisher._in_flight._window) <= 64
    assert await bodies(nc, stream) == [b"%d" % number for number in range(1000)]
    assert (publisher.stored, publisher.retries) == (1000, 0)


async def test_bytes_in_flight_are_bounded(nc: Connection, stream: str):
    """What waits for acks is bounded in bytes, and one message larger than the bound still goes, alone."""
    async with Publisher(nc, stream, in_flight_bytes=2000) as publisher:
        for size in (500, 500, 500, 500, 500, 5000, 500):
            await publisher.send(f"{stream}.x", b"x" * size)
            held = [item.out.size for item in publisher._in_flight._window.items()]
            assert sum(held) <= 2000 or len(held) == 1
    assert publisher.stored == 7


async def test_acks_come_in_order(nc: Connection, stream: str):
    """publish_all gives one ack for each message, in order, from any kind of iterable."""

    async def some() -> AsyncIterator[Outgoing]:
        for number in range(300):
            yield Outgoing(f"{stream}.x", b"%d" % number)

    async with Publisher(nc, stream) as publisher:
        assert [ack.sequence async for ack in publisher.publish_all(some())] == list(range(1, 301))
        mixed = (f"{stream}.x" if number == 2 else Outgoing(f"{stream}.x") for number in range(4))
        with pytest.raises(InputError, match=r"Message 2 \(counted from 0\): A message is given as str"):
            [ack async for ack in publisher.publish_all(mixed)]
        await publisher.flush()
    assert (await assets.stream_info(nc, stream)).last_sequence == 302, "what came before it is stored"


@pytest.mark.parametrize("order", ["strict", "chained"])
async def test_two_publishers_keep_their_own_order(nc: Connection, stream: str, order: str):
    """Beside another writer each keeps its order, loses nothing and stores nothing twice."""

    async def run(name: str) -> None:
        async with Publisher(nc, stream, order=order) as publisher:
            for number in range(300):
                await publisher.send(f"{stream}.{name}", b"%s %d" % (name.encode(), number))

    await asyncio.gather(run("a"), run("b"))
    found = await bodies(nc, stream)
    for name in (b"a", b"b"):
        assert [body for body in found if body.startswith(name)] == [b"%s %d" % (name, n) for n in range(300)]


# -- conditions ------------------------------------------------------------------------------------------------------


async def test_conditions_are_the_servers_to_check(nc: Connection, stream: str):
    """A message with a condition is stored when it holds, and refused when not."""
    x, y = f"{stream}.x", f"{stream}.y"
    async with Publisher(nc, stream) as publisher:
        await publisher.publish(x, b"a", id="one")
        await publisher.publish(x, b"b", expect_last_sequence=1, id="two")
        await publisher.publish(y, b"c", expect_last_subject_sequence=0)
        await publisher.publish(x, b"d", expect_last_subject_sequence=2, id="four")
        await publisher.publish(x, b"e", expect_last_id="four")
        await publisher.publish(y, b"f", id="six")
        for wrong, code, subject, expected, actual in (
            ({"expect_last_sequence": 1}, 10071, None, 1, 6),
            ({"expect_last_subject_sequence": 1}, 10071, x, 1, 5),
            ({"expect_last_sequence": 6, "expect_last_subject_sequence": 1}, 10071, None, None, 5),
            ({"expect_last_id": "one"}, 10070, None, "one", "six"),
        ):
            with pytest.raises(ConditionError) as caught:
                await publisher.publish(x, b"no", **wrong)
            error = caught.value
            assert (error.err_code, error.subject, error.expected, error.actual) == (code, subject, expected, actual)
            assert expected is None or "the message was not stored" in str(error)
        with pytest.raises(ConditionError, match="ends with sequence 5, and no message was expected"):
            [ack async for ack in publisher.publish_all([Outgoing(x, b"no", expect_last_subject_sequence=0)])]
        await publisher.publish(x, b"g")
    assert b"".join(await bodies(nc, stream)) == b"abcdefg"


async def test_all_values_of_a_header_are_stored(nc: Connection, stream: str):
    """A header with several values is stored with all of them, one by one and in both kinds of batches."""
    out = Outgoing(f"{stream}.x", b"x", headers={"K": ["v", "w"], "L": "x"})
    async with Publisher(nc, stream) as publisher:
        for how in ("plain", "atomic", "fast"):
            ack = await publisher.publish_batch([out], how)
            stored = (await assets.get_message(nc, stream, ack.sequence)).headers
            assert (stored["K"], stored["L"]) == (["v", "w"], ["x"])


async def test_a_condition_survives_a_lost_ack(nc: Connection, stream: str):
    """A conditional message whose ack is lost is found stored, and neither refused nor stored twice."""
    client = LossyClient(nc, lose_ack=once_each({2}))
    async with Publisher(client, stream, ack_timeout=0.3) as publisher:
        await publisher.publish(f"{stream}.x", b"a")
        ack = await publisher.publish(f"{stream}.x", b"b", expect_last_sequence=1)
    assert (ack.sequence, ack.duplicate, client.lost) == (2, False, 1)
    assert await bodies(nc, stream) == [b"a", b"b"]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_lost_acks_store_nothing_twice(nc: Connection, stream: str, order: str):
    """Messages whose acks are lost are sent again, recognised, and told as stored."""
    client = LossyClient(nc, lose_ack=once_each({3, 50, 51, 99}))
    async with Publisher(client, stream, ack_timeout=0.3, order=order, in_flight=32) as publisher:
        futures = [await publisher.send(f"{stream}.x", b"%d" % number) for number in range(100)]
        acks = await asyncio.gather(*futures)
    assert client.lost == 4
    assert publisher.retries >= 4
    assert [ack.sequence for ack in acks] == list(range(1, 101))
    assert not any(ack.duplicate for ack in acks)
    assert await bodies(nc, stream) == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("order", ["strict", "chained"])
async def test_lost_messages_keep_their_place(nc: Connection, stream: str, order: str):
    """A message that never arrives is not overtaken: those behind it wait, or are refused and sent again after it."""
    client = LossyClient(nc, lose_message=once_each({5, 20, 21, 60}))
    async with Publisher(client, stream, ack_timeout=0.3, in_flight=16, order=order) as publisher:
        for number in range(80):
            await publisher.send(f"{stream}.x", b"%d" % number)
    assert client.lost == 4
    assert await bodies(nc, stream) == [b"%d" % number for number in range(80)]


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_a_refused_message_does_not_stop_the_rest(nc: Connection, unique: Any, order: str):
    """A message that the stream refuses fails alone; flush tells it, and what follows is stored in order."""
    name = unique("PUB")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], max_msg_size=200))
    publisher = Publisher(nc, name, order=order)
    await publisher.open()
    for number in range(20):
        await publisher.send(f"{name}.x", b"x" * 500 if number == 7 else b"%d" % number)
    with pytest.raises(JetStreamError, match="message size exceeds maximum"):
        await publisher.flush()
    await publisher.flush()  # told once
    await publisher.close()
    assert await bodies(nc, name) == [b"%d" % number for number in range(20) if number != 7]


async def test_patience_ends(nc: Connection, stream: str):
    """Without any ack the publisher gives up in time, and says that nobody knows."""
    client = LossyClient(nc, lose_ack=lambda message: True)
    async with Publisher(client, stream, ack_timeout=0.1, patience=0.4) as publisher:
        with pytest.raises(DeadlineError, match="it may be stored or not") as caught:
            await publisher.publish(f"{stream}.x", b"a")
    assert "the same id" in caught.value.remedy
    assert await bodies(nc, stream) == [b"a"]


@pytest.mark.parametrize("order", ["strict", "chained"])
async def test_a_server_that_restarts_loses_and_repeats_nothing(unique: Any, order: str):
    """Over a restart of the server, killed in the middle, everything is stored once and in order."""
    with Server(sync="always") as server:
        async with await connect(server.url, reconnect_wait=0.1) as nc:
            await assets.add_stream(nc, Stream(name="S", subjects=["s.>"]))
            async with Publisher(nc, "S", ack_timeout=1.0, order=order) as publisher:
                for number in range(600):
                    await publisher.send("s.x", b"%d" % number, id=str(number))
                    if number == 200:
                        await asyncio.to_thread(server.nodes[0].kill)
                        restart = asyncio.ensure_future(asyncio.to_thread(server.nodes[0].start))
                await publisher.flush()
                await restart
            assert await bodies(nc, "S") == [b"%d" % number for number in range(600)]


async def test_closing_tells_what_is_left(nc: Connection, stream: str):
    """Leaving by an error fails what has no ack, at once; a closed publisher takes nothing."""
    client = LossyClient(nc, lose_ack=lambda message: True)
    publisher = Publisher(client, stream)
    await publisher.open()
    future = await publisher.send(f"{stream}.x", b"a")
    await publisher.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    with pytest.raises(DisconnectedError, match="closed before"):
        await future
    with pytest.raises(InputError, match="not open"):
        await publisher.publish(f"{stream}.x", b"b")


async def test_bad_input_is_refused_before_it_is_sent(nc: Connection, stream: str):
    """Foreign subjects, too large messages, impossible options: one sentence each, and nothing is stored."""
    async with Publisher(nc, stream) as publisher:
        for subject, data, says in (
            ("other.x", b"", "does not capture the subject other.x"),
            (f"{stream}.*", b"", "has a wildcard"),
            (f"{stream}.x", b"x" * (nc.max_payload + 1), "Send it in chunks"),
        ):
            with pytest.raises(InputError, match=says):
                await publisher.publish(subject, data)
        with pytest.raises(InputError, match="The batch is empty"):
            await publisher.publish_batch([])
        with pytest.raises(InputError, match="too large; the server takes 1,000"):
            await publisher.publish_batch([Outgoing(f"{stream}.x") for _ in range(1001)], "atomic")
        with pytest.raises(InputError, match="how is"):
            await publisher.publish_batch([Outgoing(f"{stream}.x")], "slow")
        with pytest.raises(InputError, match="does not capture"):
            await publisher.publish_batch([Outgoing(f"{stream}.x"), Outgoing("other.x")], "atomic")
        good = Outgoing(f"{stream}.x", b"x")
        for bad, says in (
            (Outgoing("other.x"), "Message 1 .counted from 0.: Stream .* does not capture the subject other.x"),
            (Outgoing(f"{stream}.x", b"x" * (nc.max_payload + 1)), "Message 1 .*Send it in chunks"),
            ((f"{stream}.x", b"x"), "Message 1 .*given as tuple. Give penstock.jetstream.Outgoing"),
            ("text", "Message 1 .*given as str"),
        ):
            with pytest.raises(InputError, match=says):
                [ack async for ack in publisher.publish_all([good, bad])]
            for how in ("plain", "atomic", "fast", None):
                with pytest.raises(InputError, match=says):
                    await publisher.publish_batch([good, bad], how)
        for many in (good, 7, None):
            with pytest.raises(InputError, match=r"Messages are given as .* Give a list of Outgoing"):
                [ack async for ack in publisher.publish_all(many)]
            with pytest.raises(InputError, match="Messages are given as"):
                await publisher.publish_batch(many)
    for options in (
        {"in_flight": 0},
        {"order": "any"},
        {"sole_writer": True},
        {"ack_timeout": 0},
        {"ack_timeout": "soon"},
    ):
        with pytest.raises(InputError):
            Publisher(nc, stream, **options)
    with pytest.raises(InputError, match="remembers ids for 120 s only"):
        async with Publisher(nc, stream, patience="5m"):
            pass
    with pytest.raises(JetStreamError, match="There is no stream NOWHERE"):
        async with Publisher(nc, "NOWHERE"):
            pass
    assert (await assets.stream_info(nc, stream)).messages == 0


# -- batches ---------------------------------------------------------------------------------------------------------


async def test_an_atomic_batch_is_all_or_nothing(nc: Connection, stream: str):
    """A batch with a condition that fails, or an id that is known, stores none of its messages."""
    x = f"{stream}.x"
    async with Publisher(nc, stream) as publisher:
        ack = await publisher.publish_batch([Outgoing(x, b"a", id="1"), Outgoing(x, b"b")], "atomic")
        assert (ack.how, ack.count, ack.sequence, ack.duplicates) == ("atomic", 2, 2, 0)
        with pytest.raises(ConditionError, match="The stream ends with sequence 2, and 9 was expected") as caught:
            await publisher.publish_batch([Outgoing(x, b"c", expect_last_sequence=9), Outgoing(x, b"d")], "atomic")
        assert (caught.value.err_code, caught.value.expected, caught.value.actual) == (10071, 9, 2)
        with pytest.raises(ConditionError, match=r"and 9 was expected.* The 1 messages before it are stored") as caught:
            await publisher.publish_batch([Outgoing(x, b"e"), Outgoing(x, b"f", expect_last_sequence=9)], "fast")
        assert (caught.value.err_code, caught.value.expected, caught.value.actual) == (10071, 9, 3)
        with pytest.raises(JetStreamError) as caught:
            await publisher.publish_batch([Outgoing(x, b"c"), Outgoing(x, b"d", id="1")], "atomic")
        assert caught.value.err_code == 10201
        with pytest.raises(InputError, match="the same id"):
            await publisher.publish_batch([Outgoing(x, id="z"), Outgoing(x, id="z")], "atomic")
        await publisher.publish(x, b"after")
    assert await bodies(nc, stream) == [b"a", b"b", b"e", b"after"]


async def test_an_atomic_batch_survives_a_lost_ack(nc: Connection, stream: str):
    """Where the answer to the commit is lost, the batch is found stored, once."""

    class Deaf(LossyClient):
        async def request(self, subject: str, *about: Any, headers: Any = None, **more: Any) -> Any:
            reply = await self._client.request(subject, *about, headers=headers, **more)
            if "Nats-Batch-Commit" in (headers or {}) and not self.lost:
                self.lost += 1
                raise DeadlineError("The answer is lost.")
            return reply

    client = Deaf(nc)
    async with Publisher(client, stream) as publisher:
        ack = await publisher.publish_batch([Outgoing(f"{stream}.x", b"%d" % n) for n in range(10)], "atomic")
    assert (ack.count, ack.sequence, client.lost) == (10, 10, 1)
    assert await bodies(nc, stream) == [b"%d" % n for n in range(10)]


async def test_fast_ingest_is_in_order(nc: Connection, stream: str):
    """Any number of messages, from a generator, are stored in order; repeats are recognised."""
    x = f"{stream}.x"
    async with Publisher(nc, stream) as publisher:
        ack = await publisher.publish_batch((Outgoing(x, b"%d" % n, id=str(n)) for n in range(2500)), "fast")
        assert (ack.how, ack.count, ack.sequence) == ("fast", 2500, 2500)
        again = await publisher.publish_batch([Outgoing(x, b"%d" % n, id=str(n)) for n in range(2490, 2500)], "fast")
        assert (again.count, again.sequence) == (10, 2500)
        one = await publisher.publish_batch([Outgoing(x, b"end")], "fast")
        assert (one.count, one.sequence) == (1, 2501)
    assert await bodies(nc, stream) == [*(b"%d" % n for n in range(2500)), b"end"]


@pytest.mark.parametrize("kind", [DeadlineError, DisconnectedError, NoRespondersError, RemoteProtocolError])
async def test_fast_ingest_that_is_stored_is_no_failure(
    nc: Connection, stream: str, monkeypatch: pytest.MonkeyPatch, kind: type[PenstockError]
):
    """If nobody can tell where the end of a fast batch is, the batch is stored all the same, and its sequence is 0."""
    asked: list[str] = []

    async def find(route: Route, out: Outgoing, message_id: str) -> None:
        asked.append(message_id)
        raise kind("There is no answer.")

    monkeypatch.setattr(Route, "find", find)
    async with Publisher(nc, stream) as publisher:
        for sequence in (3, 0):  # the second time all of them are duplicates
            batch = [Outgoing(f"{stream}.x", b"%d" % n, id=str(n)) for n in range(3)]
            ack = await publisher.publish_batch(batch, "fast")
            assert (ack.count, ack.sequence) == (3, sequence)
    assert asked == ["2"]


@pytest.mark.parametrize("lost", [{1}, {2}, {700}, {1500, 1501}, {2000}])
async def test_fast_ingest_resumes_after_a_gap(nc: Connection, stream: str, lost: set[int]):
    """A message that is lost in the middle ends the batch; the rest is sent again, in order, stored once."""
    client = LossyClient(nc, lose_message=once_each(lost))
    async with Publisher(client, stream, ack_timeout=0.5) as publisher:
        ack = await publisher.publish_batch([Outgoing(f"{stream}.x", b"%d" % n) for n in range(2000)], "fast")
    assert (ack.count, ack.sequence, client.lost) == (2000, 2000, len(lost))
    assert await bodies(nc, stream) == [b"%d" % n for n in range(2000)]


async def test_fast_ingest_says_which_message_was_refused(nc: Connection, unique: Any):
    """A message that the stream refuses ends the batch with its error; those before it are stored."""
    name = unique("PUB")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], max_msg_size=200, allow_batched=True))
    messages = [Outgoing(f"{name}.x", b"x" * 500 if n == 30 else b"%d" % n) for n in range(60)]
    async with Publisher(nc, name, ack_timeout=0.5, patience=3) as publisher:
        with pytest.raises(JetStreamError, match="message size exceeds maximum"):
            await publisher.publish_batch(messages, "fast")
    assert await bodies(nc, name) == [b"%d" % n for n in range(30)]
