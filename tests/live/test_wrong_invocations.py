"""Two hundred ways to use the command wrongly."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.live.inprocess import Peer, invoke

LIST = Path(__file__).parents[1] / "golden" / "wrong.txt"
NOBODY = "nats://127.0.0.1:1"


def _listed(status: str) -> list[str]:
    return [line[2:] for line in LIST.read_text().splitlines() if line.startswith(f"{status} ")]


@pytest.fixture(scope="module")
def busy_server() -> Iterator[str]:
    """A server with a stream, and with one that is sealed."""
    with penstock.Server() as server:
        peer = Peer(server.url)
        try:
            jetstream = peer.client.jetstream()
            peer.do(jetstream.add_stream(penstock.model.Stream(name="ORDERS", subjects=["orders.>"])))
            peer.do(jetstream.publish("orders.new", b"one"))
            peer.do(jetstream.add_stream(penstock.model.Stream(name="LOCKED", subjects=["locked.>"])))
            peer.do(jetstream.publish("locked.a", b"one"))
            assert invoke(server.url, "stream", "seal", "LOCKED", "--force").status == 0
            assert invoke(server.url, "consumer", "add", "ORDERS", "READ", "--pull", "--defaults").status == 0
            yield server.url
        finally:
            peer.close()


def _one_sentence(said: str) -> bool:
    return re.fullmatch(r"penstock: [^\n]+[.?!)`]\n", said) is not None and "Traceback" not in said


@pytest.mark.parametrize("arguments", _listed("2"))
def test_bad_input_is_told_before_any_work(arguments: str) -> None:
    """Bad input gets one sentence and status 2, and no server is asked: there is none here."""
    done = invoke(NOBODY, *shlex.split(arguments))
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert _one_sentence(done.stderr), done.stderr


@pytest.mark.parametrize("arguments", _listed("1"))
def test_a_failure_is_told_in_a_sentence(busy_server: str, arguments: str) -> None:
    """What a server refuses, or has not got, gets one sentence and status 1."""
    done = invoke(busy_server, *shlex.split(arguments))
    assert (done.status, done.stdout) == (1, ""), done.stderr
    assert _one_sentence(done.stderr), done.stderr


@pytest.mark.parametrize("arguments", _listed("+"))
def test_bad_input_that_the_server_shows_changes_nothing(busy_server: str, arguments: str) -> None:
    """Bad input that only shows when the server is asked is status 2 as well; a question may stand before the sentence."""
    done = invoke(busy_server, *shlex.split(arguments))
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert _one_sentence(done.stderr.splitlines(keepends=True)[-1]), done.stderr


def test_there_are_two_hundred() -> None:
    """The list is as long as it is said to be, and has each line once."""
    every = [line for status in "12+" for line in _listed(status)]
    assert len(every) == len({*every}) >= 200
