"""What messages on a command line are made of: headers, subjects and templates."""

from __future__ import annotations

import os
import random
import re
import string
import time
import uuid
from datetime import UTC, datetime
from typing import Annotated

from penstock.cli.flags import flag
from penstock.errors import InputError

__all__ = ["CALL", "HeaderTemplates", "Template", "Templates", "check_queue", "check_subjects", "parse_headers"]

Templates = Annotated[bool, flag("Fill {{Count}} and the like into subject, headers and body.")]

MAX_RANDOM = 1024 * 1024
CALL = re.compile(rb"\{\{\s*\.?([A-Za-z]+|[0-9]+)((?:\s+[0-9]+)*)\s*\}\}")
"""What is filled: a name between braces, perhaps with numbers."""


def check_subjects(*subjects: str, literal: bool = False, templates: bool = False) -> None:
    """Refuse a subject that no server takes before we connect to one; a template stands for a token, if they are on."""
    from penstock.wire.subjects import subject_fault

    for subject in subjects:
        checked = CALL.sub(b"x", subject.encode()).decode() if templates else subject
        if fault := subject_fault(checked, literal=literal):
            raise InputError(
                f"The subject {subject!r} {fault}.", remedy="Write words joined by dots, such as orders.new."
            )


def check_queue(group: str | None) -> None:
    """Refuse a queue group that no server takes before we connect to one."""
    if group is not None and (not group or not group.isprintable() or " " in group):
        raise InputError(f"{group!r} cannot be the name of a queue group.", remedy="Write a name without blanks.")


class Template:
    """Text in which {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled.

    {{Random 10 100}} is between 10 and 100 letters long. `on=False` leaves all of it as it is.
    """

    def __init__(self, text: bytes, *, on: bool = True) -> None:
        self._text = text
        self._on = on and b"{{" in text
        for found in CALL.finditer(text) if self._on else ():
            bounds = [int(number) for number in found.group(2).split()]
            if bounds and (found.group(1) != b"Random" or len(bounds) != 2 or not bounds[0] <= bounds[1] <= MAX_RANDOM):
                raise InputError(
                    f"The template {found.group().decode()} cannot be filled.",
                    remedy=f"Write {{{{Random 10 100}}}}, with two lengths up to {MAX_RANDOM:,}, or --no-templates.",
                )

    def fill(self, count: int, **more: bytes) -> bytes:
        """Give the text for one message; `more` are further names, such as Request, and what stands for them."""
        if not self._on:
            return self._text
        now = datetime.now(UTC)
        values = {
            b"Count": str(count),
            b"Cnt": str(count),
            b"Time": now.strftime("%H:%M:%S"),
            b"TimeStamp": now.isoformat(),
            b"Unix": str(int(now.timestamp())),
            b"UnixNano": str(time.time_ns()),
        }

        def value(found: re.Match[bytes]) -> bytes:
            name = found.group(1)
            if name == b"ID":
                return uuid.uuid4().hex.encode()
            if name == b"Random":
                return _random([int(number) for number in found.group(2).split()])
            if (said := more.get(name.decode())) is not None:
                return said
            return values[name].encode() if name in values else found.group()

        return CALL.sub(value, self._text)


def _random(bounds: list[int]) -> bytes:
    if not bounds:
        return b"%016x" % random.randrange(2**64)  # noqa: S311  # filler for test messages, not a secret
    length = random.randint(*bounds)  # noqa: S311
    return "".join(random.choices(string.ascii_letters + string.digits, k=length)).encode()  # noqa: S311


def parse_headers(given: list[str] | None) -> dict[str, list[str]]:
    """Turn ["Key:value"] into lists; NATS allows no space or colon in a name and no line break in a value."""
    headers: dict[str, list[str]] = {}
    for item in given or []:
        name, colon, value = item.partition(":")
        if not colon or not name.isascii() or not name.isprintable() or not name or " " in name or _breaks(value):
            raise InputError(f"The header {item!r} cannot be sent.", remedy="Write it as Key:Value.")
        headers.setdefault(name, []).append(value.strip())
    return headers


def _breaks(value: str) -> bool:
    return "\r" in value or "\n" in value


class HeaderTemplates:
    """Headers as `parse_headers` reads them, with values in which templates are filled."""

    def __init__(self, given: list[str] | None, *, on: bool = True) -> None:
        self._templates = {
            name: [Template(os.fsencode(value), on=on) for value in values]
            for name, values in parse_headers(given).items()
        }

    def fill(self, count: int) -> dict[str, list[str]]:
        """Give the headers of one message."""
        return {name: [os.fsdecode(value.fill(count)) for value in values] for name, values in self._templates.items()}
