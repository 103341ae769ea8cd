"""The forms in which a topology is written: TOML, YAML and JSON, each read into the same tables. Pure.

A name stands once in its table, and a value has one meaning, in every form. YAML has several: what `no`, `010`, `1e3`,
`12:30` or `2026-01-31` mean without quotes depends on the reader, and so none of them is guessed::

    plain text            read as
    true, false           true, false
    12, -3, 1.5           a number
    2026-01-31T12:00:00Z  text, which is what a field that holds a time takes
    anything else that some reader of YAML takes for no text, or that no field holds (null, .inf)   refused
    all the rest, and whatever stands in quotes   text

Nothing is made but tables, lists, text, numbers, true and false: tags are refused, and so are merged keys (`<<`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from penstock.errors import InputError

if TYPE_CHECKING:
    from yaml.nodes import Node

__all__ = ["FORMS", "Form", "form_of", "read_form"]

Form = Literal["toml", "yaml", "json"]

FORMS: dict[str, Form] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
"""The form that the end of a file's name stands for."""

_SHOWN = 60  # characters of a value that an error shows


def form_of(path: PurePath) -> Form:
    """Tell the form of a file by the end of its name; TOML if that says nothing."""
    return FORMS.get(path.suffix.lower(), "toml")


def read_form(text: str, form: Form) -> dict[str, Any]:
    """Read what a file holds; what is wrong with it is an InputError that says the line and the column."""
    readers = {"toml": _read_toml, "yaml": _read_yaml, "json": _read_json}
    if form not in readers:
        raise InputError(f"A topology is not written in {form!r}.", remedy="Use toml, yaml or json.")
    try:
        content = readers[form](text)
    except RecursionError:
        raise InputError("Lists and tables are nested too deep.", remedy="A topology has a few levels.") from None
    if not isinstance(content, dict):
        raise InputError("The topology is not a table.", remedy="Begin with streams, and the streams by name below it.")
    return content


def _read_toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"This is not TOML: {error}.", remedy="See https://toml.io.") from None


# -- JSON ----------------------------------------------------------------------------------------------------------


def _read_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise InputError(f"{name!r} stands twice in one table.", remedy="Leave one of them out.")
            if value is None:
                raise InputError(f"{name!r} is null.", remedy="Leave it out, or write what it is.")
            table[name] = value
        return table

    def no_number(written: str) -> NoReturn:
        raise InputError(f"{written} is not a number.", remedy="Write one with digits.")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except json.JSONDecodeError as error:
        what = f"This is not JSON: {error.msg} (at line {error.lineno}, column {error.colno})."
        raise InputError(what, remedy="See https://json.org.") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("A number of this JSON is too long.", remedy="Write it with fewer digits.") from None


# -- YAML ----------------------------------------------------------------------------------------------------------

_STR, _PLAIN = "tag:yaml.org,2002:str", "plain"
_DEEPEST = 100  # levels of lists and tables
_MOST = 100_000  # values, so that names for others (&a, *a) cannot make very many of few

_TRUE_FALSE = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,15})\.[0-9]{1,15}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})")
# What readers of YAML 1.1 or 1.2 take for something else than text, with what to write instead.
_TRAPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)y|n|yes|no|on|off"), "Write true or false, or put text in quotes."),
    (re.compile(r"(?i)~|null|"), "Leave the field out, write {} for a table without fields, or put text in quotes."),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "Write a duration with units, or put it in quotes."),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
        "Write a time with its zone, such as 2026-01-31T12:00:00Z, or put text in quotes.",
    ),
    (re.compile(r"(?i)[-+]?\.(inf|nan)"), "Write a number."),
    (
        re.compile(r"(?i)[-+]?(0[xob][0-9a-f_]+|([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?)"),
        "Write a number with plain digits and no zero in front, or put text in quotes.",
    ),
    (re.compile(r"<<|="), "Write the fields themselves; tables are not merged."),
)


def _read_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(
            "Reading YAML needs PyYAML, which is not installed.",
            remedy="pip install 'penstock[yaml]', or write the file as TOML or JSON.",
        ) from None
    try:
        node = _compose(text)
    except yaml.reader.ReaderError as error:
        where = f"character {error.position + 1}"
        raise InputError(f"This is not YAML: {error.reason} ({where}).", remedy="Save it as UTF-8 text.") from None
    except yaml.MarkedYAMLError as error:
        why = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        raise InputError(f"This is not YAML: {why}{_at(mark)}.", remedy="See https://yaml.org.") from None
    if node is None:
        return {}
    return _Values().value(node)


def _compose(text: str) -> Node | None:
    """Read YAML into nodes, which have their places, and make nothing of them."""
    from yaml.composer import Composer
    from yaml.nodes import ScalarNode
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class Nodes(Reader, Scanner, Parser, Composer):  # type: ignore[misc]  # PyYAML ships no types
        """PyYAML's reader without its last part, which makes objects: of plain text it only says that it is plain."""

        def __init__(self, stream: str) -> None:
            Reader.__init__(self, stream)
            Scanner.__init__(self)
            Parser.__init__(self)
            Composer.__init__(self)
            self._depth = 0

        def descend_resolver(self, *_: object) -> None:
            self._depth += 1
            if self._depth > _DEEPEST:  # which its scanner would take ever longer for
                raise RecursionError

        def ascend_resolver(self) -> None:
            self._depth -= 1

        def resolve(self, kind: type, value: object, implicit: Any) -> str:
            if kind is ScalarNode:
                return _PLAIN if implicit[0] else _STR
            return _PLAIN

    found: Node | None = Nodes(text).get_single_node()
    return found


def _at(mark: Any) -> str:
    return f" (at line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""


class _Values:
    """Turns nodes into values, a bounded number of them."""

    def __init__(self) -> None:
        self._count = 0
        self._within: list[Any] = []  # the nodes that are being read, the outermost first

    def value(self, node: Any) -> Any:
        """Give what a node holds."""
        self._count += 1
        if self._count > _MOST:
            _refuse(node, f"There are more than {_MOST:,} values", "Write less, or use fewer names for others (*).")
        if any(node is outer for outer in self._within):
            _refuse(node, "A value holds itself", "Write it out.")
        if node.tag not in (_PLAIN, _STR):
            _refuse(node, f"There is a tag, {_short(node.tag)}", "Leave it out: every value says by itself what it is.")
        self._within.append(node)
        try:
            if node.id == "mapping":
                return dict(self._pairs(node))
            if node.id == "sequence":
                return [self.value(item) for item in node.value]
            return node.value if node.tag == _STR else _plain(node)
        finally:
            self._within.pop()

    def _pairs(self, node: Any) -> Iterator[tuple[str, Any]]:
        seen: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar" or key.tag not in (_PLAIN, _STR) or not key.value or key.value == "<<":
                shown = _short(key.value) if key.id == "scalar" else "a list or a table"
                _refuse(key, f"{shown} is not a name of a field", "Write names as text; tables are not merged.")
            if key.value in seen:
                first = seen[key.value].start_mark.line + 1
                _refuse(key, f"{_short(key.value)} stands twice, first in line {first}", "Leave one of them out.")
            seen[key.value] = key
            yield key.value, self.value(value)


def _plain(node: Any) -> Any:
    """Give the meaning of text without quotes, if it has one only."""
    text: str = node.value
    if text in _TRUE_FALSE:
        return _TRUE_FALSE[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _TIME.fullmatch(text):
        return text
    for trap, remedy in _TRAPS:
        if trap.fullmatch(text):
            _refuse(node, f"{_short(text) if text else 'Nothing'} can be read in several ways", remedy)
    return text


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _refuse(node: Any, what: str, remedy: str) -> NoReturn:
    raise InputError(f"{what}{_at(node.start_mark)}.", remedy=remedy)
