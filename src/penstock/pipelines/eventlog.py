"""Following Spark's event log while Spark writes it: the one place that tells every query's progress from outside.

Spark rolls the log into files, `eventlog_v2_<application>/events_<number>_<application>`. What was read is deleted, so
that a run of weeks keeps one small file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import PipelineError, RemoteProtocolError
from penstock.spark.told import count, read_told

__all__ = ["EventLog", "connect_port"]

log = logging.getLogger("penstock.pipelines")

_CONNECT = b"SparkListenerConnectServiceStarted"
# Only these are worth parsing: most of the log is about tasks and storage.
_WANTED = (b"QueryProgressEvent", b"QueryStartedEvent", b'"SparkListenerJobStart"', b'"SparkListenerTaskEnd"', _CONNECT)
MOST_LINE = 64 * 2**20


class EventLog:
    """The events that Spark has logged in a folder, each given once; `on_broken` hears of a line that is damaged."""

    def __init__(self, folder: Path, on_broken: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self._on_broken = on_broken or (lambda why: log.warning("The event log %s is damaged. %s", folder, why))
        self._path: Path | None = None
        self._place = 0
        self._rest = b""
        self._passing = False  # a line that is too long, until its end

    def read(self) -> Iterator[dict[str, Any]]:
        """Give what is new."""
        while True:
            files = sorted(self.folder.glob("eventlog_v2_*/events_*"), key=_number)
            if self._path is None and files:
                self._path = files[0]
            if self._path is None:
                return
            yield from self._read_on(self._path)
            later = [path for path in files if _number(path) > _number(self._path)]
            if not later:
                return
            yield from self._read_on(self._path)  # what came before the log was rolled
            self._path.unlink(missing_ok=True)
            self._path, self._place, self._rest, self._passing = later[0], 0, b"", False

    def _read_on(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            with path.open("rb") as file:
                file.seek(self._place)
                while chunk := file.read(2**20):
                    self._place += len(chunk)
                    *lines, self._rest = (self._rest + chunk).split(b"\n")
                    for line in lines:
                        if not self._passing and any(word in line[:200] for word in _WANTED):
                            yield from self._event(line)
                        self._passing = False
                    if len(self._rest) > MOST_LINE:
                        self._rest, self._passing = b"", True
        except FileNotFoundError:
            return

    def _event(self, line: bytes) -> list[dict[str, Any]]:
        try:
            return [read_told(line)]
        except RemoteProtocolError as error:  # as when a disk was full for a moment
            self._on_broken(str(error))
            return []


def connect_port(folder: Path, patience: float = 60.0) -> int:
    """Give the port on which a Spark that has just started, and logs to this folder, serves Spark Connect."""
    events, deadline = EventLog(folder), time.monotonic() + patience
    while True:
        for event in events.read():
            if str(event.get("Event")).endswith(_CONNECT.decode()):
                return count(event, "bindingPort", None)
        if time.monotonic() > deadline:  # Spark logs from a queue of its own, a moment later
            what = f"Spark did not say within {patience:g} s where its Connect server listens."
            raise PipelineError(what, remedy="Look into its log.", log=None)
        time.sleep(0.05)


def _number(path: Path) -> int:
    part = path.name.split("_")[1]
    return int(part) if part.isdigit() else 0
