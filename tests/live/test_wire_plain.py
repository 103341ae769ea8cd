"""The same reading and publishing in plain Python, and the memory that a long read takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = (
    "range_is_exactly or filters or larger_than or headers or test_a_lost_connection or deleted_messages "
    "or in_order or refuses or lost_on_the_way"
)


def test_reading_and_publishing_in_plain_python() -> None:
    """The core of the tests of reading and publishing holds with the plain modules too."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CORE]
        + [f"tests/live/test_wire_{name}.py" for name in ("read", "publish")],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def grown(tmp_path: Path, messages: int) -> float:
    """Read so many messages in a fresh process; give the MiB that it grew by after the first tenth."""
    output = tmp_path / "memory.json"
    command = [sys.executable, "benchmarks/wire.py", "--memory", "--messages", str(messages), "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())["memory"]
    assert found["messages"] == messages
    return float(found["most_afterwards"] - found["after_a_tenth"]) / 2**20


def test_a_long_read_takes_no_more_memory(tmp_path: Path) -> None:
    """Ten times the messages need no more memory than the first tenth did, but for a window."""
    assert grown(tmp_path, 1_000_000) < 48


@pytest.mark.heavy
def test_a_read_of_five_million_is_flat(tmp_path: Path) -> None:
    """Five million messages are read in the memory of half a million."""
    assert grown(tmp_path, 5_000_000) < 48
