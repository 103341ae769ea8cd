"""The command as its users run it: a child process with its own environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue


def environment(home: Path, **extra: str) -> dict[str, str]:
    """A bare environment: no NATS variables and no contexts of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
    return {**kept, "HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1", **extra}


def imported(*arguments: str, **env: str) -> set[str]:
    """Run a command that must succeed, and give the names of all modules that it loaded."""
    program = (
        "import sys\nfrom penstock.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n    print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(Path("/nonexistent"), **env),
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


class Command:
    """Runs `penstock` with arguments; `url` is added as NATS_URL where one is given."""

    def __init__(self, home: Path, url: str | None = None) -> None:
        self.env = environment(home, **({"NATS_URL": url} if url else {}))

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.env, **env},
        )

    @contextmanager
    def running(self, *arguments: str, **env: str) -> Iterator[Running]:
        """Start the command and leave it running; it is killed at the end if it still lives."""
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.env, "PYTHONUNBUFFERED": "1", **env},
        )
        child = Running(process)
        try:
            yield child
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            child.reader.join(10)
            process.stdout.close()


class Running:
    """A command that runs, and what it printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._queue: Queue[str | None] = Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, text: str, timeout: float = 30.0) -> str:
        """Give the next line that holds the text; fail when the command ends or stays silent."""
        while True:
            try:
                line = self._queue.get(timeout=timeout)
            except Empty:
                raise AssertionError(f"no {text!r} in {timeout:g} s; so far: {self.lines}") from None
            if line is None:
                raise AssertionError(f"the command ended without {text!r}; it said: {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """Press Ctrl-C and give the exit status."""
        self.process.send_signal(number)
        return self.process.wait(20)

    def rest(self) -> list[str]:
        """Give what was printed after the last line that was waited for, once the command has ended."""
        self.process.wait(30)
        self.reader.join(10)
        while (line := self._queue.get(timeout=5)) is not None:
            self.lines.append(line)
        return self.lines
