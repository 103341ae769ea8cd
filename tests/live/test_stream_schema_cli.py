"""`penstock stream schema`: what a sample of a stream tells of its payloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

import penstock
from penstock.server import Server
from penstock.spark.json_ddl import parse_ddl
from tests.live.inprocess import Done, runner

Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Run a verb of `stream`; it must succeed unless a status is given."""
    return runner(server.url, "stream")


@pytest.fixture
def filled(server: Server, run: Run, unique: Callable[..., str]) -> Callable[..., str]:
    """Make a stream of payloads, each with the last token of its subject."""

    def make(*messages: tuple[str, str]) -> str:
        name = unique("SCHEMA")
        run("add", name, "--subjects", f"{name}.>", "--defaults")

        async def publish() -> None:
            async with await penstock.connect(server.url) as client:
                for subject, payload in messages:
                    await client.jetstream().publish(f"{name}.{subject}", payload.encode())

        asyncio.run(publish())
        return name

    return make


OTHER = '{"other": true, "id": 3}'
ORDER = '{"id": %d, "price": %s, "at": "2026-01-31T12:00:00Z", "items": [{"sku": "a", "n": 1}], "note": null}'


def test_ddl_for_people_and_json_for_programs(run: Run, filled: Callable[..., str]):
    """The fields of all payloads together, in the order of their first; what is no JSON is counted beside."""
    name = filled(
        ("x", ORDER % (1, "1")), ("x", ORDER % (2, "1.5")), ("x", "no JSON"), ("y", '{"other": true, "id": 3}')
    )
    done = run("schema", name)
    assert done.stdout.splitlines() == [
        "id BIGINT,",
        "price DOUBLE,",
        "at TIMESTAMP,",
        "items ARRAY<STRUCT<sku: STRING, n: BIGINT>>,",
        "note STRING,",
        "other BOOLEAN",
    ]
    assert done.stderr == "Looked at 4 of 4 messages: 1 not JSON.\n"
    assert [field.name for field in parse_ddl(done.stdout)] == ["id", "price", "at", "items", "note", "other"]
    found = json.loads(run("schema", name, "--subject", f"{name}.y", "--json").stdout)
    assert [(field["name"], field["type"]) for field in found["fields"]] == [("other", "boolean"), ("id", "long")]


def test_a_sample_is_spread_over_the_stream(run: Run, filled: Callable[..., str]):
    """A few messages of many are looked at, from the first to near the last."""
    name = filled(*(("x", json.dumps({f"f{number // 25}": 1})) for number in range(100)))
    done = run("schema", name, "--samples", "8")
    assert done.stdout == "f0 BIGINT,\nf1 BIGINT,\nf2 BIGINT,\nf3 BIGINT\n"
    assert done.stderr == "Looked at 8 of 100 messages.\n"


def test_names_that_clash_are_told(run: Run, filled: Callable[..., str]):
    """A field that is called as a column of ours, or twice in other letters, is told beside the DDL."""
    done = run("schema", filled(("x", '{"time": 1, "a": 1, "A": 2, "b c": 1}')))
    assert done.stdout == "time BIGINT,\na BIGINT,\nA BIGINT,\n`b c` BIGINT\n"
    assert "same name: time. Read with the option jsonColumn" in done.stderr
    assert "one name: a, A." in done.stderr


def test_what_cannot_be_learnt(run: Run, filled: Callable[..., str]):
    """Nothing there, or nothing that is JSON, is a sentence and status 1."""
    assert "holds no message" in run("schema", filled(), status=1).stderr
    text = filled(("x", "hello"), ("x", "[1]"))
    assert "JSON object" in run("schema", text, status=1).stderr
    wide = filled(("x", json.dumps({f"f{number}": 1 for number in range(300)})))
    assert "more than 200 different fields" in run("schema", wide, status=1).stderr
    assert "no message on" in run("schema", text, "--subject", f"{text}.y", status=1).stderr
