"""The queue of a gateway's requests: their order, publishes together, and what holds the senders back."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.channels_sets import FORMS


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    """The modules, compiled and plain."""
    return request.param


def queue_of(form: Any) -> Any:
    return form.arrivals.RequestQueue(1000, lambda call: call())


async def handle(service, reply, content) -> None:
    raise AssertionError("nothing is handled here")


async def test_requests_keep_their_order(form):
    """Publishes that stand in front are taken together, as many as are wanted; everything else one at a time."""
    queue = queue_of(form)
    for content in (b"1", b"2", b"3"):
        queue.put(None, b"r", content)
    queue.put(handle, b"s", b"close")
    queue.put(None, b"r", b"4")
    await queue.arrival()
    assert queue.take_publishes(2) == [(b"r", b"1"), (b"r", b"2")]
    assert queue.take_publishes(2) == [(b"r", b"3")]
    assert queue.take_publishes(2) == [], "a request stands in front of the rest"
    assert queue.take() == (handle, b"s", b"close")
    assert queue.take_publishes(2) == [(b"r", b"4")]


async def test_nobody_is_answered_on_a_subject_of_jetstream(form):
    """A request that wants its answer on a reserved subject is handled, and not answered; a publish, too."""
    queue = queue_of(form)
    queue.publish(b"_STAN.pub.c.foo", b"$JS.API.STREAM.PURGE.S", b"1", None)
    queue.publish(b"_STAN.pub.c.foo", b"_INBOX.$", b"2", None)
    queue.put(handle, b"$SYS.x", b"close")
    assert queue.take_publishes(9) == [(b"", b"1"), (b"_INBOX.$", b"2")]
    assert queue.take() == (handle, b"", b"close")


async def test_whoever_waits_for_a_request_gets_one(form):
    """An arrival is waited for as long as there is none, and not missed where it came before."""
    queue = queue_of(form)
    waiting = asyncio.ensure_future(queue.arrival())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.put(None, b"", b"x")
    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(queue.arrival(), 5)
    queue.take()
    again = asyncio.ensure_future(queue.arrival())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


@pytest.mark.parametrize("release", [False, True])
async def test_a_full_queue_holds_the_senders_back(form, release):
    """Beyond its bound of bytes the queue wants to be waited for, until half of it was taken, or for good."""
    queue = queue_of(form)
    held = []
    while not held:
        wait = queue.put(handle, b"", b"x" * 100)
        if wait is not None:
            assert inspect.iscoroutine(wait)
            held.append(asyncio.ensure_future(wait))
    await asyncio.sleep(0)
    queue.take()
    await asyncio.sleep(0)
    assert not held[0].done(), "one less is not room enough"
    if release:
        queue.release()
    else:
        for _ in range(4):
            queue.take()
    await asyncio.wait_for(held[0], 5)


async def test_empty_requests_count_too(form):
    """Requests without content fill the queue as well: each costs something."""
    queue = queue_of(form)
    waits = [queue.put(handle, b"", b"") for _ in range(20)]
    assert any(waits)
    queue.release()
    await asyncio.gather(*filter(None, waits))
