"""The chunk format: golden headers, splitting, tiling, and every way in which chunks can contradict each other."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chunks.store import MemoryStore, SpoolStore, UnreadStore
from penstock.chunks.wire import (
    Chunk,
    Reason,
    Refusal,
    Splitter,
    Tiling,
    decode,
    encode,
    header_room,
    message_id_of,
    read_headers,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "chunks.json").read_text())
ID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
MIDDLE = {"X-Msg-Id": ID, "X-Offset": "0", "X-Flags": "0"}
LAST = {"X-Msg-Id": ID, "X-Offset": "4", "X-Flags": "1", "X-Total-Size": "6"}
DIGEST = hashlib.sha256(b"abcdef").hexdigest()


def split(data: bytes, size: int, *, digest: bool = False, pieces: list[bytes] | None = None):
    splitter = Splitter(ID, size, hashlib.sha256() if digest else None)
    found = [(chunk, bytes(body)) for piece in (pieces or [data]) for chunk, body in splitter.feed(piece)]
    chunk, body = splitter.finish()
    return [*found, (chunk, bytes(body))]


def frame(chunk: Chunk, body: bytes) -> str:
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in encode(chunk).items()) + "\r\n"
    return f"HPUB {GOLDEN['subject']} {len(block)} {len(block) + len(body)}\r\n{block}{body.decode()}\r\n"


def refused(reason: Reason, headers: dict[str, str], size: int = 2) -> str:
    with pytest.raises(Refusal) as caught:
        decode(headers, size)
    assert caught.value.reason is reason
    return str(caught.value)


# -- golden bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN["payloads"], ids=lambda item: f"{len(item['data'])}-{item['digest']}")
def test_what_we_write_is_what_the_reference_writes(golden):
    """Splitting a payload gives the very bytes that the reference publisher sends."""
    chunks = split(golden["data"].encode(), GOLDEN["chunk_size"], digest=golden["digest"])
    assert [frame(chunk, body) for chunk, body in chunks] == golden["frames"]


@pytest.mark.parametrize("golden", GOLDEN["payloads"], ids=lambda item: f"{len(item['data'])}-{item['digest']}")
def test_what_the_reference_writes_we_read(golden):
    """The frames of the reference publisher, read and tiled in reverse order, give the payload."""
    tiling, store = Tiling(), MemoryStore()
    for text in reversed(golden["frames"]):
        _, _, rest = text.partition("\r\n")
        block, _, body = rest.removesuffix("\r\n").partition("\r\n\r\n")
        headers = dict(line.split(": ") for line in block.split("\r\n")[1:])
        chunk = decode(headers, len(body))
        if tiling.add(chunk, len(body)):
            store.write(chunk.offset, body.encode())
    assert tiling.complete
    assert store.take() == golden["data"].encode()
    assert tiling.digest == (hashlib.sha256(golden["data"].encode()).hexdigest() if golden["digest"] else None)


def test_header_sizes():
    """A middle chunk has 85 bytes of headers, and no chunk with a UUID has more than 216."""
    assert len("NATS/1.0\r\n\r\n") + sum(len(k) + len(v) + 4 for k, v in encode(Chunk(ID, 0)).items()) == 85
    assert header_room(ID) == 216


# -- reading headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "abc", "0x01", "-1", "+1", "1.0", " 1", "1e3", "²", str(2**64), "9" * 400])
@pytest.mark.parametrize("name", ["X-Offset", "X-Flags", "X-Total-Size"])
def test_numbers_that_are_none_are_refused(name: str, text: str):
    """A header that is not a decimal number of 64 bits is refused, never taken for zero."""
    assert name in refused(Reason.MALFORMED, {**LAST, name: text})


@pytest.mark.parametrize("name", ["X-Offset", "X-Flags", "X-Total-Size"])
def test_missing_headers_are_refused(name: str):
    """A last chunk needs all three numbers."""
    assert f"{name} is missing" in refused(Reason.MALFORMED, {key: value for key, value in LAST.items() if key != name})


def test_what_has_no_id_is_no_chunk():
    """A message without X-Msg-Id, or with an empty one, is not ours; names keep their case."""
    assert message_id_of({}) is None
    assert message_id_of({"X-Msg-Id": ""}) is None
    assert message_id_of({"x-msg-id": ID}) is None
    assert message_id_of(MIDDLE) == ID


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (None, {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0\r\nX-Msg-Id: m\r\nX-Flags:0\r\n\r\n", {"X-Msg-Id": "m", "X-Flags": "0"}),
        (b"NATS/1.0\r\nX-Msg-Id: first\r\nX-Msg-Id: second\r\n\r\n", {"X-Msg-Id": "first"}),
        (b"NATS/1.0 503\r\n\r\n", {}),
        (b"no headers at all", {}),
        (b"NATS/1.0\r\nX-Msg-Id\r\n\r\n", {}),
        (b"", {}),
    ],
)
def test_header_blocks_are_read_or_are_no_chunks(block: bytes | None, found: dict[str, str]):
    """Of a repeated header the first counts; a block that is broken has no headers, so that its message is no chunk."""
    assert read_headers(block) == found


@given(st.binary(max_size=200))
def test_no_header_block_is_more_than_the_reader_can_take(block: bytes):
    """Whatever another publisher writes there, reading it gives texts by name and raises nothing."""
    found = read_headers(b"NATS/1.0\r\n" + block)
    assert all(isinstance(text, str) for pair in found.items() for text in pair)


def test_ids_are_bounded():
    """An id of 256 characters is read, a longer one refused: receivers remember ids."""
    assert decode({**MIDDLE, "X-Msg-Id": "x" * 256}, 1).message_id == "x" * 256
    refused(Reason.MALFORMED, {**MIDDLE, "X-Msg-Id": "x" * 257})


def test_unknown_flags_are_refused():
    """A flag that we do not know could change what the body means."""
    assert "unknown bits" in refused(Reason.MALFORMED, {**MIDDLE, "X-Flags": "4"})


def test_a_last_chunk_must_end_at_the_total():
    """LAST whose end is not the total is refused, whichever is larger."""
    refused(Reason.INCONSISTENT, {**LAST, "X-Total-Size": "7"})
    refused(Reason.INCONSISTENT, {**LAST, "X-Total-Size": "5"})


def test_an_announced_digest_must_be_there():
    """HAS_DIGEST without X-Digest, or with something else than 64 hex digits, is refused."""
    assert "is missing" in refused(Reason.MALFORMED, {**LAST, "X-Flags": "3"})
    refused(Reason.MALFORMED, {**LAST, "X-Flags": "3", "X-Digest": "abc"})


def test_a_digest_counts_without_its_flag_and_in_capitals():
    """A digest that is there is checked although HAS_DIGEST is not set; hex digits may be capitals."""
    assert decode({**LAST, "X-Digest": DIGEST.upper()}, 2).digest == DIGEST


def test_chunks_end_within_64_bits():
    """An offset so high that the chunk would end beyond 64 bits is refused."""
    refused(Reason.MALFORMED, {**MIDDLE, "X-Offset": str(2**64 - 1)}, 2)


# -- splitting --------------------------------------------------------------------------------------


@given(data=st.binary(max_size=200), size=st.integers(1, 64), cuts=st.lists(st.integers(0, 200)), digest=st.booleans())
def test_any_pieces_give_the_same_chunks(data: bytes, size: int, cuts: list[int], digest: bool):
    """However a payload is fed, its chunks are those of the whole: all full but the last, which alone is LAST."""
    points = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(points)]
    chunks = split(data, size, digest=digest, pieces=pieces or [b""])
    assert b"".join(body for _, body in chunks) == data
    assert [chunk.offset for chunk, _ in chunks] == list(range(0, max(len(data), 1), size))
    assert [chunk.last for chunk, _ in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1][0].total == len(data)
    assert chunks[-1][0].digest == (hashlib.sha256(data).hexdigest() if digest else None)


def test_a_buffer_may_be_filled_anew_between_pieces():
    """What the splitter holds back of a bytearray is a copy; of bytes it is the piece itself."""
    splitter = Splitter(ID, 4)
    buffer = bytearray(b"abcd")
    assert list(splitter.feed(buffer)) == []
    buffer[:] = b"efgh"
    assert [bytes(body) for _, body in splitter.feed(buffer)] == [b"abcd"]
    assert bytes(splitter.finish()[1]) == b"efgh"


def test_an_empty_payload_is_one_empty_last_chunk():
    """Nothing at all travels as one chunk that says so."""
    assert split(b"", 4) == [(Chunk(ID, 0, 0), b"")]


# -- tiling -----------------------------------------------------------------------------------------


def tile(*parts: tuple[int, int] | tuple[int, int, int], **limits: int) -> Tiling:
    tiling = Tiling(**limits)
    for offset, size, *total in parts:
        tiling.add(Chunk(ID, offset, *total), size)
    return tiling


def fails(reason: Reason, *parts: tuple[int, ...], **limits: int) -> None:
    tile(*parts[:-1], **limits)
    with pytest.raises(Refusal) as caught:
        tile(*parts, **limits)
    assert caught.value.reason is reason


@given(
    data=st.binary(min_size=1, max_size=300),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    again=st.integers(0, 5),
)
def test_any_order_and_any_repeats_tile(data: bytes, size: int, seed: int, again: int):
    """In any order, with any chunks repeated, a payload is complete exactly when its last missing chunk comes."""
    chunks = split(data, size)
    rng = random.Random(seed)
    order = chunks + rng.choices(chunks, k=again)
    rng.shuffle(order)
    tiling, stores = Tiling(), (MemoryStore(), SpoolStore(None))
    seen = set()
    try:
        for chunk, body in order:
            assert tiling.add(chunk, len(body)) == (chunk.offset not in seen)
            for store in stores:
                if chunk.offset in seen:
                    assert store.same(chunk.offset, body)
                    assert not store.same(chunk.offset, bytes(byte ^ 1 for byte in body))
                else:
                    store.write(chunk.offset, body)
            seen.add(chunk.offset)
            assert tiling.complete == (len(seen) == len(chunks))
        assert stores[0].take() == data
        assert stores[1].take().read() == data
    finally:
        stores[1].close()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12), st.integers(0, 40))
def test_whatever_comes_complete_means_every_byte_once(parts: list[tuple[int, int]], total: int):
    """For any chunks at all, a tiling that calls itself complete covers [0, total) with no byte twice."""
    tiling = Tiling()
    covered: list[int] = []
    try:
        for offset, size in parts:
            if tiling.add(Chunk(ID, offset), size):
                covered += range(offset, offset + size)
        tiling.add(Chunk(ID, total, total), 0)
    except Refusal:
        return
    assert sorted(covered) == sorted(set(covered))
    assert tiling.complete == (sorted(covered) == list(range(total)))
    if not tiling.complete:
        gaps = {byte for start, end in tiling.missing(99) for byte in range(start, end)}
        assert gaps == set(range(total)) - set(covered)


def test_an_overlap_is_no_substitute_for_a_gap():
    """Chunks whose sizes add up to the total, with an overlap and a hole, are refused and never complete."""
    fails(Reason.CONFLICT, (0, 2), (6, 2, 8), (2, 2), (3, 2))
    fails(Reason.CONFLICT, (0, 4), (6, 2, 8), (2, 4))
    fails(Reason.CONFLICT, (4, 4), (2, 4))
    fails(Reason.CONFLICT, (0, 8), (2, 2))
    fails(Reason.CONFLICT, (2, 2), (0, 8))


def test_the_same_offset_with_another_length_is_a_conflict():
    """A chunk that comes again longer or shorter contradicts the first."""
    fails(Reason.CONFLICT, (0, 4), (0, 3))
    fails(Reason.CONFLICT, (0, 4), (0, 5))


def test_nothing_may_lie_beyond_the_total():
    """A chunk past the end is refused, whether the end is known before or after it."""
    fails(Reason.INCONSISTENT, (4, 2, 6), (6, 2))
    fails(Reason.INCONSISTENT, (6, 2), (4, 2, 6))
    fails(Reason.INCONSISTENT, (4, 2, 6), (2**60, 2))


def test_two_different_ends_contradict_each_other():
    """Two LASTs that differ in total, or in digest, are refused; the same LAST twice is a repeat."""
    fails(Reason.INCONSISTENT, (4, 2, 6), (2, 2, 4))
    tiling = tile((4, 2, 6))
    assert tiling.add(Chunk(ID, 4, 6), 2) is False
    with pytest.raises(Refusal, match="digests"):
        tiling.add(Chunk(ID, 4, 6, DIGEST), 2)


def test_an_end_that_never_fills_is_never_complete():
    """A total larger than the data leaves the message open, with the gap named."""
    tiling = tile((0, 4), (8, 2, 10))
    assert not tiling.complete
    assert tiling.missing() == [(4, 8)]
    assert tile((0, 4)).missing() == [(4, None)]


def test_limits_hold_before_anything_is_kept():
    """A chunk that reaches past the largest size, claims a larger total, or is one too many, is refused."""
    fails(Reason.TOO_LARGE, (0, 4), (7, 2), max_size=8)
    fails(Reason.TOO_LARGE, (9, 0, 9), max_size=8)
    fails(Reason.TOO_LARGE, (0, 1), (1, 1), (2, 1), max_chunks=2)


# -- keeping ----------------------------------------------------------------------------------------


def test_memory_follows_what_came_not_what_was_claimed():
    """A chunk at a huge offset takes its own size and nothing more."""
    store = MemoryStore()
    store.write(2**60, b"ab")
    store.write(0, b"cd")
    assert store.memory == 4
    store.close()
    assert store.memory == 0


def test_a_payload_of_one_chunk_is_not_copied():
    """The only chunk of a payload is handed on as it came."""
    store, body = MemoryStore(), b"abc" * 1000
    store.write(0, body)
    assert store.take() is body


def test_spilling_keeps_what_came_early():
    """Moving a payload to disk half way loses neither its front nor the chunks that came too early."""
    memory, spool = MemoryStore(), SpoolStore(None)
    try:
        for offset, body in ((4, b"efgh"), (0, b"abcd"), (12, b"mnop")):
            memory.write(offset, body)
        memory.spill(spool)
        spool.write(8, b"ijkl")
        assert spool.take().read() == b"abcdefghijklmnop"
        assert (memory.memory, spool.disk) == (0, 16)
    finally:
        spool.close()


@given(st.binary(max_size=400), st.integers(1, 30), st.integers(1, 60), st.integers(0, 2**32))
def test_a_backlog_gives_bytes_in_order_within_its_window(data: bytes, size: int, window: int, seed: int):
    """Whenever the reader takes, and however the chunks are shuffled, it gets the payload in order; memory in order
    stays within the window or one chunk, the rest goes to disk, and in the end nothing is held."""
    chunks = [(offset, data[offset : offset + size]) for offset in range(0, len(data), size)]
    rng = random.Random(seed)
    rng.shuffle(chunks)
    backlog, got = UnreadStore(window, None), b""
    try:
        for offset, body in chunks:
            backlog.write(offset, body)
            early = sum(len(other) for place, other in chunks if place > backlog.end)
            assert backlog.memory <= max(window, size) + early
            if rng.random() < 0.4 and (piece := backlog.take()):
                got += piece
        while (piece := backlog.take()) is not None:
            got += piece
        assert got == data
        assert (backlog.memory, backlog.disk) == (0, 0)
    finally:
        backlog.close()
