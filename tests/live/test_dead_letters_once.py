"""A dead letter goes back once, whatever becomes of an attempt, and only to where it came from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.connection import Connection
from penstock.errors import DeadlineError, DisconnectedError, InputError, NotFoundError, PenstockError
from penstock.jetstream import assets
from penstock.jetstream.deadletter import DeadLetters
from penstock.jetstream.delivery import Delivery
from penstock.jetstream.worker import Reject, Worker
from penstock.model import Consumer, Stream
from penstock.wire.jetstream import names

WINDOW = 0.2  # seconds for which the streams here know ids
Make = Callable[..., Awaitable[DeadLetters]]


async def refuse(delivery: Delivery) -> None:
    raise Reject("no")


@pytest.fixture
async def dead(nc: Connection, unique: Callable[..., str]) -> Make:
    """Give the letters of a new stream whose messages all died."""

    async def make(*payloads: bytes, headers: dict[str, Any] | None = None, **fields: Any) -> DeadLetters:
        name = unique("ONCE")
        await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], duplicate_window=WINDOW, **fields))
        await assets.add_consumer(nc, name, Consumer(durable="c"))
        for payload in payloads:
            await nc.jetstream().publish(f"{name}.x", payload, headers=headers)
        await Worker(nc, name, "c", refuse, dead_letters=f"{name}-DEAD", limit=len(payloads)).run()
        return DeadLetters(nc, name)

    return make


async def held(nc: Connection, stream: str) -> int:
    return (await assets.stream_info(nc, stream)).last_sequence


async def notes(nc: Connection, dead: DeadLetters) -> list[str]:
    return [subject for subject in await assets.stream_subjects_held(nc, dead.dead) if ".back." in subject]


async def broken(dead: DeadLetters, method: str, error: PenstockError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an attempt die at this step."""

    async def dies(*about: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(dead, method, dies)
        with pytest.raises(type(error)):
            await dead.redeliver(await anext(dead.letters()))


async def test_an_attempt_that_died_behind_the_ack_adds_nothing(
    nc: Connection, dead: Make, monkeypatch: pytest.MonkeyPatch
):
    """Stored and not forgotten: the next attempt finds the message, at once and after the duplicate window."""
    for wait in (0.0, 3 * WINDOW):
        found = await dead(b"one")
        await broken(found, "_drop", DisconnectedError("The connection is gone."), monkeypatch)
        assert (await held(nc, found.stream), len(await notes(nc, found))) == (2, 1)
        await asyncio.sleep(wait)  # for the window to be over: nothing tells it
        assert await found.redeliver(await anext(found.letters())) == 2
        assert await held(nc, found.stream) == 2
        assert [letter async for letter in found.letters()] == []
        assert await notes(nc, found) == []


async def test_an_attempt_that_died_before_the_message_is_made_again(
    nc: Connection, dead: Make, monkeypatch: pytest.MonkeyPatch
):
    """Noted and never sent: the next attempt finds nothing, and sends it, once."""
    found = await dead(b"one", b"two")
    await broken(found, "_publish", DeadlineError("No answer."), monkeypatch)
    assert (await held(nc, found.stream), len(await notes(nc, found))) == (2, 1)
    await nc.jetstream().publish(f"{found.stream}.x", b"another one on the same subject")
    await asyncio.sleep(3 * WINDOW)
    assert await found.redeliver(await anext(found.letters())) == 4
    assert (await assets.get_message(nc, found.stream, 4)).data == b"one"


async def test_what_nobody_can_tell_is_an_error(nc: Connection, dead: Make, monkeypatch: pytest.MonkeyPatch):
    """The stream no longer holds what came since: the letter stays, the error says so, and `again` puts it back."""
    found = await dead(b"one")
    await broken(found, "_drop", DisconnectedError("The connection is gone."), monkeypatch)
    await assets.purge_stream(nc, found.stream)
    await asyncio.sleep(3 * WINDOW)
    letter = await anext(found.letters())
    with pytest.raises(PenstockError, match="may have been put back already"):
        await found.redeliver(letter)
    assert await held(nc, found.stream) == 2
    assert await found.redeliver(letter, again=True) == 3
    assert [letter async for letter in found.letters()] == []


async def test_two_who_put_the_same_letter_back_put_it_back_once(nc: Connection, dead: Make):
    """At the same time, and one after the other: one message, and the second one learns that it is back."""
    found = await dead(b"one")
    letter = await anext(found.letters())
    results = await asyncio.gather(*(found.redeliver(letter) for _ in range(5)), return_exceptions=True)
    assert {item if isinstance(item, int) else type(item) for item in results} <= {2, NotFoundError}, results
    assert 2 in results
    await asyncio.sleep(3 * WINDOW)
    with pytest.raises(NotFoundError, match="no dead letter"):
        await found.redeliver(letter)
    assert await held(nc, found.stream) == 2
    assert await notes(nc, found) == []


async def test_a_refusal_leaves_nothing_behind(nc: Connection, dead: Make):
    """A stream that takes no more: the letter stays, and the note of the attempt goes: the next one is a first one."""
    found = await dead(b"one", max_msgs=1, discard="new")
    with pytest.raises(PenstockError, match="maximum messages"):
        await found.redeliver(await anext(found.letters()))
    assert await notes(nc, found) == []
    await assets.purge_stream(nc, found.stream)
    assert await found.redeliver(await anext(found.letters())) == 2


async def test_letters_leave_a_stream_that_is_full_of_them(
    nc: Connection, dead: Make, caplog: pytest.LogCaptureFixture
):
    """Where no note can be kept, that is told, and the id still keeps a repeat away."""
    found = await dead(b"one", b"two")
    made = (await assets.stream_info(nc, found.dead)).config
    await assets.edit_stream(nc, made.changed(max_msgs=2, discard="new"))
    assert await found.redeliver(await anext(found.letters())) == 3
    assert "takes no note" in caplog.text


async def test_a_letter_goes_nowhere_else(nc: Connection, dead: Make, unique: Callable[..., str]):
    """A letter that somebody wrote with another subject, the server's own API say, is refused, and nothing is sent."""
    found, victim = await dead(b"one"), unique("VICTIM")
    await assets.add_stream(nc, Stream(name=victim, subjects=[f"{victim}.>"]))
    for number, subject in enumerate(
        (f"$JS.API.STREAM.DELETE.{victim}", f"{victim}.x", "nowhere", f"{found.stream}.>", "a b", "")
    ):
        facts = {"Stream": found.stream, "Consumer": "c", "Sequence": "1", "Subject": subject, "Deliveries": "1"}
        facts |= {"Reason": "x", "Time": "2026-01-01T00:00:00Z", "Headers": json.dumps({})}
        headers = {f"Penstock-Dead-{name}": value for name, value in facts.items() if value}
        await nc.jetstream().publish(f"PENSTOCK.DEAD.{found.stream}.evil.{number}", b"", headers=headers)
    async for letter in found.letters("evil"):
        with pytest.raises((InputError, NotFoundError)):
            await found.redeliver(letter)
    assert (await assets.stream_info(nc, victim)).last_sequence == 0
    assert await notes(nc, found) == []


async def test_a_header_that_is_not_text_goes_back_as_it_was(nc: Connection, dead: Make):
    """A letter of a message whose headers are not UTF-8 is listed, and put back with the same bytes, as any other."""
    found = await dead(b"one", b"two", headers={"Name": "Jos\udce9"})
    heard = await nc.subscribe(f"{found.stream}.x")
    await nc.flush()
    letters = [letter async for letter in found.letters()]
    assert [letter.headers["Name"] for letter in letters] == [["Jos\udce9"]] * 2
    for letter in letters:
        await found.redeliver(letter)
        block = (await heard.next_msg(10)).header_block
        assert block is not None
        assert b"\r\nName: Jos\xe9\r\n" in block


async def test_what_somebody_else_wrote_hides_no_letter(nc: Connection, dead: Make, caplog: pytest.LogCaptureFixture):
    """A message in the place of a letter that is not one is named in the log, and the others are given."""
    found = await dead(b"one", b"two")
    await nc.jetstream().publish(f"PENSTOCK.DEAD.{found.stream}.c.0", b"hello")
    before = (await assets.stream_info(nc, found.dead)).last_sequence
    await nc.jetstream().publish(f"PENSTOCK.DEAD.{found.stream}.c.9", b"hello")
    assert [letter.data async for letter in found.letters()] == [b"one", b"two"]
    said = [record.getMessage() for record in caplog.records if "is not a dead letter" in record.getMessage()]
    assert [item.split()[1] for item in said] == [str(before), str(before + 1)]


async def test_a_header_of_ours_that_somebody_else_wrote_does_no_harm(nc: Connection, dead: Make):
    """A count of redeliveries that is no number counts as none."""
    for said in ("many", "9" * 5000, "-1", "²"):
        found = await dead(b"one", headers={"Penstock-Redelivered": said})
        await found.redeliver(await anext(found.letters()))
        assert (await assets.get_message(nc, found.stream, 2)).headers["Penstock-Redelivered"] == ["1"]


@pytest.fixture
async def lost(nc: Connection, unique: Callable[..., str]) -> DeadLetters:
    """Give the letters of a new stream; there are none, and whatever becomes one has no worker."""
    name = unique("LOST")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
    letters = DeadLetters(nc, name)
    await letters.ensure()
    return letters


async def test_what_is_no_advisory_keeps_no_letter_from_being_written(
    nc: Connection, lost: DeadLetters, caplog: pytest.LogCaptureFixture
):
    """Anybody may publish where the server tells of lost messages: what is none is removed, and told, once."""
    where = f"{names.MAX_DELIVERIES}.{lost.stream}.c"
    event: dict[str, Any] = {"consumer": "c", "stream_seq": 1, "deliveries": 3}
    strange = [b"", b"hello", b"[]", b"{}", *(json.dumps({**event, "consumer": name}) for name in ("a.b", 5))]
    strange += [json.dumps({**event, name: value}) for name in ("stream_seq", "deliveries") for value in (-1, "x", [])]
    await nc.jetstream().publish(f"{lost.stream}.x", b"lost")
    for content in (*strange, json.dumps(event)):
        await nc.jetstream().publish(where, content if isinstance(content, bytes) else content.encode())
    assert await lost.collect() == 1
    assert [letter.data async for letter in lost.letters()] == [b"lost"]
    assert sum("not an advisory" in record.getMessage() for record in caplog.records) == len(strange)
    assert await lost.collect() == 0
    assert list(await assets.stream_subjects_held(nc, lost.dead)) == [f"PENSTOCK.DEAD.{lost.stream}.c.1"]


async def test_a_message_too_large_for_a_letter_does_not_end_the_worker(
    nc: Connection, lost: DeadLetters, caplog: pytest.LogCaptureFixture
):
    """It stays in the stream, comes again until its deliveries run out, and the log says so; the next one is kept."""
    await assets.add_consumer(nc, lost.stream, Consumer(durable="c", max_deliver=2, backoff=[0.1]))
    for headers in ({"Quotes": '"' * 40_000}, None):
        await nc.jetstream().publish(f"{lost.stream}.x", b"x", headers=headers)
    worker = Worker(nc, lost.stream, "c", refuse, dead_letters=lost.dead, limit=3)
    await asyncio.wait_for(worker.run(), 30)
    assert (worker.counts.dead, worker.counts.given_up) == (1, 1)
    assert [letter.sequence async for letter in lost.letters()] == [2]
    said = [record.getMessage() for record in caplog.records if "has no letter" in record.getMessage()]
    assert len([item for item in said if "and stays in the stream" in item]) == 2
    assert (await assets.get_message(nc, lost.stream, 1)).data == b"x"


@pytest.mark.parametrize("where", ["at the server", "in the stream", "in its headers"])
async def test_a_message_too_large_for_a_letter_keeps_no_other_from_being_written(
    nc: Connection, lost: DeadLetters, caplog: pytest.LogCaptureFixture, where: str
):
    """A letter has more headers than its message: one that cannot be stored stays, and the log says why each time."""
    size, headers = nc.max_payload, None
    if where == "in its headers":
        size, headers = 1, {"Quotes": '"' * 40_000}  # a letter writes each with two characters, and 64 KiB is the most
    if where == "in the stream":
        size = 5000
        config = (await assets.stream_info(nc, lost.dead)).config
        await assets.edit_stream(nc, config.model_copy(update={"max_msg_size": size}))
    for sequence, payload in enumerate((bytes(size), b"small"), 1):
        await nc.jetstream().publish(f"{lost.stream}.x", payload, headers=headers if sequence == 1 else None)
        event = {"consumer": "c", "stream_seq": sequence, "deliveries": 3}
        await nc.jetstream().publish(f"{names.MAX_DELIVERIES}.{lost.stream}.c", json.dumps(event).encode())
    assert [await lost.collect(), await lost.collect()] == [1, 0]
    assert [letter.sequence async for letter in lost.letters()] == [2]
    said = [record.getMessage() for record in caplog.records if "has no letter" in record.getMessage()]
    assert [item.startswith(f"Message 1 of {lost.stream} ran out of deliveries") for item in said] == [True, True]
