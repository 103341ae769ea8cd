"""Schedules: what the server can read is made, and what it cannot is refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.jetstream import Outgoing, Schedule
from penstock.jetstream.schedule import check_taken
from penstock.model import Stream


def test_what_a_schedule_says_to_the_server():
    """Times are RFC 3339 in UTC, intervals have no unit that Go does not know, and only what is said is sent."""
    zone = timezone(timedelta(hours=2))
    assert Schedule.at(datetime(2026, 1, 31, 12, tzinfo=zone), "t").headers() == {
        "Nats-Schedule": "@at 2026-01-31T10:00:00Z",
        "Nats-Schedule-Target": "t",
    }
    assert Schedule.at("2026-01-31T10:00:00.5Z", "t").pattern == "@at 2026-01-31T10:00:00.500000Z"
    assert Schedule.every("1d2h", "t").pattern == "@every 26h0m0s"
    assert Schedule.every(1.5, "t").pattern == "@every 1.5s"
    whole = Schedule.cron(" 0 30 9  * * mon-fri ", "t", source="s", ttl="1m", zone="Europe/Berlin", rollup=True)
    assert whole.headers() == {
        "Nats-Schedule": "0 30 9 * * mon-fri",
        "Nats-Schedule-Target": "t",
        "Nats-Schedule-Source": "s",
        "Nats-Schedule-TTL": "60000ms",
        "Nats-Schedule-Time-Zone": "Europe/Berlin",
        "Nats-Schedule-Rollup": "sub",
    }
    assert Outgoing("w", b"x", schedule=whole, headers={"K": "v"}).wire_headers("1") == {
        "K": "v",
        "Nats-Msg-Id": "1",
        **whole.headers(),
    }


def test_a_delay_is_counted_from_now():
    """`after` names the time that is so far away."""
    before = datetime.now(UTC)
    pattern = Schedule.after("10m", "t").pattern
    due = datetime.fromisoformat(pattern.removeprefix("@at "))
    assert before + timedelta(minutes=10) <= due <= datetime.now(UTC) + timedelta(minutes=10)


@pytest.mark.parametrize(
    "pattern",
    ["@daily", "* * * * * *", "*/5 0-30/2 ? 1,15 jan-mar,DEC *", "59 59 23 31 12 6", "0 0 0 1 1 sun"],
)
def test_cron(pattern: str):
    """What the server's cron takes."""
    assert Schedule.cron(pattern, "t").pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("0 9 * * mon", "has five fields, and the server's cron begins with seconds. Write 0 0 9"),
        ("* * * *", "is not a schedule"),
        ("", "is not a schedule"),
        ("@fortnightly", "is not known to the server"),
        ("60 * * * * *", "has the second '60'"),
        ("* * * 0 * *", "has the day of the month '0'"),
        ("* * * * 13 *", "has the month '13'"),
        ("* * * * * 7", "has the day of the week '7'"),
        ("* * * * * fri-mon", "has the day of the week"),
        ("*/0 * * * * *", "has the second"),
        ("1--2 * * * * *", "has the second"),
        (", * * * * *", "has the second"),
        ("x * * * * *", "has the second"),
        ("@every 500ms", "shorter than the server's shortest"),
        ("@every 1d", "has a unit that the server does not know"),
        ("@every 1000000h", "longer than a century"),
        ("@every soon", "not a duration"),
        ("@at tomorrow", "names no time"),
        ("@at 2026-01-31T10:00:00", "names no time"),
        ("@at 2300-01-31T10:00:00Z", "too late for the server"),
    ],
)
def test_patterns_that_the_server_cannot_read(pattern: str, says: str):
    """Each is refused with what to write instead."""
    with pytest.raises(InputError, match=says):
        Schedule(pattern, "t")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Schedule.after("1s", "t.*"), "target 't.*' of a schedule has a wildcard"),
        (lambda: Schedule.after("1s", ""), "target '' of a schedule is empty"),
        (lambda: Schedule.after("1s", "t", source="s.>"), "source 's.>' of a schedule has a wildcard"),
        (lambda: Schedule.after("1s", "t", source="t"), "t as source and target"),
        (lambda: Schedule.after("1s", "t", ttl="10ms"), "shortest is a second"),
        (lambda: Schedule.after("1s", "t", zone="UTC"), "A zone is for cron"),
        (lambda: Schedule.after("9999y", "t"), "before 2262"),
        (lambda: Schedule.after("99999y", "t"), "too long"),
        (lambda: Schedule.at(datetime(2026, 1, 1), "t"), "has no zone"),
        (lambda: Schedule.cron("@daily", "t", zone="Mars Base"), "is not a time zone"),
        (lambda: Outgoing("t", schedule=Schedule.after("1s", "t")), "which is its target, too"),
        (lambda: Outgoing("s", schedule=Schedule.after("1s", "t", source="s")), "which is its source, too"),
        (
            lambda: Outgoing("w", schedule=Schedule.after("1s", "t"), headers={"Nats-Schedule-TTL": "1s"}),
            "given beside a schedule",
        ),
    ],
)
def test_schedules_that_say_what_cannot_be(make: Any, says: str):
    """A schedule is checked when it is made, and with the message that has it."""
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize(
    ("schedule", "stream", "says"),
    [
        (Schedule.after("1s", "a.t"), {"allow_msg_schedules": False}, "takes no messages for later.*--allow-schedules"),
        (Schedule.after("1s", "t"), {}, "does not capture t, the target"),
        (Schedule.after("1s", "a.t", source="s"), {}, "does not capture s, the source"),
        (Schedule.after("1s", "a.t", ttl="1h"), {}, "takes no TTL .*--allow-msg-ttl"),
        (Schedule.every("1s", "a.t"), {"metadata": {"_nats.level": "2"}}, "need nats-server 2.14"),
        (Schedule.after("1s", "a.t", source="a.s"), {"metadata": {"_nats.level": "3"}}, "need nats-server 2.14"),
    ],
)
def test_what_a_stream_does_not_take(schedule: Schedule, stream: dict[str, Any], says: str):
    """A stream that would refuse a schedule, or pass over a part of it, is known before anything is sent."""
    fields: dict[str, Any] = {"name": "S", "subjects": ["a.>"], "allow_msg_schedules": True}
    with pytest.raises(InputError, match=says):
        check_taken(schedule, "a.w", Stream(**fields | stream))
    check_taken(Schedule.after("1s", "a.t"), "a.w", Stream(**fields, metadata={"_nats.level": "2"}))
