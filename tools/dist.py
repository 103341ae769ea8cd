"""Builds what is published, and tries each piece in an empty environment: `make dist`.

    dist/penstock-VERSION.tar.gz                       the source
    dist/penstock-VERSION-py3-none-any.whl             plain Python, for every machine
    dist/penstock-VERSION-cp3XX-cp3XX-linux_*.whl      compiled, for each Python from 3.11 on that is here
    dist/penstock_streaming_server-VERSION-*.whl       the command nats-streaming-server, of a distribution of its own
    dist/*.cdx.json                                    for each wheel what it needs, as CycloneDX
    dist/SHA256SUMS

The source is made of what git knows, and every wheel of the source: what is missing there fails here. Builds use the
pinned setuptools and Cython. PYTHONS="/path/to/python ..." names the Pythons; otherwise they are looked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13")
BUILDERS = ("cython", "setuptools")


def main() -> None:
    """Build, and try."""
    wanted = sys.argv[1:] or VERSIONS
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    pythons = {version: python for version, python in find_pythons().items() if version in wanted}
    for version in wanted:
        if version not in pythons:
            say(f"there is no Python {version} here: no compiled wheel for it, and nothing is tried with it")
    with tempfile.TemporaryDirectory(prefix="penstock-dist-") as name:
        scratch = Path(name)
        source = build_source(scratch)
        unpacked = unpack(source, scratch / "source")
        builders = {
            version: environment(scratch / f"build-{version}", python, pinned("dev.txt", BUILDERS))
            for version, python in pythons.items()
        }
        newest = builders[max(builders, key=number)]
        pure = build_wheel(newest, unpacked, pure=True)
        compiled = {version: build_wheel(python, unpacked) for version, python in builders.items()}
        command = build_wheel(newest, ROOT / "packages" / "streaming-server", pure=True)
        for version, python in pythons.items():
            for piece, is_compiled in ((pure, False), (compiled[version], True), (source, False)):
                made = try_out(piece, python, scratch / f"try-{version}", is_compiled=is_compiled)
        try_command(command, made)
        newest_version = max(pythons, key=number)
        try_spark(compiled[newest_version], pythons[newest_version], scratch / "try-spark")
    for wheel in sorted(DIST.glob("penstock-*.whl")):
        wheel.with_suffix(".cdx.json").write_text(sbom.text(wheel))
    files = [path for path in sorted(DIST.iterdir()) if path.name != "SHA256SUMS"]
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text("".join(sums))
    for path in files:
        say(f"{path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"dist: {text}", flush=True)


def run(*words: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Run a program that must succeed, and give what it printed."""
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=clean(env), capture_output=True, text=True, check=False, timeout=1200
    )
    if done.returncode:
        sys.exit(f"dist: {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean(env: Mapping[str, str]) -> dict[str, str]:
    """Give an environment in which nothing of this project is found but what is installed."""
    hidden = ("PYTHON", "PENSTOCK", "NATS_", "VIRTUAL_ENV")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(hidden)}, **env}


def number(version: str) -> tuple[int, ...]:
    """Give a version as numbers, to compare it."""
    return tuple(map(int, version.split(".")))


# -- Pythons and environments ------------------------------------------------------------------------------------------


def find_pythons() -> dict[str, str]:
    """Find a Python for each version that we support: those that are named, this one, and those of usual places."""
    named = os.environ.get("PYTHONS", "").split()
    usual = [f"python{version}" for version in VERSIONS]
    kept = sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")), reverse=True)
    found: dict[str, str] = {}
    for candidate in named or [sys.executable, *usual, *kept]:
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except OSError:
            continue
        version, _, path = done.stdout.strip().partition(" ")
        if done.returncode == 0 and version in VERSIONS:
            found.setdefault(version, path)
    return found


def pinned(file: str, names: Sequence[str]) -> str:
    """Give the lines of a requirement file that pin these packages, with their hashes."""
    content = (ROOT / "requirements" / file).read_text()
    return "".join(f"{found[0]}\n" for found in sbom.ENTRY.finditer(content) if found[1] in names)


def constraints(file: str) -> str:
    """Give the versions of a requirement file without their hashes, to bound what is installed."""
    content = (ROOT / "requirements" / file).read_text()
    return "".join(line.rstrip(" \\") + "\n" for line in content.splitlines() if re.match(r"[A-Za-z0-9]", line))


def environment(folder: Path, python: str, requirements: str = "") -> Path:
    """Make an environment with these requirements, and give its Python."""
    run(python, "-m", "venv", "--clear", folder)
    made = folder / "bin" / "python"
    if requirements:
        file = folder / "requirements.txt"
        file.write_text(requirements)
        run(made, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", file)
    return made


# -- building ----------------------------------------------------------------------------------------------------------


def build_source(scratch: Path) -> Path:
    """Make the source distribution of what git knows, so that nothing comes in that lies around."""
    tree = scratch / "tree"
    tree.mkdir()
    listed = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    make = f"from setuptools import build_meta; print(build_meta.build_sdist({str(DIST)!r}))"
    name = run(sys.executable, "-c", make, cwd=tree, PENSTOCK_PURE="1").split()[-1]
    return DIST / name


def unpack(source: Path, folder: Path) -> Path:
    """Unpack the source, and give its folder."""
    with tarfile.open(source) as packed:
        packed.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def build_wheel(python: Path, tree: Path, *, pure: bool = False) -> Path:
    """Build a wheel of the unpacked source, in a copy of it, so that builds do not see each other."""
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        copy, out = Path(name) / "tree", Path(name) / "out"
        shutil.copytree(tree, copy)
        flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir")
        run(python, "-m", "pip", "wheel", *flags, out, copy, PENSTOCK_PURE="1" if pure else "0")
        (made,) = out.iterdir()
        say(f"built {made.name}")
        return Path(shutil.move(made, DIST / made.name))


# -- trying ------------------------------------------------------------------------------------------------------------


def try_out(piece: Path, python: str, folder: Path, *, is_compiled: bool) -> Path:
    """Install a piece into an empty environment and use it; the source as on a machine without a compiler.

    Gives the Python of that environment.
    """
    made = environment(folder, python, (ROOT / "requirements" / "base.txt").read_text())
    source = piece.suffix == ".gz"
    if source:
        file = folder / "builders.txt"
        file.write_text(pinned("dev.txt", BUILDERS))
        run(made, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", file)
    flags = ("--quiet", "--no-deps", "--no-cache-dir", *(["--no-build-isolation"] if source else []))
    run(made, "-m", "pip", "install", *flags, piece, cwd=folder, CC="/nowhere/cc")
    said = run(made, ROOT / "tools" / "smoke.py", "compiled" if is_compiled else "plain", cwd=folder, HOME=str(folder))
    say(f"{piece.name} with {run(made, '--version').strip()}: {said.strip()}")
    return made


def try_spark(piece: Path, python: str, folder: Path) -> None:
    """Install a wheel with its extra `spark` into an empty environment, and do there what a newcomer does first.

    What comes beside the wheel is what its own metadata ask for, in the pinned versions: a package that the extra lacks
    is missing here.
    """
    made = environment(folder, python)
    pins = folder / "constraints.txt"
    pins.write_text(constraints("dev.txt"))
    run(made, "-m", "pip", "install", "--quiet", "--no-cache-dir", "-c", pins, f"{piece}[spark]", cwd=folder)
    begun = time.monotonic()
    said = run(made.parent / "penstock", "quickstart", cwd=folder, HOME=str(folder))
    took = time.monotonic() - begun
    counted = next(line for line in said.splitlines() if line.startswith("Nothing is lost"))
    say(f"{piece.name} with Spark: {counted} From `penstock quickstart` to its last line {took:.0f} s.")


def try_command(piece: Path, python: Path) -> None:
    """Install the distribution of the old server's command beside Penstock, and ask the command who it is."""
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", piece, cwd=python.parent)
    said = run(python.parent / "nats-streaming-server", "-v", cwd=python.parent).strip()
    if "as nats-streaming-server" not in said:
        sys.exit(f"dist: nats-streaming-server -v said {said!r}")
    say(f"{piece.name}: {said}")


if __name__ == "__main__":
    main()
