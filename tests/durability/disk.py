"""A disk that keeps what was synced and nothing else, rebuilt from a trace for any moment.

What the kernel promises is what counts: bytes survive if an fsync of their file began after they were written and had
ended, or if the file was opened to be synced with every write. Names are tried in two ways. `kept`: every new name,
rename and removal is there, as on a file system whose journal was just written; a file that was renamed and not synced
is then empty. `strict`: a name survives only if its folder or its file was synced after it was given.
"""

from __future__ import annotations

import itertools
import os
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.durability.trace import Call, read_trace, unescaped

__all__ = ["Disk", "Names"]

Names = Literal["kept", "strict"]
_FD = re.compile(r"(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass
class _Change:
    """A change of a file: bytes at a place, or another length."""

    end: float
    place: int
    content: bytes
    cut: bool = False
    synced: bool = False
    """Whether it was synced by itself."""


@dataclass
class _Inode:
    base: bytes = b""
    changes: list[_Change] = field(default_factory=list)
    syncs: list[tuple[float, float]] = field(default_factory=list)
    length: int = 0

    def synced(self, after: float, until: float) -> bool:
        """Tell whether a sync that began after a moment had ended before another."""
        return max((begin for begin, end in self.syncs if end <= until), default=-1.0) >= after

    def content(self, until: float, torn: random.Random | None) -> bytes:
        """Give what survives; with `torn`, some of what was not synced does, too."""
        made = bytearray(self.base)
        done = [change for change in self.changes if change.end <= until]
        last = max((begin for begin, end in self.syncs if end <= until), default=-1.0)
        safe = [change for change in done if change.synced or change.end <= last]
        rest = [change for change in done if not change.synced and change.end > last] if torn else []
        if torn and rest:
            rest = rest[: torn.randint(0, len(rest))]
        for number, change in enumerate(safe + rest):
            content = change.content
            if torn and rest and number == len(safe) + len(rest) - 1 and not change.cut:
                content = content[: torn.randint(0, len(content))]
            if change.cut:
                del made[change.place :]
            made.extend(bytes(max(0, change.place - len(made))))
            made[change.place : change.place + len(content)] = content
        return bytes(made)


@dataclass
class _Named:
    """A name that was given, moved or taken away."""

    end: float
    path: str
    inode: _Inode | None
    before: str = ""


class Disk:
    """The files below a folder: as they were when the trace began, and what the trace says of them since."""

    def __init__(self, folder: Path, base: dict[str, bytes], log: Path) -> None:
        self._folder = str(folder)
        self._names: dict[str, _Inode] = {}
        self._log: list[_Named] = []
        self._folders: dict[str, list[tuple[float, float]]] = {}
        self._first = {path: _Inode(content, length=len(content)) for path, content in base.items()}
        self._open: dict[int, tuple[_Inode, bool, bool]] = {}
        self._places: dict[int, int] = {}
        self.syncs = 0
        self._names = dict(self._first)
        for call in read_trace(log):
            self._take(call)

    @staticmethod
    def look(folder: Path) -> dict[str, bytes]:
        """Read all files below a folder, by their paths."""
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    # -- the trace -----------------------------------------------------------------------------------------------------

    def _take(self, call: Call) -> None:
        work = getattr(self, f"_{call.name}", None)
        if work is not None:
            work(call)

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._folder)

    def _fd(self, call: Call) -> tuple[int, str]:
        found = _FD.match(call.arguments)
        return (int(found[1]), _plain(found[2])) if found else (-1, "")

    def _openat(self, call: Call) -> None:
        path, flags = call.result_path, call.arguments
        self._open.pop(call.result, None)
        if not self._is_ours(path) or "O_DIRECTORY" in flags or os.path.isdir(path):
            return
        inode = self._names.get(path)
        if inode is None:
            if "O_CREAT" not in flags:
                return
            inode = self._names[path] = _Inode()
            self._log.append(_Named(call.end, path, inode))
        elif "O_TRUNC" in flags and inode.length:
            inode.changes.append(_Change(call.end, 0, b"", cut=True))
            inode.length = 0
        synced = "O_SYNC" in flags or "O_DSYNC" in flags
        self._open[call.result] = inode, "O_APPEND" in flags, synced
        self._places[call.result] = 0

    _open_ = _creat = _openat

    def _held(self, call: Call) -> tuple[int, _Inode, bool, bool] | None:
        number, path = self._fd(call)
        if not self._is_ours(path):
            return None
        if number not in self._open:  # it was open before we looked
            inode = self._names.get(path.removesuffix("(deleted)"))
            if inode is None:
                return None
            self._open[number] = inode, False, False
            self._places[number] = inode.length
        return number, *self._open[number]

    def _write(self, call: Call) -> None:
        if (held := self._held(call)) is None:
            return
        number, inode, appends, synced = held
        content = b"".join(unescaped(text) for text in _TEXT.findall(call.arguments))[: call.result]
        place = inode.length if appends else self._places[number]
        self._put(inode, place, content, call.end, synced)
        self._places[number] = place + len(content)

    _writev = _write

    def _pwrite64(self, call: Call) -> None:
        if (held := self._held(call)) is None:
            return
        _, inode, _, synced = held
        content = b"".join(unescaped(text) for text in _TEXT.findall(call.arguments))[: call.result]
        self._put(inode, int(call.arguments.rpartition(",")[2]), content, call.end, synced)

    _pwritev = _pwrite64

    def _put(self, inode: _Inode, place: int, content: bytes, end: float, synced: bool) -> None:
        inode.changes.append(_Change(end, place, content, synced=synced))
        inode.length = max(inode.length, place + len(content))

    def _ftruncate(self, call: Call) -> None:
        if (held := self._held(call)) is not None:
            length = int(call.arguments.rpartition(",")[2])
            held[1].changes.append(_Change(call.end, length, b"", cut=True))
            held[1].length = length

    def _lseek(self, call: Call) -> None:
        if (held := self._held(call)) is not None:
            self._places[held[0]] = call.result

    def _close(self, call: Call) -> None:
        self._open.pop(self._fd(call)[0], None)

    def _fsync(self, call: Call) -> None:
        _, path = self._fd(call)
        if not self._is_ours(path):
            return
        self.syncs += 1
        if (held := self._held(call)) is not None:
            held[1].syncs.append((call.begin, call.end))
        else:
            self._folders.setdefault(path, []).append((call.begin, call.end))

    _fdatasync = _fsync

    def _renameat(self, call: Call) -> None:
        before, path = [_plain(text) for text in _TEXT.findall(call.arguments)][:2]
        if self._is_ours(path) and before in self._names:
            inode = self._names[path] = self._names.pop(before)
            self._log.append(_Named(call.end, path, inode, before))
        elif self._is_ours(path):
            self._move_folder(before, path, call.end)

    _rename = _renameat2 = _renameat

    def _move_folder(self, before: str, path: str, end: float) -> None:
        for name in [name for name in self._names if name.startswith(f"{before}/")]:
            moved = path + name.removeprefix(before)
            inode = self._names[moved] = self._names.pop(name)
            self._log.append(_Named(end, moved, inode, name))

    def _unlinkat(self, call: Call) -> None:
        texts = _TEXT.findall(call.arguments)
        path = _plain(texts[0]) if texts else ""
        if path in self._names:
            del self._names[path]
            self._log.append(_Named(call.end, path, None))

    _unlink = _unlinkat

    # -- what survives -------------------------------------------------------------------------------------------------

    def at(self, moment: float, names: Names = "kept", torn: random.Random | None = None) -> dict[str, bytes]:
        """Give the files that survive if the power fails at a moment."""
        found = dict(self._first)
        for named in itertools.takewhile(lambda named: named.end <= moment, self._log):
            if names == "strict" and not self._is_safe(named, moment):
                continue
            if named.before:
                found.pop(named.before, None)
            if named.inode is None:
                found.pop(named.path, None)
            else:
                found[named.path] = named.inode
        return {path: inode.content(moment, torn) for path, inode in found.items()}

    def _is_safe(self, named: _Named, moment: float) -> bool:
        parent = os.path.dirname(named.path)
        folder = any(begin >= named.end and end <= moment for begin, end in self._folders.get(parent, ()))
        return folder or (named.inode is not None and named.inode.synced(named.end, moment))

    def write(self, files: dict[str, bytes], target: Path) -> None:
        """Write files below another folder, at the same places."""
        for path, content in files.items():
            place = target / Path(path).relative_to(self._folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def _plain(text: str) -> str:
    return unescaped(text).decode("utf-8", "surrogateescape")
