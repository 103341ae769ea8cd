"""More than a receiver can take: publishers that wait for nobody, strangers, short memory, a server that cuts us off.

What has no room in memory waits on disk; what had to go is counted and told.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.chunks import Assembler, Publisher, Reason
from penstock.connection import backlog, transport
from penstock.errors import AssemblyError, DisconnectedError
from penstock.server import Server
from tests.live.chunks import receiving
from tests.live.flood import pattern
from tests.support import eventually

MB = 1024 * 1024


async def flooding(server: Server, subject: str, payloads: int, size: int, chunk: int = 512 * 1024) -> Any:
    """Start a publisher that waits for nobody."""
    program = [sys.executable, "-m", "tests.live.flood", server.url, subject, str(payloads), str(size), str(chunk)]
    return await asyncio.create_subprocess_exec(*program)


@pytest.fixture
def subject(unique: Any) -> str:
    return unique("overload")


@pytest.mark.parametrize("strangers", [1, 5])
async def test_an_unfinished_payload_outlives_strangers_chunks(server, subject, strangers):
    """Any number of others with a few bytes each, in one chunk or in some, cannot push out what has come further."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(bytes(40_000), 0, message_id="large")
        await receiver.chunk(bytes(40_000), 40_000, message_id="large")
        for number in range(1100):
            for place in range(strangers):
                await receiver.chunk(b"x", place, message_id=f"s{number}")
        await receiver.chunk(bytes(20_000), 80_000, 100_000, message_id="large")
        assert (await receiver.wait())[0][:2] == ("large", bytes(100_000))
        await receiver.error(Reason.NO_ROOM, 77)
        assert receiver.assembler.counts.failures["no room"] == 1101 - 1024
        assert receiver.assembler.unfinished == 1023


async def test_who_came_least_far_is_refused_where_all_others_came_further(server, subject):
    """A first chunk of a few bytes pushes out nobody, and is told; once the others are idle for long, it does."""
    async with receiving(server, subject, max_messages=2, timeout=1.0) as receiver:
        for name in "ab":
            await receiver.chunk(bytes(40_000), 0, message_id=name)
        await receiver.chunk(b"x", 0, message_id="s")
        error = await receiver.error(Reason.NO_ROOM)
        assert error.message_id == "s"
        assert "others that came further" in str(error)
        await asyncio.sleep(0.6)
        await receiver.chunk(b"x", 0, message_id="t")
        assert (await receiver.error(Reason.NO_ROOM, 2)).message_id == "a"


async def test_what_has_no_room_in_memory_waits_on_disk(server, subject, tmp_path):
    """Sixty payloads at once from a publisher that waits for nobody, memory for six: all arrive, as bytes."""
    most, got = [0], []

    async def slow(message_id: str, data: bytes) -> None:
        most[0] = max(most[0], receiver.assembler.held_bytes[0])
        assert data == pattern(int(message_id), MB)
        got.append(message_id)
        await asyncio.sleep(0.005)

    limits = {"max_total_bytes": 6 * MB, "spool_dir": tmp_path}
    async with receiving(server, subject, handler=slow, **limits) as receiver:
        process = await flooding(server, subject, 60, MB, 128 * 1024)
        await eventually(lambda: len(got) == 60 or receiver.errors, "all payloads")
        assert not receiver.errors, receiver.errors[0]
        assert await process.wait() == 0
        await receiver.assembler.close()
        counts = receiver.assembler.counts
        assert counts.spilled > 0
        assert (counts.disconnects, counts.failures) == (0, {})
        assert most[0] <= 7 * MB, "what came back from disk for its handler is on top"
    assert list(tmp_path.iterdir()) == [], "the files have no names"


async def test_a_reader_of_many_messages_needs_no_more_memory_than_there_is(server, subject, tmp_path):
    """What arrives faster than it is read goes to disk when memory is taken, in the middle of any message."""
    nc = await penstock.connect(server.url)
    async with (
        Assembler(nc, max_total_bytes=4 * MB, spool_dir=tmp_path) as assembler,
        assembler.open(subject) as inbox,
    ):
        process = await flooding(server, subject, 10, MB, 64 * 1024)
        assert await process.wait() == 0
        await eventually(lambda: assembler.counts.chunks == 160, "all chunks")
        assert assembler.held_bytes[0] <= 4 * MB < assembler.held_bytes[1]
        for _ in range(10):
            message = await anext(inbox)
            assert await message.read() == pattern(int(message.message_id), MB)
        assert assembler.counts.failures == {}
    await nc.close()


async def test_a_full_disk_is_told_and_what_is_in_memory_arrives(server, subject, tmp_path):
    """With the disk as full as the memory, what waited longest of those that came no further goes, and is told."""
    limits = {"max_total_bytes": 100_000, "max_spool_bytes": 60_000, "spool_dir": tmp_path}
    async with receiving(server, subject, **limits) as receiver:
        for name in "abcd":
            await receiver.chunk(bytes(30_000), 0, message_id=name)  # the last one has no room in memory
        await receiver.chunk(bytes(25_000), 30_000, message_id="d")
        await receiver.chunk(bytes(20_000), 30_000, message_id="c")  # nor has this, and neither does it fit on disk
        error = await receiver.error(Reason.NO_ROOM)
        assert error.message_id == "a"
        assert "100000 bytes of max_total_bytes" in str(error)
        for name, place in (("b", 30_000), ("c", 50_000), ("d", 55_000)):
            await receiver.chunk(b"z", place, place + 1, message_id=name)
        assert {item[0] for item in await receiver.wait(3)} == {"b", "c", "d"}


async def test_a_server_that_cuts_a_slow_reader_off_is_told(unique):
    """A loop that is blocked reads nothing: the lost connection is counted, and each payload under way is told.

    Most say that the connection was lost; those for which time was over before the loop could hear of it say that.
    """
    errors: list[AssemblyError] = []
    subject = unique("overload")
    with Server(config="max_pending: 2000000", sync="2m") as server:
        async with await penstock.connect(server.url, reconnect_wait=0.05) as nc:

            async def blocking(message_id: str, data: bytes) -> None:
                time.sleep(0.5)  # that is what must not be done

            async with Assembler(nc, 0.5, handler=blocking, on_error=errors.append) as assembler:
                await assembler.subscribe(subject)
                process = await flooding(server, subject, 40, 2 * MB)
                await eventually(lambda: assembler.counts.disconnects, "the cut")
                assert await process.wait() == 0
                await eventually(lambda: errors and not assembler.unfinished, "the reports")
                assert {error.reason for error in errors} <= {Reason.DISCONNECTED, Reason.TIMEOUT}
                lost = [str(error) for error in errors if error.reason is Reason.DISCONNECTED]
                assert not assembler.counts.cut_off or not lost or any("reads too slowly" in error for error in lost)
                for _ in range(10):  # what the server still had for us may get us cut off once more
                    await eventually(lambda: nc.is_connected, "the connection")
                    with suppress(DisconnectedError):
                        await nc.flush()
                        break
                await Publisher(nc).publish(subject, b"abc")
                await eventually(lambda: not assembler.unfinished and assembler._deliveries.empty(), "the next one")


async def test_what_was_received_ahead_is_read_in_order_and_before_the_end_is_told(
    unique: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """Through memory and through files, nothing is lost or turned around, also when the server is gone meanwhile."""
    monkeypatch.setattr(transport, "BEHIND_BYTES", transport.READ)
    monkeypatch.setattr(backlog, "FILE", 8 * MB)
    subject, heard, disk = unique("overload"), [], [0]
    with Server(sync="2m") as server:
        nc = await penstock.connect(server.url, reconnect_attempts=2, reconnect_wait=0.05)

        def take(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> Any:
            wire = nc._lifeline.wire
            if wire is not None and wire._backlog is not None:
                disk[0] = max(disk[0], wire._backlog.disk)
            heard.append(bytes(payload[:8]))
            time.sleep(0.005)
            return asyncio.sleep(0.2) if len(heard) == 10 else None  # a taker may hold up the reading, too

        def all_here() -> bool:
            waiting = nc._lifeline.wire._backlog
            return len(heard) * 512 * 1024 + (waiting.size if waiting else 0) >= 149 * 512 * 1024

        with nc.reading_ahead(tmp_path, 8 * MB):
            await nc.tap(subject, take)
            await nc.flush()
            process = await flooding(server, subject, 150, 512 * 1024)
            await eventually(all_here, "all that was sent")
            assert await process.wait() == 0
            await asyncio.to_thread(server.stop)
            await eventually(lambda: nc.is_closed, "the end")
            assert heard == [pattern(number, 8) for number in range(150)]
            assert disk[0] > 0
        await nc.close()
    assert list(tmp_path.iterdir()) == []


async def receive_elsewhere(server: Server, subject: str, count: int, *options: str) -> dict[str, Any]:
    """Receive in a program of its own, flooded with so many payloads of 3 MB, and give what it says at its end."""
    program = [sys.executable, "-m", "tests.live.flooded", server.url, subject, str(count), *options]
    receiver = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert receiver.stdout is not None
    await receiver.stdout.readline()
    process = await flooding(server, subject, count, 3_000_000)
    assert await process.wait() == 0
    said: dict[str, Any] = json.loads(await receiver.stdout.readline())
    assert await receiver.wait() == 0
    return said


@pytest.mark.heavy
@pytest.mark.parametrize("memory", [40 * MB, 1024 * MB])
async def test_two_hundred_payloads_at_once_all_arrive(server, unique, memory):
    """Of 600 MB from a publisher that waits for nobody nothing is lost, in as much memory as is allowed.

    A machine that has no time for the receiver gets it cut off all the same; then each payload is told, and it is tried
    again, three times at most.
    """
    for _ in range(3):
        said = await receive_elsewhere(server, unique("overload"), 200, str(memory))
        assert said["got"] + sum(said["failures"].values()) == 200, "none is lost in silence"
        if memory < 100 * MB:
            assert said["peak"] - said["base"] < memory + 80 * MB
        if said["got"] == 200:
            break
        assert said["disconnects"] > 0
    assert (said["got"], said["failures"], said["disconnects"]) == (200, {}, 0)


async def test_files_are_given_back_when_a_receiver_is_killed(server, subject, tmp_path):
    """What waits on disk has no name from the start: a process that is killed leaves nothing."""
    program = [
        sys.executable,
        "-m",
        "tests.live.flooded",
        server.url,
        subject,
        "1000",
        str(4 * MB),
        str(tmp_path),
        "30",
    ]
    receiver = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert receiver.stdout is not None
    await receiver.stdout.readline()
    process = await flooding(server, subject, 10, 2 * MB)
    assert await process.wait() == 0
    links = Path(f"/proc/{receiver.pid}/fd")

    def spooled() -> bool:
        return any(str(tmp_path) in os.readlink(item) for item in links.iterdir() if item.is_symlink())

    await eventually(spooled, "a file")
    receiver.kill()
    await receiver.wait()
    assert list(tmp_path.iterdir()) == []


async def test_messages_that_end_before_their_reader_comes_leave_nothing(nc, subject):
    """An inbox whose reader is busy keeps the messages that are under way, not those that had to go meanwhile."""
    errors: list[AssemblyError] = []
    async with Assembler(nc, max_messages=2, on_error=errors.append) as assembler, assembler.open(subject) as inbox:
        for number in range(500):
            await nc.publish(subject, b"x", headers={"X-Msg-Id": f"m{number}", "X-Offset": "0", "X-Flags": "0"})
        await eventually(lambda: len(errors) == 498, "the end of all but two")
        assert len(inbox._messages) == 2
        assert [(await anext(inbox)).message_id for _ in range(2)] == ["m498", "m499"]
