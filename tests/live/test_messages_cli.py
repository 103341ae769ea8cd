"""`pub`, `sub`, `req`, `reply` and `rtt`, with somebody else on the server to talk to."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, Peer, Talk, invoke, runner


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    """Run the command; it must succeed unless a status is given."""
    return runner(server.url)


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
        headers = ("-H", "Color:red", "-H", "Link:a:b", "-H", "Color:{{ Count }}")
        done = run("pub", subject, "grüße", *headers, "--reply", "back.here")
        (message,) = awaited(heard, 1)
    assert done.stdout == f"Published {len('grüße'.encode())} bytes to {subject}\n"
    assert (message.data, message.reply) == ("grüße".encode(), "back.here")
    assert message.header_block == b"NATS/1.0\r\nColor: red\r\nColor: 1\r\nLink: a:b\r\n\r\n"


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
        ["{{ Count }}", "x", "--no-templates"],
        ["a", "{{Random 5}}"],
        ["a", "x", "--send-on", "space"],
        ["a", "x", "--ttl", "soon"],
        ["a", "x", "--ttl", "0s"],
        ["a", "x", "-J", "--reply", "b"],
        ["a", "x", "--schedule-every", "5s"],
        ["a", "x", "--schedule-dest", "b"],
        ["a", "x", "--schedule-dest", "b", "--schedule-every", "5s", "--schedule-after", "5s"],
        ["a", "x", "--schedule-dest", "b", "--schedule-every", "5s", "--atomic"],
        ["a", "x", "--schedule-dest", "b", "--schedule-every", "0s"],
        ["a", "x", "--schedule-dest", "b", "--schedule-cron", "* * * * *"],
        ["a", "x", "--schedule-dest", "a", "--schedule-at", "2030-01-01"],
        ["a", "x", "--schedule-dest", "b c", "--schedule-after", "5s"],
    ],
)
def test_pub_refuses_bad_input_before_it_connects(arguments: list[str]):
    """What cannot be sent is bad input, and is said without asking for any server: the one named here is not there."""
    done = invoke("nats://127.0.0.1:1", "pub", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert "127.0.0.1" not in done.stderr


def test_templates_can_be_switched_off(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--no-templates leaves braces as they are, in headers too."""
    subject = unique("pub")
    with peer.listening(subject) as heard:
        run("pub", subject, "{{ Count }}", "-H", "K:{{Count}}", "--no-templates")
        (message,) = awaited(heard, 1)
    assert (message.data, message.headers) == (b"{{ Count }}", {"K": "{{Count}}"})


def test_pub_sends_lines_as_they_come(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--send-on newline makes a message of each line of standard input, whatever body is given with --force-stdin."""
    subject = unique("pub")
    with peer.listening(subject) as heard:
        done = run("pub", subject, "not sent", "--force-stdin", "--send-on", "newline", stdin="a\n\nb {{Count}}")
        assert [message.data for message in awaited(heard, 3)] == [b"a", b"", b"b 1"]
    assert done.stdout.count(f"bytes to {subject}\n") == 3


def test_pub_into_a_stream(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """-J and --ttl tell the stream's ack, and --atomic stores all or none; each with headers that are repeated."""
    stream, other = unique("S"), unique("S")
    run("stream", "add", stream, "--subjects", stream, "--defaults", "--allow-batch", "--allow-msg-ttl")
    run("stream", "add", other, "--subjects", other, "--defaults")
    headers = ("-H", "A:1", "-H", "A:2")
    stored = run("pub", stream, "n{{Count}}", "-J", "--count", "2", *headers, "-H", "Nats-Msg-Id:{{Count}}").stdout
    assert stored == f"Stored in Stream: {stream} Sequence: 1\nStored in Stream: {stream} Sequence: 2\n"
    assert "Duplicate: true" in run("pub", stream, "n", "-J", "-H", "Nats-Msg-Id:2").stdout
    assert "TTL" not in run("pub", stream, "x", "--ttl", "never").stdout
    ids = ("-H", "Nats-Msg-Id:b{{Count}}")
    done = run("pub", stream, "m{{Count}}", "--atomic", "--count", "3", "--ttl", "1h", *headers, *ids)
    assert done.stdout == f"Stored 3 messages in Stream: {stream} Sequence: 6\n"
    got = peer.do(peer.client.jetstream().get_msg(stream, 6)).headers
    assert (got["A"], got["Nats-Msg-Id"], got["Nats-TTL"]) == (["1", "2"], ["b3"], ["3600000ms"])
    assert "--allow-batch" in run("pub", other, "x", "--atomic", status=2).stderr
    assert "per-message TTL is disabled" in run("pub", other, "x", "--ttl", "5s", status=1).stderr
    assert "No stream captures" in run("pub", unique("none"), "x", "--atomic", status=1).stderr
    assert "does a stream hold" in run("pub", unique("none"), "x", "-J", status=1).stderr


def test_pub_later(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """A schedule is kept in the stream as headers, and the stream says so."""
    stream = unique("S")
    allowed = {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True}
    peer.do(peer.client.jetstream().add_stream(name=stream, subjects=[f"{stream}.>"], **allowed))
    plan = ("--schedule-every", "2d", "--schedule-dest", f"{stream}.out", "--schedule-ttl", "2m")
    assert "Sequence: 1" in run("pub", f"{stream}.plan", "x", *plan).stdout
    kept = peer.do(peer.client.jetstream().get_msg(stream, 1)).headers
    assert kept["Nats-Schedule"] == ["@every 48h0m0s"]
    assert kept["Nats-Schedule-Target"] == [f"{stream}.out"]
    elsewhere = ("--schedule-after", "1h", "--schedule-dest", "elsewhere")
    assert "does not capture elsewhere" in run("pub", f"{stream}.plan", "x", *elsewhere, status=2).stderr
    assert kept["Nats-Schedule-TTL"] == ["120000ms"]


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
    [
        [],
        ["a b"],
        ["fine", "a.>.b"],
        ["a", "--count", "-1"],
        ["a", "--wait", "x"],
        ["a", "--wait", "-1s"],
        ["a", "-I", "b c"],
        ["a", "--inbox"],
        ["a", "-t", "-d"],
        ["a", "--raw", "--dump", "-"],
        ["a", "--dump", ""],
        ["a", "--raw", "--headers-only"],
        ["a", "--raw", "--report-subjects"],
        ["a", "--report-subjects", "--report-top", "0"],
        ["a", "--translate", "no-such-program"],
        ["a", "--translate", "cat 'x"],
        ["a", "--translate", ""],
        ["a", "--translate", "{{Subject}} x"],
        ["a", "--terminate-at-end"],
        ["a", "--stream", "A.B"],
        ["a", "--stream", "A", "--queue", "q"],
        ["a", "--all", "--match-replies"],
        ["a", "--all", "--new"],
        ["a", "--since", "yesterday"],
        ["a", "--start-sequence", "0"],
        ["a", "--stream", "A", "--durable", "d"],
        ["--durable", "d"],
        ["--stream", "A", "--durable", "d", "--direct"],
    ],
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
    assert done.stdout == "answer\nanswer\n"
    assert re.fullmatch(r"(Received with rtt \d+\.\d\d\dms\n){2}", done.stderr)
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


def test_req_takes_replies_until_one_is_empty(run: Callable[..., Done], peer: Peer, unique: Callable[..., str]):
    """--wait-for-empty shows all that comes before it; if it does not come within --reply-timeout, that is told."""
    subject = unique("req")

    async def answer(message: Any) -> None:
        for part in (b"one", b"two", message.data):
            await peer.client.publish(message.reply, part)

    async def serve() -> Any:
        subscription = await peer.client.subscribe(subject, cb=answer)
        await peer.client.flush()
        return subscription

    subscription = peer.do(serve())
    assert run("req", subject, "", "--wait-for-empty", "--raw").stdout == "one\ntwo\n"
    endless = run("req", subject, "x", "--wait-for-empty", "--raw", "--reply-timeout", "50ms", status=1)
    assert endless.stdout == "one\ntwo\nx\n"
    assert "--reply-timeout" in endless.stderr
    few = run("req", subject, "x", "--replies", "4", "--raw", "--reply-timeout", "50ms", "--timeout", "30s", status=1)
    assert "Only 3 of 4 replies" in few.stderr
    lines = run("req", subject, "--raw", "--send-on", "newline", "--translate", "tr a-z A-Z", stdin="a\nb\n")
    assert lines.stdout == "ONE\nONE\n"
    peer.do(subscription.unsubscribe())


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
    [
        ["a b", "x"],
        ["a.*", "x"],
        ["a", "x", "--replies", "-1"],
        ["a", "x", "--count", "0"],
        ["a", "x", "-H", "x"],
        ["a", "x", "--reply-timeout", "x"],
        ["a", "x", "--replies", "2", "--wait-for-empty"],
        ["a", "x", "--send-on", "x"],
        ["a", "x", "--translate", "no-such-program"],
        [],
    ],
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
    """The question comes back, with its headers and a count, after up to --sleep; Ctrl-C ends it with 0."""
    subject, answers = unique("reply"), []

    def ask(talk: Talk) -> None:
        talk.wait_for("Listening")
        answers.append(peer.request(subject, b"\x00echo", headers={"K": ["1", "2"]}))
        talk.interrupt()

    run("reply", subject, "--sleep", "20ms", beside=ask)
    assert answers[0].data == b"\x00echo"
    assert answers[0].header_block == b"NATS/1.0\r\nK: 1\r\nK: 2\r\nNATS-Reply-Counter: 1\r\n\r\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "b", "--echo"], "given together"),
        (["a", "b", "--command", "cat"], "given together"),
        (["a", "--command", "cat", "--echo"], "given together"),
        (["a", "--command", "no-such-program"], "no program"),
        (["a", "--command", "{{1}}"], "templates are for arguments"),
        (["a b", "x"], "The subject"),
        (["a", "x", "--queue", ""], "queue group"),
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
    """One row an address, without the token; --json is as the `nats` command gives it."""
    shown = run("rtt", "2").stdout
    assert "Round trips, 2 to each address" in shown
    assert len(re.findall(r"\d+\.\d{3}ms", shown)) == 3
    named = server.url.replace("127.0.0.1", "localhost")
    rows = json.loads(run("rtt", "1", "--json", "-s", f"{server.url},{named}").stdout)
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {"url", "results"}
        for result in row["results"]:
            assert set(result) == {"time", "address", "rtt", "url"}
            assert type(result["rtt"]) is int
    assert rows[0]["results"][0]["rtt"] > 0
    assert rows[1]["url"].startswith("nats://localhost:")
    assert "localhost" not in rows[1]["results"][0]["address"]
    assert server.token not in shown + json.dumps(rows)


def test_rtt_names_the_server_that_is_not_there(run: Callable[..., Done], server: Server):
    """One address of several that does not answer is a failure that names it."""
    done = run("rtt", "1", "--json", "-s", f"{server.url},nats://127.0.0.1:1", status=1)
    assert "127.0.0.1:1" in done.stderr
    assert [bool(row["results"][0]["rtt"]) for row in json.loads(done.stdout)] == [True, False]
