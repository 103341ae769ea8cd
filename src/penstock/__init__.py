"""Penstock carries NATS streams through Spark and back, each message exactly once.

The names here are public, and so are those that the packages and modules of docs/reference/api.md export; every other
module is not for users. Names load when they are first used, so that `import penstock` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import errors as errors  # a public module of its own, for programs that write `penstock.errors`
from penstock.exports import exports

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
"""The version of this package, as PEP 440 writes it."""

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

__getattr__, __dir__ = exports(__name__, _HOMES)
