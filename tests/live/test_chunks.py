"""Payloads in chunks, there and back: sources, handlers, the spool, reading while it arrives."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.chunks import Assembler, Publisher, Reason
from penstock.errors import AssemblyError, DisconnectedError, InputError, OptionError, UnfinishedError
from tests.live.cable import relay
from tests.live.chunks import receiving
from tests.support import eventually

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "chunks.json").read_text())
DATA = os.urandom(5 * 1024 * 1024 + 7)


@pytest.fixture
def subject(unique) -> str:
    return unique("chunks")


# -- golden bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN["payloads"], ids=lambda item: f"{len(item['data'])}-{item['digest']}")
async def test_the_wire_carries_what_the_reference_sends(server, golden):
    """Recorded on the wire, our publisher's frames are the reference's, header by header and byte by byte."""
    async with relay(server) as wire:
        nc = await penstock.connect(wire.url)
        wire.record = True
        publisher = Publisher(nc, GOLDEN["chunk_size"], digest=golden["digest"])
        await publisher.publish(GOLDEN["subject"], golden["data"].encode(), message_id=GOLDEN["message_id"])
        await nc.close()
    sent = bytes(wire.sent).decode().replace("PING\r\n", "")
    assert sent == "".join(golden["frames"])


@pytest.mark.parametrize("golden", GOLDEN["payloads"], ids=lambda item: f"{len(item['data'])}-{item['digest']}")
async def test_what_the_reference_sends_is_delivered(server, golden):
    """The frames of the reference publisher, written to a bare socket, arrive as the payload."""
    async with receiving(server, GOLDEN["subject"]) as receiver:
        where = urlsplit(server.url)
        hello = json.dumps({"verbose": False, "headers": True, "auth_token": where.username})
        frames = "".join(golden["frames"])

        def write() -> None:
            with socket.create_connection((where.hostname, where.port), timeout=10) as bare:
                bare.recv(65536)
                bare.sendall(f"CONNECT {hello}\r\n{frames}PING\r\n".encode())
                assert b"PONG" in bare.recv(65536)

        await asyncio.to_thread(write)
        assert await receiver.wait() == [(GOLDEN["message_id"], golden["data"].encode(), GOLDEN["subject"])]


# -- sources ----------------------------------------------------------------------------------------


async def _later(pieces):
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


class _AsyncFile:
    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int) -> bytes:
        return self._file.read(size)


def _refilled(data: bytes):
    buffer = bytearray(100_000)
    for start in range(0, len(data), len(buffer)):
        piece = data[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]


def _pieces(data: bytes, size: int):
    return (data[start : start + size] for start in range(0, len(data), size))


SOURCES = {
    "bytes": lambda data, path: data,
    "bytearray": lambda data, path: bytearray(data),
    "memoryview": lambda data, path: memoryview(data),
    "wide memoryview": lambda data, path: memoryview(data + bytes(-len(data) % 8)).cast("Q"),
    "path": lambda data, path: path,
    "file": lambda data, path: path.open("rb"),
    "raw file": lambda data, path: path.open("rb", buffering=0),
    "BytesIO": lambda data, path: io.BytesIO(data),
    "async file": lambda data, path: _AsyncFile(data),
    "iterable": lambda data, path: list(_pieces(data, 1_000_000)),
    "generator": lambda data, path: _pieces(data, 12_345),
    "refilled buffer": lambda data, path: _refilled(data),
    "async iterable": lambda data, path: _later(_pieces(data, 777_777)),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("digest", [False, True])
async def test_any_source_arrives(server, subject, tmp_path, name, digest):
    """Bytes, files, paths, iterables and async iterables, with lengths unknown before, arrive as they are."""
    path = tmp_path / "payload"
    path.write_bytes(DATA)
    source = SOURCES[name](DATA, path)
    seen = []
    async with receiving(server, subject) as receiver:
        publisher = Publisher(receiver.nc, 64 * 1024, digest=digest)
        message_id = await publisher.publish(subject, source, progress=seen.append)
        got = (await receiver.wait())[0]
    if hasattr(source, "close"):
        source.close() if not hasattr(source, "aclose") else await source.aclose()
    expected = bytes(source) if name == "wide memoryview" else DATA
    assert got == (message_id, expected, subject)
    assert seen == sorted(seen)
    assert seen[-1] == len(expected)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("text", "text, which could mean a file name"),
        (Path("no-such-file"), "There is no file"),
        (Path("/"), "is a folder"),
        (42, "cannot be read from a int"),
        (io.StringIO("text"), "gave text instead of bytes"),
        (["text"], "gave text instead of bytes"),
        (memoryview(bytes(8))[::2], "with gaps"),
    ],
)
async def test_what_is_no_payload_is_refused(nc, subject, source, says):
    """A source that gives no bytes is refused with the remedy, before anything is sent."""
    before = nc.stats["out_msgs"]
    with pytest.raises(InputError, match=says):
        await Publisher(nc).publish(subject, source)
    assert nc.stats["out_msgs"] == before


@pytest.mark.parametrize("subject", ["", "a..b", "a b", "a.*", "a.>", ".a", "a\r\nPING", None])
async def test_what_is_no_subject_is_refused(nc, subject):
    """Wildcards, blanks and line breaks never reach the server."""
    with pytest.raises(InputError, match="not a subject"):
        await Publisher(nc).publish(subject, b"abc")


@pytest.mark.parametrize("message_id", ["", "a b", "a\r\nX-Offset: 9", "x" * 257, "é", 7])
async def test_what_is_no_id_is_refused(nc, subject, message_id):
    """An id that cannot stand in a header is refused."""
    with pytest.raises(InputError, match="id of a message"):
        await Publisher(nc).publish(subject, b"abc", message_id=message_id)


async def test_a_source_that_fails_half_way_says_how_far_it_got(nc, subject):
    """The error of the source is the cause of an UnfinishedError with the bytes sent and confirmed."""

    def broken():
        for _ in range(20):
            yield bytes(1024 * 1024)
        raise RuntimeError("the disk is gone")

    with pytest.raises(UnfinishedError, match="the disk is gone") as caught:
        await Publisher(nc).publish(subject, broken(), message_id="m")
    error = caught.value
    assert isinstance(error.__cause__, RuntimeError)
    assert (error.subject, error.message_id) == (subject, "m")
    assert 0 < error.confirmed <= error.sent <= 20 * 1024 * 1024


async def test_a_closed_connection_is_refused_at_once(server, subject):
    """Nothing is buffered for a connection that is closed."""
    nc = await penstock.connect(server.url)
    publisher = Publisher(nc)
    await nc.close()
    with pytest.raises(DisconnectedError, match="closed"):
        await publisher.publish(subject, b"abc")


async def test_cancelling_a_publish_leaves_nothing_running(nc, subject):
    """A publish that is cancelled ends its tasks, its threads and its file."""

    async def endless():
        while True:
            yield bytes(100_000)
            await asyncio.sleep(0.001)

    before = asyncio.all_tasks()
    for _ in range(5):
        sent = nc.stats["out_msgs"]
        task = asyncio.ensure_future(Publisher(nc, digest=True).publish(subject, endless()))
        await eventually(lambda sent=sent: nc.stats["out_msgs"] > sent + 20, "some chunks")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await eventually(lambda: asyncio.all_tasks() <= before, "the end of every task")
    await Publisher(nc).publish(subject, b"the connection still works")


async def test_memory_of_a_stream_is_constant(nc, subject):
    """A payload of unknown length passes through in constant memory, however long it is."""
    import tracemalloc

    def endless():
        piece = bytes(1024 * 1024)
        for _ in range(128):
            yield piece

    await Publisher(nc).publish(subject, b"warm up")
    tracemalloc.start()
    try:
        await Publisher(nc, digest=True).publish(subject, endless())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 * 1024 * 1024


# -- handlers ---------------------------------------------------------------------------------------


async def test_handlers_of_every_shape(server, subject):
    """Two parameters, three, a subject by name, defaults, methods, partials, callables: each gets what it takes."""
    got: dict[str, tuple] = {}

    def two(message_id, data):
        got["two"] = (data,)

    def three(message_id, data, topic):
        got["three"] = (data, topic)

    def named(message_id, data, *, subject):
        got["named"] = (data, subject)

    def optional(message_id, data, subject=None):
        got["optional"] = (data, subject)

    def bound(message_id, data, kept="kept"):
        got["bound"] = (data, kept)

    def starred(*args):
        got["starred"] = args[1:]

    async def coroutine(message_id, data):
        got["coroutine"] = (data,)

    class Callable:
        async def __call__(self, message_id, data, subject):
            got["callable"] = (data, subject)

        def method(self, message_id, data):
            got["method"] = (data,)

    async def partly(kept, message_id, data):
        got["partial"] = (data, kept)

    handlers = [two, three, named, optional, bound, starred, coroutine, Callable(), Callable().method]
    handlers += [functools.partial(partly, "kept"), lambda message_id, data: _note(got, data)]
    for handler in handlers:
        async with receiving(server, subject, handler=handler) as receiver:
            before = len(got)
            await Publisher(receiver.nc).publish(subject, b"abc")
            await eventually(lambda before=before: len(got) > before, f"a call of {handler}")
            assert receiver.errors == []
    assert got == {
        "two": (b"abc",),
        "three": (b"abc", subject),
        "named": (b"abc", subject),
        "optional": (b"abc", subject),
        "bound": (b"abc", "kept"),
        "starred": (b"abc",),
        "coroutine": (b"abc",),
        "callable": (b"abc", subject),
        "method": (b"abc",),
        "partial": (b"abc", "kept"),
        "lambda": (b"abc",),
    }


async def _note(got: dict, data: bytes) -> None:
    got["lambda"] = (data,)


@pytest.mark.parametrize(
    "handler",
    [lambda: None, lambda one: None, lambda a, b, c, d: None, 7, "text", lambda a, b, *, needed: None],
)
async def test_handlers_that_cannot_be_called_are_refused(nc, handler):
    """A handler with the wrong parameters is refused when the assembler is made."""
    with pytest.raises(InputError, match="handler cannot be called"):
        Assembler(nc, handler=handler)


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"max_total_bytes": 0},
        {"max_messages": True},
        {"max_chunks": "many"},
        {"spool_above": -1},
        {"spool_dir": "no-such-folder"},
        {"max_spool_bytes": 1.5},
        {"concurrency": 0},
        {"max_mesages": 5},
    ],
)
async def test_options_are_checked(nc, option):
    """A bound that is none, and an option that is none, are refused with its name."""
    with pytest.raises(OptionError) as caught:
        Assembler(nc, **option)
    assert caught.value.option in option


async def test_handlers_run_side_by_side_where_asked(server, subject):
    """With concurrency=3 three handlers run at the same time, and no fourth."""
    running, most, release = 0, 0, asyncio.Event()

    async def handler(message_id, data):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    async with receiving(server, subject, handler=handler, concurrency=3) as receiver:
        for number in range(5):
            await receiver.chunk(b"abc", 0, 3, message_id=f"m{number}")
        await eventually(lambda: running == 3, "three handlers")
        release.set()
        await eventually(lambda: receiver.assembler.counts.messages == 5, "all of them")
        assert most == 3


# -- the spool --------------------------------------------------------------------------------------


async def test_large_messages_go_to_disk_and_come_as_files(server, subject, tmp_path):
    """Above spool_above the handler gets a file that is closed after it; below it gets bytes. No file is seen."""
    got = []

    async def handler(message_id, data):
        got.append((type(data).__name__, data if isinstance(data, bytes) else data.read(), data))

    async with receiving(server, subject, handler=handler, spool_above=1_000_000, spool_dir=tmp_path) as receiver:
        publisher = Publisher(receiver.nc, digest=True)
        await publisher.publish(subject, DATA)
        await publisher.publish(subject, DATA[:1_000_000])
        await eventually(lambda: receiver.assembler.counts.messages == 2, "both")
        assert [item[1] for item in got] == [DATA, DATA[:1_000_000]]
        assert isinstance(got[1][2], bytes)
        assert got[0][2].closed
        assert list(tmp_path.iterdir()) == []


async def test_the_spool_takes_any_order_and_finds_conflicts(server, subject, tmp_path):
    """On disk, too, chunks come in any order, repeats are ignored, and other bytes are a conflict."""
    async with receiving(server, subject, spool_above=0, spool_dir=tmp_path) as receiver:
        for offset in (6, 0, 3, 3, 0):
            await receiver.chunk(DATA[offset : offset + 3], offset, 9 if offset == 6 else None)
        assert (await receiver.wait())[0][1] == DATA[:9]
        await receiver.chunk(b"abc", 0, message_id="n")
        await receiver.chunk(b"abX", 0, message_id="n")
        await receiver.error(Reason.CONFLICT)


async def test_the_disk_is_bounded(server, subject, tmp_path):
    """What does not fit into max_spool_bytes is given up, and memory is untouched by it."""
    async with receiving(server, subject, spool_above=0, max_spool_bytes=100_000, spool_dir=tmp_path) as receiver:
        await receiver.chunk(bytes(60_000), 0, message_id="a")
        await receiver.chunk(bytes(60_000), 0, message_id="b")
        error = await receiver.error(Reason.NO_ROOM)
        assert error.message_id == "a"
        assert receiver.assembler.held_bytes[1] == 60_000
        assert receiver.assembler.held_bytes[0] < 5000


async def test_a_disk_that_fails_ends_the_message_only(server, subject, tmp_path):
    """A spool folder that is gone is reported, and small messages still arrive."""
    folder = tmp_path / "spool"
    folder.mkdir()
    async with receiving(server, subject, spool_above=1000, spool_dir=folder) as receiver:
        folder.rmdir()
        await receiver.chunk(bytes(2000), 0)
        await receiver.error(Reason.SPOOL)
        await receiver.chunk(b"abc", 0, 3, message_id="n")
        assert (await receiver.wait())[0][1] == b"abc"


# -- reading while it arrives -----------------------------------------------------------------------


async def test_a_message_is_read_while_it_arrives(server, subject, nc):
    """The first bytes are read before the last ones are sent."""
    go = asyncio.Event()

    async def source():
        yield DATA[:2_000_000]
        await go.wait()
        yield DATA[2_000_000:]

    other = await penstock.connect(server.url)
    async with Assembler(other) as assembler, assembler.open(subject) as inbox:
        sending = asyncio.ensure_future(Publisher(nc, 100_000, digest=True).publish(subject, source()))
        async for message in inbox:
            got = await message.read(500_000)
            assert message.size is None
            assert DATA.startswith(got)
            go.set()
            async for piece in message:
                got += piece
            assert got == DATA
            assert (message.message_id, message.subject) == (await sending, subject)
            assert message.size == message.position == len(DATA)
            assert await message.read() == b""
            break
        assert assembler.held_bytes == (0, 0)
    await other.close()


async def test_a_slow_reader_costs_disk_and_no_memory(server, subject, nc, tmp_path):
    """What a reader does not take waits within the window in memory and beyond it on disk; nothing is lost."""
    other = await penstock.connect(server.url)
    async with Assembler(other, spool_dir=tmp_path) as assembler, assembler.open(subject, window=200_000) as inbox:
        await Publisher(nc, 50_000, digest=True).publish(subject, DATA)
        await eventually(lambda: assembler.counts.messages == 1, "the whole message")
        memory, disk = assembler.held_bytes
        assert memory < 250_000
        assert disk > len(DATA) - 250_000
        async for message in inbox:
            assert await message.read() == DATA
            break
        assert assembler.held_bytes == (0, 0)
    await other.close()


async def test_a_streamed_message_with_a_wrong_digest_fails_at_its_end(server, subject):
    """The reader gets the bytes, and at the end the error instead of the end."""
    async with receiving(server, f"{subject}.other") as receiver, receiver.assembler.open(subject) as inbox:
        wrong = hashlib.sha256(b"something else").hexdigest()
        await receiver.chunk(b"abc", 0, subject=subject)
        await receiver.chunk(b"def", 3, 6, subject=subject, Flags="3", Digest=wrong)
        async for message in inbox:
            assert await message.read(3) == b"abc"
            assert await message.read(3) == b"def"
            with pytest.raises(AssemblyError) as caught:
                await message.read(3)
            assert caught.value.reason == Reason.DIGEST
            break
        await receiver.error(Reason.DIGEST)


async def test_a_streamed_message_that_stops_fails_its_reader(server, subject):
    """A reader that waits for a chunk that never comes gets the timeout as an error."""
    async with (
        receiving(server, f"{subject}.other", timeout=0.3) as receiver,
        receiver.assembler.open(subject) as inbox,
    ):
        await receiver.chunk(b"abc", 0, subject=subject)
        async for message in inbox:
            assert await message.read(10) == b"abc"
            with pytest.raises(AssemblyError) as caught:
                await message.read(10)
            assert caught.value.reason == Reason.TIMEOUT
            break


async def test_a_discarded_message_holds_nothing(server, subject):
    """What a reader does not want is dropped, then and when more of it comes."""
    async with receiving(server, f"{subject}.other") as receiver, receiver.assembler.open(subject) as inbox:
        await receiver.chunk(bytes(1000), 0, subject=subject)
        async for message in inbox:
            message.discard()
            break
        await receiver.chunk(bytes(1000), 1000, 2000, subject=subject)
        await receiver.settle()
        assert receiver.assembler.held_bytes == (0, 0)
        assert receiver.assembler.unfinished == 0
        with pytest.raises(InputError, match="discarded"):
            await message.read()


async def test_leaving_an_inbox_ends_its_messages(server, subject):
    """After the block a message that was not whole fails, and a new inbox starts afresh."""
    async with receiving(server, f"{subject}.other") as receiver:
        async with receiver.assembler.open(subject) as inbox:
            await receiver.chunk(b"abc", 0, subject=subject)
            message = await anext(inbox)
        with pytest.raises(AssemblyError) as caught:
            await message.read()
        assert caught.value.reason == Reason.CLOSED
        assert [item async for item in inbox] == []
        async with receiver.assembler.open(subject) as inbox:
            await receiver.chunk(b"abc", 0, 3, subject=subject)
            async for message in inbox:
                assert await message.read() == b"abc"
                break
