"""Messages found by text, header, place and time; new ones; payloads in chunks and in Protobuf."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf import descriptor_pb2

from penstock.chunks import Archive, Publisher
from penstock.connection import Connection
from penstock.console.protobuf import ProtobufTypes
from penstock.console.settings import Settings
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.markers import Head, MarkerSubjects
from penstock.times import format_time
from tests.live.visitor import Visitor, visiting

Unique = Callable[..., str]


async def fill(client: Connection, name: str, count: int, **more: Any) -> None:
    """Store numbered messages on two subjects; every tenth has a word in it, and every seventh a header."""
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], **more))
    context = client.jetstream()
    for number in range(1, count + 1):
        body = f"order {number}{' Needle' if number % 10 == 0 else ''}".encode()
        headers = {"X-Kind": f"Special {number}"} if number % 7 == 0 else None
        await context.publish(f"{name}.{'a' if number % 2 else 'b'}", body, headers=headers)


async def sequences(visitor: Visitor, path: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Follow a search to its end as a reader without script does; gives what was found, and every step."""
    found, steps = list[int](), list[dict[str, Any]]()
    base = path.partition("?")[0]
    while True:
        step = await visitor.twin(path)
        steps.append(step)
        found += [item["sequence"] for item in step["messages"]]
        if step["next_query"] is None:
            return found, steps
        path = f"{base}{step['next_query']}"
        assert len(steps) < 100


# -- searching ---------------------------------------------------------------------------------------------------------


async def test_messages_are_found_by_text_header_subject_and_all_of_them(visitor: Visitor, unique: Unique):
    """A text in the payload, a header by name or value, and a subject narrow a search, in either direction."""
    name = unique("SEARCH")
    client = await visitor.nats()
    await fill(client, name, 60)
    path = f"/streams/{name}/messages"
    assert (await sequences(visitor, f"{path}?text=needle"))[0] == [60, 50, 40, 30, 20, 10]
    assert (await sequences(visitor, f"{path}?text=NEEDLE&from=25"))[0] == [30, 40, 50, 60]
    assert (await sequences(visitor, f"{path}?header=x-kind"))[0] == [56, 49, 42, 35, 28, 21, 14, 7]
    assert (await sequences(visitor, f"{path}?header=X-Kind:special%204&from=all"))[0] == [42, 49]
    assert (await sequences(visitor, f"{path}?header=X-Kind&subject={name}.a"))[0] == [49, 35, 21, 7]
    assert (await sequences(visitor, f"{path}?header=X-Kind&text=order%203"))[0] == [35]
    text, data = await visitor.both(f"{path}?text=nowhere")
    assert (data["messages"], data["search"]["over"], data["search"]["looked"]) == ([], True, 60)
    assert "Looked at 60 messages, all of the stream; found 0." in text
    assert data["order"] == "newest first"
    assert (await assets.consumers(client, name)) == [], "nothing is left behind"


async def test_a_search_goes_in_bounded_steps_and_finds_each_message_once(server: Server, unique: Unique):
    """A step looks at so many messages, says how far it is, and the steps together find all, in both directions."""
    name = unique("STEPS")
    async with visiting(server.url, Settings(search_messages=40, messages=3)) as visitor:
        client = await visitor.nats()
        await fill(client, name, 300)
        every = list(range(10, 301, 10))
        for query, order in (("text=needle&from=1", 1), ("text=needle", -1)):
            found, steps = await sequences(visitor, f"/streams/{name}/messages?{query}")
            assert found == every[::order]
            percents = [step["search"]["percent"] for step in steps]
            assert percents == sorted(percents)
            assert (percents[0] < 100, percents[-1]) == (True, 100)
        text, data = await visitor.both(f"/streams/{name}/messages?text=needle&from=1")
        assert f'data-next="?text=needle&amp;from={data["next"]}"' in text
        assert '<script src="/static/search.js" defer></script>' in text
        assert (await visitor.get("/static/search.js")).status == 200


async def test_a_stream_that_keeps_messages_for_consumers_is_searched_without_one(visitor: Visitor, unique: Unique):
    """On a work queue a consumer would change what is kept: it is read message by message, and stays as it was."""
    name = unique("QUEUE")
    client = await visitor.nats()
    await fill(client, name, 30, retention="workqueue")
    assert (await sequences(visitor, f"/streams/{name}/messages?text=needle"))[0] == [30, 20, 10]
    assert (await sequences(visitor, f"/streams/{name}/messages?header=X-Kind&from=1"))[0] == [7, 14, 21, 28]
    assert (await assets.stream_info(client, name)).messages == 30


async def test_a_search_passes_wide_gaps(visitor: Visitor, unique: Unique):
    """Sequences that are gone cost a look however many they are: what stands before them is found at once."""
    name = unique("WIDE")
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"], first_seq=1))
    await client.jetstream().publish(f"{name}.old", b"needle one")
    await assets.purge_stream(client, name, sequence=5_000_000)
    info = await assets.stream_info(client, name)
    assert info.last_sequence == 4_999_999
    await client.jetstream().publish(f"{name}.new", b"needle two")
    found, steps = await sequences(visitor, f"/streams/{name}/messages?text=needle")
    assert (found, len(steps)) == ([5_000_000], 1)


async def test_a_place_can_be_a_time(visitor: Visitor, unique: Unique):
    """`from` takes a time or how long ago, with and without a subject; what is later than everything finds nothing."""
    name = unique("TIME")
    client = await visitor.nats()
    await fill(client, name, 6)
    third = (await assets.get_message(client, name, 3)).time
    assert third is not None
    path = f"/streams/{name}/messages"
    moment = format_time(third).replace("+", "%2B")
    assert (await sequences(visitor, f"{path}?from={moment}"))[0] == [3, 4, 5, 6]
    assert (await sequences(visitor, f"{path}?from=1h&subject={name}.b"))[0] == [2, 4, 6]
    later = format_time(datetime.now(UTC) + timedelta(hours=1))
    assert (await sequences(visitor, f"{path}?from={later}"))[0] == []
    for wrong in ("yesterday", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "-5m"):
        error = (await visitor.twin(f"{path}?from={wrong}", 400))["error"]
        assert error["kind"] == "InputError"
    assert (await visitor.twin(f"{path}?from=1&before=5", 400))["error"]["kind"] == "InputError"


async def test_markers_are_hidden_unless_asked_for_and_always_counted(visitor: Visitor, unique: Unique):
    """The count over a page is of messages; markers of the Spark sink are told beside it, and shown on demand."""
    name = unique("MARKED")
    client = await visitor.nats()
    subjects = [f"{name}.rows", f"$PENSTOCK.{name}.>"]
    await assets.add_stream(client, Stream(name=name, subjects=subjects, allow_atomic=True))
    context = client.jetstream()
    for number in range(4):
        await context.publish(f"{name}.rows", b"row %d" % number)
        await context.publish(MarkerSubjects(name, f"q{number}").head, Head(number, "run", "done").body())
    path = f"/streams/{name}/messages"
    text, data = await visitor.both(path)
    assert [item["sequence"] for item in data["messages"]] == [7, 5, 3, 1]
    assert (data["held"], data["markers_held"]) == (4, 4)
    assert "and 4 markers of the Spark sink" in text
    _, data = await visitor.both(f"{path}?markers=yes")
    assert [item["sequence"] for item in data["messages"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    _, data = await visitor.both(f"{path}?from=3")
    assert ([item["sequence"] for item in data["messages"]], data["markers"]) == ([3, 5, 7], 3)
    _, data = await visitor.both(f"{path}?text=run")
    assert (data["messages"], data["markers"]) == ([], 4)
    _, data = await visitor.both(f"{path}?text=run&markers=yes")
    assert [item["sequence"] for item in data["messages"]] == [8, 6, 4, 2]


async def test_nobody_can_search_for_what_is_not_shown(visitor: Visitor, unique: Unique):
    """The secret of the console's own connection, and a header that carries a login, are found by no search."""
    name = unique("SECRET")
    client = await visitor.nats()
    token = visitor.backend.upstream.options.token
    assert token is not None
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    headers = {"Authorization": "Bearer open-sesame", "X-Note": f"see {token}"}
    await client.jetstream().publish(name, f"the token is {token}".encode(), headers=headers)
    path = f"/streams/{name}/messages"
    for query in (f"text={token[:14]}", "header=Authorization:sesame", f"header=X-Note:{token[:14]}"):
        assert (await visitor.twin(f"{path}?{query}"))["messages"] == [], query
    for query in ("text=the%20token%20is", "header=Authorization", "header=X-Note:see"):
        text, data = await visitor.both(f"{path}?{query}")
        assert len(data["messages"]) == 1, query
        assert token not in text + json.dumps(data)


async def test_a_search_survives_denied_consumers(unique: Unique):
    """A login that may not make consumers searches message by message; the page is whole."""
    name = unique("DENIED")
    users = [
        "{user: all, password: pw}",
        '{user: few, password: pw, permissions: {publish: {deny: "$JS.API.CONSUMER.CREATE.>"}}}',
    ]
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as own:
        options = ConnectionOptions(own.url, user="few", password="pw")
        async with visiting(options.replace(user="all")) as able:
            await fill(await able.nats(), name, 20)
        async with visiting(options) as visitor:
            assert (await sequences(visitor, f"/streams/{name}/messages?text=needle"))[0] == [20, 10]
            assert (await sequences(visitor, f"/streams/{name}/messages?subject={name}.b"))[0] == list(range(20, 0, -2))


async def test_names_that_cannot_be_are_refused_in_a_sentence(visitor: Visitor, unique: Unique):
    """A name of five thousand characters, or with a dot, is answered 400; the connection lives on."""
    name = unique("NAMED")
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[name]))
    await client.jetstream().publish(name, b"x")
    long = "x" * 5000
    paths = [f"/streams/{long}", f"/streams/{long}/messages", f"/streams/{long}/messages/1", f"/streams/{long}/tail"]
    paths += [f"/streams/{name}/consumers/{long}", f"/dead-letters/{long}", f"/buckets/keys/{long}", "/streams/a.b"]
    paths += [
        f"/buckets/objects/{long}",
        f"/channels/{long}",
        f"/streams/{quote('é' * 128)}/messages",
        "/streams/a%2Ab/tail",
    ]
    for path in paths:
        error = (await visitor.twin(path, 400))["error"]
        assert error["kind"] == "InputError", path
        assert len(error["what"]) < 400, path
    assert (await visitor.twin(f"/streams/{name}/messages"))["held"] == 1
    assert (await visitor.nats()) is client, "the same connection still serves"


# -- following ---------------------------------------------------------------------------------------------------------


async def test_new_messages_are_followed(visitor: Visitor, unique: Unique):
    """The page of new messages shows the newest first, those of a filter alone if there is one, and stays fresh."""
    name = unique("TAIL")
    client = await visitor.nats()
    await fill(client, name, 12)
    text, data = await visitor.both(f"/streams/{name}/tail")
    assert [item["sequence"] for item in data["messages"]] == list(range(12, 0, -1))
    assert 'id="newest" data-live' in text
    assert 'data-refresh="1"' in text
    await client.jetstream().publish(f"{name}.a", b"the thirteenth")
    assert (await visitor.twin(f"/streams/{name}/tail"))["messages"][0]["preview"] == "the thirteenth"
    data = await visitor.twin(f"/streams/{name}/tail?text=needle&subject={name}.b")
    assert [item["sequence"] for item in data["messages"]] == [10]
    assert (await visitor.twin(f"/streams/{name}/tail?header=X-Kind"))["messages"][0]["sequence"] == 7


# -- payloads ----------------------------------------------------------------------------------------------------------


async def test_a_payload_in_chunks_is_shown_and_downloaded_whole(server: Server, unique: Unique):
    """A chunk leads to the whole payload; a missing chunk is told in its place, and the chunk itself is shown."""
    name = unique("CHUNKS")
    async with visiting(server.url, Settings(payload_bytes=1000, whole_bytes=50_000)) as visitor:
        client = await visitor.nats()
        await Archive.create(client, name, f"{name}.large")
        publisher = Publisher.persistent(client, name, chunk_size=1000)
        body = json.dumps({"rows": ["needle"] * 50}).encode()
        assert len(body) < 1000
        long = bytes(range(256)) * 20
        for data in (body, long):
            await publisher.publish(f"{name}.large", data)
        last = (await assets.stream_info(client, name)).last_sequence
        text, first = await visitor.both(f"/streams/{name}/messages/1")
        assert (first["chunk"]["offset"], first["whole"]) == (0, False)
        assert "Show the whole payload" in text
        whole = await visitor.twin(f"/streams/{name}/messages/{last}?whole=yes")
        assert (whole["whole"], whole["size"], whole["cut"], whole["chunk"]["trouble"]) == (True, 5120, True, None)
        assert base64.b64decode(whole["data"]) == long[:1000]
        file = await visitor.get(f"/streams/{name}/messages/{last}/payload?whole=yes")
        assert (file.status, file.body) == (200, long)
        await assets.delete_message(client, name, last - 1, erase=False)
        broken = await visitor.twin(f"/streams/{name}/messages/{last}?whole=yes")
        assert "does not hold" in broken["chunk"]["trouble"]
        assert (broken["whole"], broken["size"]) == (False, 120)
        assert (await visitor.get(f"/streams/{name}/messages/{last}/payload?whole=yes")).status == 502


def shop() -> bytes:
    """Give a descriptor set with a type that imports one of Protobuf's own, as protoc writes it without imports."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    order.field.add(name="note", number=2, type="TYPE_STRING", label="LABEL_OPTIONAL")
    kind = ".google.protobuf.Timestamp"
    order.field.add(name="made_at", number=3, type="TYPE_MESSAGE", type_name=kind, label="LABEL_OPTIONAL")
    file.message_type.add(name="Empty")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


async def test_protobuf_payloads_are_read_by_their_types(visitor: Visitor, unique: Unique, tmp_path: Path):
    """A rule, a header or the reader names the type; what cannot be of a type, or hardly is, is told."""
    name = unique("PROTO")
    path = tmp_path / "types.binpb"
    path.write_bytes(shop())
    types = ProtobufTypes.load(path, [f"{name}.orders.>=shop.Order"])
    object.__setattr__(visitor.backend, "protobuf", types)
    client = await visitor.nats()
    await assets.add_stream(client, Stream(name=name, subjects=[f"{name}.>"]))
    body = b"\x08\x2a\x12\x0b<b>bold</b>"
    told = {"Content-Type": 'application/x-protobuf; messageType="shop.Order"'}
    await client.jetstream().publish(f"{name}.orders.eu", body)
    await client.jetstream().publish(f"{name}.other", body, headers=told)
    await client.jetstream().publish(f"{name}.other", body)
    await client.jetstream().publish(f"{name}.orders.eu", b"\xff\xff plainly not")
    await client.jetstream().publish(f"{name}.orders.eu", body + b"\x98\x06\x01")
    text, data = await visitor.both(f"/streams/{name}/messages/1")
    assert (data["form"], json.loads(data["text"])) == ("protobuf", {"id": "42", "note": "<b>bold</b>"})
    assert "<b>bold" not in text
    assert (await visitor.twin(f"/streams/{name}/messages/2"))["form"] == "protobuf"
    plain = await visitor.twin(f"/streams/{name}/messages/3")
    assert (plain["form"], plain["types"]["known"]) == ("hex", ["shop.Empty", "shop.Order"])
    chosen = await visitor.twin(f"/streams/{name}/messages/3?as=protobuf&type=shop.Order")
    assert (chosen["form"], chosen["types"]["chosen"]) == ("protobuf", "shop.Order")
    wrong = await visitor.twin(f"/streams/{name}/messages/4")
    assert (wrong["form"], wrong["note"]) == ("hex", "It cannot be read as shop.Order.")
    assert "1 of its fields are not known" in (await visitor.twin(f"/streams/{name}/messages/5"))["note"]
    assert (await visitor.twin(f"/streams/{name}/messages/3?type=shop.Nothing", 400))["error"]["kind"] == "InputError"
    for broken in (b"", b"\xff\xff", b"hello"):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="holds no Protobuf types"):
            ProtobufTypes.load(path)
