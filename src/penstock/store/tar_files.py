"""A backup of a server before 2.15: the files of its store, in a compressed tar archive, as if it were the store."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.store.opening import open_file
from penstock.store.places import BlockPlace, InBackup
from penstock.store.s2 import Broken
from penstock.store.unpacked import Unpacked

__all__ = ["Tar"]

_ERRORS = "errors.txt"


@dataclass(frozen=True)
class Tar:
    """A folder inside of a tar archive, with the face of `Folder`."""

    uri: str
    members: dict[str, InBackup] = field(repr=False)
    """Where each file is."""
    inner: str = ""

    @classmethod
    def open(cls, path: str) -> Tar:
        """Find the files in an archive; Broken if it is not one."""
        with Unpacked(open_file(path)) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    members = {
                        item.name: InBackup(path, item.name, item.offset_data, item.size, file.anchor(item.offset_data))
                        for item in tar
                        if item.isfile()
                    }
            except tarfile.TarError as error:
                raise Broken(f"it is not a tar archive: {error}") from None
        if _ERRORS in members:
            raise Broken(f"the server broke it off and wrote {_ERRORS} into it")
        return cls(path, members)

    def inside(self, *names: str) -> Tar:
        """Give a folder below this one."""
        return Tar(self.uri, self.members, f"{self.inner}{'/'.join(names)}/")

    def names(self) -> dict[str, int | None]:
        """List the files in it."""
        found = {name.removeprefix(self.inner): size for name, size in self._sizes() if name.startswith(self.inner)}
        return {name: size for name, size in found.items() if "/" not in name}

    def _sizes(self) -> Iterator[tuple[str, int]]:
        return ((name, place.size) for name, place in self.members.items())

    def path(self, name: str) -> str:
        """Say where a file in it is."""
        return f"{self.uri}:{self.inner}{name}"

    def place(self, name: str) -> BlockPlace:
        """Give where a block in it is."""
        return self.members.get(self.inner + name) or InBackup(self.uri, self.inner + name, 0, 0)

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""
        place = self.members.get(self.inner + name)
        return None if place is None else bytes(place.read())
