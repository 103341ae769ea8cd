"""The tutorial, followed word by word in an empty home: every line is typed, and prints what the page says."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.command import Running
from tests.pipelines.test_first_pipeline import PENSTOCK, bare, printed, type_all, typed
from tests.spark.java import ROOT

FOLDER = ROOT / "docs" / "tutorial"
PATIENCE = 900.0  # seconds for a block, on a machine that has much else to do
INSTALL = """\
mkdir penstock-tutorial
cd penstock-tutorial
python3 -m venv .venv
. .venv/bin/activate
pip install 'penstock[spark]'
"""


@dataclass
class Block:
    """A block of a page: its language, its text, and the paragraph before it."""

    kind: str
    text: str
    said: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = text[: found.start()].rstrip().split("\n\n")[-1]
        yield Block(found[1], found[2], " ".join(before.split()))


def pages() -> list[Path]:
    """Give the pages in the order in which they lead to each other."""
    found = [FOLDER / "first-steps.md"]
    while following := re.search(r"^Next: \[[^\]]*\]\((\w+\.md)\)\.$", found[-1].read_text(), re.MULTILINE):
        found.append(FOLDER / following[1])
    return found


def fits(shown: str, output: list[str]) -> bool:
    """Say whether an output is what a page shows; … stands for anything in a line, or for any lines."""
    lines = [re.escape(line).replace("…", ".*") + r" *\n" for line in shown.rstrip().split("\n")]
    pattern = "".join("(?:.*\n)*" if line == r".* *\n" else line for line in lines)
    return re.fullmatch(pattern, "\n".join(output).rstrip() + "\n") is not None


class Shell:
    """The third terminal: a shell that goes on as long as every command succeeds."""

    def __init__(self, env: dict[str, str], folder: Path, errors: Path) -> None:
        self._errors, self._marks = errors, itertools.count(1)
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                ["bash", "-e"],
                cwd=folder,
                env={**env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        self._running = Running(self.process)

    def type(self, lines: str) -> list[str]:
        """Type lines, and give what they printed."""
        assert self.process.stdin is not None
        mark, begun = f"typed {next(self._marks)}", len(self._running.lines)
        self.process.stdin.write(f"{{\n{lines}\n}} </dev/null\necho {mark}\n")
        self.process.stdin.flush()
        try:
            self._running.wait_for(mark, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{lines}\n{error}\n{self._errors.read_text()}") from None
        return self._running.lines[begun:-1]

    def close(self) -> None:
        """Leave the terminal."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)
        self._running.reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Reader:
    """Somebody who follows the pages."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.folder = home, home / "penstock-tutorial"
        self.folder.mkdir()
        bin_folder = os.path.dirname(sys.executable)
        self.env = {**bare(home), "PATH": f"{bin_folder}:/usr/bin:/bin"}  # as after `. .venv/bin/activate`
        self._stack = stack
        self._others = dict[str, tuple[ExitStack, Running]]()
        self._shell = Shell(self.env, self.folder, home / "errors.txt")
        stack.callback(self._shell.close)
        self._output: list[str] | Running = []

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        terminal = re.search(r"\b(first|second|third) terminal", block.said)
        if block.kind == "python":
            (name,) = re.findall(r"into `(\w+\.py)`", block.said)
            (self.folder / name).write_text(block.text)
        elif block.kind == "text":
            self._compare(block, terminal[1] if terminal else "")
        elif block.text == INSTALL:
            pass  # the environment of the tests has what pip would install; tools/dist.py tries the packages themselves
        elif terminal and terminal[1] != "third":
            self._output = self._open(terminal[1], block.text.strip())
        else:
            self._output = self._shell.type(block.text)

    def as_printed(self, block: Block) -> None:
        """Type what `pipeline new` prints for somebody who has no environment activated; it is what the page says."""
        env, elsewhere = bare(self.home), self.home / "elsewhere"
        elsewhere.mkdir()
        (made,) = type_all([" ".join([*PENSTOCK, "pipeline", "new", "sensors"])], env, elsewhere)
        server, lines = printed(made)
        here = f"{os.path.dirname(sys.executable)}/"
        assert server == f"{here}penstock server run --store sensors/server"
        assert [line.replace(here, "") for line in lines] == block.text.splitlines()
        self._output = "".join(type_all(lines, env, self.folder)).splitlines()

    def _open(self, name: str, line: str) -> Running:
        """Type a line that stays into a terminal of its own; whatever ran there is killed first."""
        if name in self._others:
            self._others.pop(name)[0].close()
        stack = self._stack.enter_context(ExitStack())
        running = stack.enter_context(typed(line, self.env, self.folder))
        self._others[name] = stack, running
        return running

    def _compare(self, block: Block, terminal: str) -> None:
        if terminal == "second":  # it has ended by itself
            running = self._others[terminal][1]
            begun = len(running.lines)
            output = running.rest()[begun:]
        elif isinstance(self._output, Running):
            last = re.sub(r"^.*…", "", block.text.strip().splitlines()[-1])
            self._output.wait_for(last, 60)
            output = self._output.lines
        else:
            output = self._output
        assert fits(block.text, output), f"the page says\n{block.text}\nbut it was\n" + "\n".join(output)


@pytest.mark.timeout(3000)
def test_the_tutorial_is_followed_word_by_word(tmp_path: Path):
    """Four steps, one folder, one server: all of it works as it stands, and at the end every alert is there once."""
    steps = [(page.name, block) for page in pages() for block in blocks(page)]
    assert len(pages()) == 5
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for name, block in steps:
            if name == "pipeline.md" and block.text.startswith("python sensors/traffic.py"):
                reader.as_printed(block)
            else:
                reader.follow(block)


@pytest.mark.parametrize(
    ("shown", "output", "is_right"),
    [
        ("a\nb\n", ["a", "b"], True),
        ("a\n", ["a", "b"], False),
        ("a …\n…\nz\n", ["a 1", "b", "c", "z"], True),
        ("a …\n…\nz\n", ["a 1", "z"], True),
        ("…\nz.\n", ["a", "zz"], False),
    ],
)
def test_what_a_page_shows_is_compared(shown: str, output: list[str], is_right: bool):
    """A line that is wrong, missing or too many is noticed; … is the one thing that stands for others."""
    assert fits(shown, output) is is_right
