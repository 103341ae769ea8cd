"""All targets, gathered."""

from __future__ import annotations

from tests.fuzz import (  # noqa: F401  # each of them adds its own
    targets_console,
    targets_files,
    targets_rooms,
    targets_servers,
    targets_spark,
    targets_store,
    targets_wire,
)
from tests.fuzz.target import TARGETS

__all__ = ["TARGETS"]
