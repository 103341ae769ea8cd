"""The Java of the tests: where it is, and how it starts quickly."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The JVMs of tests live for seconds or minutes: the second compiler costs them more than it brings.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_home() -> str | None:
    """Give the Java that the set-up found, unless the environment names one."""
    noted = ROOT / ".venv" / ".java-home"
    return os.environ.get("JAVA_HOME") or (noted.read_text().strip() if noted.exists() else None)


def set_up_java() -> None:
    """Make every Spark that this process starts, and its children start, take that Java and start quickly."""
    if home := java_home():
        os.environ["JAVA_HOME"] = home
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
