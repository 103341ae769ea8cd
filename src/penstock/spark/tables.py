"""Tables of Spark SQL: `CREATE TABLE orders USING nats OPTIONS (stream 'ORDERS')`, and what becomes of its options.

Spark gives the OPTIONS of a table to a Python source once, when the table is created without a list of columns and the
source is asked for them. Later queries of the table bring the columns and nothing else. So the options travel in the
columns: as metadata of the last one, which Spark keeps in its catalog and hands over with every read and every INSERT.
Metadata of columns is copied into files that are written from a table: nothing secret may be in it.

Pure: options in, options out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.errors import OptionError
from penstock.json_text import load_json
from penstock.spark.options import CONNECTION, Option

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["of_statement", "of_table", "remember", "without_others", "without_spark"]

# What Spark itself adds to the options of a query, or takes from them.
OF_SPARK: Final = ("path", "checkpointlocation", "queryname")
# Spark adds the provider of a table to its properties, and repeats each of the OPTIONS behind this prefix.
PROVIDER, PREFIX = "provider", "option."
KEY: Final = "penstock.options"
# Whoever names one of these says what is read or written, or where, and means no table: a frame may bring along the
# metadata of any table, or of a file from elsewhere, and must not decide where a login is sent.
TARGETS: Final = {"stream", "streams", "channel", "backup", "store", "bucket", "objects"} | {
    option.name.lower() for option in CONNECTION
}
LONGEST_SHOWN = 80
SECRET: Final = ("user", "password", "token", "nkey", "jwt", "credentials", "tlskey")  # and all that end in "secret"


def without_spark(given: Mapping[str, str]) -> dict[str, str]:
    """Leave out what is Spark's among the options of a query; load() with a path stays, to be refused."""
    return {name: value for name, value in given.items() if name.lower() not in OF_SPARK}


def of_statement(given: Mapping[str, str]) -> dict[str, str] | None:
    """Give the OPTIONS of the CREATE TABLE that is being executed; None for anything else."""
    lowered = {name.lower(): value for name, value in given.items()}
    if PROVIDER not in lowered:
        return None
    return {name[len(PREFIX) :]: value for name, value in lowered.items() if name.startswith(PREFIX)}


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Put the options of a table into its columns; OptionError if one of them is a secret."""
    for name, value in options.items():
        telling = name.lower() in SECRET or name.lower().endswith("secret")
        if telling or (name.lower() in ("url", "socksproxy") and "@" in value):
            raise OptionError(
                f"The option {name} holds a secret, which a table would keep and show.",
                remedy="Save it as a context, with penstock context add, and name that: OPTIONS (context 'prod').",
                option=name,
            )
    last = schema.fields[-1]
    shown = ", ".join(f"{name} {value!r}" for name, value in sorted(options.items()) if len(value) <= LONGEST_SHOWN)
    last.metadata = {"comment": f"USING nats OPTIONS ({shown})", KEY: json.dumps(dict(sorted(options.items())))}
    return schema


def of_table(
    given: Mapping[str, str], schema: StructType, wanted: Iterable[Option], others: Iterable[Option]
) -> dict[str, str]:
    """Give the options of a query: those of the table that it reads or writes, and over them its own.

    A frame that was read from a table has the table's metadata, too: whoever writes it somewhere else says so.
    """
    own = dict(given)
    if {name.lower() for name in own} & TARGETS:
        return own
    for field in schema.fields:
        if isinstance(kept := (field.metadata or {}).get(KEY), str):
            lowered = {name.lower() for name in own}
            table = {name: value for name, value in load_json(kept).items() if name.lower() not in lowered}
            return {**without_others(table, wanted, others), **own}
    return own


def without_others(given: Mapping[str, str], wanted: Iterable[Option], others: Iterable[Option]) -> dict[str, str]:
    """Leave out what only the other direction knows: a table is read and written with the same options."""
    known = {option.name.lower() for option in (*CONNECTION, *wanted)}
    leave = {option.name.lower() for option in others} - known
    return {name: value for name, value in given.items() if name.lower() not in leave}
