"""The example of a Delta table: each message once, if Delta has a package for this Spark and it can be had."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.server import Server
from tests.live.command import environment
from tests.spark.conftest import Streams
from tests.spark.java import ROOT, java_home

EXAMPLE = ROOT / "examples" / "delta_table.py"
VERSION = ".".join(pyspark.__version__.split(".")[:2])
KNOWN = VERSION in runpy.run_path(str(EXAMPLE))["PACKAGES"]


def run(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run the example in a Spark of its own, because Delta's jars belong to its start."""
    arguments = f"--master local[2] --conf spark.ui.enabled=false --conf spark.jars.ivy={folder}/ivy pyspark-shell"
    env = environment(folder, NATS_URL=url, JAVA_HOME=java_home() or "", PYSPARK_SUBMIT_ARGS=arguments)
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "MASTER": "local[2]"}
    words = [sys.executable, str(EXAMPLE), str(folder / "out")]
    return subprocess.run(words, capture_output=True, text=True, timeout=800, cwd=folder, env=env)


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not KNOWN, reason=f"Delta has no package for Spark {VERSION}; `make oldest` runs this with Spark 4.2"
)
def test_a_delta_table_has_each_message_once(server: Server, tmp_path: Path):
    """Batches that Spark writes again, because their commit was lost, add no row to the table."""
    done = run(tmp_path, server.url)
    if missing := re.search(r"unresolved dependency: ([^\n]+)", done.stdout + done.stderr):
        pytest.skip(f"Maven Central does not give {missing[1]}")
    try:
        assert done.returncode == 0, done.stderr[-6000:]
        assert "100 rows of 100 messages: each once" in done.stdout
    finally:
        Streams(server.url).api("STREAM.DELETE.EVENTS")


@pytest.mark.skipif(KNOWN, reason=f"Delta has a package for Spark {VERSION}")
def test_a_spark_without_delta_is_told(tmp_path: Path):
    """With a Spark for which Delta has no package the example ends at once, and says which one to install."""
    done = run(tmp_path, "nats://127.0.0.1:1")
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == f"Delta has no package for Spark {VERSION}. It has one for Spark 4.2: install that."
    )
