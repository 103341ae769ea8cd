"""A Spark that works, or a sentence that says why it does not."""

from __future__ import annotations

import sys

import pytest

import penstock.spark
from penstock.errors import InputError
from penstock.spark.sessions import Executor, check, check_java, refuse_lacking


def test_public_names():
    """Every name that the package offers is there, and no other one."""
    for name in penstock.spark.__all__:
        assert getattr(penstock.spark, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        penstock.spark.nothing  # noqa: B018  # the access is the test


def test_executors_are_looked_at(spark):
    """The check runs on the executors and tells what their Python has."""
    found = check(spark, tasks=2)
    assert found
    assert all(item.penstock and item.pyarrow and item.python in sys.version for item in found)


def test_what_an_executor_lacks_is_said():
    """A missing package and another version are told with the host and the remedy."""
    with pytest.raises(InputError, match=r"executor on far has no pyarrow .* Install"):
        refuse_lacking([Executor("far", "3.11", "1.0", None)], "1.0")
    with pytest.raises(InputError, match="executor on far has no penstock"):
        refuse_lacking([Executor("far", "3.11", None, "18")], "1.0")
    with pytest.raises(InputError, match=r"has penstock 0\.9, the driver 1\.0"):
        refuse_lacking([Executor("far", "3.11", "0.9", "18")], "1.0")


def test_java_is_looked_for(monkeypatch, tmp_path):
    """A Java that is missing, or too old, or none, is told before Spark is started."""
    assert check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="there is no bin/java in it"):
        check_java()
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(InputError, match=r"needs Java 17 or newer, and .* is 11"):
        check_java()
    java.write_text("nothing that runs")
    with pytest.raises(InputError, match="does not run"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="needs Java, and there is none"):
        check_java()
