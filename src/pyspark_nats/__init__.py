"""The module that Spark looks for when a program says `format("nats")`.

Spark imports every top-level module whose name starts with `pyspark_` and registers the `DefaultSource` it holds.
It is public for that, and needs no import.
"""

from penstock.spark.provider import NatsDataSource

__all__ = ["DefaultSource"]


class DefaultSource(NatsDataSource):
    """Spark registers this class under the name that it gives, "nats"."""
