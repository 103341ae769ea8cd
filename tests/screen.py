"""A terminal that shows what a command draws: a pseudo-terminal for the command, and the screen that it would fill.

It knows what rich writes and refuses everything else, so that nothing is drawn here otherwise than on a terminal.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_CODE = re.compile(r"\x1b(?:\[([?\d;]*)([A-Za-z])|\](.*?)(?:\x1b\\|\x07))")


class Screen:
    """The lines of a terminal: those that have left at its top, and those that are shown."""

    def __init__(self, columns: int, rows: int = 40) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[]]
        self.colours: set[str] = set()
        self.wraps: list[tuple[int, str]] = []
        """What was longer than the terminal: the row in which it began, and what stands there."""
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Take in what a command writes."""
        text, place = self._rest + text, 0
        self._rest = ""
        while place < len(text):
            letter = text[place]
            if letter != "\x1b":
                self._put(letter)
                place += 1
                continue
            found = _CODE.match(text, place)
            if found is None:
                assert len(text) - place < 100, f"an unknown code: {text[place : place + 20]!r}"
                self._rest = text[place:]  # the other half comes with the next read
                return
            if found.group(2):
                self._obey(found.group(1), found.group(2))
            place = found.end()

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append([])
        else:
            assert letter.isprintable(), f"a control: {letter!r}"
            if self._column == self.columns:
                self.wraps.append((self._row, "".join(self.lines[self._row])))
                self._put("\r")
                self._put("\n")
            line = self.lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = letter
            self._column += 1

    def _obey(self, given: str, code: str) -> None:
        if code == "m":
            self.colours |= set(given.split(";")) - {"", "0"}
        elif code == "A":
            top = max(0, len(self.lines) - self.rows)
            self._row = max(top, self._row - int(given or 1))
        elif code == "K":
            assert given == "2"
            self.lines[self._row].clear()
        elif code not in "hl":
            raise AssertionError(f"an unknown code: {given}{code}")

    @property
    def text(self) -> str:
        """All lines, without the blanks at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)


class Shown:
    """A command on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, screen: Screen) -> None:
        self.process, self.screen = process, screen
        self.seen: list[str] = []
        """The screen after each read that changed it."""
        self._terminal = terminal

    def read(self, timeout: float = 0.1) -> bool:
        """Take in what was written, waiting a little for it; tell whether more may come."""
        if not select.select([self._terminal], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            return False
        self.screen.feed(data.decode())
        if not self.seen or self.screen.text != self.seen[-1]:
            self.seen.append(self.screen.text)
        return bool(data)

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Read until the screen shows a text."""
        deadline = time.monotonic() + timeout
        while text not in self.screen.text:
            assert self.read() or text in self.screen.text, f"it ended without {text!r}:\n{self.screen.text}"
            assert time.monotonic() < deadline, f"no {text!r} in {timeout:g} s:\n{self.screen.text}"

    def end(self, timeout: float = 60.0) -> int:
        """Read to the end, and give the exit status."""
        deadline = time.monotonic() + timeout
        while self.read():
            assert time.monotonic() < deadline, f"it goes on after {timeout:g} s:\n{self.screen.text}"
        return self.process.wait(30)


@contextmanager
def shown(
    command: Sequence[str], env: Mapping[str, str], columns: int, *, rows: int = 40, cwd: str | None = None
) -> Iterator[Shown]:
    """Run a command with all three of its streams on a terminal of so many columns."""
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    sized = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env={"TERM": "xterm-256color", **sized}, cwd=cwd,
        start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    try:
        yield Shown(process, terminal, Screen(columns, rows))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        os.close(terminal)
