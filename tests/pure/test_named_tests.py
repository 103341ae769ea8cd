"""The pages of reasons name the tests that hold them to their word; those tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import guarantees_page

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


CELLS = [f"| {change} | **Survived**: yes. | `test_it` |" for change in guarantees_page.CHANGES]
WHOLE = "\n".join(["", "## The cells", "", "### Rows: each once", "Kept by care.", "", *CELLS, ""])


def test_a_guarantee_that_says_all_is_taken():
    """A section with ten outcomes, each tried by a test, gives ten cells of the table."""
    assert guarantees_page.sections(WHOLE) == {
        "Rows: each once": dict.fromkeys(guarantees_page.CHANGES, (("survived",), "`test_it`"))
    }


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("| moved | **Survived**: yes. | `test_it` |\n", ""),
        ("| moved | **Survived**: yes. |", "| moved | Should be fine. |"),
        ("| moved | **Survived**: yes. | `test_it` |", "| moved | **Survived**: yes. | – |"),
        ("| moved |", "| elsewhere |"),
    ],
)
def test_a_guarantee_that_keeps_silent_is_refused(said: str, instead: str):
    """A change that is left out, has no outcome, or has one that nothing tries, is not a cell of the table."""
    with pytest.raises(guarantees_page.SilentCell):
        guarantees_page.sections(WHOLE.replace(said, instead))
