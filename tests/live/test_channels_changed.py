"""Channels while the world around them changes: streams and state replaced, put back, mirrored, trimmed, full."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.channels.limits import ChannelLimits, Limits
from penstock.channels.state import State, read_state
from penstock.connection import api_request
from penstock.errors import ChannelError, DeadlineError, DisconnectedError, InputError, JetStreamError
from penstock.jetstream.snapshot import backup, restore
from penstock.server import Server
from tests.live.stan import Got, Stan, cluster_of, until


async def filled(stan: Stan, count: int, channel: str = "foo") -> Any:
    """Serve, and publish numbers from 1 on."""
    gateway = await stan.serve()
    client = await stan.client()
    for number in range(1, count + 1):
        await client.publish(channel, b"%d" % number)
    return gateway


async def stopped(stan: Stan) -> None:
    """Close the clients and stop the gateways; everything that is remembered stays."""
    for client in stan._clients:
        await client.close()
    stan._clients.clear()
    for gateway in stan.gateways:
        await gateway.stop()


async def durable(stan: Stan, count: int, *, channel: str = "foo", **options: Any) -> Got:
    """Let a durable read from the first message on until it has so many, and go."""
    client = await stan.client("reader")
    got = Got()
    subscription = await client.subscribe(channel, got, durable="d", start="First", **options)
    await got.count(count)
    await subscription.close()
    await client.close()
    return got


async def replaced(stan: Stan, count: int, channel: str = "foo") -> None:
    """Put another stream of the same name in the place of a channel's."""
    connection = await stan.connection()
    name = stan.stream(channel)
    config = (await api_request(connection, f"STREAM.INFO.{name}"))["config"]
    await api_request(connection, f"STREAM.DELETE.{name}")
    await api_request(connection, f"STREAM.CREATE.{name}", config)
    for number in range(1, count + 1):
        await connection.request(config["subjects"][0], b"other %d" % number)


async def mirrored(stan: Stan, name: str, most: int) -> None:
    """Make a mirror that holds less, and wait until it has what it holds."""
    connection = await stan.connection()
    mirror = f"{stan.cluster}:mirror"
    await api_request(
        connection, f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": name}, "max_msgs": most}
    )
    origin = (await api_request(connection, f"STREAM.INFO.{name}"))["state"]["last_seq"]
    while True:
        described = await api_request(connection, f"STREAM.INFO.{mirror}")
        if described["state"]["last_seq"] >= origin:
            assert described["config"]["mirror_direct"], "the server lets it answer for its origin by itself"
            return
        await asyncio.sleep(0.01)


# -- mirrors -----------------------------------------------------------------------------------------------------------


async def test_a_mirror_that_holds_less_does_not_answer_for_a_channel(stan):
    """nats-server lets mirrors answer direct gets of their origin: what such a one lacks is not taken for gone."""
    gateway = await filled(stan, 60)
    await mirrored(stan, stan.stream("foo"), 5)
    gateway.service.channels["foo"].recent.drop_before(1 << 62)
    client = await stan.client("reader")
    handlers = [Got() for _ in range(8)]
    for got in handlers:
        await client.subscribe("foo", got, start="First")
    for got in handlers:
        await got.count(60)
        assert got.sequences == list(range(1, 61))


async def test_a_mirror_that_holds_less_does_not_answer_for_the_state(stan):
    """What a gateway remembers is read from its own stream: no durable is forgotten because a mirror lacks it."""
    await filled(stan, 10)
    await durable(stan, 10)
    await mirrored(stan, f"{stan.cluster}=state", 1)
    for _ in range(4):
        await stopped(stan)
        gateway = await stan.serve()
        [group] = gateway.service.channels["foo"].subscribers.groups
        assert group.last == 10


async def test_a_mirror_in_the_place_of_a_channel_is_refused(stan):
    """A channel whose stream somebody made a mirror cannot be written to: a gateway says so, and does not serve."""
    await filled(stan, 3)
    await stopped(stan)
    connection = await stan.connection()
    name = stan.stream("foo")
    await api_request(connection, f"STREAM.DELETE.{name}")
    metadata = {"penstock.cluster": stan.cluster, "penstock.channel": "foo"}
    origin = {"name": stan.stream("origin"), "subjects": [f"{stan.cluster}.origin"]}
    await api_request(connection, f"STREAM.CREATE.{origin['name']}", origin)
    mirror = {"name": name, "mirror": {"name": origin["name"]}, "metadata": metadata}
    await api_request(connection, f"STREAM.CREATE.{name}", mirror)
    with pytest.raises(InputError, match="is it a mirror"):
        await stan.serve()


# -- streams that are not what they were -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 30])
async def test_a_durable_of_a_stream_that_was_replaced_gets_all_of_the_new_one(stan, caplog, count):
    """A position in a stream that is gone means nothing in another one of its name, whether shorter or longer."""
    await filled(stan, 20)
    await durable(stan, 20)
    await stopped(stan)
    await replaced(stan, count)
    await stan.serve()
    got = await durable(stan, count)
    assert got.data == [b"other %d" % number for number in range(1, count + 1)]
    assert "another stream" in caplog.text


async def test_a_stream_restored_from_a_backup_is_another_stream(stan, caplog, tmp_path: Path):
    """What JetStream restores is made anew: a durable gets all of it, marked as sent again, and what comes then."""
    await filled(stan, 10)
    connection = await stan.connection()
    await backup(connection, stan.stream("foo"), tmp_path / "copy")
    client = stan._clients[0]
    for number in range(11, 21):
        await client.publish("foo", b"%d" % number)
    await durable(stan, 20)
    await stopped(stan)
    await api_request(connection, f"STREAM.DELETE.{stan.stream('foo')}")
    await restore(connection, tmp_path / "copy")
    await stan.serve()
    client = await stan.client()
    await client.publish("foo", b"new")
    got = await durable(stan, 11)
    assert got.data == [*(b"%d" % number for number in range(1, 11)), b"new"]
    assert [message.redelivered for message in got.messages] == [True] * 10 + [False]
    assert "another stream" in caplog.text


async def test_a_stream_that_is_replaced_under_a_gateway_is_taken_up(stan, caplog):
    """A gateway that serves a stream which somebody replaces begins anew: its subscribers get what is in it."""
    await filled(stan, 20)
    client = stan._clients[0]
    got = Got()
    await client.subscribe("foo", got, durable="d", start="First")
    await got.count(20)
    await replaced(stan, 7)
    await got.count(27)
    assert got.data[20:] == [b"other %d" % number for number in range(1, 8)]
    await client.publish("foo", b"more")
    await got.count(28)
    assert got.data[-1] == b"more"
    assert "another stream" in caplog.text


async def test_a_stream_that_is_replaced_under_its_publishers_is_taken_up(stan, caplog):
    """Nobody is subscribed: a publisher hears that the stream is another one, and soon it is served."""
    await filled(stan, 5)
    await replaced(stan, 2)
    writer = await stan.client("writer", ack_timeout=1.0)
    refused = 0
    while True:
        try:
            await writer.publish("foo", b"new")
            break
        except (ChannelError, DeadlineError) as error:
            refused += isinstance(error, ChannelError)
            await asyncio.sleep(0.02)
    assert refused
    connection = await stan.connection()
    assert (await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}"))["state"]["last_seq"] == 3
    assert "is another stream now" in caplog.text


async def test_a_position_past_the_end_of_its_stream_is_put_to_the_end(stan, caplog):
    """A stream from an older copy of its files ends before a durable's position: what comes then is new to it."""
    await filled(stan, 10)
    await durable(stan, 10)
    await stopped(stan)
    connection = await stan.connection()
    [(subject, record)] = [
        item for item in (await read_state(connection, stan.cluster))[0].items() if "pos." in item[0]
    ]
    later = json.dumps({**json.loads(record), "last": 20}).encode()
    await connection.request(f"_PENSTOCK.channels.{stan.cluster}.{subject}", later)
    await stan.serve()
    await (await stan.client()).publish("foo", b"new")
    got = await durable(stan, 1)
    assert (got.data, got.sequences) == ([b"new"], [11])
    assert "position of durable d of client reader in foo is past the end at 10" in caplog.text


@pytest.mark.heavy
async def test_a_stream_whose_files_were_put_back_is_told_and_taken_up(unique, caplog, tmp_path: Path):
    """A channel that ends before what the gateway stored there takes nothing at a wrong place, and is taken up."""
    with Server(store=tmp_path / "store", sync="2m") as server:
        node = server.nodes[0]
        async with cluster_of(server.url, unique("c")) as stan:
            await filled(stan, 10)
            files = node.store / "jetstream/$G/streams" / stan.stream("foo")
            client = await stan.client("writer", ack_timeout=1.5)

            async def publish(data: bytes) -> str:
                """Publish until it is stored, and give what the gateway refused with meanwhile."""
                said = ""
                while True:
                    try:
                        await client.publish("foo", data)
                        return said
                    except ChannelError as error:
                        said = error.text
                    except (DisconnectedError, DeadlineError):  # while the gateway begins anew it answers nobody
                        await asyncio.sleep(0.02)

            await asyncio.to_thread(node.stop)
            shutil.copytree(files, tmp_path / "copy")
            await asyncio.to_thread(node.start)
            for number in range(11, 21):
                assert not await publish(b"%d" % number)
            await durable(stan, 20)
            await asyncio.to_thread(node.stop)
            shutil.rmtree(files)
            shutil.copytree(tmp_path / "copy", files)
            await asyncio.to_thread(node.start)
            assert "older copy" in await publish(b"new")
            got = await durable(stan, 1)
            assert (got.data, got.sequences) == ([b"new"], [11])
    assert "position of durable d of client reader in foo is past the end at 10" in caplog.text


async def test_a_publish_to_a_stream_that_ends_earlier_is_told_and_taken_up(stan, caplog):
    """A message is not stored at another place than foreseen: the publisher hears why, and the next one is stored."""
    gateway = await filled(stan, 10)
    client = await stan.client("writer", ack_timeout=1.0)
    gateway.service.channels["foo"].stream.last = 20  # as if ten more had been stored, and the files put back
    with pytest.raises(ChannelError, match="older copy"):
        await stan._clients[0].publish("foo", b"too early")
    stored = False
    while not stored:
        try:
            await client.publish("foo", b"new")
            stored = True
        except (ChannelError, DeadlineError):  # while the gateway begins anew it answers nobody
            await asyncio.sleep(0.02)
    connection = await stan.connection()
    assert (await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}"))["state"]["last_seq"] == 11


async def test_a_stream_that_was_deleted_while_nobody_served_is_made_again(stan, caplog):
    """Its durables are not forgotten: sequences go on, and they get what is published before they come back."""
    await filled(stan, 20)
    await durable(stan, 20)
    await stopped(stan)
    connection = await stan.connection()
    await api_request(connection, f"STREAM.DELETE.{stan.stream('foo')}")
    await stan.serve()
    client = await stan.client()
    for number in range(3):
        await client.publish("foo", b"new %d" % number)
    got = await durable(stan, 3)
    assert got.sequences == [21, 22, 23]
    assert "is made again, from sequence 21" in caplog.text


async def test_messages_that_are_gone_before_a_durable_got_them_are_told(stan, caplog):
    """What limits, a purge or a deletion took from a subscriber is counted in the log, and the rest is delivered."""
    await filled(stan, 30)
    await durable(stan, 10, max_in_flight=1)
    connection = await stan.connection()
    name = stan.stream("foo")
    await api_request(connection, f"STREAM.PURGE.{name}", {"seq": 21})
    await api_request(connection, f"STREAM.MSG.DELETE.{name}", {"seq": 25})
    await stopped(stan)
    await stan.serve()
    caplog.clear()
    got = await durable(stan, 9)
    assert got.sequences == [21, 22, 23, 24, 26, 27, 28, 29, 30]
    await until(lambda: "are gone from foo before" in caplog.text)
    await until(lambda: sum(int(words.split()[1]) for words in caplog.messages if "are gone from" in words) == 11)


# -- a state that is not what it was -----------------------------------------------------------------------------------


async def purge(stan: Stan, subject: str) -> None:
    connection = await stan.connection()
    filtered = f"_PENSTOCK.channels.{stan.cluster}.{subject}"
    purged = await api_request(connection, f"STREAM.PURGE.{stan.cluster}=state", {"filter": filtered})
    assert purged["purged"]


async def test_a_durable_whose_position_is_lost_begins_with_the_first_message(stan, caplog):
    """At least once: where nobody knows how far a durable came, it gets everything again."""
    await filled(stan, 10)
    await durable(stan, 10)
    await stopped(stan)
    await purge(stan, "pos.*")
    await stan.serve()
    got = await durable(stan, 10)
    assert got.sequences == got.redelivered == list(range(1, 11))
    assert "position of durable d of client reader in foo is lost" in caplog.text


async def test_a_state_put_back_under_a_gateway_marks_what_comes_again(stan):
    """What a durable gets again because its position was put back to an older one says that it came before."""
    gateway = await filled(stan, 10)
    await durable(stan, 10)
    connection = await stan.connection()
    found, _ = await read_state(connection, stan.cluster)
    [(name, content)] = [item for item in found.items() if item[0].startswith("pos.")]
    older = json.dumps(json.loads(content) | {"last": 4}).encode()
    service = gateway.service
    await purge(stan, "lead")
    await connection.publish(f"_PENSTOCK.channels.{stan.cluster}.{name}", older)
    await connection.flush()
    service.state.put("info", service.ack_inbox.encode())
    await until(lambda: gateway.service not in (None, service))
    got = await durable(stan, 6)
    assert got.sequences == got.redelivered == list(range(5, 11))


@pytest.mark.parametrize("gone", ["b", "*"])
async def test_a_queue_whose_clients_are_forgotten_loses_nothing(stan, gone):
    """What members of a durable queue had not acknowledged goes to those that are left, or to the next one."""
    await filled(stan, 0)
    handlers = {name: Got() for name in "ab"}
    for name, got in handlers.items():
        await (await stan.client(name)).subscribe("foo", got, queue="q", durable="d", manual_acks=True, ack_wait=1)
    for number in range(6):
        await stan._clients[0].publish("foo", b"%d" % number)
    for got in handlers.values():
        await got.count(3)
    for gateway in stan.gateways:
        await gateway.stop()
    await purge(stan, f"client.{gone}")
    await stan.serve()
    if gone == "b":
        got = handlers["a"]
    else:
        got = Got()
        await (await stan.client("c")).subscribe("foo", got, queue="q", durable="d")
    await until(lambda: set(got.sequences) == {1, 2, 3, 4, 5, 6})


async def test_a_state_that_is_lost_is_told(stan, caplog):
    """Channels without any state were copied here, or the state was deleted: a gateway says that it knows nobody."""
    await filled(stan, 3)
    await stopped(stan)
    assert "knows of no subscription" not in caplog.text
    connection = await stan.connection()
    await api_request(connection, f"STREAM.DELETE.{stan.cluster}=state")
    await stan.serve()
    assert "knows of no subscription" in caplog.text


async def test_a_state_that_is_purged_under_a_gateway_is_told_to_its_clients(stan, caplog):
    """Clients that nobody remembers hear at the next ping that they are gone, instead of waiting for ever."""
    await filled(stan, 3)
    lost = asyncio.get_running_loop().create_future()

    async def gone(error: Exception) -> None:
        lost.set_result(error)

    client = await stan.client("other", ping_interval=1, ping_max_out=15, on_lost=gone)
    await client.subscribe("foo", Got(), durable="d")
    await purge(stan, ">")
    async with asyncio.timeout(20):
        assert "replaced or is no longer registered" in str(await lost)
    assert "was purged or put back" in caplog.text


async def test_a_state_that_is_deleted_under_a_gateway_is_made_again(stan, caplog):
    """The gateway serves on, knows nobody any more, and says so; its clients hear it at their next ping."""
    gateway = await filled(stan, 3)
    client = await stan.client("other", ping_interval=1, ping_max_out=15)
    subscription = await client.subscribe("foo", durable="d")
    connection = await stan.connection()
    await api_request(connection, f"STREAM.DELETE.{stan.cluster}=state")
    with pytest.raises(ChannelError, match="no longer registered"):
        await subscription.next(20)
    assert gateway.leading
    assert "in which the state is kept, was deleted" in caplog.text
    assert "was purged or put back" in caplog.text


async def test_a_state_that_is_deleted_while_nobody_leads_is_made_again(stan, monkeypatch, caplog):
    """A gateway that lost its place, and its state, says so, and serves again with a new one."""
    gateway = await filled(stan, 3)
    serving = asyncio.Event()
    take = gateway._lease.take

    async def later() -> None:
        await serving.wait()
        await take()

    monkeypatch.setattr(gateway._lease, "take", later)
    rival = State(await stan.connection(), stan.cluster)
    place, _ = await rival.last("lead")
    assert await rival.lead(place)
    await until(lambda: not gateway.leading)
    await api_request(await stan.connection(), f"STREAM.DELETE.{stan.cluster}=state")
    serving.set()
    await until(lambda: gateway.leading)
    assert "in which the state is kept, was deleted" in caplog.text
    assert "stream not found" not in caplog.text


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_full_refuses_with_an_error_in_the_ack(stan):
    """A publish that the server does not take is never acknowledged as if it were."""
    await filled(stan, 3)
    connection = await stan.connection()
    name = stan.stream("foo")
    config = (await api_request(connection, f"STREAM.INFO.{name}"))["config"]
    await api_request(connection, f"STREAM.UPDATE.{name}", {**config, "discard": "new", "max_msgs": 3})
    with pytest.raises(ChannelError, match="maximum messages exceeded"):
        await stan._clients[0].publish("foo", b"one too many")
    assert (await api_request(connection, f"STREAM.INFO.{name}"))["state"]["messages"] == 3


@pytest.mark.heavy
async def test_a_full_server_acknowledges_only_what_it_stored(unique):
    """Where JetStream has no room left, each publish is refused or unanswered; nothing acknowledged is missing."""
    with Server(sync="2m", config="jetstream { max_file_store: 1MB }") as server:
        async with cluster_of(server.url, unique("c")) as stan:
            await stan.serve()
            client = await stan.client(ack_timeout=10.0)
            taken, refused = 0, ""
            while not refused and taken < 20:
                try:
                    await client.publish("foo", b"x" * 200_000)
                    taken += 1
                except ChannelError as error:
                    refused = error.text
            assert "insufficient" in refused
            connection = await stan.connection()
            state = (await api_request(connection, f"STREAM.INFO.{stan.stream('foo')}"))["state"]
            assert state["messages"] == taken > 0


async def test_an_idle_channel_that_could_not_be_deleted_is_deleted_later(stan, monkeypatch):
    """A deletion that the server refuses for now is tried again."""
    gateway = await stan.serve(limits=Limits(default=ChannelLimits(max_inactivity=0.3)))
    client = await stan.client()
    await client.publish("foo", b"x")
    store, refusals = gateway.service.store, 0
    delete = store.delete

    async def refuse(stream: Any) -> None:
        nonlocal refusals
        refusals += 1
        if refusals < 3:
            raise JetStreamError("not now", code=503)
        await delete(stream)

    monkeypatch.setattr(store, "delete", refuse)
    await until(lambda: "foo" not in gateway.service.channels)
    assert refusals == 3


async def test_a_message_that_another_stream_took_is_not_acknowledged(stan):
    """A channel's subject that another stream takes now stores nothing in the channel: the publisher hears it."""
    await filled(stan, 0)
    client = stan._clients[0]
    await client.subscribe("foo", Got())
    connection = await stan.connection()
    name = stan.stream("foo")
    config = (await api_request(connection, f"STREAM.INFO.{name}"))["config"]
    await api_request(connection, f"STREAM.UPDATE.{name}", {**config, "subjects": [f"{stan.cluster}.elsewhere"]})
    thief = {"name": f"{stan.cluster}=thief", "subjects": config["subjects"], "allow_atomic": True}
    await api_request(connection, f"STREAM.CREATE.{thief['name']}", thief)
    with pytest.raises(ChannelError, match="thief takes the subject"):
        await client.publish("foo", b"stolen")


async def test_who_iterates_hears_that_the_client_is_lost(stan, caplog):
    """A loop over messages does not just end when the server gave the client up: it raises, and the log says so."""
    gateway = await stan.serve()
    client = await stan.client(ping_interval=-20)
    subscription = await client.subscribe("foo")
    known = gateway.service.clients
    known.remove(known.by_id["me"])
    with pytest.raises(ChannelError, match="no longer registered"):
        async for _ in subscription:
            pass
    await until(lambda: "the client me is lost" in caplog.text)
