"""Spark's format "nats": streams as DataFrames, batch and streaming.

`spark.read.format("nats")` and `spark.readStream.format("nats")` need no import and no registration. This package
adds what goes beside a query: `assemble` for chunked messages, `ProgressListener` for lag and rates, `functions` for
payloads, `session` and `check` for a Spark that is known to work. Names are loaded when they are used, because Spark
imports this package on machines that may lack some of what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.assembly import assemble
    from penstock.spark.progress import Progress, ProgressListener
    from penstock.spark.provider import NatsDataSource
    from penstock.spark.sessions import check, session

__all__ = ["NatsDataSource", "Progress", "ProgressListener", "assemble", "check", "session"]

_PLACES = {
    "NatsDataSource": "penstock.spark.provider",
    "Progress": "penstock.spark.progress",
    "ProgressListener": "penstock.spark.progress",
    "assemble": "penstock.spark.assembly",
    "check": "penstock.spark.sessions",
    "session": "penstock.spark.sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
