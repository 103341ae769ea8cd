"""Messages in chunks between micro-batches: whole, failed, or given up, and never twice."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chunks.wire import Reason, Splitter, encode
from penstock.errors import InputError
from penstock.spark.assembly_state import Open

GOLDEN = Path(__file__).parents[1] / "golden" / "spark_assembly_v1.bin"


def chunks(data: bytes, size: int, digest: bool = True) -> list[tuple[dict[str, str], bytes]]:
    """Cut a payload as a publisher does."""
    splitter = Splitter("id", size, hashlib.sha256() if digest else None)
    found = [*splitter.feed(data), splitter.finish()]
    return [(encode(chunk), bytes(body)) for chunk, body in found]


def put(message: Open, pieces, first: int = 1) -> None:
    for number, (headers, body) in enumerate(pieces, first):
        message.add(headers, body, f'{{"n":["{number}"]}}', number, number * 1000)


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(0, 2**32), st.booleans())
def test_any_order_any_interruption(data: bytes, size: int, seed: int, digest: bool):
    """Chunks in any order, some of them twice, the state written and read between any two, give the payload once."""
    pieces = chunks(data, size, digest)
    order = pieces + pieces[: len(pieces) // 2]
    random.Random(seed).shuffle(order)
    message, given_out = Open(1000), []
    for number, (headers, body) in enumerate(order, 1):
        message = Open.from_bytes(message.to_bytes(), 1000)
        message.add(headers, body, None, number, number)
        given_out += [found] if (found := message.give()) else []
    assert [item.data for item in given_out] == [data]
    assert given_out[0].error is None
    assert message.give_up(Reason.TIMEOUT) is None


def test_the_state_is_frozen():
    """A state is written, byte for byte, as the first version wrote it."""
    message = Open(100)
    put(message, chunks(b"hello world", 4)[::2])
    assert message.to_bytes() == GOLDEN.read_bytes()
    again = Open.from_bytes(GOLDEN.read_bytes(), 100)
    put(again, chunks(b"hello world", 4)[1:2], first=7)
    found = again.give()
    assert found is not None
    assert (found.data, found.sequence, found.micros, found.chunks) == (b"hello world", 7, 7000, 3)
    assert found.headers == '{"n":["1"]}'


@pytest.mark.parametrize(
    "state", [b"", b"\0\0\0\5{}", b"\xff" * 20, b"\0\0\0\x07" + b'{"v":2}', GOLDEN.read_bytes() + b"x"]
)
def test_a_foreign_state_is_refused(state: bytes):
    """What is no state of ours gives a sentence."""
    with pytest.raises(InputError, match="not a message in chunks"):
        Open.from_bytes(state, 100)


def test_what_contradicts_itself_is_reported_once():
    """Overlaps, other bytes, wrong totals, digests and sizes fail the message with a reason, and late chunks do not
    begin it anew."""
    good = chunks(b"hello world", 4)
    cases = {
        "conflict": [good[0], ({**good[0][0], "X-Offset": "2"}, b"llo ")],
        "conflict: the chunk at 0 came twice": [good[0], (good[0][0], b"HELL")],
        "inconsistent": [good[2], ({**good[0][0], "X-Offset": "40"}, b"more")],
        "malformed": [({**good[0][0], "X-Offset": "minus one"}, b"")],
        "digest": [good[0], good[1], ({**good[2][0], "X-Digest": "0" * 64}, good[2][1])],
        "too large": [({**good[0][0], "X-Offset": "99"}, b"beyond")],
    }
    for reason, pieces in cases.items():
        message = Open(100)
        put(message, pieces)
        found = message.give()
        assert found is not None, reason
        assert found.data is None
        assert (found.error or "").startswith(reason), found.error
        put(message, good)
        assert message.give() is None
        assert Open.from_bytes(message.to_bytes(), 100).done


def test_another_payload_under_the_same_id_is_reported():
    """The same chunks once more are nothing new; other bytes under the id of a message that was given are, once."""
    message = Open(100)
    put(message, chunks(b"hello world", 4))
    found = message.give()
    assert found is not None
    assert found.data == b"hello world"
    message = Open.from_bytes(message.to_bytes(), 100)
    put(message, chunks(b"hello world", 4), first=4)
    assert message.give() is None
    put(message, chunks(b"hello there", 4), first=7)
    again = message.give()
    assert again is not None
    assert (again.data, again.sequence) == (None, 9)
    assert (again.error or "").startswith("conflict: another payload")
    message = Open.from_bytes(message.to_bytes(), 100)
    put(message, chunks(b"HELLO WORLD", 4), first=10)
    assert message.give() is None
    assert message.give_up(Reason.TIMEOUT) is None


def test_what_never_becomes_whole_is_reported():
    """A message that is given up tells what came of it and what is missing."""
    message = Open(100)
    put(message, chunks(b"hello world", 4)[1:])
    assert message.give() is None
    found = message.give_up(Reason.TIMEOUT)
    assert found is not None
    assert found.error == "timeout: 7 bytes of 11 bytes came; missing are [0, 4)"
    assert found.sequence == 2
