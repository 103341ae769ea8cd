"""Payloads stored in a stream: acknowledged, continued where they stopped, found by id, delivered once."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import textwrap

import pytest

import penstock
from penstock.chunks import Archive, Publisher, Reason
from penstock.connection import api_request
from penstock.errors import AssemblyError, InputError, JetStreamError, NotFoundError, OptionError, UnfinishedError
from tests.live.chunks import receiving
from tests.live.command import environment
from tests.support import eventually

DATA = os.urandom(3 * 1024 * 1024 + 11)
CHUNK = 128 * 1024
COUNT = len(DATA) // CHUNK + 1


@pytest.fixture
async def nc(server):
    client = await penstock.connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def archive(nc, unique):
    stream, subject = unique("CHUNKS"), unique("chunks")
    made = await Archive.create(nc, stream, subject)
    yield made
    await api_request(nc, f"STREAM.DELETE.{stream}")


async def messages(nc, archive: Archive) -> int:
    info = await api_request(nc, f"STREAM.INFO.{archive.stream}")
    return int(info["state"]["messages"])


async def consumers(nc, archive: Archive) -> int:
    return int((await api_request(nc, f"STREAM.INFO.{archive.stream}"))["state"]["consumer_count"])


def publisher(nc, archive: Archive, chunk_size: int = CHUNK, **options):
    return Publisher.persistent(nc, archive.stream, chunk_size, **options)


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, len(DATA)])
async def test_a_stored_message_is_fetched_by_its_id(nc, archive, size):
    """Whatever its size, a payload that was acknowledged is there later, and nothing of the search is left."""
    seen = []
    subject = await archive.subject()
    message_id = await publisher(nc, archive).publish(subject, DATA[:size], progress=seen.append)
    assert await archive.fetch(message_id) == DATA[:size]
    assert seen[-1] == size
    assert await consumers(nc, archive) == 0


async def test_streams_without_direct_get_are_read_as_well(nc, archive):
    """A stream that allows no direct access is read through the ordinary API."""
    config = {**await archive.config(), "allow_direct": False}
    await api_request(nc, f"STREAM.UPDATE.{archive.stream}", config)
    message_id = await publisher(nc, archive).publish(await archive.subject(), DATA)
    other = Archive(nc, archive.stream)
    assert not (await other.config()).get("allow_direct")
    assert await other.fetch(message_id) == DATA


async def test_a_stored_message_is_read_in_pieces_with_little_memory(nc, archive):
    """A reader that takes its time holds a few chunks, not the payload; and it may leave half way."""
    message_id = await publisher(nc, archive).publish(await archive.subject(), DATA)
    async with archive.open(message_id) as message:
        assert message.size == len(DATA)
        got = b""
        while piece := await message.read(100_000):
            got += piece
        assert got == DATA
        assert message.position == len(DATA)
    async with archive.open(message_id) as message:
        await message.read(10)


async def test_core_receivers_hear_stored_messages_too(server, nc, archive):
    """The chunks in the stream are the chunks of the format: an assembler on the subject puts them together."""
    subject = await archive.subject()
    async with receiving(server, subject, listen=f"{subject}.*") as receiver:
        message_id = await publisher(nc, archive).publish(subject, DATA)
        assert await receiver.wait() == [(message_id, DATA, f"{subject}.{message_id}")]


async def test_messages_of_a_plain_publisher_in_a_stream_are_found(nc, unique):
    """What a plain publisher sent on a subject that a stream holds is fetched by id and consumed, too."""
    stream, subject = unique("PLAIN"), unique("plain")
    await api_request(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [subject], "storage": "memory"})
    plain = Publisher(nc, CHUNK, digest=True)
    ids = await asyncio.gather(*(plain.publish(subject, DATA[number:]) for number in range(3)))
    archive = Archive(nc, stream)
    for number, message_id in enumerate(ids):
        assert await archive.fetch(message_id) == DATA[number:]
    got = {}
    async with archive.consume(lambda message_id, data: got.update({message_id: data})):
        await eventually(lambda: len(got) == 3, "all three")
    assert got == {message_id: DATA[number:] for number, message_id in enumerate(ids)}
    await api_request(nc, f"STREAM.DELETE.{stream}")


async def test_a_publish_that_stopped_goes_on_where_it_stopped(nc, archive):
    """The same id and source again send only the chunks that are missing, and the message is whole."""
    subject = await archive.subject()

    def broken():
        for start in range(0, 10 * CHUNK, CHUNK):
            yield DATA[start : start + CHUNK]
        raise RuntimeError("the disk is gone")

    with pytest.raises(UnfinishedError, match="the disk is gone") as caught:
        await publisher(nc, archive).publish(subject, broken(), message_id="again")
    assert "message_id='again'" in caught.value.remedy
    stored = await messages(nc, archive)
    assert 0 < caught.value.confirmed <= 10 * CHUNK
    with pytest.raises(AssemblyError) as missing:
        await archive.fetch("again")
    assert missing.value.reason == Reason.MISSING
    before = nc.stats["out_bytes"]
    await publisher(nc, archive).publish(subject, DATA, message_id="again")
    assert nc.stats["out_bytes"] - before < len(DATA) - (stored - 1) * CHUNK
    assert await messages(nc, archive) == COUNT
    assert await archive.fetch("again") == DATA


async def test_a_message_that_is_there_is_not_sent_again(nc, archive):
    """Publishing a stored message again under its id sends nothing and changes nothing."""
    subject = await archive.subject()
    await publisher(nc, archive).publish(subject, DATA, message_id="once")
    before = nc.stats["out_bytes"]
    assert await publisher(nc, archive).publish(subject, DATA, message_id="once") == "once"
    assert nc.stats["out_bytes"] - before < 10_000
    assert await messages(nc, archive) == COUNT


async def test_another_payload_under_the_same_id_is_not_mixed_in(nc, archive):
    """Continuing with other bytes is caught by the digest, with another chunk size before anything is sent."""
    subject = await archive.subject()

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await publisher(nc, archive).publish(subject, broken(), message_id="mixed")
    with pytest.raises(InputError, match="same chunk_size"):
        await publisher(nc, archive, 100_000).publish(subject, DATA, message_id="mixed")
    await publisher(nc, archive).publish(subject, bytes(len(DATA)), message_id="mixed")
    with pytest.raises(AssemblyError) as caught:
        await archive.fetch("mixed")
    assert caught.value.reason == Reason.DIGEST


async def test_chunks_stored_twice_and_out_of_order_are_one_message(nc, archive):
    """A chunk that was stored again after the duplicate window, or late, changes nothing."""
    subject = await archive.subject()
    for offset, body, last in ((4, b"efgh", 0), (0, b"abcd", 0), (4, b"efgh", 0), (8, b"ij", 1)):
        headers = {"X-Msg-Id": "m", "X-Offset": str(offset), "X-Flags": str(last)}
        headers |= {"X-Total-Size": "10"} if last else {}
        await nc.request(f"{subject}.m", body, headers=headers)
    assert await archive.fetch("m") == b"abcdefghij"


async def test_a_message_may_be_deleted(nc, archive):
    """Deleting removes the chunks of one message and of no other."""
    subject = await archive.subject()
    first = await publisher(nc, archive).publish(subject, DATA)
    second = await publisher(nc, archive).publish(subject, b"abc")
    await archive.delete(first)
    assert await messages(nc, archive) == 1
    assert await archive.fetch(second) == b"abc"
    for act in (archive.fetch, archive.delete):
        with pytest.raises(NotFoundError, match="holds no message"):
            await act(first)


async def test_what_cannot_work_is_refused_before_anything_is_stored(nc, archive, unique):
    """No stream, a stream that does not hold the subject, chunks that do not fit, ids that are no word of a subject."""
    subject = await archive.subject()
    with pytest.raises(NotFoundError, match=r"Archive\.create"):
        await Publisher.persistent(nc, unique("NONE")).publish(subject, b"abc")
    with pytest.raises(InputError, match=r"Let it hold other\.\*"):
        await publisher(nc, archive).publish("other", b"abc")
    with pytest.raises(InputError, match="cannot be the id of a stored message"):
        await publisher(nc, archive).publish(subject, b"abc", message_id="a.b")
    with pytest.raises(OptionError, match="chunk_size"):
        publisher(nc, archive, nc.max_payload - 216)
    await api_request(nc, f"STREAM.UPDATE.{archive.stream}", {**await archive.config(), "max_msg_size": 50_000})
    with pytest.raises(InputError, match="max_msg_size"):
        await publisher(nc, archive).publish(subject, b"abc")
    assert await messages(nc, archive) == 0


async def test_a_full_stream_says_how_far_it_got(nc, archive):
    """Where the stream takes no more, the publish fails at once with the server's reason."""
    await api_request(
        nc,
        f"STREAM.UPDATE.{archive.stream}",
        {**await archive.config(), "max_bytes": 10 * CHUNK, "discard": "new"},
    )
    with pytest.raises(UnfinishedError, match="maximum bytes exceeded") as caught:
        await publisher(nc, archive).publish(await archive.subject(), DATA)
    assert isinstance(caught.value.__cause__, JetStreamError)
    assert 0 < caught.value.confirmed < 10 * CHUNK


async def test_a_consumer_delivers_each_message_once_and_remembers(nc, archive):
    """A durable consumer delivers what is stored before and after it starts, and nothing twice."""
    subject = await archive.subject()
    got = []

    async def handler(message_id, data, subject):
        got.append((message_id, data, subject))

    first = await publisher(nc, archive).publish(subject, DATA)
    async with archive.consume(handler, "worker") as consumer:
        second = await publisher(nc, archive).publish(subject, b"abc")
        await eventually(lambda: consumer.delivered == 2, "both")
    async with archive.consume(handler, "worker") as consumer:
        third = await publisher(nc, archive).publish(subject, b"")
        await eventually(lambda: consumer.delivered == 1, "the third")
    assert got == [(first, DATA, subject), (second, b"abc", subject), (third, b"", subject)]


async def test_an_unfinished_message_holds_nobody_up(nc, archive):
    """A consumer passes by a message that is not whole and delivers it when it is continued."""
    subject = await archive.subject()
    got = []

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await publisher(nc, archive).publish(subject, broken(), message_id="later")
    async with archive.consume(lambda message_id, data: got.append((message_id, data)), "worker"):
        await publisher(nc, archive).publish(subject, b"abc", message_id="now")
        await eventually(lambda: len(got) == 1, "the other message")
        await publisher(nc, archive).publish(subject, DATA, message_id="later")
        await eventually(lambda: len(got) == 2, "the continued message")
    assert got == [("now", b"abc"), ("later", DATA)]


async def test_a_handler_that_fails_gets_the_message_again_and_at_last_not(nc, archive):
    """A message comes again after an error, `attempts` times; then it is given up, reported, and the next comes."""
    subject, calls, errors = await archive.subject(), [], []

    def handler(message_id, data):
        calls.append(message_id)
        if message_id == "bad" or (message_id == "twice" and calls.count("twice") < 2):
            raise ValueError("no")

    for name in ("twice", "bad", "good"):
        await publisher(nc, archive).publish(subject, b"abc", message_id=name)
    async with archive.consume(handler, "worker", attempts=3, on_error=errors.append) as consumer:
        await eventually(lambda: consumer.delivered == 2 and len(errors) == 4, "the end")
    assert (calls.count("twice"), calls.count("bad"), calls.count("good")) == (2, 3, 1)
    assert {error.reason for error in errors} == {Reason.HANDLER}
    assert isinstance(errors[0].__cause__, ValueError)


async def test_a_damaged_message_is_reported_and_passed_by(nc, archive):
    """A message with a wrong digest, a chunk that is gone, or headers that are none, does not reach the handler."""
    subject, got, errors = await archive.subject(), [], []
    headers = {"X-Msg-Id": "digest", "X-Offset": "0", "X-Flags": "3", "X-Total-Size": "3", "X-Digest": "0" * 64}
    await nc.request(f"{subject}.digest", b"abc", headers=headers)
    await nc.request(f"{subject}.broken", b"abc", headers={"X-Msg-Id": "broken", "X-Offset": "?", "X-Flags": "0"})
    await publisher(nc, archive).publish(subject, DATA, message_id="hole")
    hole = (await archive.stored("hole"))[CHUNK]
    await api_request(nc, f"STREAM.MSG.DELETE.{archive.stream}", {"seq": hole.sequence})
    await publisher(nc, archive).publish(subject, b"fine", message_id="fine")
    async with archive.consume(lambda message_id, data: got.append(message_id), attempts=1, on_error=errors.append):
        await eventually(lambda: got, "the good message")
    assert got == ["fine"]
    found = {error.message_id: error.reason for error in errors}
    assert found == {"digest": Reason.DIGEST, "broken": Reason.MALFORMED, "hole": Reason.MISSING}


async def test_large_stored_messages_are_spooled(nc, archive, tmp_path):
    """Above spool_above the handler gets a file, and a message over the limit is refused."""
    subject, kinds, errors = await archive.subject(), [], []

    def handler(message_id, data):
        kinds.append((message_id, isinstance(data, bytes), data if isinstance(data, bytes) else data.read()))

    await publisher(nc, archive).publish(subject, DATA, message_id="large")
    await publisher(nc, archive).publish(subject, b"abc", message_id="small")
    options = {"spool_above": 1000, "spool_dir": tmp_path, "max_message_bytes": 4 * 1024 * 1024}
    async with archive.consume(handler, on_error=errors.append, **options):
        await publisher(nc, archive).publish(subject, bytes(5 * 1024 * 1024), message_id="too-large")
        await eventually(lambda: errors and len(kinds) == 2, "all three")
    assert kinds == [("large", False, DATA), ("small", True, b"abc")]
    assert [(error.message_id, error.reason) for error in errors] == [("too-large", Reason.TOO_LARGE)]


async def test_a_stream_that_forgets_what_is_acknowledged_is_refused(nc, unique):
    """Work queue retention would remove the chunks of a message one by one before it can be read."""
    stream, subject = unique("WQ"), unique("wq")
    config = {"name": stream, "subjects": [f"{subject}.*"], "retention": "workqueue"}
    await api_request(nc, f"STREAM.CREATE.{stream}", config)
    with pytest.raises(InputError, match="workqueue retention"):
        await Archive(nc, stream).consume(lambda message_id, data: None).start()
    await api_request(nc, f"STREAM.DELETE.{stream}")


async def test_a_consumer_that_was_killed_delivers_again(server, nc, archive, tmp_path):
    """A process that dies in its handler has not handled the message: the next process gets it."""
    subject = await archive.subject()
    await publisher(nc, archive).publish(subject, DATA, message_id="m")
    code = f"""
        import asyncio, os, penstock
        from penstock.chunks import Archive

        async def handler(message_id, data):
            print(message_id, len(data), flush=True)
            os.kill(os.getpid(), 9)

        async def main():
            nc = await penstock.connect({server.url!r})
            async with Archive(nc, {archive.stream!r}).consume(handler, "worker", ack_wait=1.0) as consumer:
                await consumer.wait()

        asyncio.run(main())
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stdout.strip()) == (-9, f"m {len(DATA)}"), done.stderr
    info = await api_request(nc, f"CONSUMER.INFO.{archive.stream}.worker")
    assert info["num_ack_pending"] == 1
    got = []
    async with archive.consume(lambda message_id, data: got.append((message_id, data)), "worker", ack_wait=1.0):
        await eventually(lambda: got, "the message again")
    assert got == [("m", DATA)]


async def test_the_stored_headers_are_frozen(nc, archive):
    """What is stored beside the body is the format and the two headers that JetStream reads, and nothing else."""
    subject = await archive.subject()
    await publisher(nc, archive).publish(subject, b"helloworld", message_id="m")
    answer = await api_request(nc, f"STREAM.MSG.GET.{archive.stream}", {"last_by_subj": f"{subject}.m"})
    block = base64.b64decode(answer["message"]["hdrs"]).decode()
    assert block == (
        "NATS/1.0\r\n"
        "X-Digest: 936a185caaa266bb9cbe981e9e05cb78cd732b0b3280eb944412bb6f8f8f07af\r\n"
        "X-Flags: 3\r\nX-Msg-Id: m\r\nX-Offset: 0\r\nX-Total-Size: 10\r\n"
        f"Nats-Expected-Stream: {archive.stream}\r\nNats-Msg-Id: m:0\r\n\r\n"
    )
