"""The main job in small, as `make load` runs it with twenty million messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.server import Server
from tests.load import parts


def test_messages_through_spark_and_back(spark: Any, server: Server, tmp_path: Path):
    """What is published comes out of the other stream, each message once."""
    assert parts.messages(spark, server, tmp_path, 5_000)["messages"] == 5_000
