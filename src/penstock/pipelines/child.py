"""The program that runs a pipeline: started by `process` as a child of its own, never imported by others.

It starts Spark with a Connect server on loopback (or joins one), registers the definitions as `spark-pipelines` does,
and runs updates: one, or one after the other until it is told to stop. It says what happens as lines of JSON on the
pipe whose number it is given; whatever Spark logs goes to the log file. A line on stdin asks it to stop after the
update in hand; the end of stdin means that its parent is gone, and it goes, too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import PenstockError
from penstock.pipelines import remote
from penstock.pipelines.eventlog import connect_port
from penstock.pipelines.listening import Listening, counting_registry
from penstock.pipelines.order import Assignment

__all__ = ["main"]

# Spark's names for what went wrong are for people who know Spark; these lines are for everybody.
_OURS = "penstock.errors."


class _Mouth:
    """Where the lines of JSON go."""

    def __init__(self, pipe: TextIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, kind: str, **fields: Any) -> None:
        """Say one thing."""
        with self._lock:
            self._pipe.write(json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n")
            self._pipe.flush()


def _listen(stop: threading.Event, folder: Path) -> None:
    for _ in sys.stdin:
        stop.set()
    shutil.rmtree(folder, ignore_errors=True)  # the connection is in it
    os._exit(1)  # the parent is gone; Java follows when our end of its pipe closes


def _start_local(given: Assignment) -> tuple[Any, str]:
    """Start Spark here with a Connect server on a free port of loopback; give the session and the server's URL."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    classic = SparkSession(SparkContext.getOrCreate(SparkConf().setAll(list(given.spark.items()))))
    return classic, f"sc://localhost:{connect_port(given.folder / 'events')}"


def _reason(error: BaseException) -> str:
    """Find the sentence that a person needs in what Spark says."""
    if isinstance(error, PenstockError):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith(_OURS)]
    return next(iter(ours or lines), type(error).__name__).strip()


def _settings(spark: Any, given: Mapping[str, str], mouth: _Mouth, ours: bool) -> dict[str, str]:
    """Give the settings that a session can have; others hold from the start of a Spark, and another's is not ours."""
    from pyspark.errors import PySparkException

    taken = {}
    for name, value in given.items():
        try:
            spark.conf.set(name, value)
            taken[name] = value
        except PySparkException as error:
            if not str(error.getCondition()).startswith("CANNOT_MODIFY"):
                raise
            if not ours:
                mouth.say("note", text=f"{name} is left as that Spark has it: it can only be set where Spark starts.")
    return taken


def _update(
    spark: Any, given: Assignment, settings: dict[str, str], mouth: _Mouth, listening: Listening | None
) -> None:
    """Run the pipeline once, over everything that is there now."""
    from pyspark.pipelines import cli
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    path, order = given.spec, given.order
    spec = cli.load_pipeline_spec(path)
    database = order.database or spec.database
    graph = create_dataflow_graph(spark, default_catalog=spec.catalog, default_database=database, sql_conf=settings)
    registry = SparkConnectGraphElementRegistry(spark, graph) if listening is None else counting_registry(spark, graph)
    cli.register_definitions(path, registry, spec, spark, graph)
    mouth.say("registered")
    # For each update anew: a server keeps the beginning of every query for a listener until that is gone.
    with listening or nullcontext():
        events = start_run(
            spark,
            graph,
            full_refresh=order.full_refresh,
            full_refresh_all=order.full_refresh_all,
            refresh=[],
            dry=order.dry,
            storage=given.storage,
        )
        for item in events:
            if "pipeline_event_result" in item:
                message = item["pipeline_event_result"].event.message
                mouth.say("event", message=message)
                if listening is not None:
                    listening.hear(message)


def _work(given: Assignment, mouth: _Mouth, stop: threading.Event) -> None:
    from pyspark.pipelines.cli import load_pipeline_spec
    from pyspark.sql.connect.session import SparkSession

    mouth.say("starting")
    classic, order = None, given.order
    url = order.remote
    if url is None:
        classic, url = _start_local(given)
    # Pipeline files say SparkSession.active() and mean the Connect session.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    spark = SparkSession.builder.remote(url).create()
    try:
        mouth.say("ready", spark=spark.version)
        if classic is None:
            mouth.say("looking")
            remote.refuse_other(remote.look(spark, given.streams), remote.stream_ages(given.streams))
        if order.database:
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {order.database}")
        # Those of the caller are last here, too: a session's settings win over those that its Spark was started with.
        wanted = {**load_pipeline_spec(given.spec).configuration, **order.conf}
        settings = _settings(spark, wanted, mouth, ours=classic is not None)
        listening = None
        if classic is None and not order.dry:  # a Spark of our own writes an event log, which tells more
            listening = Listening(spark, mouth.say)
        number = 0
        while not stop.is_set():
            mouth.say("update", number=number)
            _update(spark, given, settings, mouth, listening)
            mouth.say("updated", number=number)
            if not order.continuous:
                break
            number += 1
            given = replace(given, order=replace(order, full_refresh=(), full_refresh_all=False))
            stop.wait(order.pause)
    finally:
        spark.stop()
        if classic is not None:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
            classic.stop()


def main() -> int:
    """Run the order in the file that the first argument names; talk on the pipe that the second one names."""
    warnings.filterwarnings("ignore", message="Failed to set spark")
    stop = threading.Event()
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as pipe:
        mouth = _Mouth(pipe)
        try:
            given = Assignment.from_json(Path(sys.argv[1]).read_bytes())
            threading.Thread(target=_listen, args=(stop, given.folder), daemon=True).start()
            _work(given, mouth, stop)
        except BaseException as error:
            traceback.print_exc()
            mouth.say("failed", reason=_reason(error))
            return 1
        mouth.say("ended")
    return 0


if __name__ == "__main__":
    # Java's pipe and the listening thread need no farewell, and waiting for them could hang.
    status = main()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)
