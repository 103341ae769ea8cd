"""Hostile input: whatever arrives is read or refused by an error of ours, in both forms, and nothing else happens."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.fuzz_page import HEAD, PAGE, with_run

from penstock import wire
from penstock.errors import InputError
from tests.fuzz.entries import NOT_FROM_OUTSIDE, SOURCE, reached, readers
from tests.fuzz.mutate import Mutator
from tests.fuzz.run import again, failure
from tests.fuzz.table import TARGETS
from tests.fuzz.target import CORPUS, Target, agree, check, seeds

NAMES = sorted(TARGETS)
TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    """Real bytes, and those that once did harm, come to a result."""
    found = seeds(name)
    assert found, f"{name} has no corpus: python -m tests.fuzz.capture"
    for file, content in found:
        try:
            check(TARGETS[name], content)
        except BaseException as error:
            error.add_note(f"tests/fuzz/corpus/{name}/{file}")
            raise


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=20)
def test_mutated_bytes_are_read_or_refused(name: str, seed: int) -> None:
    """Bytes near the real ones come to a result, and the compiled form to the same one as the plain."""
    corpus = [content for _, content in seeds(name)]
    mutator = Mutator(seed)
    check(TARGETS[name], mutator.mutate(mutator.random.choice(corpus), corpus))


def test_every_reader_has_a_target() -> None:
    """A function that decodes what comes from outside is reached by the corpus of a target, or has a reason not to."""
    missing = set(readers()) - reached()
    unexplained = {name for name in missing if not name.startswith(tuple(NOT_FROM_OUTSIDE))}
    assert not unexplained, "add a target in tests/fuzz, or say in tests/fuzz/entries.py why it needs none"


def test_reasons_are_of_readers_that_exist() -> None:
    """A reason why something needs no target goes with it."""
    found = list(readers())
    assert [name for name in NOT_FROM_OUTSIDE if not any(item.startswith(name) for item in found)] == []


def test_reasons_name_tests_that_exist() -> None:
    """A reason that leans on a test names it, with its file, and the file has it."""
    for name, reason in NOT_FROM_OUTSIDE.items():
        for path in re.findall(r"tests/[\w/.]+\w", reason):
            assert (TESTS.parent / path).is_file(), f"{name}: {path} is no file"
        tests = re.findall(r"\btest_\w+(?!\w|\.py)", re.sub(r"\S+\.py", "", reason))
        assert bool(tests) == (".py)" in reason), f"{name}: say which test, and in which file"
        for test in tests:
            assert f"def {test}(" in (TESTS.parent / re.findall(r"\((\S+\.py)\)", reason)[0]).read_text(), name


def test_json_from_outside_is_read_in_one_way() -> None:
    """Nesting that Python cannot follow is one more way to be no JSON, everywhere: `load_json` sees to it."""
    own = ("json_text.py", "bench/", "demo/", "server/guard.py", "server/records.py", "server/neighbours.py")
    own += ("wire/protocol.py", "jetstream/topology_forms.py")  # who handle that themselves
    found = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "json.loads(" in path.read_text())
    assert [name for name in found if not name.startswith(own)] == []


def test_a_finding_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is none of ours, two forms that differ and an error that cannot be printed are findings."""

    def broken(content: bytes) -> None:
        raise {b"a": KeyError("x"), b"b": ValueError("y")}.get(content, InputError("z"))

    made = Target("broken", broken, (ValueError,))
    assert "KeyError" in (failure(made, b"a") or "")
    assert failure(made, b"b") is None
    assert failure(made, b"c") is None
    differ = Target("differ", lambda content: agree(lambda form: form.buffers.COMPILED), ())
    assert ("AssertionError" in (failure(differ, b"") or "")) == wire.compiled
    monkeypatch.setattr(InputError, "__str__", lambda error: "half \ud800")
    assert "UnicodeEncodeError" in (failure(made, b"c") or "")


def test_a_run_writes_its_row_into_the_page() -> None:
    """A command has one row, that of its last run; what follows the table stays."""
    page = f"# Hostile input\n\n## What the runs found\n\n{HEAD[0]}\n{HEAD[1]}\n\nMore.\n"
    run = {
        "command": "make fuzz MINUTES=2 SEED=1",
        "commit": "a1",
        "targets": 3,
        "tries": 1000,
        "lines": 5,
        "findings": 0,
    }
    text = with_run(with_run(page, run), {**run, "command": "make asan MINUTES=1"})
    text = with_run(text, {**run, "commit": "b2", "findings": 1})
    assert text.count("| `make ") == 2
    assert "| `make fuzz MINUTES=2 SEED=1` | b2 | 3 | 1,000 | 5 | 1 |\n\nMore.\n" in text
    assert with_run(PAGE.read_text(), run).endswith("| 0 |\n")


def test_a_run_says_how_to_do_it_again() -> None:
    """What the page names is the command of make, with what was given to it."""
    given = argparse.Namespace(minutes=0.5, seed=7, only=["wire", "s2"])
    assert again(given) == 'make fuzz MINUTES=0.5 SEED=7 ONLY="wire s2"'


def test_the_corpus_has_no_secret() -> None:
    """Captured files hold no seed of a key, and no seal of a form."""
    for path in Path(CORPUS).rglob("real-*"):
        content = path.read_bytes()
        assert not re.search(rb"SU(?!A{50})[A-Z2-7]{56}", content), path
        assert not re.search(rb"(seal|made)=(?!SEAL|MADE|&|\s|$)", content), path


def test_the_corpus_has_no_stranger() -> None:
    """Every folder of the corpus belongs to a target, and is small."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 1 << 20
    text = b"".join(path.read_bytes() for path in Path(CORPUS).rglob("real-*"))
    assert not re.search(rb"/(root|home|work)/", text)
