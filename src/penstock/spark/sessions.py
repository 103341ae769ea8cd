"""A Spark that is known to work: a session with the checks that Spark itself answers with a stack trace.

`session()` starts Spark, here or on a cluster, once Java and the packages are found. `check(spark)` runs a tiny job
and tells whether the executors have what the format "nats" needs; a Python worker without pyarrow or without Penstock
otherwise only says that it "failed to connect back".
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.spark.redaction import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Executor", "check", "check_java", "packages", "refuse_lacking", "session"]

OLDEST_JAVA = 17


def session(name: str = "penstock", master: str | None = None, **conf: Any) -> SparkSession:
    """Start Spark, or give the session that runs; `local[*]` if nobody names a master.

    `conf` are settings with their dots written as two underscores: `spark__sql__shuffle__partitions=8`. Unless they
    say otherwise, Spark hides secrets in the texts and options that it shows.
    """
    check_java()
    from pyspark.sql import SparkSession

    # Workers must be this Python: another one may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_MASTER" not in os.environ and "MASTER" not in os.environ:
        builder = builder.config("spark.master", "local[*]")
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    return builder.getOrCreate()


def check_java() -> str:
    """Find the Java that Spark will start and give its path; InputError if there is none that will do."""
    remedy = "Install Java 17 or newer (openjdk-17-jre-headless or openjdk-21-jre-headless), or set JAVA_HOME to one."
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise InputError(f"JAVA_HOME is {home}, and there is no bin/java in it.", remedy=remedy)
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise InputError("Spark needs Java, and there is none.", remedy=remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{java} does not run: {error}.", remedy=remedy) from None
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) < OLDEST_JAVA:
        version = found.group(1) if found else "none"
        raise InputError(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {version}.", remedy=remedy)
    return java


@dataclass(frozen=True)
class Executor:
    """What one executor's Python has; None for a package that is missing."""

    host: str
    python: str
    penstock: str | None
    pyarrow: str | None


def packages(_: object = None) -> tuple[str, str, str | None, str | None]:
    """Give what the Python that this runs in has, as `Executor` takes it; it needs nothing but Python there."""
    import importlib.metadata
    import platform

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return platform.node(), platform.python_version(), version("penstock"), version("pyarrow")


# Carried by value: an executor that lacks Penstock could not import it to find that out.
packages.__module__ = "__main__"


def check(spark: SparkSession, tasks: int = 16) -> list[Executor]:
    """Look at the Python of the executors; InputError says what is missing where.

    Spark runs the tasks of an auto-registered source with the Python that `PYSPARK_DRIVER_PYTHON` or, without it,
    `PYSPARK_PYTHON` names, on every machine: the path must exist on all of them.
    """
    from pyspark.sql.functions import udf

    # A session of Spark Connect has no RDDs; a plain Python function needs nothing that might be missing there.
    look = udf(packages, "host string, python string, penstock string, pyarrow string", useArrow=False)
    found = spark.range(0, tasks, 1, tasks).select(look("id").alias("found")).collect()
    executors = [Executor(*item) for item in sorted({tuple(row.found) for row in found}, key=str)]
    refuse_lacking(executors, importlib.metadata.version("penstock"))
    return executors


def refuse_lacking(executors: list[Executor], ours: str) -> None:
    """Refuse executors that lack a package, or have another Penstock than the driver."""
    for item in executors:
        for package in ("penstock", "pyarrow"):
            if getattr(item, package) is None:
                raise InputError(
                    f"The executor on {item.host} has no {package} in its Python {item.python}.",
                    remedy="Install 'penstock[spark]' on every executor, or ship it: spark.archives with an "
                    "environment, and PYSPARK_PYTHON pointing into it.",
                )
        if item.penstock != ours:
            raise InputError(
                f"The executor on {item.host} has penstock {item.penstock}, the driver {ours}.",
                remedy="Install the same version everywhere.",
            )
