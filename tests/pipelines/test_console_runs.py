"""Pipelines that are run and stopped from the console."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from penstock.errors import NotFoundError
from penstock.jetstream import assets
from penstock.pipelines.progress import read_progress
from penstock.pipelines.project import Project
from penstock.pipelines.stopping import wait_until_stopped
from penstock.server import Server
from tests.live.acting import Actor
from tests.live.visitor import visiting
from tests.pipelines.projects import quick_project


async def _state(folder: Path, wanted: set[str]) -> str:
    async with asyncio.timeout(300):
        while (state := (read_progress(folder / "storage") or {}).get("state")) not in wanted:
            await asyncio.sleep(0.1)
    return str(state)


@pytest.mark.heavy
async def test_a_pipeline_is_run_and_stopped_from_the_console(server: Server, tmp_path: Path):
    """Run, it goes on until it is stopped, which lets the update in hand finish; what runs ends with the console."""
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    await traffic["publish"](server.url, 100)
    audit, project = tmp_path / "acts.log", {"project": "sensors"}
    async with visiting(server.url, pipelines=[Project.load(folder)], audit=audit) as visitor:
        actor = Actor(visitor, audit)
        assert (await actor.form("pipeline-stop", **project)).status == 400
        done = await actor.do("pipeline-run", project, mode="continuously")
        assert done.status == 200, done.text
        assert (await actor.form("pipeline-run", **project)).status == 200
        refused = await actor.look("pipeline-run", project)
        assert refused.status == 400
        assert "runs already" in refused.text
        client = await visitor.nats()
        async with asyncio.timeout(300):
            while True:
                try:
                    if (await assets.stream_info(client, "ALERTS")).messages:
                        break
                except NotFoundError:
                    pass
                await asyncio.sleep(0.2)
        done = await actor.do("pipeline-stop", project)
        assert "was asked to end" in done.text
        assert await asyncio.to_thread(wait_until_stopped, Project.load(folder), 120.0) in ("stopped", "done")
        assert (await actor.do("pipeline-run", project, mode="continuously")).status == 200
        assert await _state(folder, {"running"}) == "running"
        await visitor.backend.runs.close()
        assert await asyncio.to_thread(wait_until_stopped, Project.load(folder), 120.0) != "running"
        for stream in ("READINGS", "ALERTS"):
            await assets.delete_stream(client, stream)
    assert [line["outcome"] for line in actor.lines()] == ["asked", "done"] * 3
