"""Everything that the wheel holds or needs has a licence that is listed, and that goes with ours."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "licences.md"
# Those that let a program use a library without asking anything of the program.
FREE = {
    "Apache-2.0",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "PSF-2.0",
    "MPL-2.0",
    "ISC",
    "Unlicense",
    "0BSD",
    "Zlib",
}


@pytest.fixture(scope="module")
def licences():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import licences
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return licences


def listed() -> dict[str, str]:
    table = PAGE.read_text().partition("|---|---|---|\n")[2].partition("## What it needs")[2].partition("---|\n")[2]
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+) \|", table, re.M))


def test_every_kind_of_file_is_listed(licences):
    """No file gets into the wheel of which nobody said what it is."""
    known = {end for ends in licences.CONTENTS for end in ends.split()}
    files = [file for file in (ROOT / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    kinds = {file.suffix or file.name for file in files if ".egg-info" not in str(file)}
    assert kinds - known - {".c", ".pyc"} == set()


def test_every_package_is_listed(licences):
    """The page names each package that is needed, under the licence that its pinned version has."""
    found, pins = listed(), licences.pinned()
    for name in licences.needed():
        if importlib.metadata.version(name) == pins.get(name):  # others have their own trees
            assert found.get(name) == licences.licence(name), f"{name}: run `make docs`"


def test_licences_go_with_ours():
    """Each is one that asks nothing of programs that use the package."""
    found = listed()
    assert len(found) > 10
    for name, licence in found.items():
        words = set(re.findall(r"[A-Za-z0-9.-]+", licence)) - {"AND", "OR", "WITH", "exception"}
        assert words & FREE, (name, licence)
        assert "GPL" not in licence.replace("LGPL", ""), (name, licence)
