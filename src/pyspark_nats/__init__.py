"""The module that Spark looks for when a program says `format("nats")`.

Spark imports every top-level module whose name starts with `pyspark_` and registers the `DefaultSource` it holds.
"""
