"""Messages that a stream holds: one, or the last of each of many subjects, from any replica or from the leader.

A direct get is quick, and any replica answers it, or a mirror of the stream: `wire.jetstream.direct` says what that
means. So an answer counts if it is of the stream that was asked, and nothing is gone unless the leader says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connection.asking import api_request, direct_get
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
    RemoteProtocolError,
)
from penstock.model import Message
from penstock.wire import protocol
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import held_subjects, number
from penstock.wire.jetstream.direct import (
    DirectGet,
    Found,
    answers_for,
    published_headers,
    question,
    read_answer,
    read_found,
    read_headers,
    read_message,
)
from penstock.wire.jetstream.questions import AGAIN
from penstock.wire.subjects import is_literal, subject_fault

if TYPE_CHECKING:
    from penstock.connection.connection import Connection

__all__ = ["find_last", "get", "last_of_each", "stored_message", "wanted"]

_MOST = 1000  # subjects, or messages, of one request; the server gives up at 1,024
_MOST_BYTES = 256 * 1024  # of subjects in one request
_PAGE_BYTES = 8 * 1024 * 1024  # of messages that are held at a time, or one message
_TOO_MANY = 413


def wanted(seq: int | None, subject: str | None, next: bool = False) -> dict[str, Any]:
    """Give the question for one message, checked."""
    if seq is not None and (not isinstance(seq, int) or seq < 1):
        raise InputError(f"The sequence is {seq!r}.", remedy="Sequences begin with 1.")
    if subject is not None and (fault := subject_fault(subject)):
        raise InputError(f"The subject {subject!r} {fault}.", remedy="Name a subject or a pattern.")
    if next:
        return question(seq or 1, subject=subject or ">")
    if seq is not None and subject is not None:
        what = f"A message is named by sequence {seq} and by subject {subject}."
        raise InputError(what, remedy="Give one of them, or next=True for the next of the subject from there on.")
    if seq is None and subject is None:
        raise InputError("No message is named.", remedy="Give a sequence or a subject.")
    return question(seq, last=subject)


async def get(
    connection: Connection, stream: str, body: Mapping[str, Any], direct: bool, timeout: float | None
) -> Message:
    """Read one message; NotFoundError if the stream has no such."""
    if direct:
        try:
            answers = await direct_get(connection, stream, body, timeout)
        except (NoRespondersError, DisconnectedError):
            pass  # no direct get is allowed, or the connection broke: the leader is asked, on a new one if need be
        else:
            if not answers:
                raise NotFoundError(
                    f"Stream {stream} has no such message.",
                    remedy="It was never there, or was deleted.",
                    code=404,
                    err_code=names.NO_MESSAGE,
                )
            return _message(stream, read_found(*answers[0]), published_headers(answers[0][1] or b""))
    return stored_message(stream, await api_request(connection, names.message_get(stream), body, timeout=timeout))


async def find_last(connection: Connection, stream: str, subject: str, *, direct: bool) -> Found | None:
    """Give the last message of one subject; None if there is none, as the leader knows.

    With `direct` any replica may give it, in one quick request that has the subject in its method, as other clients ask
    for the values of buckets: permissions can see it. A mirror that answers for the stream is not believed.
    """
    prefix = connection.options.js_prefix
    if direct:
        asked = f"{prefix}.{names.direct_get(stream)}.{subject}"
        try:
            _, _, payload, block = await connection.ask(asked, b"", min(AGAIN, connection.options.request_timeout))
        except (DeadlineError, DisconnectedError):
            pass  # nobody gives messages so, or an answer was lost: the leader
        else:
            found = read_answer(payload, block, stream) if block is not None and block[8:9] == b"\r" else None
            if found is not None:
                return found
    try:
        return read_message(await api_request(connection, names.message_get(stream), question(last=subject)))
    except NotFoundError as error:
        if error.err_code != names.NO_MESSAGE:
            raise
        return None


def stored_message(stream: str, answer: dict[str, Any]) -> Message:
    """Read a message as STREAM.MSG.GET gives it."""
    found = read_message(answer)
    return _message(stream, found, read_headers(found.header))


def _message(stream: str, found: Found, headers: dict[str, list[str]]) -> Message:
    facts: dict[str, Any] = {"sequence": found.sequence, "time": found.time or None, "stream": stream}
    try:
        return Message(subject=found.subject, data=found.payload, headers=headers, **facts)
    except InputError:
        raise RemoteProtocolError(f"Message {found.sequence} of {stream} has the time {found.time[:40]!r}.") from None


# -- the last of each ----------------------------------------------------------------------------------------------


async def last_of_each(
    connection: Connection, stream: str, subjects: Sequence[str], direct: bool, timeout: float | None
) -> AsyncIterator[Message]:
    """Give the last message of each subject that matches one of these."""
    for subject in subjects:
        if fault := subject_fault(subject):
            raise InputError(f"The subject {subject!r} {fault}.", remedy="Name subjects or patterns.")
    asking = _LastOfEach(connection, stream, timeout)
    given: set[int] = set()  # patterns may overlap
    async for message in asking.quickly(subjects) if direct else asking.from_leader(subjects):
        assert message.sequence is not None
        if message.sequence not in given:
            given.add(message.sequence)
            yield message


class _LastOfEach:
    def __init__(self, connection: Connection, stream: str, timeout: float | None) -> None:
        self._connection, self._stream, self._timeout = connection, stream, timeout

    async def quickly(self, subjects: Sequence[str]) -> AsyncIterator[Message]:
        """Ask for many at a time; for what cannot be had so, ask the leader."""
        for some in _in_parts(subjects):
            try:
                found = await self._page(some, 1)
            except (NoRespondersError, DisconnectedError):
                found = None
            except JetStreamError as error:
                if error.code != _TOO_MANY or all(map(is_literal, some)):
                    raise
                async for message in self.quickly(await self._held(some)):
                    yield message
                continue
            if not found:  # nobody gives any, or a mirror does, or there are none, as the leader knows
                async for message in self.from_leader(some):
                    yield message
                continue
            while found:
                for item in found:
                    yield _message(self._stream, item, published_headers(item.header, many=True))
                found = await self._page(some, found[-1].sequence + 1) if found[-1].pending else None

    async def _page(self, subjects: Sequence[str], start: int) -> list[Found] | None:
        """Ask for the last messages of these subjects from a sequence on; None if another stream answers."""
        body = {"multi_last": list(subjects), "seq": start, "batch": _MOST, "max_bytes": _PAGE_BYTES}
        getting = DirectGet(self._stream, body)
        subject = f"{self._connection.options.js_prefix}.{names.direct_get(self._stream)}"

        def make(reply: bytes) -> bytes:
            return protocol.publish(subject, getting.payload, reply.decode())

        await self._connection.exchange(make, getting.hear, (subject,), self._timeout)
        answers = getting.result()
        if any(answers_for(block) != self._stream for _, block in answers):
            return None
        return [read_found(*answer) for answer in answers]

    async def from_leader(self, subjects: Sequence[str]) -> AsyncIterator[Message]:
        """Ask the leader for one after the other."""
        for subject in subjects if all(map(is_literal, subjects)) else await self._held(subjects):
            try:
                yield await get(self._connection, self._stream, question(last=subject), False, self._timeout)
            except NotFoundError as error:
                if error.err_code != names.NO_MESSAGE:
                    raise

    async def _held(self, patterns: Sequence[str]) -> list[str]:
        """Ask the leader which subjects the stream holds that match."""
        found: dict[str, None] = {}
        for pattern in patterns:
            if is_literal(pattern):
                found[pattern] = None
                continue
            offset = 0
            while True:
                body = {"subjects_filter": pattern, "offset": offset}
                info = await api_request(self._connection, names.stream_info(self._stream), body, timeout=self._timeout)
                page = held_subjects(info)
                found.update(dict.fromkeys(page))
                offset += len(page)
                if not page or offset >= number(info, "total", 0):
                    break
        return list(found)


def _in_parts(subjects: Sequence[str]) -> list[list[str]]:
    """Put subjects into parts that one request can name."""
    parts: list[list[str]] = []
    size = 0
    for subject in subjects:
        if not parts or len(parts[-1]) >= _MOST or size + len(subject) > _MOST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(subject)
        size += len(subject)
    return parts
