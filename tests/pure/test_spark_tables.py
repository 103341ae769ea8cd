"""Options of tables: found among what Spark adds, kept in the columns, and never a secret."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.spark.sink_options import SINK
from penstock.spark.source_options import SOURCE
from penstock.spark.tables import KEY, of_statement, of_table, remember, without_spark

STATEMENT = {
    "provider": "nats",
    "owner": "root",
    "comment": "mine",
    "location": "file:/x",
    "path": "file:/x",
    "stream": "ORDERS",
    "k": "a table property",
    "option.stream": "ORDERS",
    "option.subject": "orders.{region}",
    "option.start": "5",
}


def table(**options: str) -> StructType:
    return remember(StructType().add("subject", "string").add("stream", "string"), options)


def test_the_options_of_a_statement():
    """Of everything that Spark gives for CREATE TABLE, the OPTIONS are what counts; a query has no statement."""
    assert of_statement(STATEMENT) == {"stream": "ORDERS", "subject": "orders.{region}", "start": "5"}
    assert of_statement({"stream": "ORDERS"}) is None
    assert without_spark({"path": "x", "checkpointLocation": "y", "stream": "z"}) == {"stream": "z"}


def test_options_travel_in_the_last_column():
    """A read gets those of reading, a write those of writing; options of the query win."""
    schema = StructType.fromJson(table(**(of_statement(STATEMENT) or {})).jsonValue())
    assert of_table({"Start": "9"}, schema, SOURCE, SINK) == {"Start": "9", "stream": "ORDERS"}
    assert of_table({}, schema, SINK, SOURCE) == {"stream": "ORDERS", "subject": "orders.{region}"}
    assert "stream 'ORDERS'" in schema.fields[-1].metadata["comment"]


def test_who_names_a_stream_means_no_table():
    """A frame that was read from a table is written where its writer says, with nothing of the table."""
    schema = table(stream="ORDERS", domain="hub")
    assert of_table({"stream": "COPY"}, schema, SINK, SOURCE) == {"stream": "COPY"}
    assert of_table({"Context": "prod"}, schema, SINK, SOURCE) == {"Context": "prod"}
    assert of_table({}, StructType().add("data", "string"), SINK, SOURCE) == {}


@pytest.mark.parametrize("name", ["token", "password", "user", "nkey", "jwt", "credentials", "tlsKey"])
def test_secrets_are_refused(name: str):
    """A secret is refused by the name of its option, and not repeated."""
    with pytest.raises(OptionError, match="context") as raised:
        table(stream="ORDERS", **{name: "s3cret"})
    assert "s3cret" not in str(raised.value)


def test_an_address_with_a_login_is_refused():
    """An address may be in a table, a login in it may not."""
    assert KEY in table(stream="ORDERS", url="nats://here:4222").fields[-1].metadata
    with pytest.raises(OptionError, match="context") as raised:
        table(stream="ORDERS", url="nats://s3cret@here:4222")
    assert "s3cret" not in str(raised.value)
