"""What the files of a pipeline define: noted on its way to Spark, and refused if rows would be lost or repeated.

Python files register outputs and flows one by one, and are seen as they are. SQL files go to Spark as text: the few
statements that make tables and flows are found in it by their first words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.pipelines.outcome import OBSERVED
from penstock.spark.pipeline_replay import PipelineReplay

__all__ = ["Definitions", "ReplayRules", "make_registry"]

# Spark keeps one log of batches in the folder of such a table, and takes the batches of a second flow for those of the
# first one, which it has already.
_OF_FILES = ("parquet", "orc", "json", "csv", "text", "avro", "xml")
_KEEP_NOTHING = ("noop", "console", "memory")
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAME = r"((?:`[^`]+`|[\w$]+)(?:\s*\.\s*(?:`[^`]+`|[\w$]+))*)"
_TABLE = re.compile(
    rf"\s*CREATE\s+(?:OR\s+REFRESH\s+)?(STREAMING\s+TABLE|MATERIALIZED\s+VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}", re.I
)
_FORMAT = re.compile(r"\bUSING\s+(\w+)", re.I)
_QUERY = re.compile(r"\bAS\s*(?:\(\s*)*(?:SELECT|WITH|FROM|VALUES|TABLE)\b", re.I)
_FLOW = re.compile(rf"\s*CREATE\s+FLOW\s+{_NAME}\s+.*?\bINSERT\s+INTO\s+{_NAME}", re.I | re.DOTALL)
_USE = re.compile(r"\s*USE\b", re.I)


@dataclass
class Definitions:
    """The outputs and flows of a pipeline, each by the name that its file gives it."""

    streaming: dict[str, str | None] = field(default_factory=dict)
    """Streaming tables, with their format; None for Spark's own choice."""
    sinks: dict[str, str | None] = field(default_factory=dict)
    """Sinks, each with the NATS stream that it writes to; None for another format, or another server."""
    flows: list[tuple[str, str]] = field(default_factory=list)
    """Each flow with its target."""

    def add_sql(self, text: str) -> None:
        """Find what a SQL file defines."""
        for statement in _SKIPPED.sub(" ", text).split(";"):
            if found := _TABLE.match(statement):
                kind, name = found.group(1).split()[0].upper(), _plain(found.group(2))
                if kind == "STREAMING":
                    named = _FORMAT.search(statement)
                    self.streaming[name] = named.group(1).lower() if named else None
                    if _QUERY.search(statement, found.end()):
                        self.flows.append((name, name))
            elif found := _FLOW.match(statement):
                self.flows.append((_plain(found.group(1)), _plain(found.group(2))))

    def is_of_files(self, table: str, default: str = "parquet") -> bool:
        """Whether Spark keeps this streaming table as files with a log of batches."""
        return table in self.streaming and (self.streaming[table] or default).lower() in _OF_FILES

    def check(self, default: str = "parquet") -> None:
        """Refuse what Spark would take and lose rows with."""
        counted = Counter(target for _, target in self.flows)
        for table, number in counted.items():
            if number > 1 and self.is_of_files(table, default):
                names = " and ".join(name for name, target in self.flows if target == table)
                raise InputError(
                    f"The table {table} has {number} flows, {names}, and Spark keeps the rows of one: it takes the "
                    "batches of the others for batches that it has.",
                    remedy="Write one flow with a union of the others, or a table for each.",
                )


@dataclass(frozen=True)
class ReplayRules:
    """What the files of a pipeline may define in a replay: nothing that the live pipeline writes to."""

    replay: PipelineReplay
    sinks: Collection[str] = ()
    """Sinks of other formats that a replay may write to, because the files give them a place of their own."""
    shared: bool = False
    """Whether tables of the replay are in the same catalog as those of the pipeline."""

    def check_sink(self, name: str, kind: str, stream: str | None) -> None:
        """Refuse a sink that the live pipeline writes to, or may."""
        if kind == "nats":
            self.replay.check_write(stream)
        elif kind not in _KEEP_NOTHING and name not in self.sinks:
            raise InputError(
                f"This replay would write to the sink {name} of the format {kind}, as the pipeline itself does.",
                remedy="Leave it out if in_replay() of penstock.pipelines, or give it another place then and say so in "
                f"the spec's configuration: spark.penstock.replay.sinks: {name}.",
            )

    def check_table(self, name: str) -> None:
        """Refuse a table that names its own database, if the live pipeline's is in the same catalog."""
        if self.shared and "." in name:
            raise InputError(
                f"This replay would write to the table {name} of the pipeline itself: its name has a database.",
                remedy="Leave the database out of the name, and name it in the spec: a replay has one of its own.",
            )

    def check_sql(self, text: str) -> None:
        """Refuse tables in a SQL file that are the live pipeline's."""
        for statement in _SKIPPED.sub(" ", text).split(";"):
            if self.shared and _USE.match(statement):
                what = f"This replay would leave its own database: a file has {' '.join(statement.split())}."
                raise InputError(what, remedy="Name the database in the spec: a replay has one of its own.")
            if found := _TABLE.match(statement):
                self.check_table(_plain(found.group(2)))


def make_registry(spark: Any, graph: str, *, counting: bool, rules: ReplayRules | None) -> Any:
    """Make the registry of a graph's elements, which has a field `found`.

    With `counting`, the rows of flows whose target does not count them are observed. With rules, whatever breaks them
    is refused before Spark hears of it.
    """
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.sql import functions as F

    class Registry(SparkConnectGraphElementRegistry):
        def __init__(self) -> None:
            super().__init__(spark, graph)
            self.found = Definitions()
            self._left: set[str] = set()

        def register_output(self, output: Output) -> None:
            kind = str(output.format).lower() if isinstance(output, Sink) else None
            if isinstance(output, Sink):
                named = {key.lower(): value for key, value in output.options.items()}
                if rules is not None:
                    rules.check_sink(output.name, str(kind), named.get("stream"))
                here = kind == "nats" and not {"url", "context"} & named.keys()
                self.found.sinks[output.name] = named.get("stream") if here else None
            elif isinstance(output, StreamingTable):
                self.found.streaming[output.name] = output.format
            if rules is not None and not isinstance(output, Sink | TemporaryView):
                rules.check_table(output.name)
            # A view becomes part of whatever reads it, a materialized view is not a query, and our sink counts itself.
            if kind == "nats" or isinstance(output, TemporaryView | MaterializedView):
                self._left.add(output.name)
            super().register_output(output)

        def register_flow(self, flow: Flow) -> None:
            self.found.flows.append((flow.name, flow.target))
            if counting and flow.target not in self._left:
                made = flow.func
                rows = F.count(F.lit(1)).alias("rows")
                flow = replace(flow, func=lambda: made().observe(OBSERVED, rows))
            super().register_flow(flow)

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            if rules is not None:
                rules.check_sql(sql_text)
            self.found.add_sql(sql_text)
            super().register_sql(sql_text, file_path)

    return Registry()


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("`") for part in name.split("."))
