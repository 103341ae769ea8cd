"""Publishers wait for receivers that are slower, and for nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import asynccontextmanager

import pytest

import penstock
from penstock.chunks import Assembler, Publisher, pacing
from penstock.chunks.pacing import AHEAD, is_answerable
from tests.live.chunks import receiving
from tests.support import eventually

MB = 1024 * 1024
PIECE = os.urandom(MB)


def payload(megabytes: int):
    for _ in range(megabytes):
        yield PIECE


async def test_a_publisher_waits_for_a_slow_reader(server, nc, unique):
    """A reader that does not read holds the publisher: memory and disk stay within what may be under way."""
    subject, sent = unique("flow"), []
    other = await penstock.connect(server.url)
    async with Assembler(other) as assembler, assembler.open(subject, window=2 * MB) as inbox:
        publisher = Publisher(nc, digest=True)
        publishing = asyncio.ensure_future(publisher.publish(subject, payload(96), progress=sent.append))
        message = await asyncio.wait_for(anext(inbox), 20)
        await eventually(lambda: sent and sent[-1] >= AHEAD, "the gate")
        for _ in range(15):  # it does not move while nobody reads, for longer than an answer may take
            await asyncio.sleep(0.1)
            assert sent[-1] <= AHEAD + 12 * MB
            assert sum(assembler.held_bytes) <= AHEAD + 14 * MB
        digest = hashlib.sha256()
        async for piece in message:
            digest.update(piece)
        assert digest.digest() == hashlib.sha256(PIECE * 96).digest()
        await publishing
    await other.close()


async def test_a_publisher_waits_for_the_slowest_of_several(server, nc, unique):
    """With a fast and a slow receiver on one subject, the slow one sets the pace, and both get everything."""
    subject, sent = unique("flow"), []
    other = await penstock.connect(server.url)
    async with (
        receiving(server, subject) as fast,
        Assembler(other) as assembler,
        assembler.open(subject, window=MB) as inbox,
    ):
        publishing = asyncio.ensure_future(Publisher(nc).publish(subject, payload(48), progress=sent.append))
        message = await asyncio.wait_for(anext(inbox), 20)
        await eventually(lambda: sent and sent[-1] >= AHEAD, "the gate")
        await asyncio.sleep(0.2)
        assert sent[-1] <= AHEAD + 12 * MB
        assert await message.read() == PIECE * 48
        await publishing
        assert (await fast.wait())[0][1] == PIECE * 48
    await other.close()


@asynccontextmanager
async def foreign(server, subject):
    """A receiver that knows the format and nothing more; gives a list of the sizes that came."""
    plain, got = await penstock.connect(server.url), []

    async def received(message) -> None:
        got.append(len(message.data))

    await plain.subscribe(subject, cb=received)
    await plain.flush()
    yield got
    await plain.close()


async def test_receivers_that_cannot_answer_are_not_waited_for(server, nc, unique, monkeypatch):
    """The server says that nobody listens who would answer, before an answer could come: nothing is waited for."""
    monkeypatch.setattr(pacing, "_GRACE", 3600.0)
    subject = unique("flow")
    async with foreign(server, subject) as got:
        publisher = Publisher(nc)
        await asyncio.wait_for(publisher.publish(subject, payload(40)), 60)
        assert subject not in publisher._silence
        await eventually(lambda: sum(got) == 40 * MB, "everything")


async def test_receivers_that_do_not_answer_are_waited_for_once(server, nc, unique):
    """Where somebody listens to everything, an answer is possible: it is given one moment, for each subject."""
    subject = unique("flow")
    async with foreign(server, subject) as got, foreign(server, f"*.{subject}"):
        publisher = Publisher(nc)
        await publisher.publish(subject, payload(20))
        assert subject in publisher._silence
        await publisher.publish(subject, payload(20))
        await eventually(lambda: sum(got) == 40 * MB, "everything")


async def test_an_assembler_is_waited_for_as_long_as_it_listens(server, nc, unique, monkeypatch):
    """Who listens and has not answered yet is waited for; who ended its subscription itself is not, once that is seen.

    The question itself ends what is left of such a subscription.
    """
    subject = unique("flow")
    async with foreign(server, subject), receiving(server, subject) as ours:
        other = ours.assembler._nc
        monkeypatch.setattr(ours.assembler, "_answer", lambda assembly: None)
        monkeypatch.setattr(ours.assembler, "_say", lambda reply, position: None)
        publisher = Publisher(nc)
        await publisher.publish(subject, payload(20))
        assert subject in publisher._silence
        (mine,) = ours.assembler._subscriptions
        await mine.unsubscribe()
        await other.flush()
        await Publisher(nc).publish(subject, payload(20))
        await eventually(lambda: not any(item.subject == f"_CHUNKS.{subject}" for item in listened(other)), "the end")
        await other.flush()
        monkeypatch.setattr(pacing, "_GRACE", 3600.0)
        await asyncio.wait_for(Publisher(nc).publish(subject, payload(20)), 60)


def listened(nc):
    return list(nc._subscriptions.values())


async def test_nobody_is_not_waited_for(nc, unique):
    """Where the server says that nobody listens, the publisher goes on at once, and thinks nothing of the subject."""
    publisher, subject = Publisher(nc), unique("flow")
    await publisher.publish(subject, payload(40))
    assert subject not in publisher._silence


async def test_a_receiver_that_is_gone_is_not_waited_for_for_ever(server, nc, unique, monkeypatch):
    """A reader that never comes back holds the publisher for a while; then the payload goes to the others."""
    monkeypatch.setattr(pacing, "_PATIENCE", 0.5)
    subject = unique("flow")
    other = await penstock.connect(server.url)
    async with (
        receiving(server, subject) as fast,
        Assembler(other, on_error=lambda error: None) as stuck,
        stuck.open(subject, window=MB),
    ):
        await Publisher(nc).publish(subject, payload(64))
        assert (await fast.wait())[0][1] == PIECE * 64
        # What the stuck reader did not take went to disk.
        assert stuck.held_bytes[0] < 3 * MB
        await eventually(lambda: stuck.held_bytes[1] > 50 * MB, "the rest on disk")
    await other.close()


async def test_a_stream_on_the_subject_is_no_receiver(nc, unique):
    """A stream that holds the subject acknowledges chunks with a reply; the publisher does not wait for it."""
    from penstock.connection import api_request

    stream, subject = unique("FLOW"), unique("flow")
    await api_request(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [subject], "storage": "memory"})
    await Publisher(nc).publish(subject, payload(24))

    async def stored() -> bool:
        return (await api_request(nc, f"STREAM.INFO.{stream}"))["state"]["messages"] == 48

    await eventually(stored, "all chunks in the stream")
    await api_request(nc, f"STREAM.DELETE.{stream}")


async def test_small_payloads_carry_no_reply_and_flow_may_be_off(server, nc, unique):
    """Below one window, and with flow off, no chunk has a reply subject."""
    subject, replies = unique("flow"), []

    async def received(message) -> None:
        replies.append(message.reply)

    await nc.subscribe(subject, cb=received)
    await Publisher(nc).publish(subject, PIECE * 4)
    await Publisher(nc, flow=False).publish(subject, payload(20))
    await Publisher(nc).publish(subject, payload(8))
    await eventually(lambda: len(replies) == 8 + 40 + 16, "all chunks")
    assert [bool(reply) for reply in replies[:48]] == [False] * 48
    # The last chunk is held back, so that it may be marked: of 8 MiB one window is known to be full before it.
    assert sum(bool(reply) for reply in replies[48:]) == 1


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("_INBOX.abc.chunks.5", True),
        ("mine.abc.chunks.123456789", True),
        ("_INBOX.abc", False),
        ("orders.new", False),
        ("$JS.API.STREAM.DELETE.chunks.5", False),
        ("$SYS.REQ.chunks.1", False),
        ("chunks.5", False),
        ("_INBOX.chunks.x", False),
    ],
)
async def test_only_the_replies_of_publishers_are_answered(server, nc, unique, reply, right):
    """Nobody can make a receiver publish on a subject of the server, or on any that is not a publisher's inbox."""
    assert is_answerable(reply) == right
    if reply.startswith("$"):
        return
    subject, answers = unique("flow"), []

    async def answered(message) -> None:
        answers.append(message.data)

    await nc.subscribe(reply, cb=answered)
    await nc.flush()
    async with receiving(server, subject) as receiver:
        headers = {"X-Msg-Id": "m", "X-Offset": "0", "X-Flags": "1", "X-Total-Size": "3"}
        await nc.publish(subject, b"abc", reply=reply, headers=headers)
        await receiver.wait()
        await receiver.settle()
    await nc.flush()
    assert len(answers) == right


async def test_answers_that_wait_for_a_reader_are_bounded(nc, unique):
    """Who sends one chunk beyond a reader's window again and again is owed a few answers, not one for each time."""
    subject, reply, answers = unique("flow"), f"_INBOX.{unique()}.chunks.3000", []

    async def answered(message) -> None:
        answers.append(int(message.data.split()[1]))

    await nc.subscribe(reply, cb=answered)
    async with Assembler(nc) as assembler, assembler.open(subject, window=1000) as inbox:
        for offset in (0, 1000, *[2000] * 1000):
            headers = {"X-Msg-Id": "m", "X-Offset": str(offset), "X-Flags": "0"}
            await nc.publish(subject, bytes(1000), reply if offset == 2000 else "", headers)
        message = await asyncio.wait_for(anext(inbox), 20)
        await eventually(lambda: len(answers) == 1000, "an answer at once for each")
        assert set(answers) == {1000}  # so far there is room
        while message.position < 2000:
            await message.read(1000)
        await eventually(lambda: len(answers) > 1000, "the answers that were owed")
        await nc.flush()
        assert set(answers[1000:]) == {3000}
        assert len(answers) <= 1064


async def test_receivers_that_are_waited_for_are_bounded(nc, unique, monkeypatch, caplog):
    """Whoever answers under ever new names is not remembered under all of them; the log says so, once."""
    monkeypatch.setattr(pacing, "_MOST", 3)
    monkeypatch.setattr(pacing, "_PATIENCE", 0.1)
    subject = unique("flow")

    async def answer(message) -> None:
        for number in range(20 if message.reply else 0):
            await nc.publish(message.reply, b"%016x 1" % number)

    await nc.subscribe(subject, cb=answer)
    await Publisher(nc).publish(subject, payload(24))
    said = [record.getMessage() for record in caplog.records if "not waited for" in record.getMessage()]
    assert said == [f"More than 3 receivers of {subject} answer; the others are not waited for."]
