"""Standard output as the commands need it: when it cannot be written any more, the command ends, wherever it is.

`penstock sub a | head -1` ends when `head` does, without a word, as other tools do; a full disk and an output that is
closed are told in one sentence. What ends the command is a SystemExit, which also leaves a callback of the loop.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["guarded", "watched"]

BROKEN_PIPE = 141  # what a shell says of a program that SIGPIPE ended
_STDOUT = 1
_AS_IT_CAME = "penstock.as_it_came"


class _Output(io.FileIO):
    """A file whose first failure ends the command; what is flushed after that goes nowhere."""

    def __init__(self, closed: bool) -> None:
        self.fails: OSError | None = OSError(errno.EBADF, "it is closed") if closed else None
        self.is_over = False
        super().__init__(_STDOUT, "w", closefd=False)

    def write(self, data: Any, /) -> int:
        try:
            if self.fails is not None:
                raise self.fails
            return super().write(data) or 0
        except OSError as error:
            self.fails = None
            _lead_nowhere()
            if isinstance(error, BrokenPipeError):
                self.end()
            if sys.stderr is not None:
                sys.stderr.write(f"penstock: Standard output cannot be written: {error.strerror}.\n")
            raise SystemExit(1) from None

    def end(self) -> None:
        """End the command, once: its tasks are to end in peace."""
        if not self.is_over:
            self.is_over = True
            raise SystemExit(BROKEN_PIPE)


def _lead_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != _STDOUT:
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)


def _as_it_came(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:  # half a character that JSON spelled out: no byte stands for it
        return codecs.lookup_error("backslashreplace")(error)


codecs.register_error(_AS_IT_CAME, _as_it_came)


@contextmanager
def guarded() -> Iterator[None]:
    """Let a standard output that fails end the command; bytes that are not text come out as they came in.

    One that somebody else put in its place, such as a test, is left alone.
    """
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_AS_IT_CAME)
    before = sys.stdout
    if before is not sys.__stdout__:
        yield
        return
    if before is None:
        _lead_nowhere()  # else the next socket would be the standard output
    else:
        before.flush()
    written = io.BufferedWriter(_Output(closed=before is None))
    sys.stdout = io.TextIOWrapper(written, "utf-8", _AS_IT_CAME, line_buffering=before is not None and before.isatty())
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = before


@contextmanager
def watched() -> Iterator[None]:
    """End a command that runs on as soon as nobody reads the pipe that it writes to."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Output) or not _is_pipe():
        yield
        return
    import asyncio  # loaded by then; help does without

    loop = asyncio.get_running_loop()
    loop.add_reader(_STDOUT, raw.end)  # the end that writes is never readable, until the other one is closed
    try:
        yield
    finally:
        loop.remove_reader(_STDOUT)


def _is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(_STDOUT).st_mode)
    except OSError:
        return False
