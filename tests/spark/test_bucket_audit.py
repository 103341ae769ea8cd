"""The audit of the sink of buckets: whatever is killed, no key ends with an old value, and none is brought back."""

from __future__ import annotations

import sys

import pytest

from tests.spark.audit_driver import SessionDriver
from tests.spark.bucket_audit import SERVICE, BucketAudit, account_keys, audit_in_rounds


def say(text: str) -> None:
    """Tell how it goes on: these tests take their time."""
    print(text, file=sys.stderr, flush=True)


def test_old_values_and_lost_numbers_are_counted():
    """The count can fail: a number that is missing, and values that were brought back or stored twice."""
    found = {str(key): [b"1", SERVICE, b"2"] for key in range(400)}
    assert account_keys(800, found) == (0, 0)
    found["7"] = [b"1"]
    found["8"] = [b"1", b"2", SERVICE, b"1", b"2"]
    found["9"] = [b"2", b"2"]
    assert account_keys(800, found) == (1, 2)


@pytest.mark.timeout(900)
def test_a_few_kills(spark):
    """NATS is killed, and the query cut off and started anew, while a service writes to the same keys."""

    class InSession(BucketAudit):
        def _new_driver(self) -> SessionDriver:  # no start of Spark
            self.drivers.append(SessionDriver(spark))
            return self.drivers[-1]

    audit = InSession(kills=2, rows=600, seed=3, kinds=("nats", "driver"), say=say)
    result = audit.run()
    say(str(result))
    assert result.clean, result
    assert result.kills.total() == 2
    assert audit.writes


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_handful_of_kills(spark):
    """A worker, a task, NATS, and workers that wake up as zombies of a killed driver."""
    result = BucketAudit(kills=4, rows=1500, seed=3, kinds=("worker", "task", "nats", "zombie"), say=say).run()
    assert result.clean, result


@pytest.mark.heavy
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills():
    """A hundred kills of every kind: no key has an old value, none is missing, nothing was brought back."""
    result = audit_in_rounds(100, 25, seed=7, kind=BucketAudit, say=say)
    assert result.clean, result
    assert result.kills.total() == 100


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_cluster_under_kills():
    """The same on three nodes, with the leader killed."""
    result = audit_in_rounds(20, 10, seed=11, kind=BucketAudit, nodes=3, say=say)
    assert result.clean, result
