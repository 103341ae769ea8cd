"""Our end of the guard: starts it, asks it, and lets it go."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ServerError, StoreInUseError
from penstock.json_text import load_json
from penstock.server import guard

__all__ = ["GRACE", "GuardProcess"]

GRACE = 10.0
"""Seconds that a node gets to stop gracefully before it is killed."""
_ANSWER_TIMEOUT = 30.0  # longer than the guard waits for the store of a server that is going
_POLL = 0.005

_running: weakref.WeakSet[GuardProcess] = weakref.WeakSet()


class GuardProcess:
    """A running guard process, and the socket that keeps it running."""

    def __init__(self, run: Path) -> None:
        if not sys.executable:
            raise ServerError("This Python does not know its own program and cannot start the server's guard.")
        self.run = run
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._count = 0
        self._held = b""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_ANSWER_TIMEOUT)
        try:
            with theirs, open(run / "guard.out", "ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(guard.__file__), str(theirs.fileno()), str(self._owner)],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C in our terminal is ours to answer
                )
        except BaseException:
            self._socket.close()
            raise
        _running.add(self)

    # -- asking ------------------------------------------------------------------------------------

    def hold(self, root: Path | None) -> None:
        """Make the guard lock the store and promise to remove the run folder."""
        lock = None if root is None else str(root / "penstock.lock")
        answer = self.ask("hold", lock=lock, remove=[str(self.run)], grace=GRACE)
        if "held" in answer:
            pid = answer["held"]
            elsewhere = "" if answer["place"] == guard.here() else f" on {answer['place'].partition('/')[0]}"
            ours = pid == os.getpid() and not elsewhere
            who = "this process" if ours else f"process {pid}{elsewhere}" if pid else "another process"
            what = f"The store {root} is in use by a server of {who}."
            raise StoreInUseError(what, remedy="Stop that server, or use another folder.", store=str(root), pid=pid)

    def state(self, node: str) -> dict[str, Any]:
        """Tell the pid of a node, its state and its exit status."""
        return self.ask("state", node=node)

    def signal(self, node: str, number: signal.Signals, states: Sequence[str], timeout: float) -> bool:
        """Send a signal and wait until the node is in one of these states; False if it is not in time."""
        self.ask("signal", node=node, signal=int(number))
        deadline = time.monotonic() + timeout
        while self.state(node)["state"] not in states:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """Send one request and give its answer."""
        if os.getpid() != self._owner:
            what = f"This server belongs to process {self._owner}, of which this one is a fork."
            raise ServerError(what, remedy="Use its URL here, and start and stop it there.")
        with self._lock:
            self._count += 1
            line = json.dumps({"do": verb, "id": self._count, **request}).encode() + b"\n"
            try:
                self._socket.sendall(line)
                answer = self._receive()
            except OSError as error:
                raise ServerError(f"The server has stopped: its guard {self._why(error)}.") from error
        if "error" in answer:
            raise ServerError(f"The server's guard could not {verb}: {answer['error']}.")
        return answer

    def _receive(self) -> dict[str, Any]:
        while True:
            while b"\n" not in self._held:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("has ended")
                self._held += data
            line, _, self._held = self._held.partition(b"\n")
            answer: dict[str, Any] = load_json(line)
            if answer.pop("id") == self._count:  # an older answer belongs to a request that Ctrl-C cut short
                return answer

    def _why(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"does not answer within {_ANSWER_TIMEOUT:g} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            if (status := self._process.wait(1.0)) < 0:
                return f"was killed by {signal.Signals(-status).name}, and its nodes with it"
        try:
            said = (self.run / "guard.out").read_text(errors="replace").strip()
        except OSError:
            said = ""  # its folder went with it
        return f"ended with: {said.splitlines()[-1]}" if said else "has ended"

    # -- letting go --------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the guard lives and is ours."""
        return os.getpid() == self._owner and self._socket.fileno() >= 0 and self._process.poll() is None

    def close(self) -> None:
        """Hang up, and wait until the guard has stopped the nodes and removed the run folder. Repeatable."""
        if os.getpid() != self._owner:
            return
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # the guard may have hung up first
                self._socket.shutdown(socket.SHUT_RDWR)  # reaches the guard even if a fork holds a copy
            self._socket.close()
        try:
            self._process.wait(GRACE + 10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel kills its nodes
            self._process.wait(10.0)
        shutil.rmtree(self.run, ignore_errors=True)  # for a guard that was killed


def _forget_all() -> None:
    for process in list(_running):
        process._socket.close()
        process._process.returncode = 0  # no child of this fork: nothing to wait for or to warn about


os.register_at_fork(after_in_child=_forget_all)
