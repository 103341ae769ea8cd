"""The examples run as they stand, twice, against one server: what they print is true, and a second run adds nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from penstock.server import Server
from tests.live.command import environment
from tests.spark.conftest import Streams
from tests.spark.java import QUICK_JVM, ROOT, java_home

pytestmark = pytest.mark.timeout(900)  # a Spark of its own, on a machine that may be busy

EXAMPLES = ROOT / "examples"
RUN = ["large_files.py", "change_feed.py", "bus_service.py", "old_clients.py"]
STREAMS = ["FILES", "CHANGES", "CHANGE_COUNTS", "SALES", "KV_SHOP_SUMS", "plant:temperatures", "TRIPS"]

# One process for all of them, because Spark takes its time to start; each has a folder of its own, and runs twice.
_PROGRAM = """
import ast, asyncio, contextlib, io, json, runpy, sys

folder, paths, said = sys.argv[1], sys.argv[2:], {}

def run_example(path, attempts=4):
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(path, run_name="__main__")
        return out.getvalue()
    except Exception as error:  # Spark gives a Python worker ten seconds to start, which a busy machine may not have
        if attempts == 1 or "failed to connect back" not in str(error):
            raise
        return run_example(path, attempts - 1)

for path in paths:
    name = path.rpartition("/")[2]
    for _ in range(2):
        sys.argv[:] = [path, f"{folder}/{name}"]
        said.setdefault(name, []).append(run_example(path))

# The cells of the notebook, without a kernel; the last one stops Spark.
cells = json.loads(open(f"{paths[0].rpartition('/')[0]}/notebook.ipynb").read())["cells"]
code = "\\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
with contextlib.redirect_stdout(io.StringIO()) as out:
    asyncio.run(eval(compile(code, "notebook", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))
said["notebook.ipynb"] = [out.getvalue()]
print(json.dumps(said))
"""


def surroundings(folder: Path, url: str) -> dict[str, str]:
    """Give the environment of a program that starts a small Spark."""
    arguments = f"--master local[2] --conf spark.ui.enabled=false --driver-java-options '{QUICK_JVM}' pyspark-shell"
    env = environment(folder, NATS_URL=url, JAVA_HOME=java_home() or "", PYSPARK_SUBMIT_ARGS=arguments)
    return env | {"SPARK_LOCAL_IP": "127.0.0.1", "MASTER": "local[2]", "IPYTHONDIR": str(folder / "ipython")}


@pytest.fixture(scope="module")
def said(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """What each example printed, the first time and the second."""
    folder = tmp_path_factory.mktemp("examples")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), *(str(EXAMPLES / name) for name in RUN)],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=folder,
        env=surroundings(folder, server.url),
    )
    assert done.returncode == 0, done.stderr[-8000:]
    yield json.loads(done.stdout.splitlines()[-1])
    streams = Streams(server.url)
    for name in STREAMS:
        streams.api(f"STREAM.DELETE.{name}")


def text_of(cell: Any) -> str:
    """Give what a cell printed, and the text of its value."""
    return "".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
        if output.get("name") != "stderr"
    )


def test_the_cells_of_the_notebook_run(said: dict[str, list[str]]):
    """The code of the cells runs in order."""
    (out,) = said["notebook.ipynb"]
    assert "200 trips are in the stream TRIPS" in out
    assert '{"trip": 0, "city": "bern", "km": 0.5}' in out
    assert out.splitlines()[-1].startswith("trips.bern ")


def test_the_notebook_runs_in_a_kernel(tmp_path: Path):
    """Every cell runs in a real kernel, in order: publish, read with Spark, add up, look at one message."""
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=800, kernel_name="python3", resources=place)
    with Server(sync="2m") as own:  # its stream has the name of the one that the other examples' run has made
        client.execute(env=surroundings(tmp_path, own.url))
    published, read, added, last = [text_of(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "200 trips are in the stream TRIPS" in published
    assert '{"trip": 0, "city": "bern", "km": 0.5}' in read
    assert re.search(r"basel +100 .*\n.*bern +100 ", added)
    assert last.startswith("trips.bern ")


def test_large_files_become_rows(said: dict[str, list[str]]):
    """Each file is one row with the digest of what was sent; the second run sends nothing and adds no row."""
    first, second = said["large_files.py"]
    assert second.count("bytes found") == 4
    assert "4 files, each once" in first
    assert "4 files, each once" in second


def test_changes_are_counted_once(said: dict[str, list[str]]):
    """Late changes are in the minute in which they happened, and a second run writes no count again."""
    first, second = said["change_feed.py"]
    assert "600 changes, each in one count" in first
    assert second == first


def test_sums_are_answered_over_the_bus(said: dict[str, list[str]]):
    """The service answers from the bucket that Spark keeps, and says of an unknown shop that it is not there."""
    first, second = said["bus_service.py"]
    assert "Each of the 300 sales is counted once." in first
    assert "404" in first
    assert second == first


def test_old_clients_are_read_by_spark(said: dict[str, list[str]]):
    """What an old client publishes is in a stream, and Spark counts the same messages."""
    first, second = said["old_clients.py"]
    assert "Spark counts 30, from 800 to 829 degrees" in first
    assert "Spark counts 60, from 800 to 829 degrees" in second


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_examples_import_public_names_only(path: Path):
    """An example uses what the reference promises, and no module of a package's own."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            section = page.partition(f"## `{node.module}`\n")[2].partition("\n## ")[0]
            assert section, f"{node.module} is not public"
            assert [alias.name for alias in node.names if f"\n| [`{alias.name}`](" not in section] == []


def test_every_example_has_its_line_in_the_page():
    """The page on examples names each of them with the command that runs it."""
    page = (ROOT / "docs" / "howto" / "examples.md").read_text()
    found = [path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".ipynb") and "pipeline" not in path.parts]
    assert len(found) >= 7
    assert [str(path) for path in found if f"examples/{path.relative_to(EXAMPLES)}" not in page] == []
