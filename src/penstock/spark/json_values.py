"""What a JSON value becomes in a column, value by value: the rule that parsing by columns (`json_payloads`) follows.

It is that of Spark's `from_json` if that has one: fields are found by their exact names, others are left out, a
missing field is null, and so is a value of another type than the column, with a word on what was found. Times are text
of RFC 3339 (without a zone: UTC) or whole seconds since 1970. Pure: text in, Python values for Arrow out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

__all__ = ["TIME", "load", "name_of", "reader_of"]

Reader = Callable[[Any, str, list[str]], Any]
"""Takes a value, where it stands, and the complaints so far; gives what goes into the column."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ](?P<hour>[0-9]{2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?)?"
    r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DECIMAL = re.compile(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]{1,4})?")
_ENDLESS = {"NaN", "INF", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity"}  # as Spark reads them
_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}


class Number(float):
    """A number that is not whole, with its text: a decimal must not be rounded on its way."""

    text: str

    def __new__(cls, text: str) -> Number:
        made = super().__new__(cls, text)
        made.text = text
        return made


_DECODER = json.JSONDecoder(parse_float=Number)


def load(payload: bytes) -> tuple[dict[str, Any], str]:
    """Give the object that a payload holds and no complaint; or an empty one, and why there is none."""
    if not payload.strip():
        return {}, "the payload is empty"
    try:
        found = _DECODER.decode(payload.decode())
    except UnicodeDecodeError:
        return {}, "the payload is not UTF-8"
    except (ValueError, RecursionError):
        return {}, "the payload is not JSON"
    if not isinstance(found, dict):
        return {}, f"the payload is {_called(found)}, not an object"
    return found, ""


def name_of(kind: pa.DataType) -> str | None:
    """Give Spark's name of a type that a JSON value can become; None for one that it cannot."""
    if types.is_struct(kind):
        parts = [(field.name, name_of(field.type)) for field in kind]
        return None if not parts or not all(name for _, name in parts) else "struct"
    if types.is_list(kind):
        return name_of(kind.value_type) and "array"
    if types.is_map(kind):
        return name_of(kind.item_type) and "map" if types.is_string(kind.key_type) else None
    return f"decimal({kind.precision},{kind.scale})" if types.is_decimal128(kind) else _NAMES.get(kind)


def reader_of(kind: pa.DataType) -> Reader:
    """Give what reads a value for a type."""
    if types.is_struct(kind):
        fields = [(field.name, reader_of(field.type)) for field in kind]
        return _checked(lambda value, path, wrong: _struct(fields, value, path, wrong), kind, dict)
    if types.is_list(kind):
        item = reader_of(kind.value_type)
        return _checked(
            lambda value, path, wrong: [item(one, f"{path}[{at}]", wrong) for at, one in enumerate(value)], kind, list
        )
    if types.is_map(kind):
        of_item = reader_of(kind.item_type)
        return _checked(
            lambda value, path, wrong: [
                (_text(name, path, wrong) or "", of_item(one, f"{path}[{name!r}]", wrong))
                for name, one in value.items()
            ],
            kind,
            dict,
        )
    if types.is_string(kind):
        return _text
    if types.is_boolean(kind):
        return _checked(lambda value, path, wrong: value, kind, bool)
    if types.is_integer(kind):
        return _checked(_whole(kind.bit_width), kind, int)
    if types.is_floating(kind):
        return _floating(kind)
    if types.is_decimal128(kind):
        return _decimal(kind)
    return _date(kind) if types.is_date32(kind) else _time(kind)


def _checked(read: Reader, kind: pa.DataType, wanted: type) -> Reader:
    """Read values of one type; another one is null, and told."""
    name = name_of(kind)

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if value is None:
            return None
        if type(value) is not wanted:
            return _refuse(wrong, path, value, name)
        return read(value, path, wrong)

    return reader


def _refuse(wrong: list[str], path: str, value: Any, name: str | None) -> None:
    wrong.append(f"{path} is {_called(value)}, not {name}")


def _called(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if value is None:
        return "null"
    words: dict[type, str] = {str: "a string", int: "a whole number", float: "a number", dict: "an object"}
    return next((word for kind, word in words.items() if isinstance(value, kind)), "an array")


def _struct(fields: list[tuple[str, Reader]], value: Any, path: str, wrong: list[str]) -> dict[str, Any]:
    return {name: read(value[name], f"{path}.{name}", wrong) for name, read in fields if name in value}


def _text(value: Any, path: str, wrong: list[str]) -> str | None:
    """Read text; anything else is kept as JSON writes it."""
    if value is None:
        return None
    if isinstance(value, Number):
        value = value.text
    elif not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            wrong.append(f"{path} holds half a character")
            return None
    return str(value)


def _whole(bits: int) -> Reader:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    name = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}[bits]

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if least <= value <= most:
            return value
        wrong.append(f"{path} is too large for {name}")
        return None

    return reader


def _floating(kind: pa.DataType) -> Reader:
    name = name_of(kind)

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if value is None:
            return None
        if isinstance(value, str) and value in _ENDLESS:
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return _refuse(wrong, path, value, name)
        try:
            return float(value)
        except OverflowError:
            wrong.append(f"{path} is too large for {name}")
            return None

    return reader


def _decimal(kind: pa.DataType) -> Reader:
    name, unit, most = name_of(kind), Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if value is None:
            return None
        text = value.text if isinstance(value, Number) else value
        if isinstance(text, bool) or not isinstance(text, int | str) or value in (float("inf"), float("-inf")):
            return _refuse(wrong, path, value, name)
        try:
            found = Decimal(text if not isinstance(text, str) or DECIMAL.fullmatch(text) else "no number")
            # Nothing of a number that is far too large is worked out.
            if not found.is_finite() or found.adjusted() > kind.precision:
                raise InvalidOperation
            found = found.quantize(unit, ROUND_HALF_UP)
        except (InvalidOperation, ValueError):
            if isinstance(value, str):
                return _refuse(wrong, path, value, name)
            found = most
        if abs(found) >= most:
            wrong.append(f"{path} is too large for {name}")
            return None
        return found

    return reader


def _date(kind: pa.DataType) -> Reader:
    name = name_of(kind)

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if value is None:
            return None
        if isinstance(value, str) and DATE.fullmatch(value):
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
        return _refuse(wrong, path, value, name)

    return reader


def _time(kind: pa.DataType) -> Reader:
    name = name_of(kind)

    def reader(value: Any, path: str, wrong: list[str]) -> Any:
        if value is None:
            return None
        try:
            if type(value) is int:
                return EPOCH + timedelta(seconds=value)
            if isinstance(value, str) and (found := TIME.fullmatch(value)):
                return _moment(found)
        except (ValueError, OverflowError):
            pass
        return _refuse(wrong, path, value, name)

    return reader


def _moment(found: re.Match[str]) -> datetime:
    parts = found.groupdict(default="0")
    day = date.fromisoformat(parts["date"])
    micros = int(parts["fraction"].ljust(6, "0")[:6])  # what is finer is left out
    hour, minute, second = (int(parts[name]) for name in ("hour", "minute", "second"))
    moment = datetime(day.year, day.month, day.day, hour, minute, second, micros, UTC)
    if (zone := found["zone"] or "Z") != "Z":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
        if hours > 23 or minutes > 59:
            raise ValueError(zone)
        away = timedelta(hours=hours, minutes=minutes)
        moment = moment + away if zone[0] == "-" else moment - away
    if moment < EPOCH and parts["fraction"][6:].strip("0"):  # Arrow leaves out towards 1970
        moment += timedelta(microseconds=1)
    return moment
