"""Publishing while the world changes: streams without a window, copied messages, replaced, moved and cut streams."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.chunks import Publisher as ChunkPublisher
from penstock.connection import Connection, connect
from penstock.errors import DataLossError, DeadlineError, InputError, JetStreamError, PublishError, UnfinishedError
from penstock.jetstream import Outgoing, Publisher, Topology, apply, assets
from penstock.model import Republish, Stream, StreamSource
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.command import Command
from tests.live.conftest import NewStream
from tests.live.connecting import free_port, plain
from tests.live.relay import relayed, rows
from tests.live.test_jetstream_publish import LossyClient, bodies, once_each

Unique = Callable[..., str]
MINUTES = 120.0


async def settled(nc: Connection, stream: str, count: int) -> None:
    """Wait until a stream that copies holds so many messages."""
    async with asyncio.timeout(20):
        while (await assets.stream_info(nc, stream)).messages < count:
            await asyncio.sleep(0.02)


# -- the window ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["add", "jetstream", "apply", "command"])
async def test_a_stream_with_sources_stores_a_message_once(
    nc: Connection, server: Server, new_stream: NewStream, unique: Unique, tmp_path: Path, way: str
):
    """A stream with subjects and sources remembers ids for two minutes if nothing is said, however it is made."""
    origin, name = await new_stream(), unique("COPY")
    declared = Stream(name=name, subjects=[f"{name}.>"], sources=[StreamSource(name=origin)])
    if way == "add":
        await assets.add_stream(nc, declared)
    elif way == "jetstream":
        await nc.jetstream().add_stream(declared)
    elif way == "apply":
        await apply(nc, Topology([declared]))
    else:
        told = ["stream", "add", name, "--subjects", f"{name}.>", "--source", origin, "--defaults"]
        done = await asyncio.to_thread(Command(tmp_path, server.url), *told)
        assert done.returncode == 0, done.stderr
    for body in (b"first", b"again"):
        await nc.jetstream().publish(f"{name}.x", body, headers={"Nats-Msg-Id": "1"})
    info = await assets.stream_info(nc, name)
    assert (info.config.duplicate_window, info.messages) == (MINUTES, 1)


async def test_the_window_follows_a_shorter_age_and_a_clear_word(nc: Connection, new_stream: NewStream):
    """With sources, too, ids are not remembered longer than messages are kept, and 0 means none."""
    origin = await new_stream()
    young = await new_stream(sources=[StreamSource(name=origin)], max_age=10)
    none = await new_stream(sources=[StreamSource(name=origin)], duplicate_window=0)
    windows = [(await assets.stream_info(nc, name)).config.duplicate_window for name in (young, none)]
    assert windows == [10, None]


async def test_a_collection_copies_everything(nc: Connection, new_stream: NewStream, unique: Unique):
    """A stream that only collects has no window: two sources may have messages of the same id, and both count."""
    one, other, name = await new_stream(), await new_stream(), unique("COPY")
    await assets.add_stream(nc, Stream(name=name, sources=[StreamSource(name=one), StreamSource(name=other)]))
    for origin in (one, other):
        await nc.jetstream().publish(f"{origin}.x", origin.encode(), headers={"Nats-Msg-Id": "1"})
    await settled(nc, name, 2)
    assert sorted(await bodies(nc, name)) == sorted([one.encode(), other.encode()])


async def test_apply_gives_an_old_stream_its_window(nc: Connection, new_stream: NewStream):
    """A stream that was made without a window, or got its sources later, is set right by what is declared."""
    origin = await new_stream()
    name = await new_stream(sources=[StreamSource(name=origin)], duplicate_window=0)
    declared = Topology([Stream(name=name, subjects=[f"{name}.>"], sources=[StreamSource(name=origin)])])
    done = await apply(nc, declared)
    assert [str(change) for step in done.steps for change in step.changes] == ["duplicate_window: nothing -> 2m0s"]
    assert (await assets.stream_info(nc, name)).config.duplicate_window == MINUTES


async def test_without_a_window_ids_are_refused(nc: Connection, server: Server, new_stream: NewStream):
    """Who sends ids, a publisher or rows in bulk, refuses a stream that remembers none, and says how to mend it."""
    origin = await new_stream()
    name = await new_stream(
        sources=[StreamSource(name=origin)], duplicate_window=0, allow_atomic=True, allow_batched=True
    )
    with pytest.raises(InputError, match=f"remembers no message ids .*stream edit {name} --dupe-window 2m"):
        await Publisher(nc, name).open()

    def in_bulk() -> None:
        with BulkConnection(server.url) as bulk:
            for mode, ids in (("acks", None), ("atomic", None), ("fast", True)):
                with pytest.raises(InputError, match="remembers no message ids"):
                    bulk.publish(name, rows(name, range(3)), mode, ids=ids)
            assert bulk.publish(name, rows(name, range(3)), "fast").rows == 3  # it sends none

    await asyncio.to_thread(in_bulk)
    assert (await assets.stream_info(nc, name)).messages == 3


async def test_patience_leaves_time_for_the_way(nc: Connection, new_stream: NewStream):
    """A retry that starts in time must arrive in time: patience is at most two thirds of the window."""
    name = await new_stream(duplicate_window=3)
    with pytest.raises(InputError, match=r"remembers ids for 3 s only\..*2 s or less"):
        await Publisher(nc, name, patience=2.5).open()
    async with Publisher(nc, name, patience=2) as publisher:
        await publisher.publish(f"{name}.x", b"a")


@pytest.mark.parametrize("order", ["strict", "sent"])
async def test_a_retry_does_not_wait_for_a_connection(
    nc: Connection, server: Server, new_stream: NewStream, order: str
):
    """What may be stored is not kept for a connection that comes when the stream has forgotten its id."""
    name = await new_stream(duplicate_window=1)
    with relayed(server) as relay:
        async with await connect(relay.url(server), reconnect_wait=0.05) as shaky:
            client = LossyClient(shaky, lose_ack=lambda ack: True)
            publisher = Publisher(client, name, ack_timeout=0.1, patience=0.6, order=order)
            await publisher.open()
            sent = await publisher.send(f"{name}.x", b"a")
            await settled(nc, name, 1)
            relay.refusing = True
            relay.cut()
            with pytest.raises(DeadlineError, match="may be stored or not"):
                await sent
            await asyncio.sleep(0.6)  # the stream forgets the id
            relay.refusing = False
            await shaky.standing(20)
            await shaky.flush()
            await publisher.close()
    assert await bodies(nc, name) == [b"a"]


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_a_busy_server_stores_everything_once(order: str):
    """What a server with too much to do refuses for the moment is sent again: stored once, and in order if promised."""
    with Server(sync="2m", config="jetstream { max_buffered_msgs: 4 }") as busy:
        async with await connect(busy.url) as nc:
            await assets.add_stream(nc, Stream(name="S", subjects=["s.>"]))
            refused = 0

            def count(payload: bytes) -> bool:
                nonlocal refused
                refused += b"error" in payload or not payload
                return False

            async with Publisher(LossyClient(nc, lose_ack=count), "S", order=order) as publisher:
                for number in range(300):
                    await publisher.send("s.x", b"%d" % number)
            found = [int(body) for body in await bodies(nc, "S")]
    assert (found if order != "sent" else sorted(found)) == list(range(300))
    assert refused or order == "strict", "the server took everything, so that this test would show nothing"


async def test_a_window_that_is_cut_short_under_a_publisher(nc: Connection, new_stream: NewStream):
    """A stream that somebody lets forget ids sooner is looked at before a message that may be stored is repeated."""
    name = await new_stream()
    client = LossyClient(nc, lose_ack=lambda ack: True)
    async with Publisher(client, name, ack_timeout=0.5) as publisher:
        sent = await publisher.send(f"{name}.x", b"a")
        await settled(nc, name, 1)
        await assets.edit_stream(nc, Stream(name=name, subjects=[f"{name}.>"], duplicate_window=0.1))
        with pytest.raises(DeadlineError, match="may be stored or not"):
            await sent
        publisher._in_flight.failures.clear()  # told
    assert await bodies(nc, name) == [b"a"]


# -- messages that are copied ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["strict", "sent"])
async def test_what_was_published_can_be_published_again(nc: Connection, new_stream: NewStream, order: str):
    """Messages carry nothing but what the caller gave and their id: with all headers they go into any stream."""
    name, other = await new_stream(), await new_stream()
    async with Publisher(nc, name, order=order) as publisher:
        for number in range(50):
            await publisher.send(f"{name}.x", b"%d" % number, headers={"K": "v"})
    for number in range(1, 51):
        found = await assets.get_message(nc, name, number)
        assert set(found.headers) == {"K", "Nats-Msg-Id"}
        await nc.jetstream().publish(f"{other}.x", found.data, headers=found.headers)
    assert await bodies(nc, other) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_a_stream_that_publishes_again_fills_another(nc: Connection, new_stream: NewStream, order: str):
    """What a stream publishes again arrives in another stream whole, whatever else is written there."""
    other = await new_stream()
    name = await new_stream(republish=Republish(src=">", dest=f"{other}.>"))
    async with Publisher(nc, name, order=order) as publisher:
        for number in range(50):
            await publisher.send(f"{name}.x", b"%d" % number)
            if number % 10 == 5:
                await nc.jetstream().publish(f"{other}.y", b"", headers={"Nats-Msg-Id": str(number)})
    await settled(nc, other, 55)
    found = [body for body in await bodies(nc, other) if body]
    assert found == [b"%d" % number for number in range(50)]


async def test_a_batch_into_a_stream_that_publishes_again(nc: Connection, new_stream: NewStream):
    """A batch whose way is not given goes so that what the stream publishes again arrives elsewhere."""
    other = await new_stream()
    name = await new_stream(republish=Republish(src=">", dest=f"{other}.>"), allow_atomic=True)
    async with Publisher(nc, name) as publisher:
        ack = await publisher.publish_batch([Outgoing(f"{name}.x", b"%d" % number) for number in range(10)])
    assert (ack.how, ack.count) == ("plain", 10)
    await settled(nc, other, 10)


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_counters_count(nc: Connection, new_stream: NewStream, order: str):
    """Increments go one after the other, each once, and their acks say what the counter stands at."""
    name = await new_stream(allow_msg_counter=True)
    client = LossyClient(nc, lose_ack=once_each({3}))
    async with Publisher(client, name, order=order, ack_timeout=0.3) as publisher:
        sent = [await publisher.send(f"{name}.hits", headers={"Nats-Incr": "2"}) for _ in range(5)]
        acks = await asyncio.gather(*sent)
    assert [ack.sequence for ack in acks] == [1, 2, 3, 4, 5]
    assert [ack.value for ack in acks if ack.sequence != 3] == ["2", "4", "8", "10"]
    assert (await assets.get_message(nc, name, 5)).data == b'{"val":"10"}'


# -- failures that nobody waits for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_a_publish_of_many_that_fails_leaves_nothing_behind(nc: Connection, new_stream: NewStream, order: str):
    """The first failure is raised, those behind it are told by flush, and asyncio has nothing to complain of."""
    name = await new_stream(max_msgs=20, discard="new")
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    publisher = Publisher(nc, name, order=order)
    await publisher.open()
    acks = []

    async def publish() -> None:
        async for ack in publisher.publish_all(Outgoing(f"{name}.x", b"%d" % number) for number in range(300)):
            acks.append(ack.sequence)

    with pytest.raises(JetStreamError, match="maximum messages exceeded"):
        await publish()
    assert acks == list(range(1, 21))
    with pytest.raises(JetStreamError, match="maximum messages exceeded"):
        await publisher.flush()
    await publisher.close()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_publish_that_was_given_up_is_told(nc: Connection, new_stream: NewStream):
    """Who stops waiting for an ack is told by flush if the message is refused."""
    name = await new_stream(max_msgs=1, discard="new")
    async with Publisher(LossyClient(nc), name) as publisher:
        await publisher.publish(f"{name}.x", b"a")
        waiting = asyncio.ensure_future(publisher.publish(f"{name}.x", b"b"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(JetStreamError, match="maximum messages exceeded"):
            await publisher.flush()
    assert waiting.cancelled()


# -- streams that are replaced, moved, or of another domain ----------------------------------------------------------


async def test_a_copy_of_a_process_is_told(nc: Connection, new_stream: NewStream):
    """A process that runs twice, or was restored to an earlier moment, makes up the same ids: nothing is dropped."""
    name = await new_stream()
    async with Publisher(nc, name) as one, Publisher(nc, name) as copy:
        copy._prefix = one._prefix
        await one.publish(f"{name}.x", b"a")
        with pytest.raises(JetStreamError, match="made up for this message: it is not stored"):
            await copy.publish(f"{name}.x", b"b")
        assert (await copy.publish(f"{name}.x", b"b", id=f"{one._prefix}.1")).duplicate  # one that the caller gave
    assert await bodies(nc, name) == [b"a"]


async def test_interest_that_nobody_has_is_told(
    nc: Connection, new_stream: NewStream, caplog: pytest.LogCaptureFixture
):
    """A stream that keeps only what consumers wait for, and has none, acknowledges and drops: a warning says so."""
    name = await new_stream(retention="interest")
    async with Publisher(nc, name) as publisher:
        await publisher.publish(f"{name}.x", b"a")
    assert f"Stream {name} has no consumer: what it acknowledges now, it does not keep." in caplog.text


async def test_a_stream_that_was_replaced_is_told(nc: Connection, new_stream: NewStream):
    """If sequences go back, acknowledged messages are gone: that is told once, and then publishing goes on."""
    name = await new_stream()
    async with Publisher(nc, name) as publisher:
        for number in range(5):
            await publisher.publish(f"{name}.x", b"%d" % number)
        await assets.delete_stream(nc, name)
        await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
        with pytest.raises(DataLossError, match="up to 5, and stored the next one as 1: it was replaced") as caught:
            await publisher.publish(f"{name}.x", b"new")
        assert (caught.value.stream, caught.value.start, caught.value.end) == (name, 1, 6)
        assert (await publisher.publish(f"{name}.x", b"newer")).sequence == 2
    assert await bodies(nc, name) == [b"new", b"newer"]


@pytest.mark.parametrize("order", ["strict", "chained", "sent"])
async def test_subjects_that_went_to_another_stream_are_told(
    nc: Connection, new_stream: NewStream, unique: Unique, order: str
):
    """A message that another stream took is a failure that names it, whichever way it was sent."""
    name, other = await new_stream(allow_atomic=True, allow_batched=True), unique("OTHER")
    async with Publisher(nc, name, order=order) as publisher:
        await publisher.publish(f"{name}.x", b"a")
        await assets.edit_stream(nc, Stream(name=name, subjects=["elsewhere-" + name], allow_batched=True))
        taken = Stream(name=other, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True)
        await assets.add_stream(nc, taken)
        with pytest.raises(JetStreamError, match=f"Stream {other} stored the message, and it was meant for {name}"):
            await publisher.publish(f"{name}.x", b"b")


async def test_a_stream_of_another_domain_is_told():
    """A leaf node that has a stream of the same name takes messages that were meant for the hub's: that is told."""
    port = free_port()
    hub = Server(
        sync="2m", auth=False, config=f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}'
    )
    remote = f'{{ url: "nats://127.0.0.1:{port}", deny_exports: "s.>" }}'  # what is published there stays there
    leaf_config = f"jetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {remote} ] }}"
    with hub, Server(sync="2m", auth=False, config=leaf_config) as leaf:
        async with await connect(plain(leaf), domain="hub") as far, await connect(plain(leaf)) as near:
            kept = Stream(name="S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
            async with asyncio.timeout(20):
                while True:
                    try:
                        await assets.add_stream(far, kept)
                        break
                    except DeadlineError:  # the leaf is not connected yet
                        await asyncio.sleep(0.05)
            async with await connect(plain(hub), domain="hub") as there, Publisher(there, "S") as publisher:
                assert (await publisher.publish("s.x", b"a")).domain == "hub"
            await assets.add_stream(near, kept)
            async with Publisher(far, "S") as publisher:
                with pytest.raises(JetStreamError, match=r"of domain leaf stored .* for one of domain hub"):
                    await publisher.publish("s.x", b"b")
                with pytest.raises(JetStreamError, match="of domain leaf"):
                    await far.jetstream().publish("s.x", b"b")
                for how in ("atomic", "fast"):
                    with pytest.raises(JetStreamError, match="of domain leaf"):
                        await publisher.publish_batch([Outgoing("s.x", b"c")], how)
            with pytest.raises(UnfinishedError, match=r"of domain leaf stored .* for one of domain hub"):
                await ChunkPublisher.persistent(far, "S").publish("s", b"d")
            # Where a prefix is named instead, the stream itself says in which domain it is.
            for named in ({"domain": "hub"}, {"domain": None, "api_prefix": "$JS.hub.API"}):
                with BulkConnection(far.options.replace(**named)) as bulk:
                    for mode in ("acks", "fast", "atomic"):
                        with pytest.raises(PublishError, match="of domain leaf"):
                            await asyncio.to_thread(bulk.publish, "S", rows("s", range(1)), mode)


async def test_an_overlap_names_the_other_stream(nc: Connection, new_stream: NewStream, unique: Unique):
    """A stream that is refused because of its subjects says which stream has them, however it is made or changed."""
    name, other = await new_stream(), unique("NEW")
    for make in (assets.add_stream, lambda client, made: client.jetstream().add_stream(made)):
        with pytest.raises(JetStreamError, match=f"{name} captures {name}.x, or part") as caught:
            await make(nc, Stream(name=other, subjects=["free." + other, f"{name}.x"]))
        assert caught.value.err_code == 10065
    await assets.add_stream(nc, Stream(name=other))
    with pytest.raises(JetStreamError, match=f"Stream {other} overlaps .*{name} captures {name}.y"):
        await assets.edit_stream(nc, Stream(name=other, subjects=[f"{name}.y"]))
