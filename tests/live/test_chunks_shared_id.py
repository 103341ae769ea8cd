"""One id is one payload, whoever stores it, how many do so at once, and whatever was under the id before."""

from __future__ import annotations

import asyncio
import os

import pytest

import penstock
from penstock.chunks import MessageId, Publisher
from penstock.errors import ConflictError, InputError, UnfinishedError
from tests.live.chunks import CHUNK, message_count, storing
from tests.support import eventually

COUNT = 8
ONE, TWO = os.urandom(COUNT * CHUNK), os.urandom(COUNT * CHUNK)
ALIKE = ONE[: 3 * CHUNK] + TWO[3 * CHUNK :]


def half(data: bytes):
    yield data[: 4 * CHUNK]
    raise RuntimeError("stop")


async def test_half_an_upload_that_was_deleted_is_stored_whole(archive):
    """What the stream remembers of the chunks that were deleted keeps none of them out."""
    subject = await archive.subject()
    with pytest.raises(UnfinishedError):
        await storing(archive).publish(subject, half(ONE), message_id="m")
    await archive.delete("m")
    assert not (await storing(archive).publish(subject, ONE, message_id="m")).duplicate
    assert await archive.fetch("m") == ONE
    assert await message_count(archive) == COUNT


@pytest.mark.parametrize("digest", [True, False])
async def test_the_same_payload_under_a_finished_id_says_that_it_was_there(archive, digest):
    """With the same and with another chunk size, with a digest and without: nothing is added, and the id says so."""
    subject = await archive.subject()
    first = await storing(archive, digest=digest).publish(subject, ONE, message_id="m")
    assert (first, first.duplicate) == ("m", False)
    for size in (CHUNK, CHUNK + 1000):
        again = await storing(archive, size).publish(subject, [ONE[:10], ONE[10:]], message_id="m")
        assert isinstance(again, MessageId)
        assert (again, again.duplicate) == ("m", True)
    assert await message_count(archive) == COUNT


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize("other", [TWO, ONE[:-1], b""], ids=["other bytes", "shorter", "empty"])
async def test_another_payload_under_a_finished_id_is_refused(archive, digest, other):
    """It is not stored, the caller is told, and what was there stays."""
    subject = await archive.subject()
    await storing(archive, digest=digest).publish(subject, ONE, message_id="m")
    with pytest.raises(ConflictError, match="is another payload") as caught:
        await storing(archive).publish(subject, other, message_id="m")
    assert (caught.value.message_id, caught.value.subject) == ("m", subject)
    assert await archive.fetch("m") == ONE
    assert await message_count(archive) == COUNT


@pytest.mark.parametrize("digest", [True, False])
async def test_another_payload_does_not_continue_an_unfinished_one(archive, digest):
    """What is there is compared before anything is added: by digest, or byte by byte."""
    subject = await archive.subject()
    with pytest.raises(UnfinishedError):
        await storing(archive, digest=digest).publish(subject, half(ONE), message_id="m")
    before = await message_count(archive)
    for other, says in ((TWO, "has other bytes"), (ONE[: 2 * CHUNK], "only one of them ends")):
        with pytest.raises(ConflictError, match=says):
            await storing(archive, digest=digest).publish(subject, other, message_id="m")
    assert await message_count(archive) == before
    await storing(archive, digest=digest).publish(subject, ONE, message_id="m")
    assert await archive.fetch("m") == ONE


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize("other", [TWO, ALIKE, TWO[:-CHUNK]], ids=["other", "alike at first", "shorter"])
async def test_of_two_payloads_at_once_one_is_stored_and_the_other_refused(server, archive, digest, other):
    """Each writer that was told of a success has stored its payload whole, and there is one of them."""
    subject = await archive.subject()
    async with await penstock.connect(server.url) as second:
        for number in range(3):
            name = f"m{number}"
            results = await asyncio.gather(
                storing(archive, digest=digest).publish(subject, ONE, message_id=name),
                Publisher.persistent(second, archive.stream, CHUNK, digest=digest).publish(
                    subject, other, message_id=name
                ),
                return_exceptions=True,
            )
            stored = [data for data, result in zip((ONE, other), results, strict=True) if result == name]
            refused = [result for result in results if isinstance(result, ConflictError)]
            assert (len(stored), len(refused)) == (1, 1), results
            assert await archive.fetch(name) == stored[0]


async def test_the_same_payload_from_two_writers_at_once_is_one_message(server, archive):
    """Both are told of a success, the message is whole, and a consumer gets it once."""
    subject, got = await archive.subject(), []
    async with await penstock.connect(server.url) as second:
        for number in range(3):
            results = await asyncio.gather(
                storing(archive).publish(subject, ONE, message_id=f"m{number}"),
                Publisher.persistent(second, archive.stream, CHUNK).publish(subject, ONE, message_id=f"m{number}"),
            )
            assert [item.duplicate for item in results].count(False) == 1
            assert await archive.fetch(f"m{number}") == ONE
    await storing(archive).publish(subject, b"", message_id="end")
    async with archive.consume(lambda message_id, data: got.append((message_id, data))):
        await eventually(lambda: got and got[-1][0] == "end", "the last one")
    assert got == [("m0", ONE), ("m1", ONE), ("m2", ONE), ("end", b"")]


async def test_what_a_refused_writer_left_behind_does_not_count(nc, archive):
    """Chunks that another upload stores late, in the same places or in others, change nothing for readers."""
    subject = await archive.subject()
    await storing(archive, digest=False).publish(subject, ONE, message_id="m")
    for offset, size in ((0, CHUNK), (CHUNK, 100), (CHUNK + 50, CHUNK)):
        headers = {"X-Msg-Id": "m", "X-Offset": str(offset), "X-Flags": "0", "Nats-Msg-Id": f"m:{offset}/{'0' * 16}"}
        await nc.request(f"{subject}.m", bytes(size), headers=headers)
    assert await archive.fetch("m") == ONE
    assert (await storing(archive).publish(subject, ONE, message_id="m")).duplicate


async def test_a_writer_whose_end_another_one_stored_is_told_the_truth(archive):
    """The other one ends the message while this one is half way: the same payload is a success, another one is not."""
    subject = await archive.subject()

    async def overtaken(data: bytes, by: bytes, name: str):
        yield data[: 4 * CHUNK]
        await storing(archive).publish(subject, by, message_id=name)
        yield data[4 * CHUNK :]

    assert (await storing(archive).publish(subject, overtaken(ONE, ONE, "m1"), message_id="m1")).duplicate
    assert await archive.fetch("m1") == ONE
    near = ONE[:-1] + bytes((ONE[-1] ^ 1,))
    with pytest.raises(ConflictError, match="its digest is another one"):
        await storing(archive).publish(subject, overtaken(ONE, near, "m2"), message_id="m2")
    assert await archive.fetch("m2") == near
    plain = storing(archive, digest=False)
    with pytest.raises(ConflictError, match="Publish it once more"):
        await plain.publish(subject, overtaken(ONE, ONE, "m3"), message_id="m3")
    assert (await plain.publish(subject, ONE, message_id="m3")).duplicate


@pytest.mark.parametrize("stopped", [False, True], ids=["one chunk", "the last chunk is missing"])
async def test_what_comes_while_nothing_of_ours_is_there_is_compared(nc, archive, stopped):
    """Another upload begins between the look and the only chunk that is to be stored: that one is refused."""
    subject = await archive.subject()
    data = ONE[: 3 * CHUNK] if stopped else ONE[:100]
    if stopped:
        with pytest.raises(UnfinishedError):
            await storing(archive).publish(subject, half(ONE), message_id="m")
        for offset, item in (await archive.stored("m")).items():
            if offset >= 2 * CHUNK:
                await nc.jetstream().delete_msg(archive.stream, item.sequence)

    async def overtaken():
        for offset in (2 * CHUNK, 3 * CHUNK) if stopped else (0, CHUNK):
            headers = {
                "X-Msg-Id": "m",
                "X-Offset": str(offset),
                "X-Flags": "0",
                "Nats-Msg-Id": f"m:{offset}/{'0' * 16}",
            }
            await nc.request(f"{subject}.m", TWO[:CHUNK], headers=headers)
        yield data

    before = await message_count(archive)
    with pytest.raises((ConflictError, InputError)):
        await storing(archive).publish(subject, overtaken(), message_id="m")
    assert await message_count(archive) == before + 2, "nothing of ours"


async def test_a_stranger_on_the_subject_of_a_message_is_passed_over(nc, archive):
    """A message there that is no chunk, or one of another message, neither counts nor keeps the payload out."""
    subject = await archive.subject()
    await nc.request(f"{subject}.m", b"hello")
    await nc.request(f"{subject}.m", b"abc", headers={"X-Msg-Id": "other", "X-Offset": "0", "X-Flags": "0"})
    await storing(archive).publish(subject, ONE, message_id="m")
    assert await archive.fetch("m") == ONE


def by_hand(data: bytes, offset: int, tail: str) -> tuple[bytes, dict[str, str]]:
    """Give a chunk as the versions before this one stored it."""
    body = data[offset : offset + CHUNK]
    headers = {"X-Flags": "0", "X-Msg-Id": "m", "X-Offset": str(offset), "Nats-Msg-Id": f"m:{offset}{tail}"}
    if offset + CHUNK >= len(data):
        headers |= {"X-Flags": "1", "X-Total-Size": str(len(data))}
    return body, headers


@pytest.mark.parametrize("tail", ["", ":0123456789abcdef"], ids=["first", "after a delete"])
@pytest.mark.parametrize("oldest", [True, False], ids=["begun by it", "continued by it"])
async def test_an_upload_goes_on_with_another_version_of_ours(nc, archive, oldest, tail):
    """Chunks that name no upload count, whether they were stored before ours or after."""
    subject = await archive.subject()
    if oldest:
        for offset in range(0, 4 * CHUNK, CHUNK):
            body, headers = by_hand(ONE, offset, tail)
            await nc.request(f"{subject}.m", body, headers=headers)
        with pytest.raises(ConflictError):
            await storing(archive).publish(subject, TWO, message_id="m")
        await storing(archive).publish(subject, ONE, message_id="m")
    else:
        with pytest.raises(UnfinishedError):
            await storing(archive).publish(subject, half(ONE), message_id="m")
        there = await archive.stored("m")
        for offset in range(0, len(ONE), CHUNK):
            if offset not in there:
                body, headers = by_hand(ONE, offset, tail)
                await nc.request(f"{subject}.m", body, headers=headers)
    assert await archive.fetch("m") == ONE
    assert await message_count(archive) == COUNT
