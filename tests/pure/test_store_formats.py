"""The formats of stores and backups: checksums, compression, records, entries."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.decoding import BROKEN
from penstock.wire.columns import BEYOND, FULL, NEED, OTHER
from tests.store_sets import BEGIN, COMPILED, FORMS, PLAIN, entry, number, piece, record

KEY = bytes(range(32))
# Published values of HighwayHash-64, for the bytes 0, 1, 2 … of each length.
HIGHWAY = {0: 0x907A56DE22C26E53, 1: 0x7EAB43AAC7CDDD78, 2: 0xB8D0569AB0B53D62, 3: 0x5C6BEFAB8A463D80}


@pytest.mark.parametrize("form", FORMS)
def test_highway_hash_is_the_published_one(form: Any) -> None:
    """HighwayHash-64 gives the values that its authors published."""
    assert {size: form.checksums.Highway(KEY).of(bytes(range(size))) for size in HIGHWAY} == HIGHWAY


@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_both_forms_hash_alike(content: bytes) -> None:
    """The compiled and the plain checksum agree for any length, with wide instructions and without."""
    for wide in (True, False):
        assert COMPILED.checksums.Highway(KEY, wide).of(content) == PLAIN.checksums.Highway(KEY).of(content)
        assert COMPILED.checksums.crc32c(content, wide) == PLAIN.checksums.crc32c(content)


@pytest.mark.parametrize("form", FORMS)
def test_crc_is_castagnolis(form: Any) -> None:
    """The CRC of the digits 1 to 9 is the one that every description of CRC-32C gives."""
    assert form.checksums.crc32c(b"123456789") == 0xE3069283
    with pytest.raises(ValueError, match="32 bytes"):
        form.checksums.Highway(b"short")


# -- S2 ---------------------------------------------------------------------------------------------------------------

# Each step of a block, and what it makes of what was written before.
STEPS = [
    ("short literal", bytes([(3 - 1) << 2]) + b"abc", b"abc"),
    ("literal with a size of one byte", bytes([60 << 2, 69]) + b"x" * 70, b"x" * 70),
    ("literal with a size of two bytes", bytes([61 << 2, 0x2B, 0x01]) + b"y" * 300, b"y" * 300),
    ("near copy", bytes([(4 - 4) << 2 | 1, 3]), None),
    ("copy with two bytes", bytes([(5 - 1) << 2 | 2, 3, 0]), None),
    ("copy with four bytes", bytes([(6 - 1) << 2 | 3, 3, 0, 0, 0]), None),
    ("again, short", bytes([2 << 2 | 1, 0]), None),
    ("again, one byte more", bytes([5 << 2 | 1, 0, 7]), None),
    ("again, two bytes more", bytes([6 << 2 | 1, 0, 1, 0]), None),
    ("again, three bytes more", bytes([7 << 2 | 1, 0, 1, 0, 0]), None),
]
LENGTHS = {"near copy": 4, "copy with two bytes": 5, "copy with four bytes": 6}
LENGTHS |= {
    "again, short": 6,
    "again, one byte more": 15,
    "again, two bytes more": 261,
    "again, three bytes more": 65541,
}


def _expected(names: list[str]) -> tuple[bytes, bytes]:
    """Give a block of steps, and what it becomes, worked out byte by byte."""
    steps, becomes = b"", b""
    for name, step, literal in STEPS:
        if name not in names:
            continue
        steps += step
        if literal is not None:
            becomes += literal
        else:
            for _ in range(LENGTHS[name]):
                becomes += becomes[-3:-2]
    return number(len(becomes)) + steps, becomes


@pytest.mark.parametrize("form", FORMS)
def test_every_step_of_a_block(form: Any) -> None:
    """Each kind of step does what the format says, copies that overlap themselves too."""
    for upto in range(1, len(STEPS) + 1):
        block, becomes = _expected([name for name, _, _ in STEPS[:upto]])
        assert bytes(form.s2.decompress(bytearray(BEGIN + piece(becomes, 0, block)))) == becomes, STEPS[upto - 1][0]


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_of_pieces_of_every_kind(form: Any) -> None:
    """Pieces become what they hold one behind the other, and what is to be passed over is; memory is used again."""
    block, becomes = _expected([name for name, _, _ in STEPS[:6]])
    stream = BEGIN + piece(b"plain") + b"\x99\x03\x00\x00any" + piece(becomes, 0, block) + b"\xfe\x02\x00\x00\x00\x00"
    room = bytearray(b"old" * 1000)
    assert form.s2.decompress(bytearray(b"no" + stream + b"no"), 2, len(stream) + 2, 1 << 20, room) is room
    assert room == b"plain" + becomes
    with pytest.raises(form.s2.Broken, match="more than 10 bytes"):
        form.s2.decompress(bytearray(stream), limit=10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (b"nothing of the kind", "begin as S2"),
        (piece(b"x"), "begin as S2"),
        (BEGIN + b"\x02\x01\x00\x00x", "unknown kind 2"),
        (BEGIN + b"\x01\x02\x00\x00xx", "no CRC"),
        (BEGIN + piece(b"x")[:-1], "middle of a piece"),
        (BEGIN + piece(b"x")[:-1] + b"y", "CRC"),
        (BEGIN + b"\x01\xff\xff\xff", "more than any"),
        (BEGIN + piece(b"", 0, b"\xff\xff\xff\xff\xff\xff"), "no size"),
        (BEGIN + piece(b"", 0, number(5 << 20)), "more than any"),
        (BEGIN + piece(b"", 0, number(4) + b"\x08ab"), "block is broken"),
        (BEGIN + piece(b"", 0, number(4) + b"\x00a\x01"), "block is broken"),
        (BEGIN + piece(b"", 0, number(4) + b"\x00a\x01\x05"), "block is broken"),
        (BEGIN + piece(b"", 0, number(9) + b"\x00a"), "block is broken"),
        (BEGIN + piece(b"", 0, number(4) + b"\xfc\x00\x00\x00\x80a"), "block is broken"),
        (BEGIN + piece(b"", 0, number(4) + b"\xfc\xff\xff\xff\xffa"), "block is broken"),
    ],
)
def test_what_is_no_s2_is_refused(form: Any, stream: bytes, what: str) -> None:
    """Broken compression is told, never unpacked into something."""
    with pytest.raises(form.s2.Broken, match=what):
        form.s2.decompress(bytearray(stream))


@settings(max_examples=60)
@given(content=st.binary(max_size=300), seed=st.integers())
def test_any_bytes_are_refused_or_unpacked_alike(content: bytes, seed: int) -> None:
    """Whatever a block holds, both forms agree, and neither writes where it must not."""
    random_ = random.Random(seed)
    body = number(random_.randrange(400)) + content
    whole = bytearray(random_.choice([b"\x00", b"\x00", b"\x01"]) + bytes(7) + body)

    def unpack(form: Any) -> object:
        target = bytearray(b"x" * 500)
        try:
            form.s2.unpack_piece(whole, 0, len(whole), target, 7)
        except form.s2.Broken as error:
            assert target[:7] == b"x" * 7, "it wrote before its place"
            return str(error), target[407:]
        return target

    assert unpack(COMPILED) == unpack(PLAIN)


# -- records ----------------------------------------------------------------------------------------------------------


def _records(form: Any, start: int = 1, end: int = 1 << 40, **options: Any) -> Any:
    made = form.records.Records(start, end, **{"max_rows": 1000, "max_bytes": 1 << 20, **options})
    made.open(form.records.key_of("S", 7))
    return made


def _sequences(form: Any, made: Any) -> list[int]:
    return memoryview(made.close()["sequence"]).cast("B").cast("q").tolist()[: made.rows]


@pytest.mark.parametrize("form", FORMS)
def test_records_become_columns(form: Any) -> None:
    """Subject, payload, headers, sequence and time of a record are the row's."""
    headers = b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n"
    block = bytearray(
        record("S", 7, 3, b"a.b", b"one", time=1_000_001_000) + record("S", 7, 9, b"c", b"two", headers, 2_000_002_000)
    )
    made = _records(form, sized=True)
    assert (made.take(block, 0, len(block)), made.stop) == (len(block), NEED)
    rows = made.close()
    assert rows["rows"] == 2
    assert bytes(rows["subject"][1]) == b"a.bc"
    assert bytes(rows["data"][1]) == b"onetwo"
    assert bytes(rows["header_names"][1]) == b"AB"
    assert bytes(rows["header_values"][1]) == b"12x"
    assert memoryview(rows["sequence"]).cast("B").cast("q").tolist() == [3, 9]
    assert memoryview(rows["time"]).cast("B").cast("q").tolist() == [1_000_001, 2_000_002]
    assert made.stored_sizes() == [
        len(record("S", 7, 3, b"a.b", b"one")),
        len(record("S", 7, 9, b"c", b"two", headers)),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_dead_is_no_row(form: Any) -> None:
    """Erased, buried, repeated and earlier ones, and tombstones, give no row; those behind the end stop the read."""
    block = bytearray(
        b"".join(
            (
                record("S", 7, 1),
                record("S", 7, 2, flags=2),  # erased
                record("S", 7, 3),
                record("S", 7, 3, payload=b"again"),
                record("S", 7, 4, flags=1),  # a tombstone of a message that comes
                record("S", 7, 4),
                record("S", 7, 5),
                record("S", 7, 6),
                record("S", 7, 8),
            )
        )
    )
    made = _records(form, 3, 7)
    made.open(form.records.key_of("S", 7), bytes(8) + b"\x20" + bytes(255))  # 5 is buried
    made.take(block, 0, len(block))
    assert made.stop == BEYOND
    assert _sequences(form, made) == [3, 4, 6]


@pytest.mark.parametrize("form", FORMS)
def test_a_survey_tells_what_a_block_holds(form: Any) -> None:
    """Counts, bounds, tombstones, and where the block breaks."""
    whole = (
        record("S", 7, 5, flags=2) + record("S", 7, 6, payload=b"x") + record("S", 7, 2, flags=1) + record("S", 7, 8)
    )
    block = bytearray(whole + record("S", 7, 9)[:-3])
    told = _records(form).survey(block, 0, len(block))
    assert (told["records"], told["messages"], told["tombstones"], told["end"]) == (4, 2, [2], len(whole))
    assert (told["first"], told["last"], told["last_message"]) == (6, 8, 8)


@pytest.mark.parametrize("form", FORMS)
def test_batches_end_where_they_are_full(form: Any) -> None:
    """A batch takes its rows, and the next one goes on behind it."""
    block = bytearray(b"".join(record("S", 7, sequence, payload=b"x" * 10) for sequence in range(1, 8)))
    made, position, found = _records(form, max_rows=3), 0, []
    while position < len(block):
        position = made.take(block, position, len(block))
        assert made.stop in (FULL, NEED)
        found.append(_sequences(form, made))
        made.restart()
    assert found == [[1, 2, 3], [4, 5, 6], [7]]


@pytest.mark.parametrize("form", FORMS)
def test_every_byte_of_a_record_counts(form: Any) -> None:
    """A record that is cut off, or changed, at any of its bytes is broken, and the one before it is given."""
    first, second = record("S", 7, 1, b"a", b"x"), record("S", 7, 2, b"b", b"payload", b"NATS/1.0\r\nA: 1\r\n\r\n")
    for place in range(len(second)):
        cut = bytearray(first + second[:place])
        made = _records(form)
        assert made.take(cut, 0, len(cut)) == len(first)
        assert made.stop == (BROKEN if place else NEED)
        changed = bytearray(first + second)
        changed[len(first) + place] ^= 1
        made = _records(form)
        assert made.take(changed, 0, len(changed)) == len(first), place
        assert (made.stop, _sequences(form, made)) == (BROKEN, [1])


@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_alike(content: bytes) -> None:
    """Whatever a block holds, both forms stop at the same place; also where no checksum is looked at."""

    def take(form: Any) -> tuple[int, int, int]:
        made = _records(form, verify=False)
        block = bytearray(record("S", 7, 1)[:4] + content)
        return made.take(block, 0, len(block)), made.stop, made.rows

    assert take(COMPILED) == take(PLAIN)


# -- entries of a backup ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_entries_become_columns(form: Any, size: int) -> None:
    """The messages of a backup are rows however it is cut; what is no message is handed out by its name."""
    content = entry(b"state.json", 0, payload=b"{}") + entry(b"consumers/C", 0, payload=b"[]", time=5)
    content += (
        entry(b"a.b", 4, b"NATS/1.0\r\nA: 1\r\n\r\n", b"one", 3_000) + entry(b"c", 9, payload=b"two") + entry(b"", 0)
    )
    made = form.entries.Entries(1, 1 << 40, max_rows=100, max_bytes=1 << 20)
    waiting, named = bytearray(), []
    for at in range(0, len(content), size):
        waiting += content[at : at + size]
        position = made.take(waiting, 0, len(waiting))
        while made.stop == OTHER and (found := made.entry(waiting, position, len(waiting))) is not None:
            named.append(found[:2])
            position = made.take(waiting, found[2], len(waiting))
        del waiting[:position]
    assert (waiting, named) == (b"", [(b"state.json", b"{}"), (b"consumers/C", b"[]"), (b"", b"")])
    rows = made.close()
    assert (rows["rows"], bytes(rows["subject"][1]), bytes(rows["data"][1])) == (2, b"a.bc", b"onetwo")
    assert memoryview(rows["sequence"]).cast("B").cast("q").tolist() == [4, 9]
    assert memoryview(rows["time"]).cast("B").cast("q").tolist() == [3, 0]


@settings(max_examples=60)
@given(content=st.binary(max_size=120))
def test_any_entries_are_read_alike(content: bytes) -> None:
    """Whatever a backup holds, both forms stop at the same place for the same reason."""

    def take(form: Any) -> tuple[int, int, int]:
        made = form.entries.Entries(1, 1 << 40, max_rows=100, max_bytes=1 << 20)
        block = bytearray(content)
        return made.take(block, 0, len(block)), made.stop, made.rows

    assert take(COMPILED) == take(PLAIN)
