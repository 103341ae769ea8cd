"""A fault in what runs on the side is told to whoever waits: nobody waits for ever, and nothing ends unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.buckets import KeyValue
from penstock.buckets import watch as watch_module
from penstock.connection import Connection
from penstock.connection.tasks import end, heed
from penstock.errors import PenstockError
from penstock.jetstream import Deliveries, Worker, assets
from penstock.jetstream.deadletter import DeadLetters
from penstock.model import Consumer, Stream
from penstock.survey import Survey
from penstock.survey import survey as survey_module
from penstock.wire.jetstream.pull import Pulls
from tests.support import eventually

Make = Callable[[], Awaitable[str]]


def broken(*given: Any, **more: Any) -> Any:
    raise RuntimeError("a fault of ours")


async def broken_later(*given: Any, **more: Any) -> Any:
    raise RuntimeError("a fault of ours")


@pytest.fixture
def stream(nc: Connection, unique: Callable[..., str]) -> Make:
    """Make an empty stream with a consumer `c`, and give its name."""

    async def make() -> str:
        name = unique("FT")
        await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
        await assets.add_consumer(nc, name, Consumer(durable="c", max_deliver=1))
        return name

    return make


async def test_who_waits_for_deliveries_hears_of_a_fault(nc: Connection, stream: Make, monkeypatch: pytest.MonkeyPatch):
    """What looks after the pulling is needed: without it a silence would be noticed by nobody."""
    async with asyncio.timeout(20), Deliveries(nc, await stream(), "c") as deliveries:
        monkeypatch.setattr(Pulls, "is_in_trouble", broken)
        with pytest.raises(PenstockError, match=r"consumer c of .* failed: RuntimeError"):
            await anext(deliveries)


async def test_a_worker_whose_dead_letters_are_not_collected_ends(
    nc: Connection, stream: Make, monkeypatch: pytest.MonkeyPatch
):
    """A worker that promises dead letters does not go on without them."""
    name = await stream()
    monkeypatch.setattr(DeadLetters, "collect", broken_later)
    worker = Worker(nc, name, "c", broken_later, dead_letters=f"{name}-DEAD")
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await worker.run()


async def test_who_watches_a_bucket_hears_of_a_fault(
    nc: Connection, unique: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    """A watch that cannot notice a purge any more ends, instead of giving changes as if all were well."""
    bucket = await KeyValue.create_bucket(nc, unique("b"))
    await bucket.put("a", b"1")
    monkeypatch.setattr(watch_module, "_LOOK", 0.05)
    async with asyncio.timeout(20), bucket.watch() as watch:
        await anext(watch)
        monkeypatch.setattr(assets, "stream_info", broken_later)
        with pytest.raises(PenstockError, match=r"watch of bucket .* failed: RuntimeError"):
            await anext(watch)


async def test_a_survey_that_ends_is_in_the_log(
    nc: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Figures that stay as they are are told of, and nobody waits for newer ones until somebody begins it again."""

    async def client() -> Connection:
        return nc

    survey = Survey(client)
    monkeypatch.setattr(survey, "_publish", broken)
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError):
        async with asyncio.timeout(20):
            await survey.run()
    assert "its figures stay as they are" in caplog.text
    assert survey_module.log.name in {record.name for record in caplog.records}
    for wait in (survey.next, survey.fresh):
        with pytest.raises(PenstockError, match="The survey ended"):
            await asyncio.wait_for(wait(), 20)
    monkeypatch.undo()
    again = asyncio.create_task(survey.run())
    await asyncio.sleep(0)  # so that it has begun
    for wait in (survey.next, survey.fresh):
        assert (await asyncio.wait_for(wait(), 20)).number > 0
    await end([again])


async def test_only_a_fault_is_told():
    """A task that ends well, or is cancelled, has no fault; nor has one whose last words fail when it is cancelled."""

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            broken()

    told: list[BaseException] = []
    loop = asyncio.get_running_loop()
    made = [loop.create_task(work) for work in (asyncio.sleep(0), asyncio.Event().wait(), last_words(), broken_later())]
    for task in made:
        heed(task, told.append)
    await eventually(lambda: made[0].done() and made[3].done(), "what ends by itself")
    await end(made)
    assert [str(error) for error in told] == ["a fault of ours"]
    assert told[0] is made[3].exception()
