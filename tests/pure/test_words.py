"""One word, one thing: the page of words, and the names of classes."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict

from tests.pure.test_house import ROOT, modules

PAGE = (ROOT / "docs" / "why" / "words.md").read_text()
# Names that classes of several rooms have because they are one word for one kind of thing; every other name is unique.
SHARED = {
    "Group": "members that share a position in a channel; typer's word for a command that has commands",
    "Entry": "what a bucket says of a key; a command in the tree of commands",
    "Limits": "the most that a gateway, or an assembler, may hold",
    "Message": "a message: of the wire, of a stream, of a channel",
    "Publisher": "puts messages into a stream, payloads in chunks onto a subject",
    "Refusal": "why a channel's request, or a chunk, is not taken",
    "Service": "serves requests: of the bus, of old clients",
    "State": "where a session stands; where a reply stands; what a gateway must not forget",
    "Survey": "what is found out about streams by asking: before tasks read them; all the time, for those who watch",
    "Subscription": "what a connection, or a client of channels, is sent",
}


def test_a_word_stands_once():
    """No word has two rows; one with two meanings says in its name which one is meant."""
    told = Counter(re.findall(r"^\| ([a-z][^|]+?) \|", PAGE.partition("## The house")[0], re.MULTILINE))
    assert [word for word, count in told.items() if count > 1 and word != "word"] == []


def test_every_row_says_what_and_where():
    """A row has a meaning, and a place unless the word is wholly another system's."""
    rows = re.findall(r"^\| ([a-z][^|]+) \| ([A-Z]?) ?\| ([^|]+) \| ([^|]*)\| ([^|]*)\|$", PAGE, re.MULTILINE)
    assert len(rows) > 80
    assert [word for word, whose, meaning, *_ in rows if not meaning.strip() or whose not in ("", *"NSALI")] == []


def test_classes_of_different_rooms_have_different_names():
    """A class that is named as one of another room is the same kind of thing there."""
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for name, _, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms[node.name].add(".".join(name.split(".")[1:2]))
    found = {name for name, where in rooms.items() if len(where) > 1}
    assert not found - SHARED.keys(), "call it by another word, or say in SHARED why it is one thing"
