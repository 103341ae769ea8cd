"""The world changes under a stored payload: trimmed, purged, replaced, mirrored, sourced, moved, sealed.

A publish that returns has stored a whole payload, and a fetch that returns gives the one that was stored; whatever is
in the way of that is told.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest

import penstock
from penstock.chunks import Archive, Publisher, Reason
from penstock.connection import api_request
from penstock.errors import AssemblyError, InputError, NotFoundError, UnfinishedError
from penstock.jetstream import snapshot
from penstock.server import Server
from tests.live.chunks import CHUNK, message_count, storing
from tests.support import eventually

COUNT = 8
DATA = os.urandom(COUNT * CHUNK)


@pytest.fixture(scope="module")
def mapped():
    account = '{users: [{user: u, password: pw}], jetstream: enabled, mappings: {"here.*": "there.$1"}}'
    with Server(config=f"accounts {{ A: {account} }}", auth=False, sync="2m") as running:
        yield running


async def reach(archive: Archive, count: int) -> None:
    """Wait until the stream holds so many messages."""
    while await message_count(archive) < count:
        await asyncio.sleep(0.01)


async def interrupted(archive: Archive, act: Callable[[], Awaitable[object]]):
    """Give the payload, with something done in the middle of it."""
    yield DATA[: 4 * CHUNK]
    await reach(archive, 3)
    await act()
    yield DATA[4 * CHUNK :]


@pytest.mark.parametrize("message_id", [None, "m"], ids=["new id", "given id"])
@pytest.mark.parametrize("change", ["purge", "delete", "remove", "replace"])
async def test_what_is_removed_while_it_is_stored_is_told(nc, archive, change, message_id):
    """A purge, a delete by id or of one chunk, another stream of the name: no success, and the next try is whole."""
    subject, stream = await archive.subject(), archive.stream

    async def act() -> None:
        js = nc.jetstream()
        if change == "purge":
            await js.purge_stream(stream)
        elif change == "delete":
            held = (await api_request(nc, f"STREAM.INFO.{stream}", {"subjects_filter": ">"}))["state"]["subjects"]
            await archive.delete(next(iter(held)).rpartition(".")[2])
        elif change == "remove":
            await js.delete_msg(stream, 2)
        else:
            await js.delete_stream(stream)
            await Archive.create(nc, stream, subject, storage="memory")

    with pytest.raises(UnfinishedError, match=r"does not hold the chunk at \d+ any more") as caught:
        await storing(archive).publish(subject, interrupted(archive, act), message_id=message_id)
    assert caught.value.confirmed == (CHUNK if change == "remove" else 0)
    with pytest.raises(AssemblyError):
        await archive.fetch(caught.value.message_id)
    await storing(archive).publish(subject, DATA, message_id=caught.value.message_id)
    assert await archive.fetch(caught.value.message_id) == DATA


@pytest.mark.parametrize("message_id", [None, "m"], ids=["new id", "given id"])
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ({"max_msgs_per_subject": 3}, "keeps 3 messages of a subject"),
        ({"max_msgs_per_subject": COUNT - 1}, f"keeps {COUNT - 1} messages of a subject"),
        ({"max_msgs": 5}, "does not hold the chunk at 0 any more"),
        ({"max_msgs": COUNT - 1}, "does not hold the chunk at 0 any more"),
        ({"max_bytes": len(DATA)}, "does not hold the chunk at 0 any more"),
        ({"max_age": "1s"}, "does not hold the chunk at 0 any more"),
    ],
    ids=["subject", "subject, by one", "messages", "messages, by one", "bytes", "age"],
)
async def test_a_payload_that_the_limits_of_a_stream_cut_is_told(nc, unique, limit, says, message_id):
    """Also when its own last chunk pushes the first one out: the publish does not say that it is stored."""
    stream, subject = unique("LIMITED"), unique("limited")
    archive = await Archive.create(nc, stream, subject, storage="memory", **limit)

    async def wait() -> None:
        async def empty() -> None:
            while await message_count(archive):
                await asyncio.sleep(0.02)

        if "max_age" in limit:
            await empty()

    with pytest.raises(UnfinishedError, match=says):
        await storing(archive).publish(subject, interrupted(archive, wait), message_id=message_id)
    await nc.jetstream().delete_stream(stream)


async def test_limits_that_leave_room_are_no_hindrance(nc, unique):
    """As many messages of a subject as there are chunks, and room for them, are enough; also for the same once more."""
    stream, subject = unique("LIMITED"), unique("limited")
    archive = await Archive.create(nc, stream, subject, storage="memory", max_msgs_per_subject=COUNT, max_msgs=COUNT)
    for _ in range(2):
        await storing(archive).publish(subject, DATA, message_id="m")
        assert await archive.fetch("m") == DATA
    await storing(archive).publish(subject, DATA)  # pushes the other one out
    with pytest.raises(NotFoundError):
        await archive.fetch("m")
    await nc.jetstream().delete_stream(stream)


async def test_a_finished_message_that_lost_a_chunk_is_mended(nc, archive):
    """Publishing it again adds the chunk and an end; a consumer that was there before gets it once, whole."""
    subject, got, errors = await archive.subject(), [], []
    await storing(archive).publish(subject, DATA, message_id="m")
    await nc.jetstream().delete_msg(archive.stream, (await archive.stored("m"))[CHUNK].sequence)
    with pytest.raises(AssemblyError, match="Publishing it again under its id adds what is missing"):
        await archive.fetch("m")
    before = nc.stats["out_bytes"]
    assert not (await storing(archive).publish(subject, DATA, message_id="m")).duplicate
    assert nc.stats["out_bytes"] - before < 3 * CHUNK, "two chunks are sent"
    assert await archive.fetch("m") == DATA
    await storing(archive).publish(subject, b"", message_id="end")
    async with archive.consume(lambda message_id, data: got.append((message_id, data)), on_error=errors.append):
        await eventually(lambda: len(got) == 2, "both")
    assert got == [("m", DATA), ("end", b"")]
    assert errors == []


@pytest.mark.parametrize("purged", [True, False], ids=["purged mirror", "late mirror"])
async def test_a_mirror_that_holds_less_does_not_answer_for_the_stream(nc, archive, unique, purged):
    """nats-server lets mirrors answer direct gets; what they do not hold is asked of the leader."""
    subject, mirror = await archive.subject(), unique("MIRROR")
    message_id = await storing(archive).publish(subject, DATA)
    config = {"name": mirror, "storage": "memory", "mirror": {"name": archive.stream}, "mirror_direct": True}
    if not purged:
        config["mirror"] = {"name": archive.stream, "opt_start_seq": COUNT}
    await api_request(nc, f"STREAM.CREATE.{mirror}", config)
    js = nc.jetstream()
    while (await js.stream_info(mirror)).raw["state"]["last_seq"] < COUNT:
        await asyncio.sleep(0.02)
    if purged:
        await js.purge_stream(mirror)
    for _ in range(5):
        assert await archive.fetch(message_id) == DATA
    await js.delete_stream(mirror)


async def test_a_mirror_of_what_the_stream_once_was_gives_no_wrong_bytes(nc, archive, unique):
    """Another payload under the same id, at the same sequences, of the same sizes: the copy is not read for it."""
    subject, mirror, js = await archive.subject(), unique("MIRROR"), nc.jetstream()
    publisher = storing(archive, digest=False)
    await publisher.publish(subject, DATA, message_id="m")
    config = {"name": mirror, "storage": "memory", "mirror": {"name": archive.stream}, "mirror_direct": True}
    await api_request(nc, f"STREAM.CREATE.{mirror}", config)
    while (await js.stream_info(mirror)).messages < COUNT:
        await asyncio.sleep(0.02)
    await js.delete_stream(archive.stream)
    await Archive.create(nc, archive.stream, subject, storage="memory")
    other = DATA[::-1]
    await publisher.publish(subject, other, message_id="m")
    for _ in range(5):
        assert await archive.fetch("m") == other
    await js.delete_stream(mirror)


@pytest.mark.parametrize("how", ["mirror", "sources"])
async def test_payloads_are_read_from_a_copy_of_their_stream(nc, archive, unique, how):
    """A mirror, and a stream that has others for its sources, hold payloads under subjects that are not their own."""
    subject, copy, js = await archive.subject(), unique("COPY"), nc.jetstream()
    await nc.request(f"{subject}.x", b"so that sequences differ")
    await nc.jetstream().delete_msg(archive.stream, 1)

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await storing(archive).publish(subject, broken(), message_id="m")
    await storing(archive).publish(subject, DATA, message_id="m")
    origin = {"name": archive.stream}
    config = {"name": copy, "storage": "memory", how: origin if how == "mirror" else [origin]}
    await api_request(nc, f"STREAM.CREATE.{copy}", config)
    while (await js.stream_info(copy)).messages < COUNT:
        await asyncio.sleep(0.02)
    assert await Archive(nc, copy, subject).fetch("m") == DATA
    got = []
    async with Archive(nc, copy, subject).consume(lambda message_id, data: got.append((message_id, data))):
        await eventually(lambda: got, "the message")
    assert got == [("m", DATA)]
    with pytest.raises(InputError, match="does not hold"):
        await Publisher.persistent(nc, copy, CHUNK).publish(subject, DATA)
    await js.delete_stream(copy)


async def test_a_stream_that_stores_under_other_subjects_is_refused(nc, unique):
    """With a subject transform nobody would find the payload under its subject: refused before anything is sent."""
    stream, subject = unique("MOVED"), unique("moved")
    transform = {"src": f"{subject}.*", "dest": f"elsewhere.{subject}.{{{{wildcard(1)}}}}"}
    config = {"name": stream, "subjects": [f"{subject}.*"], "storage": "memory", "subject_transform": transform}
    await api_request(nc, f"STREAM.CREATE.{stream}", config)
    with pytest.raises(InputError, match="under another subject"):
        await Publisher.persistent(nc, stream).publish(subject, b"abc")
    assert (await nc.jetstream().stream_info(stream)).messages == 0
    await nc.jetstream().delete_stream(stream)


@pytest.mark.parametrize("message_id", [None, "m"], ids=["new id", "given id"])
@pytest.mark.parametrize("data", [b"abc", DATA], ids=["one chunk", "many"])
async def test_a_server_that_stores_under_other_subjects_is_noticed(mapped, data, message_id):
    """Mappings of an account rename what is published, and the stream that acknowledges it holds it elsewhere."""
    async with await penstock.connect(mapped.url, user="u", password="pw") as nc:
        await Archive.create(nc, "MAPPED", "here", storage="memory", sources=[])
        info = await api_request(nc, "STREAM.INFO.MAPPED")
        await api_request(nc, "STREAM.UPDATE.MAPPED", {**info["config"], "subjects": ["here.*", "there.*"]})
        with pytest.raises(UnfinishedError, match=r"not on here\.\S+: .* under another subject"):
            await Publisher.persistent(nc, "MAPPED", CHUNK).publish("here", data, message_id=message_id)
        message_id = await Publisher.persistent(nc, "MAPPED", CHUNK).publish("there", data, message_id=message_id)
        assert await Archive(nc, "MAPPED", "there").fetch(message_id) == data
        await nc.jetstream().delete_stream("MAPPED")


async def test_an_upload_goes_on_in_a_stream_that_was_restored(nc, unique, tmp_path):
    """A copy from the middle of an upload brings the half back: it is told as such, and continued to the end."""
    stream, subject = unique("RESTORED"), unique("restored")
    archive = await Archive.create(nc, stream, subject)

    async def copy() -> None:
        await snapshot.backup(nc, stream, tmp_path / "copy")

    await storing(archive).publish(subject, interrupted(archive, copy), message_id="m")
    await nc.jetstream().delete_stream(stream)
    await snapshot.restore(nc, tmp_path / "copy")
    with pytest.raises(AssemblyError) as caught:
        await archive.fetch("m")
    assert caught.value.reason == Reason.MISSING
    assert not (await storing(archive).publish(subject, DATA, message_id="m")).duplicate
    assert await archive.fetch("m") == DATA
    assert await message_count(archive) == COUNT
    await nc.jetstream().delete_stream(stream)


async def test_a_stream_that_is_sealed_in_the_middle_is_told(nc, archive):
    """The publish fails with the server's reason, what is there is not taken for whole, and reading goes on."""
    subject = await archive.subject()
    message_id = await storing(archive).publish(subject, DATA)

    async def seal() -> None:
        info = await api_request(nc, f"STREAM.INFO.{archive.stream}")
        await api_request(nc, f"STREAM.UPDATE.{archive.stream}", {**info["config"], "sealed": True})

    with pytest.raises(UnfinishedError, match="sealed"):
        await storing(archive).publish(subject, interrupted(archive, seal), message_id="m")
    with pytest.raises(AssemblyError) as caught:
        await archive.fetch("m")
    assert caught.value.reason == Reason.MISSING
    assert await archive.fetch(message_id) == DATA


@pytest.mark.parametrize("gone", ["messages", "stream"])
@pytest.mark.parametrize("direct", [True, False])
async def test_what_is_removed_while_it_is_read_is_told(server, nc, unique, gone, direct):
    """The reader has some chunks ahead; those that are gone by then are an error, not the end."""
    stream, subject = unique("PURGED"), unique("purged")
    archive = await Archive.create(nc, stream, subject, storage="memory")
    if not direct:
        await api_request(nc, f"STREAM.UPDATE.{stream}", {**await archive.config(), "allow_direct": False})
    data = os.urandom(12 * 1024 * 1024)
    message_id = await storing(archive).publish(subject, data)
    async with (
        await penstock.connect(server.url, request_timeout=2.0) as other,
        Archive(other, stream).open(message_id) as message,
    ):
        assert data.startswith(await message.read(10))
        await (nc.jetstream().purge_stream(stream) if gone == "messages" else nc.jetstream().delete_stream(stream))
        with pytest.raises(AssemblyError, match="was removed while it was read") as caught:
            await message.read()
        assert caught.value.reason == Reason.MISSING
    if gone == "messages":
        await nc.jetstream().delete_stream(stream)


async def test_an_upload_goes_on_after_the_duplicate_window(nc, unique):
    """No window is involved: what is there is found by looking, however long ago it was stored."""
    stream, subject = unique("WINDOW"), unique("window")
    archive = await Archive.create(nc, stream, subject, storage="memory", duplicate_window="100ms")

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await storing(archive).publish(subject, broken(), message_id="m")
    stored = time.monotonic()
    while time.monotonic() < stored + 0.3:  # longer than the window
        await asyncio.sleep(0.05)
    await storing(archive).publish(subject, DATA, message_id="m")
    assert await message_count(archive) == COUNT
    assert await archive.fetch("m") == DATA
    await nc.jetstream().delete_stream(stream)
