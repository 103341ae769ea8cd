"""A message on its way into a stream: what the caller says of it, checked, as headers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import InputError, LocalProtocolError
from penstock.jetstream.schedule import Schedule, written_ttl
from penstock.wire.jetstream import names
from penstock.wire.protocol import encode_headers
from penstock.wire.subjects import subject_fault

__all__ = ["Outgoing"]

_OURS = (names.MSG_ID, names.EXPECTED_PREFIX, names.TTL, names.BATCH_PREFIX)


@lru_cache(4096)
def _check_subject(subject: str) -> None:
    if fault := subject_fault(subject, literal=True):
        raise InputError(f"The subject {subject!r} {fault}.", remedy="Publish to a plain subject.")


def _values(name: str, given: object) -> str | list[str]:
    """Give what a header is set to, in a form that can be read more than once: a message may be sent again."""
    if isinstance(given, str):
        return given
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping) else [given]
    values = [value for value in several if isinstance(value, str)]
    if len(values) < len(several):
        raise InputError(f"The header {name!r} is {given!r}.", remedy="Give text, or a list of texts.")
    return values


@dataclass(slots=True)
class Outgoing:
    """A message to publish, with what the server shall check before it stores it."""

    subject: str
    """Where it goes; a plain subject that the stream captures."""
    data: bytes = b""
    """The payload."""
    id: str | None = None
    """The `Nats-Msg-Id`: the stream stores it once within its duplicate window. One is made if none is given."""
    headers: Mapping[str, str | Iterable[str]] | None = None
    """Further headers: a value for each name, or several, which are sent in their order."""
    ttl: str | float | None = None
    """How long the stream keeps it, a second or more, or "never"; the stream must allow message TTLs."""
    expect_last_sequence: int | None = None
    """Store it only if this is the stream's last sequence."""
    expect_last_subject_sequence: int | None = None
    """Store it only if this is the last sequence of its subject; 0 for none yet."""
    expect_last_id: str | None = None
    """Store it only if the stream's last message has this id."""
    schedule: Schedule | None = None
    """When the stream publishes it, and where to; the subject is then the place where it waits, one message each."""

    def __post_init__(self) -> None:
        _check_subject(self.subject)
        if type(self.data) is not bytes and not isinstance(self.data, bytes | bytearray | memoryview):
            raise InputError(f"The payload for {self.subject} is {type(self.data).__name__}.", remedy="Give bytes.")
        if self.headers or self.id is not None or self.ttl is not None or self.expects or self.schedule is not None:
            self._check()

    def _check(self) -> None:
        if self.headers:
            self.headers = {name: _values(name, given) for name, given in self.headers.items()}
        try:
            ours = {names.MSG_ID: self.id or "-", names.EXPECTED_LAST_ID: self.expect_last_id or "-"}
            encode_headers({**(self.headers or {}), **ours})
        except LocalProtocolError as error:
            raise InputError(f"A header cannot be sent: {error.what}", remedy=error.remedy) from None
        for name in self.headers or ():
            if name.startswith(_OURS):
                raise InputError(
                    f"The header {name} is given as a header.", remedy="Use id, ttl and the expect arguments instead."
                )
            if self.schedule is not None and name.startswith(names.SCHEDULE):
                raise InputError(f"The header {name} is given beside a schedule.", remedy="Leave one of them out.")
        if self.id is not None and not self.id.strip():
            raise InputError("The message id is empty.", remedy="Give some text, or leave it out.")
        for field_ in ("expect_last_sequence", "expect_last_subject_sequence"):
            value = getattr(self, field_)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise InputError(f"{field_} is {value!r}.", remedy="Sequences begin with 1; 0 means none yet.")
        if self.ttl is not None:
            written_ttl(self.ttl)
        if self.schedule is not None:
            self.schedule.check_place(self.subject)

    @property
    def expects(self) -> bool:
        """Whether the caller gave a condition of its own."""
        return not (
            self.expect_last_sequence is None
            and self.expect_last_subject_sequence is None
            and self.expect_last_id is None
        )

    def wire_headers(self, message_id: str) -> dict[str, str | Iterable[str]]:
        """Give the headers that are sent."""
        headers: dict[str, str | Iterable[str]] = {**(self.headers or {}), names.MSG_ID: message_id}
        if self.ttl is not None:
            headers[names.TTL] = written_ttl(self.ttl)
        if self.schedule is not None:
            headers |= self.schedule.headers()
        if self.expect_last_sequence is not None:
            headers[names.EXPECTED_LAST_SEQUENCE] = str(self.expect_last_sequence)
        if self.expect_last_subject_sequence is not None:
            headers[names.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(self.expect_last_subject_sequence)
        if self.expect_last_id is not None:
            headers[names.EXPECTED_LAST_ID] = self.expect_last_id
        return headers

    def header_block(self, message_id: str, expected: tuple[str, str] | None = None) -> bytes:
        """Give the headers as they are sent; `expected` is a further condition, as a header."""
        plain = message_id.isascii() and message_id.isprintable()
        if plain and not self.headers and self.ttl is None and not self.expects and self.schedule is None:
            # What nearly every message has: an id, and perhaps a condition that is ours.
            more = "" if expected is None else f"{expected[0]}: {expected[1]}\r\n"
            return f"NATS/1.0\r\n{names.MSG_ID}: {message_id}\r\n{more}\r\n".encode()
        headers = self.wire_headers(message_id)
        return encode_headers(headers if expected is None else headers | {expected[0]: expected[1]})

    @property
    def size(self) -> int:
        """About how many bytes it holds while it waits for its ack."""
        size = len(self.data) + len(self.subject)
        for name, given in (self.headers or {}).items():
            size += sum(len(name) + len(value) for value in ((given,) if isinstance(given, str) else given))
        return size
