"""The load in small: each part's own checks hold, and the judgement of a soak sees what grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from tools import load_page

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


def test_the_page_gets_the_figures():
    """A part that was run has one row, in the place of an earlier one; a part that went wrong has none."""
    page = "# Load\n\n## What was measured\n\n| part | what was done | seconds |\n|---|---|---|\n\nThe end.\n"
    found = {"subjects": {"subjects": 1000, "stored_seconds": 0.25, "listed_seconds": 2.0, "took": 3.0}}
    soaked = {"rounds": {"bus": 3, "chunks": 4}, "last": {"seconds": 120.0}, "grew": {}, "took": 121.0}
    for text in (page, load_page.with_load(page, {"subjects": {**found["subjects"], "took": 9.0}})):
        made = load_page.with_load(text, {**found, "soak": soaked, "clients": {"wrong": "one is missing"}})
        rows = [line for line in made.splitlines() if line.startswith("| `")]
        assert rows == [
            "| `subjects` | 1,000 subjects, stored in 0.2 s, listed in 2.0 s | 3.0 |",
            "| `soak` | 2 minutes, 7 turns; nothing grew | 121 |",
        ]
        assert made.endswith("The end.\n")
