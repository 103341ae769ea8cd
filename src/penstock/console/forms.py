"""Forms of those who act: what they hold, how they come back, and that nobody else can send one.

A form carries a seal: who it was made for, for which act on what, what that was at the moment (when a stream was
made, say), a number of its own and the time, signed with a key that only this console has. A form of another session,
of another act, of an hour ago, or one that was sent before, is refused. So no other site can send one, and a second
click does nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl

from penstock.errors import InputError

__all__ = ["Field", "FormError", "Seals", "read_form"]

_LIFE = 3600.0  # seconds that a form is good for
_MOST = 100_000  # forms that were sent and are remembered
_FIELDS = 1000  # of one form
_AGAIN = "Go back to the page, and begin again there."


class FormError(InputError):
    """A form is not one of ours, or was sent before."""


@dataclass(frozen=True)
class Field:
    """One field of a form."""

    name: str
    label: str
    kind: Literal["line", "text", "choice", "check"] = "line"
    default: str = ""
    choices: tuple[str, ...] = ()
    hint: str = ""
    needed: bool = False
    private: bool = False
    """Whether what is typed stays out of the log, which then says how long it was."""

    def checked(self, text: str) -> str:
        """Give what was typed, or say what is wrong with it."""
        text = text.replace("\r\n", "\n") if self.kind == "text" else text.strip()
        if self.needed and not text:
            raise InputError(f"{self.label} is missing.", remedy="Fill it in.")
        if self.kind == "choice" and text not in self.choices:
            raise InputError(f"{self.label} is {text[:40]!r}.", remedy=f"Choose one of {', '.join(self.choices)}.")
        if self.kind == "check" and text not in ("", "yes"):
            raise InputError(f"{self.label} is {text[:40]!r}.", remedy="Tick it, or leave it.")
        if self.kind != "text" and not text.isprintable():
            raise InputError(f"{self.label} holds letters that cannot be shown.", remedy="Type it anew.")
        return text


def read_form(body: bytes, kind: str) -> dict[str, list[str]]:
    """Read a form as browsers send it; InputError if it is not a form."""
    if kind.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise InputError("This is not a form.", remedy="Send it as application/x-www-form-urlencoded.")
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError:  # bytes that are not text, or more fields than any form of ours has
        raise InputError("The form cannot be read.", remedy=_AGAIN) from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


class Seals:
    """Seals forms, and knows those that were sent."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._sent: dict[str, float] = {}

    def seal(self, session: str, act: str, targets: Mapping[str, str], made: str) -> str:
        """Seal a form for a session: an act on these, which were made then."""
        about = f"{time.monotonic():.3f}.{secrets.token_urlsafe(12)}"
        return f"{about}.{self._signature(about, session, act, targets, made)}"

    def check(self, seal: str, session: str, act: str, targets: Mapping[str, str], made: str) -> str:
        """Check the seal of a form that came back; give the form's number."""
        about, _, signature = seal.rpartition(".")
        good = self._signature(about, session, act, targets, made)
        if not hmac.compare_digest(signature.encode(errors="replace"), good.encode()):
            raise FormError("This form was not made here, or not for you.", remedy=_AGAIN)
        moment, _, number = about.rpartition(".")
        if time.monotonic() - float(moment) > _LIFE:
            raise FormError("This form is too old.", remedy=_AGAIN)
        return number

    def use(self, number: str) -> None:
        """Take a form as sent; InputError if it was sent before."""
        now = time.monotonic()
        if number in self._sent:
            raise FormError("This form was sent before: nothing was done again.", remedy=_AGAIN)
        if len(self._sent) >= _MOST:
            self._sent = {item: sent for item, sent in self._sent.items() if now - sent <= _LIFE}
            if len(self._sent) >= _MOST:
                raise FormError("Too many forms were sent within an hour.", remedy="Use the penstock command.")
        self._sent[number] = now

    def _signature(self, about: str, session: str, act: str, targets: Mapping[str, str], made: str) -> str:
        said: Sequence[object] = (about, session, act, sorted(targets.items()), made)
        return hmac.digest(self._key, json.dumps(said).encode(), "sha256").hex()
