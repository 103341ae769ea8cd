"""The first hour in an empty home, without an activated environment: every printed line is typed as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.pipelines import Table
from tests.live.command import Running, environment
from tests.screen import Shown, shown

SLOW = pytest.mark.timeout(600)
PENSTOCK = [sys.executable, "-m", "penstock"]


def bare(home: Path) -> dict[str, str]:
    """The environment of somebody who has not activated anything: the shell finds the system's Python, or none."""
    env = environment(home, PATH="/usr/bin:/bin")
    return {name: value for name, value in env.items() if name not in ("VIRTUAL_ENV", "PYSPARK_PYTHON")}


def printed(text: str) -> tuple[str, list[str]]:
    """Give the line for the first terminal, and those for the second."""
    one, other = text.partition("in one terminal:")[2].split("In another one")
    (first,) = re.findall(r"^  (\S.*)$", one, re.MULTILINE)
    return first, re.findall(r"^  (\S.*)$", other, re.MULTILINE)


@contextmanager
def typed(line: str, env: dict[str, str], folder: Path) -> Iterator[Running]:
    """Type a line in a terminal of its own, and leave it running."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=folder,
        env={**env, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Running(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        running.reader.join(10)
        assert process.stdout is not None
        process.stdout.close()


def type_all(lines: list[str], env: dict[str, str], folder: Path) -> list[str]:
    """Type lines one after the other, each of which must go well; give what they printed."""
    said = []
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        said.append(done.stdout)
    return said


@SLOW
@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.heavy)])
def test_the_quickstart_survives_a_kill_and_leads_on(tmp_path: Path, columns: int):
    """On a terminal: a folder, a kill that is seen, a count that adds up, and lines that go on from there."""
    env = bare(tmp_path)
    with shown([*PENSTOCK, "quickstart"], env, columns, cwd=str(tmp_path), rows=60) as command:
        status = command.end(400)
    text = command.screen.text
    assert status == 0, text
    kill = next(line for line in text.splitlines() if "SIGKILL" in line)
    assert re.fullmatch(r"│ +Killed Spark with SIGKILL in the middle of a batch \(pid \d+\)\. +│", kill)
    assert "Nothing is lost, nothing is repeated" in text
    leading_on = next(row for row, line in enumerate(text.splitlines()) if line.startswith("To go on"))
    assert [line for row, line in command.screen.wraps if row <= leading_on] == [], "only paths may be longer"
    folder = tmp_path / "penstock-quickstart"
    again = subprocess.run([*PENSTOCK, "quickstart"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "penstock-quickstart is there already" in again.stderr
    # A line that is longer than the terminal goes on in the next one.
    whole = "".join(line + ("" if len(line) == columns else "\n") for line in text.splitlines())
    server, lines = printed(whole)
    lines = [line for line in lines if " console " not in line]
    with typed(server, env, tmp_path) as running:
        running.wait_for("is running", 60)
        *before, run = lines
        assert " pipeline run " in run
        type_all(before, env, tmp_path)
        with shown(["bash", "-c", run], env, 120, cwd=str(tmp_path)) as command:
            status = command.end(400)
        assert status == 0, command.screen.text
        assert command.screen.wraps == []
        assert_flows_are_whole(command)
        assert len(Table(folder / "storage" / "warehouse" / "readings").rows()) == 5000
        run_notebook(folder / "look.ipynb", env)


def assert_flows_are_whole(command: Shown) -> None:
    """A picture while it ran, with the flows in one order and their names whole; at the end a table, and no picture."""
    rows = r"^(\w+) +(?:queued|starting|running|completed) "
    flows = [re.findall(rows, picture, re.MULTILINE) for picture in command.seen]
    assert any(flows), command.seen
    assert all(names == sorted(names) and set(names) <= {"alerts", "readings", "totals"} for names in flows), flows
    text = command.screen.text
    assert [text.count(f" {name} ") for name in ("alerts", "readings")] == [1, 1], text


def run_notebook(notebook: Path, env: dict[str, str]) -> None:
    """Run the code of a notebook, cell after cell, in its folder."""
    cells = json.loads(notebook.read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=notebook.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+) alerts of (\d+) readings", done.stdout)
    assert found is not None
    assert found[1] == found[2] != "0"


def test_a_quickstart_without_java_is_one_sentence(tmp_path: Path):
    """Nothing is made of what cannot run."""
    env = {**bare(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run([*PENSTOCK, "quickstart"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no bin/java in it" in done.stderr
    assert os.listdir(tmp_path) == []
