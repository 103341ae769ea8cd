"""The Java of the tests: where it is, and how it starts quickly."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(pyspark.__file__).parent
# What is made of one Spark serves that one only: pipelines hang if their classes come from a copy in another folder.
_KEY = f"{zlib.crc32(str(INSTALLED).encode()):08x}"
# The JVMs of tests live for seconds or minutes: the second compiler costs them more than it brings, and a fifth of the
# time in which they start goes into verifying Spark's own classes.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
ARCHIVE = ROOT / ".venv" / f"spark-{_KEY}.jsa"
"""Spark's classes, as `classes.py` left them; a JVM that cannot use it says nothing and loads them one by one."""
_FROM_ARCHIVE = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"
QUICK_JVM = _QUICK + (_FROM_ARCHIVE if ARCHIVE.exists() and " " not in str(ARCHIVE) else "")


HOME = ROOT / ".venv" / f"spark-home-{_KEY}"
"""A home of Spark without the archives that its own code in Python is packed in, as `classes.py` laid it out.

Spark puts them in front of what is installed, and a Python keeps nothing of what it compiled out of an archive: each of
the processes that look for a source, plan a read or write rows would compile half of pyspark before it begins.
"""


def lay_out_home() -> None:
    """Lay out that home, of links, unless it is there."""
    if HOME.exists():
        return
    with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
        made = Path(folder) / "home"
        (made / "python").mkdir(parents=True)
        for inside in INSTALLED.iterdir():
            if inside.name != "python":
                (made / inside.name).symlink_to(inside)
        for inside in (INSTALLED / "python").iterdir():
            if inside.name != "lib":
                (made / "python" / inside.name).symlink_to(inside)
        made.rename(HOME)


def java_home() -> str | None:
    """Give the Java that the set-up found, unless the environment names one."""
    noted = ROOT / ".venv" / ".java-home"
    return os.environ.get("JAVA_HOME") or (noted.read_text().strip() if noted.exists() else None)


def set_up_java() -> None:
    """Make every Spark that this process starts, and its children start, take that Java and start quickly.

    Java unpacks libraries where temporary files go, and one that is killed leaves them: so it has a place of its own.
    """
    if home := java_home():
        os.environ["JAVA_HOME"] = home
    if HOME.exists():
        os.environ.setdefault("SPARK_HOME", str(HOME))
    if "SPARK_SUBMIT_OPTS" not in os.environ:
        folder = tempfile.mkdtemp(prefix="penstock-java-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -Djava.io.tmpdir={folder}"
