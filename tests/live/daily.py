"""A day's work with streams, given to one command line by line: what it printed, and what it left on the server.

`python -m tests.live.daily nats` records anew what the `nats` command does, into tests/golden/daily/nats.json.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock

FOLDER = Path(__file__).parents[1] / "golden" / "daily"
RECORDED = FOLDER / "nats.json"
# Facts that no two runs share: when, by whom, how fast.
_PASSING = {
    "created", "ts", "time", "timestamp", "first_ts", "last_ts", "last_active", "leader", "raft_group",
    "rtt", "address", "url", "id", "connection_id", "domain", "active", "pause_remaining", "pause_until", "server",
    "leader_since", "elapsed", "_nats.ver", "_nats.level",
}  # fmt: skip
# What `nats` says where there is nothing to say, or leaves out, or keeps no secret of: Go's zero time, "none", a token.
_NONE = {"pause_until", "compression", "token"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Line:
    """One line of the script."""

    text: str
    arguments: tuple[str, ...]
    stdin: str
    fails: bool

    @property
    def compared(self) -> str:
        """How its output is compared: as JSON, as lines, or not at all."""
        if self.fails:
            return "none"
        if "--json" in self.arguments:
            return "json"
        return "lines" if {"--names", "--raw"} & {*self.arguments} else "none"


def script() -> Iterator[Line]:
    """Read the script."""
    for text in (FOLDER / "script.txt").read_text().splitlines():
        if not text or text.startswith("#"):
            continue
        fails, rest = text.startswith("! "), text.removeprefix("! ")
        stdin, bar, command = rest.partition(" | ")
        yield Line(
            text, tuple(shlex.split(command if bar else rest)), stdin.replace("\\n", "\n") + "\n" if bar else "", fails
        )


Run = Callable[[tuple[str, ...], str, dict[str, str]], tuple[int, str]]


def day(url: str, run: Run) -> dict[str, Any]:
    """Run every line; give what was printed, line by line, and what is on the server then."""
    printed: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {"NATS_URL": url, "XDG_CONFIG_HOME": folder, "HOME": folder}
        for number, line in enumerate(script(), 1):
            arguments = tuple(word.replace("{folder}", folder) for word in line.arguments)
            status, output = run(arguments, line.stdin, surroundings)
            key = f"{number:03d} {line.text}"
            printed[key] = {"ended well": status == 0}
            if line.compared == "json" and status == 0:
                found = settled(_read(output))
                # `nats counter list` gives names in no order.
                is_names = isinstance(found, list) and all(isinstance(each, str) for each in found)
                printed[key]["json"] = sorted(found) if is_names else found
            elif line.compared == "lines":
                sentences = ("Terminated message",)  # which `nats` prints among payloads
                printed[key]["lines"] = sorted(text for text in output.splitlines() if text and text not in sentences)
    return {"printed": printed, "left": settled(asyncio.run(left(url)))}


def _read(output: str) -> Any:
    """Read the JSON of an output; `nats` prints sentences around it at times."""
    if output.strip() in ("null", "{}") or output.startswith("{}\n"):
        return []  # how `nats` writes that there is nothing
    begin = next((place for place, letter in enumerate(output) if letter in "[{"), None)
    return f"no JSON: {output}" if begin is None else json.JSONDecoder().raw_decode(output, begin)[0]


def settled(value: Any, key: str = "") -> Any:
    """Give a value without what no two runs share: times are "some time", and so on.

    What is nothing is as good as left out: `nats` leaves out what Go does, the server's own answer has it.
    """
    if isinstance(value, dict):
        found = {name: settled(each, name) for name, each in sorted(value.items())}
        return {
            name: each for name, each in found.items() if each not in (False, 0, "", None, [], {}) and name not in _NONE
        }
    if isinstance(value, list):
        found = [settled(each) for each in value]
        return sorted(found, key=lambda each: each["name"]) if key == "sources" else found  # the server has no order
    if key == "hdrs":
        return _headers(value)
    if key in _PASSING:
        return f"some {type(value).__name__}"
    return "some time" if isinstance(value, str) and _TIME.fullmatch(value) else value


async def left(url: str) -> dict[str, Any]:
    """Look at the server itself: its streams with their configuration, messages and consumers."""
    found: dict[str, Any] = {}
    async with await penstock.connect(url) as connection:

        async def ask(what: str, **question: Any) -> dict[str, Any]:
            answer = await connection.request(f"$JS.API.{what}", json.dumps(question).encode())
            told: dict[str, Any] = json.loads(answer.data)
            return told

        for stream in sorted((await ask("STREAM.LIST"))["streams"], key=lambda each: str(each["config"]["name"])):
            name, state = stream["config"]["name"], stream["state"]
            messages = {}
            for sequence in range(state["first_seq"], state["last_seq"] + 1):
                message = (await ask(f"STREAM.MSG.GET.{name}", seq=sequence)).get("message")
                if message:
                    headers = _headers(message.get("hdrs", ""))
                    messages[str(sequence)] = _object([message["subject"], headers, message.get("data")])
            if stream["config"].get("sources"):  # what was replaced at its source in time has no place of its own here
                messages = {str(place): each for place, each in enumerate(messages.values(), 1)}
                state["first_seq"], state["last_seq"] = 1, len(messages)
            consumers = (await ask(f"CONSUMER.LIST.{name}"))["consumers"]
            if name.startswith("OBJ_"):  # `nats object` leaves those that it reads through to the server
                state["consumer_count"], consumers = 0, []
            found[name] = {
                "config": stream["config"],
                "state": {key: state[key] for key in ("messages", "first_seq", "last_seq", "consumer_count")},
                "messages": messages,
                "consumers": {each["name"]: each["config"] for each in sorted(consumers, key=lambda one: one["name"])},
            }
    return found


def _object(message: list[Any]) -> list[Any]:
    """Give a message; one of an object bucket without the id that each write makes up, and the condition of ours."""
    subject, headers, data = message
    if not subject.startswith("$O."):
        return message
    if ".C." in subject:
        return [f"{subject.rpartition('.')[0]}.some id", headers, data]
    kept = [line for line in headers if not line.startswith("Nats-Expected-Last-Subject-Sequence")]
    return [subject, kept, {**json.loads(base64.b64decode(data)), "nuid": "some id"}]


def _headers(block: str) -> list[str]:
    """Give headers as a set of lines: Go's have no order. Ids are left out, also those that only ours sends."""
    lines = base64.b64decode(block).decode().splitlines()[1:]
    kept = [re.sub(r"(?<=^Nats-Stream-Source: )(.*) \S+$", r"\1", line) for line in lines if line]
    kept = [re.sub(r"^(Nats-Batch-Id|Nats-Schedule): .*", r"\1", line) for line in kept]
    return sorted(line for line in kept if not re.match(r"Nats-Msg-Id: [0-9a-f]{16}\.", line))


def by_program(program: str) -> Run:
    """Run lines with an installed command."""

    def run(arguments: tuple[str, ...], stdin: str, surroundings: dict[str, str]) -> tuple[int, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
        done = subprocess.run(
            [program, *arguments], input=stdin, env=kept | surroundings, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout

    return run


def record(program: str) -> dict[str, Any]:
    """Give what the installed command does with a server of its own."""
    with penstock.Server() as server:
        return day(server.url, by_program(program))


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(sys.argv[1]), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
