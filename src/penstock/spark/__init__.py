"""Spark's format "nats": streams as DataFrames, batch and streaming.

`spark.read.format("nats")` and `spark.readStream.format("nats")` need no import and no registration. This package
adds what goes beside a query: `assemble` for chunked messages, `ProgressListener` for lag and rates, `functions` for
payloads, `into_bucket` for results that change, `session` and `check` for a Spark that is known to work. Names are
loaded when they are used, because Spark imports this package on machines that may lack some of what they need.

Importing it, before Spark starts, lets Spark use this very Python (`PYSPARK_PYTHON`), if nothing says which one to use
and the one that Spark would find is none of this environment: a program that `.venv/bin/python` runs needs that.

The names that it exports and those of `functions` are public; its other modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports
from penstock.worker_python import use_this_python

if TYPE_CHECKING:
    from penstock.spark.assembly import assemble
    from penstock.spark.progress import Progress, ProgressListener
    from penstock.spark.provider import NatsDataSource
    from penstock.spark.sessions import check, session
    from penstock.spark.updates import into_bucket

__all__ = ["NatsDataSource", "Progress", "ProgressListener", "assemble", "check", "into_bucket", "session"]

_HOMES = {
    "NatsDataSource": "penstock.spark.provider",
    "Progress": "penstock.spark.progress",
    "ProgressListener": "penstock.spark.progress",
    "assemble": "penstock.spark.assembly",
    "check": "penstock.spark.sessions",
    "into_bucket": "penstock.spark.updates",
    "session": "penstock.spark.sessions",
}

__getattr__, __dir__ = exports(__name__, _HOMES)

use_this_python()
