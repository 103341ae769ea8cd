"""Arrow rows become PUB and HPUB frames; rows that cannot be sent are refused before anything is."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import InputError, LocalProtocolError
from penstock.wire.arrow import HEADERS
from penstock.wire.bulk import rows as bulk_rows
from penstock.wire.bulk.rows import Source
from penstock.wire.subjects import covers, subject_fault
from tests.wire_sets import FORMS, form

FRAME = re.compile(rb"(H?)PUB ([^ \r\n]+) (?:([^ \r\n]+) )?(?:([0-9]+) )?([0-9]+)\r\n")


def source(batch: Any, **given: Any) -> Source:
    settings = {"subject": None, "subjects": ["s.>"], "max_payload": 1 << 20}
    return Source(batch, **{**settings, **given})


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        rows, pa.schema([("subject", pa.string()), ("data", pa.binary()), ("headers", HEADERS)])
    )


def parse(content: bytes) -> list[tuple[bytes, bytes | None, dict[str, list[str]] | None, bytes]]:
    """Read frames as a server does: subject, reply, headers and payload of each."""
    found = []
    protocol = form("plain").protocol
    place = 0
    while place < len(content):
        line = FRAME.match(content, place)
        assert line is not None, content[place : place + 80]
        headed, subject, reply, head, size = line.groups()
        if headed and head is None:  # two numbers and no reply: the pattern took the first number for the reply
            reply, head = None, reply
        body = content[line.end() : line.end() + int(size)]
        assert content[line.end() + int(size) :][:2] == b"\r\n"
        block = body[: int(head)] if headed else None
        headers = protocol.decode_headers(block)[2] if block is not None else None
        found.append((subject, reply, headers, body[int(head or 0) :]))
        place = line.end() + int(size) + 2
    return found


def encode(name: str, given: pa.RecordBatch, *, first: int = 0, number: int = 1, **form_of: Any) -> bytes:
    """Write all rows of a batch with the frames of one form."""
    frames = form(name).frames
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_rows, "frames", frames)
        ((_, rows),) = source([given])
    encoder = frames.Encoder(**form_of)
    place = first
    while place < given.num_rows:
        place = encoder.write(rows, place, given.num_rows, number + place - first, 1000)
    return bytes(encoder.take())


@pytest.mark.parametrize("name", FORMS)
def test_frames_without_anything_added(name: str) -> None:
    """A row without headers is a PUB, one with headers a HPUB, each header value a line of its own."""
    given = batch(
        [
            {"subject": "s.a", "data": b"one", "headers": []},
            {"subject": "s.b", "data": b"", "headers": [("A", ["1", "2"]), ("B", ["é"])]},
            {"subject": "s.c", "data": b"\r\n", "headers": [("empty", [])]},
        ]
    )
    assert encode(name, given) == (
        b"PUB s.a 3\r\none\r\n"
        b"HPUB s.b 31 31\r\nNATS/1.0\r\nA: 1\r\nA: 2\r\nB: \xc3\xa9\r\n\r\n\r\n"
        b"PUB s.c 2\r\n\r\n\r\n"
    )


@pytest.mark.parametrize("name", FORMS)
def test_frames_with_everything_added(name: str) -> None:
    """Reply, fixed lines, counter and id stand where the settings say, and a row's own id is kept."""
    given = batch(
        [
            {"subject": "s.a", "data": b"one", "headers": []},
            {"subject": "s.b", "data": b"two", "headers": [("Nats-Msg-Id", ["mine"]), ("X", ["y"])]},
        ]
    )
    found = parse(
        encode(
            name,
            given,
            number=99,
            reply_prefix=b"r.",
            reply_suffix=b".1.$FI",
            fixed=b"Nats-Batch-Id: b\r\n",
            counter=b"Nats-Batch-Sequence",
            id_prefix=b"p.",
            id_offset=1000,
        )
    )
    fixed = {"Nats-Batch-Id": ["b"]}
    assert found == [
        (b"s.a", b"r.99.1.$FI", {**fixed, "Nats-Batch-Sequence": ["99"], "Nats-Msg-Id": ["p.1099"]}, b"one"),
        (
            b"s.b",
            b"r.100.1.$FI",
            {**fixed, "Nats-Batch-Sequence": ["100"], "Nats-Msg-Id": ["mine"], "X": ["y"]},
            b"two",
        ),
    ]


_name = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=6)
_value = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=6)
_row = st.fixed_dictionaries(
    {
        "subject": st.sampled_from(["s.a", "s.b.c", "s.ü"]),
        "data": st.binary(max_size=40),
        "headers": st.dictionaries(
            _name.filter(lambda name: not name.lower().startswith("nats-")), st.lists(_value, max_size=3), max_size=3
        ).map(lambda found: list(found.items())),
    }
)


@given(
    rows=st.lists(_row, min_size=1, max_size=12),
    cut=st.integers(0, 5),
    with_reply=st.booleans(),
    with_id=st.booleans(),
    with_counter=st.booleans(),
    number=st.sampled_from([1, 9, 10, 99, 123456789]),
)
@example(  # a payload that looks like the end of a line
    rows=[{"subject": "s.a", "data": b"x 5\r\n", "headers": []}],
    cut=0,
    with_reply=False,
    with_id=False,
    with_counter=False,
    number=1,
)
@settings(max_examples=150)
def test_both_forms_write_the_same_frames(
    rows: list[dict[str, Any]], cut: int, with_reply: bool, with_id: bool, with_counter: bool, number: int
) -> None:
    """A server reads back what the rows held, sliced batches included, and both forms write the same bytes."""
    whole = batch(rows)
    cut = min(cut, len(rows) - 1)
    given = whole.slice(cut)
    form_of = {
        "reply_prefix": b"_INBOX.x." if with_reply else b"",
        "id_prefix": b"id." if with_id else b"",
        "counter": b"Nats-Batch-Sequence" if with_counter else b"",
    }
    written = [encode(name, given, number=number, **form_of) for name in FORMS]
    assert all(content == written[0] for content in written)
    for place, ((subject, reply, headers, payload), row) in enumerate(zip(parse(written[0]), rows[cut:], strict=True)):
        assert (subject.decode(), payload) == (row["subject"], row["data"])
        assert reply == (b"_INBOX.x.%d" % (number + place) if with_reply else None)
        own = {key: [value.strip(" \t") for value in values] for key, values in row["headers"] if values}
        own |= {"Nats-Msg-Id": [f"id.{number + place}"]} if with_id else {}
        own |= {"Nats-Batch-Sequence": [str(number + place)]} if with_counter else {}
        assert (headers or {}) == own


@pytest.mark.parametrize("name", FORMS)
def test_writing_stops_at_the_limit(name: str) -> None:
    """Frames are written until the limit of bytes is passed, at least one each time."""
    frames = form(name).frames
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_rows, "frames", frames)
        ((_, rows),) = source([batch([{"subject": "s.a", "data": b"x" * 90, "headers": []}] * 10)])
    encoder = frames.Encoder()
    assert encoder.write(rows, 0, 10, 1, 250) == 3
    assert encoder.size >= 250
    assert encoder.write(rows, 3, 10, 4, 1) == 4
    assert len(parse(bytes(encoder.take()))) == 4
    assert encoder.size == 0
    assert rows.subject(9) == b"s.a"
    assert frames.sizes(rows) == 90


# -- rows as they come ---------------------------------------------------------------------------------------


def test_columns_may_have_other_types() -> None:
    """Large, dictionary and text types are taken; other columns are ignored; batches without rows are skipped."""
    given = pa.record_batch(
        {
            "sequence": pa.array([1, 2]),
            "subject": pa.array(["s.a", "s.b"]).dictionary_encode(),
            "data": pa.array(["é", None], pa.large_string()),
        }
    )
    made = source([given.slice(0, 0), given, given])
    found = list(made)
    assert [first for first, _ in found] == [0, 2]
    assert made.given == 4
    assert [found[0][1].subject(row) for row in range(2)] == [b"s.a", b"s.b"]
    table = source(pa.Table.from_batches([given]), subject="s.x")
    assert [rows.count for _, rows in table] == [2]
    alone = source(given.select(["data"]), subject="s.x")
    assert [rows.subject(1) for _, rows in alone] == [b"s.x"]


@pytest.mark.parametrize("name", FORMS)
def test_nulls(name: str) -> None:
    """A null payload is empty, a null subject is the given one, null headers are none."""
    kinds = pa.schema([("subject", pa.string()), ("data", pa.binary()), ("headers", HEADERS)])
    given = pa.RecordBatch.from_pylist(
        [
            {"subject": None, "data": None, "headers": None},
            {"subject": "s.b", "data": b"x", "headers": [("A", None), ("B", ["1"])]},
        ],
        kinds,
    )
    frames = form(name).frames
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_rows, "frames", frames)
        ((_, rows),) = source([given], subject="s.d")
    encoder = frames.Encoder()
    encoder.write(rows, 0, 2, 1, 10_000)
    assert parse(bytes(encoder.take())) == [(b"s.d", None, None, b""), (b"s.b", None, {"B": ["1"]}, b"x")]


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"subject": "s. a"}, LocalProtocolError, "is not a subject"),
        ({"subject": "s.a\r\nPUB s.b 0\r\n"}, LocalProtocolError, "is not a subject"),
        ({"subject": "s.*"}, LocalProtocolError, "wildcards"),
        ({"subject": "other"}, InputError, "Row 11: Subject 'other' is not of this stream, which has s.>"),
        ({"subject": None}, InputError, "Row 11 has no subject"),
        ({"headers": [("a b", ["c"])]}, LocalProtocolError, "is not a name for a header"),
        ({"headers": [("A", ["b\r\nC: d"])]}, LocalProtocolError, "line break"),
        ({"headers": [("A", [None])]}, InputError, "null among its values"),
        ({"headers": [("Nats-Batch-Id", ["x"])]}, InputError, "server's batches"),
        ({"data": b"x" * (1 << 20)}, LocalProtocolError, "A row from 10 on has 1048576 bytes"),
        ({"headers": [("A", ["x" * (1 << 20)])]}, LocalProtocolError, "A row from 10 on has 10485"),
    ],
)
def test_rows_that_cannot_be_sent(row: dict[str, Any], kind: type[Exception], says: str) -> None:
    """A row that cannot be sent stops its batch before any of it is written, and the error says what and where."""
    good = {"subject": "s.a", "data": b"x", "headers": []}
    made = iter(source([batch([good] * 10), batch([good, {**good, **row}])]))
    next(made)
    with pytest.raises(kind, match=says):
        next(made)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (pa.record_batch({"subject": pa.array(["s.a"])}), "no column data, only subject"),
        (pa.record_batch({"data": pa.array([b"x"])}), "neither a column subject"),
        (pa.record_batch({"data": pa.array([1]), "subject": pa.array(["s.a"])}), "type int64, and binary is wanted"),
        (
            pa.record_batch({"data": pa.array([b"x"]), "subject": pa.array(["s.a"]), "headers": pa.array([1])}),
            "Column headers has the type int64",
        ),
        ({"data": [b"x"]}, "was given dict for a record batch"),
    ],
)
def test_batches_of_the_wrong_shape(given: Any, says: str) -> None:
    """A batch without the columns, or with types that cannot be theirs, is refused with the column's name."""
    with pytest.raises(InputError, match=says):
        list(source([given]))


def test_the_subject_for_all_rows_is_checked_at_once() -> None:
    """A subject for all rows that is none, or of another stream, is refused before the first batch is asked for."""
    for subject in ("a b", "other", "s.>"):
        with pytest.raises((InputError, LocalProtocolError)):
            source(iter(()), subject=subject)
    for subject in ("s.a", "x.1.y"):
        source(iter(()), subject=subject, subjects=["s.>", "x.*.y"])


TOKENS = st.text(alphabet="ab*>.é \x7f", max_size=6)
PATTERNS = st.sampled_from(["a", "*", ">", "a.>", "a.*", "*.b", "a.*.b", "a*.b", "a>.b", "*.>"])


@pytest.mark.parametrize("name", FORMS)
@given(subjects=st.lists(TOKENS | st.just("a.b"), min_size=1, max_size=8), patterns=st.lists(PATTERNS, max_size=3))
def test_only_subjects_that_are_fine_are_not_looked_at_closely(name: str, subjects: list[str], patterns: list[str]):
    """Each subject that is passed over is one, has no wildcard, and one of the stream's subjects covers it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_rows, "frames", form(name).frames)
        texts = bulk_rows.texts(pa.array(subjects, pa.string()))
    found, place = [], -1
    encoded = [pattern.encode() for pattern in patterns]
    while (place := form(name).frames.doubtful_subject(texts, len(subjects), place + 1, encoded)) < len(subjects):
        found.append(place)
    fine = [number for number in range(len(subjects)) if number not in found]
    assert [number for number in fine if subject_fault(subjects[number], literal=True)] == []
    assert all(any(covers(pattern, subjects[number]) for pattern in patterns) for number in fine)
    simple = [n for n, item in enumerate(subjects) if item.isascii() and not set(item) & set("*> \x7f")]
    right = [n for n in simple if not subject_fault(subjects[n]) and any(covers(p, subjects[n]) for p in patterns)]
    assert set(right) <= set(fine)
