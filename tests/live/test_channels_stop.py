"""A gateway stops in a few seconds, whatever it is doing and whatever JetStream does, and leaves nothing running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from penstock.channels import Client, Gateway
from penstock.channels import service as service_module
from penstock.channels.state import State
from penstock.connection.requests import Requests
from penstock.errors import DisconnectedError
from penstock.wire.jetstream import names
from tests.live.cable import Relay, relay
from tests.live.stan import Got, Stan, until

BOUND = 20.0  # seconds; a stop that hangs would hang for ever
STOPS = 30


@pytest.fixture
async def wire(server, stan):
    """A way to the server that holds its answers up."""
    async with relay(server) as made:
        yield made
        made.flows.set()
        for gateway in stan.gateways:
            await gateway.stop()


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    """Have a leader ask JetStream nearly all the time."""
    monkeypatch.setattr(service_module, "_LOOK_AROUND", 0.005)


async def subscribed(stan: Stan) -> Client:
    """Give the cluster a client with a subscription, without which nobody asks for its stream."""
    client = await stan.client(ping_interval=600)
    await client.subscribe("foo", Got(), durable="d")
    return client


def through(wire: Relay, stan: Stan, **options) -> Gateway:
    """Make a gateway of the cluster whose connections go over the wire."""
    made = Gateway(wire.url, cluster_id=stan.cluster, subject_prefix=f"{stan.cluster}.", **options)
    stan.gateways.append(made)
    return made


async def stop(gateway: Gateway) -> float:
    """Stop a gateway, and give how long that took; nothing of it runs after that."""
    running = [*gateway._work, *([gateway._task] if gateway._task else [])]
    service = gateway._service
    began = time.monotonic()
    async with asyncio.timeout(BOUND):
        await gateway.stop()
    assert all(task.done() for task in running)
    assert service is None or not service.shared._tasks
    assert not gateway.leading
    return time.monotonic() - began


@asynccontextmanager
async def at_each_answer(act: Callable[[str], None]):
    """Call something in the very turn in which a request is answered, before whoever asked goes on.

    It holds for connections that are made in the meantime.
    """
    answered = Requests._answered

    def spy(requests: Requests, subject: bytes, *rest) -> None:
        waiting = requests._waiting.get(subject)
        answered(requests, subject, *rest)
        if waiting is not None and waiting.hear is None:
            act(waiting.subject)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "_answered", spy)
        yield


async def test_thirty_stops_of_a_leader_that_asks(stan, wire):
    """Thirty stops, at moments spread over the time that an answer takes, while the leader looks at its streams."""
    await stan.serve()
    await subscribed(stan)
    await stan.gateways[0].stop()
    wire.delay = 0.004
    for turn in range(STOPS):
        gateway = through(wire, stan)
        await gateway.start()
        await asyncio.sleep(0.02 + 0.0004 * turn)
        await stop(gateway)


async def test_a_stop_in_the_turn_in_which_the_answer_comes(stan, wire):
    """A leader whose tasks are told to end just when they are answered, and could go on, ends all the same."""
    await stan.serve()
    await subscribed(stan)
    await stan.gateways[0].stop()
    for _ in range(STOPS):
        gateway = through(wire, stan)
        told = asyncio.Event()

        def tell(subject: str, gateway: Gateway = gateway, told: asyncio.Event = told) -> None:
            asked = subject.endswith(names.stream_info(stan.stream("foo")))
            if asked and gateway.leading and not told.is_set():
                for task in gateway._work:
                    task.cancel()
                told.set()

        async with at_each_answer(tell):
            await gateway.start()
            await asyncio.wait_for(told.wait(), BOUND)
            await stop(gateway)


async def test_thirty_stops_of_a_standby_that_asks(stan, wire):
    """Thirty stops of a standby in the turn in which it is answered about its leader's pulse."""
    leader = await stan.serve()
    for _ in range(STOPS):
        standby = through(wire, stan, standby=True, lease=1.0)
        asked, stopping = asyncio.Event(), []

        def tell(subject: str, standby: Gateway = standby, asked: asyncio.Event = asked, stopping=stopping) -> None:
            if not stopping and subject.endswith(names.message_get(f"{stan.cluster}=state")):
                standby._task.cancel()
                stopping.append(asyncio.ensure_future(stop(standby)))
                asked.set()

        async with at_each_answer(tell):
            await standby.start()
            await asyncio.wait_for(asked.wait(), BOUND)
            await stopping[0]
        assert leader.leading


async def test_a_stop_while_jetstream_is_silent(stan, wire, caplog):
    """When no answer comes any more a stop does without, and its successor serves as ever."""
    gateway = through(wire, stan, timeout=60.0)
    await gateway.start()
    client = await subscribed(stan)
    wire.flows.clear()
    gateway.service.state.put("client.somebody", b"")  # something that is to be stored
    took = await stop(gateway)
    assert took < 60.0
    assert "did not take the last of the state in time" in caplog.text
    await stan.serve()
    await client.publish("foo", b"x")


async def test_a_stop_while_the_server_is_away(stan, wire):
    """A gateway that tries to reach its server again is stopped, too; so is one that stands by meanwhile."""
    gateway = through(wire, stan)
    await gateway.start()
    standby = through(wire, stan, standby=True)
    await standby.start()
    wire.refuse = True
    wire.cut()
    await until(lambda: gateway._back.is_reconnecting and standby._back.is_reconnecting)
    await stop(gateway)
    await stop(standby)


async def test_a_stop_of_a_start(stan, wire):
    """A gateway that is told to stop while it waits for JetStream to begin does not begin."""
    wire.delay = 0.01
    for turn in range(10):
        gateway = through(wire, stan, timeout=60.0)
        starting = asyncio.ensure_future(gateway.start())
        await until(lambda gateway=gateway: gateway._task is not None)
        await asyncio.sleep(0.004 * turn)  # it needs eight answers, one after the other
        await stop(gateway)
        with pytest.raises(DisconnectedError, match="stopped before it could serve"):
            await starting
        assert gateway.service is None


async def test_a_start_that_is_cancelled(stan, wire):
    """Whoever gives up starting leaves nothing running, although JetStream does not answer."""
    gateway = through(wire, stan, timeout=60.0)
    starting = asyncio.ensure_future(gateway.start())
    async with asyncio.timeout(BOUND):
        while gateway._back is None or gateway._task is None:
            await asyncio.sleep(0)  # every turn of the loop: with the next answers the start would be done
    wire.flows.clear()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(BOUND):
            await starting
    assert gateway._task is None
    assert gateway._front is None


async def test_two_stops_at_once(stan):
    """A gateway that is stopped twice is stopped once; both come back when it is done, and a third one at once."""
    gateway = await stan.serve()
    await subscribed(stan)
    waiting = asyncio.ensure_future(gateway.wait())
    await asyncio.sleep(0)
    await asyncio.gather(stop(gateway), gateway.stop())
    await gateway.stop()
    assert await waiting is None, "nothing went wrong: it was stopped"


async def test_a_stop_that_is_cancelled_is_taken_up_again(stan, wire):
    """A stop that somebody did not wait for can be called again, and ends what the first one left."""
    gateway = through(wire, stan, timeout=60.0)
    await gateway.start()
    await subscribed(stan)
    wire.flows.clear()
    first = asyncio.ensure_future(gateway.stop())
    await asyncio.sleep(0.1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await stop(gateway)
    assert gateway._front is None


async def test_leadership_that_is_lost_again_and_again(stan, wire):
    """A leader that JetStream refuses steps down for good, while it asks, and leads again when nobody else serves."""
    wire.delay = 0.003
    gateway = through(wire, stan, standby=True, lease=60.0)
    await gateway.start()
    await gateway.wait_leading()
    client = await subscribed(stan)
    connection = await stan.connection()
    for turn in range(5):
        work, service = list(gateway._work), gateway.service
        rival = State(connection, stan.cluster)
        before, _ = await rival.last("lead")
        assert await rival.lead(before), "a rival that does not serve"
        await asyncio.sleep(0.0007 * turn)
        service.state.put("info", service.ack_inbox.encode())
        await until(lambda work=work: all(task.done() for task in work))
        assert not service.shared._tasks
        await asyncio.wait_for(gateway.wait_leading(), BOUND)
        await until(lambda service=service: gateway.service not in (None, service))
        await client.publish("foo", b"%d" % turn)


async def test_a_successor_serves_at_once_after_a_stop(stan, wire):
    """A stop tells the standby with its last word, never with a pulse after it: it does not wait for the lease."""
    wire.delay = 0.002
    first = through(wire, stan, lease=60.0)
    await first.start()
    for _ in range(4):
        standby = through(wire, stan, standby=True, lease=60.0)
        await standby.start()
        await until(lambda standby=standby: standby._state.ready)
        await stop(first)
        await asyncio.wait_for(standby.wait_leading(), BOUND)
        first = standby
