"""How people work on it: what CONTRIBUTING and its neighbours name exists, hooks run pinned tools, forms are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from penstock.cli.tree import COMMANDS
from tests.conftest import SUITE_MINUTES, overtime

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "docs/contributing/release.md"]
LINK = re.compile(r"\]\(([^)#]+\.md)[^)]*\)")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def hooks() -> list[dict]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"], "nothing is fetched from elsewhere"
    return config["repos"][0]["hooks"]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_a_hook_runs_a_pinned_tool_of_the_environment(hook: dict):
    """Each hook's command is in `.venv`, its package is pinned, and the files that it names exist."""
    program, *words = hook["entry"].split()
    assert hook["language"] == "system"
    assert program.startswith(".venv/bin/")
    name = program.rpartition("/")[2]
    tool = words[words.index("-m") + 1] if name == "python" else name
    assert re.search(rf"^{tool}==", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    assert (ROOT / program).exists()
    for word in words:
        assert not word.startswith("tests/") or (ROOT / word).is_file(), word


@pytest.mark.parametrize("page", PAGES)
def test_pages_for_contributors_name_what_exists(page: str):
    """Links, files, targets of make and tests that these pages name are there."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|tools|docs|requirements)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"^make ([a-z]+)|`make ([a-z]+)", text, re.MULTILINE):
        assert "".join(target) in targets, target


def test_every_page_is_found_from_the_first_one():
    """Who reads the docs on a code host finds each page from docs/README.md, or from the index of its folder."""
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        indexes = {docs / "README.md", page.parent / "README.md"} & set(docs.rglob("README.md"))
        if page in indexes or page.parent == docs / "reference" / "api":  # the public names lead to those
            continue
        links = [(index.parent / link).resolve() for index in indexes for link in LINK.findall(index.read_text())]
        assert page in links, page.relative_to(ROOT)


def test_the_readme_names_every_command():
    """The table of what is there has each command of the tree, in its order."""
    (row,) = re.findall(r"^\| `penstock` \| the command: (.*) \(", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [name for name, entry in COMMANDS.items() if not entry.hidden]


def test_nobody_is_sent_to_an_address_that_may_not_exist():
    """Reports go through the code host; no page for contributors has an e-mail address."""
    for page in PAGES:
        assert not re.search(r"[\w.]+@[\w.]+\.\w+", (ROOT / page).read_text()), page


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_a_form_asks_in_fields_with_names(form: Path):
    """An issue form has a name, a description, and fields with labels and ids of their own."""
    content = yaml.safe_load(form.read_text())
    assert content.keys() >= {"name", "description", "body"}
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes") for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_changelog_is_by_version():
    """Sections go from what comes next to the oldest version, each once; entries are sorted by kind."""
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = [head.split(" - ")[0] for head in re.findall(r"^## (.*)$", text, re.MULTILINE)]
    assert heads[0] == "Unreleased"
    numbers = [tuple(map(int, head.split("."))) for head in heads[1:]]
    assert numbers == sorted(set(numbers), reverse=True) != []
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize(
    ("seconds", "cores", "marks", "warns"),
    [
        (901, 2, "not heavy", True),
        (899, 2, "not heavy", False),
        (2000, 1, "not heavy", False),
        (2000, 2, "heavy", False),
    ],
)
def test_a_suite_that_takes_too_long_says_so(seconds: float, cores: int, marks: str, warns: bool):
    """If the whole suite takes more than a quarter of an hour on two cores, its end says so, as CONTRIBUTING does."""
    warning = overtime(seconds, cores, marks)
    assert (warning is not None) is warns
    assert not warns or "15:01 on 2 cores" in str(warning)
    (target,) = re.findall(
        r"^\| `make test` \|.*under (\d+) minutes", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert int(target) == SUITE_MINUTES
