"""What a gateway that was killed may have sent comes again with a mark; without one, all comes once, and in order."""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import pairwise

import pytest

from penstock.channels import Client, Message
from penstock.connection.tasks import end
from tests.live.command import environment
from tests.live.connecting import free_port
from tests.live.stan import Got, until
from tests.live.test_channels_faults import Child, gateways, publish_surely

KINDS = {
    "plain": {},
    "durable": {"durable": "d"},
    "queue": {"queue": "q"},
    "durable queue": {"queue": "q", "durable": "d"},
    "one at a time": {"durable": "one", "max_in_flight": 1},
    "wide": {"durable": "wide", "max_in_flight": 20_000},
}


def check_marks(members: list[Got]) -> None:
    """See that no message came twice without a mark, and that those without one came in order to each member."""
    unmarked = [message.sequence for got in members for message in got.messages if not message.redelivered]
    assert len(unmarked) == len(set(unmarked)), "a message came again without its mark"
    for got in members:
        new = [message.sequence for message in got.messages if not message.redelivered]
        assert all(earlier < later for earlier, later in pairwise(new)), "an older message came after a newer one"
    seen: set[int] = set()
    for got in members:
        for message in got.messages if len(members) == 1 else []:
            assert message.redelivered or message.sequence not in seen, "a first delivery that was one already"
            seen.add(message.sequence)


async def all_come(name: str, members: list[Got], wanted: set[bytes]) -> None:
    """Wait until these have come, for as long as any more come."""
    while not wanted <= (found := {item for got in members for item in got.data}):
        before = sum(map(len, members))
        try:
            await until(lambda before=before: sum(map(len, members)) > before, timeout=60)
        except AssertionError:
            raise AssertionError(f"{name}: {len(wanted - found)} did not come, such as {min(wanted - found)}") from None
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.heavy)])
async def test_no_repeat_without_its_mark(stan, tmp_path, kills):
    """kill -9 under load, again and again: repeats are marked, order holds otherwise, and nothing is missing."""
    chance = random.Random(kills)
    late: list[Message] = []

    def answer(message: Message) -> None:
        if chance.random() < 0.95:
            message.ack()
        else:
            late.append(message)

    async with gateways(stan, tmp_path) as start:
        gateway = await start()
        client = await stan.client(ack_timeout=1.0, ping_interval=600)
        kinds = {name: [Got(answer) for _ in range(3 if "queue" in name else 1)] for name in KINDS}
        kinds["one at a time"] = [Got(Message.ack)]
        for name, members in kinds.items():
            for got in members:
                options = {"max_in_flight": 200} | KINDS[name]
                await client.subscribe("foo", got, manual_acks=True, ack_wait=1, **options)
        total = 600 * kills
        traffic = asyncio.ensure_future(publish_surely(client, "foo", range(total), window=128))
        for _ in range(kills):
            plain = kinds["plain"][0]
            await plain.count(min(total, len(plain) + chance.randrange(20, 400)), timeout=60)
            await gateway.kill()
            for message in late:  # these acks are lost, or come to the next one
                message.ack()
            late.clear()
            gateway = await start()
        await traffic
        wanted = {b"%d" % number for number in range(total)}
        for name, members in kinds.items():
            await all_come(name, members, wanted)
            check_marks(members)


@pytest.mark.parametrize("kills", [1, pytest.param(15, marks=pytest.mark.heavy)])
async def test_a_gateway_that_syncs_is_killed_with_its_server(tmp_path, kills):
    """Whoever syncs: what was acknowledged is there after kill -9 of both, and what comes again is marked."""
    chance, port, children = random.Random(kills), free_port(), list[Child]()

    async def start() -> Child:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "channels", "serve", "--store", str(tmp_path / "store")),
            *("--port", str(port), "--no-auth", "--sync", "acked"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(tmp_path),
        )
        children.append(child := Child(process))
        await child.wait_for("Serving")
        return child

    got, total = Got(), 500 * kills
    try:
        gateway = await start()
        client = Client(f"nats://127.0.0.1:{port}", client_id="me", ack_timeout=1.0, ping_interval=600)
        async with client:
            await client.subscribe("foo", got, durable="d", ack_wait=1)
            traffic = asyncio.ensure_future(publish_surely(client, "foo", range(total), window=128))
            for _ in range(kills):
                await got.count(min(total, len(got) + chance.randrange(20, 300)), timeout=60)
                await gateway.kill()
                gateway = await start()
            await traffic
            await all_come("durable", [got], {b"%d" % number for number in range(total)})
        check_marks([got])
    finally:
        for child in children:
            await child.kill()


async def test_what_was_sent_after_the_last_write_of_the_state(stan, monkeypatch):
    """What goes out while the state cannot be written is bounded, and marked if a successor sends it again."""
    first = await stan.serve(lease=600.0)
    client = await stan.client(ping_interval=600)
    got, shared = Got(), [Got(), Got()]
    await client.subscribe("foo", got, max_in_flight=600)  # many at a time, and still no more than the state says
    for one in shared:
        await client.subscribe("foo", one, queue="q", max_in_flight=1)
    await first.service.state.flush()
    never = asyncio.Event()

    async def write(*args) -> None:
        await never.wait()

    monkeypatch.setattr(first.service.state, "_write", write)
    await publish_surely(client, "foo", range(600), window=600)
    [plain, queue] = first.service.channels["foo"].subscribers.groups
    await until(lambda: plain.waits and queue.waits)
    assert 0 < len(got) == plain.reserved < 600, "no more goes out than the state says"
    await end([first._task, *first._work])
    await first._front.close()  # as if it was killed
    await stan.serve()
    for members in ([got], shared):
        await until(lambda members=members: len({item for one in members for item in one.data}) == 600)
        check_marks(members)
    sent = plain.reserved
    assert got.redelivered == list(range(1, sent + 1))
    assert got.sequences == [*range(1, sent + 1), *range(1, 601)]


async def test_nothing_is_marked_after_a_stop(stan):
    """A gateway that is stopped remembers exactly what it sent: its successor marks nothing that is new."""
    first = await stan.serve()
    client = await stan.client()
    got, shared = Got(), Got()
    await client.subscribe("foo", got, durable="d")
    await client.subscribe("foo", shared, queue="q")
    for _ in range(3):
        await client.publish("foo", b"x")
    await got.count(3)
    await shared.count(3)
    await first.stop()
    other = await stan.connection()
    for _ in range(3):  # while nobody serves, somebody writes to the stream
        await other.publish(f"{stan.cluster}.foo", b"y")
    await other.flush()
    await stan.serve()
    for one in (got, shared):
        await one.count(6)
        assert one.sequences == [1, 2, 3, 4, 5, 6]
        assert one.redelivered == []


async def test_a_durable_that_is_away_gets_what_is_new_without_a_mark(stan, tmp_path):
    """A kill while a durable is away puts nothing in doubt for it: it was not there to be sent anything."""
    async with gateways(stan, tmp_path) as start:
        gateway = await start()
        client = await stan.client(ping_interval=600)
        subscription = await client.subscribe("foo", got := Got(), durable="d")
        await client.publish("foo", b"x")
        await got.count(1)
        await subscription.close()
        for _ in range(3):
            await client.publish("foo", b"y")
        await gateway.kill()
        await start()
        await client.subscribe("foo", got, durable="d")
        await got.count(4)
        assert got.sequences[-3:] == [2, 3, 4]
        assert not any(message.redelivered for message in got.messages[-3:])
