"""`penstock stream cluster`, and what else of streams needs a cluster: leaders, peers, and where they are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, invoke


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with Server(nodes=3, sync="2m") as running:
        yield running


@pytest.fixture
def run(cluster: Server) -> Callable[..., Done]:
    def call(*arguments: str, status: int = 0) -> Done:
        done = invoke(cluster.url, "--timeout", "20s", "stream", *arguments)
        assert done.status == status, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    return call


def placed(run: Callable[..., Done], name: str) -> dict[str, Any]:
    return json.loads(run("info", name, "--json").stdout)["cluster"]


def test_leaders_and_peers(run: Callable[..., Done], eventually: Callable[..., Any]):
    """A leader steps down for another, or for the one that is named; a balance spreads leaders; all of it is shown."""
    names = ["ONE", "TWO"]
    for name in names:
        run("add", name, "--subjects", name, "--replicas", "3", "--defaults")
        eventually(lambda name=name: placed(run, name).get("leader"))
    before = placed(run, "ONE")
    done = run("cluster", "sd", "ONE")
    after = placed(run, "ONE")["leader"]
    assert after != before["leader"]
    assert done.stdout.startswith(f"{after} leads Stream ONE now; before, {before['leader']} did\n")
    shown = " ".join(done.stdout.split())
    assert "Cluster Information: Name: " in shown
    assert f"Replica: {before['leader']}, " in shown
    if placed(run, "TWO")["leader"] != after:
        run("c", "step-down", "TWO", "--preferred", after)
    assert f"{after}*" in run("report", "--leaders").stdout
    assert run("find", "--leader", after, "-n").stdout.split() == sorted(names)
    assert run("find", "--server-name", after[:3], "--invert", "-n").stdout == ""
    assert run("cluster", "balance").stdout.endswith("Balanced 1 of 2 streams.\n")
    assert len({placed(run, name)["leader"] for name in names}) == 2
    assert "Balanced 0 of 1 streams" in run("cluster", "balance", "--subject", "ONE").stdout
    assert "does not carry" in run("cluster", "step-down", "ONE", "--preferred", "nobody", status=2).stderr


def test_a_stream_moves_away(run: Callable[..., Done], eventually: Callable[..., Any]):
    """What is on one server cannot step down; it can be moved away from it; questions come first."""
    run("add", "LONE", "--subjects", "LONE", "--defaults")
    leader = eventually(lambda: placed(run, "LONE").get("leader"))
    assert "kept by one server alone" in run("cluster", "step-down", "LONE", status=2).stderr
    assert "Not confirmed" in run("cluster", "evacuate", "LONE", leader, status=2).stderr
    assert "does not carry" in run("cluster", "evacuate", "LONE", "nobody", "-f", status=2).stderr
    assert "Which server?" in run("cluster", "evacuate", "LONE", "-f", status=2).stderr
    done = run("cluster", "evacuate", "LONE", leader, "-f")
    assert done.stdout.startswith("Stream LONE is on ")
    assert leader not in done.stdout
    # The server that was left is told of as long as it has not forgotten the stream.
    eventually(lambda: "does not move" in run("cluster", "cancel-move", "LONE", status=2).stderr)
    assert "kept by one server alone" in run("cluster", "peer-remove", "LONE", leader, "-f", status=2).stderr
