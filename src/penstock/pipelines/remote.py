"""A look at a Spark Connect server before a pipeline runs on it: has it what the pipeline needs, and is its NATS ours?

With `--remote` the pipeline's files are read here, and its sources and sinks run there, with the Python and the NATS
connection of that machine. Spark would answer a missing package with a stack trace, and another NATS server with an
empty result. So a source that is carried there by value, and needs nothing but Python and pyspark, tells what it finds.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.contexts import load_options
from penstock.errors import InputError, NotFoundError, OptionError, PenstockError, PipelineError
from penstock.json_text import load_json
from penstock.options import ConnectionOptions
from penstock.pipelines.watching import DEFAULT_PORT, connect_address
from penstock.spark.markers import marker_filter
from penstock.spark.sessions import Executor, packages, refuse_lacking
from penstock.wire.jetstream.answers import check_stream_answer, held_subjects

__all__ = ["Sight", "check_remote", "look", "notes_on_beginning", "refuse_other", "stream_ages", "stream_infos"]

_PATIENCE = 10.0  # seconds for a connection to a Connect server


@dataclass(frozen=True)
class Sight(Executor):
    """What the driver of a Connect server finds on its machine."""

    named: bool
    """Whether its environment names a NATS server."""
    problem: str | None
    """Why it cannot ask NATS; None if it can."""
    streams: Mapping[str, str | None]
    """For each stream, when it was made, as its NATS says; None if there is none of that name."""


def check_remote(url: str) -> None:
    """Refuse what is not an address of a Connect server, and one where nobody listens: Spark would try for minutes."""
    try:
        host, port = connect_address(url)
    except ValueError:
        # What follows the host may hold a token.
        what = f"{url.partition('/;')[0]!r} is not a Spark Connect address."
        raise OptionError(what, remedy=f"Write sc://host:{DEFAULT_PORT}.", option="remote") from None
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        what = f"The Spark Connect server at {host}:{port} cannot be reached: {error.strerror or error}."
        raise PipelineError(what, remedy="Start it, or mend the address.") from None


def stream_infos(options: ConnectionOptions, names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Ask a NATS server what it tells of each stream; None of one that is not there."""
    from penstock.wire.bulk import BulkConnection

    found: dict[str, dict[str, Any] | None] = {}
    with BulkConnection(options) as bulk:
        for name in names:
            try:
                found[name] = check_stream_answer(bulk.api(f"STREAM.INFO.{name}"))
            except NotFoundError:
                found[name] = None
    return found


def stream_ages(names: Iterable[str]) -> dict[str, str | None]:
    """Ask the NATS server that the environment names when each stream was made: two streams never share that."""
    infos = stream_infos(load_options(), names)
    return {name: None if info is None else str(info["created"]) for name, info in infos.items()}


def notes_on_beginning(streams: Mapping[str, str]) -> Iterator[str]:
    """Tell of flows that begin anew and write to streams that hold rows already: their rows are added to those."""
    from penstock.wire.bulk import BulkConnection

    if not streams:
        return
    with contextlib.suppress(PenstockError), BulkConnection(load_options()) as bulk:  # the sink tells what is wrong
        for flow, stream in streams.items():
            info = bulk.api(f"STREAM.INFO.{stream}", {"subjects_filter": marker_filter(stream)})
            if held := check_stream_answer(info)["state"]["messages"] - sum(held_subjects(info).values()):
                yield (
                    f"The flow {flow} begins anew, and its stream {stream} holds {held:,} messages already: those that "
                    "it writes are added to them. A replay would write to a new stream."
                )


def look(spark: Any, names: Iterable[str]) -> Sight:
    """Look at the Connect server behind a session and at its executors; InputError says what is amiss where."""
    spark.dataSource.register(_source())
    rows = spark.read.format("penstock_look").option("streams", json.dumps(sorted(names))).load().collect()
    sight = Sight(**load_json(rows[0]["driver"]))
    executors = {Executor(row["host"], row["python"], row["penstock"], row["pyarrow"]) for row in rows}
    ours = importlib.metadata.version("penstock")
    try:
        refuse_lacking([sight, *sorted(executors, key=str)], ours)
    except InputError as error:
        what = error.what.replace("The executor on", "Spark on").replace("the driver", "this machine")
        raise InputError(what, remedy="Install the same 'penstock[spark]' for the Connect server's Python.") from None
    return sight


def refuse_other(sight: Sight, ours: Mapping[str, str | None]) -> None:
    """Refuse a Connect server whose NATS is not the one that holds our streams."""
    if sight.problem is not None:
        if sight.named:
            what = f"The Spark Connect server on {sight.host} cannot ask NATS: {sight.problem}"
            raise InputError(what, remedy="Set NATS_URL or NATS_CONTEXT where that server is started.")
        return  # the files may say where their streams are; if they do not, the source says what is missing
    for name, made in ours.items():
        if sight.streams.get(name) != made:
            there = "has no such stream" if sight.streams.get(name) is None else "has another one of that name"
            raise InputError(
                f"The stream {name} is here, and the NATS of the Spark Connect server on {sight.host} {there}.",
                remedy="Set NATS_URL or NATS_CONTEXT where that server is started to the NATS of this run.",
            )


def _source() -> Any:
    """Make the source. Its classes are local, so that they are carried by value: Penstock may be missing there."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    names = ("host", "python", "penstock", "pyarrow")

    class Reader(DataSourceReader):
        def __init__(self, options: Any) -> None:
            self.names = load_json(options["streams"])

        def partitions(self) -> list[InputPartition]:
            """Run by the driver."""
            import os

            facts: dict[str, Any] = {
                **dict(zip(names, packages(), strict=True)),
                "named": False,
                "problem": None,
                "streams": {},
            }
            if facts["penstock"] is not None:
                from penstock.contexts import selected_context
                from penstock.errors import PenstockError
                from penstock.pipelines.remote import stream_ages

                try:
                    named = os.environ.get("NATS_URL") or os.environ.get("NATS_CONTEXT") or selected_context()
                    facts["named"] = bool(named)
                    facts["streams"] = stream_ages(self.names)
                except PenstockError as error:
                    facts["problem"] = str(error)
            return [InputPartition(json.dumps(facts))] * 4  # so many tasks look around, on as many executors

        def read(self, partition: InputPartition) -> Any:
            """Run by the executors."""
            yield partition.value, *packages()

    class Look(DataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_look"

        def schema(self) -> str:
            return "driver string, host string, python string, penstock string, pyarrow string"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options)

    return Look
