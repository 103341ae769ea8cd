"""What is newer than this version: read, shown, edited and copied, with nothing lost and nothing fatal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.server import Server
from tests.live.inprocess import Done, Peer, invoke

CONFIG = {
    "name": "NEW",
    "subjects": ["new"],
    "retention": "of_tomorrow",
    "storage": "tape",
    "max_msgs": -1,
    "num_replicas": 1,
    "compression": "zstd",
    "consumer_limits": {"inactive_threshold": 10**9, "of_tomorrow": "much"},
    "sources": [{"name": "O", "speed": 9}],
    "placement": {"cluster": "east", "zone": "z1"},
    "of_tomorrow": {"a": [1]},
}
STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 1}
INFO = {"config": CONFIG, "state": STATE, "created": "2026-01-01T00:00:00Z", "of_tomorrow": True}
CONSUMER = {
    "stream_name": "NEW",
    "name": "c",
    "config": {"durable_name": "c", "ack_policy": "of_tomorrow", "deliver_policy": "all", "of_tomorrow": 1},
    "created": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def tomorrow(server: Server, unique: Callable[..., str]) -> Iterator[tuple[Callable[..., Done], list[Any]]]:
    """A JetStream of tomorrow, as far as these commands ask it, and what it was asked to store."""
    prefix, peer = unique("tomorrow"), Peer(server.url)
    answers: dict[str, Any] = {
        "STREAM.INFO.NEW": INFO,
        "STREAM.LIST": {"streams": [INFO], "total": 1},
        "STREAM.UPDATE.NEW": INFO,
        "STREAM.CREATE.COPY": INFO,
        "CONSUMER.LIST.NEW": {"consumers": [CONSUMER], "total": 1},
        "CONSUMER.INFO.NEW.c": CONSUMER,
    }
    with ExitStack() as stack:
        heard = {
            method: stack.enter_context(peer.listening(f"{prefix}.{method}", json.dumps(answer).encode()))
            for method, answer in answers.items()
        }

        def run(*arguments: str) -> Done:
            done = invoke(server.url, *arguments, "--js-api-prefix", prefix)
            assert done.status == 0, done.stderr
            return done

        yield run, [heard["STREAM.UPDATE.NEW"], heard["STREAM.CREATE.COPY"]]
    peer.close()


def test_a_stream_of_a_newer_server(tomorrow: tuple[Callable[..., Done], list[Any]], tmp_path: Path):
    """Words and fields that nobody knows yet are shown, and go back to the server with an edit, a copy and a file."""
    run, (updated, created) = tomorrow
    shown = " ".join(run("stream", "info", "NEW").stdout.split())
    for words in ("Retention: Of_tomorrow", "Storage: Tape", "Compression: zstd", "O, speed 9"):
        assert words in shown
    assert 'Unknown to this version: of_tomorrow: {"a": [1]}' in shown
    assert "Consumer Inactive Threshold: 1s Consumer Of Tomorrow: much" in shown
    assert json.loads(run("stream", "info", "NEW", "--json").stdout) == INFO
    assert "NEW" in run("stream", "ls").stdout
    assert "Tape" in run("stream", "report").stdout
    assert run("stream", "find", "--sourced", "-n").stdout == "NEW\n"
    done = run("stream", "edit", "NEW", "--max-msgs", "5", "--tag", "ssd", "-f")
    assert "max_msgs: -1 -> 5" in done.stdout
    sent = json.loads(updated[-1].data)
    placement = {"cluster": "east", "tags": ["ssd"], "zone": "z1"}
    assert {name: sent[name] for name in CONFIG} == {**CONFIG, "max_msgs": 5, "placement": placement}
    run("stream", "copy", "NEW", "COPY", "--subjects", "copy")
    sent = json.loads(created[-1].data)
    assert {name: sent[name] for name in CONFIG} == {**CONFIG, "name": "COPY", "subjects": ["copy"]}
    file = tmp_path / "new.json"
    file.write_text(json.dumps({**CONFIG, "of_tomorrow": 2, "much_later": 3}))
    done = run("stream", "edit", "NEW", "--config", str(file), "-f")
    assert "of_tomorrow: {'a': [1]} -> 2" in done.stdout
    assert "much_later: nothing -> 3" in done.stdout
    sent = json.loads(updated[-1].data)
    assert (sent["of_tomorrow"], sent["much_later"], sent["retention"]) == (2, 3, "of_tomorrow")


def test_a_plan_leaves_what_is_newer(tomorrow: tuple[Callable[..., Done], list[Any]], tmp_path: Path):
    """A declaration that says nothing of what is newer leaves it; consumers of tomorrow are listed and shown."""
    run, (updated, _) = tomorrow
    file = tmp_path / "t.toml"
    file.write_text(
        """[streams.NEW]
        subjects = ["new"]
        max_msgs = 7
        sources = [{ name = "O" }]
        placement = { cluster = "east" }
        """
    )
    (step,) = json.loads(run("apply", str(file), "--plan", "--json").stdout)["steps"]
    assert {item["field"]: item["new"] for item in step["changes"]} == {
        "max_msgs": 7,
        "retention": "limits",
        "storage": "file",
        "compression": "none",
        "duplicate_window": 120.0,
    }
    assert run("consumer", "ls", "NEW", "--names").stdout == "c\n"
    assert "tomorrow" in run("consumer", "info", "NEW", "c").stdout
    assert updated == []
