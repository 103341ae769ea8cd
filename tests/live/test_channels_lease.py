"""Who leads, and who may take over: nobody is deposed for being slow, and nobody acts on a right that may be gone."""

from __future__ import annotations

import asyncio

import pytest

from penstock.channels.state import State
from penstock.errors import ServerError
from penstock.wire.jetstream import names
from tests.live.cable import relay
from tests.live.stan import Got, until


async def test_a_leader_that_is_slow_to_answer_is_not_deposed(stan):
    """A gateway that starts while the leader has no time to answer sees that it writes, and refuses to start."""
    leader = await stan.serve(lease=1.0)
    stuck = asyncio.Event()

    async def wait(*args) -> None:
        await stuck.wait()

    leader.service.queue.add(wait, b"", b"")
    with pytest.raises(ServerError, match="served by somebody else"):
        await stan.serve(lease=60.0)
    stuck.set()
    client = await stan.client()
    await client.publish("foo", b"x")
    assert leader.leading


async def test_only_the_successor_takes_over(stan):
    """Of two that saw the same leader go, one takes over; the other one is refused, and does not depose it."""
    connection = await stan.connection()
    first, second = State(connection, stan.cluster), State(connection, stan.cluster)
    await first.create()
    await second.create()
    assert await first.lead(0)
    seen = first.epoch
    assert await second.lead(seen)
    assert not await first.lead(seen)
    assert await second.beat() is not None
    assert await first.beat() is None


async def test_a_standby_does_not_take_an_older_goodbye_for_that_of_the_leader(stan):
    """The word with which a leader went is not taken for one of its successor, which has not shown a pulse yet."""
    await (await stan.serve()).stop()
    connection = await stan.connection()
    rival = State(connection, stan.cluster)
    await rival.create()
    before, _ = await rival.last("lead")
    rival._pulse = lambda: [(f"{rival._head}info", b"x")]  # it leads, and its pulse is not there yet
    assert await rival.lead(before)
    taps = [await connection.tap(f"_STAN.discover.{stan.cluster}", lambda *message: None)]
    standby = await stan.serve(standby=True, lease=600.0)
    await until(lambda: standby._state is not None and standby._state.ready)
    await asyncio.sleep(1.0)
    assert not standby.leading
    assert (await rival.last("lead"))[0] == rival.epoch
    await taps[0].unsubscribe()


async def test_after_a_reconnection_leadership_is_shown_anew(server, stan, monkeypatch):
    """While the way to the clients was down a rival saw nobody: nothing is done before it is shown that we lead."""
    async with relay(server) as wire:
        gateway = await stan.serve()
        await gateway.stop()
        gateway._given = gateway._given.replace(url=wire.url)
        await gateway.start()
        lease, beat, shown = gateway._lease, gateway._state.beat, asyncio.Event()
        client = await stan.client(ack_timeout=60.0)
        await client.publish("foo", b"1")
        assert lease.valid

        async def later(**how) -> float | None:
            await shown.wait()
            return await beat(**how)

        monkeypatch.setattr(gateway._state, "beat", later)
        stretch = gateway._front.stretch
        wire.cut()
        await until(lambda: gateway._front.stretch > stretch and gateway._front.is_connected)
        publishing = asyncio.ensure_future(client.publish("foo", b"2"))
        await asyncio.sleep(0.3)
        assert not lease.valid
        assert not publishing.done()
        shown.set()
        await publishing
        assert lease.valid
        await gateway.stop()


async def test_a_look_while_something_is_stored(stan, monkeypatch):
    """An answer about a stream that is older than what we stored meanwhile does not make it one that was put back."""
    gateway = await stan.serve()
    client = await stan.client()
    await client.subscribe("foo", Got())
    await client.publish("foo", b"x")
    service = gateway.service
    stream, ask = service.channels["foo"].stream, service.store._ask

    async def late(method: str, *args, **how):
        answer = await ask(method, *args, **how)
        if method == names.stream_info(stream.name):
            before = stream.last
            await client.publish("foo", b"y")
            assert stream.last == before + 1
        return answer

    monkeypatch.setattr(service.store, "_ask", late)
    await service.store.refresh(stream)
    monkeypatch.undo()
    assert stream.short_since is None
