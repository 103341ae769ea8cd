"""Which messages are looked for, as the address of a page says it: subject, header, text, where to begin. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from penstock.console.masking import Mask
from penstock.errors import InputError, OptionError
from penstock.spark.markers import is_marker
from penstock.spark.positions import Position, parse_position
from penstock.wire.subjects import subject_fault

__all__ = ["MessageCriteria"]

_LONGEST = 500  # characters of each field
_HEADER = re.compile(r"\s*([!-9;<>-~]+)\s*(?:[:=]\s*(.*?)\s*)?", re.DOTALL)
_NAMES = ("subject", "header", "text", "from", "before", "markers")


@dataclass(frozen=True)
class MessageCriteria:
    """What a message must be to be shown. All letters count, A to Z in either case."""

    subject: str = ""
    """A subject or a pattern; empty for all."""
    header: str = ""
    """The name of a header, and behind a colon a part of one of its values."""
    text: str = ""
    """A part of the payload."""
    start: str = ""
    """Where to begin, upwards: a sequence, a time, a duration ago, or `all`."""
    before: int | None = None
    """Where to begin, downwards: a sequence that is not looked at itself."""
    markers: bool = False
    """Whether markers of the Spark sink are shown, too."""

    @classmethod
    def read(cls, query: Mapping[str, str], before: int | None = None) -> MessageCriteria:
        """Read what an address asks for; InputError for what cannot be."""
        fields = {name: query.get(name, "").strip() for name in _NAMES}
        for name, value in fields.items():
            if len(value) > _LONGEST:
                raise InputError(f"{name} has {len(value):,} characters.", remedy=f"Give {_LONGEST} at most.")
        subject, header, start = fields["subject"], fields["header"], fields["from"]
        if subject and (fault := subject_fault(subject)):
            raise InputError(f"The subject {subject[:80]!r} {fault}.", remedy="Write one such as orders.eu.>.")
        if header and not _HEADER.fullmatch(header):
            raise InputError(f"{header[:80]!r} names no header.", remedy="Write Name, or Name: part of its value.")
        if start:
            _position(start)
            if before is not None:
                raise InputError("from and before are both given.", remedy="Leave one of them out.")
        markers = fields["markers"] == "yes" or is_marker(subject)
        return cls(subject, header, fields["text"], start, before, markers)

    @property
    def position(self) -> Position | None:
        """Where to begin, upwards."""
        return _position(self.start) if self.start else None

    @property
    def is_search(self) -> bool:
        """Whether messages must be looked at to know whether they are meant."""
        return bool(self.header or self.text)

    def matches(self, mask: Mask, headers: Mapping[str, list[str]], data: bytes) -> bool:
        """Tell whether a message has what is looked for; nobody can look for what is not shown."""
        if self.text and self.text.encode("utf-8", "replace").lower() not in mask.data(data).lower():
            return False
        return not self.header or self._has(mask.headers(headers))

    def _has(self, headers: Mapping[str, list[str]]) -> bool:
        found = _HEADER.fullmatch(self.header)
        assert found is not None, "it was checked when it was read"
        name, part = found[1].lower(), (found[2] or "").lower()
        return any(
            item.lower() == name and any(part in value.lower() for value in values) for item, values in headers.items()
        )

    def query(self, **changes: str | int | None) -> str:
        """Write it as an address has it behind its path, with some of it changed."""
        fields = {
            "subject": self.subject,
            "header": self.header,
            "text": self.text,
            "from": self.start,
            "before": self.before,
            "markers": "yes" if self.markers and not is_marker(self.subject) else "",
        }
        fields |= {name.rstrip("_"): value for name, value in changes.items()}
        return "?" + urlencode({name: value for name, value in fields.items() if value})


def _position(text: str) -> Position:
    try:
        return parse_position(text, option="from")
    except OptionError as error:
        raise InputError(f"from is {text[:80]!r}, which is not a place in a stream.", remedy=error.remedy) from None
