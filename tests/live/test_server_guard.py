"""The guard by itself: a real child process that owns other processes, spoken to over its socket, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ServerError
from penstock.server import guard
from penstock.server.guard import _exists
from penstock.server.guard_process import GuardProcess

Eventually = Callable[..., Any]


class Spoken:
    """A guard that a test speaks to as `GuardProcess` does, line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(20)
        self.errors = (folder / "guard.err").open("wb")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stderr=self.errors,
            )
        self.reader = self.socket.makefile("rb")

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """Ask for something, and give the answer."""
        self.socket.sendall(json.dumps({"do": verb, "id": 7, **request}).encode() + b"\n")
        answer = json.loads(self.reader.readline())
        assert answer.pop("id") == 7
        return answer

    def start(self, node: str, *argv: str) -> int:
        """Start a program as a node."""
        answer = self.ask("start", node=node, argv=list(argv), output=str(self.folder / f"{node}.out"))
        return int(answer["pid"])

    def state(self, node: str) -> str:
        return str(self.ask("state", node=node)["state"])

    def said(self, node: str) -> str:
        """Give what a node printed so far."""
        path = self.folder / f"{node}.out"
        return path.read_text() if path.exists() else ""

    def hang_up(self) -> int:
        """Close our end, and wait until the guard is gone."""
        self.reader.close()
        self.socket.close()
        return self.process.wait(20)

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self.reader.close()
            self.socket.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait(10)
            self.errors.close()


@pytest.fixture
def spoken(tmp_path: Path) -> Iterator[Spoken]:
    """A guard with nothing to guard yet."""
    made = Spoken(tmp_path)
    yield made
    made.close()


SLEEP = ("/bin/sleep", "60")
POLITE = ("/bin/sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")


def test_a_node_is_started_paused_and_ended(spoken: Spoken, eventually: Eventually):
    """The guard tells each state of a node: none, running, paused, running again, exited with its status."""
    assert spoken.ask("state", node="n1") == {"pid": None, "state": "none", "status": None}
    pid = spoken.start("n1", *SLEEP)
    assert spoken.ask("state", node="n1") == {"pid": pid, "state": "running", "status": None}
    for number, state in ((signal.SIGSTOP, "paused"), (signal.SIGCONT, "running"), (signal.SIGKILL, "exited")):
        assert spoken.ask("signal", node="n1", signal=int(number)) == {}
        eventually(lambda state=state: spoken.state("n1") == state)
    assert spoken.ask("state", node="n1") == {"pid": pid, "state": "exited", "status": -signal.SIGKILL}
    assert spoken.ask("signal", node="n1", signal=int(signal.SIGKILL)) == {}, "nobody gets a signal any more"
    assert spoken.start("n1", *SLEEP) != pid, "a node that has ended may be started again"


def test_a_node_that_is_stopped_while_it_starts_is_stopped(spoken: Spoken, eventually: Eventually):
    """A signal to end that comes between fork and exec is not lost: the node ends by it, and nobody waits in vain."""
    for number in range(40):
        line = {"do": "start", "node": f"n{number}", "argv": list(SLEEP), "output": str(spoken.folder / "out"), "id": 7}
        stop = {"do": "signal", "node": f"n{number}", "signal": int(signal.SIGTERM), "id": 7}
        spoken.socket.sendall(json.dumps(line).encode() + b"\n" + json.dumps(stop).encode() + b"\n")
        assert [json.loads(spoken.reader.readline())["id"] for _ in range(2)] == [7, 7]
        eventually(lambda number=number: spoken.state(f"n{number}") == "exited", 10.0)
        assert spoken.ask("state", node=f"n{number}")["status"] == -signal.SIGTERM


def test_a_node_that_runs_is_not_started_twice(spoken: Spoken):
    """A second start of a node that lives is refused, and the first one goes on; a paused one counts as alive."""
    pid = spoken.start("n1", *SLEEP)
    for number in (signal.SIGCONT, signal.SIGSTOP):
        spoken.ask("signal", node="n1", signal=int(number))
        answer = spoken.ask("start", node="n1", argv=list(SLEEP), output=str(spoken.folder / "x"))
        assert answer == {"error": "n1 is running already"}
    assert spoken.ask("state", node="n1")["pid"] == pid


def test_a_program_that_cannot_run_says_why(spoken: Spoken, eventually: Eventually):
    """A node whose program is missing ends with 127, and its output names it; the guard goes on."""
    spoken.start("n1", "/nowhere/nats-server", "-c", "x")
    eventually(lambda: spoken.state("n1") == "exited")
    assert spoken.ask("state", node="n1")["status"] == 127
    assert "cannot run /nowhere/nats-server: " in spoken.said("n1")
    spoken.start("n2", "/bin/sh", "-c", "echo said; echo loudly >&2; exit 3")
    eventually(lambda: spoken.state("n2") == "exited")
    assert spoken.ask("state", node="n2")["status"] == 3
    assert spoken.said("n2") == "said\nloudly\n"


def test_hanging_up_ends_every_node_and_removes_the_folders(spoken: Spoken):
    """When we are gone the guard stops its nodes, also a paused one, removes what it was told to, and goes."""
    away = spoken.folder / "away"
    (away / "deep").mkdir(parents=True)
    kept = spoken.folder / "kept"
    kept.mkdir()
    spoken.ask("hold", lock=None, remove=[str(away)], grace=10.0)
    pids = [spoken.start(name, *SLEEP) for name in ("n1", "n2", "n3")]
    spoken.ask("signal", node="n2", signal=int(signal.SIGSTOP))
    assert spoken.hang_up() == 0
    assert not any(_exists(pid) for pid in pids)
    assert not away.exists()
    assert kept.exists()


def test_a_node_that_does_not_want_to_end_is_killed(spoken: Spoken, eventually: Eventually):
    """What has not ended after the grace is killed; others had their chance to end by themselves."""
    spoken.ask("hold", lock=None, remove=[], grace=0.3)
    stubborn = spoken.start("n1", *STUBBORN)
    polite = spoken.start("n2", *POLITE)
    for name in ("n1", "n2"):
        eventually(lambda name=name: "ready" in spoken.said(name))
    assert spoken.hang_up() == 0
    assert not _exists(stubborn)
    assert not _exists(polite)
    assert spoken.said("n2") == "ready\nbye\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_guard_that_is_asked_to_end_does_so_in_order(spoken: Spoken, number: signal.Signals):
    """SIGTERM, Ctrl-C and a closed terminal end the guard as our going does: nodes first, then itself."""
    pid = spoken.start("n1", *SLEEP)
    spoken.process.send_signal(number)
    assert spoken.process.wait(20) == 0
    assert not _exists(pid)


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"do": "dance", "id": 1}\n', b'{"id": 1}\n', b"x" * (3 << 20)])
def test_a_request_that_is_none_ends_the_guard_and_its_nodes(spoken: Spoken, line: bytes, eventually: Eventually):
    """Whoever speaks nonsense to the guard is not us any more: it ends everything, and its last words say why."""
    pid = spoken.start("n1", *SLEEP)
    try:
        spoken.socket.sendall(line)
    except ConnectionError:
        assert len(line) > 1000, "it hung up in the middle of the long one"
    assert spoken.process.wait(20) == 1
    assert not _exists(pid)
    assert (spoken.folder / "guard.err").read_text().rstrip().splitlines()[-1]


def test_requests_in_pieces_and_together_are_read_alike(spoken: Spoken):
    """Lines may come byte by byte or several at once; each is answered in its turn."""
    line = json.dumps({"do": "state", "node": "x", "id": 1}).encode() + b"\n"
    for place in range(len(line)):
        spoken.socket.sendall(line[place : place + 1])
    spoken.socket.sendall(line.replace(b'"id": 1', b'"id": 2') + line.replace(b'"id": 1', b'"id": 3'))
    assert [json.loads(spoken.reader.readline())["id"] for _ in range(3)] == [1, 2, 3]


# -- the lock of a store -----------------------------------------------------------------------------------------------


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a program that begins opens and closes libraries
            found.add(os.readlink(entry))
    return found


def test_a_store_is_locked_as_long_as_a_node_of_it_lives(spoken: Spoken, eventually: Eventually):
    """The lock names its owner and the guard; a node holds it, too, and it is free when all of them are gone."""
    lock = spoken.folder / "penstock.lock"
    assert spoken.ask("hold", lock=str(lock), remove=[], grace=1.0) == {}
    assert lock.read_text() == f"{os.getpid()} {spoken.process.pid} {guard.here()}\n"
    assert lock.stat().st_mode & 0o077 == 0
    assert is_locked(lock)
    pid = spoken.start("n1", *SLEEP)
    eventually(lambda: Path(f"/proc/{pid}/exe").resolve() != Path(sys.executable).resolve())
    assert str(lock) in open_files(pid)
    assert spoken.hang_up() == 0
    assert not is_locked(lock)


def test_a_second_guard_is_told_who_holds_the_store(spoken: Spoken, tmp_path: Path):
    """While the owner lives nobody waits for its store; a lock with garbage in it still names nobody wrongly."""
    lock = tmp_path / "penstock.lock"
    spoken.ask("hold", lock=str(lock), remove=[], grace=1.0)
    folder = tmp_path / "second"
    folder.mkdir()
    other = Spoken(folder)
    try:
        assert other.ask("hold", lock=str(lock), remove=[], grace=1.0) == {
            "held": os.getpid(),
            "place": guard.here(),
        }
        assert is_locked(lock)
        assert lock.read_text().split()[1] == str(spoken.process.pid)
        answer = other.ask("hold", lock=str(tmp_path / "no" / "folder" / "lock"), remove=[], grace=1.0)
        assert "No such file" in answer["error"], "an error of the machine is an answer"
        assert other.ask("state", node="n1")["state"] == "none"
    finally:
        other.close()


# -- our end -----------------------------------------------------------------------------------------------------------


def test_our_end_tells_a_guard_that_is_gone(tmp_path: Path, eventually: Eventually):
    """After the guard's death every question is an error that says so; closing is still good, also twice."""
    run = tmp_path / "run"
    run.mkdir()
    process = GuardProcess(run)
    assert process.open
    assert process.state("n1")["state"] == "none"
    process._process.kill()
    eventually(lambda: not process.open)
    with pytest.raises(ServerError, match="its guard was killed by SIGKILL, and its nodes with it"):
        process.state("n1")
    process.close()
    process.close()
    assert not run.exists()
    with pytest.raises(ServerError, match="has stopped"):
        process.state("n1")


def test_a_guard_that_fails_says_why(tmp_path: Path, eventually: Eventually):
    """A guard that ends by an error of its own is told with that error."""
    process = GuardProcess(tmp_path)
    try:
        process._socket.sendall(b"no question\n")
        eventually(lambda: not process.open)
        with pytest.raises(ServerError, match=r"its guard ended with: json\.decoder\.JSONDecodeError"):
            process.state("n1")
    finally:
        process.close()


def test_an_answer_that_nobody_waits_for_any_more_is_passed_over(tmp_path: Path):
    """A question that was cut short, as by Ctrl-C, leaves its answer behind; the next one gets its own."""
    process = GuardProcess(tmp_path)
    try:
        process._count += 1
        process._socket.sendall(json.dumps({"do": "state", "node": "left", "id": process._count}).encode() + b"\n")
        start = {"node": "n1", "argv": list(SLEEP), "output": str(tmp_path / "n1.out")}
        process.ask("start", **start)
        assert process.state("n1")["state"] == "running"
        with pytest.raises(ServerError, match="could not start: n1 is running already"):
            process.ask("start", **start)
        assert process.signal("n1", signal.SIGKILL, ("exited",), 20.0)
        assert not process.signal("n1", signal.SIGTERM, ("running",), 0.05), "it does not come back"
    finally:
        process.close()
