"""Commands as they are typed into a shell, so that pasting one does what was shown, whatever a name holds. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = ["command", "quoted"]


def command(verb: str, *arguments: str, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the words of a `penstock` command; a name that begins with a dash is never taken for a flag."""
    if any(argument.startswith("-") for argument in arguments):
        return ("penstock", *verb.split(), *flags, "--", *arguments)
    return ("penstock", *verb.split(), *arguments, *flags)


def quoted(words: Sequence[str]) -> str:
    """Write words for a shell: quoted if they need it, and with escapes (`$'...'`) if a terminal would obey them."""
    return " ".join(map(_word, words))


def _word(text: str) -> str:
    # `isprintable` knows controls, what turns the direction of text, and halves of characters.
    if all(letter.isprintable() for letter in text):
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    # Byte by byte: the shell writes what it was, also if it does not know the letter.
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
