"""Penstock carries NATS streams through Spark and back, each message exactly once.

The names here are the public face. They load when they are first used, so that `import penstock` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import errors as errors
    from penstock.connection import connect as connect
    from penstock.errors import PenstockError as PenstockError
    from penstock.model import Consumer as Consumer
    from penstock.model import Message as Message
    from penstock.model import PubAck as PubAck
    from penstock.model import Stream as Stream
    from penstock.options import ConnectionOptions as ConnectionOptions
    from penstock.server import Server as Server

__version__ = "0.1.0"

_HOMES = {
    "ConnectionOptions": "penstock.options",
    "Consumer": "penstock.model",
    "Message": "penstock.model",
    "PenstockError": "penstock.errors",
    "PubAck": "penstock.model",
    "Server": "penstock.server",
    "Stream": "penstock.model",
    "connect": "penstock.connection",
    "errors": "penstock",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604  # the names are the keys above, all text


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    if name == "errors":  # a module, which programs written for nats-py expect here
        return importlib.import_module("penstock.errors")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
