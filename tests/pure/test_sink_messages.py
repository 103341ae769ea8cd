"""Rows as messages, their digests, and the options of writing: all that needs neither Spark nor a server."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.errors import InputError, OptionError, RowError
from penstock.spark.digests import Bag, from_bytes
from penstock.spark.messages import Shape, SinkStream, check_columns
from penstock.spark.sink_options import SINK, SinkOptions, read_ttl

TARGET = SinkStream("ORDERS", ("orders.>", "dead"), 2000)


def shape(**options) -> Shape:
    return Shape(SinkOptions(stream="ORDERS", **options), TARGET)


def rows(**columns) -> pa.RecordBatch:
    return pa.record_batch(columns)


# -- options ----------------------------------------------------------------------------------------------------------


def test_defaults_are_the_safe_ones():
    """A write without further words is exactly once, changes no stream and stops at whatever is wrong."""
    options = SinkOptions.parse({"stream": "ORDERS"})
    assert options == SinkOptions(stream="ORDERS")
    assert options.exactly_once
    assert not options.prepare
    assert (options.on_missing_markers, options.on_changed_rows) == ("fail", "fail")


def test_every_option_has_a_field():
    """The table of options and the frozen value say the same."""
    assert {option.field for option in SINK} == set(SinkOptions.__dataclass_fields__)
    parsed = SinkOptions.parse({"stream": "ORDERS"})
    assert all(getattr(parsed, option.field) == option.default for option in SINK if option.name != "stream")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "No stream is named"),
        ({"stream": "a.b"}, "not a name of a stream"),
        ({"stream": "S", "guarantee": "perhaps"}, "exactly-once, at-least-once"),
        ({"stream": "S", "garantee": "exactly-once"}, "Did you mean guarantee"),
        ({"stream": "S", "atomicRows": "1000"}, "999"),
        ({"stream": "S", "inFlight": "1"}, "from 2 to 16"),
        ({"stream": "S", "subject": "a b"}, "tokens joined by dots"),
        ({"stream": "S", "subject": "a.{}"}, "Name a column"),
        ({"stream": "S", "subject": "a.>"}, "wildcards"),
        ({"stream": "S", "subject": "$PENSTOCK.S.x"}, "subject"),
        ({"stream": "S", "deadLetterSubject": "dead.{x}"}, "deadLetterSubject"),
        ({"stream": "S", "ttl": "10ms"}, "a second at least"),
        ({"stream": "S", "writeId": "a.b"}, "letters, digits"),
        ({"stream": "S", "patience": "0s"}, "60s"),
    ],
)
def test_bad_options_are_refused(given, message):
    """Each bad option is refused with its remedy, before anything is opened."""
    with pytest.raises(OptionError, match=message):
        SinkOptions.parse(given)


def test_ttl():
    """A time to live is written as the server reads it."""
    assert read_ttl("ttl", "90s") == "1m30s"
    assert read_ttl("ttl", "Never") == "never"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"payload": "binary"}, {}, "no column data"),
        ({"data": "bigint", "subject": "string"}, {}, "data has the type bigint"),
        ({"data": "binary"}, {}, "no subject"),
        ({"data": "binary", "subject": "string", "region": "string"}, {}, "Nothing of column region"),
        ({"data": "binary"}, {"subject": "orders.{region}"}, "no such column"),
        ({"data": "binary", "region": "struct<a:int>"}, {"subject": "orders.{region}"}, "simple types"),
        ({"data": "binary", "subject": "string"}, {"id_column": "id"}, "idColumn names 'id'"),
        ({"data": "binary", "subject": "string", "headers": "map<string,int>"}, {}, "headers has the type"),
    ],
)
def test_frames_that_cannot_be_written_are_refused(columns, options, message):
    """A DataFrame whose columns do not fit is refused before a task starts."""
    with pytest.raises(InputError, match=message):
        check_columns(columns, SinkOptions(stream="ORDERS", **options))


def test_columns_of_the_source_are_taken():
    """What the source gives can be written as it is."""
    kinds = {"subject": "string", "data": "binary", "headers": "map<string,array<string>>", "sequence": "bigint"}
    check_columns({**kinds, "time": "timestamp", "stream": "string"}, SinkOptions(stream="ORDERS"))


# -- rows -------------------------------------------------------------------------------------------------------------


def test_subject_from_column_option_and_template():
    """A row's own subject counts; the option fills what is missing, from columns where it names them."""
    given = rows(data=[b"a", b"b"], subject=["orders.x", None], region=["eu", "us"])
    messages, dead = shape(subject="orders.{region}").messages(given)
    assert messages.subjects.to_pylist() == ["orders.x", "orders.us"]
    assert dead is None
    plain, _ = shape(subject="orders.all").messages(rows(data=[b"a"]))
    assert plain.subjects.to_pylist() == ["orders.all"]
    numbers, _ = shape(subject="orders.{n}.{m}").messages(rows(data=["text"], n=[1], m=[True]))
    assert numbers.subjects.to_pylist() == ["orders.1.true"]
    assert numbers.data.to_pylist() == [b"text"]


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"data": [b"a", None], "subject": ["orders.a"] * 2}, "data is null"),
        ({"data": [b"a", b"b"], "subject": ["orders.a", None]}, "subject is null"),
        ({"data": [b"a", b"b"], "subject": ["orders.a", "other.b"]}, "ORDERS takes orders.>"),
        ({"data": [b"a", b"b"], "subject": ["orders.a", "orders b"]}, "not a subject to publish to"),
        ({"data": [b"a", b"b"], "subject": ["orders.a", "orders.*"]}, "not a subject to publish to"),
        ({"data": [b"a", b"b" * 2000], "subject": ["orders.a"] * 2}, "2000 bytes"),
        ({"data": [b"a", b"b"], "subject": ["orders.a"] * 2, "headers": [{}, {"a": ["x\r\ny"]}]}, "line break"),
        (
            {"data": [b"a", b"b"], "subject": ["orders.a"] * 2, "headers": [{}, {"a b": ["x"]}]},
            "not a name of a header",
        ),
    ],
)
def test_bad_rows_are_named(columns, column):
    """A row that cannot be written is named with what is wrong, and with a subject for dead letters it goes there."""
    kinds = {"headers": pa.map_(pa.string(), pa.list_(pa.string()))}
    given = rows(
        **{
            name: pa.array([list(item.items()) for item in values], kinds[name]) if name in kinds else values
            for name, values in columns.items()
        }
    )
    first = rows(data=[b"ok"] * 3, subject=["orders.a"] * 3)
    strict = shape()
    strict.messages(first)
    with pytest.raises(RowError, match="Row 4 of this task") as caught:
        strict.messages(given)
    assert column in caught.value.what
    assert caught.value.row == 4
    lenient = shape(dead_letter_subject="dead")
    messages, dead = lenient.messages(given)
    assert messages.data.to_pylist() == [b"a"]
    assert dead is not None
    assert dead.subjects.to_pylist() == ["dead"]
    assert column.split()[-1] in dict(dead.headers.to_pylist()[0])["Penstock-Error"][0]


SUBJECTS = some.sampled_from(
    [
        "orders.a",
        "orders.a",
        "orders.é",
        "orders.*",
        "orders.a>",
        "orders",
        "dead",
        "dead.x",
        "",
        "$PENSTOCK.ORDERS.x",
        "x",
    ]
)


@given(some.lists(SUBJECTS, min_size=1, max_size=12), some.booleans())
def test_each_bad_subject_is_found_among_good_ones(named: list[str], wide: bool):
    """A batch that is checked as a whole refuses the rows that are refused if each subject is judged by itself."""
    target = SinkStream("ORDERS", (">",) if wide else TARGET.subjects, 2000)
    options = SinkOptions(stream="ORDERS", dead_letter_subject="dead")
    batch = rows(subject=named, data=[str(row).encode() for row in range(len(named))])
    messages, dead = Shape(options, target).messages(batch)
    judged = Shape(options, target)
    good = [row for row, subject in enumerate(named) if not judged._judge(subject)]
    assert messages.data.to_pylist() == [str(row).encode() for row in good]
    assert (0 if dead is None else len(dead)) == len(named) - len(good)
    wanted = [
        item
        for item in named
        if item in ("orders.a", "orders.é", "dead") or (wide and item in ("orders", "dead.x", "x"))
    ]
    assert messages.subjects.to_pylist() == wanted


def test_headers_ids_and_ttl():
    """Headers are sorted, those of a server left out; ids and times to live come from their columns."""
    headers = pa.array([[("b", ["2", "3"]), ("Nats-Msg-Id", ["old"]), ("a", ["1"])], None], _map())
    given = rows(data=[b"x", b"y"], subject=["orders.a"] * 2, headers=headers, key=[7, None], life=["2m", None])
    messages, _ = shape(id_column="key", ttl_column="life", ttl="1h0m0s").messages(given)
    assert messages.headers.to_pylist() == [
        [("a", ["1"]), ("b", ["2", "3"]), ("Nats-Msg-Id", ["7"]), ("Nats-TTL", ["2m0s"])],
        [("Nats-TTL", ["1h0m0s"])],
    ]


def _map() -> pa.DataType:
    return pa.map_(pa.string(), pa.list_(pa.string()))


def test_spooled_rows_are_the_same_rows():
    """Rows that went through a record batch have the digests that they had before."""
    messages, _ = shape().messages(rows(data=[b"x", b"y"], subject=["orders.a", "orders.b"]))
    again = type(messages).of_batch(messages.to_batch())
    assert again.digests() == messages.digests()


# -- digests ----------------------------------------------------------------------------------------------------------


def test_every_part_of_a_row_counts():
    """Rows that differ in subject, header or payload have different digests; equal rows have equal ones."""
    given = rows(
        data=[b"x", b"x", b"y", b"x", b"x"],
        subject=["orders.a", "orders.b", "orders.a", "orders.a", "orders.a"],
        headers=pa.array([[], [], [], [("h", ["1"])], []], _map()),
    )
    messages, _ = shape().messages(given)
    digests = from_bytes(messages.digests()).tolist()
    assert len(set(digests)) == 4
    assert digests[0] == digests[4]
    bare, _ = shape().messages(rows(data=[b"x"], subject=["orders.a"]))
    assert from_bytes(bare.digests()).tolist() == [digests[0]]


def test_large_payloads_have_the_same_digest_as_ever():
    """The way around a copy of a large payload gives the digest that the straight way gives."""
    from hashlib import blake2b

    messages, _ = Shape(SinkOptions(stream="S"), SinkStream("S", ("s",), 10**6)).messages(
        rows(data=[b"z" * 70_000], subject=["s"])
    )
    assert messages.digests() == blake2b(b"s\r\n\r\n" + b"z" * 70_000, digest_size=16).digest()


@given(some.lists(some.integers(0, 9)), some.lists(some.lists(some.integers(0, 9)), max_size=4))
def test_a_bag_gives_out_what_it_holds(held, asked):
    """A bag gives each digest as often as it holds it, first come first served."""

    def digest(number: int) -> bytes:
        return bytes([number]) + random.Random(number).randbytes(14) + b"\0"

    bag = Bag([digest(number) for number in held])
    left = Counter(held)
    for wanted in asked:
        mask = bag.take(from_bytes(b"".join(digest(number) for number in wanted)))
        for number, found in zip(wanted, mask.tolist(), strict=True):
            assert found == (left[number] > 0)
            left[number] -= found
    assert bag.size == sum(left.values())
