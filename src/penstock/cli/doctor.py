"""`penstock doctor`: is everything here that Penstock needs, and is it good enough?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.flags import Json, flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.errors import PenstockError
from penstock.worker_python import other_python

__all__ = ["doctor"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `note` needs no action, `bad` does."""

    what: str
    state: Literal["ok", "note", "bad"]
    found: str
    remedy: str = ""


async def doctor(
    ctx: typer.Context,
    store: Annotated[Path | None, flag("Folder whose disk to time; the temporary one otherwise.", "DIR")] = None,
    json: Json = False,
) -> None:
    """Check Python, Java, the NATS server, the compiled wire, Spark and the disk; exit status 1 if something is bad."""
    findings = [_python(), _server(), _wire(), *_spark(), _disk(store)]
    if ctx.obj.names_a_server:
        findings.append(await _connection(ctx))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        marks = {"ok": "✓ ok", "note": "• note", "bad": "✗ bad"}
        print_table(
            "Penstock doctor",
            ("What", "State", "~Found", "~What to do"),
            [(finding.what, marks[finding.state], finding.found, finding.remedy) for finding in findings],
        )
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")  # an older one cannot install us


def _server() -> Finding:
    from penstock.server import find_binary

    try:
        binary = find_binary()
    except PenstockError as error:
        return Finding("nats-server", "bad", error.what, error.remedy)
    found = f"{binary.version} at {binary.path}"
    if not binary.supports_fast_ingest:
        return Finding("nats-server", "note", found, "2.14 or newer would give fast ingest.")
    return Finding("nats-server", "ok", found)


def _wire() -> Finding:
    from penstock import wire

    if wire.compiled:
        return Finding("Wire", "ok", "compiled")
    if os.environ.get("PENSTOCK_PURE"):
        return Finding("Wire", "note", "plain Python, because PENSTOCK_PURE is set")
    remedy = "Install a C compiler and reinstall penstock for several times the speed."
    return Finding("Wire", "note", "plain Python", remedy)


def _spark() -> list[Finding]:
    needed = "Run: pip install 'penstock[spark]'."
    findings = []
    for package, oldest in (("pyspark", (4, 2)), ("pyarrow", (18,))):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(package, "note", "not installed; only Spark jobs need it", needed))
            continue
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        state: Literal["ok", "bad"] = "ok" if numbers >= oldest else "bad"
        findings.append(Finding(package, state, version, needed if state == "bad" else ""))
    findings.append(_java(wanted=findings[0].state == "ok"))
    if findings[0].state == "ok" and (other := other_python()):
        remedy = "Begin programs with `import penstock.spark`, or activate this environment, or set PYSPARK_PYTHON."
        findings.append(Finding("Spark's Python", "note", f"Spark would start {other}, not this Python", remedy))
    return findings


def _java(wanted: bool) -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home and Path(home, "bin", "java").exists() else shutil.which("java")
    remedy = "Install Java 17 or newer (openjdk-17-jre-headless or openjdk-21-jre-headless), or set JAVA_HOME."
    missing: Literal["bad", "note"] = "bad" if wanted else "note"
    if java is None:
        return Finding("Java", missing, "not found; Spark needs it", remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", missing, f"{java} does not run: {error}", remedy)
    version = re.search(r'version "([^"]+)"', said)
    if version is None or int(re.split(r"[.\-+]", version.group(1))[0]) < 17:
        return Finding("Java", missing, f"{version.group(1) if version else 'unknown version'} at {java}", remedy)
    return Finding("Java", "ok", f"{version.group(1)} at {java}")


def _disk(store: Path | None, rounds: int = 15) -> Finding:
    """Time what `sync: always` costs: the median of some small writes, each synced."""
    try:
        with tempfile.NamedTemporaryFile(dir=store, prefix="penstock-doctor-") as file:
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - began)
            place = os.path.dirname(file.name)
            free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("Disk", "bad", f"cannot write: {error}", "Name another folder with --store.")
    median = sorted(times)[rounds // 2] * 1000
    found = f"a sync takes {median:.2f} ms in {place}, {free / 2**30:.1f} GiB free"
    if free < 2**30:
        return Finding("Disk", "bad", found, "Free some space: less than 1 GiB is left.")
    if median > 10:
        return Finding("Disk", "note", found, "Slow for sync: always; use atomic batches, or another disk.")
    return Finding("Disk", "ok", found)


async def _connection(ctx: typer.Context) -> Finding:
    try:
        async with connected(ctx) as client:
            return Finding("Connection", "ok", f"nats-server {client.server_info.get('version')}")
    except PenstockError as error:
        return Finding("Connection", "bad", error.what, error.remedy)
