"""The CPU time of everything that a benchmark started, by kind: what counts where others use the same machine."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class CpuTime:
    """Counts the CPU seconds of this process and all its children since it was made, or was asked last."""

    def __init__(self) -> None:
        self.before = _all()

    def taken(self) -> dict[str, float]:
        """Give the seconds since the last time: of the server, of the JVM, of Python workers, and of this process."""
        now = _all()
        found: dict[str, float] = {}
        for process, (kind, ticks) in now.items():
            found[kind] = found.get(kind, 0.0) + (ticks - self.before.get(process, ("", 0))[1]) / TICKS
        self.before = now
        return {kind: round(seconds, 2) for kind, seconds in found.items()}


def memory() -> float:
    """Give the MiB of this process and all its children but servers; pages that they share count for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = 0
    for process, (kind, _) in _all().items():
        try:
            found += 0 if kind == "server" else int(Path(f"/proc/{process}/statm").read_text().split()[1]) * page
        except OSError:
            continue  # it has just ended
    return found / 2**20


def _all() -> dict[int, tuple[str, int]]:
    """Give the kind and the ticks of each process below this one; what ended is counted by its parent."""
    parents, facts = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        process = int(folder.name)
        parents[process] = int(words[1])
        kind = "server" if b"nats-server" in command else "java" if b"java" in command.split(b"\0")[0] else "python"
        own = sum(map(int, words[11:13]))
        facts[process] = kind, own + (sum(map(int, words[13:15])) if kind == "python" else 0)
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    me = os.getpid()
    found = {process: facts[process] for process in ours if process in facts}
    found[me] = "this", found[me][1]
    return found
