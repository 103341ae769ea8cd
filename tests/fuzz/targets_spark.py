"""What Spark's checkpoints, state stores, queries and payloads hold, and what the sink finds among its markers."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyarrow as pa

from penstock.cli.stream_schema import _learn
from penstock.errors import InputError, PenstockError, PipelineError
from penstock.pipelines.agreement import _newest_file, check_home
from penstock.pipelines.checkpoints import read_flows
from penstock.pipelines.eventlog import EventLog
from penstock.pipelines.order import Assignment
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import NAME, RUNS, STOP, read_progress, read_runs, was_asked
from penstock.pipelines.project import Project
from penstock.pipelines.replays import SWITCH, current_replay
from penstock.pipelines.tables import _logged
from penstock.spark import archive_folder, json_payloads, json_values, told
from penstock.spark import digests as spark_digests
from penstock.spark.assembly_state import Open
from penstock.spark.json_ddl import given_fields, parse_ddl
from penstock.spark.json_learn import LearntType
from penstock.spark.json_learn import ddl as learnt_ddl
from penstock.spark.markers import Head, read_claim, read_lane
from penstock.spark.offsets import Offset
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.positions import parse_position
from penstock.spark.progress import read_progress as read_query_progress
from penstock.spark.sink_options import SinkOptions
from penstock.spark.source_options import SourceOptions
from tests.fuzz.target import target


@target("offsets")
def offsets(content: bytes) -> None:
    """The offset of a query, as a checkpoint gives it back."""
    found = Offset.from_json(content.decode("utf-8", "replace"))
    again = Offset.from_json(json.dumps(found.to_json()))
    assert again == found
    assert list(found.ranges(again)) == []


@target("markers")
def markers(content: bytes) -> None:
    """A message among the sink's markers."""
    for read in (lambda: Head.read(content, 5).body(), lambda: read_lane(content)):
        with suppress(PenstockError):
            read()
    _, taken = read_claim(content)
    assert sum(map(len, taken.values())) <= 8 * len(content)


@target("assembly")
def assembly(content: bytes) -> None:
    """The state of a message in chunks, as Spark's state store gives it back."""
    found = Open.from_bytes(content, 1 << 20)
    found.give_up("late")  # type: ignore[arg-type]  # any word will do
    Open.from_bytes(found.to_bytes(), 1 << 20)


@target("positions")
def positions(content: bytes) -> None:
    """Where a read begins."""
    parse_position(content.decode("utf-8", "replace"), option="start")


def _pairs(content: bytes) -> dict[str, str]:
    lines = content.decode("utf-8", "replace").split("\n")
    return {name: value for name, _, value in (line.partition("=") for line in lines if "=" in line)}


@target("spark-options")
def spark_options(content: bytes) -> None:
    """Options of a query, name=value, a line each; of a source and of a sink."""
    given = _pairs(content)
    for kind in (SourceOptions, SinkOptions):
        said = ""
        try:
            kind.parse(given)
        except PenstockError as error:
            said = str(error)
        said.encode()
        for name in ("token", "password", "nkey"):
            secret = given.get(name, "")
            # Mutation may have copied it to where no secret belongs: there it is text like any other.
            copied = any(secret in text for pair in given.items() if pair[0] != name for text in pair)
            assert len(secret) < 8 or copied or secret not in said


@target("ddl")
def ddl(content: bytes) -> None:
    """A schema, as DDL and as Spark's JSON."""
    text = content.decode("utf-8", "replace")
    with suppress(PenstockError):
        parse_ddl(text)
    given_fields(SourceOptions.parse({"url": "nats://x:1", "stream": "S", "format": "json", "jsonSchema": text}))


@cache
def _schema() -> pa.Schema:
    return pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.float64()),
            ("time", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("a", pa.int32()), ("b", pa.bool_())])),
            ("cost", pa.decimal128(10, 2)),
        ]
    )


@target("json-payloads")
def payloads(content: bytes) -> None:
    """Payloads that should be JSON, a line each: one bad line changes no other row, alone or among others."""
    lines = content.split(b"\n")[:20]
    together = json_payloads.parse(pa.array(lines, pa.binary()), _schema())
    for place, line in enumerate(lines):
        alone = json_payloads.parse(pa.array([line], pa.binary()), _schema())
        assert (alone.errors[0].as_py() is None) == (together.errors[place].as_py() is None)
        for one, other in zip(alone.columns, together.columns, strict=True):
            assert repr(one[0].as_py()) == repr(other[place].as_py())
    with suppress(ValueError):
        json_values.load(content)


@target("learn")
def learn(content: bytes) -> None:
    """Payloads of a stream, a line each, from which columns are learnt: they are a schema that can be given."""
    learnt = LearntType()
    for line in content.split(b"\n")[:20]:
        _learn(learnt, line)
    if learnt.is_map or not learnt.fields:
        return
    json.dumps(learnt.struct())
    text = learnt_ddl(learnt)
    try:
        parse_ddl(text)
    except PenstockError as error:
        raise AssertionError(f"{text!r:.500}: {error}") from error


@target("digests")
def digests(content: bytes) -> None:
    """The digests of a journal."""
    given = content[: len(content) // 16 * 16]
    assert spark_digests.tally(given).rows == len(given) // 16
    spark_digests.repeated([given, given])
    bag = spark_digests.Bag([given])
    assert bag.take(spark_digests.from_bytes(given)).all()


@target("replays")
def replays(content: bytes) -> None:
    """What a replay was asked for, as it travels."""
    found = PipelineReplay.from_json(content.decode("utf-8", "replace"))
    assert PipelineReplay.from_json(found.to_json()) == found


@target("query-progress")
def query_progress(content: bytes) -> None:
    """What Spark tells of a query: what cannot be read is told by a run, and counts for nothing."""
    progress = told.read_told(content)
    outcome = Outcome()
    outcome.hear({"kind": "progress", "progress": progress})
    assert outcome.counted != bool(outcome.notes)
    assert outcome.counted or not outcome.flows
    json.dumps([flow.plain() for flow in outcome.flows.values()])
    read_query_progress(progress)


@target("pipeline-files")
def pipeline_files(content: bytes) -> None:
    """The files that runs of a pipeline leave for the next one."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        for file in ("home.json", NAME, RUNS, STOP, SWITCH):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        offsets_of = folder / "_checkpoints" / "sink" / "flow" / "0"
        for part in ("offsets", "commits"):
            (offsets_of / part).mkdir(parents=True)
            (offsets_of / part / "3").write_bytes(b"v1\n{}\n" + content)
        read_progress(folder)
        read_runs(folder)
        was_asked(folder)
        with suppress(PenstockError):
            read_flows(folder)
        with suppress(PenstockError):
            current_replay(_project(folder))
        with suppress(PenstockError):
            Assignment.from_json(content)
        check_home(folder, "4.2")


def _project(folder: Path) -> Project:
    return Project(folder / "spark-pipeline.yml", "p", folder.as_uri())


@target("event-log")
def event_log(content: bytes) -> None:
    """Spark's event log, of a Spark that is our own child."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name) / "eventlog_v2_app"
        folder.mkdir()
        (folder / "events_1_app").write_bytes(content)
        outcome = Outcome()
        for event in EventLog(Path(name), outcome.miss).read():
            outcome.read(event)
        assert outcome.counted != bool(outcome.notes)


@target("archive")
def archive(content: bytes) -> None:
    """The notes of an archive."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for note in (archive_folder.IDENTITY, archive_folder.PROGRESS):
            (Path(name) / note).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / note).write_bytes(content)
        with suppress(PenstockError):
            archive_folder.read_identity(name)
        archive_folder.read_progress(name, "S")


@target("table-log")
def table_log(content: bytes) -> None:
    """The log of a streaming table, two batches with an empty line between them: files of its folder, or an error."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name) / "table"
        (log := folder / "_spark_metadata").mkdir(parents=True)
        for number, batch in enumerate(content.split(b"\n\n")[:2]):
            (log / f"{number}").write_bytes(batch)
        if (newest := _newest_file(log)) is not None:
            str(newest).encode()
        try:
            files = _logged(log, folder)
        except (InputError, PipelineError):
            return
        for file in files:
            assert folder in file.parents
            assert ".." not in file.parts
            str(file).encode()
