"""What is read of dead letters: the letter itself, the server's word on a lost message, and the note of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.errors import RemoteProtocolError
from penstock.jetstream import assets
from penstock.model import Message, format_time, parse_time
from penstock.wire.jetstream.answers import number as number_of
from penstock.wire.jetstream.answers import read_json, text

__all__ = ["HEAD", "LETTERS", "DeadLetter", "is_dead_letter", "read_exhausted", "read_letter", "read_note"]

LETTERS = "PENSTOCK.DEAD"  # what the subjects of all letters begin with
HEAD = "Penstock-Dead-"  # and the headers that tell of a letter's message


def is_dead_letter(subject: str) -> bool:
    """Tell the subject of dead letters, or a pattern of such, from others."""
    return subject.startswith(f"{LETTERS}.")


@dataclass(frozen=True)
class DeadLetter:
    """A message that nobody could handle."""

    number: int
    """Its sequence in the dead-letter stream."""
    stream: str
    """The stream it comes from."""
    consumer: str
    """The consumer that gave it up."""
    sequence: int
    """Its sequence in that stream."""
    subject: str
    """The subject it was published on."""
    deliveries: int
    """How often it was delivered."""
    reason: str
    """Why the last attempt failed."""
    time: datetime
    """When the stream stored it first."""
    died: datetime | None
    """When it became a dead letter."""
    data: bytes
    """The payload."""
    headers: dict[str, list[str]]
    """The headers it was published with."""

    def to_json(self) -> dict[str, Any]:
        """Give the letter for programs; the payload is base64."""
        facts = ("number", "stream", "consumer", "sequence", "deliveries", "reason")
        times = {"time": format_time(self.time), "died": format_time(self.died) if self.died else None}
        message = Message(subject=self.subject, data=self.data, headers=self.headers)
        return {**{name: getattr(self, name) for name in facts}, **times, **message.to_json()}


def read_letter(number: int, message: Message) -> DeadLetter:
    """Read a message of a dead-letter stream; RemoteProtocolError if it is not a letter."""

    def fact(name: str) -> str:
        return message.headers.get(f"{HEAD}{name}", [""])[0]

    def figure(name: str, least: int) -> int:
        return number_of({name: int(fact(name))}, name, least=least)

    try:
        return DeadLetter(
            number=number,
            stream=fact("Stream"),
            consumer=fact("Consumer"),
            sequence=figure("Sequence", 1),
            subject=fact("Subject"),
            deliveries=figure("Deliveries", 0),
            reason=fact("Reason"),
            time=parse_time(fact("Time")),
            died=message.time,
            data=message.data,
            headers=_headers(fact("Headers")),
        )
    except (ValueError, RemoteProtocolError):
        what = f"Message {number} on {message.subject} is not a dead letter."
        raise RemoteProtocolError(what, remedy="Did somebody else write there?") from None


def _headers(content: str) -> dict[str, list[str]]:
    found = read_json(content.encode())
    for name, values in found.items():
        if not isinstance(values, list) or not values:
            raise ValueError(name)
        for said in (name, *values):
            if not isinstance(said, str):
                raise ValueError(name)
            said.encode("utf-8", "surrogateescape")  # ValueError for what no message has; others may not be UTF-8
    return found


def read_exhausted(data: bytes) -> tuple[str, int, int]:
    """Give the consumer, the sequence and the deliveries of a message that ran out of them."""
    event = read_json(data)
    consumer = assets.checked(text(event, "consumer"), "consumer")
    return consumer, number_of(event, "stream_seq", least=1), number_of(event, "deliveries")


def read_note(data: bytes) -> tuple[str, str, int]:
    """Give the stream, when it was made, and its last sequence, as an attempt to put a letter back noted them."""
    begun = read_json(data)
    return text(begun, "stream"), text(begun, "created"), number_of(begun, "after")
