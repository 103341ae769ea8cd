"""`Counters`: the counters of a stream, whole numbers of any size, one a subject.

A message of such a stream says what it adds (`Nats-Incr`) and has no payload. The server stores the sum as its payload,
`{"val": "15"}`, and says it in the ack. A stream that copies counters of others adds them up, and notes what it has
from whom (`Nats-Counter-Sources`, `{"stream": {"subject": "10"}}`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
    RemoteProtocolError,
)
from penstock.jetstream import assets
from penstock.json_text import load_json
from penstock.wire.jetstream import names
from penstock.wire.subjects import subject_fault

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.wire.jetstream.answers import PubAck

__all__ = ["Counter", "Counters", "whole_number"]

_DIGITS = 4300  # that Python reads and writes at once


@dataclass(frozen=True)
class Counter:
    """What a counter stands at, and how that came about."""

    subject: str
    value: int
    increment: int | None
    """What the last message added."""
    sequence: int
    """The sequence of the last message."""
    time: datetime | None
    sources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What is counted elsewhere, by stream and subject, in a stream that copies."""

    def to_json(self) -> dict[str, Any]:
        """Give it for programs; numbers are text, because they may be longer than others can read."""
        return {
            "subject": self.subject,
            "value": str(self.value),
            "increment": None if self.increment is None else str(self.increment),
            "sources": {
                stream: {subject: str(value) for subject, value in held.items()}
                for stream, held in self.sources.items()
            },
        }


class Counters:
    """The counters of one stream, which must have been made with `allow_msg_counter`."""

    def __init__(self, client: Connection, stream: str) -> None:
        self._client, self.stream = client, assets.checked(stream, "stream")

    async def check(self) -> None:
        """Raise if the stream is not there, or counts nothing."""
        if not (await assets.stream_info(self._client, self.stream)).config.allow_msg_counter:
            raise self._not_counting()

    async def add(self, subject: str, amount: int = 1, *, id: str | None = None) -> int:
        """Add to a counter, which begins at 0, and give what it stands at; a negative amount takes away."""
        return int((await self.publish(subject, amount, id=id)).value or 0)

    async def publish(self, subject: str, amount: int = 1, *, id: str | None = None) -> PubAck:
        """Add to a counter and give the ack, whose `value` is what it stands at.

        What is added with an `id` is counted once, however often it is sent within the duplicate window of the stream;
        the ack then says `duplicate`. An id that stands for another amount or counter is refused, unless limits have
        taken the message that has it. Without an id, DeadlineError says that nobody knows whether it was counted.
        """
        headers = {names.INCREMENT: _written(amount)} | ({} if id is None else {names.MSG_ID: id})
        try:
            # No condition on the stream: the server takes none for a counter.
            ack = await self._client.jetstream().publish(subject, headers=headers)
        except NoRespondersError:
            raise
        except (DeadlineError, DisconnectedError) as error:
            raise DeadlineError(
                f"Nobody knows whether {subject} counted {amount}: {error.what}",
                remedy="Look at the counter before you add it again" + (", or use the same id." if id else "."),
                subject=subject,
            ) from error
        except JetStreamError as error:
            raise self._not_counting(error) if error.err_code == names.NOT_A_COUNTER else error from None
        if ack.stream != self.stream:
            raise JetStreamError(f"Stream {ack.stream} counted {subject}, and stream {self.stream} was meant.")
        if ack.duplicate:
            await self._check_same(ack.sequence, subject, amount, id)
            ack.value = str((await self.get(subject)).value)
        elif ack.value is None or whole_number(ack.value) is None:
            raise RemoteProtocolError(f"The ack of {subject} does not say what the counter stands at.")
        return ack

    async def _check_same(self, sequence: int, subject: str, amount: int, id: str | None) -> None:
        """Refuse an id that was used for something else: what is asked for now is not counted."""
        try:
            message = await assets.get_message(self._client, self.stream, sequence)
        except NotFoundError:  # limits took it, as they do if a counter keeps its last message only
            return
        counted = whole_number(message.headers.get(names.INCREMENT, [""])[-1])
        if (message.subject, counted) != (subject, amount):
            raise InputError(
                f"{subject} did not count {amount}: the id {id!r} was used before, when {message.subject} counted "
                f"{counted}.",
                remedy="Give each increment an id of its own.",
            )

    async def value(self, subject: str) -> int:
        """Give what a counter stands at."""
        return (await self.get(subject)).value

    async def get(self, subject: str) -> Counter:
        """Give a counter: what it stands at, what was added last, and what it has from other streams."""
        if fault := subject_fault(subject, literal=True):
            raise InputError(f"The subject {subject!r} {fault}.", remedy="Name one counter.")
        try:
            message = await assets.get_message(self._client, self.stream, last_for=subject)
        except NotFoundError as error:
            if error.err_code != names.NO_MESSAGE:
                raise NotFoundError(f"There is no stream {self.stream}.", **error.facts) from None
            remedy = f"`penstock counter list --stream {self.stream}` shows those that are there."
            raise NotFoundError(
                f"Stream {self.stream} has no counter {subject}.", remedy=remedy, **error.facts
            ) from None
        said = {name: values[-1] for name, values in message.headers.items()}
        content = _object(message.data)
        value, sources = whole_number(content.get("val")), _sources(said.get(names.COUNTER_SOURCES, "{}"))
        if value is None or sources is None:
            raise RemoteProtocolError(f"Message {message.sequence} of stream {self.stream} is not a counter.")
        return Counter(
            subject=message.subject,
            value=value,
            increment=whole_number(said.get(names.INCREMENT)),
            sequence=message.sequence or 0,
            time=message.time,
            sources=sources,
        )

    async def subjects(self, pattern: str = ">") -> list[str]:
        """Give the subjects of all counters that match, in order."""
        return list(await assets.stream_subjects_held(self._client, self.stream, pattern))

    def _not_counting(self, error: JetStreamError | None = None) -> JetStreamError:
        return JetStreamError(
            f"Stream {self.stream} counts nothing.",
            remedy="Make one with allow_msg_counter: `penstock stream add --allow-counter`.",
            **({} if error is None else error.facts),
        )


def _written(amount: int) -> str:
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise InputError(f"{amount!r} cannot be counted.", remedy="Give a whole number.")
    try:
        return str(amount)
    except ValueError:
        raise InputError(f"The number has more than {_DIGITS:,} digits.", remedy="Count less at once.") from None


def whole_number(text: object) -> int | None:
    """Read a whole number as counters write it; None for what is none."""
    digits = text[1:] if isinstance(text, str) and text[:1] in ("-", "+") else text
    if not isinstance(text, str) or not isinstance(digits, str) or len(digits) > _DIGITS:
        return None
    return int(text) if digits.isascii() and digits.isdecimal() else None


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        content = load_json(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _sources(text: str) -> dict[str, dict[str, int]] | None:
    """Read what a counter has from others; None if that is not what it should be."""
    found: dict[str, dict[str, int]] = {}
    for stream, held in _object(text).items():
        values = {subject: whole_number(value) for subject, value in held.items()} if isinstance(held, dict) else {}
        counts = {subject: value for subject, value in values.items() if value is not None}
        if not counts or len(counts) < len(values):
            return None
        found[stream] = counts
    return found
