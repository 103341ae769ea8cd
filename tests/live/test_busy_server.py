"""A server that is busy or full for a moment: what it refuses now is sent again, and stored once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import PublishError
from penstock.server import Server
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.patience import Deadline
from tests.live.relay import make_stream, rows

BUSY = "jetstream { max_buffered_msgs: 4 }"
FULL = "jetstream { max_memory_store: 1MB }"


@contextmanager
def limited(config: str) -> Iterator[BulkConnection]:
    with Server(sync="2m", config=config) as server, BulkConnection(server.url) as bulk:
        yield bulk


def numbers(bulk: BulkConnection, stream: str) -> list[int]:
    return sorted(int(data) for batch in bulk.read(stream) for data in batch.column("data").to_pylist())


def fill(bulk: BulkConnection) -> None:
    """Store in a stream of its own until the server refuses more."""
    make_stream(bulk, "FULL")
    answers = (bulk.request("FULL.0", b"x" * 100_000).payload for _ in range(100))
    assert b'"err_code":10023' in next(answer for answer in answers if b"error" in answer)


def refuses(bulk: BulkConnection, count: int) -> bool:
    """Send so many messages in one piece, and tell whether the server refuses some of them."""
    inbox = bulk.new_subject()
    sid = bulk.subscribe(f"{inbox}.*", Deadline(10))
    bulk.wire.send(b"".join(protocol.publish("FLOOD.0", b"flood", f"{inbox}.{n}") for n in range(count)), Deadline(10))
    answers = [bulk.wire.next_event(Deadline(10)) for _ in range(count)]
    bulk.wire.send(protocol.unsubscribe(sid), Deadline(10))
    return any(isinstance(answer, protocol.Message) and answer.status == 429 for answer in answers)


def test_too_many_at_once() -> None:
    """A stream that says "too many requests" gets the rows again until all are stored, once each."""
    with limited(BUSY) as bulk:
        make_stream(bulk, "MANY")
        make_stream(bulk, "FLOOD")
        assert any(refuses(bulk, 1000 * time) for time in range(1, 11)), "the server took everything in ten floods"
        assert bulk.publish("MANY", rows("MANY", range(500))).rows == 500
        assert numbers(bulk, "MANY") == list(range(500))


@pytest.mark.parametrize("mode", ["acks", "fast", "atomic"])
def test_no_room_for_a_moment(mode: str) -> None:
    """A server without room refuses every row; when somebody made room, they are stored, in each mode."""
    with limited(FULL) as bulk:
        make_stream(bulk, "MANY")
        fill(bulk)

        def make_room() -> None:
            with BulkConnection(bulk.options) as other:
                other.api("STREAM.PURGE.FULL")

        room = threading.Timer(0.5, make_room)
        room.start()
        assert bulk.publish("MANY", rows("MANY", range(100)), mode).rows == 100
        room.join()
        assert numbers(bulk, "MANY") == list(range(100))


@pytest.mark.parametrize("mode", ["acks", "atomic"])
def test_no_room_at_all(mode: str) -> None:
    """If nobody makes room in time, the error says why, and that no row is stored: there is no doubt about any."""
    with limited(FULL) as bulk:
        make_stream(bulk, "MANY")
        fill(bulk)
        with pytest.raises(PublishError, match="insufficient resources") as caught:
            bulk.publish("MANY", rows("MANY", range(100)), mode, timeout=1.0)
        assert (caught.value.err_code, caught.value.stored, caught.value.unknown) == (10023, (), ())
        assert numbers(bulk, "MANY") == []
