"""A plain SparkSession in a program that the environment's own Python runs, without the environment being activated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.spark.conftest import Streams
from tests.spark.java import QUICK_JVM

JOB = f"""
import sys
if sys.argv[1] == "with":
    import penstock.spark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", {QUICK_JVM!r}).config("spark.driver.host", "127.0.0.1")
spark = builder.getOrCreate()
try:
    print("rows", spark.read.format("nats").option("stream", sys.argv[2]).load().count())
except Exception as error:
    print(*str(error).splitlines()[:2])  # an error of Java has its message in the second line
"""


def run(streams: Streams, stream: str, folder: Path, how: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "VIRTUAL"))}
    done = subprocess.run(
        [sys.executable, "-c", JOB, how, stream],
        env={**env, "PATH": "/usr/bin:/bin", "NATS_URL": streams.url, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_penstock_spark_is_enough(streams: Streams, unique: Callable[[], str], tmp_path: Path):
    """`import penstock.spark` before the session lets Spark look for formats in this Python, and work in it."""
    stream = streams.make(unique())
    streams.fill(stream, 7)
    assert "rows 7" in run(streams, stream, tmp_path, "with")


def test_without_the_import_spark_says_what_it_says(streams: Streams, tmp_path: Path):
    """What the README says is true: nothing of ours runs in such a program, and Spark does not find the format."""
    assert "DATA_SOURCE_NOT_FOUND" in run(streams, "NONE", tmp_path, "without")
