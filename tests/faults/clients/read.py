"""Reads ranges of a stream again and again, and writes down which sequences came.

`plant`: "believes" takes what anybody answers to direct gets, as a client would that does not know of mirrors; "stalls"
does nothing any more after a while.
"""

from __future__ import annotations

import json
import random
import threading
from typing import Any

from penstock.errors import DataLossError, PenstockError
from penstock.options import ConnectionOptions
from penstock.wire.bulk import BulkConnection
from tests.faults.history import Ledger
from tests.faults.plain import Plain, PlainError


def runs(sequences: list[int]) -> list[list[int]]:
    """Give sequences as ranges, in their order."""
    found: list[list[int]] = []
    for sequence in sequences:
        if found and found[-1][1] == sequence:
            found[-1][1] += 1
        else:
            found.append([sequence, sequence + 1])
    return found


def _believing(url: str, stream: str, start: int, end: int) -> list[int]:
    """Ask for each message directly, and take an answer of "not found" for the truth."""
    found = []
    with Plain(url) as plain:
        for sequence in range(start, end):
            asked = json.dumps({"seq": sequence}).encode()
            if plain.request(f"$JS.API.DIRECT.GET.{stream}", asked):
                found.append(sequence)
    return found


def run(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Read until it is over."""
    chance = random.Random(given["seed"] * 1000 + given["life"])
    stream, number = given["stream"], 0
    with BulkConnection(ConnectionOptions(given["url"], name=given["client"])) as bulk:
        while not over.wait(0.2):
            number += 1
            if given.get("plant") == "stalls" and number > 5:
                over.wait()
                return
            op = f"{given['client']}-{given['life']}-{number}"
            try:
                state = bulk.api(f"STREAM.INFO.{stream}")["state"]
                first, last = max(1, int(state["first_seq"])), int(state["last_seq"])
                start = chance.randint(first, max(first, last))
                end = min(last + 1, start + chance.choice([1, 50, 2000]))
                ledger.note("invoke", op, start=start, end=max(start, end))
                if given.get("plant") == "believes":
                    got = _believing(given["url"], stream, start, end)
                else:
                    got = []
                    for batch in bulk.read(stream, start, max(start, end), timeout=20.0):
                        got += batch.column("sequence").to_pylist()
                ledger.note("ok", op, got=runs(got))
            except DataLossError as error:
                ledger.note("told", error=type(error).__name__, text=str(error))
            except (PenstockError, PlainError) as error:
                ledger.note("unknown", op, why=f"{type(error).__name__}: {error}")
                over.wait(0.3)
