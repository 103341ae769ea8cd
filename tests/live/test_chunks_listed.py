"""What a stream holds in chunks is listed and told, and a publish says what it did."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import pytest

from penstock.chunks import Archive, Publisher
from penstock.connection import Connection
from penstock.errors import InputError, NotFoundError, UnfinishedError
from penstock.server import Server
from tests.live.chunks import CHUNK, storing
from tests.live.inprocess import Peer, runner

DATA = os.urandom(3 * CHUNK + 11)


async def half(archive: Archive, message_id: str) -> None:
    """Leave the first chunks of a message in the stream."""

    def stopping() -> Any:
        yield DATA[: 2 * CHUNK + 1]
        raise RuntimeError("stopped")

    with pytest.raises(UnfinishedError):
        await storing(archive).publish(await archive.subject(), stopping(), message_id=message_id)


async def test_a_publish_says_whether_it_stored_went_on_or_found(nc: Connection, archive: Archive) -> None:
    """A new payload is stored, one that was begun goes on, one that is there is found."""
    subject, publisher = await archive.subject(), storing(archive)
    assert (await publisher.publish(subject, DATA)).outcome == "stored"
    first = await publisher.publish(subject, DATA, message_id="mine")
    assert (first, first.outcome, first.duplicate) == ("mine", "stored", False)
    again = await publisher.publish(subject, DATA, message_id="mine")
    assert (again.outcome, again.duplicate) == ("found", True)
    await half(archive, "half")
    assert (await publisher.publish(subject, DATA, message_id="half")).outcome == "continued"


async def test_messages_are_listed_and_told(nc: Connection, archive: Archive) -> None:
    """Whole ones, begun ones and those of plain publishers, each with what is there of it."""
    subject = await archive.subject()
    await storing(archive).publish(subject, DATA, message_id="b")
    await storing(archive).publish(subject, b"", message_id="a")
    await half(archive, "c")
    found = {info.message_id: info async for info in archive.list()}
    assert list(found) == ["a", "b", "c"]
    assert {message_id: await archive.info(message_id) for message_id in found} == found
    whole, begun = found["b"], found["c"]
    assert (whole.size, whole.total, whole.chunks, whole.is_whole) == (len(DATA), len(DATA), 4, True)
    assert (whole.digest, whole.subject) == (hashlib.sha256(DATA).hexdigest(), f"{subject}.b")
    assert whole.time is not None
    assert (begun.total, begun.is_whole, begun.digest) == (None, False, None)
    assert "does not hold" in begun.problem
    assert (found["a"].size, found["a"].total, found["a"].is_whole) == (0, 0, True)
    with pytest.raises(NotFoundError, match="no message none"):
        await archive.info("none")


async def test_messages_of_plain_publishers_and_broken_ones_are_listed(nc: Connection, unique: Any) -> None:
    """What others stored on a subject of the stream is found there; what contradicts itself says so."""
    name, subject = unique("S"), unique("plain")
    await nc.jetstream().add_stream(name=name, subjects=[subject, f"{subject}.*"], storage="memory")
    archive = Archive(nc, name, subject)
    assert [info async for info in archive.list()] == []
    message_id = await Publisher(nc, CHUNK, digest=True).publish(subject, DATA)
    await nc.publish(subject, b"no chunk")
    await nc.publish(f"{subject}.x", b"x", headers={"X-Msg-Id": "x", "X-Offset": "word", "X-Flags": "0"})
    for offset in ("0", "1"):
        await nc.publish(f"{subject}.y", b"xx", headers={"X-Msg-Id": "y", "X-Offset": offset, "X-Flags": "0"})
    await nc.flush()
    found = {info.message_id: info async for info in archive.list()}
    assert list(found) == ["x", "y", message_id]
    assert "X-Offset" in found["x"].problem
    assert "overlaps" in found["y"].problem
    assert (found[message_id].is_whole, found[message_id].subject) == (True, subject)
    several = Archive(nc, name)
    with pytest.raises(InputError, match="holds"):
        await anext(several.list())


def test_the_commands(server: Server, peer: Peer, unique: Any, tmp_path: Any) -> None:
    """`chunks ls` and `chunks info` show it, and `chunks send` says what it did."""
    run, stream, subject = runner(server.url, "chunks"), unique("S"), unique("c")
    (tmp_path / "file").write_bytes(DATA)
    send = ("send", str(tmp_path / "file"), subject, "--persistent", stream, "--id", "mine")
    assert "Sent" in run(*send).stdout
    assert "has it already" in run(*send).stdout
    assert json.loads(run(*send, "--json").stdout)["outcome"] == "found"
    assert run("ls", stream, "--names").stdout == "mine\n"
    assert "whole" in run("ls", stream).stdout
    [listed] = json.loads(run("ls", stream, "--json").stdout)
    assert listed == json.loads(run("info", stream, "mine", "--json").stdout)
    assert (listed["bytes"], listed["whole"], listed["chunks"]) == (len(DATA), True, 1)
    assert f"SHA-256 {hashlib.sha256(DATA).hexdigest()}" in run("info", stream, "mine").stdout
    assert "no message none" in run("info", stream, "none", status=1).stderr
    assert "There is no stream NOPE. Archive.create" in run("ls", "NOPE", status=1).stderr
    peer.do(peer.client.jetstream().purge_stream(stream))
    assert "no payloads" in run("ls", stream).stdout
