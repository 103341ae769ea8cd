"""What the two roles of the console do: one looks at every page, the other acts as well, with every act that there is.

What a page or an act says of a permission that is missing is raised, as the other roles raise it.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

from penstock.buckets import KeyValue, ObjectStore
from penstock.connection import Connection, connect
from penstock.errors import DeniedError, NotFoundError
from penstock.jetstream import DeadLetters, assets
from penstock.jetstream.consume import Deliveries
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from penstock.pipelines.project import Project
from tests.live.acting import Actor, filled
from tests.live.browser import Answer
from tests.live.visitor import Visitor, every_download, every_page, visiting

NAMES = {"stream": "ORDERS", "consumer": "billing", "sequence": "1", "bucket": "prices", "cluster": "test-cluster"}
ASKED = {"entry": "key=eu.tea", "object_entry": "name=cat", "object_content": "name=cat", "pipeline": "name=sensors"}
PLACES = {
    "/dead-letters/ORDERS": "/dead-letters/DEAD",
    "/buckets/objects/prices": "/buckets/objects/pictures",
    "/buckets/objects/prices/object": "/buckets/objects/pictures/object",
    "/buckets/objects/prices/content": "/buckets/objects/pictures/content",
}
"""Pages of another stream or bucket than the rest."""
ELSEWHERE = {
    "stream-step-down": "a single server has nobody to step down for",
    "consumer-step-down": "the same",
    "meta-step-down": "it uses the login that --system names",
    "pipeline-run": "it is the role pipeline's work, which this login would need the permissions of",
    "pipeline-stop": "it asks nothing of NATS",
    "pipeline-replay": "the same as to run one",
}
"""Acts that the role cannot do in this test, and why."""


async def console(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Look at every page of the console, and fetch all that it gives."""
    async with await connect(admin) as other:
        await _furnish(other)
    with tempfile.TemporaryDirectory() as folder:
        async with visiting(mine, pipelines=[Project.load(write_project(Path(folder), "sensors"))]) as visitor:
            await _look_around(visitor, every_page(NAMES, ASKED))


async def console_write(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Look at every page, and do every act that a single server without Spark allows, up to one that is denied."""
    async with await connect(admin) as other:
        await _furnish(other)
        await _clear(other)
        once, again = [str(await _dead_letter(other)) for _ in range(2)]
        last = (await assets.stream_info(other, "ORDERS")).last_sequence
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder) / "acts.log"
        async with visiting(mine, audit=audit) as visitor:
            await _look_around(visitor, set(every_page(NAMES, ASKED)) - {"/pipelines/one?name=sensors"})
            actor = Actor(visitor, audit)
            for name, targets, typed, values in acts(str(last), once, again):
                page = await actor.look(name, targets, **values)
                if page.status == 200:
                    page = await actor.post(name, [*filled(page.text), ("typed", typed), ("step", "do")])
                text = _said(page)
                if "Permissions Violation" in text:
                    raise DeniedError(text)
                assert page.status == 200, (name, text)


def acts(message: str, letter: str, other: str) -> list[tuple[str, dict[str, Any], str, dict[str, str]]]:
    """Give acts in turn: name, what it is done to, what is typed before something is lost, and the fields."""
    orders, written = {"stream": "ORDERS"}, {"stream": "WRITTEN"}
    reader = orders | {"consumer": "written"}
    prices, drafts, sketches = {"bucket": "prices"}, {"bucket": "drafts"}, {"bucket": "sketches"}
    key, letters = prices | {"key": "written"}, orders | {"dead": "DEAD"}
    return [
        ("stream-add", {}, "", {"name": "WRITTEN", "subjects": "written"}),
        ("stream-edit", written, "WRITTEN", {"max_msgs": "5"}),
        ("stream-purge", written, "WRITTEN", {}),
        ("stream-delete", written, "WRITTEN", {}),
        ("publish", orders, "", {"subject": "orders.new", "payload": "x"}),
        ("publish", {}, "", {"subject": "orders.new", "payload": "x"}),
        ("message-delete", orders | {"sequence": message}, message, {}),
        ("letters-back", letters | {"number": [letter]}, "", {}),
        ("letters-again", letters | {"number": [other]}, "ORDERS", {}),
        ("consumer-add", orders, "", {"name": "written"}),
        ("consumer-edit", reader, "written", {"max_pending": "7"}),
        ("consumer-pause", reader, "", {"time": "1h"}),
        ("consumer-resume", reader, "", {}),
        ("consumer-next", reader, "", {"answer": "acknowledge it"}),
        ("consumer-reset", reader, "written", {"sequence": "1"}),
        ("consumer-delete", reader, "written", {}),
        ("key-add", prices, "", {"name": "written", "value": "1"}),
        ("key-put", key, "", {"value": "2"}),
        ("key-delete", key, "written", {}),
        ("key-purge", key, "written", {}),
        ("object-delete", {"bucket": "pictures", "object": "cat"}, "cat", {}),
        ("bucket-add", {}, "", {"name": "drafts"}),
        ("bucket-edit", drafts, "drafts", {"history": "3"}),
        ("bucket-delete", drafts, "drafts", {}),
        ("objects-add", {}, "", {"name": "sketches"}),
        ("objects-edit", sketches, "sketches", {"description": "plans"}),
        ("objects-seal", sketches, "sketches", {}),
        ("objects-delete", sketches, "sketches", {}),
    ]


async def _clear(nc: Connection) -> None:
    """Remove what a run left that was denied in the middle."""
    for stream in ("WRITTEN", "KV_drafts", "OBJ_sketches"):
        with suppress(NotFoundError):
            await assets.delete_stream(nc, stream)
    with suppress(NotFoundError):
        await assets.delete_consumer(nc, "ORDERS", "written")
    await (await KeyValue.open(nc, "prices")).purge("written")


async def _furnish(nc: Connection) -> None:
    """Put down what the pages show: a value, an object, and a dead letter."""
    await (await KeyValue.open(nc, "prices")).put("eu.tea", b"1")
    await (await ObjectStore.open(nc, "pictures")).put("cat", b"cat")
    await _dead_letter(nc)


async def _dead_letter(nc: Connection) -> int:
    """Put a message among the dead letters, and give its number there."""
    await assets.reset_consumer(nc, "ORDERS", "billing")
    await nc.jetstream().publish("orders.new", secrets.token_bytes(4))
    async with Deliveries(nc, "ORDERS", "billing", limit=1) as deliveries:
        async for delivery in deliveries:
            await DeadLetters(nc, "ORDERS", "DEAD").put(delivery, "bad")
            await delivery.ack()
    return (await assets.stream_info(nc, "DEAD")).last_sequence


async def _look_around(visitor: Visitor, pages: Iterable[str]) -> None:
    denied: list[str] = []
    await visitor.survey.fresh()
    for path in pages:
        place, mark, question = path.partition("?")
        answer = await visitor.get(f"{PLACES.get(place, place)}.json{mark}{question}")
        told = [text for text in _texts(answer.json()) if "Permissions Violation" in text]
        assert told or answer.status == 200, (path, answer.text)
        denied += told
        denied += [answer.json()["error"]["remedy"]] if answer.status == 503 else []
    for path in (*every_download(NAMES, ASKED), "/metrics"):
        place, mark, question = path.partition("?")
        try:
            answer = await visitor.get(f"{PLACES.get(place, place)}{mark}{question}")
        except DeniedError as error:  # the first bytes of a download had left before
            denied.append(str(error))
        else:
            denied += _denied(answer)
    if denied:
        raise DeniedError(" ".join(dict.fromkeys(denied)))


def _denied(answer: Answer) -> list[str]:
    """Give what an answer that failed says of a permission; anything else that failed fails the test."""
    if answer.status == 200:
        return []
    assert "Permissions Violation" in answer.text, answer.text
    return [_said(answer)]


def _said(answer: Answer) -> str:
    """Give the text of a page without its markup; what stands in the JSON of an answer has its quotes as others do."""
    return unescape(re.sub(r"<[^>]*>", " ", answer.text)).replace('\\"', '"')


def _texts(value: Any) -> Iterator[str]:
    """Give all texts in an answer."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)
