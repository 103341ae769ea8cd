"""Learn the columns of JSON payloads from a sample: a type grows with every payload, and becomes DDL.

Whole numbers are BIGINT, with others DOUBLE; text is a STRING, or a TIMESTAMP or DATE if all of it is one. What is null
everywhere, or of several kinds, is a STRING, which keeps any value as its JSON. An object with more keys than a person
would name is a MAP. What has an empty name is left out: no column can be called that. Pure: values in, text out.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MOST_KEYS", "LearntType", "ddl"]

MOST_KEYS = 200
"""An object with more different keys is a map."""
DEEPEST = 20
"""What lies deeper is text."""
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BIG = 2**63


class LearntType:
    """What was seen at one place of the payloads."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.kinds: set[str] = set()
        self.fields: dict[str, LearntType] = {}
        self.items: LearntType | None = None
        self.is_map = False
        self.nameless = False
        """Whether an object at this place has a field whose name is empty."""

    def see(self, value: Any) -> None:
        """Take one more value into account."""
        if value is None:
            return
        if isinstance(value, dict | list) and self.depth >= DEEPEST:
            self.kinds.add("text")
        elif isinstance(value, dict):
            self.kinds.add("object")
            self._see_fields(value)
        elif isinstance(value, list):
            self.kinds.add("array")
            for item in value:
                self._of_items().see(item)
        else:
            self.kinds.add(_kind(value))

    def _see_fields(self, value: dict[str, Any]) -> None:
        if not self.is_map:
            for name, item in value.items():
                if not name:
                    self.nameless = True
                    continue
                if name not in self.fields:
                    self.fields[name] = LearntType(self.depth + 1)
                self.fields[name].see(item)
            if len(self.fields) <= MOST_KEYS:
                return
            self._become_map()
        else:
            for item in value.values():
                self._of_items().see(item)

    def _become_map(self) -> None:
        """Take names for keys: their values share one type from here on."""
        self.is_map = True
        for learnt in self.fields.values():
            self._of_items().join(learnt)
        self.fields.clear()

    def _of_items(self) -> LearntType:
        if self.items is None:
            self.items = LearntType(self.depth + 1)
        return self.items

    def join(self, other: LearntType) -> None:
        """Take into account what another one saw."""
        self.kinds |= other.kinds
        if other.items is not None:
            self._of_items().join(other.items)
        for name, learnt in other.fields.items():
            self.fields.setdefault(name, LearntType(self.depth + 1)).join(learnt)
        if self.is_map or other.is_map or len(self.fields) > MOST_KEYS:
            self._become_map()

    def type(self) -> Any:
        """Give the type, as Spark's JSON form of a schema has it."""
        kinds = self.kinds
        if kinds == {"object"}:
            if self.fields and not self.is_map:
                return self.struct()
            item = self.items.type() if self.items is not None else "string"
            return {"type": "map", "keyType": "string", "valueType": item, "valueContainsNull": True}
        if kinds == {"array"}:
            item = self.items.type() if self.items is not None else "string"
            return {"type": "array", "elementType": item, "containsNull": True}
        if kinds == {"whole"}:
            return "long"
        if kinds <= {"whole", "large"} and kinds:
            return "decimal(38,0)"
        if kinds <= {"whole", "large", "number"} and kinds:
            return "double"
        if kinds == {"truth"}:
            return "boolean"
        if kinds == {"date"}:
            return "date"
        return "timestamp" if kinds and kinds <= {"date", "time"} else "string"

    def struct(self) -> dict[str, Any]:
        """Give the fields, as Spark's JSON form of a schema has them."""
        fields = [
            {"name": name, "type": learnt.type(), "nullable": True, "metadata": {}}
            for name, learnt in self.fields.items()
        ]
        return {"type": "struct", "fields": fields}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        if -_BIG <= value < _BIG:
            return "whole"
        return "large" if abs(value) < 10**38 else "number"
    if isinstance(value, float):
        return "number"
    if _TIME.fullmatch(value):
        return "time"
    return "date" if _DATE.fullmatch(value) else "text"


def ddl(learnt: LearntType) -> str:
    """Give the schema as DDL, a field a line."""
    return ",\n".join(f"{_name(field['name'])} {_ddl(field['type'])}" for field in learnt.struct()["fields"])


_WORDS = {"long": "BIGINT"}


def _ddl(kind: Any) -> str:
    if isinstance(kind, str):
        return _WORDS.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{_ddl(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<STRING, {_ddl(kind['valueType'])}>"
    parts = [f"{_name(field['name'])}: {_ddl(field['type'])}" for field in kind["fields"]]
    return f"STRUCT<{', '.join(parts)}>"


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
