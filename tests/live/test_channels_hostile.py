"""What a server says of the streams of channels, and cannot be: an error of ours, and no end of a gateway."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.channels import ChannelLimits, store
from penstock.channels.catalog import Catalog
from penstock.channels.messages import ChannelStream
from penstock.channels.names import CHANNEL, state_stream, stream_name
from penstock.channels.state import State
from penstock.channels.store import Store
from penstock.connection import api_request, connect
from penstock.errors import RemoteProtocolError
from penstock.options import ConnectionOptions
from tests.live.stan import Got, until
from tests.scripted import Answer, Asked, js, log_in, playing, serve
from tests.scripted_stream import CONFIG, STATE, STREAM

STRANGE: list[Any] = [5, "x", True, [5], {"a": {"b": 1}}, -1.5]
NAME = stream_name("c", "foo")
CHANNELS = {**STREAM, "config": {**CONFIG, "name": NAME, "metadata": {CHANNEL: "foo"}}}
LACKING = [{name: value for name, value in STREAM.items() if name != left_out} for left_out in ("config", "state")]
CASES: list[dict[str, Any]] = [
    *LACKING,
    *({**CHANNELS, "config": value} for value in STRANGE),
    *({**CHANNELS, "state": value} for value in STRANGE),
    *({**CHANNELS, "created": value} for value in STRANGE if value != "x"),
    *({**CHANNELS, "config": {**CONFIG, "name": value}} for value in STRANGE if value != "x"),
    *({**CHANNELS, "config": {**CONFIG, "metadata": value}} for value in STRANGE),
    *({**CHANNELS, "config": {**CONFIG, "subjects": value}} for value in STRANGE),
    *({**CHANNELS, "config": {**CONFIG, "num_replicas": value}} for value in STRANGE if value != 5),
    *({**CHANNELS, "state": {**STATE, "first_seq": value}} for value in STRANGE if value != 5),
    *({**CHANNELS, "state": {**STATE, "last_seq": value}} for value in STRANGE if value != 5),
]


@pytest.mark.parametrize("info", CASES)
async def test_a_stream_that_cannot_be(info: dict[str, Any]):
    """Whoever looks at the stream of a channel, or at that of the state, is told which field cannot be."""
    listed = js({"total": 1, "streams": [info]})
    with playing(log_in(), serve(stream_info=js(info), api=listed)) as peer:
        async with await connect(peer.url, reconnect=False) as client:
            channels, state = Store(client, "c"), State(client, "c")
            looked = (
                channels.streams(),
                channels.find("foo", ChannelLimits()),
                channels.create("foo", ChannelLimits()),
                channels.refresh(ChannelStream("foo", NAME, "foo", ChannelLimits())),
                state.create(),
            )
            for look in looked:
                with pytest.raises(RemoteProtocolError, match="of JetStream's answer is not"):
                    await look


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("field", ["total", "streams"])
async def test_a_list_of_channels_that_cannot_be(field: str, value: Any):
    """A list of streams that is none is an error that names the field, also for who lists channels."""
    listed: Answer = js({"total": 1, "streams": [CHANNELS], field: value})
    if (field, value) == ("total", 5):  # that may be: what follows is empty

        def listed(asked: Asked) -> bytes:
            return js({"total": 5, "streams": [] if asked.json["offset"] else [CHANNELS]})(asked)

    with playing(log_in(), serve(api=listed)) as peer:
        async with Catalog(ConnectionOptions(peer.url, reconnect=False), "c", timeout=0.2) as catalog:
            if (field, value) == ("total", 5):
                assert list(await catalog.store.streams()) == ["foo"]
                return
            with pytest.raises(RemoteProtocolError, match=f"{field!r} of JetStream's answer is not"):
                await catalog.store.streams()


async def test_a_gateway_that_served_goes_on_after_an_answer_that_cannot_be(stan, monkeypatch, caplog):
    """A gateway that begins anew and is told nonsense of its channels tries again, until it is told the truth."""
    gateway = await stan.serve()
    client = await stan.client()
    await client.publish("foo", b"x")
    strange: list[Any] = [{"total": 1, "streams": [{}]}, {"total": 1, "streams": 5}]

    async def answered(connection: Any, method: str, *given: Any, **how: Any) -> Any:
        if method == "STREAM.LIST" and strange:
            return strange.pop()
        return await api_request(connection, method, *given, **how)

    monkeypatch.setattr(store, "api_request", answered)
    await api_request(await stan.connection(), f"STREAM.DELETE.{state_stream(stan.cluster)}")
    await until(lambda: not strange)
    await until(lambda: gateway.leading)
    assert "not serving yet: The field" in caplog.text
    again = await stan.client("again")
    await again.subscribe("foo", got := Got(), start="First")
    await got.count(1)
