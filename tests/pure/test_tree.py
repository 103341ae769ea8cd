"""The tree of commands: loaded one by one, listed without loading any, each with its help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer.main

from penstock.cli.app import app, main
from penstock.cli.tree import COMMANDS, HIDDEN, Entry, Group
from tests.live.command import imported
from tests.live.inprocess import invoke


def paths(entries: Mapping[str, Entry | Group], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Give the words of every verb, under its hidden names, too."""
    for name, entry in entries.items():
        if isinstance(entry, Group):
            yield from paths(
                {**entry.verbs, **{other: entry.verbs[to] for other, to in entry.hidden_names.items()}}, (*before, name)
            )
        else:
            yield (*before, name)


@pytest.mark.parametrize("name", [*COMMANDS, *HIDDEN])
def test_a_command_is_what_the_list_says(name: str):
    """Every name leads to a command; what the list says of it is the first paragraph of its own help."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # the root is a group
    assert command.name == name
    assert command.hidden is (name in HIDDEN)
    assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[HIDDEN.get(name, name)].help


@pytest.mark.parametrize("words", list(paths(COMMANDS)), ids=" ".join)
def test_every_verb_has_help(words: tuple[str, ...]):
    """Every verb, under its hidden names too, says what it does, and each of its flags and arguments what it is for."""
    done = invoke(None, *words, "--help")
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"Usage: penstock {' '.join(words)}")
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert (command.help or "").split("\n\n")[0].split()[0] in done.stdout
    for parameter in command.params:
        assert parameter.help, f"{parameter.name} says nothing of itself"
        if parameter.param_type_name == "option":
            assert parameter.opts[-1] in done.stdout


def test_a_noun_lists_its_verbs_and_no_hidden_name():
    """`penstock stream` shows each verb with its whole sentence, and none of the other names."""
    entry = COMMANDS["stream"]
    assert isinstance(entry, Group)
    listed = invoke(None, "stream", "--help").stdout.partition("Commands:\n")[2]
    names = re.findall(r"^  (\w+) ", listed, re.MULTILINE)
    assert names == list(entry.verbs)
    assert "and what copies lag behind." in " ".join(listed.split())


def test_a_noun_without_a_verb_shows_its_help():
    """A noun alone is bad input, and is answered with the verbs that it has."""
    done = invoke(None, "consumer")
    assert done.status == 2
    assert "redeliver" in done.stdout + done.stderr


HEAVY = {
    "asyncio",
    "cryptography",
    "google.protobuf",
    "jinja2",
    "logging",
    "markdown_it",
    "nats",
    "nkeys",
    "pandas",
    "penstock.connection",
    "penstock.model",
    "pyarrow",
    "pydantic",
    "pygments",
    "pyspark",
    "rich",
    "ssl",
    "starlette",
    "uvicorn",
}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_is_quick_because_it_loads_little(arguments: list[str]):
    """`penstock --help` loads no command, and none of the libraries that commands stand on."""
    found = imported(*arguments)
    assert not found & HEAVY
    groups = [entry for entry in COMMANDS.values() if isinstance(entry, Group)]
    files = {file for group in groups for file in group.files} | {
        "apply",
        "console",
        "quickstart",
        "demo",
        "doctor",
        "messages",
        "pub",
    }
    assert not found & {f"penstock.cli.{file}" for file in files}


def test_the_help_of_a_verb_loads_its_own_file_only():
    """`penstock stream ls --help` loads neither the other verbs nor what draws tables and reads models."""
    found = imported("stream", "ls", "--help")
    assert "penstock.cli.stream_look" in found
    assert not found & (HEAVY - {"asyncio", "logging", "ssl"})
    assert not found & {"penstock.cli.stream", "penstock.cli.stream_messages", "penstock.cli.consumer"}


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["strm"], "'stream', 'store'"),
        (["publis"], "'pub'"),
        (["cons"], "'consumer', 'console'"),
        (["stream", "lisst"], "'ls'"),
        (["consumer", "inf"], "'info'"),
        (["pipeline", "statu"], "'status'"),
    ],
)
def test_only_names_that_the_help_shows_are_suggested(
    typed: list[str], shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A mistyped command is answered with visible names; one that is near a hidden name, with what that stands for."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 2
    assert f"No such command '{typed[-1]}'. Did you mean {shown}?" in capsys.readouterr().err


def test_a_hidden_name_works_and_what_is_near_nothing_gets_no_suggestion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """`penstock str` is `penstock stream`; a word that is near no name is refused and nothing else."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["str", "--help"])
    assert "Streams: create" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["qqqqq"])
    said = capsys.readouterr().err
    assert "No such command 'qqqqq'." in said
    assert "mean" not in said
