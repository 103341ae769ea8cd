"""Runs every benchmark, part by part, and makes one report and one page of it: `make bench`.

    python benchmarks/run.py                     all parts, for hours on a slow machine
    python benchmarks/run.py --quick             all parts in about ten minutes; the report says how long it was
    python benchmarks/run.py --only paths bus    these parts; the others stay in the report as they were
    python benchmarks/run.py --list              the parts, and what each is

Each part is a program of its own that writes artifacts/PART.json. A part that fails, or takes too long, is named at the
end, with status 1, and the others go on. The report is artifacts/bench.json; docs/why/performance.md and its charts are
made of it by benchmarks/page.py, unless --no-page is given or parts are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _measure import about

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent
REPORT = Path("artifacts/bench.json")
FIGURES = ROOT / "docs" / "why" / "performance" / "figures.json"
# Each part: what it is, and what a quick run and a whole one add to the command. The main paths come first.
PARTS: dict[str, tuple[str, list[str], list[str]]] = {
    "paths": ("the main paths beside raw sockets and other clients", ["--quick"], []),
    "spark_read": ("Spark reads, beside a raw socket", ["--quick"], []),
    "spark_write": ("Spark writes, beside raw senders", ["--quick"], []),
    "connectors": ("Spark's streaming reads, beside connectors that others make", ["--quick"], []),
    "curves": ("time and memory as things grow", ["--quick"], []),
    "client": ("the asyncio client beside nats-py, natsrpy and a raw socket", ["--quick"], []),
    "jetstream": ("publishers and deliveries beside nats-py", ["--quick"], []),
    "chunks": ("large payloads", ["--quick"], []),
    "bus": ("requests with sectioned replies", ["--quick"], []),
    "channels": ("NATS Streaming through the gateway", ["--quick"], []),
    "buckets": ("values under keys", ["--quick"], []),
    "objects": ("objects under names", ["--quick", "--rounds", "2"], []),
    "backfill": ("backups and stores beside the server", ["--quick", "--no-spark", "--messages", "200000"], []),
    "commands": ("how long commands take", ["--quick"], []),
    "wire": ("what the wire must reach", ["--targets", "--rounds", "1"], []),
}
TOOLS = {"run", "page", "charts", "profiling"}
# A benchmark that is not named above is a part, too: it takes --quick, and writes artifacts/PART.json, as all do.
PARTS |= {
    path.stem: (f"what benchmarks/{path.name} says", ["--quick"], [])
    for path in sorted(FOLDER.glob("[a-z]*.py"))
    if path.stem not in TOOLS and path.stem not in PARTS
}
QUICK_MOST, MOST = 240.0, 4 * 3600.0


def run_part(name: str, quick: bool, most: float) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Run one part; give its result, nothing if it failed, and how it went."""
    file = ROOT / "artifacts" / f"{name}.json"
    file.unlink(missing_ok=True)
    _, fast, whole = PARTS[name]
    command = ["python", f"benchmarks/{name}.py", *(fast if quick else whole)]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen([sys.executable, *command[1:]], cwd=ROOT, start_new_session=True)
    try:
        status, why = process.wait(most), ""
    except subprocess.TimeoutExpired:
        status, why = 1, f"took longer than {most:,.0f} s"
    finally:
        if process.poll() is None:  # it, its servers and its sides
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    went: dict[str, Any] = {"command": " ".join(command), "seconds": round(time.monotonic() - begun, 1)}
    went["cpu_seconds"] = round(cpu, 1)
    if status:
        return None, {**went, "failed": why or f"status {status}"}
    try:
        return json.loads(file.read_text()), went
    except (OSError, ValueError) as error:
        return None, {**went, "failed": f"left no {file.name}: {error}"}


def main() -> None:
    """Run the parts, and write the report and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about ten minutes for all of it")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument("--no-page", action="store_true", help="leave the page as it is")
    parser.add_argument("--most", type=float, help="seconds that a part may take at the most")
    parser.add_argument("--output", type=Path, default=REPORT)
    given = parser.parse_args()
    if given.list:
        for name, (what, _, _) in PARTS.items():
            print(f"{name:12} {what}")
        return
    os.chdir(ROOT)
    kept = [given.output, *([] if given.no_page else [FIGURES])]
    before = next((json.loads(file.read_text()) for file in kept if file.exists()), {})
    whole = set(given.only) == set(PARTS)  # if not, the others stay as they were: in the last report, or on the page
    report: dict[str, Any] = {"took": before.get("took", {})} if whole else before
    report["about"] = about() | {"quick": given.quick}
    parts, went = report.setdefault("parts", {}), report.setdefault("went", {})
    begun, failed, this = time.monotonic(), {}, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for number, name in enumerate(given.only, 1):
        print(f"[{number}/{len(given.only)}] {name}: {PARTS[name][0]}", flush=True)
        found, went[name] = run_part(name, given.quick, given.most or (QUICK_MOST if given.quick else MOST))
        went[name] |= {"run": this, "quick": given.quick, "load": round(os.getloadavg()[0], 2)}
        if found is None:
            failed[name] = went[name]["failed"]
            print(f"    FAILED: {failed[name]}", flush=True)
        else:
            parts[name] = found
            print(f"    {went[name]['seconds']:,.0f} s", flush=True)
        report["skipped"] = {}
        for part in parts.values():
            report["skipped"] |= part.get("skipped") or {} if isinstance(part, dict) else {}
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")  # after each part: a run that ends is not lost
    seconds = round(time.monotonic() - begun)
    if whole:
        report.setdefault("took", {})["quick" if given.quick else "full"] = {"seconds": seconds, "failed": len(failed)}
        given.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"Written to {given.output}, in {seconds:,} s.")
    for name, why in report["skipped"].items():
        print(f"skipped: {name}: {why}")
    if not given.no_page:
        import page

        page.write(report)
        print("Wrote docs/why/performance.md and its charts.")
    for name, why in failed.items():
        print(f"FAILED: {name}: {why}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
