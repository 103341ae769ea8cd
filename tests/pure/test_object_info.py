"""Descriptions of objects: the JSON of other clients, byte by byte, and whatever somebody may have written instead."""

from __future__ import annotations

import hashlib
import json
import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buckets.object_info import ObjectInfo, ObjectLink, check_headers, check_metadata
from penstock.buckets.object_wire import (
    check_object,
    chunk_subject,
    description_subject,
    format_digest,
    name_of,
    new_nuid,
    read_digest,
)
from penstock.errors import InputError, RemoteProtocolError

DIGEST = format_digest(hashlib.sha256(b"bytes").digest())
# What nats.go 1.53 stored for an object with everything in it, and for links; the time that it writes means nothing.
GO = (
    b'{"name":"a \\u003cb\\u003e/\xc3\xa4","description":"words","headers":{"A":["1","2"],"B":["3"]},'
    b'"metadata":{"k":"v","l":"w"},"options":{"max_chunk_size":131072},"bucket":"DOCS","nuid":"NGc5rOUPz1Uw0HaPYsrwZb",'
    b'"size":5,"mtime":"0001-01-01T00:00:00Z","chunks":1,"digest":"' + DIGEST.encode() + b'"}'
)
GO_LINK = (
    b'{"name":"link","options":{"link":{"bucket":"OTHER","name":"x"}},"bucket":"DOCS","nuid":"n1","size":0,'
    b'"mtime":"0001-01-01T00:00:00Z","chunks":0}'
)
FULL = ObjectInfo(
    name="a <b>/ä",
    bucket="DOCS",
    nuid="NGc5rOUPz1Uw0HaPYsrwZb",
    size=5,
    chunks=1,
    digest=DIGEST,
    description="words",
    headers={"B": ["3"], "A": ["1", "2"]},
    metadata={"l": "w", "k": "v"},
    chunk_size=131072,
)


def test_what_is_stored_is_what_nats_go_stores():
    """The bytes of a description are those that nats.go writes for the same object."""
    assert FULL.encode() == GO
    assert ObjectInfo.from_json(json.loads(GO)) == FULL
    link = ObjectInfo(name="link", bucket="DOCS", nuid="n1", link=ObjectLink("OTHER", "x"))
    assert link.encode() == GO_LINK
    assert ObjectInfo.from_json(json.loads(GO_LINK)) == link


def test_what_is_not_known_is_kept():
    """Fields of a newer client survive a change by this one, in the options too."""
    content = {**json.loads(GO), "newer": [1], "options": {"max_chunk_size": 7, "newer": {"a": 1}}}
    found = ObjectInfo.from_json(content).changed(description="others")
    written = json.loads(found.encode())
    assert (written["newer"], written["options"]) == ([1], {"max_chunk_size": 7, "newer": {"a": 1}})


def test_the_time_is_that_of_the_message_and_never_stored():
    """JSON for people has the time; what is stored has none, as other clients do it."""
    info = FULL.changed(time=datetime(2026, 1, 31, tzinfo=UTC), sequence=7)
    assert info.to_json()["mtime"] == "2026-01-31T00:00:00Z"
    assert info.encode() == GO
    assert pickle.loads(pickle.dumps(info)) == info
    assert info.sha256 == hashlib.sha256(b"bytes").digest()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"name":7,"bucket":"b"}',
        b'{"name":"a"}',
        b'{"name":"a","bucket":"b","size":-1}',
        b'{"name":"a","bucket":"b","size":1e300}',
        b'{"name":"a","bucket":"b","headers":[]}',
        b'{"name":"a","bucket":"b","headers":{"A":[7]}}',
        b'{"name":"a","bucket":"b","metadata":{"A":7}}',
        b'{"name":"a","bucket":"b","options":7}',
        b'{"name":"a","bucket":"b","options":{"link":[]}}',
        b'{"name":"other","bucket":"b"}',
        b"\xff\xfe",
    ],
)
def test_what_describes_nothing_is_told(content):
    """Whatever somebody stored in the place of a description is one error, which names the object."""
    with pytest.raises(RemoteProtocolError, match="Object 'a' of bucket DOCS"):
        ObjectInfo.from_message("DOCS", "a", content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    )
)
def test_no_json_breaks_the_reader(content):
    """Any JSON is a description or the one error."""
    fields = {"name": "a", "bucket": "b", "headers": content, "options": content, "metadata": content, "size": content}
    for payload in (content, fields):
        try:
            found = ObjectInfo.from_message("b", "a", json.dumps(payload).encode())
        except RemoteProtocolError:
            continue
        assert ObjectInfo.from_json(json.loads(found.encode())).encode() == found.encode()


@given(st.text(min_size=1).filter(lambda name: name.isprintable() or True))
def test_a_name_survives_its_subject(name):
    """Any text is a name, and the subject gives it back."""
    try:
        check_object(name)
    except InputError:
        return
    assert name_of("DOCS", description_subject("DOCS", name)) == name


@pytest.mark.parametrize("name", ["", "x" * 2_701, "\ud800", None, b"x"])
def test_what_cannot_be_a_name(name):
    """A name that no subject can carry is refused before anything is asked."""
    with pytest.raises(InputError):
        description_subject("DOCS", name)


def test_ids_of_chunks_and_digests():
    """Ids are made up anew each time; those and digests of others are checked."""
    made = {new_nuid() for _ in range(100)}
    assert len(made) == 100
    assert all(chunk_subject("DOCS", nuid) == f"$O.DOCS.C.{nuid}" and len(nuid) == 22 for nuid in made)
    for nuid in ("", "a.b", "a b", ">", "*", "ä"):
        with pytest.raises(InputError):
            chunk_subject("DOCS", nuid)
    assert read_digest(DIGEST) == hashlib.sha256(b"bytes").digest()
    assert [read_digest(text) for text in ("", "SHA-256=", "SHA-256=!!", "MD5=aaaa", DIGEST[:-4])] == [None] * 5


def test_headers_and_metadata_of_objects_are_texts():
    """What other clients could not read back is refused."""
    assert check_headers({"A": "1", "B": ["2", "3"]}) == {"A": ["1"], "B": ["2", "3"]}
    assert check_metadata(None) == {}
    for headers in ({"A b": "1"}, {"A": "1\r\nB: 2"}, {"A": [7]}, {"": "x"}):
        with pytest.raises(InputError):
            check_headers(headers)
    with pytest.raises(InputError):
        check_metadata({"a": 7})
