"""Modules that may be compiled: which form of them is in use, and the plain one for whoever wants it.

They are written in Cython's pure Python mode. The package build compiles them if it finds a C compiler, and the same
files run as plain Python if it finds none. The environment variable PENSTOCK_PURE=1, set before the first import,
forces the plain form.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["PURE_VARIABLE", "choose", "load_plain"]

PURE_VARIABLE = "PENSTOCK_PURE"


def load_plain(rooms: dict[str, Sequence[str]]) -> dict[str, ModuleType]:
    """Load modules of some packages from their sources, whatever was compiled, as one set that holds together.

    `rooms` names the packages and the modules of each, in the order of their imports. The modules that were in use
    before stay in use for everybody else: the set, by full names, belongs to the caller.
    """
    names = {f"{room}.{name}": _folder(room) / f"{name}.py" for room, modules in rooms.items() for name in modules}
    before = {full: sys.modules.pop(full) for full in names if full in sys.modules}
    loaded = {}
    try:
        for full, path in names.items():
            spec = importlib.util.spec_from_file_location(full, path)
            assert spec is not None
            assert spec.loader is not None
            loaded[full] = sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[full])
    finally:
        for full in names:
            sys.modules.pop(full, None)
        sys.modules.update(before)
    return loaded


def _folder(room: str) -> Path:
    file = sys.modules[room].__file__
    assert file is not None
    return Path(file).parent


def choose(room: str, modules: Sequence[str]) -> bool:
    """Import the modules of a package in one form, the compiled one if it may be; tell whether it is that one."""
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        # Python prefers a compiled module to its source, so the sources must be there before anybody imports them.
        for full, module in load_plain({room: modules}).items():
            sys.modules[full] = module
            setattr(sys.modules[room], full.rpartition(".")[2], module)
        return False
    found = {name: importlib.import_module(f"{room}.{name}").COMPILED for name in modules}
    if len(set(found.values())) > 1:
        plain = ", ".join(name for name, is_compiled in found.items() if not is_compiled)
        raise ImportError(f"Some modules of {room} are compiled and some are not ({plain}): build the package again.")
    return all(found.values())
