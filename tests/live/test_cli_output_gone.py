"""Standard output that ends, is full or closed: the command ends with a status and at most one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.command import Command


@pytest.fixture
def penstock(server, tmp_path: Path) -> Command:
    """The command, on the session's server."""
    return Command(tmp_path, server.url)


def run(shell: str, command: Command, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command under a shell that does something to its standard output."""
    return subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=command.env,
    )


def test_sub_ends_with_its_reader(penstock: Command, unique):
    """`sub | head -1` ends when head does, without waiting for another message, and says nothing of it."""
    subject = unique("cli")
    with subprocess.Popen(
        [
            "bash",
            "-c",
            '("$@"; echo "status $?" >&2) | head -1',
            "bash",
            sys.executable,
            "-m",
            "penstock",
            "sub",
            subject,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=penstock.env,
    ) as piped:
        assert piped.stderr is not None
        assert piped.stderr.readline().startswith("Subscribing")
        assert penstock("pub", subject, "x").returncode == 0
        out, err = piped.communicate(timeout=30)
    assert out == f"[#1] Received on {subject}\n"
    assert err == "status 141\n"


@pytest.mark.parametrize(
    ("shell", "words"), [('exec "$@" >/dev/full', "No space left on device"), ('exec "$@" >&-', "closed")]
)
def test_an_output_that_takes_nothing_is_told(shell: str, words: str, penstock: Command):
    """A full disk and a closed output are one sentence and status 1; a success would be a lie."""
    done = run(shell, penstock, "rtt")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: Standard output cannot be written: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_body_may_be_any_bytes_and_a_subject_may_not(penstock: Command, unique):
    """What a shell hands over as body is sent byte for byte; a subject that is not UTF-8 is bad input."""
    subject = unique("cli")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "sub", "--count", "1", subject],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=penstock.env,
    ) as heard:
        assert heard.stderr is not None
        assert heard.stderr.readline().startswith(b"Subscribing")
        assert run("exec \"$@\" $'\\xc3\\xff\\xfe'", penstock, "pub", subject).returncode == 0
        out, _ = heard.communicate(timeout=30)
    assert out.splitlines()[1] == b"\xc3\xff\xfe"
    done = run("exec \"$@\" $'a\\xffb' x", penstock, "pub")
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr
    assert done.stderr.count("\n") == 1
