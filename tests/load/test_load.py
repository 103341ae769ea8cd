"""The load in small: each part's own checks hold, and the judgement of a soak sees what grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from penstock.server import Server
from tests.load import parts
from tests.load.samples import ALLOWED, Sample, growth, picture
from tests.load.soak import TURNS, soak


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server that nobody else fills."""
    with Server(sync="2m") as running:
        yield running


async def test_requests_at_once(own: Server):
    """Each of many requests at once has its own answer."""
    assert (await parts.requests(own, 50))["requests"] == 50


async def test_clients_of_channels(own: Server):
    """Each of many clients gets every message of a channel, in order."""
    assert (await parts.clients(own, 10))["clients"] == 10


async def test_consumers(own: Server):
    """Many consumers are made, listed and read, and none is left."""
    assert (await parts.consumers(own, 60))["left"] == 0


def test_subjects(own: Server):
    """Each of many subjects is listed, and read by its name."""
    assert parts.subjects(own, 2000)["subjects"] == 2000


async def test_a_soak(own: Server):
    """Every kind of traffic goes round, and what was held while it did is drawn."""
    samples, rounds = await soak(own, 1.0, looks=6)
    assert rounds.keys() == TURNS.keys()
    drawn = picture("A soak", samples)
    assert drawn.count("<polyline") == len(fields(Sample)) - 1
    assert not re.search(r"nan|inf", drawn)


@pytest.mark.parametrize("name", ALLOWED)
def test_what_grows_is_seen(name: str):
    """A figure that goes up all the time is named; one that goes up and down, or rises at the start, is not."""
    flat = Sample(0.0, *[100.0] * (len(fields(Sample)) - 1))
    steady = [replace(flat, seconds=float(second), **{name: 100.0 + second % 3}) for second in range(60)]
    early = [replace(flat, seconds=float(second), **{name: 100.0 * min(second, 10)}) for second in range(60)]
    leaking = [replace(flat, seconds=float(second), **{name: 100.0 + 10 * second}) for second in range(60)]
    assert growth(steady) == growth(early) == {}
    assert growth(leaking).keys() == {name}
