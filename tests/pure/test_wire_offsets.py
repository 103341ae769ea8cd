"""No column of a batch has more bytes than its offsets of 32 bits can tell apart, however it is asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InputError, OptionError
from penstock.spark.source_options import SourceOptions
from penstock.store.reading import Wanted
from penstock.wire import arrow
from penstock.wire.arrow import constant, most_rows, to_batch
from penstock.wire.bulk import rows as bulk_rows
from penstock.wire.bulk.read_options import ReadOptions
from penstock.wire.columns import FULL, MOST_ROWS, NEED
from tests import store_sets
from tests.wire_sets import FORMS, form

SUBJECT = "s." + "x" * 300


def deliveries(first: int, count: int, subject: str = SUBJECT) -> bytes:
    return b"".join(
        b"MSG %s 7 $JS.ACK.S.c.1.%d.%d.5000.0 2\r\nhi\r\n" % (subject.encode(), number, number)
        for number in range(first, first + count)
    )


def columns(wire: Any, **given: Any) -> Any:
    made = wire.columns.Columns(
        1, 1 << 40, max_rows=MOST_ROWS, max_bytes=1 << 30, max_payload=wire.protocol.MAX_PAYLOAD, **given
    )
    made.sid = 7
    return made


@pytest.mark.parametrize("name", FORMS)
def test_long_subjects_end_a_batch(name: str) -> None:
    """However many rows a batch may have, its subjects end it; nothing is lost or repeated between two batches."""
    made, content = columns(form(name)), bytearray(deliveries(1, 100))
    assert made.max_text == 1 << 28
    made.max_text = 3000
    found, place, batches = [], 0, 0
    while place < len(content):
        place = made.fill(content, place, len(content))
        assert made.stop == (FULL if place < len(content) else NEED)
        batch = to_batch(made.close(), "S")
        batch.validate(full=True)
        assert batch.column("subject").get_total_buffer_size() < 8000
        found += batch.column("sequence").to_pylist()
        batches += 1
        made.restart()
    assert found == list(range(1, 101))
    assert batches == 10


@pytest.mark.parametrize("made_of", store_sets.FORMS)
def test_long_subjects_end_a_batch_of_a_block(made_of: Any) -> None:
    """A block of a store is read in as many batches as its subjects need."""
    block = bytearray(b"".join(store_sets.record("S", 1, number, SUBJECT.encode(), b"hi") for number in range(1, 41)))
    records = made_of.records.Records(1, 1 << 62, max_rows=1 << 62, max_bytes=1 << 62)
    records.max_text = 3000
    records.open(made_of.records.key_of("S", 1))
    found, place = [], 0
    while place < len(block):
        place = records.take(block, place, len(block))
        found += to_batch(records.close(), "S").column("sequence").to_pylist()
        records.restart()
    assert found == list(range(1, 41))


def test_the_name_of_the_stream_bounds_the_rows() -> None:
    """A column that says the same in every row is one column like any other: a long name means fewer rows."""
    assert most_rows("S", MOST_ROWS) == MOST_ROWS
    assert most_rows("", 5) == 5
    longest = "n" * 255
    rows = most_rows(longest, MOST_ROWS)
    assert rows * 255 <= 1 << 28
    assert Wanted(max_rows=1 << 62).columns(longest)["max_rows"] == rows
    assert (1 << (rows - 1).bit_length()) * 255 < 1 << 31, "also rounded up to a power of two"


def test_a_subject_for_all_rows_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose rows all have one long subject is published in parts, each row once and in order."""
    monkeypatch.setattr(arrow, "_CONSTANT", 1000)
    batch = pa.RecordBatch.from_pydict({"data": [b"%d" % number for number in range(100)]}).slice(3)
    source = bulk_rows.Source(batch, subject="s." + "y" * 98, subjects=["s.>"], max_payload=1 << 20)
    found = [(first, rows.count) for first, rows in source]
    assert found == [(first, min(10, 97 - first)) for first in range(0, 97, 10)]
    encoder = form(FORMS[-1]).frames.Encoder()
    source = bulk_rows.Source(batch, subject="s." + "y" * 98, subjects=["s.>"], max_payload=1 << 20)
    for first, rows in source:
        encoder.write(rows, 0, rows.count, first, 1 << 30)
    assert [int(part.split(b"\r\n")[1]) for part in bytes(encoder.take()).split(b"PUB ")[1:]] == list(range(3, 100))
    assert len(constant("s", 5)) == 5


def test_what_is_asked_for_is_bounded_before_anything_is_read() -> None:
    """More rows than a batch may have are refused by the reader and by Spark's option alike."""
    usual: dict[str, Any] = dict.fromkeys(("end", "on_loss"))
    usual |= {"stream": "S", "start": 1, "subjects": (), "batch_bytes": 1, "window_bytes": 1024, "timeout": 1.0}
    ReadOptions(**usual, headers=True, payloads=True, batch_rows=MOST_ROWS)
    with pytest.raises(InputError, match="batch_rows is 16777217"):
        ReadOptions(**usual, headers=True, payloads=True, batch_rows=MOST_ROWS + 1)
    given = {"url": "nats://x:1", "stream": "S"}
    assert SourceOptions.parse({**given, "batchRows": str(MOST_ROWS)}).batch_rows == MOST_ROWS
    for name, value in (("batchRows", "16777217"), ("windowBytes", "2g"), ("windowBytes", "10")):
        with pytest.raises(OptionError, match=f"The option {name} is '{value}'"):
            SourceOptions.parse({**given, name: value})


def test_offsets_that_do_not_fit_are_an_error() -> None:
    """A place behind 2 GiB is refused; wrapped around, it would be another place of the memory."""
    plain = form("plain").buffers
    numbers = plain.Numbers(2)
    numbers.append((1 << 31) - 1)
    assert numbers.close(32)[0] == (1 << 31) - 1
    numbers.append(1 << 31)
    with pytest.raises(OverflowError):
        numbers.close(32)


@pytest.mark.heavy
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_two_gigabytes_of_subjects(name: str, bound: bool) -> None:
    """Sixteen million rows are asked for, with subjects of 4,000 bytes: batches end in time, or offsets are refused."""
    made, subject = columns(form(name)), "s." + "x" * 3990
    if not bound:
        made.max_text = 1 << 40
    first, rows = 1, 0
    while made.stop != FULL and rows < 560_000:
        content = bytearray(deliveries(first, 10_000, subject))
        place = made.fill(content, 0, len(content))
        first, rows = made.next, made.rows
        assert made.stop in (NEED, FULL), (made.stop, place)
    if bound:
        batch = to_batch(made.close(), "S")
        assert batch.num_rows == rows == -(-(1 << 28) // 3992)
        batch.validate(full=True)
    else:
        with pytest.raises(OverflowError):
            made.close()
