"""A pipeline replayed over what its stream has dropped."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.pipelines import Table, replay, run
from penstock.server import Server
from tests.live.backfilling import back_up
from tests.pipelines.projects import api, count, quick_project, send


@pytest.mark.timeout(600)
@pytest.mark.heavy
def test_a_replay_begins_in_a_backup(server: Server, tmp_path: Path):
    """A replay reads backup and stream as one, and switched to, the pipeline goes on where it ended; a backup of a
    stream that the pipeline does not read is told.
    """
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    sample = traffic["sample"](300)
    high = [sum(reading["value"] > 90 for reading in sample[:end]) for end in (250, 300)]
    asyncio.run(traffic["publish"](server.url, 200))
    run(folder, url=server.url)
    past = back_up(server.url, "READINGS", tmp_path / "backup")
    send(server.url, sample[200:250])
    api(server.url, "STREAM.PURGE.READINGS", {"seq": 201})

    done = replay(folder, url=server.url, into={"ALERTS": "WHOLE"}, name="whole", backups=[past], switch_to_it=True)
    assert done.comparisons[0].new_count == high[0]
    assert len(Table(folder / "storage/replays/whole/warehouse/readings").rows(["sequence"])) == 250
    send(server.url, sample[250:])
    run(folder, url=server.url)
    assert count(server.url, "WHOLE", "WHOLE.alerts.*") == high[1]

    other = back_up(server.url, "ALERTS", tmp_path / "other")
    with pytest.raises(InputError, match="No source of the pipeline read ALERTS"):
        replay(folder, url=server.url, into={"ALERTS": "NEVER"}, name="never", backups=[other])
    for stream in ("READINGS", "ALERTS", "WHOLE", "NEVER"):
        api(server.url, f"STREAM.DELETE.{stream}")
