"""Compile the wire modules where Cython and a C compiler are found; install them as plain Python where not.

Everything else about the project stands in pyproject.toml. PENSTOCK_PURE=1 leaves the compiling out.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

# As penstock.wire.MODULES, which cannot be imported before the project is installed.
MODULES = ("protocol", "buffers", "columns", "frames")


def extensions() -> list[Extension]:
    """Give the modules to compile; none where that is not wanted or Cython is missing."""
    if os.environ.get("PENSTOCK_PURE", "0") not in ("", "0"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("penstock: Cython is not installed; the wire modules stay plain Python.", file=sys.stderr)
        return []
    # `optional`: where the compiler is missing or fails, setuptools says so and goes on without the module.
    wanted = [Extension(f"penstock.wire.{name}", [f"src/penstock/wire/{name}.py"], optional=True) for name in MODULES]
    return list(cythonize(wanted, include_path=["src"], build_dir="build/cython", quiet=True))


setup(ext_modules=extensions())
