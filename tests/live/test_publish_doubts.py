"""What became of a message whose ack was lost: asked of the server, not guessed from what it says of other things."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from penstock.connection import connect
from penstock.errors import (
    ConditionError,
    DeadlineError,
    DisconnectedError,
    PenstockError,
    PublishError,
    RemoteProtocolError,
)
from penstock.jetstream import Outgoing, Publisher
from penstock.wire.bulk import BulkConnection
from tests.scripted import Answer, Asked, Step, js, log_in, playing, serve
from tests.scripted_stream import Good
from tests.support import eventually

WRONG = js({"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 4"}})
UNKNOWN = js({"error": {"code": 400, "err_code": 10070, "description": "wrong last msg ID: 4"}})
BUSY = js({"error": {"code": 503, "err_code": 10023, "description": "insufficient resources"}})
SEALED = js({"error": {"code": 400, "err_code": 10109, "description": "invalid operation on sealed stream"}})


def doubting(about_the_id: Answer) -> Answer:
    """Lose the first ack, refuse the repeat for its condition, and answer so if somebody asks for the id."""

    def answer(asked: Asked) -> bytes | Step:
        if b"Nats-Expected-Last-Msg-Id" in asked.header:
            return about_the_id(asked)
        return b"" if asked.number == 1 else WRONG(asked)

    return answer


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (UNKNOWN, ConditionError, "the message was not stored"),
        (BUSY, DeadlineError, "may be stored or not"),
        (SEALED, DeadlineError, "may be stored or not"),
        (js({"stream": "S", "seq": 4, "duplicate": True}), None, ""),
    ],
    ids=["the id is not known", "the server is busy", "the stream is sealed", "the id is known"],
)
async def test_only_a_word_about_the_id_tells_what_became_of_a_message(
    answer: Answer, error: type[Exception] | None, says: str
):
    """A message whose ack was lost counts as refused only if the stream says that it does not know its id."""
    with playing(log_in(), serve(ack=doubting(answer))) as peer:
        async with await connect(peer.url, reconnect=False) as client, Publisher(client, "S", ack_timeout=0.2) as into:
            if error is None:
                ack = await into.publish("s.x", b"x", id="i", expect_last_sequence=3)
                assert (ack.sequence, ack.duplicate) == (4, False)
                return
            with pytest.raises(error, match=says):
                await into.publish("s.x", b"x", id="i", expect_last_sequence=3)


@pytest.mark.parametrize("fault", [False, True], ids=["by somebody who closes it", "by a fault of ours"])
async def test_who_waits_for_a_publisher_that_ends_is_told(monkeypatch: pytest.MonkeyPatch, fault: bool):
    """`flush` ends with the publisher, also if that is just sending again what has no ack; a batch is not begun."""
    batches: list[Asked] = []

    def begun(asked: Asked) -> bytes:
        batches.append(asked)
        return b""

    with playing(log_in(), serve(ack=None, atomic=begun)) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            publisher = Publisher(client, "S", ack_timeout=0.1)
            await publisher.open()
            await publisher.send("s.x", b"x")
            await eventually(lambda: publisher.retries, "an attempt to mend it")
            flushing = asyncio.create_task(publisher.flush())
            batch = asyncio.create_task(publisher.publish_batch([Outgoing("s.y", b"y")], "atomic"))
            await eventually(publisher._in_flight._turn.locked, "the batch waiting for what is on its way")
            if fault:
                monkeypatch.setattr(publisher._in_flight, "_launch", None)
            else:
                await publisher.close()
            with pytest.raises(PenstockError, match="failed before" if fault else "was closed before"):
                await asyncio.wait_for(flushing, 5)
            with pytest.raises(DisconnectedError, match="The publisher was closed"):
                await asyncio.wait_for(batch, 5)
            assert batches == []
            await publisher.close()


def knowing_batches_no_more(asked: Asked) -> bytes | Step:
    """Acknowledge the first atomic batch as a server must, and others as one that knows no batches."""
    if asked.number <= 1000 or b"Nats-Batch-Commit" not in asked.header:
        return Good().atomic(asked)
    return js({"stream": "S", "seq": 2003})(asked)


def unheard_of(asked: Asked) -> bytes | Step:
    """Acknowledge more rows of a fast batch than were sent."""
    return js({"type": "ack", "seq": 1_000_000, "msgs": 100})(asked)


@pytest.mark.parametrize(
    ("mode", "answers", "stored", "unknown"),
    [
        ("atomic", {"atomic": knowing_batches_no_more}, ((0, 1000),), (1000, 3000)),
        ("acks", {"ack": js([])}, (), (0, 1)),
        ("fast", {"fast": unheard_of}, (), (0, 1)),
    ],
)
def test_an_ack_that_cannot_be_leaves_an_account_of_the_rows(
    mode: str, answers: dict[str, Answer], stored: tuple[tuple[int, int], ...], unknown: tuple[int, int]
):
    """A publish that ends because of what the server says tells which rows are stored, and which may be."""
    rows = pa.record_batch({"subject": ["s.x"] * 3000, "data": pa.array([b"x"] * 3000, pa.binary())})
    with playing(log_in(), serve(**answers)) as peer, BulkConnection(peer.url) as bulk:
        with pytest.raises(PublishError) as caught:
            bulk.publish("S", rows, mode, timeout=5.0)
        assert isinstance(caught.value.__cause__, RemoteProtocolError)
        assert caught.value.stored == stored
        [(start, end)] = caught.value.unknown
        assert (start, min(end, unknown[1])) == unknown
        assert not bulk.wire.is_open
