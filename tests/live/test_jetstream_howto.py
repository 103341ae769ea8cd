"""The page docs/howto/jetstream.md is true: every command of it runs, and what it shows is seen.

Time is compressed: a minute of the page takes a second here, ten seconds take one.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.server import Server
from tests.live.command import Command, Running
from tests.live.inprocess import invoke

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "jetstream.md"
COMPRESSED = {"60s": "1s", "2m": "2s", "10s": "1s"}
# Every command of the page that this one stands for, in its order there, `nats` written for `penstock`.
OLD_PAGE = [
    "req -H Nats-Msg-Id:1 ORDERS.new hello1",
    "req -H Nats-Msg-Id:1 ORDERS.new hello2",
    "req -H Nats-Msg-Id:1 ORDERS.new hello3",
    "req -H Nats-Msg-Id:1 ORDERS.new hello4",
    "stream info ORDERS",
    "str info ORDERS",
    "con info ORDERS DISPATCH",
    "pub ORDERS.processed 'order 4'",
    "str info ORDERS",
    "con next ORDERS DISPATCH",
    "con info ORDERS DISPATCH",
    "pub ORDERS.processed 'order 5'",
    "consumer next ORDERS DISPATCH --no-ack",
    "consumer info ORDERS DISPATCH",
    "consumer next ORDERS DISPATCH --no-ack",
    "consumer info ORDERS DISPATCH",
    "consumer next ORDERS DISPATCH",
    "consumer info ORDERS DISPATCH",
    "consumer add ORDERS ALL --pull --filter ORDERS.processed --ack none --replay instant --deliver all",
    "consumer next ORDERS ALL",
    "consumer add ORDERS LAST --pull --filter ORDERS.processed --ack none --replay instant --deliver last",
    "consumer next ORDERS LAST",
    "consumer add ORDERS TEN --pull --filter ORDERS.processed --ack none --replay instant --deliver 10",
    "consumer next ORDERS TEN",
    "stream purge ORDERS",
    "consumer add ORDERS 2MIN --pull --filter ORDERS.processed --ack none --replay instant --deliver 2m",
    "consumer next ORDERS 2MIN",
    "sub my.monitor",
    "consumer add ORDERS --filter '' --ack none --target 'my.monitor' --deliver last --replay instant --ephemeral",
    "consumer add ORDERS REPLAY --target out.original --filter ORDERS.processed --ack none --deliver all --sample 100 "
    "--replay original",
]


def blocks() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"```(sh|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def commands() -> list[str]:
    return [line for kind, block in blocks() if kind == "sh" for line in block.splitlines()]


def squeezed(text: str) -> str:
    """One space for many, so that a page need not keep the columns of a table."""
    return " ".join(text.split())


def test_the_page_has_every_command_of_the_old_one():
    """The commands of the old page are on this one, in the same order, with `penstock` for `nats`."""
    ours = [shlex.split(line)[1:] for line in commands()]
    place = 0
    for old in OLD_PAGE:
        wanted = shlex.split(old)
        found = next((number for number in range(place, len(ours)) if ours[number] == wanted), None)
        assert found is not None, f"{old} is not on the page after command {place}"
        place = found + 1


class Walk:
    """Runs the commands of the page, and keeps what they said for the block that follows."""

    def __init__(self, url: str, home: Path, stack: ExitStack) -> None:
        self.url, self.stack = url, stack
        self.child = Command(home, url)
        self.monitor: Running | None = None
        self.ephemeral: str | None = None
        self.said = ""

    def run(self, line: str) -> None:
        words = [COMPRESSED.get(word, word) for word in shlex.split(line)]
        assert words[0] == "penstock"
        if words[1:3] == ["sub", "my.monitor"]:
            self.monitor = self.stack.enter_context(self.child.running(*words[1:]))
            self.monitor.wait_for("Subscribing on")
        elif words[1:3] == ["sub", "-t"]:
            self.replay(words[1:])
        elif words[1:3] == ["consumer", "ls"]:
            self.leave(words[1:])
        else:
            done = invoke(self.url, *words[1:], stdin="y\n")
            assert done.status == 0, f"{line}: {done.stderr}"
            self.said += done.stdout

    def leave(self, words: list[str]) -> None:
        """The monitor sees the last order; when it leaves, its consumer goes by itself."""
        assert self.monitor is not None
        self.monitor.wait_for("order 3")
        assert len(invoke(self.url, *words).stdout.split()) == 5
        assert self.monitor.interrupt() == 0
        deadline = time.monotonic() + 30
        while len((done := invoke(self.url, *words)).stdout.split()) > 4:
            assert time.monotonic() < deadline, "the ephemeral consumer stays"
            time.sleep(0.2)
        self.said = done.stdout

    def replay(self, words: list[str]) -> None:
        """The messages arrive at the pace at which they were stored, a second apart here."""
        with self.child.running(*words) as sub:
            times = []
            for number in (1, 2, 3):
                sub.wait_for(f"order {number}")
                times.append(time.monotonic())
            self.said = "\n".join(sub.rest())
        assert times[1] - times[0] > 0.5
        assert times[2] - times[1] > 0.5

    def expect(self, block: str) -> None:
        """Everything that the page shows was said, in that order."""
        said = squeezed(self.said)
        for line in block.splitlines():
            wanted = squeezed(line)
            place = said.find(wanted)
            assert place >= 0, f"{wanted!r} is not in what was said: {said}"
            said = said[place + len(wanted) :]


@pytest.mark.timeout(180)
def test_the_page_is_true(tmp_path: Path):
    """Every command of the page runs, from the first to the last, and shows what the page says."""
    shown = 0
    with Server(sync="2m") as server, ExitStack() as stack:
        walk = Walk(server.url, tmp_path, stack)
        for number, (kind, block) in enumerate(blocks()):
            if kind == "sh":
                walk.said = ""
                for line in block.splitlines():
                    walk.run(line)
            elif walk.said and "length (4)" not in block and number > 0:
                walk.expect(block)
                shown += 1
    assert shown >= 20
