"""What a subject may look like, and how patterns of subjects relate. Pure: text in, answers out."""

from __future__ import annotations

import re

__all__ = ["covers", "is_literal", "overlaps", "subject_fault"]

_BAD = re.compile(r"[\s\x00-\x1f\x7f]")


def subject_fault(subject: str, *, literal: bool = False) -> str | None:
    """Say what is wrong with a subject, or None: tokens between dots, `*` for one, `>` for all the rest."""
    if not subject:
        return "is empty"
    if _BAD.search(subject):
        return "has a space or a control character in it"
    tokens = subject.split(".")
    if "" in tokens:
        return "has an empty token: two dots in a row, or one at an end"
    if ">" in tokens[:-1]:
        return "has a > that is not its last token"
    if literal and not is_literal(subject):
        return "has a wildcard, and must name one subject"
    return None


def is_literal(subject: str) -> bool:
    """Tell whether a subject has no wildcard."""
    return not {"*", ">"} & set(subject.split("."))


def overlaps(one: str, other: str) -> bool:
    """Tell whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def covers(pattern: str, subject: str) -> bool:
    """Tell whether everything that `subject` matches, `pattern` matches, too."""
    outer, inner = pattern.split("."), subject.split(".")
    for a, b in zip(outer, inner, strict=False):
        if a == ">":
            return True
        if b == ">" or (a != "*" and a != b):
            return False
    return len(outer) == len(inner)
