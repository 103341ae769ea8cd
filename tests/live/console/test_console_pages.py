"""What every page of the console says, and that its JSON twin says the same; asked in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

from penstock import __version__
from penstock.buckets import KeyValue, ObjectStore
from penstock.connection import Connection
from penstock.console.pages import PAGES
from penstock.console.settings import Settings
from penstock.jetstream import assets
from penstock.model import Consumer, Stream, StreamSource
from penstock.server import Server
from tests.live.visitor import Visitor, pull, visiting
from tests.support import eventually as until

Unique = Callable[..., str]


async def store(client: Connection, name: str, bodies: list[bytes], **more: Any) -> None:
    """Make a stream of one subject tree, and store something in it."""
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], **more))
    for body in bodies:
        await client.publish(f"{name}.a", body)
    await client.flush()
    await until(lambda: _holds(client, name, len(bodies)), "the messages being stored")


async def _holds(client: Connection, name: str, count: int) -> bool:
    return (await assets.stream_info(client, name)).last_sequence >= count


def rows_of(data: Any) -> dict[str, str]:
    """Give the readable configuration of a page by name."""
    return dict(data["config_rows"])


# -- all of them -------------------------------------------------------------------------------------------------------


async def test_every_page_has_its_twin_and_leads_to_it(visitor: Visitor, unique: Unique):
    """Each page of the table is there, names its twin with the same question, and refreshes as the table says."""
    name = unique("EVERY")
    client = await visitor.nats()
    await store(client, name, [b"one"])
    await assets.add_consumer(client, name, Consumer(durable="reader"))
    await KeyValue.create_bucket(client, name)
    await (await KeyValue.open(client, name)).put("k", b"v")
    await ObjectStore.create_bucket(client, name)
    await (await ObjectStore.open(client, name)).put("o", b"bytes")
    state = Stream(name=f"{name}=state", subjects=[f"_PENSTOCK.channels.{name}.>"], allow_direct=True)
    await assets.add_stream(client, state)
    asked = {"entry": "key=k", "object_entry": "name=o"}
    for page in PAGES:
        if page.name == "pipeline":
            continue  # it needs one
        path = page.path.format(stream=name, consumer="reader", sequence=1, bucket=name, cluster=name)
        query = "&".join(filter(None, [asked.get(page.name), "x=1%26y"]))
        text, data = await visitor.both(f"{path}?{query}")
        assert isinstance(data, dict), path
        assert "error" not in data, path
        assert f'href="{path}.json?{query}"' in unescape(text), path
        assert f'data-refresh="{page.refresh}"' in text, path
        marked = re.findall(r'href="([^"]+)" aria-current="page"', text)
        assert marked == [item.path for item in PAGES if item.menu and path.startswith(item.path)], path


async def test_the_first_address_leads_to_the_overview(visitor: Visitor):
    """The bare address leads on; a slash too many leads to the page; both stay on this console."""
    answer = await visitor.get("/")
    assert (answer.status, answer.headers["location"]) == (307, "/overview")
    answer = await visitor.get("/streams/", host="localhost:8080")
    assert (answer.status, answer.headers["location"]) == (307, "http://localhost:8080/streams")


async def test_about_tells_settings_and_pages_without_nats():
    """The page about the console needs no server, and names every setting with its value and every page."""
    settings = Settings(rows=7, names=("console.example.com", "other.example"), timeout=0.5)
    async with visiting("nats://127.0.0.1:1", settings) as visitor:
        text, data = await visitor.both("/about")
    assert data["version"] == __version__
    assert data["settings"] == {
        item.name: list(value) if isinstance(value := getattr(settings, item.name), tuple) else value
        for item in fields(settings)
    }
    assert [item["path"] for item in data["pages"]] == [page.path for page in PAGES]
    assert all(item["json"] == f"{item['path']}.json" for item in data["pages"])
    assert "console.example.com, other.example" in text
    assert '<th scope="row">payload bytes</th><td>65536</td>' in text


# -- the overview ------------------------------------------------------------------------------------------------------


async def test_the_overview_tells_of_consumers_in_trouble(visitor: Visitor, unique: Unique):
    """A consumer that is paused, and one that delivered again, are named with what is wrong; a healthy one is not."""
    name = unique("TROUBLE")
    client = await visitor.nats()
    await store(client, name, [b"1", b"2"])
    for durable in ("paused", "again", "healthy"):
        await assets.add_consumer(client, name, Consumer(durable=durable))
    await assets.pause_consumer(client, name, "paused", datetime.now(UTC) + timedelta(hours=1))
    for message in await pull(client, name, "healthy", 2):
        await client.request(message.reply, b"+ACK", 20)
    (message,) = await pull(client, name, "again", 1)
    await client.publish(message.reply, b"-NAK")
    await pull(client, name, "again", 2)
    await visitor.survey.fresh()
    text, data = await visitor.both("/overview")
    notes = {(note["about"], note["rule"]): note for note in data["attention"] if note["about"].startswith(name)}
    assert not [about for about, _ in notes if about.endswith("healthy")]
    paused = notes[f"{name} › paused", "paused"]
    assert paused["what"].startswith("is paused, and 2 messages wait")
    assert (paused["kind"], paused["link"]) == ("consumer", f"/streams/{name}/consumers/paused")
    assert notes[f"{name} › again", "redelivered"]["what"] == "1 message was delivered again"
    assert f'<a href="/streams/{name}/consumers/paused">{name} › paused</a>' in text


async def test_only_a_full_stream_that_refuses_needs_attention(visitor: Visitor, unique: Unique):
    """A full stream that drops its oldest messages is as it should be; one that then refuses new ones is named."""
    old, new, size = unique("OLD"), unique("NEW"), unique("SIZE")
    client = await visitor.nats()
    await store(client, old, [b"x"] * 10, max_msgs=10)
    await store(client, new, [b"x"] * 10, max_msgs=10, discard="new")
    await store(client, size, [b"x" * 1000], max_bytes=1100, discard="new")
    await visitor.survey.fresh()
    _, data = await visitor.both("/overview")
    notes = {note["about"]: note["what"] for note in data["attention"]}
    assert old not in notes
    assert notes[new] == "100 % of its limit of messages is used, and it refuses new ones"
    assert "% of its limit of bytes is used" in notes[size]


async def test_a_mirror_tells_what_it_copies():
    """The page of a mirror names what it copies and how far it is behind; one that keeps up needs no attention."""
    with Server(sync="2m") as own:
        async with visiting(own.url) as visitor:
            client = await visitor.nats()
            await store(client, "ORIGIN", [b"x"] * 3)
            await assets.add_stream(client, Stream(name="COPY", subjects=[], mirror=StreamSource(name="ORIGIN")))
            await until(lambda: _holds(client, "COPY", 3), "the mirror being filled")
            text, data = await visitor.both("/streams/COPY")
            (copy,) = data["copies"]
            assert (copy["name"], copy["lag"]) == ("ORIGIN", 0)
            assert "Copies ORIGIN: 0 messages behind" in text
            assert rows_of(data)["mirror"] == "name=ORIGIN"
            await visitor.survey.fresh()
            _, data = await visitor.both("/overview")
            assert data["attention"] == []
            assert sorted(way["kind"] for way in data["picture"]["ways"]) == ["mirror", "publish"]
            assert "Nothing: no stream" in (await visitor.get("/overview")).text


async def test_attention_is_bounded_and_the_rest_is_counted(server: Server, unique: Unique):
    """More trouble than a table has rows is counted, and so are the consumers that were not looked at."""
    async with visiting(server.url, Settings(rows=1)) as visitor:
        client = await visitor.nats()
        for _ in range(2):
            await store(client, unique("MORE"), [b"x"], max_msgs=1, discard="new")
        await visitor.survey.fresh()
        text, data = await visitor.both("/overview")
        assert len(data["attention"]) == 1
        assert data["attention_left_out"] >= 1
        assert f"And {data['attention_left_out']:,} more." in text
        assert data["looked_at"]["streams"] == data["looked_at"]["of"]
        assert data["looked_at"]["consumers"] == data["looked_at"]["consumers_of"]
        assert (data["looked_at"]["whole"], data["looked_at"]["unseen"]) == (True, [])


async def test_the_streams_written_to_last_come_first(visitor: Visitor, unique: Unique):
    """The overview lists at most eight streams, the one with the newest message first."""
    client = await visitor.nats()
    names = [unique("LATEST") for _ in range(9)]
    for name in names:
        await store(client, name, [b"x"])
    await visitor.survey.fresh()
    _, data = await visitor.both("/overview")
    assert [item["name"] for item in data["streams"]] == names[:0:-1]
    await client.publish(f"{names[0]}.a", b"newest of all")
    await until(lambda: _holds(client, names[0], 2), "the message being stored")
    await visitor.survey.fresh()
    _, data = await visitor.both("/overview")
    assert data["streams"][0]["name"] == names[0]


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_streams_are_listed_once_each_page_by_page(server: Server, unique: Unique):
    """Following the links through small pages shows every stream once; beyond the end there is a way back."""
    async with visiting(server.url, Settings(rows=4)) as visitor:
        client = await visitor.nats()
        for _ in range(5):
            await assets.add_stream(client, Stream(name=unique("LISTED"), subjects=[unique("listed")]))
        every = sorted(info.name for info in await assets.streams(client))
        seen: list[str] = []
        query = ""
        while True:
            text, data = await visitor.both(f"/streams{query}")
            seen += [item["name"] for item in data["streams"]]
            assert data["total"] == len(every)
            if data["next"] is None:
                assert "further →" not in text
                break
            assert f'rel="next" href="?offset={data["next"]}">further →' in text
            query = f"?offset={data['next']}"
        assert seen == every
        text, data = await visitor.both("/streams?offset=1000000")
        assert (data["streams"], data["next"]) == ([], None)
        assert "There are no more streams here." in text
        assert f'href="?offset={len(every) - 4}">← before' in text, "back to the last page"
        _, data = await visitor.both("/consumers?offset=1000000")
        assert (data["consumers"], data["next"]) == ([], None)


async def test_numbers_that_are_none_are_refused(visitor: Visitor, unique: Unique):
    """An offset or a sequence that no server could read is a question that cannot be asked, never NATS's fault."""
    name = unique("NUMBERS")
    await store(await visitor.nats(), name, [b"x"])
    for wrong in ("-1", "x", "1.5", "٣", "9" * 19, "9" * 5000, "0x10", "1e3", " 1", "%00"):
        for path in (
            f"/streams?offset={wrong}",
            f"/consumers?offset={wrong}",
            f"/streams/{name}/messages?before={wrong}",
        ):
            data = await visitor.twin(quote(path, safe="/?=%"), 400)
            assert data["error"]["kind"] == "InputError", path
            assert len(data["error"]["what"]) < 300, path
    assert (await visitor.twin("/streams?offset="))["offset"] == 0, "an empty field of a form is none"


async def test_a_configuration_is_told_in_words(visitor: Visitor, unique: Unique):
    """Limits, durations and sizes read as people write them; what is as always is left out; the twin has all fields."""
    name = unique("WORDS")
    client = await visitor.nats()
    stream = Stream(
        name=name,
        subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"],
        max_age=90.0,
        max_bytes=10 * 1024,
        max_msgs=1_000_000,
        storage="memory",
        deny_purge=True,
        description="for people",
        metadata={"team": "billing", "api_key": "k-1"},
    )
    await assets.add_stream(client, stream)
    text, data = await visitor.both(f"/streams/{name}")
    rows = rows_of(data)
    assert rows["max bytes"] == "10.0 KiB"
    assert rows["max msgs"] == "1,000,000"
    assert rows["max age"] == "1m30s"
    assert rows["storage"] == "memory"
    assert rows["deny purge"] == "yes"
    assert rows["subjects"] == f"{name}.>", "the markers of the Spark sink are not the user's"
    assert rows["metadata"] == "api_key=***, team=billing"
    assert "sealed" not in rows
    assert "deny delete" not in rows
    assert data["config"]["max_age"] == 90 * 10**9
    assert data["config"]["sealed"] is False
    assert data["config"]["metadata"]["api_key"] == "***"
    assert "k-1" not in text


async def test_gaps_and_subjects_are_counted(visitor: Visitor, unique: Unique):
    """A stream's page counts what was deleted in between, and its subjects, the fullest first."""
    name = unique("COUNTED")
    client = await visitor.nats()
    await store(client, name, [b"x"] * 4)
    for subject in ("b", "b", "b", "c", "b", "b"):
        await client.jetstream().publish(f"{name}.{subject}", b"y")
    for sequence in (2, 3):
        await assets.delete_message(client, name, sequence, erase=False)
    text, data = await visitor.both(f"/streams/{name}")
    assert data["stream"]["deleted"] == 2
    assert "2 deleted in between" in text
    held = [(item["subject"].rpartition(".")[2], item["messages"]) for item in data["subjects"]["rows"]]
    assert held == [("b", 5), ("a", 2), ("c", 1)]
    assert f"/streams/{name}/messages?subject={name}.b" in unescape(text)
    await assets.purge_stream(client, name)
    text, data = await visitor.both(f"/streams/{name}")
    assert (data["messages"], data["subjects"]["rows"], data["stream"]["last"]["sequence"]) == ([], [], 10)
    assert (await visitor.twin(f"/streams/{name}/messages"))["looked_at"] == {"start": 0, "end": 0}


async def test_many_subjects_of_a_stream_are_counted_in_its_row(visitor: Visitor, unique: Unique):
    """A row names twenty subjects of a stream's configuration and counts the others."""
    name = unique("WIDE")
    subjects = [f"{name}.{number:02}" for number in range(25)]
    await assets.add_stream(await visitor.nats(), Stream(name=name, subjects=subjects))
    _, data = await visitor.both(f"/streams/{name}")
    assert (data["stream"]["subjects"], data["stream"]["more_subjects"]) == (subjects[:20], 5)


# -- consumers ---------------------------------------------------------------------------------------------------------


async def test_kinds_and_states_of_consumers(visitor: Visitor, unique: Unique):
    """Pull and push, durable and not, listened to or not, filtered or not: each is told as it is."""
    name = unique("KINDS")
    client = await visitor.nats()
    await store(client, name, [b"x"] * 3)
    heard = await client.subscribe(f"{name}-heard")
    filters = [f"{name}.{letter}" for letter in "abcdefg"]
    for consumer in (
        Consumer(durable="idle"),
        Consumer(durable="many", filter_subjects=filters),
        Consumer(durable="one", filter_subject=f"{name}.a", ack_policy="none"),
        Consumer(durable="heard", deliver_subject=f"{name}-heard"),
        Consumer(durable="unheard", deliver_subject=f"{name}-unheard"),
        Consumer(name="passing", inactive_threshold=300.0),
    ):
        await assets.add_consumer(client, name, consumer)
    await until(lambda: _bound(client, name), "the push consumer being listened to")
    text, data = await visitor.both(f"/streams/{name}")
    found = {item["name"]: item for item in data["consumers"]}
    assert {key: item["kind"] for key, item in found.items() if item["kind"] == "push"}.keys() == {"heard", "unheard"}
    assert {key for key, item in found.items() if not item["durable"]} == {"passing"}
    assert {key for key, item in found.items() if item["listened_to"]} == {"heard"}
    assert (found["many"]["filter"], found["one"]["filter"], found["idle"]["filter"]) == (filters, [filters[0]], [])
    assert found["one"]["ack_policy"] == "none"
    assert found["heard"]["lag"] == 0
    assert found["unheard"]["lag"] == 3
    assert "and 2 more" in text
    assert "pull, ephemeral" in text
    text, data = await visitor.both(f"/streams/{name}/consumers/heard")
    assert "Listener" in text
    assert data["consumer"]["delivered"]["sequence"] == 3
    assert rows_of(data)["deliver subject"] == f"{name}-heard"
    text, data = await visitor.both(f"/streams/{name}/consumers/idle")
    assert "nobody asks" in text
    assert (data["consumer"]["max_ack_pending"], data["consumer"]["acked"]["time"]) == (1000, None)
    await heard.unsubscribe()


async def _bound(client: Connection, name: str) -> bool:
    info = await assets.consumer_info(client, name, "heard")
    return info.push_bound and info.delivered.stream == 3


async def test_a_consumer_that_somebody_asks_is_listening(visitor: Visitor, unique: Unique):
    """While a pull request waits, its consumer is shown as listening, with the number of requests."""
    name = unique("ASKED")
    client = await visitor.nats()
    await store(client, name, [])
    await assets.add_consumer(client, name, Consumer(durable="asked"))
    asking = asyncio.create_task(pull(client, name, "asked", 1))

    async def waits() -> bool:
        return (await assets.consumer_info(client, name, "asked")).waiting == 1

    await until(waits, "the pull request reaching the server")
    text, data = await visitor.both(f"/streams/{name}/consumers/asked")
    assert (data["consumer"]["waiting"], data["consumer"]["listened_to"]) == (1, True)
    assert '<span class="chip good">listening</span>' in text
    await client.jetstream().publish(f"{name}.a", b"at last")
    (message,) = await asking
    await client.request(message.reply, b"+ACK", timeout=20)
    _, data = await visitor.both(f"/streams/{name}/consumers/asked")
    assert (data["consumer"]["acked"]["sequence"], data["consumer"]["ack_pending"], data["stream_last"]) == (1, 0, 1)


# -- messages ----------------------------------------------------------------------------------------------------------


async def walk(visitor: Visitor, path: str, step: str) -> list[list[int]]:
    """Follow the links of a page of messages to the end; gives the sequences of each page."""
    pages, query = [], path.partition("?")[2]
    while True:
        data = await visitor.twin(f"{path.partition('?')[0]}?{query}")
        pages.append([item["sequence"] for item in data["messages"]])
        if data["next"] is None:
            return pages
        kept = [part for part in query.split("&") if part and not part.startswith(f"{step}=")]
        query = "&".join([*kept, f"{step}={data['next']}"])
        assert len(pages) < 100


def flat(pages: list[list[int]]) -> list[int]:
    return [sequence for page in pages for sequence in page]


async def test_a_page_looks_at_no_more_sequences_than_allowed(server: Server, unique: Unique):
    """In a stream that is mostly gaps a page ends after its looks, perhaps with nothing, and goes on from there."""
    name = unique("GAPS")
    async with visiting(server.url, Settings(lookups=10, messages=3)) as visitor:
        client = await visitor.nats()
        await store(client, name, [b"x"] * 40)
        for sequence in range(2, 40):
            await assets.delete_message(client, name, sequence, erase=False)
        assert await walk(visitor, f"/streams/{name}/messages", "before") == [[40], [], [], [1]]
        text, data = await visitor.both(f"/streams/{name}/messages?before=31")
        assert data["looked_at"] == {"start": 21, "end": 31}
        assert "looked at sequences 21 to 30 of 1 to 40" in text
        assert 'href="?before=21">older →' in text
        assert await walk(visitor, f"/streams/{name}/messages?from=2", "from") == [[40]]


async def test_a_page_fetches_no_more_bytes_than_allowed(server: Server, unique: Unique):
    """Large messages come a few at a time, whatever the number of rows; none is left out on the way down."""
    name = unique("LARGE")
    async with visiting(server.url, Settings(message_bytes=25_000)) as visitor:
        await store(await visitor.nats(), name, [b"x" * 10_000] * 7)
        pages = await walk(visitor, f"/streams/{name}/messages", "before")
        assert flat(pages) == [7, 6, 5, 4, 3, 2, 1]
        assert max(len(page) for page in pages) <= 4
        for query, step, order in (("from=1", "from", 1), (f"subject={name}.a", "before", -1)):
            pages = await walk(visitor, f"/streams/{name}/messages?{query}", step)
            assert flat(pages) == [1, 2, 3, 4, 5, 6, 7][::order]
            assert max(len(page) for page in pages) == 3


async def test_messages_of_a_subject_are_found_both_ways(server: Server, unique: Unique):
    """A subject, also with wildcards, is followed up from a place or down from the end, without loss or repetition."""
    name = unique("FIND")
    async with visiting(server.url, Settings(messages=4)) as visitor:
        client = await visitor.nats()
        await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
        for number in range(1, 21):
            await client.jetstream().publish(f"{name}.{'even' if number % 2 == 0 else 'odd'}.{number}", b"")
        path = f"/streams/{name}/messages"
        assert flat(await walk(visitor, f"{path}?subject={name}.even.*", "before")) == list(range(20, 1, -2))
        assert flat(await walk(visitor, f"{path}?subject={name}.even.*&from=all", "from")) == list(range(2, 21, 2))
        assert flat(await walk(visitor, f"{path}?subject={name}.odd.%3E&from=8", "from")) == list(range(9, 21, 2))
        assert flat(await walk(visitor, f"{path}?from=18", "from")) == [18, 19, 20], "a place without a subject counts"
        assert await walk(visitor, f"{path}?subject={name}.even.6", "before") == [[6]]
        text, data = await visitor.both(f"{path}?subject={name}.nothing")
        assert (data["messages"], data["next"], data["subject"]) == ([], None, f"{name}.nothing")
        assert "No message on" in text
        text, data = await visitor.both(f"{path}?subject={name}.even.%3E")
        assert f"?subject={name}.even.%3E&before={data['next']}" in unescape(text)
        for wrong in ("a%20b", "a%09b", "x" * 501, "a..b", "%3E.a"):
            assert (await visitor.twin(f"{path}?subject={wrong}", 400))["error"]["kind"] == "InputError"


async def test_a_message_leads_to_its_neighbours(visitor: Visitor, unique: Unique):
    """The page of a message has links to the one before and the one behind; the first has nothing before it."""
    name = unique("NEXT")
    await store(await visitor.nats(), name, [b"a", b"b"])
    base = f"/streams/{name}/messages"
    first, _ = await visitor.both(f"{base}/1")
    second, data = await visitor.both(f"{base}/2")
    assert f'href="{base}/0"' not in first
    assert f'href="{base}/2"' in first
    assert f'href="{base}/1"' in second
    assert (data["stream"], data["sequence"], data["subject"], data["size"]) == (name, 2, f"{name}.a", 1)
    moment = datetime.fromisoformat(data["time"])
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    gone = await visitor.twin(f"{base}/3", 404)
    assert gone["error"]["what"] == f"Stream {name} holds no message 3."
    lost = await visitor.twin("/streams/NOT_THERE/messages/1", 404)
    assert lost["error"]["what"] == "There is no stream NOT_THERE."


async def test_a_payload_is_never_shown_as_something_else(visitor: Visitor, unique: Unique):
    """JSON that would lose something when it is laid out stays text; large numbers keep every digit."""
    name = unique("EXACT")
    bodies = [
        b'{"id": 12345678901234567890123, "a": [1, {"b": null}]}',
        b'{"twice": 1, "twice": 2}',
        b'{"far": 1e999}',
        b'{"open": ',
        b" \n\t[1]",
        b'{"a": 1} trailing',
    ]
    await store(await visitor.nats(), name, bodies)
    shown = [await visitor.twin(f"/streams/{name}/messages/{number}") for number in range(1, len(bodies) + 1)]
    assert [item["form"] for item in shown] == ["json", "text", "text", "text", "json", "text"]
    assert "12345678901234567890123" in shown[0]["text"]
    assert json.loads(shown[0]["text"]) == json.loads(bodies[0])
    for item, body in zip(shown[1:4], bodies[1:4], strict=True):
        assert item["text"] == body.decode()
        assert item["forms"] == ["text", "hex"]
    wanted = await visitor.twin(f"/streams/{name}/messages/2?as=json")
    assert wanted["form"] == "text", "what cannot be shown as JSON is shown as it can be"


# -- over time ---------------------------------------------------------------------------------------------------------


async def test_a_line_is_drawn_from_several_looks(visitor: Visitor, unique: Unique):
    """The survey's looks at a stream and a consumer become lines; a new stream of the same name begins anew."""
    name = unique("LINE")
    client = await visitor.nats()
    await store(client, name, [b"x"])
    await assets.add_consumer(client, name, Consumer(durable="reader"))

    async def looks(path: str, field: str) -> bool:
        await client.publish(f"{name}.a", b"x")
        return len((await visitor.twin(path))["history"][field]) > 1

    await until(lambda: looks(f"/streams/{name}", "rate"), "two looks at the stream", timeout=60)
    text, data = await visitor.both(f"/streams/{name}")
    assert data["stream"]["rate"] > 0
    assert '<path class="stroke l1"' in text
    await until(lambda: looks(f"/streams/{name}/consumers/reader", "lag"), "two looks at the consumer", timeout=60)
    text, data = await visitor.both(f"/streams/{name}/consumers/reader")
    assert data["consumer"]["lag"] > 1
    assert data["history"]["lag"][0][1] <= data["history"]["lag"][-1][1] <= data["consumer"]["lag"]
    assert "No ack was sampled" in text
    created = (await visitor.twin(f"/streams/{name}"))["created"]
    await assets.delete_stream(client, name)
    await store(client, name, [b"x"])
    again = await visitor.twin(f"/streams/{name}")
    assert again["created"] != created
    assert again["stream"]["rate"] is None
