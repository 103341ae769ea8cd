"""The audit of the sink of objects: whatever is killed, each is whole under its name, and no chunk is left over."""

from __future__ import annotations

import sys

import pytest

from tests.spark.audit_driver import SessionDriver
from tests.spark.audit_job import content_of
from tests.spark.object_audit import NAMES, Found, ObjectAudit, audit_in_rounds, left_over


def say(text: str) -> None:
    """Tell how it goes on: these tests take their time."""
    print(text, file=sys.stderr, flush=True)


def test_what_is_wrong_is_counted():
    """The count can fail: an object that is missing, old or torn, and chunks that no object has."""
    found = Found()
    for number in range(NAMES, 2 * NAMES):
        found.note(str(number % NAMES), number, content_of(number))
    assert (found.lost(2 * NAMES), found.torn, found.old) == (0, 0, 0)
    assert found.lost(2 * NAMES + 1) == 1
    found.note("7", 7, content_of(7))
    found.note("8", NAMES + 8, content_of(NAMES + 9))
    found.note("9", NAMES + 9, None)
    assert (found.lost(2 * NAMES), found.torn, found.old) == (0, 2, 1)
    assert left_over({"a": 3, "b": 1}, {"a": 3, "b": 1}) == 0
    assert left_over({"a": 3, "b": 1}, {"a": 2, "c": 4}) == 6


@pytest.mark.timeout(900)
def test_a_few_kills(spark):
    """NATS is killed, and the query cut off and started anew, while somebody reads the objects."""

    class InSession(ObjectAudit):
        def _new_driver(self) -> SessionDriver:  # no start of Spark
            self.drivers.append(SessionDriver(spark))
            return self.drivers[-1]

    settings = {"batch": 30, "atomic_bytes": "256k"}
    audit = InSession(kills=2, rows=60, seed=3, kinds=("nats", "driver"), settings=settings, say=say)
    result = audit.run()
    say(str(result))
    assert result.clean, result
    assert result.kills.total() == 2
    assert audit.reads.read


@pytest.mark.heavy
@pytest.mark.timeout(3 * 3600)
def test_many_kills():
    """Kills of every kind, the driver, its workers and tasks, NATS, and workers that wake up as zombies."""
    result = audit_in_rounds(30, 15, seed=7, kind=ObjectAudit, say=say)
    assert result.clean, result
    assert result.kills.total() == 20


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_cluster_under_kills():
    """The same on three nodes, with the leader killed."""
    result = audit_in_rounds(15, 15, seed=11, kind=ObjectAudit, nodes=3, say=say)
    assert result.clean, result
