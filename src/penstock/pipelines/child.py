"""The program that runs a pipeline: started by `process` as a child of its own, never imported by others.

It starts Spark with a Connect server on loopback (or joins one), registers the definitions as `spark-pipelines` does,
and runs updates: one, or one after the other until it is told to stop. It says what happens as lines of JSON on the
pipe whose number it is given; whatever Spark logs goes to the log file. A line on stdin asks it to stop after the
update in hand; the end of stdin means that its parent is gone, and it goes, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import InputError
from penstock.pipelines import remote
from penstock.pipelines.agreement import Refresh, Storage
from penstock.pipelines.eventlog import connect_port
from penstock.pipelines.listening import Listening
from penstock.pipelines.order import Assignment
from penstock.pipelines.project import local_path, names_catalog
from penstock.pipelines.reasons import reason
from penstock.pipelines.registry import Definitions, ReplayRules, make_registry
from penstock.pipelines.settings import start_was_asked
from penstock.pipelines.watching import watch_answers, watch_java, watch_server
from penstock.spark.pipeline_replay import SETTING, PipelineReplay

__all__ = ["main"]

_SINKS = f"{SETTING}.sinks"


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


def _start_local(given: Assignment, mouth: _Mouth) -> tuple[Any, str]:
    """Start Spark here with a Connect server on a free port of loopback; give the session and the server's URL."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(list(given.spark.items()))
    java: Any = launch_gateway(conf)  # type: ignore[no-untyped-call]  # pyspark gives it no types
    watch_java(java.proc, mouth.say)
    classic = SparkSession(SparkContext(gateway=java, conf=conf))
    return classic, f"sc://localhost:{connect_port(given.folder / 'events')}"


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
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    path, order = given.spec, given.order
    spec = cli.load_pipeline_spec(path)
    database = order.database or spec.database
    graph = create_dataflow_graph(spark, default_catalog=spec.catalog, default_database=database, sql_conf=settings)
    registry = make_registry(spark, graph, counting=listening is not None, rules=_rules(given, settings))
    start_was_asked()
    cli.register_definitions(path, registry, spec, spark, graph)
    shared = order.remote is not None or names_catalog(spec.catalog, {**spec.configuration, **order.conf})
    storage = _check(spark, given, registry.found, database or "default", shared)
    if storage is not None:
        for note in remote.notes_on_beginning(storage.beginning(registry.found)):
            mouth.say("note", text=note)
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


def _rules(given: Assignment, settings: Mapping[str, str]) -> ReplayRules | None:
    """Give what a replay may define; None for any other run."""
    if given.order.replay is None:
        return None
    sinks = {name.strip() for name in settings.get(_SINKS, "").split(",")}
    return ReplayRules(PipelineReplay.from_json(given.order.replay), sinks, given.order.database is not None)


def _check(spark: Any, given: Assignment, found: Definitions, database: str, shared: bool) -> Storage | None:
    """Refuse definitions, and a storage that does not go with them, before a row is moved; give what can be seen."""
    order = given.order
    replay = None if order.replay is None else PipelineReplay.from_json(order.replay)
    if not start_was_asked() and replay is not None and not replay.switched and replay.start not in (None, "all"):
        raise InputError(
            f"This replay begins at {replay.start}, and no file of the pipeline asks for that: sources would begin "
            "where the files say.",
            remedy='Write .option("start", start_position()) for each of them, from penstock.pipelines.',
        )
    default = spark.conf.get("spark.sql.sources.default", "parquet")
    found.check(default)
    folder, warehouse = local_path(given.storage), _warehouse(spark, given)
    if folder is None or warehouse is None or order.dry:
        return None  # nobody can look at it from here, or nothing will be done
    refresh = Refresh(order.full_refresh, order.full_refresh_all)
    storage = Storage(folder, warehouse, database, sure=not shared)
    storage.check(found, refresh, default)
    return storage


def _warehouse(spark: Any, given: Assignment) -> Path | None:
    """Give the folder of the tables; None if it is not here, or has a name that Spark writes in other ways."""
    setting = "spark.sql.warehouse.dir"
    named = str(given.spark.get(setting, "") if given.order.remote is None else spark.conf.get(setting, ""))
    found = local_path(named) or (Path(named) if named.startswith("/") else None)
    return None if found is None or re.search(r"[%#?\s]", str(found)) else found


def _work(given: Assignment, mouth: _Mouth, stop: threading.Event) -> None:
    from pyspark.pipelines.cli import load_pipeline_spec
    from pyspark.sql.connect.session import SparkSession

    mouth.say("starting")
    classic, order = None, given.order
    url = order.remote
    if url is None:
        classic, url = _start_local(given, mouth)
    else:
        watch_server(url, mouth.say)
    # Pipeline files say SparkSession.active() and mean the Connect session.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    spark = SparkSession.builder.remote(url).create()
    over = threading.Event()
    try:
        mouth.say("ready", spark=spark.version, ui=None if classic is None else classic.sparkContext.uiWebUrl)
        watch_answers(spark, mouth.say, over)
        if classic is None:
            mouth.say("looking")
            remote.refuse_other(remote.look(spark, given.streams), remote.stream_ages(given.streams))
        if order.database:
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {order.database}")
        # Those of the caller are last here, too: a session's settings win over those that its Spark was started with.
        wanted = {**load_pipeline_spec(given.spec).configuration, **order.conf}
        if order.replay is not None:
            wanted[SETTING] = order.replay  # each task learns of it, wherever it runs
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
        over.set()
        spark.stop()
        if classic is not None:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
            classic.stop()


def main() -> int:
    """Run the order in the file that the first argument names; talk on the pipe that the second one names."""
    warnings.filterwarnings("ignore", message="Failed to set spark")
    stop, folder = threading.Event(), None
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as pipe:
        mouth = _Mouth(pipe)
        try:
            given = Assignment.from_json(Path(sys.argv[1]).read_bytes())
            folder = given.spec.parent
            threading.Thread(target=_listen, args=(stop, given.folder), daemon=True).start()
            _work(given, mouth, stop)
        except BaseException as error:
            mouth.say("failed", reason=reason(error, folder))
            with suppress(OSError):  # the disk of the log may be what is full
                traceback.print_exc()
            return 1
        mouth.say("ended")
    return 0


if __name__ == "__main__":
    # Java's pipe and the listening thread need no farewell, and waiting for them could hang.
    status = main()
    for stream in (sys.stderr, sys.stdout):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
