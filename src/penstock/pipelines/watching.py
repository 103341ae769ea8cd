"""Watching the Spark of a run from its child: whether it is still there, and whether it still answers.

The client of Spark Connect waits for a server that is gone for a quarter of an hour and longer, and for one that is
frozen for ever. So a thread of the child waits for the end of the Java process that it started, or knocks at the
Connect server that it was given: when Spark is gone, the child says so and ends. Another thread asks Spark a small
question again and again: whoever follows the child learns by that how long Spark has been silent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import urlsplit

__all__ = ["DEFAULT_PORT", "connect_address", "ended_by", "watch_answers", "watch_java", "watch_server"]

DEFAULT_PORT = 15002
_KNOCK = 1.0  # seconds between two knocks at a Connect server, and for each
_GONE = 10.0  # seconds of knocking in vain after which a Connect server counts as gone
_BEAT = 5.0  # seconds between two questions

Say = Callable[..., None]


def connect_address(url: str) -> tuple[str, int]:
    """Give host and port of a Connect server; ValueError if there is none."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or DEFAULT_PORT
    if parts.scheme != "sc" or not host:
        raise ValueError("no address of a Connect server")
    return host, port


def watch_java(process: subprocess.Popen[bytes], say: Say) -> None:
    """End this process when the Java process of Spark has ended: it lives until we are gone, unless it is killed."""

    def wait() -> None:
        _end(say, f"Spark's Java process {ended_by(process.wait())}")

    _start(wait)


def watch_server(url: str, say: Say, *, gone: float = _GONE) -> None:
    """End this process when nobody has listened at the address of a Connect server for a while."""
    address = connect_address(url)

    def knock() -> None:
        since: float | None = None
        while since is None or time.monotonic() - since < gone:
            try:
                socket.create_connection(address, max(_KNOCK, gone / 2)).close()
                since = None
            except OSError:
                since = since or time.monotonic()
            time.sleep(_KNOCK)
        _end(say, f"The Spark Connect server at {address[0]}:{address[1]} is gone: nobody listens there any more")

    _start(knock)


def watch_answers(spark: Any, say: Say, over: threading.Event) -> None:
    """Say it each time that Spark has answered, until the run is over."""

    def ask() -> None:
        while not over.is_set():
            try:
                spark.conf.get("spark.sql.session.timeZone", "")  # the version is kept, and would not be asked for
                say("answer")
            except Exception:  # noqa: S110  # whatever it is, Spark has not answered; why, the run itself learns
                pass
            over.wait(_BEAT)

    _start(ask)


def ended_by(status: int) -> str:
    """Say how a process ended that did not say so itself."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended without a message (status {status})"


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="penstock-watch", daemon=True).start()


def _end(say: Say, reason: str) -> NoReturn:
    try:
        say("failed", reason=reason)
    finally:
        os._exit(1)  # threads of ours wait for what never comes
