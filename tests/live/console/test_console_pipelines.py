"""The console's page of pipelines without Spark: the replay in use, and runs whose storage is on other machines."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.console import Console, Settings
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import ProgressFile, progress_folder
from penstock.pipelines.project import Project
from penstock.pipelines.replays import keep_replay, switch, switch_back
from penstock.server import Server
from penstock.spark.offsets import Mark, Offset
from tests.live.browser import Browser, fill
from tests.live.command import Command
from tests.pipelines.projects import api


def look(server: Server, project: Project, settings: Settings | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Give the page of pipelines, and what its twin says of them."""

    async def body() -> tuple[str, list[dict[str, Any]]]:
        async with Console(ConnectionOptions(server.url), settings, pipelines=[project]) as console:
            page, data = await asyncio.to_thread(Browser(console.url).both, "/pipelines")
            return page, data["pipelines"]

    return asyncio.run(body())


def test_the_replay_in_use_is_shown(server: Server, tmp_path: Path):
    """After a switch the page names the replay and its streams, and marks it; after the way back, it does not."""
    project = Project.load(write_project(tmp_path, "sensors"))
    keep_replay(project, "v2", "all", {"ALERTS": "ALERTS_V2"})
    keep_replay(project, "v3", "all", {})

    def in_use(items: list[dict[str, Any]]) -> list[str | None]:
        return [item["replay"] for item in items if item["in_use"]]

    page, items = look(server, project)
    assert ([item["replay"] for item in items], in_use(items)) == ([None, "v2", "v3"], [None])
    assert "in use" not in page
    switch(project, "v2")
    page, items = look(server, project)
    assert in_use(items) == ["v2"]
    assert items[0]["switched_to"] == {"name": "v2", "into": {"ALERTS": "ALERTS_V2"}}
    assert [item["switched_to"] for item in items[1:]] == [None, None]
    assert "Switched to its replay v2, which writes to" in page
    assert (
        page.count('<span class="chip good">in use</span>') == page.count('<span class="chip">not in use</span>') == 1
    )
    assert project.local_storage is not None
    (project.local_storage / "replays" / "v2").rename(tmp_path / "away")
    _, items = look(server, project)
    assert (in_use(items), items[0]["switched_to"]) == ([], None)
    assert "was switched to its replay v2, which is gone" in items[0]["note"]
    (tmp_path / "away").rename(project.local_storage / "replays" / "v2")
    switch_back(project)
    _, items = look(server, project)
    assert (in_use(items), items[0]["switched_to"]) == ([None], None)


def test_many_replays_do_not_hide_the_one_in_use(server: Server, tmp_path: Path):
    """The page shows twenty replays at most, and the one in use beside them; it counts those that are left out."""
    project = Project.load(write_project(tmp_path, "sensors"))
    for number in range(22):
        keep_replay(project, f"v{number:02}", "all", {})
    switch(project, "v21")
    page, items = look(server, project)
    assert [item["replay"] for item in items[1:]] == [*(f"v{number:02}" for number in range(20)), "v21"]
    assert items[-1]["in_use"]
    assert [item["replays_left_out"] for item in items] == [1] + [0] * 21
    assert page.count("1 more replays are left out") == 1


def test_flows_that_a_table_leaves_out_are_counted(server: Server, tmp_path: Path):
    """A pipeline of more flows than a table has rows says how many are left out; their checkpoints are read as well."""
    project = Project.load(write_project(tmp_path, "sensors"))
    assert project.local_storage is not None
    for number in range(5):
        folder = (
            project.local_storage / "_checkpoints" / "spark_catalog" / "default" / f"t{number}" / f"f{number}" / "0"
        )
        for kind in ("offsets", "commits"):
            (folder / kind).mkdir(parents=True)
        end = json.dumps(Offset({"GONE": Mark("made", 1, 8)}).to_json())
        for batch in (0, 1):
            (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{end}")
        (folder / "commits" / "0").write_text("v1\n{}")
    page, (shown,) = look(server, project, Settings(rows=3))
    assert ([flow["flow"] for flow in shown["flows"]], shown["flows_left_out"]) == (["f0", "f1", "f2"], 2)
    assert "2 more flows are left out" in page
    first = shown["flows"][0]
    assert (first["target"], first["batches"], first["complete"], first["lag"]) == ("t0", 1, False, None)
    assert first["streams"] == [{"name": "GONE", "next": 8, "latest": None, "gone": True}]
    assert page.count("a batch is open") == page.count('<span class="chip warn">gone</span>') == 3
    assert shown["run"] is None
    assert "no run seen" in page


def test_a_run_whose_storage_is_elsewhere_is_known(
    server: Server, unique: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its figures are kept for this user, and the console and `pipeline status` tell rows, place and lag from them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stream = unique("FAR")
    command = Command(tmp_path, server.url)
    folder = write_project(tmp_path, "sensors")
    project = Project.load(folder, storage="s3a://bucket/sensors")
    status = ("pipeline", "status", str(folder), "--storage", "s3a://bucket/sensors", "--json")
    refused = command(*status, XDG_STATE_HOME=str(tmp_path / "state"))
    assert refused.returncode == 2
    assert "no run from here has told how far it is" in refused.stderr

    async def work(client: Any) -> None:
        await assets.add_stream(client, Stream(name=stream, subjects=[stream]))
        for _ in range(10):
            await client.jetstream().publish(stream, b"x")

    fill(server.url, work)
    made = api(server.url, f"STREAM.INFO.{stream}")["created"]
    end = json.dumps(Offset({stream: Mark(made, 1, 8)}).to_json())
    outcome = Outcome(counted=False)
    outcome.hear({"kind": "listening"})
    outcome.hear({"kind": "event", "message": "Flow totals has COMPLETED."})
    outcome.hear(
        {
            "kind": "progress",
            "progress": {
                "id": "q",
                "name": "spark_catalog.default.readings",
                "timestamp": "2026-01-01T00:00:00.000Z",
                "batchId": 3,
                "durationMs": {"triggerExecution": 500},
                "sources": [{"numInputRows": 7, "endOffset": end, "latestOffset": end}],
                "sink": {"numOutputRows": 5},
            },
        }
    )
    file = ProgressFile.of(project, ConnectionOptions(server.url), os.getpid(), continuous=False)
    outcome.ended = True
    file.write(outcome, over=True)
    assert progress_folder(project).is_relative_to(tmp_path / "state")
    assert progress_folder(project).stat().st_mode & 0o077 == 0
    _, (shown,) = look(server, project)
    assert "not on this machine" in shown["note"]
    assert (shown["run"]["state"], shown["in_use"]) == ("done", True)
    flows = {flow["flow"]: flow for flow in shown["flows"]}
    assert (flows["readings"]["rows_in"], flows["readings"]["rows_out"], flows["readings"]["lag"]) == (7, 5, 3)
    assert flows["readings"]["streams"] == [{"name": stream, "next": 8, "latest": 11, "gone": False}]
    assert flows["totals"]["rows_in"] is None
    told = command(*status, XDG_STATE_HOME=str(tmp_path / "state"))
    assert told.returncode == 0, told.stderr
    state = json.loads(told.stdout)
    assert state["told"] is not None
    (flow,) = state["flows"]
    assert (flow["flow"], flow["streams"], flow["lag"]) == ("readings", {stream: 8}, {stream: 3})
    said = command(*status[:-1], XDG_STATE_HOME=str(tmp_path / "state")).stdout
    assert "Its checkpoints are not on this machine" in said
    # Another stream of that name is not taken for the one that was read.
    outcome.flows["readings"].created = {stream: "2026-01-01T00:00:00Z"}
    file.write(outcome, over=True)
    assert [flow["lag"] for flow in look(server, project)[1][0]["flows"]] == [None, None]
    shutil.rmtree(progress_folder(project))
    assert "No flow has begun" in look(server, project)[0]
