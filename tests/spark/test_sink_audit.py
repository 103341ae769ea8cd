"""The audit of the sink: a pipeline that is killed again and again loses nothing and repeats nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from tests.live.sinking import make_stream
from tests.spark.audit import UNFENCED, Audit, Result, account, audit_in_rounds, count
from tests.spark.audit_driver import SessionDriver


def say(text: str) -> None:
    """Tell how it goes on: these tests take their time."""
    print(text, file=sys.stderr, flush=True)


def audit(**options: Any) -> Result:
    """Run an audit that tells how it goes on, and show what it found."""
    result = Audit(say=say, **options).run()
    say(str(result))
    return result


def test_what_is_lost_and_what_is_repeated_is_counted(server, unique):
    """The count can fail: it finds the one row that is missing and the two that are there too often."""
    bulk = TaskConnection(ConnectionOptions(server.url))
    name = unique("SINK")
    make_stream(bulk, name)
    for number in (0, 1, 1, 3, 3, 4):
        bulk.request(f"{name}.rows", b"%d" % number)
    assert account(5, count(bulk, name)) == (1, 2)
    bulk.close()


@pytest.mark.timeout(900)
def test_a_handful_of_kills(spark):
    """A worker, a task, NATS, and workers that wake up as zombies of a killed driver: every row is there once."""
    kinds = ("worker", "task", "nats", "zombie")
    result = audit(kills=4, rows=1500, seed=3, kinds=kinds, successor=SessionDriver(spark))
    assert result.clean, result
    assert result.kills.total() == 4


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_audit_notices_a_broken_fence():
    """The audit can fail: with the fence taken out of the sink, rows are repeated and the audit counts them."""
    result = audit(kills=4, seed=6, kinds=("task", "zombie"), unfenced=True, settings=UNFENCED)
    assert result.repeated > 0, result


@pytest.mark.heavy
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills():
    """A hundred kills of every kind on one node: every row is there once."""
    result = audit_in_rounds(100, 25, seed=7, say=say)
    assert result.clean, result
    assert result.kills.total() == 100


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_cluster_under_kills():
    """The same on three nodes, with the leader killed: every row is there once."""
    result = audit_in_rounds(30, 15, seed=11, nodes=3, say=say)
    assert result.clean, result
    assert result.kills.total() == 30
