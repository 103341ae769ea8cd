"""A message on its way into a stream: what the caller says of it, checked, as headers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.wire.jetstream import names
from penstock.wire.protocol import encode_headers
from penstock.wire.subjects import subject_fault

__all__ = ["Outgoing"]

_OURS = (names.MSG_ID, names.EXPECTED_PREFIX, names.TTL, names.BATCH_PREFIX)


@lru_cache(4096)
def _check_subject(subject: str) -> None:
    if fault := subject_fault(subject, literal=True):
        raise InputError(f"The subject {subject!r} {fault}.", remedy="Publish to a plain subject.")


@dataclass(slots=True)
class Outgoing:
    """A message to publish, with what the server shall check before it stores it."""

    subject: str
    """Where it goes; a plain subject that the stream captures."""
    data: bytes = b""
    """The payload."""
    id: str | None = None
    """The `Nats-Msg-Id`: the stream stores it once within its duplicate window. One is made where none is given."""
    headers: Mapping[str, str | Sequence[str]] | None = None
    """Further headers; one that is repeated has several values."""
    ttl: str | float | None = None
    """How long the stream keeps it, a second or more, or "never" for ever; the stream must allow message TTLs."""
    expect_last_sequence: int | None = None
    """Store it only if this is the stream's last sequence."""
    expect_last_subject_sequence: int | None = None
    """Store it only if this is the last sequence of its subject; 0 for none yet."""
    expect_last_id: str | None = None
    """Store it only if the stream's last message has this id."""

    def __post_init__(self) -> None:
        _check_subject(self.subject)
        if type(self.data) is not bytes and not isinstance(self.data, bytes | bytearray | memoryview):
            raise InputError(f"The payload for {self.subject} is {type(self.data).__name__}.", remedy="Give bytes.")
        if self.headers or self.id is not None or self.ttl is not None or self.expects:
            self._check()

    def _check(self) -> None:
        given = self.headers or {}
        for name, values in {**given, names.MSG_ID: self.id or "-"}.items():
            value = values if isinstance(values, str) else "".join(values)
            if not name or any(char in name for char in ": \r\n") or "\r" in value or "\n" in value:
                raise InputError(f"The header {name!r} cannot be sent.", remedy="Names have no colon or space.")
        for name in given:
            if name.startswith(_OURS):
                raise InputError(
                    f"The header {name} is given as a header.", remedy="Use id, ttl and the expect arguments instead."
                )
        if self.id is not None and not self.id.strip():
            raise InputError("The message id is empty.", remedy="Give some text, or leave it out.")
        for field_ in ("expect_last_sequence", "expect_last_subject_sequence"):
            value = getattr(self, field_)
            if value is not None and value < 0:
                raise InputError(f"{field_} is {value}.", remedy="Sequences begin with 1; 0 means none yet.")
        if self.ttl not in (None, "never") and parse_duration(self.ttl, option="ttl") < 1:
            raise InputError(f"ttl is {self.ttl!r}, and the server's shortest is a second.", remedy="Give 1s or more.")

    @property
    def expects(self) -> bool:
        """Whether the caller gave a condition of its own."""
        return not (
            self.expect_last_sequence is None
            and self.expect_last_subject_sequence is None
            and self.expect_last_id is None
        )

    def wire_headers(self, message_id: str) -> dict[str, str | Sequence[str]]:
        """Give the headers that are sent."""
        headers: dict[str, str | Sequence[str]] = {**(self.headers or {}), names.MSG_ID: message_id}
        if self.ttl is not None:
            headers[names.TTL] = "never" if self.ttl == "never" else f"{round(parse_duration(self.ttl) * 1000)}ms"
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
        if plain and not self.headers and self.ttl is None and not self.expects:
            # What nearly every message has: an id, and perhaps a condition that is ours.
            more = "" if expected is None else f"{expected[0]}: {expected[1]}\r\n"
            return f"NATS/1.0\r\n{names.MSG_ID}: {message_id}\r\n{more}\r\n".encode()
        headers = self.wire_headers(message_id)
        return encode_headers(headers if expected is None else headers | {expected[0]: expected[1]})

    @property
    def size(self) -> int:
        """About how many bytes it holds while it waits for its ack."""
        size = len(self.data) + len(self.subject)
        if self.headers:
            size += sum(len(name) + sum(map(len, values)) for name, values in self.headers.items())
        return size
