"""A shop's orders through Spark and back: traffic with a ledger, a pipeline, a bus service, an audit and a report.

It is there to be read and copied; its modules are not for users to import.
"""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).resolve().parent
"""The pipeline project: its spec, its topology and its transformations."""
