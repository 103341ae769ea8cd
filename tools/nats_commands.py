"""Writes docs/reference/nats-commands.md: every noun, verb and flag of the `nats` command, and what stands for it here.

`natscli.json` holds the facts: names and flags as `nats --fisk-introspect` lists them, and no sentence. What is the
same is found by comparing; everything else needs a word in `nats_words.toml`, and what has none is an error.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


class NoWord(ValueError):
    """Something of the `nats` command is neither here nor accounted for, or a word is about nothing."""


@dataclass
class Row:
    """A verb of the `nats` command beside ours."""

    theirs: str
    ours: str = ""
    same: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    why: str = ""


class Words:
    """What `nats_words.toml` says; it remembers what was asked for, so that a word about nothing is found."""

    def __init__(self, path: Path) -> None:
        self._said: dict[str, dict[str, str]] = tomllib.loads(path.read_text())
        self._used: set[tuple[str, str]] = set()

    def find(self, table: str, *names: str) -> str | None:
        """Give the word on the first of these names that has one."""
        for name in names:
            if name in self._said.get(table, {}):
                self._used.add((table, name))
                return self._said[table][name]
        return None

    def unused(self) -> list[str]:
        """List the words that are about nothing."""
        every = [(table, name) for table, names in self._said.items() for name in names]
        return [f"{table}: {name}" for table, name in every if (table, name) not in self._used]


def rows(root: Any, facts: dict[str, Any], words: Words) -> list[Row]:
    """Compare every command; raise NoWord for what nothing is said about."""
    ours = dict(_commands(root, ()))
    wrong: list[str] = []
    found = [_globals(root, facts["flags"], words, wrong)]
    taken: set[str] = set()
    for name, theirs in facts["commands"].items():
        path = name.split()
        above = [" ".join(path[:length]) for length in range(1, len(path) + 1)]
        why = words.find("commands", *above)
        if why is not None:
            if not theirs.get("noun"):
                found.append(Row(name, why=why))
            continue
        if theirs.get("noun"):
            continue
        own_name = words.find("names", name) or name
        command = _resolve(root, own_name.split())
        if command is None:
            wrong.append(f"nats {name}: there is no penstock {own_name}, and no word on it")
            continue
        taken.add(_shown(root, own_name.split()))
        flags = [flag for noun in above for flag in facts["commands"][noun]["flags"]]
        row = Row(name, own_name)
        if differs := words.find("differs", name):
            row.differs.append(differs)
        _compare(row, flags, _options(command), _options(root), words, wrong)
        found.append(row)
        for other in theirs.get("aliases", "").split():
            known = _resolve(root, [*own_name.split()[:-1], other]) is command
            if not known and words.find("commands", f"{name}={other}") is None:
                wrong.append(f"nats {' '.join([*path[:-1], other])}: another name of {name} there, unknown here")
    found += [Row("", name, more=sorted(_options(command))) for name, command in ours.items() if name not in taken]
    wrong += [f"a word about nothing: {word}" for word in words.unused()]
    if wrong:
        raise NoWord("\n".join(wrong))
    return found


def _globals(root: Any, flags: list[str], words: Words, wrong: list[str]) -> Row:
    row = Row("(every command)", "(every command)")
    _compare(row, flags, _options(root), {}, words, wrong)
    return row


def _compare(
    row: Row, flags: list[str], own: dict[str, Any], shared: dict[str, Any], words: Words, wrong: list[str]
) -> None:
    left = dict(own)
    for flag in flags:
        short, _, long = flag.rpartition(" ")
        keys = (f"{row.theirs} {long}", long)
        other = words.find("flag names", *keys)
        name = other or long
        option = own.get(name) or shared.get(name)
        # A word for all verbs is for those that lack the flag.
        why = words.find("flags", *(keys if option is None else keys[:1]))
        if why is not None:
            row.left_out.append(f"`{long}` ({why})")
        elif option is None:
            wrong.append(f"nats {row.theirs} {long}: no such flag here, and no word on it")
        else:
            if differs := words.find("differs", keys[0]):
                row.differs.append(f"`{long}`: {differs}")
            row.same += [] if other else [f"`{long}`"]
            row.other += [f"`{long}`: `{other}`"] if other else []
            for each in option.opts:
                left.pop(each, None)
            for each in option.secondary_opts:
                left.pop(each, None)
            if short and short not in option.opts and words.find("flags", f"{row.theirs} {short}", short) is None:
                wrong.append(f"nats {row.theirs} {short}: {name} has no such short name here, and no word on it")
    row.more = sorted(name for name in left if name.startswith("--"))


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _resolve(root: Any, path: list[str]) -> Any:
    current = root
    shown = _shown(root, path).split()
    for name in shown:
        current = getattr(current, "commands", {}).get(name)
        if current is None:
            return None
    return None if hasattr(current, "commands") else current


def _shown(root: Any, path: list[str]) -> str:
    """Give the command's path by the names that the help shows."""
    current, shown = root, []
    for name in path:
        shown.append(getattr(current, "hidden_names", {}).get(name, name))
        current = getattr(current, "commands", {}).get(shown[-1])
    return " ".join(shown)


def _options(command: Any) -> dict[str, Any]:
    listed = [item for item in command.params if item.param_type_name == "option" and item.name != "help"]
    return {name: item for item in listed for name in (*item.opts, *item.secondary_opts)}


def page(root: Any) -> str:
    """Write the page."""
    facts = json.loads((FOLDER / "natscli.json").read_text())
    found = rows(root, facts, Words(FOLDER / "nats_words.toml"))
    text = [
        "# `nats` and `penstock`, verb by verb",
        "",
        f"Every noun, verb and flag of the `nats` command ({facts['version']}), and what stands for it here. What is",
        "the same has the same name and the same meaning; what differs, and what is left out on purpose, says how and",
        "why.",
        "Flags that only `penstock` has are on [the page of commands](commands.md).",
    ]
    for noun, listed in _nouns(found):
        text += ["", f"## {noun}", "", "| `nats` | `penstock` | flags |", "|---|---|---|"]
        text += [f"| {' | '.join(_cells(row))} |" for row in listed]
    mine = [row for row in found if not row.theirs]
    text += ["", "## Only here", "", ", ".join(f"`penstock {row.ours}`" for row in mine) + "."]
    return "\n".join(text) + "\n"


def _nouns(found: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    nouns: dict[str, list[Row]] = {}
    for row in found:
        if row.theirs:
            noun = "Every command" if row.theirs.startswith("(") else f"`{row.theirs.split()[0]}`"
            nouns.setdefault(noun, []).append(row)
    for noun, listed in nouns.items():
        reasons = {row.why for row in listed}
        if len(listed) > 1 and len(reasons) == 1 and "" not in reasons:  # one reason for all of them: one line
            names = ", ".join(row.theirs.partition(" ")[2] for row in listed)
            listed = [Row(f"{listed[0].theirs.split()[0]} {names}", why=listed[0].why)]
        yield noun, listed


def _cells(row: Row) -> tuple[str, str, str]:
    if row.why:
        return f"`{row.theirs}`", "–", f"left out: {row.why}"
    parts = []
    if row.same:
        parts.append(f"the same: {' '.join(row.same)}")
    if row.other:
        parts.append(f"other names: {', '.join(row.other)}")
    if row.left_out:
        parts.append(f"left out: {', '.join(row.left_out)}")
    if row.differs:
        parts.append(f"**differs**: {'; '.join(row.differs)}")
    ours = "every command" if row.ours.startswith("(") else f"`{row.ours}`"
    theirs = "every command" if row.theirs.startswith("(") else f"`{row.theirs}`"
    return theirs, ours, "; ".join(parts).replace("|", "\\|") or "none"
