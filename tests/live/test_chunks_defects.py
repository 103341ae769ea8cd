"""Everything that can be wrong with chunks, against a real server: never wrong data, never a crash, always a reason."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import uuid

import pytest

import penstock
from penstock.chunks import Assembler, Publisher, Reason
from penstock.errors import InputError, LinkError, OptionError
from penstock.server import Server
from tests.live.chunks import receiving
from tests.support import eventually

DATA = bytes(range(256)) * 40  # 10240 bytes


@pytest.fixture
def subject(unique) -> str:
    return unique("chunks")


async def test_chunks_come_in_any_order(server, subject):
    """Out of order, with the last chunk first, a message is whole."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"ghi", 6, 9)
        await receiver.chunk(b"abc", 0)
        await receiver.chunk(b"def", 3)
        assert await receiver.wait() == [("m", b"abcdefghi", subject)]


async def test_a_repeated_chunk_is_ignored(server, subject):
    """The same chunk twice counts once, and is counted as a duplicate."""
    async with receiving(server, subject) as receiver:
        for _ in range(3):
            await receiver.chunk(b"abc", 0)
        await receiver.chunk(b"def", 3, 6)
        assert await receiver.wait() == [("m", b"abcdef", subject)]
        assert receiver.assembler.counts.duplicates == 2


@pytest.mark.parametrize("other", [b"abX", b"ab", b"abcd"])
@pytest.mark.parametrize("early", [True, False])
async def test_a_chunk_that_comes_again_with_other_bytes_is_a_conflict(server, subject, other, early):
    """The same offset with other bytes or another length ends the message, also while it waits for its turn."""
    async with receiving(server, subject) as receiver:
        offset = 10 if early else 0
        await receiver.chunk(b"abc", offset)
        await receiver.chunk(other, offset)
        error = await receiver.error(Reason.CONFLICT)
        assert (error.message_id, error.subject, error.received) == ("m", subject, 3)
        await receiver.settle()
        assert receiver.got == []


async def test_a_message_of_one_chunk_is_delivered_once(server, subject):
    """A single chunk that comes again after its message was delivered delivers nothing."""
    async with receiving(server, subject) as receiver:
        for _ in range(3):
            await receiver.chunk(b"abc", 0, 3)
        await receiver.settle()
        assert receiver.got == [("m", b"abc", subject)]


async def test_late_chunks_open_no_ghost(server, subject):
    """A chunk of a message that was delivered begins nothing."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abc", 0)
        await receiver.chunk(b"def", 3, 6)
        await receiver.chunk(b"abc", 0)
        await receiver.settle()
        assert receiver.assembler.unfinished == 0
        assert receiver.got == [("m", b"abcdef", subject)]


async def test_an_overlap_does_not_hide_a_hole(server, subject):
    """Sizes that add up to the total are not enough: an overlap ends the message."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abcd", 0)
        await receiver.chunk(b"cdef", 2)
        await receiver.error(Reason.CONFLICT)
        await receiver.chunk(b"ij", 8, 10)
        await receiver.settle()
        assert receiver.got == []
        assert receiver.assembler.unfinished == 0, "the rest of a message that was given up begins nothing"


async def test_a_chunk_beyond_the_total_is_refused(server, subject):
    """A chunk past the end ends its message and nothing else."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"ef", 4, 6)
        await receiver.chunk(b"xy", 6)
        await receiver.error(Reason.INCONSISTENT)
        await receiver.chunk(b"fine", 0, 4, message_id="n")
        assert (await receiver.wait())[0][:2] == ("n", b"fine")


async def test_a_total_larger_than_the_data_times_out(server, subject):
    """A message whose bytes never come is given up after the timeout, and the error names the gap."""
    async with receiving(server, subject, timeout=1.5) as receiver:
        await receiver.chunk(b"abc", 0)
        await receiver.chunk(b"xyz", 997, 1000)
        error = await receiver.error(Reason.TIMEOUT)
        assert (error.received, error.total) == (6, 1000)
        assert "[3, 997)" in str(error)


@pytest.mark.parametrize("second", [(b"ef", 4, 6), (b"abcdefgh", 8, 16)])
async def test_two_ends_contradict_each_other(server, subject, second):
    """A total smaller than what came, and a second LAST with another total, end the message."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"ijkl", 8, 12)
        await receiver.chunk(*second)
        await receiver.error(Reason.INCONSISTENT)


async def test_a_last_chunk_that_does_not_end_at_the_total_is_refused(server, subject):
    """LAST says where the end is, so it must be there."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abc", 0, 4)
        await receiver.error(Reason.INCONSISTENT)


async def test_a_missing_last_chunk_times_out_with_what_came(server, subject):
    """Without LAST a message is given up, and the error says how much had come."""
    async with receiving(server, subject, timeout=0.3) as receiver:
        await receiver.chunk(b"abc", 0)
        error = await receiver.error(Reason.TIMEOUT)
        assert (error.received, error.total) == (3, None)
        assert "[3, ?)" in str(error)
        assert receiver.assembler.counts.failures == {"timeout": 1}


async def test_a_message_that_timed_out_may_be_sent_again_under_its_id(server, subject):
    """Nothing of it is under way any more, so the same id begins anew."""
    async with receiving(server, subject, timeout=0.3) as receiver:
        await receiver.chunk(b"abc", 0)
        await receiver.error(Reason.TIMEOUT)
        await receiver.chunk(b"abcdef", 0, 6)
        assert (await receiver.wait())[0][:2] == ("m", b"abcdef")


@pytest.mark.parametrize("size", [3, 300_000])
async def test_a_wrong_digest_is_reported_and_never_delivered(server, subject, size):
    """A payload that is not the one that was digested does not reach the handler."""
    async with receiving(server, subject) as receiver:
        wrong = hashlib.sha256(b"something else").hexdigest()
        await receiver.chunk(b"a" * size, 0, size, Flags="3", Digest=wrong)
        error = await receiver.error(Reason.DIGEST)
        assert error.received == size
        await receiver.settle()
        assert receiver.got == []


async def test_an_announced_digest_that_is_missing_is_refused(server, subject):
    """HAS_DIGEST without X-Digest does not pass as unverified."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abc", 0, 3, Flags="3")
        await receiver.error(Reason.MALFORMED)
        assert receiver.got == []


async def test_a_digest_counts_in_capitals_and_without_its_flag(server, subject):
    """Upper-case hex is right, and a digest without the flag is checked all the same."""
    async with receiving(server, subject) as receiver:
        right = hashlib.sha256(b"abc").hexdigest().upper()
        await receiver.chunk(b"abc", 0, 3, Flags="3", Digest=right)
        await receiver.chunk(b"abd", 0, 3, message_id="n", Digest=right)
        await receiver.error(Reason.DIGEST)
        assert receiver.got == [("m", b"abc", subject)]


async def test_an_empty_payload_arrives(server, subject):
    """Nothing is something: an empty payload is one empty LAST."""
    async with receiving(server, subject) as receiver:
        message_id = await Publisher(receiver.nc, digest=True).publish(subject, b"")
        assert await receiver.wait() == [(message_id, b"", subject)]
        assert receiver.assembler.counts.chunks == 1


async def test_a_reader_that_ends_at_a_chunk_boundary_gets_its_last_chunk(server, subject, tmp_path):
    """A file whose size is a multiple of the chunk size ends with a full LAST, not without one."""
    file = tmp_path / "payload"
    file.write_bytes(DATA)
    async with receiving(server, subject) as receiver:
        publisher = Publisher(receiver.nc, 1024)
        with file.open("rb") as opened:
            await publisher.publish(subject, opened)
        assert (await receiver.wait())[0][1] == DATA
        assert receiver.assembler.counts.chunks == len(DATA) // 1024


@pytest.mark.parametrize("name", ["Offset", "Flags", "Total_Size"])
@pytest.mark.parametrize("text", ["abc", "0x01", "-1", str(2**64), None])
async def test_numbers_that_are_none_are_refused(server, subject, name, text):
    """An unparsable, negative, huge or missing number ends the message instead of becoming zero."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abc", 0, 3, **{name: text})
        error = await receiver.error(Reason.MALFORMED)
        assert error.message_id == "m"
        assert receiver.got == []


@pytest.mark.parametrize("size", [0, -1, 1.5, "1", True, 1024 * 1024, 1024 * 1024 - 215])
async def test_chunk_sizes_that_cannot_work_are_refused(server, size):
    """Zero, negative and odd sizes, and those that do not fit into max_payload with their headers, are refused."""
    nc = await penstock.connect(server.url)
    try:
        with pytest.raises(OptionError) as caught:
            Publisher(nc, size)
        assert caught.value.option == "chunk_size"
    finally:
        await nc.close()


async def test_the_largest_chunk_that_is_allowed_arrives(server, subject):
    """With 216 bytes left for headers the server takes every chunk, with the longest id as well."""
    async with receiving(server, subject) as receiver:
        size = receiver.nc.max_payload - 216
        data = bytes(3 * size)
        await Publisher(receiver.nc, size, digest=True).publish(subject, data)
        assert (await receiver.wait())[0][1] == data
        with pytest.raises(OptionError, match="chunk_size"):
            await Publisher(receiver.nc, size).publish(subject, data, message_id="x" * 256)
        await Publisher(receiver.nc, size - 220).publish(subject, data, message_id="x" * 256)
        assert (await receiver.wait(2))[1][1] == data


async def test_messages_that_are_no_chunks_are_counted(server, subject):
    """A plain message on the subject is ignored and counted, and so is a chunk in the middle with no bytes."""
    async with receiving(server, subject) as receiver:
        await receiver.nc.publish(subject, b"plain")
        await receiver.chunk(b"abc", 0, Msg_Id=None)
        await receiver.chunk(b"", 5)
        await receiver.settle()
        assert receiver.assembler.counts.ignored == 3
        assert receiver.assembler.unfinished == 0
        assert receiver.errors == []


async def test_the_timeout_counts_from_the_last_new_chunk(server, subject):
    """A message that takes far longer than the timeout arrives as long as it keeps coming."""
    async with receiving(server, subject, timeout=2.5) as receiver:
        for number in range(6):
            await receiver.chunk(b"abc", 3 * number, 18 if number == 5 else None)
            await receiver.chunk(b"abc", 0)  # a repeat is no progress, and no harm
            await receiver.nc.flush()
            await asyncio.sleep(0.6)
        assert (await receiver.wait())[0][1] == b"abc" * 6
        assert receiver.errors == []


async def test_a_message_larger_than_allowed_is_refused_at_its_first_claim(server, subject):
    """A claimed offset or total past max_message_bytes ends the message with nothing held."""
    async with receiving(server, subject, max_message_bytes=1000) as receiver:
        await receiver.chunk(b"abc", 998)
        await receiver.chunk(b"", 2**62, 2**62, message_id="n")
        await receiver.error(Reason.TOO_LARGE, 2)
        assert receiver.assembler.held_bytes == (0, 0)


async def test_nothing_is_allocated_from_a_claim(server, subject):
    """Chunks that claim a terabyte hold their own bytes and a little bookkeeping."""
    async with receiving(server, subject, max_message_bytes=2**60) as receiver:
        await receiver.chunk(b"abc", 2**40)
        await receiver.chunk(b"xyz", 2**50, 2**50 + 3)
        await receiver.settle()
        assert receiver.assembler.held_bytes[0] < 2000


async def test_total_bytes_are_bounded_and_the_idlest_message_goes_first(server, subject):
    """What fits neither into memory nor on disk pushes out the message that waited longest, which is reported."""
    async with receiving(server, subject, max_total_bytes=100_000, max_spool_bytes=1) as receiver:
        for name in "abc":
            await receiver.chunk(bytes(30_000), 0, message_id=name)
        await receiver.chunk(bytes(10), 30_000, message_id="a")
        await receiver.chunk(bytes(30_000), 0, message_id="d")
        error = await receiver.error(Reason.NO_ROOM)
        assert error.message_id == "b"
        assert receiver.assembler.held_bytes[0] <= 100_000
        await receiver.chunk(b"z", 30_010, 30_011, message_id="a")
        assert (await receiver.wait())[0][0] == "a"


async def test_a_message_that_fills_the_room_alone_is_given_up(server, subject):
    """Where nothing else can go, the message itself goes, and the next one has room again."""
    async with receiving(server, subject, max_total_bytes=50_000) as receiver:
        await receiver.chunk(bytes(30_000), 0)
        await receiver.chunk(bytes(15_000), 30_000)
        await receiver.chunk(bytes(10_000), 45_000, 55_000)
        await receiver.error(Reason.TOO_LARGE)
        await receiver.chunk(bytes(40_000), 0, 40_000, message_id="n")
        assert (await receiver.wait())[0][0] == "n"


async def test_the_number_of_messages_is_bounded(server, subject):
    """More messages under way than max_messages push out the idlest ones."""
    async with receiving(server, subject, max_messages=3) as receiver:
        for number in range(5):
            await receiver.chunk(b"abc", 0, message_id=f"m{number}")
        await receiver.error(Reason.NO_ROOM, 2)
        assert [error.message_id for error in receiver.errors] == ["m0", "m1"]
        assert receiver.assembler.unfinished == 3


async def test_a_flood_of_tiny_chunks_is_bounded(server, subject):
    """Chunks of one byte are counted with their bookkeeping, and are too many at max_chunks."""
    async with receiving(server, subject, max_chunks=100) as receiver:
        for number in range(101):
            await receiver.chunk(b"x", 2 * number)
        await receiver.error(Reason.TOO_LARGE)
    async with receiving(server, subject, max_total_bytes=10_000) as receiver:
        for number in range(200):
            await receiver.chunk(b"x", 2 * number)
        await receiver.error(Reason.NO_ROOM)


async def test_a_slow_handler_does_not_stop_the_assembly_of_others(server, subject):
    """While a handler works, other messages are put together and others given up; then they are delivered in order."""
    release, order = asyncio.Event(), []

    async def slow(message_id: str, data: bytes) -> None:
        await release.wait()
        order.append(message_id)

    async with receiving(server, subject, handler=slow, timeout=1.5) as receiver:
        for name in ("a", "b", "c"):
            await receiver.chunk(b"abc", 0, message_id=name)
            await receiver.chunk(b"def", 3, 6, message_id=name)
        await receiver.chunk(b"abc", 0, message_id="never")
        await receiver.error(Reason.TIMEOUT)
        assert receiver.assembler.counts.chunks == 7
        assert order == []
        release.set()
        await eventually(lambda: order == ["a", "b", "c"], "the deliveries")


async def test_a_blocking_handler_runs_on_a_thread(server, subject):
    """A handler that is a plain function may block: chunks are taken in the meantime."""
    release, threads = threading.Event(), []

    def blocking(message_id: str, data: bytes) -> None:
        threads.append(threading.current_thread())
        assert release.wait(20)

    async with receiving(server, subject, handler=blocking) as receiver:
        await receiver.chunk(b"abc", 0, 3)
        await eventually(lambda: threads, "the handler")
        await receiver.chunk(b"abc", 0, message_id="n")
        await eventually(lambda: receiver.assembler.unfinished == 1, "the other message")
        assert threads[0] is not threading.main_thread()
        release.set()


async def test_a_handler_that_raises_is_reported(server, subject):
    """An error of the handler reaches on_error with its cause, and the next message is delivered."""
    seen = []

    async def picky(message_id: str, data: bytes) -> None:
        seen.append(message_id)
        if message_id == "m":
            raise ZeroDivisionError("no")

    async with receiving(server, subject, handler=picky) as receiver:
        await receiver.chunk(b"abc", 0, 3)
        await receiver.chunk(b"abc", 0, 3, message_id="n")
        error = await receiver.error(Reason.HANDLER)
        assert isinstance(error.__cause__, ZeroDivisionError)
        await eventually(lambda: seen == ["m", "n"], "the next message")


async def test_close_drains_and_may_be_called_twice(server, subject):
    """Closing takes what the server has sent, ends the subscriptions, and reports what is unfinished."""
    async with receiving(server, subject) as receiver:
        await receiver.chunk(b"abc", 0, 3)
        await receiver.chunk(b"abc", 0, message_id="n")
        await receiver.nc.flush()
        await asyncio.gather(receiver.assembler.close(), receiver.assembler.close())
        await receiver.assembler.close()
        assert receiver.got == [("m", b"abc", subject)]
        assert receiver.reasons() == [Reason.CLOSED]
        with pytest.raises(InputError, match="closed"):
            await receiver.assembler.subscribe(subject)


async def test_close_survives_a_subscription_and_a_connection_that_are_gone(server, subject):
    """Whoever unsubscribed or closed the connection before may still close the assembler."""
    nc = await penstock.connect(server.url)
    assembler = Assembler(nc, handler=lambda message_id, data: None)
    subscription = await assembler.subscribe(subject)
    await subscription.unsubscribe()
    await assembler.subscribe(subject)
    await nc.close()
    await assembler.close()


async def test_the_same_id_on_two_subjects_is_two_messages(server, subject):
    """Messages are told apart by subject and id; a wildcard subscription passes the subject on."""
    async with receiving(server, subject, listen=f"{subject}.*") as receiver:
        for name, body in (("a", b"abc"), ("b", b"xyz")):
            await receiver.chunk(body, 0, subject=f"{subject}.{name}")
        for name in ("b", "a"):
            await receiver.chunk(b"!", 3, 4, subject=f"{subject}.{name}")
        assert sorted(await receiver.wait(2)) == [("m", b"abc!", f"{subject}.a"), ("m", b"xyz!", f"{subject}.b")]


async def test_queue_groups_are_refused(server, subject):
    """A queue group would scatter the chunks of a message; the error says so and what to do."""
    async with receiving(server, subject) as receiver:
        with pytest.raises(InputError, match="each member would get some chunks"):
            await receiver.assembler.subscribe(subject, queue="workers")


async def test_overlapping_subscriptions_deliver_once(server, subject):
    """A message that comes through two subscriptions of one assembler is delivered once."""
    async with receiving(server, subject) as receiver:
        await receiver.assembler.subscribe(f"{subject}.>")
        await receiver.assembler.subscribe(f"{subject}.*")
        await receiver.chunk(b"abc", 0, 3, subject=f"{subject}.a")
        await receiver.settle()
        assert receiver.got == [("m", b"abc", f"{subject}.a")]


async def test_messages_of_several_publishers_interleave(server, subject):
    """Many messages at once, from several publishers on one subject, all arrive."""
    async with receiving(server, subject) as receiver:
        publishers = [Publisher(receiver.nc, 1000, digest=True) for _ in range(3)]
        payloads = [bytes([number]) * 10_000 for number in range(12)]
        ids = await asyncio.gather(
            *(publishers[number % 3].publish(subject, data) for number, data in enumerate(payloads))
        )
        got = await receiver.wait(12)
        assert {message_id: data for message_id, data, _ in got} == dict(zip(ids, payloads, strict=True))


async def test_servers_without_headers_are_refused():
    """Chunks need headers; a server that carries none is refused before anything is sent."""
    with (
        Server(config="no_header_support: true", sync="2m") as bare,
        pytest.raises(LinkError, match="knows no headers"),
    ):
        await penstock.connect(bare.url)


async def test_an_id_of_a_failed_message_is_forgotten_in_time(server, subject):
    """A message that was given up blocks its id while chunks of it are under way, and not for ever."""
    async with receiving(server, subject, timeout=0.3) as receiver:
        await receiver.chunk(b"abc", 0, 5)
        await receiver.error(Reason.INCONSISTENT)
        await eventually(lambda: len(receiver.assembler._ended) == 0, "forgetting")
        await receiver.chunk(b"abc", 0, 3)
        assert (await receiver.wait())[0][:2] == ("m", b"abc")


async def test_on_error_may_fail_and_may_be_async(server, subject):
    """An on_error that raises does not end the reports, and a coroutine function is awaited."""
    told = []

    async def tell(error) -> None:
        told.append(error.message_id)
        raise RuntimeError("on_error itself")

    nc = await penstock.connect(server.url)
    async with Assembler(nc, handler=lambda message_id, data: None, on_error=tell) as assembler:
        await assembler.subscribe(subject)
        for name in (str(uuid.uuid4()), str(uuid.uuid4())):
            await nc.publish(subject, b"abc", headers={"X-Msg-Id": name, "X-Offset": "?", "X-Flags": "0"})
        await eventually(lambda: len(told) == 2, "two reports")
    await nc.close()
