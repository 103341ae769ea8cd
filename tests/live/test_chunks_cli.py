"""`penstock chunks`, run as its users run it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.chunks import file_name
from penstock.server import Server
from tests.live.command import Command

DATA = os.urandom(3_000_001)


@pytest.fixture
def penstock(server, tmp_path: Path) -> Command:
    return Command(tmp_path, server.url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "payload.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def test_a_file_travels(penstock, unique, file, inbox):
    """What send sends, receive writes to a file named by the message, with sizes and rates on both sides."""
    subject = unique("cli")
    with penstock.running("chunks", "receive", subject, "--to", str(inbox), "--count", "2") as receiver:
        receiver.wait_for("Receiving on")
        first = penstock("chunks", "send", str(file), subject, "--digest")
        second = penstock("chunks", "send", str(file), subject, "--id", "mine", "--json")
        assert "[#2] Received 3,000,001 bytes" in receiver.rest()[-1]
        assert receiver.process.returncode == 0
    assert first.returncode == 0, first.stderr
    assert f"Sent 3,000,001 bytes to {subject} as " in first.stdout
    assert "MB/s" in first.stdout
    said = json.loads(second.stdout)
    assert (said["id"], said["bytes"]) == ("mine", len(DATA))
    assert len(list(inbox.iterdir())) == 2
    assert (inbox / "mine").read_bytes() == DATA


def test_a_stored_file_is_there_later(penstock, unique, file, inbox):
    """With --persistent the stream is made, the file kept, continued by id, and received by id or all in order."""
    subject, stream = unique("cli"), unique("S")
    sent = penstock("chunks", "send", str(file), subject, "--persistent", stream, "--id", "one")
    assert sent.returncode == 0, sent.stderr
    assert f"Created the stream {stream}" in sent.stderr
    again = penstock("chunks", "send", str(file), subject, "--persistent", stream, "--id", "one")
    assert again.returncode == 0, again.stderr
    assert f"{stream} has it already, as one" in again.stdout
    other = penstock("chunks", "send", __file__, subject, "--persistent", stream, "--id", "one")
    assert other.returncode == 1
    assert "is another payload" in other.stderr
    fetched = penstock("chunks", "receive", subject, "--persistent", stream, "--id", "one", "--to", str(inbox), "-j")
    assert json.loads(fetched.stdout)["bytes"] == len(DATA)
    assert (inbox / "one").read_bytes() == DATA
    rest = penstock("chunks", "receive", subject, "--persistent", stream, "--to", str(inbox), "--count", "1")
    assert rest.returncode == 0, rest.stderr
    assert sorted(path.name for path in inbox.iterdir()) == ["one", "one.1"], "nothing is overwritten or left over"
    missing = penstock("chunks", "receive", subject, "--persistent", stream, "--id", "two", "--to", str(inbox))
    assert missing.returncode == 1
    assert "holds no message two" in missing.stderr


def test_standard_input_travels(penstock, unique, server, inbox, tmp_path):
    """With - the payload is what a pipe gives, of unknown length."""
    subject, stream = unique("cli"), unique("S")
    command = [sys.executable, "-m", "penstock", "chunks", "send", "-", subject, "--persistent", stream, "-j"]
    done = subprocess.run(command, input=DATA, capture_output=True, timeout=60, env=penstock.env)
    assert done.returncode == 0, done.stderr
    message_id = json.loads(done.stdout)["id"]
    penstock("chunks", "receive", subject, "--persistent", stream, "--id", message_id, "--to", str(inbox))
    assert (inbox / message_id).read_bytes() == DATA


def test_ctrl_c_ends_both_sides_and_leaves_nothing(penstock, unique, inbox):
    """Receive ends with status 0; send, broken off while it waits for a pipe, does not hang."""
    subject = unique("cli")
    with penstock.running("chunks", "receive", subject, "--to", str(inbox)) as receiver:
        receiver.wait_for("Receiving on")
        assert receiver.interrupt() == 0
    assert list(inbox.iterdir()) == []
    command = [sys.executable, "-m", "penstock", "chunks", "send", "-", subject]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=penstock.env) as sender:
        sender.stdin.write(bytes(2_000_000))  # more than a pipe holds: this returns once the command reads
        sender.stdin.flush()
        sender.send_signal(signal.SIGINT)
        assert sender.wait(20) == 130
        sender.stdin.close()
        assert b"Traceback" not in sender.stderr.read()


def test_a_receiver_says_at_its_end_what_it_lost(unique, inbox, tmp_path):
    """Lost connections and messages that were given up are counted on its last lines, whoever saw them pass by."""
    subject = unique("cli")
    with Server(sync="2m") as server:
        command = Command(tmp_path, server.url)
        with command.running("chunks", "receive", subject, "--to", str(inbox), "--idle", "1s") as receiver:
            receiver.wait_for("Receiving on")
            half = ["-H", "X-Msg-Id:half", "-H", "X-Offset:0", "-H", "X-Flags:0"]
            assert command("pub", subject, "abc", *half).returncode == 0
            server.nodes[0].kill()
            server.nodes[0].start()
            receiver.wait_for("given up (disconnected)")
            assert receiver.interrupt() == 0
            said = "\n".join(receiver.rest())
    assert "messages that were given up: disconnected 1" in said
    assert "the connection was lost 1 times; what was sent meanwhile is lost" in said
    assert list(inbox.iterdir()) == []


def test_progress_is_drawn_on_a_terminal(penstock, unique, file):
    """On a terminal, sending shows a bar with megabytes and a rate; what is printed for programs stays clean."""
    terminal, child_side = pty.openpty()
    command = [sys.executable, "-m", "penstock", "chunks", "send", str(file), unique("cli"), "-j"]
    env = {**penstock.env, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child_side, env=env) as sender:
        os.close(child_side)
        drawn = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # Linux says EIO when the other side is closed
                break
            drawn += piece
        assert json.load(sender.stdout)["bytes"] == len(DATA)
        assert sender.wait(30) == 0
    os.close(terminal)
    assert b"Sending" in drawn
    assert b"3.0/3.0 MB" in drawn


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("send", "no-such-file", "x"), "There is no file"),
        (("send", "-", "x.*"), "not a subject to publish on"),
        (("send", "-", "x", "--chunk-size", "2000000"), "chunk_size is 2000000"),
        (("receive", "x", "--to", "no-such-folder"), "not a folder that can be written"),
        (("receive", "x", "--id", "y"), "--persistent"),
        (("receive", "x", "--idle", "0s"), "--idle is zero"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(penstock, arguments, says):
    """Status 2, one line, no traceback."""
    done = penstock("chunks", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_file_names_are_safe():
    """An id that a stranger chose cannot leave the folder, hide, or be too long."""
    assert file_name("6ba7b810-9dad") == "6ba7b810-9dad"
    assert file_name("../../etc/passwd") == "%2e.%2f..%2fetc%2fpasswd"
    assert file_name(".bashrc") == "%2ebashrc"
    assert len(file_name("/" * 256)) == 64
