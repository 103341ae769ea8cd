"""`pub`, `sub`, `req`, `reply` and `rtt`, with somebody else on the server to talk to."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke


@pytest.fixture(scope="module")
def peer(server: Server) -> Iterator[Peer]:
    made = Peer(server.url)
    yield made
    made.close()


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    """Run the command; it must succeed unless a status is given, and a failure is one line on standard error."""

    def call(*arguments: str, status: int = 0, **further: Any) -> Done:
        done = invoke(server.url, *arguments, **further)
        assert done.status == status, f"{arguments}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        if status in (1, 2):
            assert re.fullmatch(r"penstock: .*|Error: .*", done.stderr.splitlines()[-1])
        return done

    return call


def awaited(heard: list[Any], count: int) -> list[Any]:
    """Wait until so many messages were heard."""
    deadline = time.monotonic() + 20
    while len(heard) < count:
        assert time.monotonic() < deadline, f"{len(heard)} of {count} messages came"
        time.sleep(0.005)
    return heard


# -- pub -------------------------------------------------------------------------------------------------------------


def test_pub_sends_what_it_is_given(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """Body, headers and reply subject arrive as they were given; what was sent is told in one line."""
    subject = unique("pub")
    with peer.listening(subject) as heard:
        done = run("pub", subject, "grüße", "-H", "Color:red", "-H", "Link:a:b", "--reply", "back.here")
        (message,) = awaited(heard, 1)
    assert done.stdout == f"Published {len('grüße'.encode())} bytes to {subject}\n"
    assert (message.data, message.reply) == ("grüße".encode(), "back.here")
    assert dict(message.headers) == {"Color": "red", "Link": "a:b"}


@pytest.mark.parametrize("name", ["pub", "publish"])
def test_pub_reads_standard_input(run: Callable[..., Done], peer: Peer, unique: Callable[..., str], name: str):
    """Without a body the bytes of standard input are sent, whatever they are, also none at all."""
    subject = unique("pub")
    with peer.listening(subject) as heard:
        run(name, subject, stdin=b"\x00\xff\n")
        run(name, subject)
        run(name, subject, "", stdin="not read")
        assert [message.data for message in awaited(heard, 3)] == [b"\x00\xff\n", b"", b""]


def test_pub_many_says_so_once(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--count sends so many, fills the template for each, and sums up; -q says nothing; --sleep tells each."""
    subject = unique("pub")
    with peer.listening(f"{subject}.*") as heard:
        done = run("pub", f"{subject}.{{{{Count}}}}", "n {{Count}}", "--count", "3")
        assert done.stdout == f"Published 3 messages to {subject}.{{{{Count}}}}\n"
        assert run("pub", f"{subject}.q", "x", "--count", "2", "-q").stdout == ""
        slow = run("pub", f"{subject}.s", "xyz", "--count", "2", "--sleep", "20ms")
        got = [(message.subject.removeprefix(f"{subject}."), message.data) for message in awaited(heard, 7)]
    assert got[:3] == [("1", b"n 1"), ("2", b"n 2"), ("3", b"n 3")]
    assert [name for name, _ in got[3:]] == ["q", "q", "s", "s"]
    assert slow.stdout == f"Published 3 bytes to {subject}.s\n" * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["a b", "x"],
        ["", "x"],
        ["a..b", "x"],
        ["a.*", "x"],
        ["a", "x", "--reply", "b c"],
        ["a", "x", "-H", "nothing"],
        ["a", "x", "-H", "Bad Name:x"],
        ["a", "x", "--sleep", "now"],
        ["a", "x", "--sleep", "-1s"],
        ["a", "x", "--count", "0"],
        ["a", "x", "--count", "1.5"],
        ["a", "x", "extra"],
        ["a", "x", "--timeout", "0s"],
    ],
)
def test_pub_refuses_bad_input_before_it_connects(arguments: list[str]):
    """What cannot be sent is bad input, and is said without asking for any server: the one named here is not there."""
    done = invoke("nats://127.0.0.1:1", "pub", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert "127.0.0.1" not in done.stderr


def test_pub_is_broken_off(run: Callable[..., Done], unique: Callable[..., str]):
    """Ctrl-C in the middle ends it with 130, and without a traceback."""
    subject = unique("pub")

    def press(talk: Talk) -> None:
        talk.wait_for("Published 1 bytes")
        talk.interrupt()

    done = run("pub", subject, "x", "--count", "1000", "--sleep", "30s", status=130, beside=press)
    assert done.stdout.count("Published") == 1


# -- sub -------------------------------------------------------------------------------------------------------------


def test_sub_shows_messages(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """Number, subject, reply, headers and body of each message are shown, for several subjects at once."""
    one, other = unique("sub"), unique("sub")

    def talk_to(talk: Talk) -> None:
        talk.wait_for(f"Subscribing on {one}.*, {other}")
        peer.publish(f"{one}.x", b"first", headers={"K": "v"}, reply="back")
        peer.publish(other, b"second")

    done = run("sub", f"{one}.*", other, "--count", "2", beside=talk_to)
    assert done.stdout == (
        f"[#1] Received on {one}.x with reply back\nK: v\n\nfirst\n\n[#2] Received on {other}\nsecond\n\n"
    )
    assert done.stderr == f"Subscribing on {one}.*, {other}\n"


def test_sub_raw_is_for_programs(run: Callable[..., Done], peer: Peer, unique: Callable[..., str], server: Server):
    """--raw prints payloads, a line each, and nothing else on either stream."""
    subject = unique("sub")

    def talk_to(talk: Talk) -> None:
        while "one" not in talk.said:  # --raw does not say when it listens
            peer.publish(subject, b"one")
        peer.publish(subject, b"two\x00", b"end")

    done = run("sub", subject, "--raw", "--wait", "400ms", beside=talk_to)
    lines = [line for line in done.stdout.splitlines() if line != "one"]
    assert (lines, done.stderr) == (["two\x00", "end"], "")


def test_sub_in_every_other_way(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """-t shows when, --headers-only leaves bodies out, --queue shares, and what comes after --count is not shown."""
    subject = unique("sub")

    def talk_to(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        peer.publish(subject, *[b"body"] * 5, headers={"K": "v"})

    done = run("subscribe", subject, "-t", "--headers-only", "--queue", "q", "--count", "2", beside=talk_to)
    assert len(re.findall(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[#\d\] Received", done.stdout, re.MULTILINE)) == 2
    assert done.stdout.count("K: v\n") == 2
    assert "body" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sub_ends_when_it_is_told_to(run: Callable[..., Done], unique: Callable[..., str], number: signal.Signals):
    """Ctrl-C and SIGTERM are the ordinary end: status 0."""

    def press(talk: Talk) -> None:
        talk.wait_for("Subscribing")
        talk.interrupt(number)

    assert run("sub", unique("sub"), beside=press).stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [[], ["a b"], ["fine", "a.>.b"], ["a", "--count", "-1"], ["a", "--wait", "x"], ["a", "--wait", "-1s"]],
)
def test_sub_refuses_bad_input_before_it_connects(arguments: list[str]):
    """What cannot be listened on is bad input."""
    done = invoke("nats://127.0.0.1:1", "sub", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert "127.0.0.1" not in done.stderr


# -- req and reply ---------------------------------------------------------------------------------------------------


def test_req_shows_the_answer(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """The request carries body and headers; the answer is shown with how long it took."""
    subject = unique("req")
    with peer.listening(subject, b"answer") as heard:
        done = run("req", subject, "question {{Count}}", "-H", "K:v", "--count", "2")
    assert re.fullmatch(rf"(Sending request on {subject}\nReceived with rtt \d+\.\d\d\dms\nanswer\n){{2}}", done.stdout)
    assert [message.data for message in heard] == [b"question 1", b"question 2"]
    assert dict(heard[0].headers) == {"K": "v"}


def test_req_raw_and_from_standard_input(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--raw prints the answer and nothing else; the body may come through a pipe."""
    subject = unique("req")
    with peer.listening(subject, b"\x01\x02") as heard:
        done = run("request", subject, "--raw", stdin="piped")
    assert (done.stdout, done.stderr, heard[0].data) == ("\x01\x02\n", "", b"piped")


def test_req_wants_so_many_answers(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--replies waits for that many; fewer in time are a failure that shows those which came; 0 takes what comes."""
    subject = unique("req")
    with peer.listening(subject, b"one"), peer.listening(subject, b"two"):
        assert sorted(run("req", subject, "x", "--replies", "2", "--raw").stdout.split()) == ["one", "two"]
        everything = run("req", subject, "x", "--replies", "0", "--raw", "--timeout", "200ms")
        assert sorted(everything.stdout.split()) == ["one", "two"]
        fewer = run("req", subject, "x", "--replies", "3", "--raw", "--timeout", "200ms", status=1)
        assert sorted(fewer.stdout.split()) == ["one", "two"]


def test_req_fails_where_nobody_answers(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """Nobody who listens is told at once; somebody who does not answer, after the time-out; both with status 1."""
    subject = unique("req")
    began = time.monotonic()
    assert "Nobody listens" in run("req", subject, "x", "--timeout", "30s", status=1).stderr
    assert "Nobody listens" in run("req", subject, "x", "--replies", "0", "--timeout", "30s", status=1).stderr
    assert time.monotonic() - began < 20
    with peer.listening(subject):
        run("req", subject, "x", "--timeout", "100ms", status=1)


@pytest.mark.parametrize(
    "arguments",
    [["a b", "x"], ["a.*", "x"], ["a", "x", "--replies", "-1"], ["a", "x", "--count", "0"], ["a", "x", "-H", "x"], []],
)
def test_req_refuses_bad_input_before_it_connects(arguments: list[str]):
    """What cannot be asked is bad input."""
    done = invoke("nats://127.0.0.1:1", "req", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert "127.0.0.1" not in done.stderr


def test_reply_answers(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """The answer carries the filled body and the headers; requests are counted; what wants no answer is not counted."""
    subject, answers = unique("reply"), []

    def ask(talk: Talk) -> None:
        talk.wait_for(f"Listening on {subject}.* in group g")
        peer.publish(f"{subject}.x", b"wants no answer")
        answers.extend(peer.request(f"{subject}.{name}", b"12345") for name in "ab")

    arguments = ("reply", f"{subject}.*", "answer {{Count}}", "-H", "From:here", "--queue", "g", "--count", "2")
    done = run(*arguments, beside=ask)
    assert done.stdout == f"[#1] Received on {subject}.a: 5 bytes\n[#2] Received on {subject}.b: 5 bytes\n"
    assert [answer.data for answer in answers] == [b"answer 1", b"answer 2"]
    assert dict(answers[0].headers) == {"From": "here"}


def test_reply_echoes_and_takes_its_time(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--echo gives the question back, after --sleep; Ctrl-C ends it with 0."""
    subject, facts = unique("reply"), {}

    def ask(talk: Talk) -> None:
        talk.wait_for("Listening")
        began = time.monotonic()
        facts["data"] = peer.request(subject, b"\x00echo").data
        facts["seconds"] = time.monotonic() - began
        talk.interrupt()

    run("reply", subject, "--echo", "--sleep", "100ms", beside=ask)
    assert facts["data"] == b"\x00echo"
    assert facts["seconds"] >= 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a"], "nothing to answer with"),
        (["a", "b", "--echo"], "given together"),
        (["a b", "x"], "The subject"),
        (["a", "x", "-H", "x"], "header"),
        (["a", "x", "--sleep", "x"], "--sleep"),
        (["a", "x", "--count", "-1"], "--count"),
    ],
)
def test_reply_refuses_bad_input_before_it_connects(arguments: list[str], words: str):
    """What cannot be answered, or with nothing, is bad input."""
    done = invoke("nats://127.0.0.1:1", "reply", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert words in done.stderr


# -- rtt -------------------------------------------------------------------------------------------------------------


def test_rtt_measures_each_server(run: Callable[..., Done], server: Server):
    """One row a server, with its address and without its token; the shortest is no longer than the mean."""
    shown = run("rtt", "2").stdout
    assert "Round trips, 2 to each server" in shown
    assert len(re.findall(r"\d+\.\d{3}ms", shown)) == 3
    rows = json.loads(run("rtt", "1", "--json", "-s", f"{server.url},{server.url}").stdout)
    assert [set(row) for row in rows] == [{"url", "rtt", "min", "max"}] * len(rows)
    assert server.token not in shown + json.dumps(rows)
    assert all(0 < row["min"] <= row["rtt"] <= row["max"] for row in rows)


def test_rtt_names_the_server_that_is_not_there(run: Callable[..., Done], server: Server):
    """One address of several that does not answer is a failure that names it."""
    done = run("rtt", "1", "-s", f"{server.url},nats://127.0.0.1:1", status=1)
    assert "127.0.0.1:1" in done.stderr
