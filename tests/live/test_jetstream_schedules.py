"""Messages that a stream publishes later: put, published, seen, taken back, and refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from penstock.connection import Connection, connect
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.jetstream import Publisher, Schedule, Schedules
from penstock.server import Server
from tests.support import eventually


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as made:
        yield made


@pytest.fixture
async def stream(nc: Connection, unique: Callable[..., str]) -> AsyncIterator[str]:
    name = unique("LATER")
    await nc.jetstream().add_stream(
        name=name, subjects=[f"{name}.>"], allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True
    )
    yield name
    await nc.jetstream().delete_stream(name)  # schedules go on for ever


async def test_the_stream_publishes_when_it_is_time(nc: Connection, stream: str):
    """A message for later, one again and again, one by cron and one of another subject come out as they were put."""
    schedules, js = Schedules(nc, stream), nc.jetstream()
    await js.publish(f"{stream}.rate", b"7", headers={"Of": "today"})
    past = datetime.now(UTC) - timedelta(days=1)
    later = Schedule.after("300ms", f"{stream}.once", ttl="1h")
    await schedules.put(f"{stream}.w.1", b"one", later, headers={"K": ["a", "b"]})
    await schedules.put(f"{stream}.w.2", b"two", Schedule.at(past, f"{stream}.past"))
    await schedules.put(f"{stream}.w.3", b"three", Schedule.every("1s", f"{stream}.every"))
    await schedules.put(f"{stream}.w.4", b"four", Schedule.cron("* * * * * *", f"{stream}.cron", zone="Asia/Tokyo"))
    await schedules.put(f"{stream}.w.5", b"five", Schedule.after(0, f"{stream}.copy", source=f"{stream}.rate"))
    async with Publisher(nc, stream) as publisher:
        await publisher.publish(f"{stream}.w.6", b"six", schedule=Schedule.after(0, f"{stream}.six"))

    async def published() -> dict[str, bytes] | None:
        found = {
            message.subject.rpartition(".")[2]: message async for message in js.get_last_msgs(stream, f"{stream}.*")
        }
        wanted = {"once", "past", "every", "cron", "copy", "six"}
        return found if found.keys() >= wanted else None

    found = await eventually(published, "what was put for later")
    assert {name: found[name].data for name in ("once", "past", "every", "cron", "copy", "six")} == {
        "once": b"one",
        "past": b"two",
        "every": b"three",
        "cron": b"four",
        "copy": b"7",
        "six": b"six",
    }
    once = found["once"].headers
    assert (once["K"], once["Nats-Scheduler"], once["Nats-TTL"]) == (["a", "b"], [f"{stream}.w.1"], ["3600000ms"])
    assert found["copy"].headers["Of"] == ["today"]
    assert sorted([item.subject async for item in schedules.pending()]) == [f"{stream}.w.3", f"{stream}.w.4"]


async def test_what_waits_is_seen_and_taken_back(nc: Connection, stream: str):
    """What waits is listed with all that was said of it, one under each subject; what is taken back does not come."""
    schedules = Schedules(nc, stream)
    at = datetime(2100, 1, 31, 12, tzinfo=UTC)
    x, target = f"{stream}.w.x", f"{stream}.t"
    await nc.jetstream().publish(target, b"no schedule")
    await schedules.put(x, b"old", Schedule.every("1h", target))
    first = await schedules.put(x, b"new", Schedule.at(at, target, ttl="1h"), headers={"K": "v"}, id="1")
    again = await schedules.put(x, b"new", Schedule.at(at, target, ttl="1h"), headers={"K": "v"}, id="1")
    assert (again.sequence, again.duplicate) == (first.sequence, True)
    await schedules.put(f"{stream}.w.y", b"", Schedule.cron("@daily", target, zone="Asia/Tokyo", rollup=True))
    found = {item.subject: item async for item in schedules.pending(f"{stream}.w.*")}
    assert found.keys() == {x, f"{stream}.w.y"}
    item, daily = found[x], found[f"{stream}.w.y"]
    assert (item.data, item.headers, item.target, item.ttl, item.at) == (b"new", {"K": ["v"]}, target, "3600000ms", at)
    assert (daily.pattern, daily.zone, daily.rollup, daily.at) == ("@daily", "Asia/Tokyo", True, None)
    assert (item.to_json()["at"], item.to_json()["data"]) == ("2100-01-31T12:00:00Z", "bmV3")
    assert await schedules.get(x) == item
    assert await schedules.cancel(x) == item
    for call in (schedules.get, schedules.cancel):
        for subject in (x, target, f"{stream}.nothing"):
            with pytest.raises(NotFoundError, match=f"Nothing waits under {subject}"):
                await call(subject)
    assert [item.subject async for item in schedules.pending()] == [f"{stream}.w.y"]
    assert (await nc.jetstream().get_last_msg(stream, target)).data == b"no schedule"


async def test_what_the_stream_does_not_take_is_not_stored(nc: Connection, stream: str, unique: Callable[..., str]):
    """What the stream or the server refuses is told with what to do, by `put` and by a publisher; nothing is stored."""
    plain = unique("PLAIN")
    await nc.jetstream().add_stream(name=plain, subjects=[plain, f"{plain}.t"])
    later = Schedule.after("1h", f"{plain}.t")
    with pytest.raises(InputError, match="takes no messages for later"):
        await Schedules(nc, plain).put(plain, b"", later)
    async with Publisher(nc, plain) as publisher:
        with pytest.raises(InputError, match="takes no messages for later"):
            await publisher.publish(plain, b"", schedule=later)
    schedules = Schedules(nc, stream)
    for subject, schedule, kind, says in (
        ("elsewhere", Schedule.after("1h", f"{stream}.t"), InputError, "does not capture the subject elsewhere"),
        (f"{stream}.w", Schedule.cron("0 0 0 30 feb *", f"{stream}.t"), JetStreamError, "come true within five years"),
        (
            f"{stream}.w",
            Schedule.cron("@daily", f"{stream}.t", zone="Mars/Base"),
            JetStreamError,
            "that the server knows",
        ),
    ):
        with pytest.raises(kind, match=says):
            await schedules.put(subject, b"", schedule)
    for name in (plain, stream):
        assert (await nc.jetstream().stream_info(name)).messages == 0
    with pytest.raises(NotFoundError, match="stream not found"):
        [item async for item in Schedules(nc, "NOWHERE").pending()]
    with pytest.raises(InputError):
        [item async for item in schedules.pending("a..b")]
