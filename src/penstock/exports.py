"""The public names of a package: loaded when they are first used, and old ones that still work for a while. Pure.

A package says where its names live, and asks this module for the two functions that Python looks for::

    __getattr__, __dir__ = exports(__name__, {"Publisher": "penstock.jetstream.publish"})

docs/why/compatibility.md says how long an old name stays.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["exports"]


def exports(
    module: str, homes: Mapping[str, str], *, deprecated: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Give `__getattr__` and `__dir__` for a module whose names live in other modules.

    `homes` says for each name in which module it is; if that is the package itself, the name is a module of it.
    `deprecated` says for each old name what has taken its place, as `module.name`: the old name gives the same thing,
    and a DeprecationWarning that points at the line that used it. A package that an extra brings and that is missing is
    told in a sentence.
    """
    former = deprecated or {}

    def get(name: str) -> Any:
        if homes.get(name) == module:
            return importlib.import_module(f"{module}.{name}")
        if name in homes:
            return getattr(_load(module, homes[name]), name)
        if name in former:
            warnings.warn(f"{module}.{name} is now {former[name]}.", DeprecationWarning, stacklevel=2)
            home, _, new = former[name].rpartition(".")
            return getattr(importlib.import_module(home), new)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted(sys.modules[module].__all__)

    return get, names


def _load(module: str, home: str) -> Any:
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        from penstock.extras import without_extra

        said = without_extra(error, module)
        if said is None:
            raise
        raise said from None
