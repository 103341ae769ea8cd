"""The guard: a small process that owns nats-servers for us, and ends them when we are gone.

It is the parent of every node of one `Server`. It runs by path (`python -I -S guard.py FD PARENT`), alone and
single-threaded, so it imports nothing of Penstock. We talk to it over a socket, one JSON object a line, each
answered by one line with the same `id`::

    {"do": "hold", "lock": PATH, "remove": [PATH], "grace": SECONDS}   -> {} or {"held": PID or null, "place": WHERE}
    {"do": "start", "node": NAME, "argv": [...], "output": PATH}       -> {"pid": PID}
    {"do": "signal", "node": NAME, "signal": NUMBER}                   -> {}
    {"do": "state", "node": NAME}                                      -> {"pid", "state", "status"[, "neighbour"]}
    {"do": "record", "node": NAME, "store": PATH, "record": PATH, "port": PORT or null, "base": PATH}   -> {}

`state` is "running", "paused", "exited" or "none"; `neighbour` is another nats-server that uses the node's store.
The end of the socket, or of the parent process, means: stop every node gracefully, kill what has not ended after
`grace`, remove the folders, go.

Two signs tell that the parent is gone, because one alone can fail: a process that the parent forked may
hold a copy of the socket, so the parent itself is watched too. A node dies with the guard by the kernel's
hand if Linux offers it. The store's lock is inherited by the nodes: it is held exactly as long as one of
them, or the guard, lives. The guard also keeps the records of what the nodes store (`records.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

__all__ = ["Guard"]

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LINE_LIMIT = 1 << 20
_GLANCE = 0.5  # seconds between two looks at getppid(), for kernels without pidfd
_KILL_WAIT = 5.0
_DYING_WAIT = 15.0  # how long a store may still belong to a guard whose owner is dead
_RECORD_EVERY = 10.0
_RECORD_TIMEOUT = 0.5
_RECORD_SHARE = 100  # asking may take this part of the time at most, however many streams there are


class Guard:
    """The nodes, the lock and the folders of one server, and the loop that watches over them."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.parent = parent
        self.pid = os.getpid()
        self.children: dict[str, dict[str, Any]] = {}  # pid, state and exit status of each node, as they are told
        self.records: dict[str, dict[str, Any]] = {}
        self.asked_to_stop: set[int] = set()
        self.next_record = 0.0
        self.store: Any = None  # the module that reads what is stored, which few need
        self.neighbours: Any = None  # and the one that looks for who else does
        self.lock: int | None = None
        self.remove: list[str] = []
        self.grace = 10.0
        self.ending = False
        self.prctl: Any = None
        if sys.platform.startswith("linux"):
            import ctypes

            self.prctl = ctypes.CDLL(None).prctl
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_end, False)
        # Whoever started us may have blocked signals in its thread; a mask is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, self._asked_to_end)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _asked_to_end(self, number: int, frame: object) -> None:
        self.ending = True

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve requests until the parent is gone or hangs up; then end everything."""
        try:
            self._serve()
        finally:
            self._end()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        watched = None
        # An old kernel, a sandbox or another system has no such thing: getppid() must do.
        with contextlib.suppress(AttributeError, OSError):
            watched = os.pidfd_open(self.parent)
            poll.register(watched, select.POLLIN)
        held = b""
        while not self.ending and os.getppid() == self.parent:
            ready = {fd for fd, _ in poll.poll(_GLANCE * 1000)}
            if watched in ready:
                return
            if self.wake in ready:
                self._reap()
            if self.records and time.monotonic() > self.next_record:
                self._record_running()
            if self.control.fileno() not in ready:
                continue
            try:
                data = self.control.recv(65536)
            except ConnectionError:
                return
            if not data:
                return
            *lines, held = (held + data).split(b"\n")
            if len(held) > _LINE_LIMIT:
                raise ValueError("a request is longer than a mebibyte")
            for line in lines:
                request = json.loads(line)
                try:
                    answer = getattr(self, f"do_{request['do']}")(request)
                except OSError as error:
                    answer = {"error": str(error)}
                answer["id"] = request["id"]
                try:
                    self.control.sendall(json.dumps(answer).encode() + b"\n")
                except ConnectionError:
                    return

    def _end(self) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        for number, seconds in ((signal.SIGTERM, self.grace), (signal.SIGKILL, _KILL_WAIT)):
            for child in self._alive():
                self._send(child["pid"], number)
            deadline = time.monotonic() + seconds
            while self._alive() and (left := deadline - time.monotonic()) > 0:
                select.select([self.wake], [], [], min(left, _GLANCE))
                self._reap()
        if self.remove:
            import shutil  # only now: it would double the time that the guard needs to start

            for folder in self.remove:
                shutil.rmtree(folder, ignore_errors=True)

    # -- requests ----------------------------------------------------------------------------------

    def do_hold(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the lock of the store, and remember what to remove in the end."""
        self.remove = list(request["remove"])
        self.grace = float(request["grace"])
        if request["lock"] is None:
            return {}
        fd = os.open(request["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _DYING_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A crashed owner's guard may still be stopping its server: that is worth a wait.
                words = os.pread(fd, 512, 0).decode(errors="replace").split()
                pids = [int(word) for word in words[:2] if word.isdigit()]
                # A process of another machine, or of another container, has a number that means nothing here.
                place = words[2] if len(words) > 2 else here()
                alive = [pid for pid in pids if place == here() and _exists(pid)]
                if (alive and alive[0] == pids[0]) or self.ending or time.monotonic() > deadline:
                    os.close(fd)
                    return {"held": next(iter(alive or pids), None), "place": place}
                time.sleep(0.02)
                continue
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{self.parent} {os.getpid()} {here()}\n".encode(), 0)
            self.lock = fd
            return {}

    def do_start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start one node; what it says before its log is open goes to `output`."""
        child = self.children.get(request["node"])
        if child is not None and child["state"] != "exited":
            return {"error": f"{request['node']} is running already"}
        # A signal to end that came to the fork before its exec would be heard by our handler there, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(request["argv"], request["output"])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        self.children[request["node"]] = {"pid": pid, "state": "running", "status": None}
        return {"pid": pid}

    def do_signal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to a node that lives; one that has ended gets none, so no other process can."""
        self._reap()
        child = self.children.get(request["node"])
        if child is not None and child["state"] != "exited":
            self._send(child["pid"], request["signal"])
        return {}

    def do_state(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tell how a node is."""
        self._reap()
        return dict(self.children.get(request["node"]) or {"pid": None, "state": "none", "status": None})

    def do_record(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keep a record of what a node stores; what an earlier run left there is not true any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(request["record"])
        self.store = self.store or _beside("records")
        self.records[request["node"]] = {**request, "streams": None}
        self.next_record = 0.0
        return {}

    # -- records -----------------------------------------------------------------------------------

    def _record_running(self) -> None:
        """Write down what each node that runs says of its streams, and who else uses its store."""
        begin = time.monotonic()
        ours = [child["pid"] for child in self._alive()]
        for name, record in self.records.items():
            child = self.children.get(name)
            if child is None or child["state"] != "running":
                continue
            with contextlib.suppress(Exception):  # as below
                self.neighbours = self.neighbours or _beside("neighbours")
                if pid := self.neighbours.server_using(record["store"], but=ours, ask=False):
                    child["neighbour"] = pid
            if record["port"] is None:
                continue
            # It may be busy, about to end, or its disk full; whatever it is, the nodes must not go down with a record.
            with contextlib.suppress(Exception):
                streams = self.store.told_streams(record["port"], record["base"], _RECORD_TIMEOUT)
                if streams != record["streams"]:
                    self.store.write_record(record["record"], streams, closed=False)
                    record["streams"] = streams
        took = time.monotonic() - begin
        self.next_record = time.monotonic() + max(_RECORD_EVERY, took * _RECORD_SHARE)

    def _record_ended(self, name: str) -> None:
        """Write down what a node that ended in order left in its store."""
        record = self.records.pop(name)
        with contextlib.suppress(Exception):  # as above
            streams = self.store.stored_streams(record["store"])
            self.store.write_record(record["record"], streams, closed=True)

    # -- processes ---------------------------------------------------------------------------------

    def _become(self, argv: list[str], output: str) -> None:
        """Turn this fresh fork into nats-server; it never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_ENDING, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            if self.prctl is not None:
                # SIGKILL, because a paused node would never see a gentler one.
                self.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() == self.pid:  # the guard may have died before prctl
                if self.lock is not None:
                    os.set_inheritable(self.lock, True)
                os.execv(argv[0], argv)  # noqa: S606  # the point of this function; no shell is wanted
        except BaseException as error:
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def _send(self, pid: int, number: int) -> None:
        os.kill(pid, number)
        if number == signal.SIGTERM:
            self.asked_to_stop.add(pid)
            os.kill(pid, signal.SIGCONT)  # a paused node must wake to hear it

    def _alive(self) -> list[dict[str, Any]]:
        return [child for child in self.children.values() if child["state"] != "exited"]

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        by_pid = {child["pid"]: child for child in self._alive()}
        while by_pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (child := by_pid.get(pid)) is None:
                continue
            if os.WIFSTOPPED(status):
                child["state"] = "paused"
            elif os.WIFCONTINUED(status):
                child["state"] = "running"
            else:
                child.update(state="exited", status=os.waitstatus_to_exitcode(status))
                for name in [name for name in self.records if self.children.get(name) is child]:
                    if pid in self.asked_to_stop and child["status"] in (0, 1):
                        self._record_ended(name)
                self.asked_to_stop.discard(pid)


def _beside(name: str) -> Any:
    """Load a module that lies beside this one: in the guard's own process there is no package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    if spec is None or spec.loader is None:
        raise OSError(f"{name}.py cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def here() -> str:
    """Name the machine and the container in which process numbers are ours."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "".join(f"{socket.gethostname()}/{space}".split())


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] != b"Z"  # a zombie holds nothing any more
    except OSError:
        return True


if __name__ == "__main__":
    _fd = int(sys.argv[1])
    os.set_inheritable(_fd, False)
    Guard(socket.socket(fileno=_fd), int(sys.argv[2])).run()
