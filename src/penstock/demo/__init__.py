"""What `penstock demo` and `penstock quickstart` run: the commands' own code; its modules are not for users.

A shop's orders go through Spark and back: traffic with a ledger, a pipeline, a bus service, an audit and a report. The
pipeline is a project of its own, in `orders`. Examples to copy from are in the repository, under `examples/`.
"""

from pathlib import Path

__all__ = ["ORDERS", "REPORT"]

ORDERS = Path(__file__).resolve().parent / "orders"
"""The pipeline project: its spec, its topology and its transformations."""

REPORT = Path(__file__).resolve().parent / "report.html"
"""The page that `penstock.demo.report` fills in."""
