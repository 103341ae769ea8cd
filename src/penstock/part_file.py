"""Files that have no name of their own in their folder until they are whole, also through a power cut.

A power cut may take back what was not synced, the content of a file and the names in a folder each by themselves. So
the content is synced, then the file gets its name, then the folder is synced; whoever goes on after that may promise
that the file is there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self

from penstock.errors import InputError, PenstockError

__all__ = ["PartFile", "Replacement", "make_folder", "move_whole", "sync_folder", "write_whole", "writing"]

_HOPS = 40  # links that a path may lead through, as the system has it
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # of a file system that cannot


class PartFile:
    """A new file in `folder`, open for writing as `file`; it is gone after the `with` block unless it was kept."""

    def __init__(self, folder: Path, mode: int = 0o666) -> None:
        self._path = folder / f".penstock-{os.getpid()}-{os.urandom(6).hex()}.part"
        self._mode = mode

    def __enter__(self) -> Self:
        self.file = open(self._path, "xb", opener=lambda name, flags: os.open(name, flags, self._mode))
        return self

    def keep(self, target: Path, *, overwrite: bool = False) -> None:
        """Give the file its name, for good; FileExistsError if that is taken, unless it may be overwritten.

        After FileExistsError it may get another name.
        """
        if not self.file.closed:
            self.file.flush()
            _sync(self.file.fileno())
            self.file.close()
        self._name(target, overwrite)
        sync_folder(target.parent)

    def _name(self, target: Path, overwrite: bool) -> None:
        if overwrite:
            if target.exists() and not target.is_file():
                raise FileExistsError(errno.EEXIST, "what is there is not a file", str(target))
            os.replace(self._path, target)
            return
        try:
            os.link(self._path, target)  # unlike a rename it never replaces what is there
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            target.open("xb").close()  # a place of our own: this file system has no links
            os.replace(self._path, target)

    def __exit__(self, *about: object) -> None:
        with suppress(OSError):  # what a full disk did not take was told before
            self.file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


class Replacement:
    """What is to be at `path` from `keep` on, open for writing as `file`; without `keep` there is what was there.

    A link stays, and what it leads to is replaced; it keeps its mode and its owner. What is not a file of its own, such
    as a pipe, a device or `/dev/stdout`, cannot be replaced: it is written to at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._target = Path(os.path.realpath(path))
        self._part: PartFile | None = None

    def __enter__(self) -> Self:
        if (opened := _own_descriptor(self._path)) is not None:
            self.file: IO[bytes] = os.fdopen(os.dup(opened), "wb")  # goes on where the file stands
        elif self._target.exists() and not self._target.is_file():
            self.file = self._target.open("wb")
        else:
            self._part = PartFile(self._target.parent).__enter__()
            self.file = self._part.file
        return self

    def keep(self) -> None:
        """Let what was written be there for good."""
        if self._part is not None:
            with suppress(FileNotFoundError):
                _make_alike(self.file.fileno(), self._target.stat())
            self._part.keep(self._target, overwrite=True)
        else:
            self.file.flush()
            _sync(self.file.fileno())

    def __exit__(self, *about: object) -> None:
        if self._part is not None:
            self._part.__exit__(*about)
        with suppress(OSError):  # what a full disk did not take was told before
            self.file.close()


def _own_descriptor(path: Path) -> int | None:
    """Give the number of the open file of this process that a path stands for, as 1 for `/dev/stdout`."""
    mine = {"/dev/fd", os.path.realpath("/proc/self/fd")}
    for _ in range(_HOPS):
        folder = os.path.realpath(path.parent)
        if folder in mine and path.name.isdecimal():
            return int(path.name)
        if not os.path.islink(path):
            return None
        path = Path(folder, os.readlink(path))
    return None


def _make_alike(opened: int, there: os.stat_result) -> None:
    """Give an open file the owner and the mode of the one that it replaces."""
    now = os.fstat(opened)
    if (now.st_uid, now.st_gid) != (there.st_uid, there.st_gid):
        with suppress(PermissionError):  # nobody but root gives files away
            os.fchown(opened, there.st_uid, there.st_gid)
    os.fchmod(opened, stat.S_IMODE(there.st_mode) & 0o777)


@contextmanager
def writing(path: Path | str, remedy: str = "Make room, or check the path.") -> Iterator[None]:
    """Turn what the system says against writing a file into an InputError that names it."""
    try:
        yield
    except PenstockError:  # some are an OSError as well
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.", remedy=remedy) from None


def write_whole(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Put a file in the place of the one that is there, if one is, or of what a link leads to: whole or not at all."""
    target = Path(os.path.realpath(path))
    with PartFile(target.parent, mode) as part:
        part.file.write(content)
        part.keep(target, overwrite=True)


def move_whole(path: Path, target: Path) -> None:
    """Put a file that was written in the place of the one that is there, if one is, with all that was written."""
    with path.open("rb") as file:
        _sync(file.fileno())
    os.replace(path, target)
    sync_folder(target.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, unless they are there."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, mode=mode, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last; one that may be written to and not read cannot be synced."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        _sync(opened)
    finally:
        os.close(opened)


def _sync(opened: int) -> None:
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
