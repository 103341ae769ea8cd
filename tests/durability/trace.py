"""What a process does to files, as strace tells it: writes with their bytes, syncs, names, each with begin and end.

nats-server is a static program, so nothing can be put between it and the system's library; strace stands between it and
the kernel. It stops a thread at the end of each call before the thread goes on: a sync is over in the trace before the
server can send the ack that waited for it.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Call", "Tracer", "read_trace"]

_CALLS = (
    *("openat", "open", "creat", "write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate", "fsync"),
    *("fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "lseek", "close", "mkdirat", "mkdir"),
)
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_UNFINISHED = re.compile(r"(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_WHOLE = re.compile(r"(\w+)\((.*)\) += (-?\d+)(<.*?>)?.*?<(\d+\.\d+)>$", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """One call of the kernel that succeeded."""

    name: str
    arguments: str
    result: int
    result_path: str
    """The path behind a file that was opened."""
    begin: float
    end: float


class Tracer:
    """Traces a process that runs already; a context."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid, self._log = pid, log
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def found() -> bool:
        """Tell whether strace is installed."""
        return shutil.which("strace") is not None

    def __enter__(self) -> Tracer:
        command = ["strace", "-f", "-ttt", "-T", "-y", "-xx", "-s", str(1 << 22), "-e", f"trace={','.join(_CALLS)}"]
        told = self._log.with_suffix(".told")
        with told.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "-o", str(self._log), "-p", str(self._pid)], stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + 30
        while b"attached" not in told.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"strace does not attach: {told.read_text()[-300:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *about: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # it lets the process go, and writes the rest of its log
        self._process.wait(30)


def read_trace(log: Path) -> Iterator[Call]:
    """Give the calls that succeeded, in the order of their ends."""
    return iter(sorted(_calls(log), key=lambda call: call.end))


def _calls(log: Path) -> Iterator[Call]:
    waiting: dict[str, tuple[float, str]] = {}
    with log.open(errors="replace") as lines:
        for line in lines:
            if (found := _LINE.match(line.rstrip("\n"))) is None:
                continue
            thread, at, text = found[1], float(found[2]), found[3]
            if begun := _UNFINISHED.match(text):
                waiting[thread] = at, begun[1]
                continue
            if resumed := _RESUMED.match(text):
                if thread not in waiting:
                    continue  # it began before we did
                at, head = waiting.pop(thread)
                text = head + resumed[2]
            whole = _WHOLE.match(text)
            if whole is None or whole[3].startswith("-"):
                continue
            name, arguments, result, path, took = whole.groups()
            yield Call(name, arguments, int(result), _path((path or "")[1:-1]), at, at + float(took))


def _path(text: str) -> str:
    """Read a path as strace writes it with -xx."""
    return unescaped(text).decode("utf-8", "surrogateescape")


def unescaped(text: str) -> bytes:
    """Read bytes that strace wrote as \\xNN; what is no such is itself."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())
