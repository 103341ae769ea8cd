"""The tree of commands: loaded one by one, listed without loading any."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from penstock.cli.app import app, main
from penstock.cli.tree import COMMANDS, HIDDEN


@pytest.mark.parametrize("name", [*COMMANDS, *HIDDEN])
def test_a_command_is_what_the_list_says(name: str):
    """Every name leads to a command; what the list says of it is the first paragraph of its own help."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # the root is a group
    assert command.name == name
    assert command.hidden is (name in HIDDEN)
    assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[HIDDEN.get(name, name)].help


def test_the_list_loads_no_command():
    """`penstock --help` shows every command, and imports the file of none."""
    program = (
        "import contextlib, io, sys\n"
        "from penstock.cli import main\n"
        "shown = io.StringIO()\n"
        "with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "from penstock.cli.tree import COMMANDS\n"
        "print(all(name in shown.getvalue() for name in COMMANDS))\n"
        "files = {entry.module for entry in COMMANDS.values()}\n"
        "print([name for name in sorted(files) if f'penstock.cli.{name}' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["True", "[]"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["strm"], "'stream'"),
        (["publis"], "'pub'"),
        (["cons"], "'consumer', 'console'"),
        (["stream", "lst"], "'ls'"),
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
