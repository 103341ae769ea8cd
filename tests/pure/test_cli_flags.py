"""Flags as data: what `stream add` and `consumer add` make of words, what they ask for, and what they refuse."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from penstock.cli import consumer_flags, questions, stream_flags, values
from penstock.cli.consumer_flags import ConsumerFlags, ask_for_consumer, consumer_from
from penstock.cli.flags import field_set
from penstock.cli.stream_flags import Removing, StreamFlags, ask_for_stream, stream_from
from penstock.errors import InputError, OptionError
from penstock.model import Consumer, Placement, SourceConsumer, Stream, StreamSource

NO_START = {"opt_start_seq": None, "opt_start_time": None}


class Typist(io.StringIO):
    """A terminal at which somebody has typed these lines."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def at_terminal(*lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", Typist("".join(f"{line}\n" for line in lines)))

    return at_terminal


# -- streams -----------------------------------------------------------------------------------------------------------


def test_no_flag_says_nothing():
    """Flags that were not given set no field, so that an edit changes nothing else."""
    assert stream_flags.fields_from(StreamFlags()) == {}
    assert consumer_flags.fields_from(ConsumerFlags()) == {}


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ({"subjects": ["a,b", " c "]}, {"subjects": ["a", "b", "c"]}),
        ({"storage": "f"}, {"storage": "file"}),
        ({"storage": "m"}, {"storage": "memory"}),
        ({"retention": "workq"}, {"retention": "workqueue"}),
        ({"retention": "work"}, {"retention": "workqueue"}),
        ({"retention": "interest"}, {"retention": "interest"}),
        ({"ack": False}, {"no_ack": True}),
        ({"ack": True}, {"no_ack": False}),
        ({"max_age": "-1"}, {"max_age": 0.0}),
        ({"max_age": "1h30m"}, {"max_age": 5400.0}),
        ({"dupe_window": "90s"}, {"duplicate_window": 90.0}),
        ({"max_bytes": "1.5K"}, {"max_bytes": 1536}),
        ({"max_bytes": "-1"}, {"max_bytes": -1}),
        ({"max_msg_size": "1GB"}, {"max_msg_size": 1024**3}),
        ({"tag": ["a", "b"]}, {"placement": Placement(tags=["a", "b"])}),
        ({"cluster": "east"}, {"placement": Placement(cluster="east")}),
        ({"cluster": "", "tag": [""]}, {"placement": None}),
        ({"mirror": "M"}, {"mirror": StreamSource(name="M")}),
        ({"mirror": '{"name":"M","opt_start_seq":5}'}, {"mirror": StreamSource(name="M", opt_start_seq=5)}),
        ({"source": ["A,B", "C"]}, {"sources": [StreamSource(name=name) for name in "ABC"]}),
        (
            {"source": ['{"name":"A","consumer":{"name":"c","deliver_subject":"d"}}', "B"]},
            {
                "sources": [
                    StreamSource(name="A", consumer=SourceConsumer(name="c", deliver_subject="d")),
                    StreamSource(name="B"),
                ]
            },
        ),
        ({"metadata": ["a=b=c", "d:e"]}, {"metadata": {"a": "b=c", "d": "e"}}),
        ({"transform_destination": "b.>"}, {"subject_transform": {"src": ">", "dest": "b.>"}}),
        (
            {"republish_source": "a", "republish_destination": "b", "republish_headers": True},
            {"republish": {"src": "a", "dest": "b", "headers_only": True}},
        ),
        ({"republish_headers": True}, {}),
        (
            {"limit_consumer_inactive": "1s", "limit_consumer_max_pending": 7},
            {"consumer_limits": {"inactive_threshold": 10**9, "max_ack_pending": 7}},
        ),
        ({"deny_delete": True, "deny_purge": False}, {"deny_delete": True, "deny_purge": False}),
        ({"allow_batch": True, "allow_fast": False}, {"allow_atomic": True, "allow_batched": False}),
        ({"max_msgs": 0}, {"max_msgs": 0}),
    ],
)
def test_flags_of_a_stream(flags: dict[str, Any], fields: dict[str, Any]):
    """Each flag sets the field of the server's configuration that it stands for, and no other."""
    assert stream_flags.fields_from(StreamFlags(**flags)) == fields


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"storage": "tape"}, "--storage is 'tape'"),
        ({"retention": ""}, "--retention is ''"),
        ({"max_age": "soon"}, "--max-age is 'soon'"),
        ({"max_bytes": "lots"}, "--max-bytes is 'lots'"),
        ({"max_bytes": "-2"}, "--max-bytes is '-2'"),
        ({"max_msg_size": "1XB"}, "--max-msg-size is '1XB'"),
        ({"dupe_window": "2x"}, "--dupe-window is '2x'"),
        ({"subject_del_markers_ttl": "x"}, "--subject-del-markers-ttl is 'x'"),
        ({"limit_consumer_inactive": "x"}, "--limit-consumer-inactive is 'x'"),
        ({"metadata": ["=value"]}, "--metadata '=value' is not a pair"),
        ({"transform_source": "a"}, "--transform-source is given alone"),
        ({"republish_source": "a"}, "--republish-source is given alone"),
        ({"mirror": "{name}"}, "--mirror '{name}' is not JSON"),
        ({"source": ['{"title":"A"}']}, "name is missing"),
    ],
)
def test_flags_of_a_stream_that_make_no_sense(flags: dict[str, Any], words: str):
    """What a flag cannot mean is refused with the flag's own name."""
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        stream_flags.fields_from(StreamFlags(**flags))


def test_a_flag_wins_over_the_file():
    """What a flag says takes the place of what the configuration says; the rest stays."""
    base = Stream(name="OLD", subjects=["old"], max_msgs=5, description="kept")
    made = stream_from("S", StreamFlags(subjects=["new"]), base)
    assert (made.name, made.subjects, made.max_msgs, made.description) == ("S", ["new"], 5, "kept")


def test_flags_change_what_they_name_and_nothing_else():
    """What a newer server says stays, words and fields; of a placement, what the flag does not name stays, too."""
    there = Stream.from_json(
        {"name": "S", "retention": "tomorrow", "of_tomorrow": 5, "placement": {"cluster": "east", "zone": "z"}}
    )
    made = stream_from("S", StreamFlags(tag=["ssd"], max_msgs=7), there).to_json()
    assert (made["retention"], made["of_tomorrow"], made["max_msgs"]) == ("tomorrow", 5, 7)
    assert made["placement"] == {"cluster": "east", "tags": ["ssd"], "zone": "z"}
    gone = Removing(no_mirror=True, no_republish=True).fields()
    assert gone == {"mirror": None, "republish": None}
    mirrored = Stream(name="S", mirror={"name": "M"})
    assert stream_from("S", StreamFlags(), mirrored, **gone).mirror is None


def test_a_mirror_needs_no_subjects():
    """--mirror over a configuration with subjects leaves them out, unless they are given, too."""
    assert stream_from("S", StreamFlags(mirror="M"), Stream(name="S", subjects=["old"])).subjects == []
    assert stream_from("S", StreamFlags(mirror="M", subjects=["a"])).subjects == ["a"]


@pytest.mark.parametrize("kind", [StreamFlags, ConsumerFlags])
def test_every_flag_is_used(kind: type[StreamFlags] | type[ConsumerFlags]):
    """No flag is declared and then forgotten: each one, given alone, sets a field or is told to need another one."""
    known = {
        "storage": "memory",
        "retention": "work",
        "deliver": "new",
        "backoff": "1s",
        "max_bytes": "5",
        "sample": "5",
    }
    module = stream_flags if kind is StreamFlags else consumer_flags
    beside = {"transform_source", "republish_source", "republish_headers", "ephemeral", "pull"}
    beside |= {"backoff_steps", "backoff_min", "backoff_max"}
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) or (hint,)
        value: Any = True if bool in kinds else 5 if int in kinds else ["a=b"] if list[str] in kinds else "1s"
        if name in beside:
            continue  # it means nothing alone
        value = known.get(name, "5K" if "bytes" in name or "size" in name else value) if value == "1s" else value
        assert module.fields_from(kind(**{name: value})), name  # type: ignore[arg-type]  # of that module


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ({"filter": ["a"]}, {"filter_subject": "a", "filter_subjects": []}),
        ({"filter": ["a,b"]}, {"filter_subject": None, "filter_subjects": ["a", "b"]}),
        ({"filter": [""]}, {"filter_subject": None, "filter_subjects": []}),
        ({"sample": "0"}, {"sample_freq": None}),
        ({"sample": "-1"}, {"sample_freq": None}),
        ({"sample": "25"}, {"sample_freq": "25"}),
        ({"target": "out"}, {"deliver_subject": "out"}),
        ({"target": ""}, {}),
        ({"pull": True}, {}),
        ({"backoff": "none"}, {"backoff": []}),
        ({"backoff": ""}, {"backoff": []}),
        ({"backoff": "1s, 2m"}, {"backoff": [1.0, 120.0]}),
        (
            {"backoff": "linear", "backoff_steps": 2, "backoff_min": "1s", "backoff_max": "9s"},
            {"backoff": [1.0, 5.0]},
        ),
        ({"heartbeat": "-1"}, {"idle_heartbeat": None}),
        ({"heartbeat": "5s"}, {"idle_heartbeat": 5.0}),
        ({"wait": "1m"}, {"ack_wait": 60.0}),
        ({"max_pull_bytes": "1K"}, {"max_bytes": 1024}),
        ({"max_pull_expire": "1s"}, {"max_expires": 1.0}),
        ({"overflow_groups": ["a,b"]}, {"priority_policy": "overflow", "priority_groups": ["a", "b"]}),
        ({"prioritized_groups": ["a"]}, {"priority_policy": "prioritized", "priority_groups": ["a"]}),
        ({"metadata": ["a=b"]}, {"metadata": {"a": "b"}}),
        ({"deliver": "subject"}, {"deliver_policy": "last_per_subject", **NO_START}),
        ({"deliver": "next"}, {"deliver_policy": "new", **NO_START}),
        ({"deliver": "7"}, {"deliver_policy": "by_start_sequence", **NO_START, "opt_start_seq": 7}),
    ],
)
def test_flags_of_a_consumer(flags: dict[str, Any], fields: dict[str, Any]):
    """Each flag sets the field of the server's configuration that it stands for, and no other."""
    assert consumer_flags.fields_from(ConsumerFlags(**flags)) == fields


def test_a_linear_backoff_has_ten_even_steps():
    """Without more flags a linear backoff goes from one minute towards twenty in ten steps, as with `nats`."""
    steps = consumer_flags.fields_from(ConsumerFlags(backoff="linear"))["backoff"]
    assert (len(steps), steps[0], steps[-1]) == (10, 60.0, 1086.0)
    assert len({round(after - before, 6) for before, after in itertools.pairwise(steps)}) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"backoff": "linear", "backoff_steps": 0}, "is not possible"),
        ({"sample": "101"}, "--sample is '101'"),
        ({"sample": "some"}, "--sample is 'some'"),
        ({"backoff": "linear", "backoff_min": "2m", "backoff_max": "1m"}, "is not possible"),
        ({"backoff": "linear", "backoff_max": "x"}, "--backoff-max"),
        ({"backoff": "1s,x"}, "--backoff is 'x'"),
        ({"deliver": "someday"}, "--deliver is 'someday'"),
        ({"deliver": "99999y"}, "--deliver is '99999y'"),
        ({"deliver": "2026-02-30T00:00:00Z"}, "--deliver is"),
        ({"pause": "99999y"}, "--pause is '99999y', which is out of the range of dates"),
        ({"pull": True, "target": "x"}, "--pull and --target"),
        ({"pull": True, "deliver_group": "g"}, "--pull and --deliver-group"),
        ({"overflow_groups": ["a"], "pinned_groups": ["b"]}, "--overflow-groups and --pinned-groups"),
        ({"max_pull_bytes": "x"}, "--max-pull-bytes"),
        ({"inactive_threshold": "x"}, "--inactive-threshold"),
        ({"metadata": ["a"]}, "is not a pair"),
    ],
)
def test_flags_of_a_consumer_that_make_no_sense(flags: dict[str, Any], words: str):
    """What a flag cannot mean is refused with the flag's own name."""
    with pytest.raises(InputError, match=words):
        consumer_flags.fields_from(ConsumerFlags(**flags))


def test_a_start_by_duration_lies_in_the_past():
    """--deliver 2m begins two minutes ago; a time begins there."""
    fields = consumer_flags.start_from("2m")
    assert fields["deliver_policy"] == "by_start_time"
    assert timedelta(0) <= datetime.now(UTC) - timedelta(minutes=2) - fields["opt_start_time"] < timedelta(seconds=10)
    fields = consumer_flags.start_from("2026-01-31T12:00:00+02:00")
    assert fields["opt_start_time"] == datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("flags", "base", "durable", "name"),
    [
        ({}, None, "c", None),
        ({"ephemeral": True}, None, None, "c"),
        ({}, {"name": "c"}, None, "c"),
        ({}, {"durable": "c", "name": "c"}, "c", None),
    ],
)
def test_a_name_is_durable_unless_it_is_ephemeral(
    flags: dict[str, Any], base: dict[str, Any] | None, durable: str | None, name: str | None
):
    """A named consumer is durable, unless a flag, or what it is made over, says that it is not."""
    made = consumer_from("c", ConsumerFlags(**flags), base)
    assert (made.durable, made.name) == (durable, name)
    assert consumer_from(None, ConsumerFlags(ephemeral=True)).durable is None


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_terminal_is_asked_for_a_stream(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]):
    """Everything that no flag says is asked; wrong answers are asked again, each with the reason."""
    typed(
        *("", "a.>", "tape", "m", "two", "1", "forever", "work", "newest", "new", "-1", "x", "5", "1M", "never", "1h"),
        *("2K", "", "perhaps", "yes", "n", "N"),
    )
    made = stream_from("S", ask_for_stream(StreamFlags()))
    assert (made.subjects, made.storage, made.num_replicas, made.retention) == (["a.>"], "memory", 1, "workqueue")
    assert (made.discard, made.max_msgs, made.max_msgs_per_subject, made.max_bytes) == ("new", -1, 5, 1024**2)
    assert (made.max_age, made.max_msg_size, made.duplicate_window) == (3600.0, 2048, None)
    assert (made.allow_rollup_hdrs, made.deny_delete, made.deny_purge) == (True, False, False)
    said = capsys.readouterr()
    assert said.out.strip() == "", "questions are not for programs"
    for words in (
        "at least one subject",
        "'two' is not a number",
        "'x' is not a number",
        "'perhaps' is neither yes nor no",
    ):
        assert words in said.err


def test_only_what_is_missing_is_asked(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]):
    """A flag that is given is no question; a copy of another stream needs no subjects."""
    typed(*[""] * 11)
    made = stream_from("S", ask_for_stream(StreamFlags(mirror="M", storage="file", discard="old")))
    assert (made.mirror.name if made.mirror else None, made.subjects) == ("M", [])
    said = capsys.readouterr().err
    assert "Storage" not in said
    assert "Subjects" not in said
    assert said.count("Deny purging") == 1


def test_a_terminal_is_asked_for_a_push_consumer(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]):
    """A target makes it push, and brings the questions that only a push consumer has."""
    typed("out.x", "whenever", "new", "maybe", "explicit", "original", "a.b", "x", "30", "9", "linear", "x", "5s", "y")
    made = consumer_from("c", ask_for_consumer(ConsumerFlags(headers_only=False)))
    assert (made.deliver_subject, made.deliver_policy, made.replay_policy) == ("out.x", "new", "original")
    assert (made.filter_subject, made.max_deliver, made.max_ack_pending) == ("a.b", 30, 9)
    assert (len(made.backoff), made.idle_heartbeat, made.flow_control) == (10, 5.0, True)
    said = capsys.readouterr().err
    assert "'maybe' is not one of the answers" in said
    assert "--deliver is 'whenever'" in said


def test_a_terminal_that_is_closed_ends_the_questions(typed: Callable[..., None]):
    """Nobody is asked for ever: when standard input ends, so does the command."""
    typed("out.x", "new")
    with pytest.raises(typer.Abort):
        ask_for_consumer(ConsumerFlags())


def test_a_consumer_without_acks_is_asked_less(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]):
    """Deliveries, pending acks and backoff mean nothing without acks, and are not asked for."""
    typed("", "all", "none", "instant", "", "n")
    made = consumer_from("c", ask_for_consumer(ConsumerFlags()))
    assert (made.ack_policy, made.deliver_subject, made.backoff) == ("none", None, [])
    assert "Maximum Allowed Deliveries" not in capsys.readouterr().err


def test_a_choice_is_made_by_name_or_number(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]):
    """A list is shown with numbers; a name, a number and an empty answer choose, anything else is asked again."""
    typed("b")
    assert questions.pick("stream", ["a", "b"]) == "b"
    typed("2")
    assert questions.pick("stream", ["a", "b"]) == "b"
    typed("")
    assert questions.pick("stream", ["a", "b"]) == "a"
    typed("0", "3", "c", "-1", "1")
    assert questions.pick("stream", ["a", "b"]) == "a"
    assert capsys.readouterr().err.count("is not in the list") == 4


def test_nothing_to_choose_from(monkeypatch: pytest.MonkeyPatch):
    """Without a terminal the names are told; without names, how to make one."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(InputError, match=r"Which stream.*There are: a, b"):
        questions.pick("stream", ["a", "b"])
    with pytest.raises(InputError, match=r"There is no S consumer.*penstock consumer add"):
        questions.pick("S consumer", [])


@pytest.mark.parametrize(("answer", "goes"), [("y", 1), ("Yes", 1), (" YES ", 1), ("n", 0), ("", 0), ("yep", 0)])
def test_only_a_yes_confirms(monkeypatch: pytest.MonkeyPatch, answer: str, goes: int):
    """Nothing is lost without a yes; standard input that is closed says nothing."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
    if goes:
        questions.confirm("Really", False)
    else:
        with pytest.raises(InputError, match="nothing was changed"):
            questions.confirm("Really", False)
    monkeypatch.setattr(sys, "stdin", None)
    questions.confirm("Really", True)
    with pytest.raises(InputError):
        questions.confirm("Really", False)
    assert not questions.asking()


def test_defaults_ask_nobody(typed: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    """Somebody at a terminal is asked, unless --defaults says not to; a pipe is never asked."""
    typed()
    assert questions.asking()
    assert not questions.asking(defaults=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert not questions.asking()


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T10:00:00Z", datetime(2030, 1, 31, 10, tzinfo=UTC)),
        ("2030-01-31 10:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
        ("2030-01-31T10:00:00-05:00", datetime(2030, 1, 31, 15, tzinfo=UTC)),
        ("2030-01-31T10:00:00+05:30", datetime(2030, 1, 31, 4, 30, tzinfo=UTC)),
        ("2030-01-31T10:00:00.5", datetime(2030, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_a_time_to_come(text: str, time: datetime):
    """A date, a time with or without a zone and a blank for the T are read; no zone is UTC."""
    assert values.parse_until(text, "UNTIL") == time


def test_a_duration_from_now():
    """A duration is counted from now, forwards or backwards, and one that leaves the calendar is refused."""
    now = datetime.now(UTC)
    assert abs(values.parse_until("1h", "UNTIL") - now - timedelta(hours=1)) < timedelta(seconds=10)
    assert abs(values.shifted("1d", "--since", -1) - now + timedelta(days=1)) < timedelta(seconds=10)
    for direction in (-1, 1):
        with pytest.raises(OptionError, match="--since is '9999y', which is out of the range of dates"):
            values.shifted("9999y", "--since", direction)


@pytest.mark.parametrize("text", ["2030-13-01", "2030-01-31T25:00:00Z", "2030-", "tomorrow", ""])
def test_what_is_no_time(text: str):
    """What is neither a time nor a duration is refused as bad input."""
    with pytest.raises(InputError):
        values.parse_until(text, "UNTIL")


def test_json_files_are_read_and_written(tmp_path: Path):
    """A JSON object is read from a file; what is none, or not there, is refused; nothing is overwritten."""
    file = tmp_path / "s.json"
    values.write_json(file, {"name": "S"})
    assert values.read_json(file, "--config") == {"name": "S"}
    with pytest.raises(InputError, match="cannot be written: File exists"):
        values.write_json(file, {"name": "T"})
    assert json.loads(file.read_text()) == {"name": "S"}
    for content in (b"[1]", b"{", b"\xff\xfe{}"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=str(file)):
            values.read_json(file, "--config")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        values.read_json(tmp_path / "none", "--config")
    with pytest.raises(InputError, match="cannot be written"):
        values.write_json(tmp_path / "no" / "folder", {})


@pytest.mark.parametrize("kind", [Stream, Consumer])
def test_flags_name_fields_that_there_are(kind: type[Stream] | type[Consumer]):
    """Every field that a flag sets is one of the model."""
    flags = StreamFlags if kind is Stream else ConsumerFlags
    fields = {field_set(item) for item in dataclasses.fields(flags)} - {""}
    assert len(fields) > 20
    assert fields <= set(kind.model_fields)
