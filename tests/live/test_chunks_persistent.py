"""Payloads stored in a stream: acknowledged, continued where they stopped, found by id."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re

import pytest

import penstock
from penstock.chunks import Archive, Publisher, Reason
from penstock.connection import api_request
from penstock.errors import (
    AssemblyError,
    DeadlineError,
    InputError,
    JetStreamError,
    NotFoundError,
    OptionError,
    UnfinishedError,
)
from tests.live.chunks import CHUNK, consumer_count, message_count, receiving, storing
from tests.support import eventually

DATA = os.urandom(3 * 1024 * 1024 + 11)
COUNT = len(DATA) // CHUNK + 1


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, len(DATA)])
async def test_a_stored_message_is_fetched_by_its_id(nc, archive, size):
    """Whatever its size, a payload that was acknowledged is there later, and nothing of the search is left."""
    seen = []
    subject = await archive.subject()
    message_id = await storing(archive).publish(subject, DATA[:size], progress=seen.append)
    assert await archive.fetch(message_id) == DATA[:size]
    assert seen[-1] == size
    assert await consumer_count(archive) == 0


async def test_streams_without_direct_get_are_read_as_well(nc, archive):
    """A stream that allows no direct access is read through the ordinary API."""
    config = {**await archive.config(), "allow_direct": False}
    await api_request(nc, f"STREAM.UPDATE.{archive.stream}", config)
    message_id = await storing(archive).publish(await archive.subject(), DATA)
    other = Archive(nc, archive.stream)
    assert not (await other.config()).get("allow_direct")
    assert await other.fetch(message_id) == DATA


async def test_a_stored_message_is_read_in_pieces_with_little_memory(nc, archive):
    """A reader that takes its time holds a few chunks, not the payload; and it may leave half way."""
    message_id = await storing(archive).publish(await archive.subject(), DATA)
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
        message_id = await storing(archive).publish(subject, DATA)
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
        await storing(archive).publish(subject, broken(), message_id="again")
    assert "message_id='again'" in caught.value.remedy
    stored = await message_count(archive)
    assert 0 < caught.value.confirmed <= 10 * CHUNK
    with pytest.raises(AssemblyError) as missing:
        await archive.fetch("again")
    assert missing.value.reason == Reason.MISSING
    before = nc.stats["out_bytes"]
    await storing(archive).publish(subject, DATA, message_id="again")
    assert nc.stats["out_bytes"] - before < len(DATA) - (stored - 1) * CHUNK
    assert await message_count(archive) == COUNT
    assert await archive.fetch("again") == DATA


async def test_a_message_that_is_there_is_not_sent_again(nc, archive):
    """Publishing a stored message again under its id sends nothing and changes nothing."""
    subject = await archive.subject()
    await storing(archive).publish(subject, DATA, message_id="once")
    before = nc.stats["out_bytes"]
    assert await storing(archive).publish(subject, DATA, message_id="once") == "once"
    assert nc.stats["out_bytes"] - before < 10_000
    assert await message_count(archive) == COUNT


async def test_a_deleted_message_is_stored_again_under_its_id(nc, archive):
    """The stream remembers chunks of that name for two minutes, and does not hold them: they are stored all the same.

    The acknowledgement says that it is a duplicate, and a duplicate of something that is gone is no message.
    """
    subject = await archive.subject()
    for _ in range(3):
        await storing(archive).publish(subject, DATA, message_id="again")
        assert await archive.fetch("again") == DATA
        assert await message_count(archive) == COUNT
        await archive.delete("again")


async def test_a_message_of_which_one_chunk_is_gone_is_mended(nc, archive):
    """Whatever removed a chunk, publishing again under the id stores that chunk and no other."""
    subject = await archive.subject()
    await storing(archive).publish(subject, DATA, message_id="hole")
    # Without the last chunk the message counts as unfinished, and is continued.
    for offset in (CHUNK, max(await archive.stored("hole"))):
        gone = (await archive.stored("hole"))[offset]
        assert await nc.jetstream().delete_msg(archive.stream, gone.sequence)
    before = nc.stats["out_bytes"]
    await storing(archive).publish(subject, DATA, message_id="hole")
    assert await archive.fetch("hole") == DATA
    assert await message_count(archive) == COUNT
    assert nc.stats["out_bytes"] - before < 4 * CHUNK + 20_000, "two chunks, each twice at most"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'{"stream":"OTHER","seq":1}', "Stream OTHER stored the message"),
        (b"thanks", "not JSON"),
        (b'{"stream":"OTHER"}', "'seq'"),
        (b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}', "10060"),
    ],
)
async def test_what_is_no_acknowledgement_of_the_stream_stores_nothing(server, nc, unique, answer, says):
    """Where something else answers for the stream, the publish fails and says what it heard."""
    stream, subject = unique("QUIET"), unique("quiet")
    config = {"name": stream, "subjects": [f"{subject}.*"], "storage": "memory", "no_ack": True}
    await api_request(nc, f"STREAM.CREATE.{stream}", config)
    other = await penstock.connect(server.url)

    async def answered(message) -> None:
        await message.respond(answer)

    await other.subscribe(f"{subject}.*", cb=answered)
    await other.flush()
    with pytest.raises(UnfinishedError, match=says) as caught:
        await Publisher.persistent(nc, stream).publish(subject, b"abc")
    assert caught.value.confirmed == 0
    await other.close()
    await nc.jetstream().delete_stream(stream)


async def test_an_acknowledgement_that_never_comes_ends_the_publish_in_time(nc, unique):
    """A stream that acknowledges nothing is given up after the timeout of the publisher."""
    stream, subject = unique("QUIET"), unique("quiet")
    config = {"name": stream, "subjects": [f"{subject}.*"], "storage": "memory", "no_ack": True}
    await api_request(nc, f"STREAM.CREATE.{stream}", config)
    with pytest.raises(UnfinishedError) as caught:
        await Publisher.persistent(nc, stream, timeout=0.5).publish(subject, b"abc")
    assert isinstance(caught.value.__cause__, DeadlineError)
    await nc.jetstream().delete_stream(stream)


@pytest.mark.parametrize("direct", [True, False])
async def test_a_stream_that_is_replaced_while_it_is_read_gives_no_wrong_bytes(nc, unique, direct):
    """Another stream of the same name has other chunks at the same places: the reader gets an error, not those."""
    stream, subject = unique("REPLACED"), unique("replaced")
    data = os.urandom(10 * 1024 * 1024)

    async def make(payload: bytes, message_id: str) -> Archive:
        made = await Archive.create(nc, stream, subject, storage="memory")
        if not direct:
            await api_request(nc, f"STREAM.UPDATE.{stream}", {**await made.config(), "allow_direct": False})
        await Publisher.persistent(nc, stream, CHUNK, digest=False).publish(subject, payload, message_id=message_id)
        return Archive(nc, stream)

    async with (await make(data, "one")).open("one") as message:
        assert data.startswith(await message.read(10))
        await nc.jetstream().delete_stream(stream)
        await make(bytes(len(data)), "two")
        with pytest.raises(AssemblyError, match="was removed while it was read, or the stream was replaced") as caught:
            await message.read()
        assert caught.value.reason == Reason.MISSING
    await nc.jetstream().delete_stream(stream)


async def test_another_chunk_size_does_not_continue_a_message(nc, archive):
    """Chunks of another size would overlap those that are there: refused before anything is sent."""
    subject = await archive.subject()

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await storing(archive).publish(subject, broken(), message_id="mixed")
    before = await message_count(archive)
    for size in (100_000, 2 * CHUNK):
        with pytest.raises(InputError, match="same chunk_size"):
            await storing(archive, size).publish(subject, DATA, message_id="mixed")
    assert await message_count(archive) == before


async def test_chunks_stored_twice_and_out_of_order_are_one_message(nc, archive):
    """A chunk that was stored again after the duplicate window, or late, changes nothing; other bytes are told."""
    subject = await archive.subject()
    for offset, body, last in ((4, b"efgh", 0), (0, b"abcd", 0), (4, b"efgh", 0), (8, b"ij", 1)):
        headers = {"X-Msg-Id": "m", "X-Offset": str(offset), "X-Flags": str(last)}
        headers |= {"X-Total-Size": "10"} if last else {}
        await nc.request(f"{subject}.m", body, headers=headers)
    assert await archive.fetch("m") == b"abcdefghij"
    await nc.request(f"{subject}.m", b"EFGH", headers={"X-Msg-Id": "m", "X-Offset": "4", "X-Flags": "0"})
    with pytest.raises(AssemblyError, match="is there with other bytes, too") as caught:
        await archive.fetch("m")
    assert caught.value.reason == Reason.CONFLICT


async def test_a_message_may_be_deleted(nc, archive):
    """Deleting removes the chunks of one message and of no other."""
    subject = await archive.subject()
    first = await storing(archive).publish(subject, DATA)
    second = await storing(archive).publish(subject, b"abc")
    await archive.delete(first)
    assert await message_count(archive) == 1
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
        await storing(archive).publish("other", b"abc")
    with pytest.raises(InputError, match="cannot be the id of a stored message"):
        await storing(archive).publish(subject, b"abc", message_id="a.b")
    with pytest.raises(OptionError, match="chunk_size"):
        storing(archive, nc.max_payload - 216)
    await api_request(nc, f"STREAM.UPDATE.{archive.stream}", {**await archive.config(), "max_msg_size": 50_000})
    with pytest.raises(InputError, match="max_msg_size"):
        await storing(archive).publish(subject, b"abc")
    assert await message_count(archive) == 0


async def test_a_full_stream_says_how_far_it_got(nc, archive):
    """Where the stream takes no more, the publish fails at once with the server's reason."""
    await api_request(
        nc,
        f"STREAM.UPDATE.{archive.stream}",
        {**await archive.config(), "max_bytes": 10 * CHUNK, "discard": "new"},
    )
    with pytest.raises(UnfinishedError, match="maximum bytes exceeded") as caught:
        await storing(archive).publish(await archive.subject(), DATA)
    assert isinstance(caught.value.__cause__, JetStreamError)
    assert 0 < caught.value.confirmed < 10 * CHUNK


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "a>", "a/b"])
async def test_what_is_no_name_of_a_stream_is_refused_before_anything_is_asked(nc, name):
    """It would become part of a subject of the server's API."""
    before = nc.stats["out_msgs"]
    for make in (lambda: Archive(nc, name), lambda: Publisher.persistent(nc, name)):
        with pytest.raises(InputError, match="cannot be the name of a stream"):
            make()
    with pytest.raises(InputError, match="cannot be the name of a stream"):
        await Archive.create(nc, name, "subject")
    assert nc.stats["out_msgs"] == before


async def test_the_stored_headers_are_frozen(nc, archive):
    """What is stored beside the body is the format and the headers that JetStream reads, and nothing else."""
    subject = await archive.subject()
    await storing(archive, 6).publish(subject, b"helloworld", message_id="m")
    blocks = []
    for sequence in (1, 2):
        answer = await api_request(nc, f"STREAM.MSG.GET.{archive.stream}", {"seq": sequence})
        block = base64.b64decode(answer["message"]["hdrs"]).decode()
        blocks.append(re.sub("/[0-9a-f]{16}/", "/<upload>/", block))
    assert blocks == [
        "NATS/1.0\r\n"
        "X-Flags: 0\r\nX-Msg-Id: m\r\nX-Offset: 0\r\n"
        f"Nats-Expected-Stream: {archive.stream}\r\n"
        f"Nats-Msg-Id: m:0/<upload>/{hashlib.sha256(b'hellow').hexdigest()[:32]}\r\n"
        "Nats-Expected-Last-Subject-Sequence: 0\r\n\r\n",
        "NATS/1.0\r\n"
        "X-Digest: 936a185caaa266bb9cbe981e9e05cb78cd732b0b3280eb944412bb6f8f8f07af\r\n"
        "X-Flags: 3\r\nX-Msg-Id: m\r\nX-Offset: 6\r\nX-Total-Size: 10\r\n"
        f"Nats-Expected-Stream: {archive.stream}\r\n"
        f"Nats-Msg-Id: m:6/<upload>/936a185caaa266bb9cbe981e9e05cb78\r\n"
        "Nats-Expected-Last-Subject-Sequence: 1\r\n\r\n",
    ]
