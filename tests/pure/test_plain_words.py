"""Plain English in what people read: "if" for a condition, and no riddles, in the code's texts and in the pages."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.pure.test_house import ROOT, modules

# Each finds sentences that are certainly meant as a condition; "where" is a good word for a place.
CONDITIONS = {
    "a value that depends": r"\b(?:None|False|null|nothing|empty|-1|\w+Error`?|not)\)?,? where\b",
    "there is": r"\bwhere there (?:is|are|was|were) (?!to\b)",
    "nothing is given": r"\bwhere (?:nothing|none|nobody|no one) (?:is|are|was|says|said|gives|names|knows|chose)\b",
    "it is, that is": r"\bwhere (?:it|that|this) (?:is|has) (?:none|no|not|asked|wanted|allowed|known|needed)\b",
    "only, even, also": r"\b(?:only|even|also|except) where\b",
    "a sentence that begins": r"(?<=[a-z`)][.;] )Where\b(?= [a-z ]+\b(?:is|are|has|have|does|do|cannot|may|fails)\b)",
}
RIDDLES = {
    "none instead of not": r"\b(?:that|which|and|who|it) (?:is|are) none(?:[.,;:]|$)",
    "who instead of if": r"\bWho is `",
    "well": r"\b(?:goes|went|go) well\b",
    "anybody": r"\b(?:error|interest|matter) to anybody\b",
    "a say": r"\bha(?:s|ve) a say\b",
    "will not do": r"\bwill not do\b",
    "no with a noun": (
        r"(?<!here )\b(?:is|are|was|were) no (?!longer|better|matter|(?:more|use|good|way|other|such|one)\b)[A-Za-z`]"
    ),
}
# True places, quotations, and words of other systems: the text, and why it stays.
ALLOWED = {
    "where nothing is ever sent but a question": "a subject",
    "where nobody would find it": "a subject",
    "denied, not where it went": "a subject",
    "only where it begins": "a place in a stream",
    "only where the files are": "a machine",
    "not where they are": "a folder",
    "where nothing is kept between reads": "a room",
    "not where it belongs": "a subject",
    "where it is needed": "a place in a query",
    '"if", not "where"': "the rule itself",
}


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Give what the code tells people, as one line each, and every paragraph of a page."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for _, path, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            yield f"{path.relative_to(ROOT)}:{node.lineno}", " ".join(node.value.split())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for paragraph in re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).split("\n\n"):
            yield str(page.relative_to(ROOT)), " ".join(paragraph.split())


def found(patterns: dict[str, str]) -> list[str]:
    """Give every place with a text that one of these finds, and is not allowed."""
    wrong = []
    for place, text in texts():
        if not re.search(r"[Ww]here|none|\b(?:is|are|was|were) no\b|anybody|well|a say|will not do|Who", text):
            continue
        for why, pattern in patterns.items():
            for hit in re.finditer(pattern, text):
                around = text[max(0, hit.start() - 40) : hit.end() + 50]
                if not any(allowed in around for allowed in ALLOWED):
                    wrong.append(f"{place}: {why}: …{around}…")
    return wrong


def test_a_condition_is_told_with_if():
    """A reader of an error, a help text, a docstring or a page meets "if" for a condition, and "where" for a place."""
    assert found(CONDITIONS) == []


def test_nothing_is_a_riddle():
    """What is not a subject is told as "not a subject", and not as one that is none."""
    assert found(RIDDLES) == []


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("Give it; None where there is no such key.", CONDITIONS),
        ("Give it; ValueError where it is broken.", CONDITIONS),
        ("The token; a generated one where none is given.", CONDITIONS),
        ("It is done. Where the server is older, it is not.", CONDITIONS),
        ("An ack that is none.", RIDDLES),
        ("It is '>', which is no subject.", RIDDLES),
    ],
)
def test_the_patterns_find_what_they_are_for(text: str, patterns: dict[str, str]):
    """Each of these was a sentence of the house once."""
    assert any(re.search(pattern, text) for pattern in patterns.values())


def test_places_are_left_alone():
    """A sentence about a place is not a condition."""
    for text in ("Where messages are kept.", "It goes on where it stopped.", "The folder where the files are."):
        assert not any(re.search(pattern, text) for pattern in CONDITIONS.values()), text
