"""Requests and JSON as the reference writes them."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import Request
from penstock.bus.request import METHODS, decode_request, encode_element, go_json
from penstock.errors import InputError, RemoteProtocolError

CAPTURED = (
    b'{"Method":1,"QueueID":"airs-bp","WSID":1,"PartitionNumber":0,'
    b'"Header":{"A":["b"]},"Resource":"resp","Body":"e30="}'
)
REQUEST = Request("airs-bp", method="POST", wsid=1, header={"A": ["b"]}, resource="resp", body=b"{}")


def test_captured_request():
    """A request is written as the bytes that were captured from the reference, and read back."""
    assert REQUEST.encode() == CAPTURED
    assert decode_request(CAPTURED) == REQUEST


def test_cut_and_tail():
    """A request cut anywhere, or with something behind it, is refused."""
    for end in range(len(CAPTURED)):
        with pytest.raises(RemoteProtocolError):
            decode_request(CAPTURED[:end])
    with pytest.raises(RemoteProtocolError):
        decode_request(CAPTURED + b"}")


def test_all_fields_in_order():
    """Every field has its place, and maps are sorted as Go sorts them."""
    request = Request(
        "q",
        7,
        "DELETE",
        "r",
        -5,
        header={"b": "2", "a": ["1", "3"]},
        query={"z": "<&>"},
        body=b"\x00",
        attachments={"f": "id"},
    )
    assert request.encode() == (
        b'{"Method":4,"QueueID":"q","WSID":-5,"PartitionNumber":7,"Header":{"a":["1","3"],"b":["2"]},"Resource":"r",'
        b'"Query":{"z":["\\u003c\\u0026\\u003e"]},"Body":"AA==","Attachments":{"f":"id"}}'
    )
    assert decode_request(request.encode()) == request


def test_newer_peers():
    """PartitionID stands for PartitionNumber, nulls for nothing, and fields that we do not know are left alone."""
    data = (
        b'{"Method":0,"QueueID":"q","PartitionID":3,"AppQName":"a/b","Host":"h",'
        b'"Header":null,"Body":null,"Query":{"a":null}}'
    )
    assert decode_request(data) == Request("q", 3, query={"a": []})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"QueueID":5}',
        b'{"QueueID":"q","Method":9}',
        b'{"QueueID":"q","Method":-1}',
        b'{"QueueID":"q","Method":"GET!"}',
        b'{"QueueID":"q","Body":"!"}',
        b'{"QueueID":"q","PartitionNumber":-1}',
        b'{"QueueID":"q","Header":[1]}',
        b'{"QueueID":"q","Header":{"a":[1]}}',
        b'{"QueueID":"q","WSID":9223372036854775808}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_what_is_no_request(data: bytes):
    """What is not a request is refused with our error, whatever is wrong with it."""
    with pytest.raises(RemoteProtocolError, match="not a request of the bus"):
        decode_request(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": ""},
        {"queue": None},
        {"partition": -1},
        {"partition": True},
        {"method": "HEAD"},
        {"wsid": 2**63},
        {"resource": 1},
        {"body": "text"},
        {"header": {"a": [1]}},
        {"query": {1: "a"}},
        {"attachments": {"a": 1}},
    ],
)
def test_bad_requests_are_refused_when_they_are_made(fields):
    """A request that cannot be sent cannot be made."""
    with pytest.raises(InputError):
        Request(**{"queue": "q", **fields})


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
lists = st.dictionaries(words, st.lists(words, min_size=1, max_size=3), max_size=3)


@given(
    st.integers(0, 2**31), st.sampled_from(METHODS), words, st.integers(-(2**63), 2**63 - 1), lists, lists, st.binary()
)
def test_every_request_survives(partition, method, resource, wsid, header, query, body):
    """Whatever request is written is read back."""
    request = Request("q", partition, method, resource, wsid, header, query, body)
    assert decode_request(request.encode()) == request


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"raw<&>", b"raw<&>"),
        (bytearray(b"x"), b"x"),
        ("arr<El1>", b'"arr\\u003cEl1\\u003e"'),
        (1.0, b"1"),
        (1.5, b"1.5"),
        (1e20, b"100000000000000000000"),
        (1e21, b"1e+21"),
        ({"b": 1.0, "a": [True, None, 2.0]}, b'{"a":[true,null,2],"b":1}'),
        ("é\u2028", '"é\\u2028"'.encode()),
        ("a&b", b'"a\\u0026b"'),
        ((), b"[]"),
    ],
)
def test_elements(value, data):
    """Bytes travel as they are, anything else as the JSON that Go would write."""
    assert encode_element(value) == data


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, float("nan"), float("inf"), {"a": object()}, "\ud800", {1: 1, "a": 2}]
)
def test_what_json_cannot_say(value):
    """A value that JSON cannot say is refused before anything is sent."""
    with pytest.raises(InputError, match="JSON"):
        encode_element(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_means_the_same(value):
    """However it is written, the JSON of a value means the value."""
    assert json.loads(go_json(value)) == value


TEXT = st.text(max_size=8)
LISTS = st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=3)


@given(
    queue=st.text(min_size=1, max_size=8),
    partition=st.integers(0, 2**31),
    method=st.sampled_from(METHODS),
    resource=TEXT,
    wsid=st.integers(-(2**63), 2**63 - 1),
    header=LISTS,
    query=LISTS,
    body=st.binary(max_size=20),
    attachments=st.dictionaries(TEXT, TEXT, max_size=3),
)
def test_a_request_is_written_as_the_json_of_its_fields(**fields):
    """The bytes of a request are those of its fields written as JSON, and what is read is what a program would make."""
    request = Request(**fields)
    written = {
        "Method": METHODS.index(request.method),
        "QueueID": request.queue,
        "WSID": request.wsid,
        "PartitionNumber": request.partition,
        "Header": request.header,
        "Resource": request.resource,
        "Query": request.query,
        "Body": base64.b64encode(request.body).decode(),
        "Attachments": request.attachments,
    }
    expected = b",".join(
        go_json({name: value})[1:-1]
        for name, value in written.items()
        if value or name not in ("Header", "Query", "Body", "Attachments")
    )
    data = request.encode()
    assert data == b"{" + expected + b"}"
    assert decode_request(data) == request


@pytest.mark.parametrize(
    "fields",
    [
        '"QueueID":""',
        '"QueueID":7',
        '"QueueID":"q","PartitionNumber":-1',
        '"QueueID":"q","PartitionNumber":true',
        '"QueueID":"q","WSID":9223372036854775808',
        '"QueueID":"q","Resource":7',
        '"QueueID":"q","Query":{"a":[7]}',
        '"QueueID":"q","Method":"PUSH"',
        '"QueueID":"q","Method":7',
        '"QueueID":"q","Attachments":{"a":7}',
    ],
)
def test_fields_of_the_wrong_kind_are_refused(fields):
    """What a program could not put into a request cannot come from the wire either."""
    with pytest.raises((RemoteProtocolError, InputError)):
        decode_request(b"{%s}" % fields.encode())
