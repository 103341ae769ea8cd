"""Many frames in one piece, and many answers to one question: what an exchange hears, and how it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.connection import Connection, api_request, connect
from penstock.connection.asking import direct_get, store_frames
from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RemoteProtocolError,
)
from penstock.server import Server
from penstock.wire import protocol
from penstock.wire.jetstream import direct, names
from tests.live.cable import relay

LONG = 60.0  # no test waits for it


@pytest.fixture
async def stream(nc: Connection, unique: Callable[..., str]):
    """A stream of its own, with ten messages in it."""
    name = unique("EX")
    await api_request(nc, names.stream_create(name), {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    subject = f"{name}.a"

    def make(reply: bytes) -> bytes:
        frames = [protocol.publish(subject, b"%d" % number, reply.decode()) for number in range(1, 11)]
        return b"".join(frames)

    await store_frames(nc, make, (subject,), count=10)
    yield name
    await api_request(nc, names.stream_delete(name))


class Heard:
    """What an exchange heard, until it had so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.payloads: list[bytes] = []

    def __call__(self, payload: bytes, block: bytes | None) -> bool:
        self.payloads.append(payload)
        return len(self.payloads) == self.most


def asking(*subjects: str) -> Callable[[bytes], bytes]:
    return lambda reply: b"".join(protocol.publish(subject, b"?", reply.decode()) for subject in subjects)


async def answering(nc: Connection, subject: str, count: int = 1, cut: Any = None) -> None:
    """Answer each message so many times, then do something."""

    async def answer(message: Any) -> None:
        for number in range(count):
            await message.respond(b"%d" % number)
        if cut is not None:
            await nc.flush()
            cut()

    await nc.subscribe(subject, cb=answer)
    await nc.flush()


async def test_every_answer_is_heard_until_the_last(nc, unique):
    """Three questions in one piece with two answers each are six answers; what comes after the last is not heard."""
    subjects = [unique("a"), unique("b"), unique("c")]
    for subject in subjects:
        await answering(nc, subject, 2)
    heard = Heard(6)
    await nc.exchange(asking(*subjects), heard, subjects, LONG)
    assert sorted(heard.payloads) == [b"0"] * 3 + [b"1"] * 3
    few = Heard(1)
    await nc.exchange(asking(*subjects), few, subjects, LONG)
    await nc.flush()
    assert len(few.payloads) == 1


async def test_many_exchanges_and_requests_do_not_mix(nc, unique):
    """A hundred exchanges and requests at the same time each hear their own answers."""
    subject = unique("echo")

    async def echo(message: Any) -> None:
        await message.respond(message.data)

    await nc.subscribe(subject, cb=echo)

    async def exchange(number: int) -> bytes:
        heard = Heard(1)
        content = b"%d" % number
        await nc.exchange(lambda reply: protocol.publish(subject, content, reply.decode()), heard, (subject,), LONG)
        return heard.payloads[0]

    async def request(number: int) -> bytes:
        return (await nc.request(subject, b"%d" % number, LONG)).data

    jobs = [(exchange if number % 2 else request)(number) for number in range(100)]
    assert await asyncio.gather(*jobs) == [b"%d" % number for number in range(100)]


async def test_an_exchange_without_its_last_answer_meets_its_deadline(nc, unique):
    """Answers that keep coming do not shift the deadline, and the error names the subject."""
    subject = unique("half")
    await answering(nc, subject, 3)
    with pytest.raises(DeadlineError, match=rf"{subject} in time \(0\.2 s\)"):
        await nc.exchange(asking(subject), Heard(4), (subject,), 0.2)


async def test_a_broken_connection_is_told_at_once(server, unique):
    """An exchange that misses answers when its connection breaks fails there and then, and is not sent again."""
    subject = unique("cut")
    async with relay(server) as wire, await connect(wire.url) as nc, await connect(server.url) as other:
        cuts = [wire.cut]
        await answering(other, subject, 1, lambda: cuts.pop()() if cuts else None)
        began = time.monotonic()
        with pytest.raises(DisconnectedError, match="broke before the answer"):
            await nc.exchange(asking(subject), Heard(2), (subject,), LONG)
        assert time.monotonic() - began < LONG / 2
        await nc.standing(LONG)
        heard = Heard(1)
        await nc.exchange(asking(subject), heard, (subject,), LONG)
        assert heard.payloads == [b"0"], "the next one goes over the new connection"


async def test_without_a_connection_nothing_is_sent(server, unique):
    """While there is no connection, and when there will be none any more, an exchange fails and leaves nothing."""
    subject = unique("gone")
    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=LONG)
        wire.refuse = True
        wire.cut()
        await asyncio.shield(nc.broken)
        with pytest.raises(DisconnectedError, match="no connection now"):
            await nc.exchange(asking(subject), Heard(1), (subject,), LONG)
        assert nc.pending_data_size == 0
        await nc.close()
        with pytest.raises(DisconnectedError, match="closed"):
            await nc.exchange(asking(subject), Heard(1), (subject,), LONG)


async def test_closing_ends_an_exchange(server, unique):
    """Whoever waits for answers on a connection that we close ourselves is told at once."""
    subject = unique("silent")
    nc = await connect(server.url)
    await nc.subscribe(subject)
    waiting = asyncio.ensure_future(nc.exchange(asking(subject), Heard(1), (subject,), LONG))
    await nc.flush()
    await nc.close()
    with pytest.raises(DisconnectedError):
        await waiting


async def test_a_cancelled_exchange_leaves_nothing(nc, unique):
    """After a cancellation no answer is heard, and nothing is kept for it."""
    subject = unique("silent")
    quiet = await nc.subscribe(subject)
    heard = Heard(1)
    waiting = asyncio.ensure_future(nc.exchange(asking(subject), heard, (subject,), LONG))
    message = await quiet.next_msg(LONG)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await message.respond(b"late")
    await nc.flush()
    assert heard.payloads == []
    assert nc._requests._waiting == {}


async def test_a_denied_subject_among_many(unique):
    """An exchange of which one subject is denied fails at once, and the error names that subject."""
    config = 'authorization { users: [{user: u, password: p, permissions: {publish: {deny: "secret.>"}}}] }'
    with Server(config=config, auth=False, sync="2m") as guarded:
        async with await connect(guarded.url, user="u", password="p") as nc:
            subjects = ["open.a", "secret.b", "open.c"]
            await nc.subscribe("open.>")
            with pytest.raises(DeniedError) as error:
                await nc.exchange(asking(*subjects), Heard(3), subjects, LONG)
            assert (error.value.subject, error.value.operation) == ("secret.b", "publish")
            other = Heard(1)
            await answering(nc, "open.d")
            await nc.exchange(asking("open.d"), other, ("open.d",), LONG)
            assert other.payloads == [b"0"]


# -- what is asked of JetStream in this way ---------------------------------------------------------------------------


async def test_acks_of_many_frames(nc, stream):
    """Each frame that asks for an ack has one, with its sequence; one that is refused raises what the server says."""
    subject = f"{stream}.b"

    def following(last: int) -> Callable[[bytes], bytes]:
        block = protocol.encode_headers({names.EXPECTED_LAST_SEQUENCE: str(last)})
        return lambda reply: protocol.publish(subject, b"x", reply.decode(), block)

    def make(reply: bytes) -> bytes:
        return following(10)(reply) + following(11)(reply)

    acks = await store_frames(nc, make, (subject,), count=2)
    assert [(ack.stream, ack.sequence) for ack in acks] == [(stream, 11), (stream, 12)]
    with pytest.raises(JetStreamError) as error:
        await store_frames(nc, lambda reply: following(3)(reply) + following(12)(reply), (subject,), count=2)
    assert error.value.err_code == 10071
    found = await direct_get(nc, stream, direct.question(13))
    assert found[0][0] == b"x", "the other one was stored all the same"


async def test_acks_of_a_subject_that_no_stream_holds(nc, unique):
    """Where no stream takes the subject, the error says so at once."""
    subject = unique("nowhere")
    with pytest.raises(NoRespondersError, match="No stream takes this message"):
        await store_frames(nc, asking(subject), (subject,), timeout=LONG)


async def test_what_answers_is_no_jetstream(nc, unique):
    """An answer that is no ack is a protocol error, not a message that counts as stored."""
    subject = unique("fake")
    await answering(nc, subject)
    with pytest.raises(RemoteProtocolError):
        await store_frames(nc, asking(subject), (subject,), timeout=LONG)


async def test_direct_gets(nc, stream):
    """One message, many from a sequence on, and none where there is none; each with its headers."""
    [(payload, block)] = await direct_get(nc, stream, direct.question(3))
    assert payload == b"3"
    assert direct.read_found(payload, block).sequence == 3
    many = await direct_get(nc, stream, direct.question(4, batch=5))
    assert [payload for payload, _ in many] == [b"4", b"5", b"6", b"7", b"8"]
    assert [payload for payload, _ in await direct_get(nc, stream, direct.question(9, batch=5))] == [b"9", b"10"]
    assert await direct_get(nc, stream, direct.question(99)) == []
    assert await direct_get(nc, stream, direct.question(99, batch=5)) == []


async def test_direct_get_of_no_stream(nc, unique):
    """A stream that is not there is told at once."""
    with pytest.raises(NoRespondersError, match="Nobody gives messages of stream"):
        await direct_get(nc, unique("NONE"), direct.question(1), LONG)


async def test_a_direct_get_that_the_server_refuses(nc, stream):
    """A request of a form that the server does not take raises its words."""
    with pytest.raises(JetStreamError, match="refuses a direct get"):
        await direct_get(nc, stream, {"seq": 1, "last_by_subj": "x"}, LONG)
