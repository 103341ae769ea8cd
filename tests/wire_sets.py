"""The wire modules in their two forms, for tests that run both."""

from __future__ import annotations

import importlib
import shutil
import sysconfig
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from penstock import wire


def _compiler() -> str | None:
    named = (sysconfig.get_config_var("CC") or "").split()
    return next((found for name in [*named[:1], "cc", "gcc", "clang"] if (found := shutil.which(name))), None)


def _compiled() -> dict[str, ModuleType]:
    return {name: importlib.import_module(f"penstock.wire.{name}") for name in wire.MODULES}


PLAIN = wire.load_plain()
FORMS = ["plain", "compiled"] if wire.compiled or _compiler() else ["plain"]


def form(name: str) -> Any:
    """Give the modules in one form; where a compiler is found, the compiled ones must be there."""
    if name == "plain":
        return SimpleNamespace(**PLAIN)
    if not wire.compiled:
        pytest.fail("A compiler is there and the wire modules are not compiled: run `make setup`.")
    return SimpleNamespace(**_compiled())
