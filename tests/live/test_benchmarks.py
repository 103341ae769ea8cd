"""The benchmarks run: a short round of each side, and a report that says what it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert all(part["last third"] > 0 for part in found["MiB"].values())
