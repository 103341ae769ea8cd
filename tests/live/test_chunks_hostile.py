"""What a server says of a stream for payloads, and cannot be: an error of ours, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.chunks import Archive, Publisher
from penstock.connection import connect
from penstock.errors import PenstockError
from tests.scripted import js, log_in, playing, serve
from tests.scripted_stream import CONFIG, STATE, STREAM

STRANGE: list[Any] = [5, "x", True, [5], {"a": {"b": 1}}, -1.5]
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("config", {**STREAM, "config": value}) for value in STRANGE),
    *(("state", {**STREAM, "state": value}) for value in STRANGE if value != {"a": {"b": 1}}),
    *(("subjects", {**STREAM, "config": {**CONFIG, "subjects": value}}) for value in STRANGE),
    *(("transform", {**STREAM, "config": {**CONFIG, "subject_transform": value}}) for value in STRANGE),
    *(("size", {**STREAM, "config": {**CONFIG, "max_msg_size": value}}) for value in ("x", [5], {"a": 1}, -1.5)),
    *(("held", {**STREAM, "state": {**STATE, "subjects": value}}) for value in STRANGE),
    *(("domain", {**STREAM, "domain": value}) for value in STRANGE if value != "x"),
]


@pytest.mark.parametrize("info", [info for _, info in CASES], ids=[name for name, _ in CASES])
async def test_a_stream_that_is_none_is_an_error_of_ours(info: dict[str, Any]):
    """Neither who stores a payload, nor who reads or consumes some, stumbles over a field of another type."""

    async def handle(message_id: str, data: bytes) -> None:
        return None

    with playing(log_in(), serve(stream_info=js(info))) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            archive = Archive(client, "S", "s")
            with pytest.raises(PenstockError):
                await Publisher.persistent(client, "S", timeout=1.0).publish("s", b"hello")
            with pytest.raises(PenstockError):
                await archive.fetch("m")
            with pytest.raises(PenstockError):
                async with Archive(client, "S", "s").consume(handle):
                    pass


@pytest.mark.parametrize("value", [5, "x", True, [5], -1.5])
@pytest.mark.parametrize("field", ["config", "delivered"])
async def test_a_consumer_that_is_none_is_an_error_of_ours(field: str, value: Any):
    """The same of the consumer that gives stored payloads."""

    async def handle(message_id: str, data: bytes) -> None:
        return None

    there = {"stream_name": "S", "name": "mine", "created": STREAM["created"], "config": {}, "delivered": {}}
    with playing(log_in(), serve(consumer_info=js(there | {field: value}))) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            with pytest.raises(PenstockError):
                async with Archive(client, "S", "s").consume(handle, durable="mine"):
                    pass
