"""Configuration files of NATS servers: read into plain values, and written again.

::

    key value | key: value | key = value | key { ... }       a line each, or ended by ; or ,
    value:   "text with \\n \\t \\r \\" \\\\ \\x41"  'text as it is'  text  12  -3  1.5  64MB  true  on  yes
             [a, b]  { ... }
             $NAME, what the name says in this block or one around it, else in the environment
             ( lines of text
             )
    # and // begin comments; include "file" puts a file in its place, from the folder of this one

Sizes: k m g t p e count in thousands, with b, i or ib behind them in 1,024s. A text that holds a duration stays text. A
key that comes twice has the value that came last. Errors name the file and the line, and never a value: it may be a
secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from penstock.errors import InputError

__all__ = ["Conf", "read_conf", "read_conf_text", "write_conf"]

_DEEPEST = 64  # blocks and lists within each other
_INCLUDES = 8  # files within each other
_MOST_BYTES = 16 * 1024 * 1024
_SPACE = re.compile(r"(?:[ \t]|#[^\n]*|//[^\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s|#[^\n]*|//[^\n]*)*")
_KEY = re.compile(r""""([^"]*)"|'([^']*)'|([^\s:={}\[\]"';,#][^\s:={]*)""")
_BETWEEN = re.compile(r"\s*[:=]?[ \t]*")
_RAW = re.compile(r"(?:\\.|[^\s;,\]}\\])+")
_BLOCK = re.compile(r"\((.*?\n)\)(?=\n|\Z)", re.S)
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|([tnr"\\])|(.?))""", re.S)
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"', re.S)
_NUMBER = re.compile(r"(-?[0-9]+)(?:([kmgtpe])(b|ib?)?)?", re.I)
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
_SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_LARGEST = 2**63


@dataclass
class Conf:
    """What a configuration file says."""

    values: dict[str, Any] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    """The keys of the outermost block whose value was used as a variable."""


def read_conf(path: Path, environment: Mapping[str, str] | None = None) -> Conf:
    """Read a file, and those that it includes; InputError if it cannot be read or is not a configuration."""
    return _read(path, os.environ if environment is None else environment, 0)


def read_conf_text(text: str, environment: Mapping[str, str] | None = None) -> Conf:
    """Read a configuration that stands in a text."""
    return _Parser(text, Path("text"), {} if environment is None else environment, 0).parse()


def _read(path: Path, environment: Mapping[str, str], depth: int) -> Conf:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"The configuration {path} is larger than 16 MiB.", remedy="Is it the right file?")
        text = path.read_text()
    except OSError as error:
        raise InputError(f"The configuration {path} cannot be read: {error.strerror}.", remedy="Check it.") from None
    except UnicodeDecodeError:
        raise InputError(f"The configuration {path} is not UTF-8.", remedy="Is it the right file?") from None
    return _Parser(text, path, environment, depth).parse()


class _Parser:
    def __init__(self, text: str, path: Path, environment: Mapping[str, str], depth: int) -> None:
        self._text = text.replace("\r\n", "\n")
        self._path = path
        self._environment = environment
        self._depth = depth
        self._at = 0
        self._blocks: list[dict[str, Any]] = []
        self._asked: set[str] = set()  # variables of the environment that are being read
        self._made = Conf()

    def _fail(self, what: str, remedy: str = "Correct the line.") -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise InputError(f"Line {line} of {self._path}: {what}.", remedy=remedy)

    def _skip(self, pattern: re.Pattern[str] = _SPACE_AND_LINES) -> str:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return self._text[self._at : self._at + 1]

    def parse(self) -> Conf:
        """Read the whole text; it may stand in braces, as JSON does."""
        self._blocks.append(self._made.values)
        braces = 0
        while self._skip() == "{":
            self._at += 1
            braces += 1
        self._statements("}" if braces else "")
        for _ in range(max(braces - 1, 0)):
            if self._skip() != "}":
                self._fail("a block is not closed")
            self._at += 1
        if self._skip():
            self._fail("something follows the end of the configuration")
        return self._made

    def _statements(self, end: str) -> None:
        while (letter := self._skip()) != end or not letter:
            if not letter:
                if end:
                    self._fail("a block is not closed")
                return
            self._statement()
            self._finish(end)
        self._at += 1

    def _statement(self) -> None:
        found = _KEY.match(self._text, self._at)
        if found is None:
            self._fail("a name is expected")
        name = next(group for group in found.groups() if group is not None)
        self._at = found.end()
        if found[3] is not None and name.lower() == "include" and self._text[self._at : self._at + 1] in (" ", "\t"):
            self._include()
            return
        self._skip(_BETWEEN)
        self._blocks[-1][name] = self._value(f"the value of {name}")

    def _finish(self, end: str) -> None:
        letter = self._skip(_SPACE)
        if letter and letter in ",;\n":
            self._at += 1
        elif letter and letter != end:
            self._fail("a value must end with the line, with ; or with ,")

    def _include(self) -> None:
        self._skip(_SPACE)
        found = re.compile(r""""([^"\n]+)"|'([^'\n]+)'|([^\s;}'"]+)""").match(self._text, self._at)
        if found is None:
            self._fail("include names no file")
        name = next(filter(None, found.groups()))
        if self._depth >= _INCLUDES:
            self._fail("files include each other without end", "Include each file once.")
        self._at = found.end()
        inner = _read(self._path.parent / name, self._environment, self._depth + 1)
        self._blocks[-1].update(inner.values)
        if len(self._blocks) == 1:
            self._made.variables |= inner.variables

    def _value(self, what: str) -> Any:
        letter = self._text[self._at : self._at + 1]
        if not letter or letter == "\n":
            self._fail(f"{what} is missing")
        if letter in "{[":
            if len(self._blocks) > _DEEPEST:
                self._fail("blocks are too deep within each other")
            self._at += 1
            return self._block() if letter == "{" else self._list()
        if letter == '"':
            found = _QUOTED.match(self._text, self._at)
        elif letter == "'":
            found = re.compile(r"'([^']*)'").match(self._text, self._at)
        elif letter == "(":
            found = _BLOCK.match(self._text, self._at)
        else:
            return self._plain(what)
        if found is None:
            self._fail(f"{what} does not end")
        self._at = found.end()
        return self._unescape(found[1]) if letter == '"' else found[1]

    def _block(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        self._blocks.append(made)
        self._statements("}")
        self._blocks.pop()
        return made

    def _list(self) -> list[Any]:
        made: list[Any] = []
        self._blocks.append({})  # for the depth; a list gives no names to variables
        while (letter := self._skip()) != "]":
            if not letter:
                self._fail("a list is not closed")
            made.append(self._value("a value of a list"))
            if self._skip(_SPACE) in (",", "\n"):
                self._at += 1
            elif self._text[self._at : self._at + 1] != "]":
                self._fail("a value of a list must end with a comma, or with the line")
        self._at += 1
        self._blocks.pop()
        return made

    def _plain(self, what: str) -> Any:
        found = _RAW.match(self._text, self._at)
        if found is None:
            self._fail(f"{what} is missing")
        self._at = found.end()
        word = found[0]
        if "\\" in word:
            return self._unescape(word)
        if word.lower() in _SWITCHES:
            return _SWITCHES[word.lower()]
        if word.startswith("$"):
            return self._variable(word[1:])
        if number := _NUMBER.fullmatch(word):
            unit = 1000 if number[3] is None else 1024
            value = int(number[1]) * unit ** (" kmgtpe".index((number[2] or " ").lower()))
            if not -_LARGEST <= value < _LARGEST:
                self._fail(f"{what} is too large for a number")
            return value
        return float(word) if _FLOAT.fullmatch(word) else word.removesuffix("'")

    def _unescape(self, text: str) -> str:
        def replace(found: re.Match[str]) -> str:
            if found[3] is not None:
                self._fail('a backslash stands before t, n, r, ", \\ or x and two hexadecimal digits')
            return chr(int(found[1], 16)) if found[1] else _LETTERS[found[2]]

        return _ESCAPE.sub(replace, text)

    def _variable(self, name: str) -> Any:
        if name.startswith("2a$"):
            return f"${name}"  # a password as bcrypt writes it
        for depth, block in reversed(list(enumerate(self._blocks))):
            if name in block:
                if depth == 0:
                    self._made.variables.add(name)
                return block[name]
        if name not in self._environment or name in self._asked:
            self._fail(f"${name} is set neither here nor in the environment", "Set it.")
        self._asked.add(name)
        inner = _Parser(f"pk={self._environment[name]}", Path(f"${name}"), self._environment, _INCLUDES)
        inner._asked = self._asked
        value = inner.parse().values.get("pk")
        self._asked.discard(name)
        return value


def write_conf(values: Mapping[str, Any]) -> str:
    """Write values as a configuration that a NATS server reads, a line for each."""
    return "".join(f"{_quote(name)}: {_write(value)}\n" for name, value in values.items())


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quote(name)}: {_write(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_write(inner) for inner in value) + "]"
    return _quote(str(value))


def _quote(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        return f"\\x{ord(found[0]):02x}" if found[0] not in '"\\' else f"\\{found[0]}"

    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', escape, text) + '"'
