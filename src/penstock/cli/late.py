"""Modules that commands work with, and their help does not: each loads when something of it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["assets", "changes", "model", "rules", "snapshot"]


class Late:
    """A module that is not loaded yet, perhaps."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, item: str) -> Any:
        return getattr(importlib.import_module(self._name), item)


if TYPE_CHECKING:
    from penstock import model as model
    from penstock.jetstream import assets as assets
    from penstock.jetstream import changes as changes
    from penstock.jetstream import rules as rules
    from penstock.jetstream import snapshot as snapshot
else:
    model = Late("penstock.model")
    assets, changes, rules, snapshot = (
        Late(f"penstock.jetstream.{name}") for name in ("assets", "changes", "rules", "snapshot")
    )
