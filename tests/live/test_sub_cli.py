"""`sub` in all its ways: from streams, into files, through programs, as a report; and programs that answer requests."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.programs import Program
from penstock.errors import ProgramError
from penstock.server import Server
from tests.disk_calls import record
from tests.live.inprocess import Done, Peer, Talk, runner


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    """Run the command; it must succeed unless a status is given."""
    return runner(server.url)


@pytest.fixture(scope="module")
def stream(peer: Peer) -> str:
    """A stream that holds a1, b1, a2, b2 on subjects a and b below its name."""
    name = f"SUB_{os.getpid()}"

    async def make() -> None:
        js = peer.client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.*"], allow_direct=True)
        for number in (1, 2):
            for letter in "ab":
                await js.publish(f"{name}.{letter}", f"{letter}{number}".encode(), headers={"N": [str(number), "x"]})

    peer.do(make())
    return name


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--stream S", "a1 b1 a2 b2"),
        ("--stream S --all", "a1 b1 a2 b2"),
        ("S.a --all", "a1 a2"),
        ("S.a S.b --all", "a1 b1 a2 b2"),
        ("S.* --last", "b2"),
        ("S.a --last", "a2"),
        ("S.* --last-per-subject", "a2 b2"),
        ("S.* --start-sequence 3", "a2 b2"),
        ("S.* --since 1h", "a1 b1 a2 b2"),
        ("S.* --new", ""),
        ("S.* --all -I S.b", "a1 a2"),
        ("S.* --all --count 3", "a1 b1 a2"),
    ],
)
@pytest.mark.parametrize("direct", [False, True])
def test_a_stream_is_read_from_anywhere(
    run: Callable[..., Done], stream: str, arguments: str, wanted: str, direct: bool
):
    """Each place to begin with gives the messages from there on, with a consumer and by direct gets; -T ends it."""
    words = [word.replace("S", stream, 1) if word[0] in "S" else word for word in arguments.split()]
    if direct and arguments.startswith("S.a S.b"):
        assert "one subject" in run("sub", *words, "--raw", "-T", "--direct", status=2).stderr
        return
    done = run("sub", *words, "--raw", "-T", *["--direct"] * direct)
    assert (done.stdout.split(), done.stderr) == (wanted.split(), "")


def test_a_stream_is_followed(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--new shows what is stored from now on; the consumer that was made for it is gone afterwards."""
    name = unique("S")
    run("stream", "add", name, "--subjects", name, "--defaults")

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Reading stream")
        while "fresh" not in talk.said:
            peer.publish(name, b"fresh")

    done = run("sub", name, "--new", "--count", "1", beside=talk_to)
    assert done.stdout.startswith(f"[#1] Received on {name} (stream {name}, sequence ")
    assert run("consumer", "ls", name, "-n").stdout == ""


def test_a_durable_goes_on_where_it_stopped(run: Callable[..., Done], stream: str, unique: Callable[..., str]):
    """What was shown is acknowledged, no more and no less; a durable that is there says where it begins itself."""
    durable = ("--stream", stream, "--durable", unique("d"), "--raw")
    assert run("sub", *durable, "--count", "1").stdout == "a1\n"
    assert run("sub", *durable, "-T").stdout == "b1\na2\nb2\n"
    assert run("sub", *durable, "-T").stdout == ""
    assert "goes on where it stopped" in run("sub", *durable, "--all", status=2).stderr


def test_what_is_acknowledged_is_on_the_disk(
    run: Callable[..., Done],
    stream: str,
    unique: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A file whose message is acknowledged is synced with its name; one that the stream keeps need not be."""
    calls = record(monkeypatch, tmp_path)
    from_stream = ("sub", "--stream", stream, "--count", "1")
    run(*from_stream, "--durable", unique("d"), "--dump", str(tmp_path / "acked"))
    assert calls == [("fsync", "acked/part"), ("link", "acked/1.json"), ("fsync", "acked")]
    calls.clear()
    run(*from_stream, "--dump", str(tmp_path / "kept"))
    assert calls == []


def test_nothing_is_taken_from_a_work_queue(run: Callable[..., Done], unique: Callable[..., str]):
    """A stream whose messages a consumer takes away is read by direct gets, or not at all."""
    name = unique("W")
    run("stream", "add", name, "--subjects", name, "--retention", "work", "--allow-direct", "--defaults")
    run("pub", name, "job", "-J", "-q")
    for _ in range(2):
        assert run("sub", name, "--all", "-T", "--raw").stdout == "job\n"
    run("stream", "edit", name, "--no-allow-direct", "-f")
    assert "--allow-direct" in run("sub", name, "--all", "-T", "--raw", status=2).stderr
    assert "No stream captures" in run("sub", unique("none"), "--all", status=1).stderr
    assert "There is no stream" in run("sub", "--stream", unique("none"), status=1).stderr


# -- how it is shown ---------------------------------------------------------------------------------------------------


def test_messages_become_files(run: Callable[..., Done], stream: str, tmp_path: Path):
    """--dump writes what the `nats` command writes, named by sequence and for the owner alone; nothing is replaced."""
    folder = tmp_path / "dump"
    arguments = ("sub", "--stream", stream, "-T", "--dump", str(folder))
    assert run(*arguments).stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "2.json", "3.json", "4.json"]
    message = json.loads((folder / "2.json").read_text())
    assert set(message) == {"Subject", "Reply", "Header", "Data", "Sub"}
    assert (message["Subject"], message["Header"]) == (f"{stream}.b", {"N": ["1", "x"]})
    assert base64.b64decode(message["Data"]) == b"b1"
    assert (folder / "1.json").stat().st_mode & 0o777 == 0o600
    assert "File exists" in run(*arguments, status=2).stderr
    piped = run("sub", "--stream", stream, "-T", "--dump", "-").stdout.split("\0")
    assert [json.loads(text)["Data"] for text in piped[:-1]] == ["YTE=", "YjE=", "YTI=", "YjI="]


def test_bodies_can_be_left_out(run: Callable[..., Done], stream: str):
    """--headers-only shows headers, --subjects-only a line each, with --raw the subject alone; -d shows ages."""
    bare = run("sub", "--stream", stream, "-T", "--headers-only").stdout
    assert (bare.count("N: 1\nN: x\n"), "a1" in bare) == (2, False)
    lines = run("sub", "--stream", stream, "-T", "--subjects-only", "-d").stdout.splitlines()
    assert [line.partition("s [#")[2][:1] for line in lines] == ["1", "2", "3", "4"]
    raw = run("sub", "--stream", stream, "-T", "--subjects-only", "--raw").stdout
    assert raw.split() == [f"{stream}.{letter}" for letter in "abab"]


def test_a_report_counts_subjects(run: Callable[..., Done], peer: Peer, stream: str, unique: Callable[..., str]):
    """--report-subjects counts messages and bytes of the top few, and of all others together."""
    shown = run("sub", "--stream", stream, "-T", "--report-subjects", "--report-top", "1").stdout
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines() if stream in line]
    assert [row[1:3] for row in rows] == [[f"{stream}.a", "2"]]
    assert "All others" in shown
    subject = unique("sub")

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        peer.publish(f"{subject}.x", b"1", b"2")

    shown = run("sub", f"{subject}.*", f"{subject}.>", "--report-subscriptions", "--count", "4", beside=talk_to).stdout
    assert f"│ {subject}.*" in shown
    assert f"│ {subject}.>" in shown


def test_requests_are_shown_with_their_replies(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--match-replies holds a request until it is answered; one that is not is shown at the end."""
    subject, options = unique("sub"), {"_INBOX": peer.client.new_inbox()}

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        with peer.listening(f"{subject}.asked", b"the answer"):
            peer.publish(f"{subject}.lost", b"unheard", reply=options["_INBOX"])
            peer.request(f"{subject}.asked", b"question")
            talk.wait_for("the answer")  # subscriptions are shown as they come, each in its own order
            peer.publish(f"{subject}.plain", b"no request")
            talk.wait_for("no request")
            talk.interrupt()

    lines = run("sub", f"{subject}.>", "--match-replies", beside=talk_to).stdout.splitlines()
    facts = [line for line in lines if line.startswith("[#")]
    assert [line.split(" on ")[0] for line in facts] == [
        "[#2] Received",
        "[#2] Answered",
        "[#3] Received",
        "[#1] Received",
    ]
    assert lines.index("question") < lines.index("the answer") < lines.index("unheard")


def test_headers_that_are_none_end_nothing(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """Whatever somebody sends as headers, the message is shown, and those that follow it."""
    subject = unique("sub")

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        peer.do(send(b"NATS/1.0\r\nno header\r\nK: v\r\n\r\n"))
        peer.publish(subject, b"next")

    async def send(block: bytes) -> None:
        peer.client.post(b"HPUB %b %d %d\r\n%bx\r\n" % (subject.encode(), len(block), len(block) + 1, block))

    done = run("sub", subject, "--count", "2", beside=talk_to)
    assert done.stdout == f"[#1] Received on {subject}\nK: v\n\nx\n\n[#2] Received on {subject}\nnext\n\n"


def test_an_inbox_is_made_up(run: Callable[..., Done], peer: Peer):
    """-i listens on a subject that nobody else has, and says which, also with --raw."""

    def talk_to(talk: Talk) -> None:
        said = talk.wait_for("\n")
        peer.publish(said.removeprefix("Subscribing on ").strip(), b"found")

    assert run("sub", "-i", "--raw", "--count", "1", beside=talk_to).stdout == "found\n"


def test_what_a_consumer_pushes_is_acknowledged(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--ack answers messages that say where to acknowledge them, and no others."""
    name, target = unique("S"), unique("push")

    async def make() -> None:
        js = peer.client.jetstream()
        await js.add_stream(name=name, subjects=[name])
        await js.publish(name, b"pushed")
        await js.add_consumer(name, durable="p", deliver_subject=target)

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        peer.do(make())

    done = run("sub", target, "--ack", "--count", "1", beside=talk_to)
    assert f"[#1] Received on {name} (stream {name}, sequence 1, 0 pending)\npushed\n" in done.stdout
    assert peer.do(peer.client.jetstream().consumer_info(name, "p")).ack_pending == 0


# -- programs ----------------------------------------------------------------------------------------------------------


def test_bodies_go_through_a_program(run: Callable[..., Done], stream: str):
    """--translate shows what a program prints for each body; what it fails with is told, and is status 1 at the end."""
    done = run("sub", "--stream", stream, "-T", "--raw", "--translate", "sed 's/^/{{ Subject }} {{Stream}} /'")
    assert done.stdout.splitlines()[0] == f"{stream}.a {stream} a1"
    done = run("sub", "--stream", stream, "-T", "--raw", "--translate", "grep a", status=1)
    assert done.stdout == "a1\na2\n"
    assert "Message 2 is not translated: grep ended with status 1." in done.stderr
    assert done.stderr.endswith("penstock: 2 messages were not translated.\n")


def test_a_program_answers(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--command gets the request as input, in words and variables; nothing of it becomes an option or a shell's."""
    subject, answers = unique("reply"), []

    def ask(talk: Talk) -> None:
        talk.wait_for("Listening")
        for token, body in (("a", b"x; $(id) 'y"), ("-n", b"x")):
            answers.append(peer.request(f"{subject}.{token}", body))

    line = f"""{os.sys.executable} -c '
import os, sys
print(sys.argv[1:], os.environ["NATS_REQUEST_SUBJECT"], sys.stdin.read() == os.environ["NATS_REQUEST_BODY"])
' {{{{1}}}} "<{{{{ .Request }}}}>" """
    done = run("reply", f"{subject}.*", "--command", line, "--count", "2", beside=ask)
    assert answers[0].data.decode() == f"{['a', chr(60) + 'x; $(id) ' + chr(39) + 'y>']} {subject}.a True\n"
    assert answers[1].headers["Nats-Service-Error-Code"] == "500"
    assert "would be taken for an option" in done.stderr


async def test_a_program_ends_in_time_with_all_that_it_started(tmp_path: Path, eventually: Callable[..., Any]):
    """What is too slow is killed with its children; a failure carries the status; a zero byte is no argument."""
    file = tmp_path / "pid"
    slow = Program(f"sh -c 'sleep 60 & echo $! > {file}; wait'", "--command", seconds=0.5)
    with pytest.raises(ProgramError, match=r"did not end in 0\.5 s"):
        await slow.run(b"")
    child = Path(f"/proc/{file.read_text().strip()}/stat")
    eventually(lambda: not child.exists() or child.read_text().split()[2] == "Z", 5)
    with pytest.raises(ProgramError, match="status 3") as failed:
        await Program("sh -c 'echo out; exit 3'", "--command", seconds=5).run(b"ignored" * 100_000)
    assert (failed.value.status, failed.value.output) == (3, b"out\n")
    for line in ("echo {{Request}}", "echo -- {{Request}}"):
        with pytest.raises(ProgramError, match="zero byte"):
            await Program(line, "--command", seconds=5).run(b"", Request=b"a\0b")
    assert await Program("echo -- {{Request}}", "--command", seconds=5).run(b"", Request=b"-n") == b"-- -n\n"
