"""Who did what: a line for each act before it is tried, and one for what became of it.

The lines go to the log, and to a file if one is named. What was typed into private fields, such as a payload, is told
by its length alone.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import InputError, PenstockError

__all__ = ["Audit", "Record", "Who"]

log = logging.getLogger("penstock.console.acts")


@dataclass(frozen=True)
class Who:
    """One who acts, as far as a request tells."""

    role: str
    address: str
    session: str
    """A few letters that are the same for all acts of one browser."""


@dataclass(frozen=True)
class Record:
    """One act that is tried."""

    number: str
    """The number of its form: it joins the lines of one act."""
    who: Who
    act: str
    on: Mapping[str, str]
    given: Mapping[str, Any]


class Audit:
    """Writes the lines; `path` is the file to add them to."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        if path is not None:
            try:
                os.close(self._open(path))
            except OSError as error:
                what = f"The log of acts {path} cannot be written: {(error.strerror or str(error)).lower()}."
                raise InputError(what, remedy="Name another file.") from None

    def asked(self, record: Record) -> None:
        """Say that an act is tried; an error here keeps it from being tried."""
        self._write(record, "asked", "")

    def ended(self, record: Record, outcome: str, says: str) -> None:
        """Say what became of it: done, refused, failed or unknown."""
        self._write(record, outcome, says)

    def _write(self, record: Record, outcome: str, says: str) -> None:
        line = {
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
            "outcome": outcome,
            "act": record.act,
            "on": dict(record.on),
            "with": dict(record.given),
            "role": record.who.role,
            "address": record.who.address,
            "session": record.who.session,
            "form": record.number,
            **({"says": says} if says else {}),
        }
        text = json.dumps(line)  # in one line, and without letters that a terminal obeys
        log.info("%s", text)
        if self.path is None:
            return
        try:
            handle = self._open(self.path)
            try:
                os.write(handle, text.encode() + b"\n")  # in one piece, so that lines of two consoles do not mix
            finally:
                os.close(handle)
        except OSError as error:
            what = f"The log of acts {self.path} cannot be written: {(error.strerror or str(error)).lower()}."
            raise PenstockError(what, remedy="Make room, or mend its permissions; until then nobody can act.") from None

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
