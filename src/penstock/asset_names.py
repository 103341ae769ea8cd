"""What can be the name of a stream or a consumer. Pure, and quick to load."""

from __future__ import annotations

import re

from penstock.errors import InputError

__all__ = ["LONGEST", "NAME", "checked"]

LONGEST = 255  # bytes of a name, as JetStream has it

# A name is a token of API subjects and a folder in the store; halves of characters cannot be sent.
NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")


def checked(name: str, what: str = "stream or consumer") -> str:
    """Give a name back that can be part of an API subject; refuse any other."""
    if not NAME.fullmatch(name):
        remedy = "A name has no dots, spaces, wildcards or slashes, and is not empty."
        raise InputError(f"{_shown(name)} cannot be the name of a {what}.", remedy=remedy)
    # Asking about a much longer one would make the server hang up on everybody who shares the connection.
    if len(name.encode()) > LONGEST:
        remedy = f"A name has at most {LONGEST} bytes; this one has {len(name.encode()):,}."
        raise InputError(f"{_shown(name)} cannot be the name of a {what}: it is too long.", remedy=remedy)
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:79] + "…")
