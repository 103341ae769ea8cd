"""Columns of JSON payloads as text: Spark's DDL (`id BIGINT, items ARRAY<STRUCT<sku: STRING>>`), or its JSON form.

Spark asks a Python source for its columns in a process without a JVM, where pyspark cannot read DDL. So it is read
here: the types that a JSON value can become, and nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NoReturn

from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, BinaryType, DataType, DecimalType, MapType, StringType, StructField, StructType

from penstock.json_text import load_json
from penstock.spark.options import refuse
from penstock.spark.source_options import SourceOptions

__all__ = ["MOST_BYTES", "given_fields", "parse_ddl"]

MOST_BYTES = 2**20
"""The longest schema."""
DEEPEST = 50

_SIMPLE: Final[dict[str, DataType]] = {
    **dict.fromkeys(("boolean", "bool"), spark_types.BooleanType()),
    **dict.fromkeys(("tinyint", "byte"), spark_types.ByteType()),
    **dict.fromkeys(("smallint", "short"), spark_types.ShortType()),
    **dict.fromkeys(("int", "integer"), spark_types.IntegerType()),
    **dict.fromkeys(("bigint", "long"), spark_types.LongType()),
    **dict.fromkeys(("float", "real"), spark_types.FloatType()),
    "double": spark_types.DoubleType(),
    "string": StringType(),
    "date": spark_types.DateType(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), spark_types.TimestampType()),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|([A-Za-z_][A-Za-z0-9_]*)|([0-9]+)|([<>(),:]))")


def given_fields(options: SourceOptions) -> list[StructField] | None:
    """Give the fields that the options `jsonSchema` or `jsonSchemaFile` name; None if there is neither."""
    if options.json_schema is not None:
        return _fields("jsonSchema", options.json_schema)
    if options.json_schema_file is None:
        return None
    name, path = "jsonSchemaFile", Path(options.json_schema_file)
    try:
        if not path.is_file():
            refuse(name, str(path), "Name a file on the driver.", f"is {str(path)!r}, which is not a file.")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        refuse(name, str(path), "Give a file of text.", f"is {str(path)!r}, which cannot be read: {error}.")
    return _fields(name, text)


def _fields(option: str, text: str) -> list[StructField]:
    if len(text) > MOST_BYTES:
        refuse(option, None, "Name the fields that are used.", f"has more than {MOST_BYTES:,} characters.")
    if not text.lstrip().startswith("{"):
        return parse_ddl(text, option)
    try:
        found = StructType.fromJson(load_json(text))
    except Exception as error:  # pyspark raises whatever the text leads it to
        refuse(option, None, "Give DDL, such as id BIGINT, price DOUBLE.", f"is not a schema of Spark: {error!r}.")
    return list(found.fields)


def parse_ddl(text: str, option: str = "jsonSchema") -> list[StructField]:
    """Read DDL: names and types, separated by commas."""
    return _Ddl(text, option).everything()


class _Ddl:
    """Reads a text from left to right."""

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option, self.tokens = text, option, list[tuple[str, int]]()
        at, end = 0, len(text.rstrip())
        while at < end:
            if (found := _TOKEN.match(text, at)) is None:
                self._wrong(at)
            self.tokens.append((found.group().strip(), found.start(found.lastindex or 0)))
            at = found.end()
        self.tokens.append(("", len(text)))
        self.next = 0

    def everything(self) -> list[StructField]:
        if not self._word():
            refuse(self.option, None, "Name fields and types, such as id BIGINT, price DOUBLE.", "names no field.")
        return self._fields("", 0)

    def _fields(self, closing: str, depth: int) -> list[StructField]:
        fields: list[StructField] = []
        while True:
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.match(r"[A-Za-z_]", name):
                self._wrong(self.tokens[self.next - 1][1])
            if self._word() == ":":
                self._take()
            fields.append(StructField(name, self._type(depth)))
            self._after(name)
            if self._word() == closing:
                return fields
            self._expect(",")

    def _after(self, name: str) -> None:
        if self._word().lower() == "not":
            what = f"says that {name} is never null, and a payload may lack it."
            refuse(self.option, None, "Leave NOT NULL out.", what)
        if self._word().lower() == "comment":
            self._take()
            if not self._take().startswith("'"):
                self._wrong_here()

    def _type(self, depth: int) -> DataType:
        if depth > DEEPEST:
            refuse(self.option, None, "Read what lies deeper as a string.", f"is nested more than {DEEPEST} deep.")
        word = self._take().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word == "binary" and self.option == "columns":  # the bytes themselves
            return BinaryType()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("varchar", "char"):
            self._numbers()
            return StringType()
        if word == "array":
            self._expect("<")
            item = self._type(depth + 1)
            self._expect(">")
            return ArrayType(item)
        if word == "map":
            self._expect("<")
            key = self._type(depth + 1)
            if not isinstance(key, StringType):
                refuse(self.option, None, "Write MAP<STRING, ...>.", "has a map whose keys are not strings.")
            self._expect(",")
            item = self._type(depth + 1)
            self._expect(">")
            return MapType(key, item)
        if word == "struct":
            self._expect("<")
            fields = self._fields(">", depth + 1)
            self._expect(">")
            return StructType(fields)
        if re.match(r"[a-z_]", word):
            what = f"names the type {word}, which no JSON value becomes here."
            refuse(self.option, None, f"Known: {', '.join(_SIMPLE)}, decimal(p,s), array, map, struct.", what)
        return self._wrong(self.tokens[self.next - 1][1])

    def _decimal(self) -> DecimalType:
        found = self._numbers() if self._word() == "(" else [10]
        precision, scale = (*found, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            refuse(self.option, None, "Write DECIMAL(p, s) with 38 digits at most.", "has an impossible decimal.")
        return DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        found = [self._number()]
        if self._word() == ",":
            self._take()
            found.append(self._number())
        self._expect(")")
        return found

    def _number(self) -> int:
        if not self._word().isdecimal() or len(self._word()) > 9:
            self._wrong_here()
        return int(self._take())

    def _word(self) -> str:
        return self.tokens[self.next][0]

    def _take(self) -> str:
        word = self._word()
        if not word:
            self._wrong_here()
        self.next += 1
        return word

    def _expect(self, word: str) -> None:
        if self._word() != word:
            self._wrong_here()
        self.next += 1

    def _wrong_here(self) -> NoReturn:
        self._wrong(self.tokens[self.next][1])

    def _wrong(self, at: int) -> NoReturn:
        before, behind = self.text[max(0, at - 20) : at], self.text[at : at + 20]
        what = f"cannot be read behind {before!r}, at {behind!r}." if behind else f"ends too early, behind {before!r}."
        refuse(self.option, None, "Write it as Spark's DDL: id BIGINT, items ARRAY<STRUCT<sku: STRING>>.", what)
