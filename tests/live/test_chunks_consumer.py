"""Stored payloads handed to a handler: each once, after a crash again, and nothing that is damaged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

import penstock
from penstock.chunks import Archive, Reason
from penstock.connection import api_request
from penstock.errors import InputError, NotFoundError, OptionError, UnfinishedError
from penstock.jetstream import snapshot
from penstock.model import Consumer
from tests.live.chunks import CHUNK, consumer_count, storing
from tests.live.command import environment
from tests.support import eventually

DATA = os.urandom(3 * 1024 * 1024 + 11)


async def test_a_consumer_delivers_each_message_once_and_remembers(nc, archive):
    """A durable consumer delivers what is stored before and after it starts, and nothing twice."""
    subject = await archive.subject()
    got = []

    async def handler(message_id, data, subject):
        got.append((message_id, data, subject))

    first = await storing(archive).publish(subject, DATA)
    async with archive.consume(handler, "worker") as consumer:
        second = await storing(archive).publish(subject, b"abc")
        await eventually(lambda: consumer.delivered == 2, "both")
    async with archive.consume(handler, "worker") as consumer:
        third = await storing(archive).publish(subject, b"")
        await eventually(lambda: consumer.delivered == 1, "the third")
    assert got == [(first, DATA, subject), (second, b"abc", subject), (third, b"", subject)]


@pytest.mark.parametrize("reads", ["all", "one subject", "another archive"])
async def test_a_consumer_of_somebody_else_is_left_alone(nc, archive, reads):
    """A name that is taken is refused: its owner would get headers without bodies, or other messages, and no word."""
    js, subject = nc.jetstream(), await archive.subject()
    await js.add_consumer(archive.stream, Consumer(durable="worker", filter_subject=f"{subject}.x"))
    if reads == "all":
        await js.delete_consumer(archive.stream, "worker")
        await js.add_consumer(archive.stream, Consumer(durable="worker"))
    elif reads == "another archive":
        await js.delete_consumer(archive.stream, "worker")
        other = f"{subject}_too"
        config = {**await archive.config(), "subjects": [f"{subject}.*", f"{other}.*"]}
        await api_request(nc, f"STREAM.UPDATE.{archive.stream}", config)
        async with Archive(nc, archive.stream, other).consume(lambda message_id, data: None, "worker"):
            pass
    before = (await js.consumer_info(archive.stream, "worker")).raw["config"]
    with pytest.raises(InputError, match="is not one for the stored messages of") as caught:
        await Archive(nc, archive.stream, subject).consume(lambda message_id, data: None, "worker").start()
    assert "another durable name" in caught.value.remedy
    assert (await js.consumer_info(archive.stream, "worker")).raw["config"] == before


async def test_what_was_removed_while_a_consumer_was_away_is_told(nc, archive):
    """If the limits of the stream took messages before they were given out, its consumer says so when it is back."""
    subject, got, errors = await archive.subject(), [], []

    async def run(count: int) -> None:
        async with archive.consume(
            lambda message_id, data: got.append(message_id), "worker", on_error=errors.append
        ) as consumer:
            await eventually(lambda: consumer.delivered == count, "what is there")

    await storing(archive).publish(subject, b"abc", message_id="one")
    await run(1)
    await archive.delete("one")  # it was handled: nothing to tell
    await run(0)
    assert errors == []
    await storing(archive).publish(subject, DATA, message_id="two")
    await storing(archive).publish(subject, b"abc", message_id="three")
    await api_request(nc, f"STREAM.UPDATE.{archive.stream}", {**await archive.config(), "max_msgs": 1})
    await run(1)
    assert got == ["one", "three"]
    assert [error.reason for error in errors] == [Reason.MISSING]
    assert f"Messages 2 to {len(DATA) // CHUNK + 2} of stream {archive.stream} were removed" in str(errors[0])


async def test_options_of_a_consumer_may_change_from_start_to_start(nc, archive):
    """The consumer that the stream remembers is set right, and goes on where it was."""
    subject, got = await archive.subject(), []
    for number, wait in enumerate((30.0, 5.0)):
        await storing(archive).publish(subject, b"abc", message_id=f"m{number}")
        async with archive.consume(
            lambda message_id, data: got.append(message_id), "worker", ack_wait=wait
        ) as consumer:
            await eventually(lambda: consumer.delivered == 1, "the new one")
        assert (await nc.jetstream().consumer_info(archive.stream, "worker")).raw["config"]["ack_wait"] == wait * 1e9
    assert got == ["m0", "m1"]


async def test_consumers_of_one_name_share_the_messages(server, nc, archive):
    """Each message goes to one of them, also while both are at work."""
    subject, got = await archive.subject(), []

    async def slow(message_id, data):
        await asyncio.sleep(0.02)
        got.append(message_id)

    async with (
        await penstock.connect(server.url) as other,
        archive.consume(slow, "worker") as one,
        Archive(other, archive.stream).consume(slow, "worker") as two,
    ):
        for number in range(20):
            await storing(archive).publish(subject, b"abc", message_id=f"m{number}")
        await eventually(lambda: one.delivered + two.delivered == 20, "all of them")
    assert sorted(got) == sorted(f"m{number}" for number in range(20))


async def test_a_consumer_that_was_restored_from_a_copy_delivers_again(nc, archive, tmp_path):
    """The copy does not know what was handled since: that comes once more, and what was handled before does not."""
    subject, got = await archive.subject(), []

    async def run(count: int) -> None:
        async with archive.consume(lambda message_id, data: got.append(message_id), "worker") as consumer:
            await eventually(lambda: consumer.delivered == count, "what is there")

    for name in ("one", "two"):
        await storing(archive).publish(subject, b"abc", message_id=name)
        if name == "one":
            await run(1)
    await snapshot.backup(nc, archive.stream, tmp_path / "copy")
    await run(1)
    await nc.jetstream().delete_stream(archive.stream)
    await snapshot.restore(nc, tmp_path / "copy")
    await run(1)
    assert got == ["one", "two", "two"]


async def test_a_stream_that_is_replaced_under_a_consumer_is_told(nc, archive):
    """Another stream of the name does not have the consumer: who waits for it is told, and nothing looks idle."""
    async with archive.consume(lambda message_id, data: None, "worker") as consumer:
        waiting = asyncio.ensure_future(consumer.wait())
        await nc.jetstream().delete_stream(archive.stream)
        await Archive.create(nc, archive.stream, await archive.subject())
        with pytest.raises(NotFoundError, match="worker"):
            await asyncio.wait_for(waiting, 60)


async def test_an_unfinished_message_holds_nobody_up(nc, archive):
    """A consumer passes by a message that is not whole and delivers it when it is continued."""
    subject = await archive.subject()
    got = []

    def broken():
        yield DATA[: 4 * CHUNK]
        raise RuntimeError("stop")

    with pytest.raises(UnfinishedError):
        await storing(archive).publish(subject, broken(), message_id="later")
    async with archive.consume(lambda message_id, data: got.append((message_id, data)), "worker"):
        await storing(archive).publish(subject, b"abc", message_id="now")
        await eventually(lambda: len(got) == 1, "the other message")
        await storing(archive).publish(subject, DATA, message_id="later")
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
        await storing(archive).publish(subject, b"abc", message_id=name)
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
    await storing(archive).publish(subject, DATA, message_id="hole")
    hole = (await archive.stored("hole"))[CHUNK]
    await api_request(nc, f"STREAM.MSG.DELETE.{archive.stream}", {"seq": hole.sequence})
    await storing(archive).publish(subject, b"fine", message_id="fine")
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

    await storing(archive).publish(subject, DATA, message_id="large")
    await storing(archive).publish(subject, b"abc", message_id="small")
    options = {"spool_above": 1000, "spool_dir": tmp_path, "max_message_bytes": 4 * 1024 * 1024}
    async with archive.consume(handler, on_error=errors.append, **options):
        await storing(archive).publish(subject, bytes(5 * 1024 * 1024), message_id="too-large")
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


async def test_a_consumer_without_a_name_is_gone_afterwards(nc, archive):
    """It is in the stream while it works, and not longer; one with a name stays."""
    await storing(archive).publish(await archive.subject(), b"abc")
    consumer = archive.consume(lambda message_id, data: None)
    with pytest.raises(InputError, match="does not run"):
        await consumer.wait()
    async with consumer:
        await eventually(lambda: consumer.delivered == 1, "the message")
        assert await consumer_count(archive) == 1
    assert await consumer_count(archive) == 0
    async with archive.consume(lambda message_id, data: None, "worker"):
        pass
    assert await consumer_count(archive) == 1


async def test_a_handler_may_take_longer_than_the_stream_waits(nc, archive):
    """While it works the stream is told so: its message comes once, and so do those that wait behind it."""
    subject, got = await archive.subject(), []

    async def slow(message_id, data):
        await asyncio.sleep(1.2)
        got.append(message_id)

    for name in ("one", "two"):
        await storing(archive).publish(subject, b"abc", message_id=name)
    async with archive.consume(slow, "worker", ack_wait=0.4) as consumer:
        await eventually(lambda: consumer.delivered == 2, "both")
        info = await nc.jetstream().consumer_info(archive.stream, "worker")
    assert got == ["one", "two"]
    assert info.raw["num_redelivered"] == 0


async def test_a_consumer_that_closes_gives_back_what_it_has(nc, archive):
    """The message that is with its handler, and those that wait, come to the next one at once, not after `ack_wait`."""
    subject, begun, got = await archive.subject(), [], []

    async def never(message_id, data):
        begun.append(message_id)
        await asyncio.Event().wait()

    names = [f"m{number}" for number in range(30)]
    for name in names:
        await storing(archive).publish(subject, b"abc", message_id=name)
    async with archive.consume(never, "worker", ack_wait=60.0):
        await eventually(lambda: begun, "the first")
    async with archive.consume(lambda message_id, data: got.append(message_id), "worker", ack_wait=60.0):
        await eventually(lambda: len(got) == len(names), "all of them")
    assert sorted(got) == sorted(names)


@pytest.mark.parametrize(
    "option", [{"attempts": 0}, {"ack_wait": 0.05}, {"ack_wait": True}, {"concurrency": 2}, {"spool_above": -1}]
)
async def test_options_of_a_consumer_are_checked(nc, archive, option):
    """A bound that is none, and an option that is none, are refused with its name."""
    with pytest.raises(OptionError) as caught:
        archive.consume(lambda message_id, data: None, **option)
    assert caught.value.option in option


async def test_a_consumer_that_is_deleted_says_so(nc, archive, caplog):
    """Who waits for it gets the error, and the log has it for those who do not."""
    async with archive.consume(lambda message_id, data: None, "worker") as consumer:
        waiting = asyncio.ensure_future(consumer.wait())
        await nc.jetstream().delete_consumer(archive.stream, "worker")
        with pytest.raises(NotFoundError, match="worker"):
            await waiting
    assert f"Stored messages of {archive.stream} are not delivered any more" in caplog.text


async def test_sizes_that_a_publisher_made_up_are_not_believed(nc, archive):
    """The server says how large a body is, also of a message whose publisher wrote that header itself."""
    subject, got = await archive.subject(), []
    headers = {"X-Msg-Id": "m", "X-Offset": "0", "X-Flags": "1", "X-Total-Size": "3"}
    for number, size in enumerate(("zzz", "-1", "9" * 5000, "7")):
        name = f"m{number}"
        await nc.request(f"{subject}.{name}", b"abc", headers={**headers, "X-Msg-Id": name, "Nats-Msg-Size": size})
        assert await archive.fetch(name) == b"abc"
    async with archive.consume(lambda message_id, data: got.append(data)):
        await eventually(lambda: len(got) == 4, "all of them")
    assert got == [b"abc"] * 4


async def test_a_consumer_that_was_killed_delivers_again(server, nc, archive, tmp_path):
    """A process that dies in its handler has not handled the message: the next process gets it."""
    subject = await archive.subject()
    await storing(archive).publish(subject, DATA, message_id="m")
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
