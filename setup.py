"""Compile the wire modules if Cython and a C compiler are found; install them as plain Python if not.

Everything else about the project stands in pyproject.toml. PENSTOCK_PURE=1 leaves the compiling out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# As MODULES of each of these rooms, which cannot be imported before the project is installed.
MODULES = {
    "wire": ("protocol", "buffers", "columns", "frames", "plain_acks", "blake2", "dispatch"),
    "store": ("checksums", "s2", "decoding", "records", "entries"),
    "channels": ("encoded", "publishes", "arrivals"),
}


class OptionalBuild(build_ext):
    """Builds all the modules, or says why not and goes on with none: a mixture would not work together."""

    def run(self) -> None:
        """Build."""
        try:
            super().run()
        except Exception as error:  # compilers fail in many ways, and none of them may fail the install
            print(f"penstock: the wire modules stay plain Python: {error}", file=sys.stderr)
            for extension in self.extensions:
                for place in (self.get_ext_fullpath(extension.name), Path(self.build_lib, self._file(extension))):
                    Path(place).unlink(missing_ok=True)
            self.extensions = []

    def _file(self, extension: Extension) -> str:
        return str(self.get_ext_filename(self.get_ext_fullname(extension.name)))


def extensions() -> list[Extension]:
    """Give the modules to compile; none if that is not wanted or Cython is missing."""
    if os.environ.get("PENSTOCK_PURE", "0") not in ("", "0"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("penstock: Cython is not installed; the wire modules stay plain Python.", file=sys.stderr)
        return []
    wanted = [
        Extension(f"penstock.{room}.{name}", [f"src/penstock/{room}/{name}.py"])
        for room, names in MODULES.items()
        for name in names
    ]
    return list(cythonize(wanted, include_path=["src"], build_dir="build/cython", quiet=True))


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
