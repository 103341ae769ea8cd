"""The pages of reasons name the tests that hold them to their word; those tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tests_that_the_reasons_name_exist():
    """Every test that a page of docs/why names is a function in the tests."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "why").glob("*.md"))
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", pages))
    there = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    assert named
    assert not named - there
