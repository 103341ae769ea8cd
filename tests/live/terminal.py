"""A terminal for tests: a pseudo-terminal with a command on it, and the screen as somebody would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]")


class Terminal:
    """What a command drew, and the keys that it gets."""

    def __init__(self, process: subprocess.Popen[bytes], handle: int, width: int, height: int) -> None:
        self.process, self.handle, self.width, self.height = process, handle, width, height
        self.raw = ""
        self.other = False
        """Whether the other screen is shown, which leaves that of the shell as it was."""
        self._cells: dict[tuple[int, int], str] = {}
        self._row = self._column = 0
        self._rest = ""
        self._bytes = b""

    @property
    def lines(self) -> list[str]:
        """The screen, line by line."""
        return [
            "".join(self._cells.get((row, column), " ") for column in range(self.width)).rstrip()
            for row in range(self.height)
        ]

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self.handle, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Make the window larger or smaller."""
        self.width, self.height = width, height
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def wait(self, wanted: Callable[[Terminal], object], timeout: float = 40.0) -> Terminal:
        """Read until the screen is as wanted."""
        deadline = time.monotonic() + timeout
        while not wanted(self):
            if time.monotonic() > deadline or not self._read(deadline - time.monotonic()):
                raise AssertionError("\n".join([*self.lines, f"({len(self.raw)} letters: {self.raw[-300:]!r})"]))
        return self

    def see(self, text: str) -> Terminal:
        """Wait until this stands on the screen."""
        return self.wait(lambda terminal: any(text in line for line in terminal.lines))

    def end(self, timeout: float = 40.0) -> int:
        """Read to the end, and give the status."""
        deadline = time.monotonic() + timeout
        while self._read(0.5):
            assert time.monotonic() < deadline, "\n".join(self.lines)
            if self.process.poll() is not None and not select.select([self.handle], [], [], 0)[0]:
                break
        return self.process.wait(20)

    def mode(self) -> list[object]:
        """Give how the terminal treats keys: letters echoed, lines waited for, and so on."""
        return list(termios.tcgetattr(self.handle))

    def _read(self, timeout: float) -> bool:
        if not select.select([self.handle], [], [], max(0.0, timeout))[0]:
            return True
        try:
            data = os.read(self.handle, 65536)
        except OSError:  # nobody writes any more
            return False
        self._bytes += data
        text = self._bytes.decode("utf-8", "ignore")
        whole = self._bytes.decode("utf-8", "replace")
        self._bytes = b"" if not whole.endswith("\ufffd") else self._bytes[-4:]
        self.raw += text
        self._draw(self._rest + text)
        return bool(data)

    def _draw(self, text: str) -> None:
        place = 0
        while place < len(text):
            letter = text[place]
            if letter == "\x1b":
                found = _SEQUENCE.match(text, place)
                if found is None and len(text) - place < 20:
                    self._rest = text[place:]
                    return
                if found is None:
                    place += 1
                    continue
                self._obey(found[1] or "", found[2] or "")
                place = found.end()
                continue
            if letter == "\n":
                self._row = min(self._row + 1, self.height - 1)
            elif letter == "\r":
                self._column = 0
            elif letter.isprintable():
                self._cells[self._row, self._column] = letter
                self._column += 1
            place += 1
        self._rest = ""

    def _obey(self, numbers: str, letter: str) -> None:
        if numbers == "?1049":
            self.other = letter == "h"
            self._cells = {}
        elif letter == "H":
            row, _, column = numbers.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif letter == "J":
            self._cells = {}
        elif letter == "K":
            for column in range(self._column, self.width):
                self._cells.pop((self._row, column), None)
        elif letter == "A":
            self._row = max(0, self._row - int(numbers or 1))


@contextmanager
def terminal(env: dict[str, str], *arguments: str, width: int = 80, height: int = 24) -> Iterator[Terminal]:
    """Run the command on a terminal of its own; it is killed at the end if it still lives."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        close_fds=True,
    )
    try:
        yield Terminal(process, ours, width, height)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(ours)
        os.close(theirs)
