"""Clocks of clients that can be moved while they run: each client has one, a file that its processes look at.

The library behind it (`clock.c`) is built when a round first needs it. It reaches whatever asks the C library for the
time: Python, Java, and what they start. A server is a Go program and asks the kernel itself; its clock stays.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
NAME = "PENSTOCK_CLOCK"


@functools.cache
def library() -> tuple[str, str]:
    """Give the library's path, or nothing and why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "", "there is no C compiler"
    folder = Path(tempfile.mkdtemp(prefix="penstock-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return (str(built), "") if done.returncode == 0 else ("", f"its library does not build: {done.stderr[:200]}")


def why_not() -> str:
    """Say why clocks cannot be moved here."""
    return library()[1]


def set_clock(file: Path, seconds: int) -> None:
    """Have a clock go this much ahead, or behind."""
    with file.open("r+b" if file.exists() else "wb") as there:
        there.write(struct.pack("=q", seconds))


def environment(file: Path) -> dict[str, str]:
    """Give what a process needs to look at a clock; nothing if clocks cannot be moved here."""
    path, _ = library()
    if not path:
        return {}
    if not file.exists():
        set_clock(file, 0)
    return {"LD_PRELOAD": path, NAME: str(file)}
