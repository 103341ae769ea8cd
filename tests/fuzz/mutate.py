"""Bytes made of other bytes: what is near to real input finds more than what is random."""

from __future__ import annotations

import random
import re

__all__ = ["Mutator"]

_LONGEST = 64 * 1024

# What spoils formats best: line ends, separators, numbers at the edge of what fits, JSON, text that is none.
WORDS = [
    *(bytes([byte]) for byte in b"\r\n\t\x00 .:;,*>{}[]\"'\\/-+_%=0189\x7f\x80\xff"),
    *(b"\r\n", b"\r\n\r\n", b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e999", b"NaN", b"\\ud800", b"\xc3\xa9"),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"..", b"../", b"%00", b"%0d%0a", b"${NAME}", b"{0}", b"%s", b"\x1b["),
    *(b"%d" % number for number in (2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64)),
    *(number.to_bytes(8, "little") for number in (1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)),
    *(b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f"),
    *(b"9" * 20, b"0" * 12, b"9" * 400, b"[" * 400, b'{"a":' * 400, b"a." * 200, b"x" * 5000, b"[" * 20_000),
    *(b"NATS/1.0", b"NATS/1.0 503\r\n\r\n", b"MSG ", b"HMSG ", b"INFO {}\r\n", b"PING\r\n", b"$JS.ACK.", b"Nats-"),
]
_NUMBER = re.compile(rb"[0-9]+")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Mutator:
    """Makes bytes from a corpus; the same seed makes the same bytes."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def mutate(self, content: bytes, others: list[bytes]) -> bytes:
        """Change bytes in one to five places; `others` are of the same format."""
        made = bytearray(content)
        for _ in range(1 + min(int(self.random.expovariate(0.8)), 4)):
            self.random.choice(self._STEPS)(self, made, others)
        return bytes(made[:_LONGEST])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _place(self, made: bytearray) -> int:
        return self.random.randint(0, len(made))

    def _flip(self, made: bytearray, others: list[bytes]) -> None:
        if made:
            made[self.random.randrange(len(made))] ^= 1 << self.random.randrange(8)

    def _byte(self, made: bytearray, others: list[bytes]) -> None:
        if made:
            made[self.random.randrange(len(made))] = self.random.randrange(256)

    def _word(self, made: bytearray, others: list[bytes]) -> None:
        place = self._place(made)
        made[place : place + self.random.choice((0, 0, 1, 4, 8))] = self.random.choice(WORDS)

    def _cut(self, made: bytearray, others: list[bytes]) -> None:
        place = self._place(made)
        del made[place : place + self.random.choice((1, 2, 4, 16, 200, len(made)))]

    def _again(self, made: bytearray, others: list[bytes]) -> None:
        start = self._place(made)
        part = bytes(made[start : start + self.random.choice((1, 4, 16, 64, 512))])
        place = self._place(made)
        made[place:place] = part * self.random.choice((1, 1, 2, 8))

    def _splice(self, made: bytearray, others: list[bytes]) -> None:
        other = self.random.choice(others)
        start = self.random.randint(0, len(other))
        place = self._place(made)
        made[place : place + self.random.choice((0, 8, 64))] = other[start : start + self.random.choice((4, 32, 400))]

    def _number(self, made: bytearray, others: list[bytes]) -> None:
        """Change a number that is written in digits."""
        found = list(_NUMBER.finditer(made))
        if found:
            word = self.random.choice(found)
            value = int(word[0][:30])
            number = self.random.choice((value + 1, value - 1, -value, 0, 2**31, 2**63, 2**64, value * 10**9))
            made[word.start() : word.end()] = b"%d" % number

    def _value(self, made: bytearray, others: list[bytes]) -> None:
        """Put another value of JSON in the place of a text, or another text."""
        found = list(_STRING.finditer(made))
        if found:
            word = self.random.choice(found)
            values = (b"null", b"1", b"[]", b"{}", b"1.5", b'""', b"true", b'"\\ud800"', self.random.choice(found)[0])
            made[word.start() : word.end()] = self.random.choice(values)

    _STEPS = (_flip, _byte, _byte, _word, _word, _word, _cut, _again, _splice, _number, _number, _value, _value)


def smaller(content: bytes, fails: object) -> bytes:
    """Give fewer bytes that fail in the same way, found by leaving parts out."""
    assert callable(fails)
    size = max(len(content) // 2, 1)
    while size:
        place = 0
        while place < len(content):
            shorter = content[:place] + content[place + size :]
            if fails(shorter):
                content = shorter
            else:
                place += size
        size //= 2
    return content
