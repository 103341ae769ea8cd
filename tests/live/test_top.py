"""`penstock top` on a real terminal, beside a real server, and into a pipe."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.connection import connect
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.command import Command, environment
from tests.live.terminal import Terminal, terminal

FAST = ("--interval", "300ms")


@pytest.fixture(scope="module")
def busy() -> Iterator[Server]:
    """A server with two streams, one of them with a consumer that is paused and far behind."""

    async def fill(url: str) -> None:
        async with await connect(url) as client:
            for name, count in (("ORDERS", 300), ("EMPTY", 0)):
                await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
                for _ in range(count):
                    await client.publish(f"{name}.x", b"payload")
            await client.flush()
            await assets.add_consumer(client, "ORDERS", Consumer(durable="behind"))
            await assets.add_consumer(client, "ORDERS", Consumer(durable="fresh", deliver_policy="new"))

    with Server(sync="2m") as server:
        asyncio.run(fill(server.url))
        yield server


@pytest.fixture
def env(busy: Server, tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path, NATS_URL=busy.url)


def fits(shown: Terminal) -> bool:
    return all(len(line) <= shown.width for line in shown.lines)


@pytest.mark.parametrize("width", [80, 120])
def test_it_shows_streams_and_consumers_and_obeys_keys(env: dict[str, str], width: int):
    """Views, order, filter and help fit the terminal; q ends it with 0, and the terminal is as before."""
    with terminal(env, "top", *FAST, width=width) as shown:
        before = shown.mode()
        shown.see("ORDERS").see("EMPTY").see("q quit")
        assert shown.other
        assert fits(shown)
        head = next(line for line in shown.lines if "Messages" in line)
        assert all(word in head for word in ("Stream", "Msgs/s", "Trend", "Last"))
        assert any("ORDERS" in line and "300" in line for line in shown.lines)
        shown.press("c")
        shown.see("ORDERS › behind").see("[consumers]")
        rows = [line for line in shown.lines[4:] if "›" in line]  # a trouble may stand above them
        assert "behind" in rows[0], "the furthest behind first"
        shown.press("r")
        shown.wait(lambda it: "fresh" in next((line for line in it.lines[4:] if "› " in line), ""))
        shown.press("/fre\r")
        shown.wait(lambda it: not any("behind" in line for line in it.lines[4:]))
        shown.press("\x1b")
        shown.wait(lambda it: any("› behind" in line for line in it.lines[4:]))
        shown.press("s1")
        shown.see("by name, rising")
        shown.resize(40, 10)
        shown.wait(lambda it: fits(it) and any("ORDERS" in line for line in it.lines))
        shown.press("q")
        assert shown.end() == 0
        assert not shown.other
        assert "\x1b[?25h" in shown.raw, "the cursor is back"
        assert shown.mode() == before


def test_trouble_is_on_the_screen(env: dict[str, str], busy: Server):
    """A consumer that is paused with messages waiting has a sign and a sentence."""

    async def pause(until: bool) -> None:
        from datetime import UTC, datetime, timedelta

        async with await connect(busy.url) as client:
            end = datetime.now(UTC) + timedelta(hours=1) if until else None
            await assets.pause_consumer(client, "ORDERS", "behind", end)

    asyncio.run(pause(True))
    try:
        with terminal(env, "top", "trouble", *FAST) as shown:
            shown.see("is paused")
            assert any("ORDERS › behind" in line for line in shown.lines[1:2])
            shown.press("c")
            shown.wait(lambda it: any(line.startswith("~ ORDERS › behind") for line in it.lines))
            shown.press("q")
            assert shown.end() == 0
    finally:
        asyncio.run(pause(False))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_when_told(env: dict[str, str], number: signal.Signals):
    """Ctrl-C and SIGTERM give the terminal back, without a word."""
    with terminal(env, "top", *FAST) as shown:
        before = shown.mode()
        shown.see("ORDERS")
        if number is signal.SIGINT:
            shown.process.send_signal(number)
        else:
            shown.process.terminate()
        assert shown.end() == 0
        assert not shown.other
        assert shown.mode() == before
        assert "Traceback" not in shown.raw


def test_a_crash_gives_the_terminal_back(env: dict[str, str], tmp_path: Path):
    """If drawing fails, the screen, the cursor and the keys are as before, and the error is told after that."""
    (tmp_path / "sitecustomize.py").write_text(
        "import penstock.cli.top as top\n"
        "draw, calls = top._picture, []\n"
        "def broken(*about):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 2: raise RuntimeError('a mistake')\n"
        "    return draw(*about)\n"
        "top._picture = broken\n"
    )
    path = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    with terminal({**env, "PYTHONPATH": path}, "top", *FAST) as shown:
        before = shown.mode()
        status = shown.end()
        assert status == 1
        assert not shown.other
        assert shown.mode() == before
        ends = shown.raw.rindex("\x1b[?1049l")
        assert "a mistake" in shown.raw[ends:]


def test_without_colour_no_colour_is_sent(env: dict[str, str]):
    """NO_COLOR leaves no colour in what is drawn; without it there is some."""
    with terminal(env, "top", "--max-refresh", "2", *FAST) as shown:
        assert shown.end() == 0
        assert not any(f"\x1b[{code}m" in shown.raw for code in (31, 33, "1;31"))


def test_a_pipe_and_once_get_tables_and_an_end(busy: Server, tmp_path: Path):
    """Into a pipe it prints tables with rates, and ends; --json is for programs; sorting and filtering hold there."""
    command = Command(tmp_path, busy.url)
    done = command("top", *FAST)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ORDERS" in done.stdout
    assert "\x1b" not in done.stdout
    assert "behind" in done.stdout
    some = command("top", "--filter", "order", "--sort", "name", *FAST)
    assert "EMPTY" not in some.stdout
    told = json.loads(command("top", "--json", *FAST).stdout)
    assert {item["name"] for item in told["streams"]} == {"ORDERS", "EMPTY"}
    assert told["covered"]["rounds"] >= 2


def test_names_cannot_draw(env: dict[str, str], busy: Server, unique: Callable[..., str]):
    """A description or a name that holds controls is shown with signs for them."""
    name = f"bad\u202e{unique()}"

    async def work(make: bool) -> None:
        async with await connect(busy.url) as client:
            if make:
                await assets.add_stream(client, Stream(name=name, subjects=[unique()]))
            else:
                await assets.delete_stream(client, name)

    asyncio.run(work(True))
    try:
        with terminal(env, "top", "--filter", "bad", *FAST) as shown:
            shown.see("bad\\u202e")
            shown.press("q")
            assert shown.end() == 0
            assert "\u202e" not in shown.raw
    finally:
        asyncio.run(work(False))


def test_without_a_server_it_is_one_sentence(tmp_path: Path):
    """Nobody there: one sentence, status 1, and no other screen."""
    with terminal(environment(tmp_path, NATS_URL="nats://127.0.0.1:1"), "top", width=120) as shown:
        assert shown.end() == 1
        assert "?1049" not in shown.raw
        assert "penstock: " in shown.raw
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "top", "--once"],
        env=environment(tmp_path, NATS_URL="nats://127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_on_hold_it_draws_only_what_happens(env: dict[str, str], tmp_path: Path):
    """A picture that is held stays until it is let go, and is drawn for each look and each key, not all the time."""
    drawn = tmp_path / "drawn"
    (tmp_path / "sitecustomize.py").write_text(
        "import penstock.cli.top as top\n"
        "draw = top._picture\n"
        "def noted(survey, shown, view, *about):\n"
        "    if view.frozen:\n"
        f"        with open({str(drawn)!r}, 'a') as file: print(survey.snapshot.number, shown.number, file=file)\n"
        "    return draw(survey, shown, view, *about)\n"
        "top._picture = noted\n"
    )

    def held() -> list[list[int]]:
        lines = drawn.read_text().splitlines() if drawn.exists() else []
        return [[int(word) for word in line.split()] for line in lines]

    path = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    with terminal({**env, "PYTHONPATH": path}, "top", *FAST) as shown:
        shown.see("ORDERS")
        shown.press(" ")
        shown.see("on hold")
        shown.wait(lambda it: len({newest for newest, _ in held()}) > 3)
        shown.press(" ")
        shown.wait(lambda it: not any("on hold" in line for line in it.lines))
        shown.press("q")
        assert shown.end() == 0
    assert len({old for _, old in held()}) == 1, "what is shown stays"
    counts = Counter(newest for newest, _ in held())
    assert max(counts.values()) <= 3, "once for the look, once for a key"
