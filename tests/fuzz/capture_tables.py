"""What Spark, protoc and our own command write, and payloads as they stand in streams, for the corpus."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.channels.wire import MESSAGES
from tests.live.console.prometheus_answers import GOLDEN as ANSWERS

__all__ = ["from_files", "from_tables"]

Write = Callable[..., None]
_GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def from_files(write: Write) -> None:
    """Take what golden files hold, and what other programs put into files."""
    write("prometheus", [json.dumps(answer).encode() for answer in ANSWERS["answers"].values()])
    pages = [path.read_bytes() for path in (_GOLDEN / "nats_streaming_pages").glob("*.json")]
    names = [
        item["name"]
        for item in json.loads((_GOLDEN / "nats_streaming_pages" / "channelsz.json").read_bytes())["channels"]
    ]
    write("old-pages", [*pages, json.dumps({"names": names}).encode()], whole=True)
    write("protobuf", _described(), whole=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        subprocess.run(["spark-pipelines", "init", "--name", "made"], cwd=name, check=True, capture_output=True)
        made = [path.read_bytes() for path in Path(name).rglob("spark-pipeline.y*ml")]
        write("project", [item.replace(name.encode(), b"/srv") for item in made])


def _described() -> list[bytes]:
    """Give files of types: protoc wrote their descriptions into the modules that it made of them."""
    from google.protobuf import descriptor_pb2, timestamp_pb2

    kinds: dict[str, Any] = {kind.DESCRIPTOR.file.name: kind.DESCRIPTOR.file for kind in MESSAGES.values()}
    kinds[timestamp_pb2.DESCRIPTOR.name] = timestamp_pb2.DESCRIPTOR
    found = descriptor_pb2.FileDescriptorSet()
    for file in kinds.values():
        found.file.add().ParseFromString(file.serialized_pb)
    alone = descriptor_pb2.FileDescriptorSet()
    alone.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    return [found.SerializeToString(), alone.SerializeToString()]


def from_tables(write: Write, spark: Any, folder: Path) -> None:
    """Take schemas and payloads as a real Spark writes them, and the log of a table that a query of it writes."""
    rows = spark.range(6).selectExpr(
        "id",
        "concat('name ', id) name",
        "id / 3 price",
        "timestamp '2026-01-31 12:00:00' + make_interval(0, 0, 0, cast(id as int)) time",
        "date '2026-01-31' day",
        "array('a', cast(id as string)) tags",
        "named_struct('a', cast(id as int), 'b', id > 2) inner",
        "cast(id as decimal(10, 2)) cost",
        "map('k', id) more",
        "if(id > 3, null, id) some",
    )
    schema = rows.schema
    ddl = spark.sparkContext._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL()
    write("ddl", [ddl.encode(), schema.json().encode(), schema["inner"].dataType.simpleString().encode()])
    payloads = [text.encode() for text in rows.toJSON().collect()]
    write("json-payloads", [b"\n".join(payloads), payloads[0]])
    write("learn", [b"\n".join(payloads), payloads[0], ("\n".join(_odd())).encode()])
    kept = folder / "kept"
    rows.repartition(3).write.parquet(str(kept / "in"))
    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(kept / "in"))
    sink = {"path": str(kept / "table"), "checkpointLocation": str(kept / "checkpoint")}
    query = read.writeStream.format("parquet").options(**sink).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    log = sorted(path for path in (kept / "table" / "_spark_metadata").iterdir() if path.name.isdecimal())
    batches = [path.read_bytes().replace(str(kept).encode(), b"/srv") for path in log]
    write("table-log", [b"\n\n".join(batches[:2]), *batches[:1]])


def _odd() -> list[str]:
    """Give payloads of several kinds, as a stream has them that several programs write to."""
    return [
        '{"a b":1,"A":"x"}',
        '{"a b":2.5,"A":null,"deep":{"x":[{"y":1}]}}',
        "[1]",
        "5",
        '"x"',
        '{"n":12345678901234567890}',
    ]
