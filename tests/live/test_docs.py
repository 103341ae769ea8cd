"""The README and the tutorial say what is true: their programs run, and their commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from penstock.cli.app import app
from tests.live.command import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = "docs/tutorial/"  # tests/pipelines/test_tutorial.py follows it, page after page


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL), 1):
            found.append((f"{page.relative_to(ROOT)}:{number}", block))
    return found


@pytest.mark.parametrize(("name", "code"), [item for item in blocks("python") if not item[0].startswith(TUTORIAL)])
def test_programs_run(name: str, code: str, tmp_path: Path):
    """Every Python program in the pages runs as it stands, and prints what the page says after it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / name.rpartition(":")[0]).read_text()
    after = page.partition(code)[2]
    if claim := re.match(r"```\s+It prints `([^`]+)`", after):
        assert done.stdout.strip() == claim.group(1)


@pytest.mark.parametrize(("name", "code"), blocks("sh"))
def test_commands_exist(name: str, code: str):
    """Every penstock command in the pages is one that the parser takes, and every make target exists."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    root = typer.main.get_command(app)
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= targets, line
        if words[:1] == ["penstock"]:
            command, rest = root, words[1:]
            while hasattr(command, "commands"):
                assert rest, f"{line} names no command"
                assert rest[0] in command.commands, line
                command, rest = command.commands[rest[0]], rest[1:]
            known = {
                option
                for item in [*command.params, *root.params]
                for option in [*item.opts, *getattr(item, "secondary_opts", [])]
            }
            for word in rest[: rest.index("--")] if "--" in rest else rest:  # what follows is another program's
                assert not word.startswith("-") or word.split("=")[0] in known, f"{line}: {word}"
