"""The benchmarks run: a short round of each side, and a report that says what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_of_the_client(tmp_path: Path) -> None:
    """Every side of every case runs, and the report holds a rate for each and a ratio against each other one."""
    output = tmp_path / "client.json"
    command = [sys.executable, "benchmarks/client.py", "--quick", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(output.read_text())
    assert set(report["cases"]) == {
        *("subscribe", "publish", "request"),
        *("consume", "consume_acking", "acked", "acked_each"),
    }
    for case, found in report["cases"].items():
        assert all(rate > 0 for rate in found["rates"].values()), case
        assert {"ours", "nats_py", "natsrpy"} <= set(found["rates"])
        against = {line["against"]: line for line in found["ratios"] if line["side"] == "ours"}
        assert {"nats_py", "natsrpy"} <= set(against)
        assert all(line["wanted"] > 0 and line["median"] > 0 for line in against.values())
    assert "wanted 2.5" in done.stdout


def test_the_benchmark_of_objects(tmp_path: Path) -> None:
    """Objects are put and got by each side, and the report holds rates and ratios."""
    output = tmp_path / "objects.json"
    command = [sys.executable, "benchmarks/objects.py", "--quick", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = json.loads(output.read_text())["cases"]
    assert set(cases) == {"put", "get", "fetch"}
    for case, found in cases.items():
        assert {"ours", "nats_py"} <= set(found["mb_per_second"]), case
        assert found["ratios"]["nats_py"] > 0
        assert all(seconds > 0 for taken in found["seconds"].values() for seconds in taken)


def test_the_benchmark_of_buckets(tmp_path: Path) -> None:
    """Values are put, got and watched by each side, and the report holds a rate for each."""
    output = tmp_path / "buckets.json"
    command = [sys.executable, "benchmarks/buckets.py", "--share", "0.02", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = json.loads(output.read_text())
    assert len(cases) == 5
    for case, found in cases.items():
        for figures in (found["rates"], found["cpu"]):
            assert set(figures) == {"nats-py", "ours", "bare"}, case
            assert all(figure > 0 for figure in figures.values()), case


def test_the_benchmark_of_backfill(tmp_path: Path) -> None:
    """Reading through the server, from a store and from a backup give the same count, with rates, ratios and memory."""
    output = tmp_path / "backfill.json"
    command = [sys.executable, "benchmarks/backfill.py", "--messages", "100000", "--rounds", "1", "--no-spark"]
    done = subprocess.run(
        [*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(output.read_text())["one process"]
    assert set(found["rates"]) == {"through the server", "store", "backup"}
    assert all(ratio["median"] > 0 and ratio["wanted"] == 3 for ratio in found["ratios"].values())
    assert all(most > 0 for part in found["most MiB"].values() for most in part.values())


def test_the_benchmark_of_the_main_paths(tmp_path: Path) -> None:
    """A case has a rate, the CPU time of both ends and a ratio to the raw socket for each of its sides.

    Atomic batches with ids are held against a raw socket that sends ids as well.
    """
    output = tmp_path / "paths.json"
    command = [sys.executable, "benchmarks/paths.py", "--only", "publish atomic", "--rounds", "1", "--sizes", "128"]
    done = subprocess.run(
        [*command, "--messages", "3000", "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NATS_CLI": "no-such-program"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(output.read_text())
    found = report["cases"]["publish atomic"]["128"]
    assert set(found["sides"]) == {"raw_atomic", "raw_atomic_ids", "publish_atomic", "publish_atomic_bare"}
    assert all(side["rate"]["median"] > 0 and side["cpu_us"]["median"] > 0 for side in found["sides"].values())
    against = {name.split(" / ")[0]: name.split(" / ")[1] for name in found["ratios"]}
    assert against.pop("publish_atomic") == "raw_atomic_ids"
    assert set(against.values()) == {"raw_atomic"}
    assert all(ratio["median"] > 0 for ratio in found["ratios"].values())
    assert "nats bench (Go)" in report["skipped"]


@pytest.mark.heavy
def test_the_curves(tmp_path: Path) -> None:
    """A curve has points with rates, CPU time of both ends and the memory of both."""
    output = tmp_path / "curves.json"
    command = [sys.executable, "benchmarks/curves.py", "--quick", "--only", "streams", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    points = json.loads(output.read_text())["points"]["streams"]
    assert [point["x"] for point in points] == [1, 10, 100]
    for point in points:
        for verb in ("make", "list", "read"):
            assert point[verb]["rate"] > 0
            assert point[verb]["server_mib"] > 0


def test_a_profile(tmp_path: Path) -> None:
    """A profile is a text with the CPU time a message, and without any path of this machine."""
    command = [sys.executable, "benchmarks/profiling.py", "publish_fast", "--messages", "2000", "--as", "small"]
    done = subprocess.run([*command, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    text = (tmp_path / "small.txt").read_text()
    assert "us a message" in text
    assert "publishing.py" in text
    assert str(ROOT) not in text
    assert str(Path(sys.prefix)) not in text
