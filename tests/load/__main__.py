"""Runs the load whole, or parts of it: `python -m tests.load [PART ...]`, or `make load ONLY=soak ARGS="--minutes 30"`.

Figures go to artifacts/load.json, what a soak held to artifacts/soak.svg; with --page, to docs/why/load.md as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools import load_page

from penstock.server import Server
from tests.load import parts
from tests.load.samples import growth, picture
from tests.load.soak import soak

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "artifacts"
PARTS = ("messages", "requests", "clients", "consumers", "subjects", "soak")


def _messages(count: int) -> dict[str, Any]:
    from penstock.spark.sessions import session

    with tempfile.TemporaryDirectory(prefix="penstock-load-") as folder, Server(sync="2m") as server:
        spark = session("load", spark__ui__enabled="false", spark__local__dir=f"{folder}/local")
        spark.sparkContext.setLogLevel("OFF")
        try:
            return parts.messages(spark, server, Path(folder), count)
        finally:
            spark.stop()


def _soak(minutes: float) -> dict[str, Any]:
    with Server(sync="2m") as server:
        samples, rounds = asyncio.run(soak(server, minutes * 60))
    (ARTIFACTS / "soak.svg").write_text(picture(f"A soak of {minutes:g} minutes", samples))
    grew = growth(samples)
    return {"rounds": rounds, "first": asdict(samples[0]), "last": asdict(samples[-1]), "grew": grew}


def run(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one part on a server of its own."""
    if part == "messages":
        return _messages(given.messages)
    if part == "soak":
        return _soak(given.minutes)
    with Server(sync="2m") as server:
        work = getattr(parts, part)(server, getattr(given, part))
        return asyncio.run(work) if asyncio.iscoroutine(work) else work


def main() -> int:
    """Run, print, and give the status: 1 if anything is wrong or grew."""
    flags = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    flags.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to run; everything if nothing is named")
    flags.add_argument("--messages", type=int, default=20_000_000)
    flags.add_argument("--requests", type=int, default=1_000)
    flags.add_argument("--clients", type=int, default=500)
    flags.add_argument("--consumers", type=int, default=10_000)
    flags.add_argument("--subjects", type=int, default=1_000_000)
    flags.add_argument("--minutes", type=float, default=30.0)
    flags.add_argument("--page", action="store_true", help="write the figures into docs/why/load.md")
    given = flags.parse_args()
    ARTIFACTS.mkdir(exist_ok=True)
    kept = ARTIFACTS / "load.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    status, chosen = 0, given.parts or PARTS
    for part in chosen:
        began = time.monotonic()
        try:
            found[part] = {**run(part, given), "took": time.monotonic() - began}
            status = 1 if found[part].get("grew") else status
        except AssertionError as error:
            found[part] = {"wrong": str(error)}
            status = 1
        print(part, json.dumps(found[part]), flush=True)
        kept.write_text(json.dumps(found, indent=2) + "\n")
    if given.page:
        drawn = (ARTIFACTS / "soak.svg").read_text() if "soak" in chosen else None
        load_page.write(ROOT / "docs" / "why" / "load.md", {part: found[part] for part in chosen}, drawn)
    return status


if __name__ == "__main__":
    sys.exit(main())
