"""Which of the chunks on a subject count: those of the upload that stored the end, and what was there before it."""

from __future__ import annotations

import pytest

from penstock.chunks.stored import StoredChunk, by_offset, counting, read_name, write_name
from penstock.chunks.wire import Chunk

A, B = "a" * 16, "b" * 16


def chunk(sequence: int, offset: int, upload: str = "", total: int | None = None, size: int = 10) -> StoredChunk:
    return StoredChunk(sequence, Chunk("m", offset, total), size, upload)


@pytest.mark.parametrize("message_id", ["m", "report-7", "a:b/c", "m:0/" + A])
@pytest.mark.parametrize("so_far", ["", "0123456789abcdef" * 2])
def test_a_name_is_read_as_it_was_written(message_id, so_far):
    """Whatever the id of the message looks like, the upload and the digest so far are found behind it."""
    name = write_name(Chunk(message_id, 524288), A, so_far)
    assert name == f"{message_id}:524288/{A}" + (f"/{so_far}" if so_far else "")
    assert read_name({"Nats-Msg-Id": name}, message_id) == (A, so_far)


@pytest.mark.parametrize(
    "name", ["", "m:0", "m:0:0123456789abcdef", f"m:0/{A}/", f"m:0/{A}x", f"other:0/{A}", f"m:x/{A}", f"m:0/{A[:-1]}"]
)
def test_what_is_no_such_name_tells_no_upload(name):
    """Chunks of other programs, and of earlier versions, belong to no upload."""
    assert read_name({"Nats-Msg-Id": name} if name else {}, "m") == ("", "")


def test_chunks_without_an_upload_all_count():
    """Of other programs nobody knows more; what contradicts itself is found where the message is put together."""
    found = [chunk(1, 0), chunk(2, 10), chunk(3, 0), chunk(4, 20, total=30)]
    assert counting(found) == found
    assert [(item.sequence, item.again) for item in by_offset(found).values()] == [(1, (3,)), (2, ()), (4, ())]


def test_what_others_stored_after_an_upload_began_does_not_count():
    """Everything before its first chunk was compared with the payload; nothing later was."""
    found = [
        chunk(1, 0),
        chunk(2, 10, B),
        chunk(3, 20, A),
        chunk(4, 20, B),
        chunk(5, 30, B),
        chunk(6, 30, A),
        chunk(7, 40, A, total=50),
        chunk(8, 0, B),
    ]
    assert sorted(item.sequence for item in counting(found)) == [1, 2, 3, 6, 7]


def test_an_unfinished_message_has_all_its_chunks():
    """Whoever continues it compares every one of them."""
    found = [chunk(1, 0, A), chunk(2, 0, B), chunk(3, 10, A)]
    assert counting(found) == found


def test_the_last_end_counts():
    """A message that lost a chunk is mended by an upload with an end of its own."""
    found = [chunk(1, 0, A), chunk(3, 20, A, total=30), chunk(4, 10, B), chunk(5, 20, B, total=30)]
    assert {offset: item.sequence for offset, item in by_offset(found).items()} == {0: 1, 10: 4, 20: 5}
    assert not any(item.again for item in by_offset([chunk(1, 0), chunk(2, 0), *found[2:]]).values())


def test_an_end_without_an_upload_makes_all_count():
    """An older version that ends a message has looked at all of it, and names no upload."""
    found = [chunk(1, 0, A), chunk(2, 10), chunk(3, 20, total=30)]
    assert counting(found) == found
