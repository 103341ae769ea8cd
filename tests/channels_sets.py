"""Both forms of the channels' inner modules, compiled and plain, and short ways to new messages and encoded ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock import channels
from penstock.channels import arrivals, encoded, publishes
from penstock.channels.encoded import Encoded, channel_field
from penstock.channels.messages import more_lines
from penstock.channels.publishes import NewMessages

PLAIN = SimpleNamespace(**channels.load_plain(), form="plain")
COMPILED = SimpleNamespace(encoded=encoded, publishes=publishes, arrivals=arrivals, form="compiled")
FORMS = [
    pytest.param(PLAIN, id="plain"),
    pytest.param(COMPILED, id="compiled" if channels.compiled else "as installed"),
]


def new_messages(*contents: bytes, first_origin: int | None = None) -> NewMessages:
    """Make messages to append; with `first_origin` as if they were copied, from that sequence on."""
    made = NewMessages()
    for place, content in enumerate(contents):
        origin = None if first_origin is None else first_origin + place
        made.add(content, lines=more_lines(origin=origin))
    return made


def encoded_of(sequence: int, *contents: bytes, channel: str = "foo", time: int = 1) -> Encoded:
    """Encode messages that follow each other."""
    made = Encoded(channel_field(channel.encode()))
    for place, content in enumerate(contents):
        made.add(sequence + place, content, 0, len(content), time, b"")
    return made


def deliveries(pieces: list[Any]) -> list[tuple[int, bytes]]:
    """Give the sequences and bytes of encoded messages."""
    found = []
    for piece in pieces:
        for place in range(piece.count):
            sequence = piece.sequence(place)
            found.append((sequence, piece.get(sequence)))
    return found
