"""Spark's own processes from pip's pyspark: a master and workers, or a Connect server, gone when whoever asked is gone.

Each leads a session of its own, so that all that it starts is found and ended with it. The kernel ends it when the
tests are killed: a worker takes its executors along, and they their Pythons.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from penstock.pipelines.process import _kill_session
from tests.spark.java import QUICK_JVM, java_home

# Runs before Spark's script takes its place: SIGTERM when the parent dies, and at once if it is dead already.
_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def spark_process(
    folder: Path,
    name: str,
    ready: str,
    *arguments: str,
    memory: str = "256m",
    environment: Mapping[str, str] | None = None,
) -> Iterator[re.Match[str]]:
    """Start one of Spark's processes, and give what its log says when it is ready."""
    log = folder / f"{name}.log"
    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    known = {key: value for key, value in os.environ.items() if not key.startswith(("NATS_", "SPARK_"))}
    ours = {"SPARK_HOME": str(home), "JAVA_HOME": java_home() or "", "SPARK_LOCAL_IP": "127.0.0.1"}
    ours |= {"SPARK_DAEMON_MEMORY": memory, "PYSPARK_PYTHON": sys.executable}
    temporary = folder / "java"
    temporary.mkdir(exist_ok=True)
    ours |= dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"), f"{QUICK_JVM} -Djava.io.tmpdir={temporary}")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _LAUNCH,
                str(os.getpid()),
                str(home / "bin" / "spark-class"),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**known, **ours, **(environment or {})},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 180
        while not (found := re.search(ready, log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{name} is not ready: {log.read_text()[-2000:]}"
            time.sleep(0.1)
        yield found
    finally:
        _kill_session(process.pid)
        process.wait(10)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A standalone master and two workers with a core each, on loopback; gives the master's URL."""
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        found = stack.enter_context(
            spark_process(
                folder,
                "master",
                r"Starting Spark master at (spark://\S+)",
                "org.apache.spark.deploy.master.Master",
                *("--port", "0", *here),
            )
        )
        for number in (1, 2):
            stack.enter_context(
                spark_process(
                    folder,
                    f"worker{number}",
                    "Successfully registered with master",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), *here),
                    found[1],
                )
            )
        yield found[1]


@contextmanager
def connect_server(
    folder: Path, conf: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A Spark Connect server with two cores on a free port of loopback; gives its URL."""
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(conf or {}),
    }
    with spark_process(
        folder,
        "connect",
        r"Spark Connect server started at: \S*?:(\d+)",
        "org.apache.spark.deploy.SparkSubmit",
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
        memory="1g",
        environment=environment,
    ) as found:
        yield f"sc://127.0.0.1:{found[1]}"
