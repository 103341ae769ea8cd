"""What a server does not say that it did, is not taken for done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelStream
from penstock.channels.store import Store
from penstock.connection import Connection, connect
from penstock.errors import JetStreamError
from penstock.jetstream import assets
from tests.scripted import js, log_in, playing, serve


async def delete_channel(nc: Connection) -> None:
    await Store(nc, "c").delete(ChannelStream("x", "S", "s.x", ChannelLimits()))


ACTS: dict[str, Callable[[Connection], Awaitable[object]]] = {
    "a stream": lambda nc: assets.delete_stream(nc, "S"),
    "a consumer": lambda nc: assets.delete_consumer(nc, "S", "c"),
    "a message": lambda nc: assets.delete_message(nc, "S", 1),
    "messages": lambda nc: assets.purge_stream(nc, "S"),
    "messages of the namesake in nats-py": lambda nc: nc.jetstream().purge_stream("S"),
    "a channel": delete_channel,
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("said", [b'{"success":false,"purged":0}', b'{"purged":5}', b'{"success":"yes","purged":5}'])
async def test_what_was_not_done_is_told(act: str, said: bytes):
    """An answer that is not an error, and does not say that it was done, is told as one that was not."""
    with playing(log_in(), serve(api=js(said), deleted=js(said))) as server:
        async with await connect(server.url) as nc:
            with pytest.raises(JetStreamError, match="did not do it"):
                await ACTS[act](nc)


@pytest.mark.parametrize("act", ACTS)
async def test_what_was_done_is_believed(act: str):
    """An answer that says so is enough."""
    said = js(b'{"success":true,"purged":5}')
    with playing(log_in(), serve(api=said, deleted=said)) as server:
        async with await connect(server.url) as nc:
            assert await ACTS[act](nc) in (None, 5)
