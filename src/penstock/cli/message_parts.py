"""What messages on a command line are made of: headers, subjects, bodies and templates."""

from __future__ import annotations

import os
import random
import re
import string
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from penstock.cli.flags import argument, flag
from penstock.errors import InputError

__all__ = ["Body", "Template", "Templates", "bodies", "check_subjects", "parse_headers"]

Body = Annotated[str | None, argument("Body; standard input where none is given.")]
Templates = Annotated[bool, flag("Fill {{Count}} and the like into subject and body.")]

MAX_BODY = 64 * 1024 * 1024
MAX_RANDOM = 1024 * 1024
_CALL = re.compile(rb"\{\{\s*\.?([A-Za-z]+)((?:\s+[0-9]+)*)\s*\}\}")


def parse_headers(given: list[str] | None) -> dict[str, list[str]]:
    """Turn ["Key:value"] into lists; NATS allows no space or colon in a name and no line break in a value."""
    headers: dict[str, list[str]] = {}
    for item in given or []:
        name, colon, value = item.partition(":")
        if not colon or not name or " " in name or "\r" in item or "\n" in item:
            raise InputError(f"The header {item!r} cannot be sent.", remedy="Write it as Key:Value.")
        headers.setdefault(name, []).append(value.strip())
    return headers


def check_subjects(*subjects: str, literal: bool = False) -> None:
    """Refuse a subject that no server takes before we connect to one; {{Count}} and the like stand for a token."""
    from penstock.wire.subjects import subject_fault

    for subject in subjects:
        if fault := subject_fault(_CALL.sub(b"x", subject.encode()).decode(), literal=literal):
            raise InputError(
                f"The subject {subject!r} {fault}.", remedy="Write words joined by dots, such as orders.new."
            )


def bodies(body: str | None, *, stdin: bool = False, lines: bool = False) -> Iterator[bytes]:
    """Give the body from the argument, or from standard input: all of it, or line by line."""
    if body is not None and not stdin:
        yield os.fsencode(body)
        return
    if sys.stdin is None or (sys.stdin.isatty() and not stdin):
        yield b""
        return
    if lines:
        while line := sys.stdin.buffer.readline(MAX_BODY + 1):
            yield _bounded(line.rstrip(b"\r\n"))
        return
    yield _bounded(sys.stdin.buffer.read(MAX_BODY + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BODY:
        raise InputError(
            f"Standard input holds more than {MAX_BODY:,} bytes.",
            remedy="Send large payloads with `penstock chunks send`.",
        )
    return data


class Template:
    """Text in which {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled.

    {{Random 10 100}} is between 10 and 100 letters long. `on=False` leaves all of it as it is.
    """

    def __init__(self, text: bytes, *, on: bool = True) -> None:
        self._text = text
        self._on = on and b"{{" in text
        for found in _CALL.finditer(text) if self._on else ():
            bounds = [int(number) for number in found.group(2).split()]
            if bounds and (found.group(1) != b"Random" or len(bounds) != 2 or not bounds[0] <= bounds[1] <= MAX_RANDOM):
                raise InputError(
                    f"The template {found.group().decode()} cannot be filled.",
                    remedy=f"Write {{{{Random 10 100}}}}, with two lengths up to {MAX_RANDOM:,}, or --no-templates.",
                )

    def fill(self, count: int, request: bytes = b"") -> bytes:
        """Give the text for one message; `request`: what {{Request}} stands for."""
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
            if name == b"Request":
                return request
            return values[name].encode() if name in values else found.group()

        return _CALL.sub(value, self._text)


def _random(bounds: list[int]) -> bytes:
    if not bounds:
        return b"%016x" % random.randrange(2**64)  # noqa: S311  # filler for test messages, not a secret
    length = random.randint(*bounds)  # noqa: S311
    return "".join(random.choices(string.ascii_letters + string.digits, k=length)).encode()  # noqa: S311
