"""The public face, frozen: what programs may import, and what every other module says of itself."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pure.test_house import ROOT, modules

GOLDEN = json.loads((ROOT / "tests" / "golden" / "public_names.json").read_text())
PUBLIC: dict[str, list[str]] = GOLDEN["public"]
DEPRECATED: dict[str, str] = GOLDEN["deprecated"]
# The words with which a package says that its modules are its own.
OWN = "not for users"


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_those_that_are_frozen(module: str):
    """A package exports exactly the names that are frozen for it."""
    found = importlib.import_module(module)
    names = set(found.__all__)
    new, gone = sorted(names - set(PUBLIC[module])), sorted(set(PUBLIC[module]) - names)
    assert not new, (
        f"{module} exports {new}, which nobody promised yet. If programs shall use it, add it to "
        "tests/golden/public_names.json, run `make docs` and tell it in CHANGELOG.md; if not, take it out of __all__."
    )
    assert not gone, (
        f"{module} no longer exports {gone}, which programs use. Keep the old name with "
        "`exports(..., deprecated=...)` of penstock.exports, move it to `deprecated` in "
        "tests/golden/public_names.json, and tell it in CHANGELOG.md; docs/why/compatibility.md says how long it stays."
    )
    assert [name for name in sorted(names) if getattr(found, name, None) is None] == []


def test_the_frozen_names_are_in_order():
    """Modules and names stand in alphabetical order, each once, so that a change shows as one line."""
    assert list(PUBLIC) == sorted(PUBLIC)
    assert all(names == sorted(set(names)) for names in PUBLIC.values())
    assert list(DEPRECATED) == sorted(DEPRECATED)


@pytest.mark.parametrize(("old", "new"), DEPRECATED.items())
def test_an_old_name_still_works_and_says_what_it_is_now(old: str, new: str):
    """Every deprecated name gives the thing of its successor, a warning that names it, and is in no `__all__`."""
    module, _, name = old.rpartition(".")
    home, _, now = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is now {new}.")):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(home), now)
    assert name not in importlib.import_module(module).__all__


def deprecated_in_the_source() -> Iterator[str]:
    for name, _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exports":
                given = next((item.value for item in node.keywords if item.arg == "deprecated"), None)
                yield from (f"{name}.{old}" for old in (ast.literal_eval(given) if given else ()))


def test_every_old_name_is_listed():
    """A deprecated name of the source is in the golden file, where the page of public names finds it."""
    assert sorted(deprecated_in_the_source()) == sorted(DEPRECATED)


def test_every_package_says_what_is_not_for_users():
    """A module is public, or lies in a package whose docstring says that its modules are not; nobody has to guess."""
    silent = [
        name for name, path, tree in modules() if path.stem == "__init__" and OWN not in (ast.get_docstring(tree) or "")
    ]
    assert not silent, f"{silent}: say in the docstring which names are public, and that the modules are {OWN!r}."
    packages = {name for name, path, _ in modules() if path.stem == "__init__"}
    assert packages >= {name.rpartition(".")[0] for name in PUBLIC if "." in name}


def python_in(page: Path) -> Iterator[ast.Module]:
    for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield ast.parse(block)


def test_the_docs_import_public_names_alone():
    """Every import of ours in a Python example of the README and the docs is one that we promise to keep."""
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for tree in python_in(page):
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
                    "penstock",
                    "pyspark_nats",
                ):
                    names = PUBLIC.get(node.module or "", [])
                    wrong += [
                        f"{page.relative_to(ROOT)}: from {node.module} import {item.name}"
                        for item in node.names
                        if item.name not in names and f"{node.module}.{item.name}" not in PUBLIC
                    ]
    assert not wrong


def test_the_page_names_every_public_thing():
    """docs/reference/api.md has a row for every public name, under the heading of its module, that leads to more."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    sections = {part.split("`", 1)[0]: part for part in page.split("\n## `")[1:]}
    assert set(sections) >= set(PUBLIC)
    for module, names in PUBLIC.items():
        assert [name for name in names if f"\n| [`{name}`](api/{module}.md#" not in sections[module]] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_thing_has_a_signature_with_types(module: str):
    """A name, and every method of it, has a signature, a type for whatever it takes and gives, and a sentence."""
    page = (ROOT / "docs" / "reference" / "api" / f"{module}.md").read_text()
    sections = re.split(r"\n(?=#{2,3} `)", page)[1:]
    assert [section.split("`")[1] for section in sections if section.startswith("## ")] == PUBLIC[module]
    for section in sections:
        if "\nSee [`" in section or "\nA module: " in section:
            continue
        found = re.match(r"#+ `[^`]+`\n\n```py\n(.*?)\n```\n\n(\S.*)", section, re.DOTALL)
        assert found, section
        untyped = re.findall(r"^    \*{0,2}\w+,$", found[1], re.MULTILINE)
        assert untyped == [], section
        assert found[2].rstrip().endswith((".", "|", "`")), section
