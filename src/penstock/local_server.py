"""The server that `penstock server run` runs for this user: how programs that name no server find it.

::

    $XDG_STATE_HOME/penstock/server.lock    locked by the command for as long as it runs
    $XDG_STATE_HOME/penstock/server.json    a NATS context that leads to the server, token included, for its owner alone

A context that somebody selected is never touched, and wins. The kernel gives the lock back however the command ends:
whoever finds the context and no lock knows that the server is gone, says so, and removes the context. It counts on the
machine, and in the network, in which it was written, because its address is one of loopback: a home may be on several
machines, and in several containers. The first server is found, and a second one changes nothing for those who use the
first.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.context_files import MOST, reason, replace_file, to_bytes
from penstock.errors import ContextError
from penstock.json_text import load_json

__all__ = ["announce", "find_local_server", "state_home"]

log = logging.getLogger("penstock")

_PATIENCE = 1.0  # seconds for those who look at the lock: each holds it for an instant


def state_home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Give the folder in which programs keep what they know for this user; None for a user whose home is not there."""
    if os.path.isabs(named := environ.get("XDG_STATE_HOME", "")):
        return Path(named)
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home, ".local", "state") if os.path.isabs(home) and os.path.isdir(home) else None


def _path(environ: Mapping[str, str]) -> Path | None:
    home = state_home(environ)
    return None if home is None else home / "penstock" / "server.json"


def _here() -> str:
    """Name this machine since its start, and the network of this process: an address of loopback counts there only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return platform.node()


@contextlib.contextmanager
def announce(fields: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Let programs of this user that name no server find this one while the block runs; give the file of its context.

    ContextError, and nobody finds it, if another server of this user is found already, or nothing can be written.
    """
    path = _path(environ)
    if path is None:
        raise ContextError("This user has no home.", remedy="Set HOME.")
    run = {"pid": os.getpid(), "where": _here()}
    with _locked(path):
        try:
            replace_file(path, "server", to_bytes({**fields, "run": run}))
            yield path
        finally:
            with contextlib.suppress(OSError):  # nobody holds the lock then, and whoever finds it removes it
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = f"{path.with_suffix('.lock')} cannot be written: {reason(error)}."
        raise ContextError(what, remedy="Check the folder.", path=str(path)) from None
    try:
        deadline = time.monotonic() + _PATIENCE
        while not _take(handle, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                pid = (_read(path) or {}).get("run", {}).get("pid")
                what = "Another server of this user is found already" + (f" (pid {pid})." if pid else ".")
                raise ContextError(what, remedy="Name this one by its URL.", path=str(path))
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _take(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_local_server(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Give the context of the server that runs for this user, in this network; None if there is none.

    One that died and said nothing is told in the log, and its context is removed.
    """
    path = _path(environ)
    if path is None:
        return None
    try:
        handle = os.open(path.with_suffix(".lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # none has ever run
    try:
        if not _is_ours(os.fstat(handle)):
            return None
        gone = _take(handle, fcntl.LOCK_SH)
        found = _read(path)
        run = (found or {}).get("run")
        if not isinstance(run, dict) or run.get("where") != _here():
            return None
        if not gone:
            return path
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        log.warning(
            "The server that `penstock server run` ran here (pid %s) is gone, and was not stopped in order. "
            "No server is named now; `penstock server run` starts one.",
            run.get("pid"),
        )
        return None
    finally:
        os.close(handle)


def _is_ours(found: os.stat_result) -> bool:
    """Whether a file is this user's, and nobody else can have written it."""
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            found = load_json(file.read(MOST))
    except (OSError, ValueError, RecursionError):
        return None  # it goes at this moment, or it is none of ours
    return found if isinstance(found, dict) else None
