"""The tree of commands: loaded one by one, listed without loading any."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from penstock.cli.app import app
from penstock.cli.tree import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_what_the_list_says(name: str):
    """Every name leads to a command; what the list says of it is the first paragraph of its own help."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # the root is a group
    assert command.name == name
    assert command.hidden is (not COMMANDS[name].help)
    if not command.hidden:
        assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[name].help


def test_the_list_loads_no_command():
    """`penstock --help` shows every command, and imports the file of none."""
    program = (
        "import contextlib, io, sys\n"
        "from penstock.cli import main\n"
        "shown = io.StringIO()\n"
        "with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "from penstock.cli.tree import COMMANDS\n"
        "print(all(name in shown.getvalue() for name, entry in COMMANDS.items() if entry.help))\n"
        "files = {entry.module for entry in COMMANDS.values()}\n"
        "print([name for name in sorted(files) if f'penstock.cli.{name}' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["True", "[]"]
