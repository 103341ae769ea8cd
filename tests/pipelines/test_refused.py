"""A pipeline whose world refuses it something: the run ends with the flow and the cause, and the next one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.options import ConnectionOptions
from penstock.pipelines import Project
from penstock.pipelines.running import apply_topology
from penstock.server import Server
from tests.live.inprocess import invoke
from tests.pipelines.projects import count, quick_project, send

ROWS = 20
USERS = "{user: all, password: pw}, {user: few, password: pw, permissions: { publish: { deny: 'alerts.>' } }}"


@pytest.mark.timeout(600)  # Spark starts here, on a machine that may be busy
def test_a_permission_that_is_missing_ends_the_run(tmp_path: Path):
    """The flow and the subject that is denied are named; with the permission, the next run stores each row once."""
    folder = quick_project(tmp_path / "work")
    with Server(sync="2m", auth=False, config=f"authorization {{ users: [{USERS}] }}") as server:
        url = f"nats://{server.nodes[0].address}"
        options = ConnectionOptions(url, user="all", password="pw")
        apply_topology(Project.load(folder), options)
        send(options, [{"sensor": "s1", "value": 95.0}] * ROWS)

        def run(user: str) -> tuple[int, str]:
            login = ("--user", user, "--password", "pw")
            done = invoke(url, "pipeline", "run", str(folder), *login, HOME=str(tmp_path / "home"))
            return done.status, done.stdout + done.stderr

        status, said = run("few")
        assert status == 1, said
        assert "alerts" in said
        assert 'Permissions Violation for Publish to "alerts.' in said, said
        assert "permissions { publish: { allow:" in said
        assert count(options, "ALERTS", "alerts.*") == 0
        status, said = run("all")
        assert status == 0, said
        assert count(options, "ALERTS", "alerts.*") == ROWS
