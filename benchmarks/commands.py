"""Measures what a command costs before and beside its work: processor time, user and system, of the whole process.

Each round runs every command once against one server, and a bare Python beside them, so that a busy machine slows
all of them alike; the medians count. Compiled files of Python go to a folder of their own that a first round fills, as
an installed package has them.

    python benchmarks/commands.py [--quick]        JSON to artifacts/commands.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "commands.json"
BARE = "python -c pass"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    "import typer": [sys.executable, "-c", "import typer"],
    **{
        f"penstock {words}": [sys.executable, "-m", "penstock", *words.split()]
        for words in (
            "--help",
            "stream --help",
            "stream ls",
            "stream info BENCH",
            "consumer ls BENCH",
            "pub bench.1 hello",
            "rtt",
            "server info",
        )
    },
}
WANTED = {"penstock --help": 150, "penstock stream ls": 250}  # milliseconds, at most


def spent(command: list[str], env: dict[str, str]) -> float:
    """Run a command to its end and give the milliseconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with penstock.Server(sync="2m") as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "PYTHONDONT"))}
        env |= {"NATS_URL": server.url, "PYTHONPYCACHEPREFIX": folder}
        add = ["stream", "add", "BENCH", "--subjects", "bench.*", "--defaults"]
        spent([sys.executable, "-m", "penstock", *add], env)
        for number in range(rounds + 1):  # the first one fills the folder, and does not count
            for name, command in COMMANDS.items():
                taken = spent(command, env)
                if number:
                    times[name].append(taken)
            if number and number % 5 == 0:
                print(f"round {number} of {rounds}", flush=True)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of ten")
    times = measure(3 if parser.parse_args().quick else 10)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print("\nprocessor time, medians")
    for name, median in medians.items():
        limit = f"   at most {WANTED[name]} ms wanted" if name in WANTED else ""
        print(f"  {name:<28} {median:>6.0f} ms  {median / medians[BARE]:>5.1f} x{limit}")
    result = {
        "milliseconds": {name: round(median, 1) for name, median in medians.items()},
        "times a bare Python": {name: round(median / medians[BARE], 1) for name, median in medians.items()},
        "wanted, at most": WANTED,
        "rounds": {name: [round(value, 1) for value in values] for name, values in times.items()},
    }
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
