"""Files that have no name of their own in their folder until they are whole, also through a power cut.

A power cut may take back what was not synced, the content of a file and the names in a folder each by themselves. So
the content is synced, then the file gets its name, then the folder is synced; whoever goes on after that may promise
that the file is there.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

__all__ = ["PartFile", "make_folder", "move_whole", "sync_folder", "write_whole"]

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


def write_whole(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Put a file in the place of the one that is there, if one is: whole or not at all."""
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
