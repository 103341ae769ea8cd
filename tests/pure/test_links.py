"""Links in the pages lead somewhere: to a file that is there and, if they name a heading, to that heading."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import markdown_pages as markdown

from tests.pure.test_house import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").rglob("*.md")]


def broken(page: Path) -> list[str]:
    """Give the links of a page that lead nowhere."""
    wrong = []
    for link in markdown.links(page.read_text()):
        if "://" in link.target or link.target.startswith("mailto:"):
            continue
        name, _, fragment = link.target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (fragment and fragment not in markdown.anchors(file.read_text())):
            wrong.append(link.target)
    return wrong


def test_links_lead_somewhere():
    """Every relative link and every anchor in the README, the changelog, the docs and the packages holds."""
    found = {str(page.relative_to(ROOT)): broken(page) for page in PAGES}
    assert len(found) > 50
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_pictures_say_what_they_show():
    """Every picture has a text for those who do not see it."""
    pictures = [(page.name, link) for page in PAGES for link in markdown.links(page.read_text()) if link.is_picture]
    assert pictures
    assert [(page, link.target) for page, link in pictures if not link.text.strip()] == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path):
    """A missing file, a missing heading, here or elsewhere, are told; code is no link."""
    (tmp_path / "other.md").write_text("# Other\n\n## Here\n\n## Here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n[a](other.md) [b](other.md#here-1) [`c`](gone.md) [d](other.md#here-2) [e](#page) [f](#pages)\n"
        "![g](gone.svg) `[h](gone)` [i](https://example.com)\n\n```text\n[j](gone)\n```\n"
    )
    assert broken(page) == ["gone.md", "other.md#here-2", "#pages", "gone.svg"]


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("What is there, and what is not?", "what-is-there-and-what-is-not"),
        ("`penstock stream add`", "penstock-stream-add"),
        ("Stores & backups: files", "stores--backups-files"),
        ("See [the *rules*](rules.md)", "see-the-rules"),
        ("`ack_wait`, _really_", "ack_wait-really"),
        ("Größe – über 1,000", "größe--über-1000"),
    ],
)
def test_anchors_are_those_of_a_code_host(heading: str, name: str):
    """An anchor is the heading as it is read, in small letters, with - for each space and no punctuation."""
    (found,) = markdown.headings(f"## {heading}\n")
    assert found.anchor == name


def test_headings_in_code_are_none():
    """A comment in a block of code is no heading; headings of one text are told apart by numbers."""
    text = "# One\n\n```sh\n# Two\n```\n\n## One\n\n   ```\n# Three\n   ```\n\n# One 1\n"
    assert [heading.anchor for heading in markdown.headings(text)] == ["one", "one-1", "one-1-1"]
