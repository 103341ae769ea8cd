"""Answers of JetStream: read as they should be, and survived as they should not be; questions, names and statuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import (
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import (
    PubAck,
    Status,
    StatusKind,
    absent,
    api_error,
    held_subjects,
    number,
    parts,
    read_ack,
    read_answer,
    read_json,
    read_status,
    text,
)
from penstock.wire.jetstream.questions import AGAIN, Question
from penstock.wire.jetstream.verdicts import Verdict

# -- JSON ------------------------------------------------------------------------------------------------------------

NOT_OBJECTS = {
    "nothing": b"",
    "garbage": b"{",
    "half": b'{"seq":',
    "trailing": b'{"seq":1}x',
    "a list": b"[]",
    "a number": b"5",
    "text": b'"ok"',
    "null": b"null",
    "no UTF-8": b'{"a":"\xff"}',
    "UTF-16": '{"seq":1}'.encode("utf-16"),
    "5,000 digits": b'{"seq":' + b"9" * 5000 + b"}",
    "100,000 brackets": b'{"a":' + b"[" * 100_000,
    "100,000 braces": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("payload", NOT_OBJECTS.values(), ids=NOT_OBJECTS)
def test_what_is_no_object(payload: bytes):
    """Bytes that hold no JSON object are the peer's fault, whoever reads them."""
    for read in (read_json, read_answer, read_ack):
        with pytest.raises(RemoteProtocolError):
            read(payload)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind: type):
    """An answer may be lent as a view of a buffer."""
    assert read_json(kind(b'{"a": "\xc3\xbc"}')) == {"a": "ü"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["error", "code", "err_code", "description", "stream", "seq", "duplicate", "count", "batch", "domain", "val"]
)
HOSTILE = st.dictionaries(FIELDS, JSON | st.dictionaries(FIELDS, JSON))


@given(HOSTILE)
def test_hostile_answers(answer: dict[str, Any]):
    """Whatever the fields hold, an answer is read or becomes an error of ours that can be printed."""
    payload = json.dumps(answer).encode()
    for read in (read_answer, read_ack):
        try:
            found = read(payload)
        except PenstockError as error:
            str(error).encode()  # as a log or a terminal does
        else:
            assert isinstance(found, dict | PubAck)
            assert answer.get("error") is None, "an answer with an error was taken for a good one"


@given(st.binary())
def test_any_bytes(payload: bytes):
    """Bytes of any kind are read or refused, and nothing else happens."""
    for read in (read_json, read_answer, read_ack):
        try:
            read(payload)
        except PenstockError:
            continue


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_answer():
    """An error answer is raised with its facts; 404 is an error of its own."""
    payload = b'{"type":"x","error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"}}'
    with pytest.raises(JetStreamError, match=r"The server refused: wrong last sequence: 3 \(10071\)") as caught:
        read_answer(payload)
    facts = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"}
    assert caught.value.facts == {**facts, "subject": None, "expected": None, "actual": 3}
    missing = api_error({"code": 404, "err_code": 10059, "description": "stream not found"})
    assert type(missing) is NotFoundError


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        ({}, (None, None, "no description")),
        ("it broke", (None, None, "it broke")),
        (5, (None, None, "no description")),
        ([], (None, None, "no description")),
        (True, (None, None, "no description")),
        ({"code": "404", "err_code": "10059"}, (None, None, "no description")),
        ({"code": True, "err_code": -1}, (None, None, "no description")),
        ({"code": 503.0, "err_code": 10**30}, (None, None, "no description")),
        ({"description": {"a": 1}, "code": 500}, (500, None, "no description")),
        ({"description": "lone \ud800"}, (None, None, "lone ?")),
    ],
)
def test_strange_errors(error: object, facts: tuple[int | None, int | None, str]):
    """An error of any shape is an error, with those facts that are what they should be."""
    found = api_error(error)
    assert (found.code, found.err_code, found.description) == facts
    with pytest.raises(JetStreamError):
        read_answer(json.dumps({"error": error}).encode())


def test_a_long_description_is_cut():
    """A description of a megabyte does not become an error of a megabyte."""
    assert len(str(api_error({"description": "x" * 1_000_000}))) < 1000


def test_null_is_no_error():
    """An `error` that is null says that there is none."""
    assert read_answer(b'{"error": null, "seq": 1}')["seq"] == 1


# -- fields ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, "5", 5.0, -1, 2**64, 10**4000, [], {}, float("nan"), float("inf")])
def test_what_is_no_number(value: object):
    """A number is whole, not negative, of 64 bits; a bool or text is none. The error names the field."""
    with pytest.raises(RemoteProtocolError, match="'seq'"):
        number({"seq": value}, "seq")
    with pytest.raises(RemoteProtocolError, match="'seq'"):
        number({"seq": value}, "seq", 7)


def test_numbers():
    """Numbers up to 64 bits are given as they are; an absent one needs a default."""
    assert [number({"seq": value}, "seq") for value in (0, 1, 2**64 - 1)] == [0, 1, 2**64 - 1]
    assert number({}, "seq", 7) == 7
    assert number({"seq": None}, "seq", 7) == 7
    with pytest.raises(RemoteProtocolError, match="'seq'"):
        number({}, "seq")


@pytest.mark.parametrize("value", [5, True, b"x", [], {}, "\ud800", "a\udfffb"])
def test_what_is_no_text(value: object):
    """Text is text that can be sent on; half a character is none. The error names the field."""
    with pytest.raises(RemoteProtocolError, match="'name'"):
        text({"name": value}, "name")


def test_texts():
    """Text is given as it is; an absent one needs a default."""
    assert text({"name": "ü"}, "name") == "ü"
    assert text({}, "name", "-") == "-"
    with pytest.raises(RemoteProtocolError, match="'name'"):
        text({}, "name")


@pytest.mark.parametrize("value", [5, "x", {"a": 1}, [5], [[]], [{}, None]])
def test_what_is_no_list_of_objects(value: object):
    """A list of objects is that, or an error that names the field; an absent one is empty."""
    assert parts({"streams": [{}, {"a": 1}]}, "streams") == [{}, {"a": 1}]
    assert parts({"streams": None}, "streams") == parts({}, "streams") == []
    with pytest.raises(RemoteProtocolError, match="'streams'"):
        parts({"streams": value}, "streams")


@pytest.mark.parametrize(
    "state", [None, [], {"subjects": []}, {"subjects": "x"}, {"subjects": {"a": None}}, {"subjects": {"a": -1}}]
)
def test_what_does_not_count_subjects(state: object):
    """A description whose subjects are not an object of counts is an error of the server, not of ours."""
    with pytest.raises(RemoteProtocolError):
        held_subjects({"state": state})


def test_the_subjects_that_a_stream_holds():
    """A stream that holds none says null, or nothing."""
    assert held_subjects({"state": {"subjects": {"a": 1, "b": 0}}}) == {"a": 1, "b": 0}
    assert held_subjects({"state": {"subjects": None}}) == held_subjects({"state": {}}) == {}


def test_who_is_absent_from_a_list():
    """Those that nobody answers for are missing, or offline with the reason why; each is named once."""
    assert absent({}) == absent({"missing": None, "offline": None}) == []
    assert absent({"missing": ["b", "a"], "offline": {"a": "unsupported", "c": "unsupported"}}) == ["a", "b", "c"]
    for name, value in (("missing", {"a": 1}), ("missing", [5]), ("offline", ["a"]), ("offline", 5)):
        with pytest.raises(RemoteProtocolError, match=name):
            absent({name: value})


# -- acks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (b'{"stream":"S","seq":7}', PubAck("S", 7)),
        (b'{"stream":"S","seq":7,"duplicate":true}', PubAck("S", 7, duplicate=True)),
        (b'{"stream":"S","seq":7,"duplicate":"yes"}', PubAck("S", 7)),
        (b'{"stream":"S","seq":7,"domain":"hub"}', PubAck("S", 7, domain="hub")),
        (b'{"stream":"S","seq":7,"batch":"b","count":3}', PubAck("S", 7, count=3, batch="b")),
        (b'{"stream":"S","seq":7,"val":"12"}', PubAck("S", 7, value="12")),
    ],
)
def test_acks(payload: bytes, stored: PubAck):
    """An ack says where the message, or the last of the batch, stands."""
    assert read_ack(payload) == stored


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"stream":"S"}',
        b'{"seq":7}',
        b'{"stream":5,"seq":7}',
        b'{"stream":"S","seq":"7"}',
        b'{"stream":"S","seq":true}',
        b'{"stream":"S","seq":-7}',
        b'{"stream":"S","seq":7,"count":"3"}',
        b'{"stream":"S","seq":7,"batch":3}',
    ],
)
def test_what_is_no_ack(payload: bytes):
    """An ack that lacks its stream or sequence, or has text for a number, is no ack."""
    with pytest.raises(RemoteProtocolError):
        read_ack(payload)


def test_a_status_instead_of_an_ack():
    """Nobody there is NoRespondersError; any other bare status is a refusal; a status with an answer is the answer."""
    with pytest.raises(NoRespondersError):
        read_ack(b"", 503)
    with pytest.raises(JetStreamError) as bare:
        read_ack(b"", 429)
    assert bare.value.code == 429
    with pytest.raises(JetStreamError) as full:
        read_ack(b'{"error":{"code":429,"err_code":10167,"description":"too many requests"},"seq":0}', 429)
    assert full.value.err_code == 10167
    with pytest.raises(JetStreamError) as away:
        read_ack(b'{"error":{"code":503,"err_code":10008,"description":"no leader"}}', 503)
    assert away.value.err_code == 10008


# -- statuses --------------------------------------------------------------------------------------------------------

STATUSES = [
    (100, "Idle Heartbeat", "heartbeat", Verdict.STORED),
    (100, "FlowControl Request", "heartbeat", Verdict.STORED),
    (204, "EOB", "end", Verdict.STORED),
    (204, "", "end", Verdict.STORED),
    (400, "Bad Request - Priority Group missing", "refused", Verdict.REFUSED),
    (404, "No Messages", "none", Verdict.PASSING),
    (404, "No Results", "none", Verdict.PASSING),
    (404, "Message Not Found", "none", Verdict.PASSING),
    (408, "Request Timeout", "expired", Verdict.PASSING),
    (408, "Requests Pending", "expired", Verdict.PASSING),
    (408, "Interest Expired", "expired", Verdict.PASSING),
    (408, "Empty Request", "refused", Verdict.REFUSED),
    (408, "Malformed Request", "refused", Verdict.REFUSED),
    (408, "Bad Request", "refused", Verdict.REFUSED),
    (408, "No Interest", "refused", Verdict.REFUSED),
    (408, "No Flow Response", "refused", Verdict.REFUSED),
    (409, "Batch Completed", "completed", Verdict.STORED),
    (409, "Message Size Exceeds MaxBytes", "too large", Verdict.REFUSED),
    (409, "Consumer Deleted", "deleted", Verdict.REFUSED),
    (409, "Leadership Change", "later", Verdict.PASSING),
    (409, "Server Shutdown", "later", Verdict.PASSING),
    (409, "Exceeded MaxWaiting", "later", Verdict.PASSING),
    (409, "Consumer is push based", "refused", Verdict.REFUSED),
    (409, "Exceeded MaxRequestBatch of 10", "refused", Verdict.REFUSED),
    (409, "Exceeded MaxRequestExpires of 1s", "refused", Verdict.REFUSED),
    (409, "Exceeded MaxRequestMaxBytes of 100", "refused", Verdict.REFUSED),
    (409, "Something New", "refused", Verdict.REFUSED),
    (412, "Required Api Level", "refused", Verdict.REFUSED),
    (413, "Too Many Results", "refused", Verdict.REFUSED),
    (423, "Nats-Wrong-Pin-Id", "pinned", Verdict.PASSING),
    (423, "Nats-Pin-Id mismatch", "pinned", Verdict.PASSING),
    (429, "Too Many Requests", "later", Verdict.PASSING),
    (500, "store is closed", "refused", Verdict.REFUSED),
    (503, "", "nobody", Verdict.PASSING),
    (599, "Something New", "refused", Verdict.REFUSED),
]


@pytest.mark.parametrize(("code", "description", "kind", "verdict"), STATUSES)
def test_statuses(code: int, description: str, kind: str, verdict: Verdict):
    """Every status that the server sends about pulls and direct gets has a meaning; case does not matter."""
    for form in (description, description.lower(), description.upper(), f" {description} "):
        found = read_status(code, form)
        assert found == Status(StatusKind(kind), code, form)
        assert found.verdict is verdict
        assert found.ends is (code != 100)


def test_every_kind_of_status_is_sent():
    """No kind is there that nothing is read as."""
    assert {StatusKind(kind) for _, _, kind, _ in STATUSES} == set(StatusKind)


# -- questions -------------------------------------------------------------------------------------------------------

ASKING = [
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    names.stream_info("S"),
    names.message_get("S"),
    names.consumer_info("S", "c"),
    "CONSUMER.NAMES.S",
    "CONSUMER.LIST.S",
]
CHANGING = [
    names.stream_create("S"),
    names.stream_update("S"),
    names.stream_delete("S"),
    names.stream_purge("S"),
    "STREAM.SNAPSHOT.S",
    "STREAM.RESTORE.S",
    names.message_delete("S"),
    names.consumer_create("S", "c"),
    names.consumer_delete("S", "c"),
    "CONSUMER.PAUSE.S.c",
    "CONSUMER.UNPIN.S.c",
    names.consumer_next("S", "c"),
    names.direct_get("S"),
]


def test_what_may_be_asked_twice():
    """Methods that only ask may be repeated; those that change something only if the caller says so."""
    assert all(Question(method).repeatable for method in ASKING)
    assert not any(Question(method).repeatable for method in CHANGING)
    assert all(Question(method, repeatable=True).repeatable for method in CHANGING)


def test_a_list_is_given_the_time_that_a_cluster_takes_for_it():
    """Nodes that are away cost a list four seconds: asked again before, its answer would never be heard."""
    assert all(Question(method).again > 4 for method in ("STREAM.LIST", "CONSUMER.LIST.S"))
    assert all(Question(method).again == AGAIN for method in ("STREAM.INFO.S", "STREAM.NAMES", "INFO"))


def test_what_is_sent():
    """A question without a body sends nothing; a body is JSON without blanks."""
    assert Question("STREAM.NAMES").payload == b""
    assert Question("STREAM.NAMES", {"offset": 1, "subject": "a.>"}).payload == b'{"offset":1,"subject":"a.>"}'
    assert Question("STREAM.NAMES", {}).payload == b"{}"


# -- names -----------------------------------------------------------------------------------------------------------


def test_consumer_create():
    """The name and the one filter of a consumer are part of the method; a filter needs a name before it."""
    assert names.consumer_create("S") == "CONSUMER.CREATE.S"
    assert names.consumer_create("S", "c") == "CONSUMER.CREATE.S.c"
    assert names.consumer_create("S", "c", "a.>") == "CONSUMER.CREATE.S.c.a.>"
    assert names.consumer_create("S", "", "a.>") == "CONSUMER.CREATE.S"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", ">", "a/b", "a\\b", "a\tb", "a\x00", "a\r\nPUB x 0\r\n"])
def test_names_that_are_none(name: str):
    """What would break out of a subject is refused before it gets into one."""
    with pytest.raises(InputError):
        names.check_name(name)


def test_every_header_of_the_source_has_a_name():
    """Each header that the source writes or reads stands in `names` under one name."""
    known = {value for value in vars(names).values() if isinstance(value, str)}
    for path in Path(penstock.__file__).parent.rglob("*.py"):
        if path.name == "answers.py":  # its table holds descriptions, and two of them look like headers
            continue
        for found in re.findall(r"[\"'({ ]b?(Nats-[A-Z][A-Za-z-]*\w)", path.read_text()):
            assert found in known or f"{found}-" in known, f"{path.name}: {found}"
