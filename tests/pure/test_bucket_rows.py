"""Rows for key-value and object buckets, without I/O: what is refused before anything is sent, and what is stored."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from penstock.buckets.key_stream import bucket_stream
from penstock.errors import InputError, OptionError, RowError
from penstock.pipelines.replaying import _beside, _check_kinds
from penstock.pipelines.settings import target
from penstock.spark.bucket_rows import KeyShape, check_key_columns
from penstock.spark.digests import disordered, from_bytes, key_hashes, repeated
from penstock.spark.markers import journal_body, read_lane
from penstock.spark.messages import SinkStream
from penstock.spark.object_rows import ObjectShape, check_object_columns, described
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.sink_options import SinkOptions
from penstock.spark.updates import into_bucket

KEYS = {"key": "string", "value": "binary"}
OBJECTS = {"name": "string", "content": "binary"}


def shape(**options):
    return KeyShape(SinkOptions(bucket="B", **options), SinkStream("KV_B", (), 10_000))


def rows(**columns):
    kinds = {"value": pa.binary(), "content": pa.binary(), "revision": pa.int64()}
    return pa.record_batch({name: pa.array(given, kinds.get(name, pa.string())) for name, given in columns.items()})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"bucket": "B", "stream": "ORDERS"}, "stream is given beside bucket"),
        ({"bucket": "B", "objects": "B"}, "objects is given beside bucket"),
        ({"bucket": "no.bucket"}, "not a name of a bucket"),
        ({"bucket": "B", "subject": "x"}, "subject cannot be used here"),
        ({"bucket": "B", "idColumn": "key"}, "idColumn cannot be used here"),
        ({"bucket": "B", "guarantee": "at-least-once"}, "which bucket cannot have"),
        ({"objects": "B", "ttl": "1h"}, "ttl cannot be used here"),
        ({"objects": "B", "format": "json"}, "format cannot be used here"),
        ({"bucket": "B", "jsonColumn": "x"}, "jsonColumn cannot be used here"),
        ({"objects": "B", "revisionColumn": "r"}, "revisionColumn cannot be used here"),
        ({"stream": "ORDERS", "onNullValue": "delete"}, "onNullValue cannot be used here"),
        ({}, "No stream is named"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, what):
    """A bucket excludes what has no meaning for it."""
    with pytest.raises(OptionError, match=what):
        SinkOptions.parse(given)


def test_a_bucket_is_its_stream():
    """What the rest of the sink sees is the stream of the bucket; options may be replaced."""
    assert SinkOptions(bucket="PRICES").stream == "KV_PRICES"
    assert SinkOptions(objects="DOCS").stream == "OBJ_DOCS"


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ({"value": "binary"}, {}, "no column key"),
        ({"key": "string"}, {}, "no column value"),
        ({**KEYS, "key": "int"}, {}, "Column key has the type int"),
        ({**KEYS, "more": "int"}, {}, "Nothing of column more"),
        (KEYS, {"revision_column": "revision"}, "there is no such column"),
        ({**KEYS, "revision": "string"}, {"revision_column": "revision"}, "Column revision has the type string"),
        (KEYS, {"ttl_column": "ttl"}, "there is no such column"),
        ({"price": "double"}, {"format": "json"}, "no column key"),
        ({"key": "string", "revision": "bigint"}, {"format": "json"}, "no column that could become JSON"),
        ({"key": "string", "x": "int"}, {"format": "json", "json_column": "x"}, "no such column is a struct"),
        (
            {"key": "string", "x": "struct<a:int>", "y": "int"},
            {"format": "json", "json_column": "x"},
            "Nothing of column y",
        ),
    ],
)
def test_columns_that_are_no_keys_are_refused(columns, options, what):
    """A DataFrame is refused by its schema."""
    with pytest.raises(InputError, match=what):
        check_key_columns(columns, SinkOptions(bucket="B", **options))


def test_what_reading_a_bucket_gives_can_be_written():
    """The columns of the source are taken as they are."""
    check_key_columns(
        {**KEYS, "revision": "bigint", "time": "timestamp", "operation": "string"}, SinkOptions(bucket="B")
    )
    check_object_columns(
        {**OBJECTS, "size": "bigint", "digest": "string", "time": "timestamp"}, SinkOptions(objects="B")
    )


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ({"key": [None], "value": [b"x"]}, {}, "key is null"),
        ({"key": ["a b"], "value": [b"x"]}, {}, "cannot be a key"),
        ({"key": ["a..b"], "value": [b"x"]}, {}, "cannot be a key"),
        ({"key": ["x>"], "value": [b"x"]}, {}, "cannot be a key"),
        ({"key": ["k" * 3000], "value": [b"x"]}, {}, "has 3000 characters"),
        ({"key": ["k"], "value": [None]}, {}, "value is null, and there is neither"),
        ({"key": ["k"], "value": [None], "operation": ["PUT"]}, {"on_null_value": "delete"}, "is null in a PUT"),
        ({"key": ["k"], "value": [b""], "operation": ["put"]}, {}, "operation is 'put'"),
        ({"key": ["k"], "value": [b"x" * 10_000]}, {}, "value has 10000 bytes"),
        ({"key": ["k"], "value": [b""], "revision": [-1]}, {"revision_column": "revision"}, "is not a revision"),
        ({"key": ["k"], "value": [b""], "ttl": ["soon"]}, {"ttl_column": "ttl"}, "ttl"),
    ],
)
def test_rows_that_cannot_be_written_are_named(columns, options, what):
    """A row is refused with the column that is wrong."""
    with pytest.raises(RowError, match=what):
        shape(**options).messages(rows(**columns))


def test_operations_become_headers():
    """A delete carries no value; a purge takes the history along; a plain row has no headers."""
    plain, _ = shape().messages(rows(key=["a", "b.c"], value=[b"1", b""]))
    assert (plain.subjects.to_pylist(), plain.data.to_pylist(), plain.headers) == (
        ["$KV.B.a", "$KV.B.b.c"], [b"1", b""], None,
    )  # fmt: skip
    given = rows(key=["a", "b", "c"], value=[b"1", None, b"x"], operation=[None, "DEL", "PURGE"], revision=[None, 4, 0])
    made, _ = shape(revision_column="revision", ttl="1h0m0s").messages(given)
    assert made.data.to_pylist() == [b"1", b"", b""]
    expected, ttl = "Nats-Expected-Last-Subject-Sequence", ("Nats-TTL", ["1h0m0s"])
    assert made.headers.to_pylist() == [
        [ttl],
        [("KV-Operation", ["DEL"]), ttl, (expected, ["4"])],
        [("KV-Operation", ["PURGE"]), ("Nats-Rollup", ["sub"]), ttl, (expected, ["0"])],
    ]
    null, _ = shape(on_null_value="purge").messages(rows(key=["a"], value=[None]))
    assert null.headers.to_pylist() == [[("KV-Operation", ["PURGE"]), ("Nats-Rollup", ["sub"])]]


def test_keys_in_two_parts_are_counted():
    """Hashes of keys tell which are in more than one part."""
    parts = [["a", "b", "c"], ["d", "b"], ["e", "a", "b"]]
    hashes = [np.unique(key_hashes(pa.array(part))).tobytes() for part in parts]
    assert repeated(hashes) == 2
    assert repeated([]) == 0


@pytest.mark.parametrize(
    ("own", "stored", "count"),
    [
        ("a1 a2 b1", "a1 b1", 0),
        ("a1 a2 b1", "b1 a1 a2", 0),
        ("a1 a2", "a2", 1),
        ("a1 a2", "a2 a1", 1),
        ("a1 a2 a1", "a1", 0),
        ("a1 a2 a1", "a1 a1", 1),
        ("a1 a1", "a1", 0),
        ("a2 b2 a3 b3", "b3 a2 b2 a3", 1),
        ("a1", "", 0),
    ],
)
def test_the_order_of_a_key_is_told_from_what_is_stored(own, stored, count):
    """What is stored of a key must be its first rows, in their order; equal rows are counted."""

    def digests(text):
        return from_bytes(b"".join(word.encode().ljust(16, b"-") for word in text.split()))

    keys = key_hashes(pa.array([word[0] for word in own.split()]))
    assert disordered(keys, digests(own), digests(stored)) == count


# -- objects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"content": "binary"}, "no column name"),
        ({"name": "string"}, "no column content"),
        ({**OBJECTS, "metadata": "string"}, "Column metadata has the type string"),
        ({**OBJECTS, "more": "int"}, "Nothing of column more"),
    ],
)
def test_columns_that_are_no_objects_are_refused(columns, what):
    """A DataFrame is refused by its schema."""
    with pytest.raises(InputError, match=what):
        check_object_columns(columns, SinkOptions(objects="B"))


def test_objects_are_checked_and_told():
    """A row is the object's subject, its content, and all that is said of it."""
    made = ObjectShape(SinkOptions(objects="B"), SinkStream("OBJ_B", (), 16_000))
    for wrong, what in (
        ({"name": [None], "content": [b""]}, "name is null"),
        ({"name": [""], "content": [b""]}, "name is empty"),
        ({"name": ["n" * 3000], "content": [b""]}, "has 3,000 bytes"),
        ({"name": ["n"], "content": [None]}, "content is null"),
        ({"name": ["n"], "content": [b""], "description": ["d" * 9000]}, "have 9000 bytes together"),
    ):
        with pytest.raises(RowError, match=what):
            made.messages(rows(**wrong))
    messages, _ = made.messages(rows(name=["a/ü", "b"], content=[b"x" * 20_000, b""], description=["d", None]))
    facts = messages.headers.to_pylist()
    info = described("B", messages.subjects[0].as_py(), facts[0])
    assert (info.name, info.description, facts[1]) == ("a/ü", "d", [])


def test_a_journal_of_objects_is_written_as_ever():
    """What is kept in the stream is frozen; a journal without objects is as before."""
    digest = b"0123456789abcdef"
    plain = b'{"v":1,"kind":"rows","id":"i","rows":1}\n' + digest
    assert journal_body("i", digest) == journal_body("i", digest, {"old": []}) == plain
    noted = journal_body("i", digest, {"begun": ("n1",), "stored": (), "old": ["n2"]})
    assert noted == b'{"v":1,"kind":"rows","id":"i","rows":1,"begun":["n1"],"old":["n2"]}\n' + digest
    fields, digests = read_lane(noted)
    assert (json.loads(noted.partition(b"\n")[0]), digests) == (fields, digest)


def test_into_bucket_checks_its_options_at_once():
    """What is wrong is told before a query starts."""
    with pytest.raises(OptionError, match="writeId"):
        into_bucket("B", "no name")
    with pytest.raises(OptionError, match="no option 'atomicrow'"):
        into_bucket("B", "w", atomicrow=3)
    assert callable(into_bucket("B", "w", prepare=True))


# -- replays of pipelines ------------------------------------------------------------------------------------


def test_a_replay_writes_a_bucket_into_a_bucket():
    """The stream of a bucket is replaced by that of another one; objects, and streams, are told apart."""
    for old, new in (("KV_A", "B"), ("A", "KV_B"), ("OBJ_A", "OBJ_B")):
        with pytest.raises(InputError, match=r"is not|cannot be compared"):
            _check_kinds(old, new)
    _check_kinds("KV_A", "KV_B")
    made = _beside(bucket_stream("A", history=5), "KV_B")
    assert (made.name, made.subjects, made.max_msgs_per_subject) == ("KV_B", ["$KV.B.>", "$PENSTOCK.KV_B.>"], 5)
    assert target("KV_A", environ={}).bucket == "A"
    with pytest.raises(InputError, match="not the stream of a key-value bucket"):
        _ = target("A", environ={}).bucket
    with pytest.raises(InputError, match="KV_A, which is not one of its own") as refused:
        PipelineReplay(into={"KV_A": "KV_B"}).check_write("KV_A")
    assert 'target("KV_A").bucket' in str(refused.value)


def test_columns_become_values_of_json():
    """With format=json a value is the object of all columns that say nothing of the key; deletes have none."""
    batch = pa.record_batch(
        {
            "key": ["a", "b"],
            "id": pa.array([1, 2]),
            "price": pa.array([1.5, None]),
            "operation": [None, "DEL"],
            "revision": pa.array([7, 8]),
            "_error": pa.nulls(2, pa.string()),
        }
    )
    made, _ = shape(format="json").messages(batch)
    assert made.data.to_pylist() == [b'{"id":1,"price":1.5}', b""]
    given = batch.append_column("value", pa.array([b"x", None], pa.binary()))
    with pytest.raises(RowError, match="value is given, and the payload is made of the others"):
        shape(format="json").messages(given)


def test_a_struct_becomes_a_value_of_json():
    """A column that is named becomes the value; where it is null, onNullValue says what that means."""
    batch = pa.record_batch({"key": ["a", "b"], "x": pa.array([{"key": 1}, None], pa.struct([("key", pa.int64())]))})
    made, _ = shape(format="json", json_column="x", on_null_value="delete").messages(batch)
    assert made.data.to_pylist() == [b'{"key":1}', b""]
    assert made.headers.to_pylist() == [[], [("KV-Operation", ["DEL"])]]
    with pytest.raises(RowError, match="x is null, and there is neither"):
        shape(format="json", json_column="x").messages(batch)
