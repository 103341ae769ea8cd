"""The clients under test: each a process of its own, started again when it has ended, as a service is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import clock

ROOT = Path(__file__).resolve().parents[2]
MARK = "PENSTOCK_FAULTS"
AGAIN = 0.3  # seconds until a client that ended is started again


def marked(mark: str) -> dict[int, str]:
    """Give every process that carries a mark in its environment, with its command."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is not ours
            if any(item.startswith(wanted) for item in (folder / "environ").read_bytes().split(b"\0")):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


@dataclass
class Client:
    """One client through all its lives; `family` is one with processes of its own, which share its fate."""

    name: str
    program: str
    given: dict[str, Any]
    family: bool = False
    life: int = 0
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False
    wanted: bool = False
    sleeper: tuple[int, subprocess.Popen[bytes]] | None = None
    """An earlier life that sleeps while the next one works."""
    due: float = 0.0
    ends: list[tuple[int, int, bool]] = field(default_factory=list)
    """Each life that ended: its number, its status, and whether that was our doing."""


class Crew:
    """Starts clients, watches them, and starts them again."""

    def __init__(self, folder: Path, mark: str, common: dict[str, Any]) -> None:
        self.folder, self.mark, self.common = folder, mark, common
        self.clients: dict[str, Client] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)
        self._thread.start()

    def add(self, name: str, program: str, *, family: bool = False, **given: Any) -> None:
        """Have a client, from now on."""
        with self._lock:
            self.clients[name] = client = Client(name, program, given, family)
            client.wanted = True
            self._start(client)

    def _mark(self, client: Client, life: int) -> str:
        return f"{self.mark}-{client.name}-{life};"

    def _send(self, client: Client, life: int, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to a life, and to whatever it has started."""
        for pid in marked(self._mark(client, life)) if client.family else {}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        process.send_signal(number)

    def _start(self, client: Client) -> None:
        client.life += 1
        client.killed = False
        temporary = self.folder / "tmp" / f"{client.name}-{client.life}"
        temporary.mkdir(parents=True)
        about = {"client": client.name, "life": client.life, "ledger": str(self.folder / f"{client.name}.jsonl")}
        given = {**self.common, **client.given, **about}
        env = {**os.environ, **clock.environment(self.clock(client.name))}
        with (self.folder / f"{client.name}.log").open("ab") as log:
            client.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.client", client.program, json.dumps(given)],
                cwd=ROOT,
                env={**env, MARK: self._mark(client, client.life), "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            with self._lock:
                for client in self.clients.values():
                    self._look(client)

    def _look(self, client: Client) -> None:
        process = client.process
        if process is not None and (status := process.poll()) is not None:
            client.ends.append((client.life, status, client.killed or not client.wanted))
            client.process = None
            client.due = time.monotonic() + AGAIN
        if client.process is None and client.wanted and time.monotonic() >= client.due:
            self._start(client)

    # -- what the nemesis does ---------------------------------------------------------------------------------------

    def kill(self, name: str) -> bool:
        """Kill a client at once; tell whether it was there."""
        with self._lock:
            client = self.clients[name]
            if client.process is None:
                return False
            client.killed = True
            self._send(client, client.life, client.process, signal.SIGKILL)
            return True

    @contextlib.contextmanager
    def resting(self, name: str) -> Iterator[None]:
        """Kill a client, and have none in its place for a moment."""
        self.wake(name)
        with self._lock:
            client = self.clients[name]
            if client.process is not None:
                client.killed = True
                self._send(client, client.life, client.process, signal.SIGKILL)
                client.process.wait()
            yield

    def signal_one_of(self, name: str, word: str, dice: float, number: signal.Signals) -> int:
        """Send a signal to one of a client's processes that have a word in their command; give its id, or 0."""
        with self._lock:
            client = self.clients[name]
            found = sorted(pid for pid, command in marked(self._mark(client, client.life)).items() if word in command)
        if not found:
            return 0
        pid = found[int(dice * len(found))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def wake_process(self, pid: int) -> None:
        """Let a process of ours go on, if it is still there."""
        if pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to the present life."""
        with self._lock:
            client = self.clients[name]
            if client.process is None or client.process.poll() is not None:
                return False
            self._send(client, client.life, client.process, number)
            return True

    def replace(self, name: str) -> bool:
        """Put the present life to sleep, and start the next one beside it."""
        with self._lock:
            client = self.clients[name]
            if client.sleeper is not None or client.process is None or client.process.poll() is not None:
                return False
            self._send(client, client.life, client.process, signal.SIGSTOP)
            client.sleeper = client.life, client.process
            self._start(client)
            return True

    def wake(self, name: str, wait: float = 30.0) -> None:
        """Let the life that slept go on, and wait until it has ended by itself; kill it if it does not."""
        with self._lock:
            client = self.clients[name]
            sleeper, client.sleeper = client.sleeper, None
        if sleeper is not None:
            life, process = sleeper
            self._send(client, life, process, signal.SIGCONT)
            try:
                client.ends.append((life, process.wait(wait), False))
            except subprocess.TimeoutExpired:
                self._send(client, life, process, signal.SIGKILL)
                client.ends.append((life, process.wait(), True))

    def clock(self, name: str) -> Path:
        """Give the file that is a client's clock."""
        return self.folder / f"{name}.clock"

    def heal(self) -> None:
        """Let everybody go on."""
        for name in list(self.clients):
            self.signal(name, signal.SIGCONT)
            self.wake(name)

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self, prefix: str, timeout: float = 60.0) -> list[str]:
        """Ask clients to end in order, and wait; those that did not are killed, and named."""
        with self._lock:
            mine = [client for client in self.clients.values() if client.name.startswith(prefix)]
            for client in mine:
                client.wanted = False
                if client.process is not None and client.process.poll() is None:
                    client.process.terminate()
        late, deadline = [], time.monotonic() + timeout
        for client in mine:
            process = client.process
            if process is None:
                continue
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(client.name)
                self._let_tell(process)
                self._send(client, client.life, process, signal.SIGKILL)
                process.wait()
        return late

    @staticmethod
    def _let_tell(process: subprocess.Popen[bytes]) -> None:
        """Have a client that does not end write what it is doing into its log, if it can still do that."""
        process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)

    def died(self, prefix: str) -> list[tuple[str, int]]:
        """Give the lives that ended by themselves."""
        with self._lock:
            found = [client for client in self.clients.values() if client.name.startswith(prefix)]
            return [(one.name, life) for one in found for life, _, ours in one.ends if not ours]

    def pids(self) -> dict[str, int]:
        """Give the process of each client that is there, by its name and life."""
        with self._lock:
            alive = [client for client in self.clients.values() if client.process and client.process.poll() is None]
            return {f"{client.name}#{client.life}": client.process.pid for client in alive if client.process}

    def close(self) -> None:
        """End everything, however it is."""
        self._over.set()
        self._thread.join(30)
        for client in self.clients.values():
            client.wanted = False
            for life, process in [(client.life, client.process), *([client.sleeper] if client.sleeper else [])]:
                if process is not None:
                    self._send(client, life, process, signal.SIGKILL)
                    process.wait()
