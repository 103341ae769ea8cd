"""What commands print: tables, facts, JSON, streams, consumers and messages; and what messages are made of."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import re
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import asset_show, consumer_show, doctor, message_parts, output, running, standard_input, tables
from penstock.cli.chunks import file_name
from penstock.cli.programs import Program
from penstock.errors import InputError, ProgramError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.model import Message
from penstock.part_file import PartFile

Captured = pytest.CaptureFixture[str]


# -- tables, facts, JSON ---------------------------------------------------------------------------------------------


def test_a_table_has_its_numbers_to_the_right(capsys: Captured):
    """A column whose name begins with # is right-aligned and loses the mark; every row is one line in a pipe."""
    tables.print_table("Things", ("Name", "#Count"), [("a" * 90, 5), ("b" * 60, 1234)])
    title, top, head, _, first, second, _ = capsys.readouterr().out.splitlines()
    assert title.strip() == "Things"
    assert head.strip("│").split("│")[1] == " Count "
    assert [row.strip("│").split("│")[1] for row in (first, second)] == ["     5 ", "  1234 "]
    assert len(top) == len(first) == len(second)


def test_a_table_has_the_look_that_is_chosen(capsys: Captured):
    """--colors chooses lines or a colour; a pipe gets the lines, and no colour."""
    try:
        for name in tables.SCHEMES:
            tables.use_scheme(name)
            tables.print_table("Things", ("Name",), [("a",)])
            shown = capsys.readouterr().out
            assert ("╔" in shown, "╭" in shown) == (name == "double", name != "double")
            assert "\x1b" not in shown
    finally:
        tables.use_scheme("rounded")


def test_a_table_without_rows_shows_its_columns(capsys: Captured):
    """Nothing to show is a table with a head, and no error."""
    tables.print_table("Nothing", ("One", "#Two"), [])
    assert re.search(r"One +│ +Two", capsys.readouterr().out)


def test_facts_beside_or_below_each_other(monkeypatch: pytest.MonkeyPatch, capsys: Captured):
    """Names stand right-aligned where there is room for their values; a narrow terminal has them at its left edge."""
    rows = [("Allows Atomic Batch Publish", False), ("Subjects", ["a", "b"])]
    output.print_pairs("Facts", rows)
    assert "                     Subjects: a, b\n" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.print_pairs("Facts", rows)
    assert capsys.readouterr().out == "Facts\n\nAllows Atomic Batch Publish: false\nSubjects: a, b\n"


NARROW = ("Name", "~Description", "#Messages", "#Last Message")
ROWS = [("shop:legacy_orders", "what old shops [/close] send, [bold]all[/bold] of it", "1,234", "3.1s ago")]


@pytest.mark.parametrize(("width", "form"), [(200, "line"), (66, "wrapped"), (40, "blocks")])
def test_names_are_never_cut(width: int, form: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured):
    """A narrow terminal wraps prose and heads first; then each row becomes lines. Brackets are text everywhere."""
    monkeypatch.setattr(tables, "PIPE", width)
    tables.print_table("Streams of [/x]", NARROW, ROWS)
    out = capsys.readouterr().out
    assert "Streams of [/x]" in out
    assert "shop:legacy_orders" in out
    assert "[/close]" in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= max(width, 66)
    assert ("│" in out) == (form != "blocks")
    assert ("what old shops [/close] send, [bold]all[/bold] of it" in out) == (form != "wrapped")


def test_controls_are_shown_and_not_obeyed(capsys: Captured):
    """Whoever may publish can put a control into a subject: it reaches no terminal, in tables, facts and headers."""
    nasty = "a\x1b[2Jb\u202ec"
    tables.print_table(nasty, ("Name",), [(nasty,)])
    output.print_pairs(nasty, [("Name", nasty)])
    output.print_headers(f"NATS/1.0\r\nA: {nasty}\r\n\r\n".encode())
    out = capsys.readouterr().out
    assert out.count("a\\x1b[2Jb\\u202ec") == 5
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_facts_stand_in_line(capsys: Captured):
    """Names end at the same column, and what is None is left out."""
    output.print_pairs("Facts", [("A", 1), ("Longer", "x"), ("Nothing", None), ("Zero", 0)])
    assert capsys.readouterr().out == "Facts\n\n       A: 1\n  Longer: x\n    Zero: 0\n"


def test_json_is_for_programs(capsys: Captured):
    """Text stays as it is written, and a value that JSON does not know becomes text."""
    output.print_json({"name": "Grüße", "time": datetime(2026, 1, 31, tzinfo=UTC), "path": Path("/x")})
    text = capsys.readouterr().out
    assert "Grüße" in text
    assert json.loads(text) == {"name": "Grüße", "time": "2026-01-31 00:00:00+00:00", "path": "/x"}


def test_progress_says_nothing_in_a_pipe(capsys: Captured):
    """Without a terminal there is no bar, and steps may be told all the same."""
    with output.progress("Working", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


async def test_the_first_to_end_ends_all():
    """What is not done is cancelled and awaited; what failed raises."""
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def quick() -> None:
        await asyncio.sleep(0)

    async def failing() -> None:
        raise InputError("no")

    await running.first(slow(), quick())
    assert ended == ["slow"]
    with pytest.raises(InputError, match="no"):
        await running.first(slow(), failing())
    assert ended == ["slow", "slow"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_is_an_event(number: signal.Signals):
    """Ctrl-C and SIGTERM set the event and raise nothing; afterwards they are what they were."""
    before = signal.getsignal(number)
    with running.until_signal() as stop:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stop.wait()
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)
    signal.signal(number, before)  # the loop leaves the default, and pytest has its own


# -- streams and consumers -------------------------------------------------------------------------------------------


def stream_info(**further: Any) -> StreamInfo:
    config = {"name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
    state = {"messages": 1234, "bytes": 2048, "first_seq": 1, "last_seq": 1300, "num_deleted": 66, "num_subjects": 3}
    answer = {"config": {**config, **further.pop("config", {})}, "state": state, "created": "2026-01-31T12:00:00Z"}
    return StreamInfo.from_json({**answer, **further})


def test_a_stream_is_shown_with_what_it_has(capsys: Captured):
    """Limits, state and options are named; what is not set is left out."""
    asset_show.show_stream(stream_info())
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Information for Stream S created 2026-01-31")
    for words in (
        "Subjects: s.>",
        "Maximum Messages: unlimited",
        "Maximum Age: unlimited",
        "Messages: 1,234",
        "Bytes: 2.0 KiB",
        "Deleted Messages: 66",
        "Number of Subjects: 3",
        "Acknowledgments: true",
    ):
        assert words in said
    for words in ("Sealed", "Mirror", "Republishing", "Placement", "Cluster Information", "Metadata", "Markers"):
        assert words not in said


def test_a_stream_is_shown_with_all_that_it_can_have(capsys: Captured):
    """Everything that a configuration can say has a line of its own."""
    config = {
        "description": "words",
        "sealed": True,
        "compression": "s2",
        "first_seq": 7,
        "placement": {"cluster": "east", "tags": ["ssd"]},
        "subject_transform": {"src": "a", "dest": "b"},
        "republish": {"src": "c", "dest": "d"},
        "retention": "workqueue",
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": 5,
        "max_bytes": 1024**3,
        "max_age": 3600 * 10**9,
        "max_msgs": 9,
        "no_ack": True,
        "mirror_direct": True,
        "subject_delete_marker_ttl": 10**9,
        "consumer_limits": {"max_ack_pending": 3},
        "sources": [{"name": "A", "filter_subject": "x", "opt_start_seq": 4, "external": {"api": "$JS.hub.API"}}],
        "metadata": {"team": "a", "_nats.level": "1"},
        "persist_mode": "async",
    }
    cluster = {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "current": True}, {"name": "n3"}]}
    info = stream_info(config=config, cluster=cluster, sources=[{"name": "A", "lag": 1200, "active": 2_500_000_000}])
    asset_show.show_stream(info, markers=4)
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "Description: words",
        "Sealed: true",
        "Compression: s2",
        "Persistence Mode: async",
        "First Sequence: 7",
        "Placement Cluster: east",
        "Placement Tags: ssd",
        "Subject Transform: a to b",
        "Republishing: c to d",
        "Retention: WorkQueue",
        "Acknowledgments: false",
        "Discard Policy: New per subject",
        "Mirror Direct Get: true",
        "Subject Delete Markers TTL: 1s",
        "Maximum Messages: 9",
        "Maximum Per Subject: 5",
        "Maximum Bytes: 1.0 GiB",
        "Maximum Age: 1h0m0s",
        "Consumer Max Ack Pending: 3",
        "Required API Level: 0 hosted at level 1",
        "Sources: A, subject x, from sequence 4, through $JS.hub.API",
        "team: a",
        "Name: C",
        "Leader: n1",
        "Replica: n2, current",
        "Replica: n3, outdated",
        "A: lag 1,200, 2.5s ago",
        "Markers of the Spark sink: 4",
    ):
        assert words in said, words
    assert "_nats.level" not in said


def test_the_state_alone(capsys: Captured):
    """--state leaves the configuration out; a copy that was never seen and a lost leader are said so."""
    info = stream_info(cluster={"name": "C"}, mirror={"name": "M", "lag": 0, "active": -1})
    asset_show.show_stream(info, state_only=True)
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("State for Stream S")
    assert "Subjects: s.>" not in said
    assert "Leader: none: there is no quorum" in said
    assert "M: lag 0, never seen" in said


def test_times_and_limits():
    """How long ago something was, the time on the wall, and limits, in words."""
    assert output.ago(None) == "never"
    assert output.ago(datetime.now(UTC) + timedelta(hours=1)) == "0s ago"
    assert re.fullmatch(r"1h0m[0-9.]+s ago", output.ago(datetime.now(UTC) - timedelta(hours=1)))
    assert output.local(None) == ""
    assert len(output.local(datetime.now(UTC))) == 19
    assert [asset_show.limit(value) for value in (None, -1, 0, 1234)] == ["unlimited"] * 3 + ["1,234"]
    assert [asset_show.size_limit(value) for value in (None, 0, 2048)] == ["unlimited", "unlimited", "2.0 KiB"]


def consumer_info(config: dict[str, Any], **further: Any) -> ConsumerInfo:
    whole = {
        "durable_name": "c",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        **config,
    }
    state = {"delivered": {"consumer_seq": 3, "stream_seq": 9, "last_active": "2026-01-31T12:00:00Z"}, "num_pending": 5}
    return ConsumerInfo.from_json({"stream_name": "S", "name": "c", "config": whole, **state, **further})


@pytest.mark.parametrize(
    ("config", "further", "words"),
    [
        ({}, {}, ["Durable: true", "Pull Mode: true", "Deliver Policy: All", "Waiting Pulls: 0 of maximum 0"]),
        ({"durable_name": None, "name": "c"}, {}, ["Durable: false"]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 5}, {}, ["Deliver Policy: From Sequence 5"]),
        ({"deliver_policy": "last_per_subject"}, {}, ["Deliver Policy: Last Per Subject"]),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-31T12:00:00Z"},
            {},
            ["Deliver Policy: Since 2026-01-31"],
        ),
        (
            {"deliver_subject": "out", "deliver_group": "g", "idle_heartbeat": 5 * 10**9, "rate_limit_bps": 8192},
            {"push_bound": True},
            ["Delivery Subject: out", "Deliver Queue Group: g", "Idle Heartbeat: 5s", "Active Interest: Active"],
        ),
        ({"deliver_subject": "out", "flow_control": True}, {}, ["Flow Control: true", "No interest"]),
        ({"filter_subjects": ["a", "b"]}, {}, ["Filter Subjects: a, b"]),
        ({"filter_subject": "a"}, {}, ["Filter Subject: a"]),
        ({"max_ack_pending": 1000}, {"num_ack_pending": 7}, ["Outstanding Acks: 7 out of maximum 1,000"]),
        ({"backoff": [10**9, 2 * 10**9]}, {}, ["Backoff: 1s, 2s"]),
        ({"priority_policy": "pinned_client", "priority_groups": ["g"]}, {}, ["Priority Policy: pinned_client"]),
        (
            {"pause_until": "2099-01-31T12:00:00Z"},
            {"paused": True, "pause_remaining": 60 * 10**9},
            ["Paused Until Deadline: 2099-01-31", "(1m0s remaining)"],
        ),
        ({"pause_until": "2020-01-31T12:00:00Z"}, {}, ["(passed)"]),
        ({"metadata": {"a": "b", "_nats.x": "y"}}, {}, ["Metadata: a: b"]),
        ({"headers_only": True, "mem_storage": True}, {}, ["Headers Only: true", "Memory Storage: true"]),
    ],
)
def test_a_consumer_is_shown(capsys: Captured, config: dict[str, Any], further: dict[str, Any], words: list[str]):
    """What a consumer was told to do, and how far it is, in lines that name it."""
    consumer_show.show_consumer(consumer_info(config, **further))
    said = " ".join(capsys.readouterr().out.split())
    assert "Information for Consumer S > c" in said
    assert "Consumer sequence: 3 Stream sequence: 9 Last delivery: " in said
    for text in (*words, "Unprocessed Messages: 5"):
        assert text in said
    assert "_nats." not in said


def test_without_acks_nothing_is_said_of_them(capsys: Captured):
    """A consumer without acks has no floor, no outstanding acks and no wait."""
    consumer_show.show_consumer(consumer_info({"ack_policy": "none", "ack_wait": 10**9}))
    said = capsys.readouterr().out
    for words in ("Acknowledgment Floor", "Outstanding Acks", "Redelivered", "Ack Wait"):
        assert words not in said


def test_a_message_is_shown_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]):
    """Subject, time and each value of a header are text; the payload is the bytes that it is, also with --raw."""
    message = Message(
        subject="a.b",
        data=b"\x00\xff\n",
        headers={"K": ["1", "2"]},
        sequence=7,
        time=datetime(2026, 1, 31, tzinfo=UTC),
        stream="S",
    )
    asset_show.show_message(message)
    said = capfdbinary.readouterr().out
    assert said.startswith(b"[7] Subject: a.b Received: 2026-01-")
    assert said.endswith(b"\n  K: 1\n  K: 2\n\n\x00\xff\n\n\n")
    asset_show.show_message(message, raw=True)
    assert capfdbinary.readouterr().out == b"\x00\xff\n\n"


# -- messages --------------------------------------------------------------------------------------------------------


def filled(text: bytes, count: int = 1, **about: bytes) -> str:
    """Fill a template."""
    return message_parts.Template(text).fill(count, **about).decode()


def test_templates_are_filled():
    """Every name is filled, with and without the dot, with and without blanks; what is no name stays."""
    text = filled(b"{{Count}} {{ .Cnt }} {{Nothing}} {{ Unix }} {{ID}} {{Random}} {{Time}} {{TimeStamp}}", 7)
    count, dotted, unknown, unix, identity, random, clock, stamp = text.split()
    assert (count, dotted, unknown) == ("7", "7", "{{Nothing}}")
    assert abs(int(unix) - datetime.now(UTC).timestamp()) < 10
    assert re.fullmatch(r"[0-9a-f]{32}", identity)
    assert re.fullmatch(r"[0-9a-f]{16}", random)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", clock)
    assert datetime.fromisoformat(stamp).tzinfo is not None
    assert len(filled(b"{{UnixNano}}")) == 19
    assert message_parts.Template(b"plain \xff").fill(1) == b"plain \xff"
    assert filled(b"{{ID}}") != filled(b"{{ID}}")
    assert re.fullmatch("[A-Za-z0-9]{3,5}", filled(b"{{ Random 3 5 }}"))
    assert filled(b"[{{Request}}] {{ .1 }} {{2}}", Request=b"{{Count}}", **{"1": b"one"}) == "[{{Count}}] one {{2}}"
    assert message_parts.Template(b"{{Count}}", on=False).fill(1) == b"{{Count}}"


@pytest.mark.parametrize("text", [b"{{Random 5}}", b"{{Random 5 3}}", b"{{Random 1 99999999}}", b"{{Count 1 2}}"])
def test_templates_that_cannot_be_filled(text: bytes):
    """Lengths that make no sense are refused before anything is sent."""
    with pytest.raises(InputError, match="cannot be filled"):
        message_parts.Template(text)


@pytest.mark.parametrize("given", ["novalue", ":x", "a b:c", "a:b\r\nc", "a\n:b", ""])
def test_headers_that_cannot_be_sent(given: str):
    """A header without a name or a colon, or with a line break, is refused."""
    with pytest.raises(InputError, match="cannot be sent"):
        message_parts.HeaderTemplates([given])


def test_headers_are_read():
    """The first colon ends the name; blanks around the value go; a name that comes again keeps all its values."""
    given = ["A:b:c", "B:  d ", "C:", "A:n {{ Count }}"]
    assert message_parts.HeaderTemplates(given).fill(3) == {"A": ["b:c", "n 3"], "B": ["d"], "C": [""]}
    assert message_parts.HeaderTemplates(given, on=False).fill(3)["A"] == ["b:c", "n {{ Count }}"]
    assert message_parts.HeaderTemplates(None).fill(1) == {}


@pytest.mark.parametrize(
    ("subject", "literal", "words"),
    [
        ("", False, "is empty"),
        ("a b", False, "space"),
        ("a..b", False, "empty token"),
        (".a", False, "empty token"),
        ("a.>.b", False, "not its last token"),
        ("a\n", False, "control character"),
        ("a.*", True, "wildcard"),
        (">", True, "wildcard"),
    ],
)
def test_subjects_that_no_server_takes(subject: str, literal: bool, words: str):
    """A subject with a blank, an empty token or a misplaced wildcard is refused before a connection is made."""
    with pytest.raises(InputError, match=words):
        message_parts.check_subjects("fine", subject, literal=literal)
    message_parts.check_subjects("fine.*", "a.>", "{{ Count }}.x", templates=True)
    with pytest.raises(InputError, match="space"):
        message_parts.check_subjects("{{ Count }}.x")


async def test_a_body_is_the_argument_or_standard_input(monkeypatch: pytest.MonkeyPatch):
    """An argument wins; a pipe is read to its end, or line by line; too much is refused with a way out."""

    def pipe(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    async def bodies(body: str | None = None, *, stdin: bool = False, send_on: str = "eof") -> list[bytes]:
        return [one async for one in standard_input.bodies(body, stdin=stdin, send_on=send_on)]

    pipe(b"\x00piped\xff")
    assert await bodies("given ü") == ["given ü".encode()]
    assert await bodies("\udcff", send_on="newline") == [b"\xff"]
    assert await bodies() == [b"\x00piped\xff"]
    pipe(b"one\ntwo\r\n\nlast")
    assert await bodies("given", stdin=True, send_on="newline") == [b"one", b"two", b"", b"last"]
    monkeypatch.setattr(standard_input, "MAX_BODY", 10)
    for send_on in ("eof", "newline"):
        pipe(b"x" * 11)
        with pytest.raises(InputError, match="penstock chunks send"):
            await bodies(send_on=send_on)
    monkeypatch.setattr(sys, "stdin", None)
    assert (await bodies(), await bodies(send_on="newline")) == ([b""], [])


async def test_an_input_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What the system says of it is a sentence, as with a terminal that is gone."""
    with (tmp_path / "written").open("w") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(InputError, match="Standard input cannot be read"):
            await standard_input.whole_body(None)


async def test_a_slow_pipe_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch):
    """Lines are given as they come, and whatever else the loop has to do goes on meanwhile."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as pipe, open(writing, "wb", buffering=0) as far:
        monkeypatch.setattr(sys, "stdin", pipe)
        lines = standard_input.bodies(None, stdin=False, send_on="newline")
        for word in (b"one", b"two"):
            waiting = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0)
            assert not waiting.done()
            far.write(word + b"\nand a half")
            async with asyncio.timeout(10):
                assert (await waiting).endswith(word)
        far.close()
        assert [line async for line in lines] == [b"and a half"]


# -- files and findings ----------------------------------------------------------------------------------------------


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path):
    """A part has no name that shows until it is kept; what is there already is replaced only where that is said."""
    kept = tmp_path / "id"
    with PartFile(tmp_path) as part:
        part.file.write(b"one")
        assert [path.name.startswith(".penstock-") for path in tmp_path.iterdir()] == [True]
        part.keep(kept)
    with PartFile(tmp_path) as part:
        part.file.write(b"two")
        with pytest.raises(FileExistsError):
            part.keep(kept)
    with PartFile(tmp_path) as part:
        part.file.write(b"never kept")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"id": b"one"}
    with PartFile(tmp_path) as part:
        part.file.write(b"three")
        part.keep(kept, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"id": b"three"}


@pytest.mark.parametrize("text", ["", "a/b", "..", "\x00", "ü" * 120, "a" * 256, "con:1"])
def test_names_of_files_stay_in_their_folder(tmp_path: Path, text: str):
    """Whatever a stranger calls a message, its file lies in the folder, can be made, and is not hidden."""
    name = file_name(text or "empty")
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert not name.startswith(".")
    assert len(name.encode()) <= 200
    (tmp_path / name).touch()


def java(folder: Path, said: str, status: int = 0) -> Path:
    """Make a `java` that says this of its version."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ('openjdk version "17.0.9" 2023-10-17', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_372"', "bad"),
        ('openjdk version "11.0.2"', "bad"),
        ("nothing of the kind", "bad"),
    ],
)
def test_the_version_of_java_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, state: str):
    """Java 17 and newer are good; older or unknown ones are bad where Spark is installed, else a note."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", said)))
    finding = doctor._java(wanted=True)
    assert (finding.what, finding.state) == ("Java", state)
    assert bool(finding.remedy) is (state != "ok")
    assert doctor._java(wanted=False).state == ("ok" if state == "ok" else "note")


def test_no_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without any Java, or with one that does not run, the finding says so and what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "not found" in doctor._java(wanted=True).found
    home = java(tmp_path / "jdk", "x")
    (home / "bin" / "java").write_bytes(b"\x7fELF broken")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert "does not run" in doctor._java(wanted=True).found


def test_the_disk_is_timed(tmp_path: Path):
    """A folder is timed and left as it was; one that cannot be written is bad, and says what to do."""
    finding = doctor._disk(tmp_path, rounds=3)
    assert finding.state in ("ok", "note")
    assert str(tmp_path) in finding.found
    assert list(tmp_path.iterdir()) == []
    finding = doctor._disk(tmp_path / "none")
    assert (finding.state, bool(finding.remedy)) == ("bad", True)


def test_the_wire_is_judged(monkeypatch: pytest.MonkeyPatch):
    """Compiled is good; plain Python is a note, with a remedy unless somebody asked for it."""
    from penstock import wire

    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    monkeypatch.setattr(wire, "compiled", True)
    assert doctor._wire().state == "ok"
    monkeypatch.setattr(wire, "compiled", False)
    assert "C compiler" in doctor._wire().remedy
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert (doctor._wire().state, doctor._wire().remedy) == ("note", "")


async def test_a_program_that_reads_nothing_leaves_no_complaint(caplog: pytest.LogCaptureFixture):
    """What could not be written to a program that has ended is nobody's error, and is not logged as one."""
    program = Program("false", "--translate", seconds=20.0)
    for _ in range(20):
        with pytest.raises(ProgramError):
            await program.run(b"x" * 200_000)
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
