"""Gateways, servers and queue members die in the middle of traffic: clients go on, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from penstock.channels import Client, Gateway
from penstock.channels.catalog import Catalog
from penstock.channels.names import state_stream, state_subject
from penstock.channels.state import State
from penstock.connection import api_request, connect
from penstock.contexts import load_options
from penstock.errors import ChannelError, DeadlineError, DisconnectedError, NoRespondersError
from penstock.server import Server
from tests.live.command import environment
from tests.live.stan import Got, Stan, cluster_of, until


class Child:
    """A gateway as a process of its own, which can be killed without a word."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def wait_for(self, text: str, timeout: float = 90.0) -> None:
        async with asyncio.timeout(timeout):
            while True:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"the gateway ended without {text!r}"
                if text in line:
                    return

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def gateways(stan: Stan, tmp_path):
    """Give a way to start gateways as children; whatever happens, none of them is left."""
    children: list[Child] = []

    async def start(*flags: str, ready: str = "Serving") -> Child:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "channels", "serve", "--cluster-id", stan.cluster),
            *("--subject-prefix", f"{stan.cluster}.", *flags),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(tmp_path, NATS_URL=stan.url),
        )
        children.append(child := Child(process))
        await child.wait_for(ready)
        return child

    try:
        yield start
    finally:
        for child in children:
            if child.process.returncode is None:
                child.process.send_signal(signal.SIGCONT)
            await child.kill()


async def position(stan: Stan, channel: str) -> tuple[int, int]:
    """Give how far the one subscription of a channel came by what is stored, and how much it has pending."""
    async with Catalog(stan.url, stan.cluster) as catalog:
        [subscription] = (await catalog.channel(channel)).subscriptions
    return subscription.last, subscription.pending


async def publish_surely(client: Client, channel: str, numbers, window: int = 64) -> list[int]:
    """Publish until each message was acknowledged, as an application must; give how often each was sent."""
    tries = []
    waiting: set[asyncio.Task] = set()

    async def one(number: int) -> None:
        while True:
            tries.append(number)
            try:
                await client.publish(channel, b"%d" % number)
                return
            except (DeadlineError, DisconnectedError, ChannelError):
                await asyncio.sleep(0.05)

    for number in numbers:
        waiting.add(asyncio.ensure_future(one(number)))
        if len(waiting) >= window:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)
    return tries


async def test_a_restart_keeps_everything(stan):
    """After a restart clients publish, ping and receive without reconnecting; pending messages come again at once."""
    gateway = await stan.serve()
    client = await stan.client(ping_interval=1)
    durable, plain = Got(), Got()
    await client.subscribe("foo", durable, durable="d", manual_acks=True, ack_wait=1)
    await client.subscribe("foo", plain)
    for _ in range(4):
        await client.publish("foo", b"x")
    await durable.count(4)
    durable.messages[0].ack()
    durable.messages[2].ack()
    await plain.count(4)
    await client.connection.flush()
    await until(lambda: gateway.service.channels["foo"].subscribers.members[0].pending.keys() == {2, 4})
    await gateway.stop()
    await asyncio.sleep(1.1)
    await stan.serve()
    await durable.count(6)
    assert durable.sequences[4:6] == [2, 4]
    assert durable.messages[4].redelivery_count == 1, "counts begin anew"
    await client.publish("foo", b"new")
    await plain.count(5)
    assert plain.redelivered == []
    assert plain.sequences == [1, 2, 3, 4, 5]


async def test_offline_durables_stay_offline(stan):
    """After a restart nothing is sent to a durable that was closed, though its client is there."""
    gateway = await stan.serve()
    client = await stan.client()
    got = Got()
    subscription = await client.subscribe("foo", got, durable="d", manual_acks=True, ack_wait=1)
    await client.publish("foo", b"x")
    await got.count(1)
    await subscription.close()
    await gateway.stop()
    gateway = await stan.serve()
    assert not gateway.service.channels["foo"].subscribers.active
    await client.publish("foo", b"y")
    again = Got()
    await client.subscribe("foo", again, durable="d", manual_acks=True)
    await again.count(2)
    assert again.redelivered == [1]


async def test_recently_sent_messages_wait_their_turn(stan):
    """After a restart a message whose ack wait is not over is not sent again before it is."""
    gateway = await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=3)
    await client.publish("foo", b"x")
    await got.count(1)
    await until(lambda: not gateway.service.state._groups)
    await gateway.stop()
    await stan.serve()
    await got.count(2)
    assert got.times[1] - got.times[0] >= 2.5


async def test_a_clock_that_is_behind_makes_nobody_wait(stan, monkeypatch):
    """A gateway whose clock is an hour behind the server's sends what is pending after one ack wait."""
    gateway = await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
    await client.publish("foo", b"x")
    await got.count(1)
    await until(lambda: not gateway.service.state._groups)
    await gateway.stop()
    clock = time.time
    monkeypatch.setattr("penstock.channels.channel.time", SimpleNamespace(time=lambda: clock() - 3600))
    await stan.serve()
    await got.count(2)


async def test_queue_members_keep_their_messages_over_a_restart(stan):
    """After a restart each queue member gets again what it had, and nobody else gets it."""
    gateway = await stan.serve()
    client = await stan.client()
    one, two = Got(), Got()
    for got in (one, two):
        await client.subscribe("foo", got, queue="q", durable="d", manual_acks=True, ack_wait=1)
    for _ in range(6):
        await client.publish("foo", b"x")
    await gateway.stop()
    await asyncio.sleep(1.1)
    await stan.serve()
    await one.count(6)
    await two.count(6)
    assert one.sequences[:6] == [1, 3, 5, 1, 3, 5]
    assert two.sequences[:6] == [2, 4, 6, 2, 4, 6]


async def test_kill_of_the_gateway(stan, tmp_path):
    """kill -9, start again: clients go on without reconnecting; acknowledged stays acknowledged, all else arrives."""
    async with gateways(stan, tmp_path) as start:
        gateway = await start()
        client = await stan.client(ack_timeout=1.0, ping_interval=60)
        settled, got = Got(), Got()
        await client.subscribe("settled", settled, durable="d", ack_wait=1)
        await client.subscribe("foo", got, durable="d", ack_wait=1)
        for _ in range(100):
            await client.publish("settled", b"x")
        await settled.count(100)
        while await position(stan, "settled") != (100, 0):
            await asyncio.sleep(0.01)
        traffic = asyncio.ensure_future(publish_surely(client, "foo", range(1500)))
        await got.count(300)
        await gateway.kill()
        await start()
        tries = await traffic
        await until(lambda: set(got.data) == {b"%d" % number for number in range(1500)})
        assert len(tries) >= 1500
        firsts = list(dict.fromkeys(got.sequences))
        assert firsts == sorted(firsts), "each message's first delivery comes in order"
        await settled.stays(100, 1.2)


async def test_a_standby_takes_over_at_once_from_one_that_stops(stan):
    """A gateway that stops says so, and the one that stands by serves next; clients do not notice."""
    first = await stan.serve()
    client = await stan.client()
    got = Got()
    await client.subscribe("foo", got, durable="d")
    await client.publish("foo", b"1")
    second = await stan.serve(standby=True, lease=60.0)
    assert not second.leading
    await first.stop()
    await asyncio.wait_for(second.wait_leading(), 10)
    await client.publish("foo", b"2")
    await got.count(2)
    assert got.sequences == [1, 2]


async def test_a_standby_takes_over_from_one_that_was_killed(stan, tmp_path):
    """kill -9 of the leader: after its lease the standby serves the same clients, from the same state."""
    async with gateways(stan, tmp_path) as start:
        leader = await start("--lease", "1s")
        standby = await start("--standby", "--lease", "1s", ready="Standing by")
        client = await stan.client(ack_timeout=0.5, ping_interval=60)
        got = Got()
        await client.subscribe("foo", got, durable="d")
        await publish_surely(client, "foo", range(50))
        await got.count(50)
        await leader.kill()
        await standby.wait_for("it is our turn")
        await publish_surely(client, "foo", range(50, 100))
        await until(lambda: set(got.data) == {b"%d" % number for number in range(100)})


async def test_a_leader_that_slept_steps_down(stan, tmp_path):
    """A leader that is stopped for longer than its lease writes nothing when it wakes: its successor's state stands."""
    async with gateways(stan, tmp_path) as start:
        sleeper = await start("--lease", "1s", "--standby")
        standby = await start("--standby", "--lease", "1s", ready="Standing by")
        client = await stan.client(ack_timeout=0.5, ping_interval=60)
        got = Got()
        await client.subscribe("foo", got, durable="d", ack_wait=1)
        await publish_surely(client, "foo", range(20))
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        await standby.wait_for("it is our turn")
        await publish_surely(client, "foo", range(20, 40))
        await until(lambda: len(set(got.data)) == 40)
        stored = max(got.sequences)
        os.kill(sleeper.process.pid, signal.SIGCONT)
        await publish_surely(client, "foo", range(40, 60))
        await until(lambda: len(set(got.data)) == 60)
        while (await position(stan, "foo"))[1]:
            await asyncio.sleep(0.02)
        last, _ = await position(stan, "foo")
        assert last >= stored + 20
        assert max(got.sequences) == last


@pytest.fixture
def own_server(tmp_path):
    with Server(store=tmp_path / "store", sync="always") as made:
        yield made


async def test_kill_of_the_nats_server(own_server, unique):
    """kill -9 of the NATS server in the middle of traffic: every message that was acknowledged arrives."""
    async with cluster_of(own_server.url, unique("c")) as stan:
        await stan.serve(timeout=1.0)
        client = await stan.client(ack_timeout=2.0, ping_interval=60)
        got = Got()
        await client.subscribe("foo", got, durable="d", ack_wait=1)
        traffic = asyncio.ensure_future(publish_surely(client, "foo", range(2000)))
        await got.count(300)
        await asyncio.to_thread(own_server.nodes[0].kill)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(own_server.nodes[0].start)
        await traffic
        await until(lambda: set(got.data) == {b"%d" % number for number in range(2000)}, timeout=60)


async def test_a_standby_outlives_an_outage_and_its_leader(own_server, unique, tmp_path):
    """kill -9 of leader and NATS server together: the standby serves the same clients once NATS is back."""
    async with cluster_of(own_server.url, unique("c")) as stan, gateways(stan, tmp_path) as start:
        leader = await start("--lease", "1s")
        standby = await stan.serve(standby=True, lease=1.0, timeout=0.5)
        client = await stan.client(ack_timeout=0.5, ping_interval=600)
        got = Got()
        await client.subscribe("foo", got, durable="d", ack_wait=1)
        await publish_surely(client, "foo", range(20))
        await got.count(20)
        await leader.kill()
        await asyncio.to_thread(own_server.nodes[0].kill)
        await asyncio.sleep(1.5)  # longer than the lease: the standby must not take the outage for its turn, nor die
        assert not standby.leading
        await asyncio.to_thread(own_server.nodes[0].start)
        await asyncio.wait_for(standby.wait_leading(), 30)
        await publish_surely(client, "foo", range(20, 40))
        await until(lambda: set(got.data) == {b"%d" % number for number in range(40)})


async def test_taking_over_is_tried_again(own_server, unique):
    """A standby whose first steps as a leader fail, because NATS dies just then, takes them again."""
    async with cluster_of(own_server.url, unique("c")) as stan:
        first = await stan.serve()
        client = await stan.client(ack_timeout=0.5, ping_interval=600)
        got = Got()
        await client.subscribe("foo", got, durable="d", ack_wait=1)
        await publish_surely(client, "foo", range(5))
        second = await stan.serve(standby=True, timeout=0.5)
        lead, killed = State.lead, asyncio.Event()

        async def lead_and_lose(state: State, before: int) -> bool:
            won = await lead(state, before)
            if not killed.is_set():
                await asyncio.to_thread(own_server.nodes[0].kill)
                killed.set()
            return won

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(State, "lead", lead_and_lose)
            await first.stop()
            await asyncio.wait_for(killed.wait(), 20)
        await asyncio.to_thread(own_server.nodes[0].start)
        await asyncio.wait_for(second.wait_leading(), 30)
        await publish_surely(client, "foo", range(5, 10))
        await until(lambda: set(got.data) == {b"%d" % number for number in range(10)})


async def test_a_first_start_waits_for_a_stream_that_is_not_known_yet(stan, caplog):
    """While no node takes the subjects of the state, as for a moment after its stream is made, a start is not over."""
    connection = await stan.connection()
    name = state_stream(stan.cluster)
    config = {"name": name, "subjects": [f"{stan.cluster}.elsewhere"], "max_msgs_per_subject": 1, "storage": "file"}
    config |= {"allow_direct": True, "allow_atomic": True, "allow_msg_ttl": True}
    await api_request(connection, f"STREAM.CREATE.{name}", config)
    starting = asyncio.ensure_future(stan.serve())
    await until(lambda: caplog.text.count("not serving yet: No stream takes this message") > 1)
    assert not starting.done()
    await api_request(connection, f"STREAM.UPDATE.{name}", config | {"subjects": [state_subject(stan.cluster, ">")]})
    gateway = await asyncio.wait_for(starting, 30)
    assert gateway.leading


@pytest.mark.parametrize("standby", [False, True])
async def test_a_start_without_jetstream_fails_at_once(server, unique, caplog, standby):
    """Where JetStream is off, a gateway says so and does not wait for it."""
    gateway = Gateway(load_options(server.url).replace(api_prefix=unique("off")), standby=standby)

    async def serve() -> None:
        await gateway.start()
        await asyncio.wait_for(gateway.wait(), 30)

    try:
        with pytest.raises(NoRespondersError, match="Nobody listens"):
            await serve()
    finally:
        await gateway.stop()
    assert "not serving yet" not in caplog.text


async def test_nothing_piles_up_while_nats_is_away(own_server, unique):
    """While the NATS server is down nothing is sent and nothing is kept: a pending message comes once after that."""
    async with cluster_of(own_server.url, unique("c")) as stan:
        await stan.serve(timeout=1.0)
        client = await stan.client(ping_interval=60)
        got = Got()
        await client.subscribe("foo", got, manual_acks=True, ack_wait=1)
        await client.publish("foo", b"x")
        await got.count(1)
        await asyncio.to_thread(own_server.nodes[0].kill)
        await asyncio.sleep(2.2)
        await asyncio.to_thread(own_server.nodes[0].start)
        await got.count(2)
        began = time.monotonic()
        got.messages[1].ack()
        await got.stays(2, 1.3)
        assert time.monotonic() - began > 1.0


async def test_kill_of_a_queue_member(stan):
    """A queue member that dies in the middle of traffic takes nothing along: the others get what it had."""
    await stan.serve(hb_interval=0.3, hb_timeout=0.5, hb_fail_count=2)
    clients = [await stan.client(f"c{number}") for number in range(3)]
    publisher = await stan.client("publisher")
    handled: set[bytes] = set()
    gots = []
    for client in clients:
        dying = client is clients[0]
        got = Got(None if dying else lambda message: (handled.add(message.data), message.ack()))
        gots.append(got)
        await client.subscribe("foo", got, queue="q", manual_acks=True, ack_wait=1, max_in_flight=50)
    traffic = asyncio.ensure_future(publish_surely(publisher, "foo", range(2000)))
    await gots[0].count(10)
    await clients[0].connection.close()
    await traffic
    await until(lambda: len(handled) == 2000)


@pytest.mark.heavy
async def test_many_kills_of_the_gateway(stan, tmp_path):
    """The gateway is killed again and again under load; every message arrives, in order where it is new."""
    async with gateways(stan, tmp_path) as start:
        gateway = await start()
        client = await stan.client(ack_timeout=1.0, ping_interval=600)
        got, shared = Got(), [Got(), Got()]
        await client.subscribe("foo", got, durable="d", ack_wait=2)
        for part in shared:
            await client.subscribe("foo", part, queue="q", durable="d", ack_wait=2)
        traffic = asyncio.ensure_future(publish_surely(client, "foo", range(30_000), window=256))
        for _ in range(10):
            await asyncio.sleep(1.5)
            await gateway.kill()
            gateway = await start()
        await traffic
        wanted = {b"%d" % number for number in range(30_000)}
        await until(lambda: set(got.data) == wanted, timeout=120)
        await until(lambda: {item for part in shared for item in part.data} == wanted, timeout=120)
        firsts = list(dict.fromkeys(got.sequences))
        assert firsts == sorted(firsts)


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.heavy)])
async def test_kill_of_a_node_of_three(unique, tmp_path, kills):
    """With three replicas, kill -9 of the node that leads a channel's stream stops nobody and loses nothing."""
    each = 1000 if kills > 1 else 200
    total = each * (kills + 2)
    with Server(nodes=3, store=tmp_path / "store", sync="2m") as cluster:
        async with cluster_of(cluster.url, unique("c")) as stan:
            await stan.serve(replicas=3, timeout=2.0)
            client = await stan.client(ack_timeout=5.0, ping_interval=600, connect_timeout=20.0)
            got, shared = Got(), [Got(), Got()]
            await client.subscribe("foo", got, durable="d", ack_wait=5)
            for part in shared:
                await client.subscribe("foo", part, queue="q", ack_wait=5)
            traffic = asyncio.ensure_future(publish_surely(client, "foo", range(total)))
            for turn in range(kills):
                await got.count(each * (turn + 1), timeout=120)
                connection = await stan.connection()
                info = await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}", timeout=60.0)
                leader = next(node for node in cluster.nodes if node.name == info["cluster"]["leader"])
                await asyncio.to_thread(leader.kill)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(leader.start)
            await traffic
            wanted = {b"%d" % number for number in range(total)}
            await until(lambda: set(got.data) == wanted, timeout=120)
            await until(lambda: {item for part in shared for item in part.data} == wanted, timeout=120)
            # What was on its way through the node that died comes again, after newer ones, and says so.
            new = [message.sequence for message in got.messages if not message.redelivered]
            assert new == sorted(new)


@asynccontextmanager
async def refusing(url: str, prefix: str, answers: list[str]):
    """Pass what is asked below `prefix` on to JetStream, but refuse the creation of streams with these words first."""
    async with await connect(url) as between:

        async def pass_on(message) -> None:
            method = message.subject.removeprefix(f"{prefix}.")
            if answers and method.startswith("STREAM.CREATE."):
                error = {"code": 400, "err_code": 10005, "description": answers.pop(0)}
                await message.respond(json.dumps({"error": error}).encode())
            else:
                await between.publish(f"$JS.API.{method}", message.data, reply=message.reply, headers=message.headers)

        await between.subscribe(f"{prefix}.>", cb=pass_on)
        await between.flush()
        yield


async def test_a_node_that_is_away_for_a_moment(stan, unique, caplog):
    """A gateway's start and a new channel wait for a node that has to hold a replica; any other refusal is told."""
    offline, prefix = "no suitable peers for placement, peer offline", unique("api")
    answers = [offline, offline]
    async with refusing(stan.url, prefix, answers):
        options = {"cluster_id": stan.cluster, "subject_prefix": f"{stan.cluster}."}
        async with Gateway(load_options(stan.url).replace(api_prefix=prefix), **options):
            assert caplog.text.count(f"not serving yet: The server refused: {offline}") == 2
            client = await stan.client(connect_timeout=30.0)
            answers += [offline] * 3
            await client.subscribe("foo", got := Got())
            assert not answers
            await client.publish("foo", b"hello")
            await got.count(1)
            answers += ["no suitable peers for placement, insufficient storage"]
            with pytest.raises(
                ChannelError, match="cannot be made: no suitable peers for placement, insufficient storage"
            ):
                await client.subscribe("bar", Got())
            await client.close()
