"""The NATS client protocol as pure code, and a blocking bulk connection on it.

The modules of `MODULES` are written in Cython's pure Python mode: the package build compiles them where it finds a C
compiler, and the same files run as plain Python where it finds none. `compiled` says which ones are active. The
environment variable PENSTOCK_PURE=1, set before the first import, forces the plain ones.

`compiled` and what `penstock.wire.bulk` exports are public; the other names and modules are not for users.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["compiled"]

PURE_VARIABLE = "PENSTOCK_PURE"
# In the order of their imports.
MODULES = ("protocol", "buffers", "columns", "frames", "dispatch")


def load_plain() -> dict[str, ModuleType]:
    """Load all of `MODULES` from their sources, whatever was compiled, as one set that holds together.

    The modules that were in use before stay in use for everybody else: the set belongs to the caller.
    """
    names = {name: f"{__name__}.{name}" for name in MODULES}
    before = {full: sys.modules.pop(full) for full in names.values() if full in sys.modules}
    loaded = {}
    try:
        for name, full in names.items():
            spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
            assert spec is not None
            assert spec.loader is not None
            loaded[name] = sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
    finally:
        for full in names.values():
            sys.modules.pop(full, None)
        sys.modules.update(before)
    return loaded


def _choose() -> bool:
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        # Python prefers a compiled module to its source, so the sources must be there before anybody imports them.
        for name, module in load_plain().items():
            sys.modules[f"{__name__}.{name}"] = globals()[name] = module
        return False
    found = {name: importlib.import_module(f"{__name__}.{name}").COMPILED for name in MODULES}
    if len(set(found.values())) > 1:
        plain = ", ".join(name for name, is_compiled in found.items() if not is_compiled)
        raise ImportError(f"Some wire modules are compiled and some are not ({plain}): build the package again.")
    return all(found.values())


compiled: bool = _choose()
"""Whether the wire modules are the compiled ones."""
