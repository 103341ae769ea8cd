"""What a message can carry, to the byte: payloads, headers, subjects, and how much of each."""

from __future__ import annotations

import array
import asyncio
import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, Msg
from penstock.errors import LocalProtocolError
from penstock.server import Server
from penstock.wire.protocol import encode_headers
from tests.live.command import environment

Unique = Callable[..., str]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"bytes\r\nMSG x 1 3\r\nabc\r\n",
        bytearray(b"a bytearray"),
        memoryview(b"a view"),
        memoryview(b"every second one")[::2],
        memoryview(array.array("i", [1, 2, 3])),
        memoryview(bytes(range(24))).cast("B", (4, 6)),
        memoryview(bytes(800_000)).cast("B", (400_000, 2)),
        memoryview(bytes(900_000))[1:],
        memoryview(bytearray(900_000)),
        memoryview(array.array("d", [1.5] * 100_000)),
    ],
    ids=[
        "empty",
        "lines",
        "bytearray",
        "view",
        "strided",
        "numbers",
        "matrix",
        "large matrix",
        "large view",
        "large changing view",
        "large numbers",
    ],
)
async def test_any_bytes_are_a_payload(nc: Connection, unique: Unique, payload: Any):
    """What holds bytes can be published, whatever its items are, and arrives as bytes; headers do not change that."""
    subscription = await nc.subscribe(unique("payload"))
    await nc.publish(subscription.subject, payload)
    await nc.publish(subscription.subject, payload, headers={"A": "b"})
    for headers in (None, {"A": "b"}):
        message = await subscription.next_msg()
        assert type(message.data) is bytes
        assert (message.data, message.headers) == (bytes(payload), headers)
    await nc.flush()
    assert nc.stretch == 1


@pytest.mark.parametrize("payload", ["text", 5, None, ["a"]])
async def test_what_holds_no_bytes_is_refused(nc: Connection, unique: Unique, payload: Any):
    """Text and numbers are no payload, and nothing is sent."""
    with pytest.raises(TypeError):
        await nc.publish(unique("payload"), payload)
    await nc.flush()
    assert (nc.stretch, nc.stats["out_msgs"]) == (1, 0)


async def test_headers_come_as_they_were_sent(nc: Connection, unique: Unique):
    """Names keep their case, values lose outer blanks, a repeated name is there with all its values in the block."""
    subscription = await nc.subscribe(unique("headers"))
    await nc.publish(
        subscription.subject,
        b"body",
        headers={
            "Plain": "one",
            "plain": "two",
            "Many": ["a", "b", "c"],
            "Empty": "",
            "Odd": " ü: 日本 ",
            "Colon": ":",
        },
    )
    message = await subscription.next_msg()
    assert message.data == b"body"
    assert message.headers == message.header
    assert message.headers == {"Plain": "one", "plain": "two", "Many": "c", "Empty": "", "Odd": "ü: 日本", "Colon": ":"}
    assert message.header_block is not None
    assert message.header_block.startswith(b"NATS/1.0\r\n")
    for value in (b"a", b"b", b"c"):
        assert b"\r\nMany: %b\r\n" % value in message.header_block
    assert (message.status, message.description) == (None, "")


async def test_odd_header_blocks_of_others_do_no_harm(nc: Connection, unique: Unique):
    """Bytes that are no UTF-8 arrive and can be sent on; of blocks that are none what cannot be read is left out."""
    subject = unique("odd")
    subscription = await nc.subscribe(subject)
    blocks = [
        b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
        b"NATS/1.0 404 Not here\r\nA: b\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"rubbish\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ]
    for block in blocks:
        assert nc.post(b"HPUB %b %d %d\r\n%bx\r\n" % (subject.encode(), len(block), len(block) + 1, block))
    got = [await subscription.next_msg() for _ in blocks]
    assert [message.header_block for message in got] == blocks
    assert [message.headers for message in got] == [
        {"A": "\udcff\udcfe"},
        {"A": "b", "Status": "404", "Description": "Not here"},
        None,
        None,
        {},
    ]
    assert (got[1].status, got[1].description) == (404, "Not here")
    assert [message.data for message in got] == [b"x"] * 5
    await nc.publish(subject, b"x", headers=got[0].headers)
    assert (await subscription.next_msg()).header_block == blocks[0]


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"a b": "x"}, "is not a name for a header"),
        ({"a:b": "x"}, "is not a name for a header"),
        ({"": "x"}, "is not a name for a header"),
        ({"ä": "x"}, "is not a name for a header"),
        ({"a": "x\ny"}, "holds a line break"),
        ({"a": ["x", "y\r"]}, "holds a line break"),
        ({"a": "\ud800"}, "cannot be written as UTF-8"),
    ],
)
async def test_headers_that_cannot_be_sent(nc: Connection, unique: Unique, headers: Any, says: str):
    """A name or value that would break the block is refused before anything is sent."""
    with pytest.raises(LocalProtocolError, match=says):
        await nc.publish(unique("headers"), headers=headers)
    await nc.flush()
    assert nc.stats["out_msgs"] == 0


async def test_subjects_that_are_no_utf8(nc: Connection, unique: Unique):
    """A subject may hold any bytes but blanks and control characters: they come out as they went in."""
    subject = f"{unique('bytes')}.ü.日本.\udcff\udcfe"
    subscription, wild = await nc.subscribe(subject), await nc.subscribe(subject.rpartition(".")[0] + ".*", "gruppe-ü")
    await nc.publish(subject, b"1", reply=subject)
    for found in (subscription, wild):
        message = await found.next_msg()
        assert (message.subject, message.reply, message.data) == (subject, subject, b"1")

    async def answer(message: Msg) -> None:
        await message.respond(message.subject.encode("utf-8", "surrogateescape"))

    await nc.subscribe(f"{subject}.ask", cb=answer)
    assert (await nc.request(f"{subject}.ask", timeout=10)).data.endswith(b"\xff\xfe.ask")


@pytest.mark.parametrize("subject", ["", " ", "a b", "a\tb", "a\r\nPING", "a..b", ".a", "a.", "a\x00b", "\ud800"])
async def test_what_is_no_subject(nc: Connection, subject: str):
    """Subjects that the server would not take, or would take for commands, are refused by every call."""
    for call in (
        lambda: nc.publish(subject),
        lambda: nc.subscribe(subject),
        lambda: nc.request(subject),
        lambda: nc.tap(subject, print),
    ):
        with pytest.raises(LocalProtocolError, match=r"is not a subject|cannot be written"):
            await call()
    if subject:
        with pytest.raises(LocalProtocolError, match="is not a subject"):
            await nc.publish("fine", reply=subject)
    if "." not in subject and subject:
        with pytest.raises(LocalProtocolError, match=r"is not a name for a queue group|cannot be written"):
            await nc.subscribe("fine", queue=subject)
    for wild in ("a.*", ">", "a.>"):
        with pytest.raises(LocalProtocolError, match="has wildcards"):
            await nc.publish(wild)
    await nc.flush()
    assert (nc.stretch, nc.stats["out_msgs"], nc.stats["errors_received"]) == (1, 0, 0)


async def test_messages_as_large_as_the_server_takes(nc: Connection, unique: Unique):
    """A message of max_payload, headers included, goes through; a byte more is refused, and the connection stays."""
    subscription = await nc.subscribe(unique("large"))
    most = nc.max_payload
    payload = bytes(range(256)) * (most // 256)
    assert len(payload) == most
    for _ in range(3):
        await nc.publish(subscription.subject, payload)
    for _ in range(3):
        assert (await subscription.next_msg(timeout=20)).data == payload
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    await nc.publish(subscription.subject, payload[block:], headers={"A": "b"})
    assert (await subscription.next_msg(timeout=20)).data == payload[block:]
    for body, headers in ((payload + b"x", None), (payload[block - 1 :], {"A": "b"})):
        with pytest.raises(LocalProtocolError, match=f"has {most + 1} bytes with its headers, larger than .*{most}"):
            await nc.publish(subscription.subject, body, headers=headers)
        with pytest.raises(LocalProtocolError, match="larger than the server takes"):
            await nc.request(subscription.subject, body, headers=headers)
    await nc.flush()
    assert nc.stretch == 1


async def test_subjects_as_long_as_the_server_takes(nc: Connection, unique: Unique):
    """Subject and reply are sent up to the limit of the server's lines; more is refused here, the connection stays."""
    subscription = await nc.subscribe("*")
    longest = 4096 - len("HPUB   1048576 1048576\r\n") - 10
    subject = (unique("long") + "x" * longest)[:longest]
    await nc.publish(subject, b"1")
    await nc.publish(subject[:2000], b"2", reply=subject[: longest - 2001])
    await nc.publish(subject, b"3", headers={"A": "b"})
    await nc.flush()
    assert nc.stretch == 1
    found = [await subscription.next_msg() for _ in range(3)]
    assert [message.data for message in found] == [b"1", b"2", b"3"]
    assert [len(message.subject) for message in found] == [longest, 2000, longest]
    for given, reply in ((subject + "x" * 100, ""), (subject[:3000], subject[:1100])):
        with pytest.raises(LocalProtocolError, match="the server takes 4096"):
            await nc.publish(given, reply=reply)
    with pytest.raises(LocalProtocolError, match="the server takes 4096"):
        await nc.subscribe(subject + "x" * 100)
    await nc.flush()
    assert (nc.stretch, nc.stats["errors_received"]) == (1, 0)


async def test_a_stored_header_that_is_no_text_comes_back(
    nc: Connection, server: Server, unique: Unique, tmp_path: Path
):
    """A header that is no UTF-8 is read from a stream, sent on and printed by the command as the bytes that it is."""
    name = unique("stored")
    await nc.jetstream().add_stream(name=name, subjects=[name])
    block = b"NATS/1.0\r\nName: Jos\xe9\r\n\r\n"
    acks = await nc.subscribe(nc.new_inbox())
    reply = acks.subject.encode()
    nc.post(b"HPUB %b %b %d %d\r\n%bx\r\n" % (name.encode(), reply, len(block), len(block) + 1, block))
    assert b'"seq":1' in (await acks.next_msg(30)).data
    found = await nc.jetstream().get_msg(name, 1)
    assert found.headers == {"Name": ["Jos\udce9"]}
    assert encode_headers(found.headers) == block
    command = [sys.executable, "-m", "penstock", "stream", "get", name, "1"]
    for further, says in ([], b"Name: Jos\xe9\n"), (["--json"], base64.b64encode(block)):
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, *further],
            capture_output=True,
            timeout=60,
            env=environment(tmp_path, NATS_URL=server.url),
        )
        assert says in done.stdout, done.stderr
