"""The pages for operators follow the code: every error, trouble, finding and alert has its entry."""

from __future__ import annotations

import ast
import re

import pytest

from penstock import errors
from tests.pure.test_house import ROOT, SOURCE

RUNBOOK = (ROOT / "docs" / "operate" / "runbook.md").read_text()
ALERTS = (ROOT / "docs" / "operate" / "alerts.md").read_text()
RULES = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
ENTRIES = {
    title: dict(re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- \*\*|\Z)", body, re.MULTILINE | re.DOTALL))
    for title, body in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
}
WORDS = ["You see", "It means", "Do", "Lost"]


def first_words(path: str, *calls: str) -> set[str]:
    """Give what stands first, as text, in the calls of these names in a folder or a file."""
    place = SOURCE / path
    found = set()
    for file in [place] if place.is_file() else sorted(place.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(word)), *_]) if name in calls:
                    found.add(word)
    return found


def test_every_error_and_trouble_has_an_entry():
    """A class of errors, or a kind of trouble, that is new fails here until the runbook says what to do."""
    troubles = first_words("survey", "Symptom", "Trouble")
    assert {"stuck", "away", "dead letters"} <= troubles
    assert set(ENTRIES) == {*errors.__all__, *troubles}


@pytest.mark.parametrize("title", ENTRIES)
def test_every_entry_says_all(title: str):
    """An entry has what is seen, what it means, what to do and what is lost; an error also whose fault it is."""
    entry = ENTRIES[title]
    kind = getattr(errors, title, None)
    assert list(entry) == ([*WORDS[:2], "Whose fault", *WORDS[2:]] if kind else WORDS)
    assert kind is None or re.match(r"\w+", entry["Whose fault"])[0] == kind.fault


def test_every_finding_of_the_doctor_has_a_row():
    """What the doctor looks at is in the table, and nothing else is."""
    rows = re.findall(r"^\| `(.+?)` \|", RUNBOOK.partition("## Findings of the doctor")[2], re.MULTILINE)
    # Two packages are findings of one loop, under their own names.
    assert sorted(rows) == sorted({*first_words("cli/doctor.py", "Finding"), "pyspark", "pyarrow"})


def test_links_lead_to_entries():
    """Every link from the operators' pages and the page of errors into one of these pages leads to a heading of it."""
    folder = ROOT / "docs" / "operate"
    titles = {
        page.name: {
            re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        }
        for page in folder.glob("*.md")
    }
    pages = [*folder.glob("*.md"), ROOT / "docs" / "reference" / "errors.md"]
    links = [
        (target or page.name, anchor)
        for page in pages
        for target, anchor in re.findall(r"\]\((?:\.\./operate/)?([a-z]*(?:\.md)?)#([^)]+)\)", page.read_text())
        if (target or page.name) in titles
    ]
    assert len(links) > len(errors.__all__)
    assert [link for link in links if link[1] not in titles[link[0]]] == []


def test_every_alert_has_a_row():
    """The page has the alerts of the rules, in their order and with their severity."""
    rules = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", RULES, re.DOTALL)
    assert rules
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", ALERTS, re.MULTILINE) == rules
