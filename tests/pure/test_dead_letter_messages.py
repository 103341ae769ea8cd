"""What a dead-letter stream may hold: letters, and what somebody else wrote there."""

from __future__ import annotations

import json

import pytest

from penstock.errors import RemoteProtocolError
from penstock.jetstream.letter import read_letter
from penstock.model import Message

FACTS = {
    **{"Stream": "S", "Consumer": "c", "Sequence": "5", "Subject": "s.a", "Deliveries": "3", "Reason": "no paper"},
    **{"Time": "2026-01-31T12:00:00Z", "Headers": '{"A": ["1", "2"]}'},
}


def message(**facts: str) -> Message:
    headers = {f"Penstock-Dead-{name}": [value] for name, value in (FACTS | facts).items()}
    return Message(subject="PENSTOCK.DEAD.S.c", data=b"x", headers=headers, sequence=1)


def test_a_letter_says_what_it_was():
    """Its headers tell the place that it had, and the headers that it was published with."""
    letter = read_letter(1, message())
    assert (letter.sequence, letter.deliveries, letter.headers) == (5, 3, {"A": ["1", "2"]})
    assert letter.to_json()["subject"] == "s.a"


def test_headers_of_a_letter_may_be_other_than_utf_8():
    """A header of bytes that are not UTF-8 stands in a letter as it is read from any message, and comes back so."""
    headers = {"Name": ["Jos\udce9", "José"]}
    assert read_letter(1, message(Headers=json.dumps(headers))).headers == headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("Sequence", text) for text in ("", "x", "-5", "0", str(2**64), "9" * 5000)],
        *[("Deliveries", text) for text in ("-1", str(2**64))],
        *[
            ("Headers", text)
            for text in ("", "[]", "5", '{"A": 1}', '{"A": ["1", 2]}', '{"A": []}', '{"A": ["\\ud800"]}')
        ],
        ("Time", "yesterday"),
    ],
)
def test_what_somebody_else_wrote_is_not_a_letter(name: str, value: str):
    """Numbers that no stream counts to, and headers that no message has, are refused when they are read."""
    with pytest.raises(RemoteProtocolError, match=r"Message 1 on PENSTOCK\.DEAD\.S\.c is not a dead letter"):
        read_letter(1, message(**{name: value}))
