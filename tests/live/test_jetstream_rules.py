"""Our rules of streams and consumers, asked of the real server: it refuses what we refuse, we take what it takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.connection import Connection, api_request
from penstock.errors import InputError, JetStreamError
from penstock.jetstream import assets
from penstock.jetstream.rules import check_consumers_together, check_streams_together
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.pure.test_jetstream_rules import (
    IMPOSSIBLE_CONSUMERS,
    IMPOSSIBLE_STREAMS,
    ORDERS,
    POSSIBLE_CONSUMERS,
    POSSIBLE_STREAMS,
    QUEUE,
    UNFIT_CONSUMERS,
)


@pytest.fixture(scope="module")
def lone() -> Any:
    """A server of its own: the rules name subjects that other tests use, and even all of them."""
    with Server(sync="2m") as running:
        yield running


async def _takes_stream(nc: Connection, stream: Stream) -> bool:
    try:
        await api_request(nc, f"STREAM.CREATE.{stream.name}", stream.to_json(), again=True, patience=2.0)
    except JetStreamError:
        return False
    await api_request(nc, f"STREAM.DELETE.{stream.name}")
    return True


async def _takes_consumer(nc: Connection, stream: str, fields: dict[str, Any], name: str = "c") -> bool:
    body = {"stream_name": stream, "config": Consumer(durable=name, **fields).to_json()}
    try:
        await api_request(nc, f"CONSUMER.CREATE.{stream}.{name}", body)
    except JetStreamError:
        return False
    await api_request(nc, f"CONSUMER.DELETE.{stream}.{name}")
    return True


async def test_the_server_has_our_rules(lone: Server):
    """Each stream and each consumer that a rule of ours refuses, the server refuses; none that it takes is refused."""
    async with await penstock.connect(lone.url) as nc:
        refused = [item for item, _ in IMPOSSIBLE_STREAMS if await _takes_stream(nc, Stream(name="S", **item))]
        assert refused == [], "we refuse these streams, and the server takes them"
        taken = [item for item in POSSIBLE_STREAMS if not await _takes_stream(nc, Stream(name="S", **item))]
        assert taken == [], "we take these streams, and the server refuses them"
        for stream in (ORDERS, QUEUE):
            await nc.jetstream().add_stream(stream)
        refused = [item for item, _ in IMPOSSIBLE_CONSUMERS if await _takes_consumer(nc, "ORDERS", item)]
        refused += [item for stream, item, _ in UNFIT_CONSUMERS if await _takes_consumer(nc, stream.name, item)]
        assert refused == [], "we refuse these consumers, and the server takes them"
        taken = [item for item in POSSIBLE_CONSUMERS if not await _takes_consumer(nc, "ORDERS", item)]
        assert taken == [], "we take these consumers, and the server refuses them"


async def test_a_stream_is_made_while_the_last_one_goes(lone: Server):
    """The server removes an account's folders behind its last stream: whoever makes the next one meanwhile gets it."""
    async with await penstock.connect(lone.url) as nc:
        for info in await assets.streams(nc):
            await nc.jetstream().delete_stream(info.name)
        await nc.jetstream().add_stream(name="S-0")
        for number in range(200):
            going = nc.jetstream().delete_stream(f"S-{number}")
            await asyncio.gather(going, nc.jetstream().add_stream(name=f"S-{number + 1}"))


PATTERNS = ["a.>", "a.*", "a.b", "a.*.c", "a.b.*", "b.>", "a.b.c"]


def _allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except InputError:
        return False
    return True


async def test_the_server_draws_the_same_lines(lone: Server):
    """Two streams may have these subjects, and two consumers of a work queue these filters, with us as with it."""
    async with await penstock.connect(lone.url) as nc:
        for left in PATTERNS:
            one = Stream(name="ONE", subjects=[left])
            await api_request(nc, "STREAM.CREATE.ONE", one.to_json())
            for right in PATTERNS:
                other = Stream(name="OTHER", subjects=[right])
                ours = _allowed(lambda pair=[one, other]: check_streams_together(pair))
                assert await _takes_stream(nc, other) is ours, (left, right)
            await api_request(nc, "STREAM.DELETE.ONE")
        queue = Stream(name="LINES", subjects=["lines"], retention="workqueue")
        await api_request(nc, "STREAM.CREATE.LINES", queue.to_json())
        for left, right in itertools.product([*PATTERNS, None], repeat=2):
            first = Consumer(durable="one", filter_subject=left)
            await api_request(nc, "CONSUMER.CREATE.LINES.one", {"stream_name": "LINES", "config": first.to_json()})
            second = Consumer(durable="c", filter_subject=right)
            ours = _allowed(lambda pair={"a": first, "b": second}: check_consumers_together(queue, pair))
            assert await _takes_consumer(nc, "LINES", {"filter_subject": right}) is ours, (left, right)
            await api_request(nc, "CONSUMER.DELETE.LINES.one")
