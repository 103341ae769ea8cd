"""The audit of the sink: a pipeline that is killed again and again loses nothing and repeats nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.spark.audit import Audit, Result


def audit(**options: Any) -> Result:
    """Run an audit that tells how it goes on, and show what it found."""
    result = Audit(say=lambda text: print(text, file=sys.stderr, flush=True), **options).run()
    print(result, file=sys.stderr)
    return result


@pytest.mark.timeout(900)
def test_a_handful_of_kills():
    """A worker, NATS, the driver, and workers that wake up as zombies: every row is there once."""
    result = audit(kills=4, rows=2000, seed=3, kinds=("worker", "nats", "zombie", "driver"))
    assert result.clean, result
    assert result.kills.total() == 4


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_audit_notices_a_broken_fence():
    """The audit can fail: with the fence taken out of the sink, zombies repeat rows and the audit counts them."""
    settings = {"batch": 3000, "atomic_rows": 10, "in_flight": 2, "partitions": 2}
    result = audit(kills=6, rows=6000, seed=5, kinds=("zombie",), unfenced=True, settings=settings)
    assert result.repeated > 0, result


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_hundred_kills():
    """A hundred kills of every kind on one node: every row is there once."""
    result = audit(kills=100, rows=20_000, seed=7)
    assert result.clean, result


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_cluster_under_kills():
    """The same on three nodes, with the leader killed: every row is there once."""
    result = audit(kills=30, rows=10_000, seed=11, nodes=3)
    assert result.clean, result
