"""What a store held before a start, and what nats-server brought up of it: whatever is less is told.

nats-server cuts a damaged block at the first bad record, passes over a stream whose files it cannot read, and goes on.
So the guard keeps a record of each node beside the store (`records.py` has its form). After a start it is compared with
what the server says that it restored. Without a record, as after a store was moved here, the folders of the streams,
the sizes of their blocks and the log of the start still show some of what went wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.json_text import load_json
from penstock.server.records import index_end, stream_folders, write_record

__all__ = ["Held", "Loss", "losses", "record_of", "refuse"]

_RESTORED = re.compile(r"Restored ([\d,]+) messages for stream '(.+?) > (.+?)' in ")
_COMPLAINT = re.compile(r"\[(?:WRN|ERR|FTL)\] +(.*)")
# What nats-server says when it could not read something of a store. An index that it makes anew is not damage.
_DAMAGE = re.compile(
    r"^(?!.*Recovering stream state from index)"
    r".*(?:could not locate msg block|corrupt|checksums? d(?:id|o) not match|Error recreating stream"
    r"|Missing (?:stream|consumer)|Error (?:reading|unmarshalling|adding|decrypting)|Detected (?:unsupported|orphaned)"
    r"|Failed restoring partial batch|Bad stream encryption|Error (?:loading|decoding))"
)
_NEWER = "Detected unsupported stream"  # it was made by a newer server, and is not brought up by this one
_COMPLAINTS = 20  # of a start that are told; the rest is in the log
_READ_LIMIT = 64 << 20
_BLOCKS = 10_000  # files that are looked at before a start, which must not wait for them
_BLOCK_HEAD = 32  # the length, the sequence and the time of the first message, and more


@dataclass(frozen=True)
class Loss:
    """Something that a store held, as far as that is known, and that the server did not bring up."""

    node: str
    """The node whose store it is."""
    account: str
    """The account of the stream; empty if the server's log says no more than `text`."""
    stream: str
    """The stream; empty if the server's log says no more than `text`."""
    text: str
    """What is missing, as a sentence."""
    certain: bool
    """Whether something is missing for certain: not only damaged or cut short, and not to come back from a replica."""


@dataclass(frozen=True)
class Held:
    """What is known of a store before a server opens it."""

    closed: bool = False
    """Whether the record is of an end in order, so that nothing can have changed since."""
    record: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """What the record says of each stream, by account and name."""
    streams: frozenset[tuple[str, str]] = frozenset()
    """The streams that have a folder."""
    blocks: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """The size and the beginning of each file of messages."""

    @classmethod
    def by(cls, store: Path, record: Path) -> Held:
        """Look at a store and its record."""
        said = _read(record)
        known = _flat(said.get("streams"))
        if said.get("refused") is not True:
            for place, facts in known.items():
                _forget_numbers(store, place, facts)
        folders = frozenset(_streams(str(store)))
        blocks = (block for account, name in folders for block in _blocks(store, account, name))
        return cls(said.get("closed") is True, known, folders, dict(islice(blocks, _BLOCKS)))


def record_of(root: Path, node: str) -> Path:
    """Say where the record of a node is: beside the store, with the log."""
    return root / f"{node}.streams.json"


def losses(node: str, store: Path, held: Held, log: str, details: dict[str, Any]) -> list[Loss]:
    """Compare what a store held with the log of the start and what `/jsz` says after it."""
    restored = {(account, name): int(count.replace(",", "")) for count, account, name in _RESTORED.findall(log)}
    running = {
        (account["id"], stream["name"]): stream
        for account in details.get("account_details") or []
        for stream in account.get("stream_detail") or []
    }
    clustered = "meta_cluster" in details
    found = []
    for place, said in sorted(held.record.items()):
        config = running[place].get("config") or {} if place in running else {}
        # A cluster may have deleted a stream while this node was down, and brings back what has replicas.
        certain = not clustered or config.get("num_replicas") == 1
        if text := _missing(place, said, held, restored, running):
            found.append(Loss(node, *place, text, certain))
        elif held.closed and place in running:
            found += [Loss(node, *place, text, certain) for text in _lost_consumers(place, said, running[place])]
    told = {(loss.account, loss.stream) for loss in found}
    for place in sorted(held.streams - told - restored.keys() - running.keys()):
        if (store / "jetstream" / place[0] / "streams" / place[1]).exists():
            text = f"{_name(place)} has its files, and the server did not bring it up"
            found.append(Loss(node, *place, text, not clustered))
    for place in sorted(held.streams if held.blocks else ()):
        for path, cut in _cut_blocks(store, place, held):
            text = f"{_name(place)}: {cut:,} bytes that could not be read were cut from the end of {path}"
            found.append(Loss(node, *place, text, False))
    for words in [words for words in _COMPLAINT.findall(log) if _DAMAGE.search(words)][:_COMPLAINTS]:
        found.append(Loss(node, "", "", f"nats-server says: {words.strip()}", words.startswith(_NEWER)))
    return found


def _missing(
    place: tuple[str, str],
    said: dict[str, Any],
    held: Held,
    restored: dict[tuple[str, str], int],
    running: dict[tuple[str, str], dict[str, Any]],
) -> str | None:
    """Say what of a stream is missing; None if nothing is, or nothing is known."""
    now = running.get(place)
    if now is None:
        # A stream that an unfinished record names may have been deleted since.
        gone = held.closed and place not in restored
        return f"{_name(place)} had {_count(said)}, and the server did not bring it up" if gone else None
    state = now["state"]
    if "created" in said and said["created"] != now["created"]:
        other = f"{_name(place)} of {said['created']} is another one now, of {now['created']}"
        return other if held.closed else None
    if "last_seq" not in said:
        return None
    if state["last_seq"] < said["last_seq"]:
        return f"{_name(place)} ended at sequence {said['last_seq']:,}, and now ends at {state['last_seq']:,}"
    if not held.closed or "messages" not in said:
        return None
    came = restored.get(place, state["messages"])
    config = now.get("config") or {}
    if came >= said["messages"] or config.get("allow_msg_ttl"):
        return None
    if config.get("max_age") and state["first_seq"] > said["first_seq"]:
        # The oldest may have gone by age; what is missing between the first and the last did not.
        holes_then = said["last_seq"] - said["first_seq"] + 1 - said["messages"]
        if state.get("num_deleted", 0) <= holes_then:
            return None
    return f"{_name(place)} had {_count(said)}, and the server restored {came:,}"


def _lost_consumers(place: tuple[str, str], said: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Say which consumers are gone, and which have forgotten what was acknowledged."""
    floors = {each["name"]: each["ack_floor"]["stream_seq"] for each in now.get("consumer_detail") or []}
    for name, floor in said.get("consumers", {}).items():
        had = f"consumer {name} of {_name(place)} had acknowledged all up to sequence {floor:,}"
        if name not in floors:
            yield f"{had}, and the server did not bring it up"
        elif floors[name] < floor:
            yield f"{had}, and now has up to {floors[name]:,}: it would give messages again"


def _name(place: tuple[str, str]) -> str:
    account, stream = place
    return f"stream {stream}" if account == "$G" else f"stream {stream} of account {account}"


def _count(said: dict[str, Any]) -> str:
    return f"{said['messages']:,} messages" if "messages" in said else "messages"


def _read(record: Path) -> dict[str, Any]:
    try:
        with record.open("rb") as file:
            content = load_json(file.read(_READ_LIMIT))
    except (OSError, ValueError):
        return {}  # no record, or one that a power cut left half written: nothing is known
    return content if isinstance(content, dict) else {}


def _forget_numbers(store: Path, place: tuple[str, str], facts: dict[str, Any]) -> None:
    """Forget what another server, which has used the store since, may have changed by right."""
    with suppress(OSError):
        if index_end(str(store / "jetstream" / place[0] / "streams" / place[1])) != facts.get("index"):
            for name in ("messages", "consumers"):
                facts.pop(name, None)


def refuse(record: Path) -> None:
    """Note in a record that a start was refused because of what is missing."""
    said = _read(record)
    with suppress(OSError):  # if it cannot be written the next start knows less
        write_record(str(record), said.get("streams") or {}, closed=said.get("closed") is True, refused=True)


def _flat(streams: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Give the streams of a record by account and name, leaving out what is not of its form."""
    found = {}
    for account, named in streams.items() if isinstance(streams, dict) else ():
        for name, facts in named.items() if isinstance(named, dict) else ():
            if isinstance(facts, dict):
                numbers = {key: facts[key] for key in ("messages", "first_seq", "last_seq") if key in facts}
                whole = len(numbers) == 3 and all(isinstance(number, int) for number in numbers.values())
                created = {"created": facts["created"]} if isinstance(facts.get("created"), str) else {}
                consumers = facts.get("consumers")
                floors = consumers.items() if isinstance(consumers, dict) else ()
                known = {name: floor for name, floor in floors if isinstance(floor, int)}
                index = {"index": facts["index"]} if isinstance(facts.get("index"), str) else {}
                found[account, name] = {**created, **(numbers if whole else {}), **index, "consumers": known}
    return found


def _streams(store: str) -> Iterator[tuple[str, str]]:
    for account, names in stream_folders(store).items():
        yield from ((account, name) for name in names)


def _blocks(store: Path, account: str, name: str) -> Iterator[tuple[str, tuple[int, bytes]]]:
    try:
        entries = list(os.scandir(store / "jetstream" / account / "streams" / name / "msgs"))
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".blk"):
            with suppress(OSError), open(entry.path, "rb") as file:  # the server removes what has aged
                head = file.read(_BLOCK_HEAD)
                yield entry.path, (file.seek(0, os.SEEK_END), head)


def _cut_blocks(store: Path, place: tuple[str, str], held: Held) -> Iterator[tuple[str, int]]:
    """Give the files that are shorter than before; one that begins with another message was written anew."""
    for path, (size, head) in _blocks(store, *place):
        before = held.blocks.get(path)
        if before is not None and size < before[0] and before[1].startswith(head):
            yield os.path.basename(path), before[0] - size
