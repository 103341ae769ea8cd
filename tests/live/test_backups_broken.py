"""Backups whose other side fails: no wait for what will not come, no memory for what nobody asked for, no file left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import DisconnectedError, PenstockError, RemoteProtocolError
from penstock.jetstream import assets, snapshot
from penstock.model import Stream
from penstock.server import Server
from tests.live.cable import relay
from tests.scripted import Asked, Peer, Step, js, log_in, playing, serve
from tests.scripted_stream import CONFIG, STATE, STREAM

MIB = 1024 * 1024


@pytest.mark.parametrize("last", [False, True], ids=["between chunks", "at the end"])
async def test_a_restore_ends_with_its_connection(
    server: Server, nc: Connection, unique: Callable[..., str], tmp_path: Path, last: bool
):
    """The answer to a chunk does not come on another connection: that is told at once, and not after an hour."""
    name = unique("BROKEN")
    await assets.add_stream(nc, Stream(name=name, subjects=[name]))
    for _ in range(4):
        await nc.jetstream().publish(name, bytes(range(256)) * 1024)
    made = await snapshot.backup(nc, name, tmp_path / "b")
    await assets.delete_stream(nc, name)
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as shaky:
        left = made["size"]

        def progress(size: int) -> None:
            nonlocal left
            left -= size
            if not left or not last:
                wire.hold()
                asyncio.get_running_loop().call_later(0.2, wire.cut)

        with pytest.raises(DisconnectedError, match=f"broke during the restore of {name}"):
            async with asyncio.timeout(15):
                await snapshot.restore(shaky, tmp_path / "b", progress=progress)


def sending(payload: bytes, count: int) -> Callable[[Asked], Step]:
    """Take the question for a backup, and send so many chunks of it without waiting for acks."""

    def answer(asked: Asked) -> Step:
        def step(peer: Peer) -> None:
            peer.send(js({"config": CONFIG, "state": STATE})(asked))
            inbox = asked.json["deliver_subject"]
            sid = next(sid for sid, subject in peer.subscriptions.items() if subject == inbox)
            for number in range(1, count + 1):
                reply = f"$JS.SNAPSHOT.ACK.S.{number}"
                peer.send(b"MSG %s %d %s %d\r\n%s\r\n" % (inbox.encode(), sid, reply.encode(), len(payload), payload))
            peer.stay()

        return step

    return answer


async def test_a_backup_that_comes_without_our_acks_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that sends on and on is told from one that waits for acks; what was written is removed."""
    monkeypatch.setattr(snapshot, "_AHEAD", 2 * MIB)

    def slow(file: Any, data: bytes) -> None:
        time.sleep(0.05)

    monkeypatch.setattr(snapshot, "_write_whole", slow)
    script = serve(stream_info=js({**STREAM, "config": {**CONFIG, "storage": "file"}}), api=sending(bytes(MIB), 30))
    with playing(log_in(), script) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            with pytest.raises(RemoteProtocolError, match="ahead of our acks"):
                await snapshot.backup(client, "S", tmp_path / "b", window_size=MIB)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "answer", [{}, {"config": [], "state": {}}, {"config": {}, "state": 5}, {"deliver_subject": 5}]
)
async def test_an_answer_that_says_nothing_is_an_error_of_ours(tmp_path: Path, answer: dict[str, Any]):
    """What a backup or a restore is told and cannot use ends it with an error, and leaves nothing."""
    script = serve(stream_info=js({**STREAM, "config": {**CONFIG, "storage": "file"}}), api=js(answer))
    folder = Path(__file__).resolve().parents[1] / "golden" / "backups" / "server_2_15"
    with playing(log_in(), script) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            with pytest.raises(PenstockError, match="JetStream's answer"):
                await snapshot.backup(client, "S", tmp_path / "b")
            with pytest.raises(PenstockError, match="JetStream's answer"):
                await snapshot.restore(client, folder)
    assert not (tmp_path / "b").exists()
