"""What a command costs before it does anything."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock import Server
from tests.live.inprocess import invoke

# One of each kind: help, a list (of one stream: other tests leave many), facts by way of the model, a message, one
# with an ack, a question to a server.
LIST = "stream ls --subject {stream}.>"
VERBS = ("--help", "stream add --help", LIST, "stream info {stream}", "pub {stream}.x b", "rtt")


def _cpu(environment: dict[str, str], *arguments: str) -> float:
    """Give the least CPU time of two runs; the first one may have to compile."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_a_command_costs_little_more_than_its_libraries(
    server: Server, unique: Callable[..., str], tmp_path: Path
) -> None:
    """A command of each kind takes at most four times the CPU time that loading typer, asyncio and ssl takes:
    that is, under 250 ms where those take 60 ms, as they do on a quiet machine.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_", "COVERAGE"))},
        "NATS_URL": server.url,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(tmp_path),
    }
    stream = unique("cost")
    assert invoke(server.url, "stream", "add", stream, "--subjects", f"{stream}.>", "--defaults").status == 0
    libraries = _cpu(environment, "-c", "import typer, asyncio, json, ssl")
    for verb in VERBS:
        spent = _cpu(environment, "-m", "penstock", *verb.format(stream=stream).split())
        assert spent < 4 * libraries, f"{verb}: {spent:.3f} s, the libraries {libraries:.3f} s"
