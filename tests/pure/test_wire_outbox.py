"""Frames put together before they are written: their bytes, their counts, and the room that they take."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.wire.dispatch import Outbox


def test_frames_in_the_order_in_which_they_came():
    """PUB and HPUB, with and without a reply, and ready frames between them, are one piece."""
    outbox = Outbox()
    outbox.publish(b"a.b", b"", None, b"one")
    outbox.add(b"PUB c 0\r\n\r\n")
    waiting = outbox.publish(b"d", b"r", b"NATS/1.0\r\nA: 1\r\n\r\n", b"two")
    expected = b"PUB a.b 3\r\none\r\nPUB c 0\r\n\r\nHPUB d r 18 21\r\nNATS/1.0\r\nA: 1\r\n\r\ntwo\r\n"
    assert waiting == outbox.size == len(expected)
    assert outbox.take() == expected
    assert (outbox.size, outbox.messages, outbox.bytes) == (0, 2, 24)
    assert outbox.take() == b""


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 3_000_000])
def test_any_size_fits(size):
    """What does not fit the room makes it larger, and what comes after that is whole, too."""
    outbox = Outbox()
    for letter in (b"x", b"y"):
        outbox.add(letter * size)
        outbox.add(b"end")
        assert outbox.take() == letter * size + b"end"
    outbox.add(b"small")
    assert outbox.take() == b"small"


def test_a_burst_leaves_no_room_behind():
    """After something large, small writes take as little memory again as before it: room costs time to clear."""
    outbox = Outbox()
    outbox.add(b"x" * 8_000_000)
    outbox.take()
    outbox.add(b"x")
    outbox.take()
    tracemalloc.start()
    try:
        for _ in range(5):
            outbox.add(b"x" * 100)
            assert len(outbox.take()) == 100
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
