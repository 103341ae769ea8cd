"""The targets of the console with a real server behind it, as long runs have them."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest

from tests.fuzz.table import TARGETS
from tests.fuzz.target import check, seeds


def test_requests_and_forms_meet_data(caplog: pytest.LogCaptureFixture) -> None:
    """Forms of the corpus do things on the server, each once; whoever has no right does nothing; pages are read."""
    caplog.set_level(logging.INFO, "penstock.console.acts")
    assert TARGETS["console"].world is TARGETS["console-acts"].world
    with TARGETS["console"].world():
        for name in ("console", "console-acts"):
            for _, content in seeds(name):
                check(TARGETS[name], content)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "penstock.console.acts"]
    outcomes = Counter(line["outcome"] for line in lines)
    assert outcomes["asked"] >= 3
    assert outcomes["done"] == outcomes["asked"], lines
    assert len({line["form"] for line in lines}) == outcomes["asked"]
