"""Keys of a terminal, one at a time as they are pressed; the terminal is as before afterwards, however it ends."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keys", "read_keys"]

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b": "esc",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x04": "end",
}
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
_MOST = 64  # keys that wait: whoever leans on one loses the rest


def read_keys(data: bytes) -> list[str]:
    """Give the keys that these bytes stand for: a letter, or a word for it; unknown sequences are left out."""
    found = [_NAMES.get(item, item) for item in _KEY.findall(data.decode("utf-8", "ignore"))]
    return [item for item in found if not item.startswith("\x1b")]


@contextmanager
def keys() -> Iterator[asyncio.Queue[str]]:
    """Give the keys that are pressed; none if standard input is not a terminal. Ctrl-C stays Ctrl-C."""
    queue: asyncio.Queue[str] = asyncio.Queue(_MOST)
    if sys.stdin is None or not sys.stdin.isatty():
        yield queue
        return
    import termios
    import tty

    handle, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def ready() -> None:
        data = os.read(handle, 1024)
        if not data:
            loop.remove_reader(handle)
        for key in read_keys(data) or ([] if data else ["end"]):
            if not queue.full():
                queue.put_nowait(key)

    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)
    loop.add_reader(handle, ready)
    try:
        yield queue
    finally:
        loop.remove_reader(handle)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
