"""Where stores and backups lie: a folder of this machine, or any place that Arrow opens by its URI.

What is read is never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, Self

from penstock.errors import InputError
from penstock.store.opening import arrow_path, joined, open_file
from penstock.store.places import BlockPlace, InFile

__all__ = ["Files", "Folder", "open_folder"]


class Files(Protocol):
    """A folder of files, wherever it is."""

    @property
    def uri(self) -> str:
        """How errors call it."""

    def inside(self, *names: str) -> Self:
        """Give a folder below this one."""

    def names(self) -> dict[str, int | None]:
        """List what is in it: the size of each file, None for a folder."""

    def path(self, name: str) -> str:
        """Say where a file in it is."""

    def place(self, name: str) -> BlockPlace:
        """Give where a block in it is."""

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""


@dataclass(frozen=True)
class Folder:
    """A folder to read from, here or elsewhere."""

    uri: str

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return "://" not in self.uri

    def inside(self, *names: str) -> Folder:
        """Give a folder below this one."""
        return Folder(joined(self.uri, *names))

    def path(self, name: str) -> str:
        """Give the path or the URI of a file in it."""
        return joined(self.uri, name)

    def place(self, name: str) -> BlockPlace:
        """Give where a block in it is."""
        return InFile(self.path(name))

    def names(self) -> dict[str, int | None]:
        """List what is in it: the size of each file, None for a folder; nothing if it is not there."""
        if self.is_local:
            return dict(_told(self.uri, self._local_names, {}))
        from pyarrow import fs

        system, path = arrow_path(self.uri)
        selector = fs.FileSelector(path, allow_not_found=True)
        found = _told(self.uri, lambda: system.get_file_info(selector), [])
        return {item.base_name: None if item.type == fs.FileType.Directory else item.size for item in found}

    def _local_names(self) -> dict[str, int | None]:
        with os.scandir(self.uri) as found:
            return {item.name: None if item.is_dir() else item.stat().st_size for item in found}

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""
        found: bytes | None = _told(self.path(name), lambda: _whole(open_file(self.path(name))), None)
        return found


def open_folder(uri: str | os.PathLike[str]) -> Folder:
    """Give a folder that is there; InputError if it is not."""
    text = os.fspath(uri)
    folder = Folder(text.removeprefix("file://") if text.startswith("file://") else text)
    if not folder.names():
        raise InputError(f"{text} is not there, or is empty.", remedy="Name the folder of a store or of a backup.")
    return folder


def _whole(file: BinaryIO) -> bytes:
    with file:
        return file.read()


def _told(uri: str, work: Callable[[], Any], missing: Any) -> Any:
    try:
        return work()
    except (FileNotFoundError, NotADirectoryError):
        return missing
    except OSError as error:
        raise InputError(
            f"{uri} cannot be read: {error.strerror or error}.", remedy="Check that this user may read it."
        ) from None
