"""Stores and backups of nats-server, read without a server: blocks, indexes and archives, as Arrow batches.

The names that it exports are public; its modules are not for users. The inner ones (`MODULES`) are compiled as those of
the wire are, and stand on them.
"""

from __future__ import annotations

from types import ModuleType

from penstock import plain, wire
from penstock.exports import exports

__all__ = ["History", "open_backup", "open_store"]

__getattr__, __dir__ = exports(__name__, dict.fromkeys(__all__, "penstock.store.history"))

# In the order of their imports.
MODULES = ("checksums", "s2", "decoding", "records", "entries")


def load_plain() -> dict[str, ModuleType]:
    """Load the plain form of all of `MODULES`, by their names, on the plain form of the wire."""
    loaded = plain.load_plain({wire.__name__: wire.MODULES, __name__: MODULES})
    return {name: loaded[f"{__name__}.{name}"] for name in MODULES}


compiled: bool = plain.choose(__name__, MODULES)
"""Whether the modules are the compiled ones."""
