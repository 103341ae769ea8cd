"""What must not be seen on a page: the secrets of our own connection, and headers that carry somebody's login."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.options import MASK, ConnectionOptions

__all__ = ["Mask"]

# A secret that is shorter than this may be a common word: messages would be full of asterisks.
_LONG = 12
_TELLING = re.compile(r"authorization|cookie|passw|secret|token|api.?key|credential|private.?key", re.IGNORECASE)


class Mask:
    """Takes the secrets of a connection out of whatever is shown."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._long = sorted((item for item in options.secrets if len(item) >= _LONG), key=len, reverse=True)

    def text(self, text: str) -> str:
        """Mask a text of ours, such as an error: also logins in addresses, and whatever looks like a key."""
        return self._options.scrub(text)

    def data(self, data: bytes) -> bytes:
        """Mask a payload: it is shown as it is, but for the secrets of our connection."""
        for secret in self._long:
            data = data.replace(secret.encode(), MASK.encode())
        return data

    @property
    def longest(self) -> int:
        """How many bytes the longest secret has that is looked for; 0 if there is none."""
        return max((len(secret.encode()) for secret in self._long), default=0)

    def headers(self, headers: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Mask the values of headers whose names tell that they are a login."""
        shown: dict[str, list[str]] = {}
        for name, values in headers.items():
            masked = [MASK if _TELLING.search(name) else self.plain(_text(value)) for value in values]
            shown.setdefault(self.plain(_text(name)), []).extend(masked)
        return shown

    def plain(self, value: Any) -> Any:
        """Mask every text in a value that is made of dicts and lists; a dict may have telling names."""
        if isinstance(value, str):
            for secret in self._long:
                value = value.replace(secret, MASK)
            return value
        if isinstance(value, dict):
            return {self.plain(name): self._field(name, item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value

    def _field(self, name: Any, item: Any) -> Any:
        telling = isinstance(item, str) and isinstance(name, str) and _TELLING.search(name)
        return MASK if telling else self.plain(item)


def _text(value: str) -> str:
    """Give text that a page can hold, with a sign for each byte that is not text."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
