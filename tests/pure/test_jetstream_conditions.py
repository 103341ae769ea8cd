"""Conditions that fail: what the server says is read, and what was expected is told."""

from __future__ import annotations

import copy
import pickle

import pytest

from penstock.errors import ConditionError, InputError, JetStreamError
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.conditions import explained

SUBJECT = {"Nats-Expected-Last-Subject-Sequence": "5"}
STREAM = {"Nats-Expected-Last-Sequence": "9"}


@pytest.mark.parametrize(
    ("err_code", "says", "headers", "told", "facts"),
    [
        (10071, "wrong last sequence: 7", SUBJECT, "a.b ends with sequence 7, and 5 was expected", ("a.b", 5, 7)),
        (10071, "wrong last sequence: 0", SUBJECT, "a.b holds no message, and 5 was expected", ("a.b", 5, 0)),
        (10071, "wrong last sequence: 7", STREAM, "The stream ends with sequence 7, and 9 was", (None, 9, 7)),
        (10164, "wrong last sequence", SUBJECT, "a.b is just being written to", ("a.b", 5, None)),
        (
            10164,
            "wrong last sequence",
            {"Nats-Expected-Last-Subject-Sequence": "0"},
            "whether it still holds no message",
            ("a.b", 0, None),
        ),
        (
            10071,
            "wrong last sequence: 7",
            SUBJECT | {"Nats-Expected-Last-Subject-Sequence-Subject": "c.*"},
            "c.* ends with sequence 7",
            ("c.*", 5, 7),
        ),
        (
            10070,
            "wrong last msg ID: order 7",
            {"Nats-Expected-Last-Msg-Id": ["order 6"]},
            "is one with the id 'order 7', and 'order 6' was expected",
            (None, "order 6", "order 7"),
        ),
    ],
)
def test_a_condition_that_failed(err_code: int, says: str, headers: dict[str, str], told: str, facts: tuple[object]):
    """The error says whose end was meant, what was expected and what is there, and keeps the server's codes."""
    error = explained(api_error({"code": 400, "err_code": err_code, "description": says}), "a.b", headers)
    assert isinstance(error, ConditionError)
    assert told in str(error)
    assert "the message was not stored" in str(error)
    assert (error.subject, error.expected, error.actual) == facts
    assert (error.code, error.err_code, error.description) == (400, err_code, says)
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(same), str(same), same.facts) == (ConditionError, str(error), error.facts)
    fewer = isinstance(error.actual, int) and error.actual < error.expected
    assert ("was removed, or never there" in error.remedy) is fewer
    assert explained(error, "other", STREAM) is error, "what is told once is not told otherwise"


def test_what_is_no_condition_stays_as_it_is():
    """Another error, and a condition that nobody set, are given back."""
    for error in (
        InputError("x"),
        api_error({"code": 400, "err_code": 10077, "description": "wrong last sequence: 7"}),
    ):
        assert explained(error, "a.b", SUBJECT) is error
        assert not isinstance(error, ConditionError)
    alone = api_error({"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"})
    assert explained(alone, "a.b", {"K": "v", "Nats-Expected-Last-Sequence": "x"}) is alone
    assert explained(alone, "a.b", SUBJECT | STREAM) is alone, "the server does not say which of them failed"


@pytest.mark.parametrize("says", ["", "wrong last sequence: -1", "wrong last sequence: 7 8", "wrong last msg ID: 7"])
def test_what_a_server_may_say_instead(says: str):
    """A description that is not what it should be leaves what is there unknown."""
    error = api_error({"code": 400, "err_code": 10071, "description": says})
    assert isinstance(error, JetStreamError)
    assert error.facts["actual"] is None
