"""A day's work with streams: `penstock` in the place of `nats`."""

from __future__ import annotations

import json
import shutil
from typing import Any

import penstock
from tests.live import daily
from tests.live.inprocess import invoke


def _ours(arguments: tuple[str, ...], stdin: str, surroundings: dict[str, str]) -> tuple[int, str]:
    done = invoke(None, *arguments, stdin=stdin, **surroundings)
    assert "Traceback" not in done.stderr, done.stderr
    return done.status, done.stdout


def test_a_day_with_penstock_is_a_day_with_nats() -> None:
    """The same script leaves the same streams, consumers and messages, fails at the same lines, and prints the same
    JSON as the `nats` command, which is run beside it where it is installed and was recorded otherwise.
    """
    theirs: dict[str, Any] = json.loads(daily.RECORDED.read_text())
    if installed := shutil.which("nats"):
        theirs = daily.record(installed)
    with penstock.Server() as server:
        ours = daily.day(server.url, _ours)
    for line, printed in theirs["printed"].items():
        assert ours["printed"][line] == printed, line
    for stream, left in theirs["left"].items():
        assert ours["left"].get(stream) == left, stream
    assert [*ours["left"]] == [*theirs["left"]]
