"""The NATS client protocol as pure code, and a blocking bulk connection on it.

`compiled` says whether its inner modules (`MODULES`) are the compiled ones; it and what `penstock.wire.bulk` exports
are public, the other names and modules are not for users.
"""

from __future__ import annotations

from types import ModuleType

from penstock import plain

__all__ = ["compiled"]

# In the order of their imports.
MODULES = ("protocol", "buffers", "columns", "frames", "plain_acks", "blake2", "dispatch")


def load_plain() -> dict[str, ModuleType]:
    """Load the plain form of all of `MODULES`, by their names."""
    return {full.rpartition(".")[2]: module for full, module in plain.load_plain({__name__: MODULES}).items()}


compiled: bool = plain.choose(__name__, MODULES)
"""Whether the wire modules are the compiled ones."""
