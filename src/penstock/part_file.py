"""A file that has no name of its own in its folder until it is whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

__all__ = ["PartFile"]

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class PartFile:
    """A new file in `folder`, open for writing as `file`; it is gone after the `with` block unless it was kept."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f".penstock-{os.getpid()}-{os.urandom(6).hex()}.part"

    def __enter__(self) -> Self:
        self.file = self._path.open("xb")
        return self

    def keep(self, target: Path, *, overwrite: bool = False) -> None:
        """Give the file its name; FileExistsError if that is taken, unless it may be overwritten."""
        self.file.close()
        if overwrite:
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
        self.file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
