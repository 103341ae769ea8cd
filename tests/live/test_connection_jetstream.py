"""`Connection.jetstream()`: JetStream under nats-py's names, on the domain or prefix of the connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.connection import Connection, Msg, connect
from penstock.connection.jetstream import JetStream
from penstock.errors import (
    DeadlineError,
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
)
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.connecting import plain
from tests.support import eventually

Unique = Callable[..., str]


@pytest.fixture
async def js(nc: Connection) -> JetStream:
    return nc.jetstream()


async def test_the_life_of_a_stream(js: JetStream, unique: Unique):
    """A stream is made from fields or from a declaration, found, changed, emptied and deleted."""
    name = unique("S")
    made = await js.add_stream(name=name, subjects=[f"{name}.>"])
    assert (made.name, made.messages, made.config.subjects) == (name, 0, [f"{name}.>"])
    same = await js.add_stream(Stream(name=name, subjects=[f"{name}.>"]))
    assert same.created == made.created, "the same one again is no error"
    with pytest.raises(JetStreamError, match="already in use"):
        await js.add_stream(name=name, subjects=[f"{name}.other"])
    changed = await js.update_stream(made.config, max_msgs=5)
    assert changed.config.max_msgs == 5
    assert (await js.stream_info(name)).config.max_msgs == 5
    assert await js.find_stream_name_by_subject(f"{name}.a") == name
    with pytest.raises(NotFoundError, match="No stream captures"):
        await js.find_stream_name_by_subject(unique("nothing"))
    for number in range(4):
        await js.publish(f"{name}.{number % 2}", b"%d" % number)
    assert await js.purge_stream(name, subject=f"{name}.0") == 2
    assert await js.purge_stream(name, keep=1) == 1
    assert (await js.stream_info(name)).messages == 1
    assert await js.purge_stream(name) == 1
    assert await js.delete_stream(name) is True
    for call in (js.stream_info, js.purge_stream, js.delete_stream):
        with pytest.raises(NotFoundError, match="stream not found"):
            await call(name)


async def test_publishing(js: JetStream, unique: Unique):
    """A message is acknowledged by the stream that stored it; repeats, wrong streams and no stream are told."""
    name = unique("P")
    await js.add_stream(name=name, subjects=[name])
    first = await js.publish(name, b"one", headers={"Nats-Msg-Id": "1"})
    again = await js.publish(name, b"one", headers={"Nats-Msg-Id": "1"})
    assert (first.stream, first.sequence, first.seq, first.duplicate) == (name, 1, 1, False)
    assert (again.sequence, again.duplicate) == (1, True)
    assert (await js.publish(name, b"two", stream=name)).sequence == 2
    with pytest.raises(JetStreamError, match="expected stream does not match"):
        await js.publish(name, b"three", stream=unique("another"))
    with pytest.raises(NoRespondersError):
        await js.publish(unique("nowhere"), b"")
    assert (await js.stream_info(name)).messages == 2


async def test_single_messages(js: JetStream, unique: Unique):
    """Stored messages are read by sequence or as the last of a subject, headers included, and deleted."""
    name = unique("M")
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    await js.publish(f"{name}.a", b"\x00\xff", headers={"Kind": "odd", "Many": ["x", "y"]})
    await js.publish(f"{name}.b", b"plain")
    await js.publish(f"{name}.a", b"last")
    message = await js.get_msg(name, 1)
    assert (message.subject, message.data, message.sequence, message.stream) == (f"{name}.a", b"\x00\xff", 1, name)
    assert message.headers == {"Kind": ["odd"], "Many": ["x", "y"]}
    assert message.time is not None
    assert (await js.get_msg(name, seq=2)).headers == {}
    assert (await js.get_last_msg(name, f"{name}.a")).data == b"last"
    assert await js.delete_msg(name, 2) is True
    with pytest.raises(NotFoundError, match="no message found"):
        await js.get_msg(name, 2)
    with pytest.raises(NotFoundError):
        await js.get_last_msg(name, f"{name}.c")


async def test_the_life_of_a_consumer(js: JetStream, unique: Unique):
    """A consumer is made, asked for and deleted; with filters, with a name of its own or of the server's."""
    name = unique("C")
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    await js.publish(f"{name}.a", b"x")
    await js.publish(f"{name}.b", b"x")
    durable = await js.add_consumer(name, durable="d", filter_subject=f"{name}.a")
    assert (durable.name, durable.stream, durable.pending) == ("d", name, 1)
    same = await js.add_consumer(name, Consumer(durable="d"), filter_subject=f"{name}.a")
    assert same.created == durable.created
    unnamed = await js.add_consumer(name, ack_policy="explicit")
    assert unnamed.name not in ("", "d")
    assert (await js.consumer_info(name, "d")).config.filter_subject == f"{name}.a"
    assert await js.delete_consumer(name, "d") is True
    with pytest.raises(NotFoundError, match="consumer not found"):
        await js.consumer_info(name, "d")
    with pytest.raises(NotFoundError, match="stream not found"):
        await js.add_consumer(unique("nothing"), durable="d")


@pytest.mark.parametrize("wrong", ["", "a.b", "a b", "*", ">", "a\r\n"])
async def test_names_are_checked_before_anything_is_asked(nc: Connection, js: JetStream, wrong: str):
    """A name that would change the subject of the request is refused."""
    for call in (
        lambda: js.stream_info(wrong),
        lambda: js.purge_stream(wrong),
        lambda: js.delete_stream(wrong),
        lambda: js.get_msg(wrong, 1),
        lambda: js.delete_msg(wrong, 1),
        lambda: js.consumer_info("fine", wrong),
        lambda: js.delete_consumer(wrong, "fine"),
    ):
        with pytest.raises(InputError):
            await call()
    assert nc.stats["out_msgs"] == 0


async def test_the_domain_of_the_connection_is_used():
    """With a domain every request goes there; with another one nobody answers; a prefix does the same."""
    with Server(sync="2m", auth=False, config="jetstream { domain: hub }") as server:
        for options in ({"domain": "hub"}, {"api_prefix": "$JS.hub.API"}, {}):
            async with await connect(plain(server), **options) as nc:
                js = nc.jetstream()
                await js.add_stream(name="HUB", subjects=["hub"])
                assert (await js.publish("hub", b"x")).domain == "hub"
                assert (await js.account_info())["domain"] == "hub"
                await js.delete_stream("HUB")
        async with await connect(plain(server), domain="elsewhere") as nc:
            with pytest.raises(NoRespondersError, match=r"\$JS\.elsewhere\.API\.STREAM\.INFO\.HUB"):
                await nc.jetstream().stream_info("HUB")


async def test_the_timeout_of_the_context_holds(server: Server, unique: Unique):
    """What the context was made with counts for its requests, and a publish may have its own."""
    async with await connect(server.url, api_prefix=unique("silent")) as nc:
        await nc.subscribe(f"{nc.options.js_prefix}.>")
        await nc.subscribe(subject := unique("subject"))
        js = nc.jetstream(timeout=0.1)
        with pytest.raises(DeadlineError, match=r"in time \(0\.1 s\)"):
            await js.stream_info("S")
        with pytest.raises(DeadlineError, match=r"in time \(0\.1 s\)"):
            await js.publish(subject, b"x")
        with pytest.raises(DeadlineError, match=r"in time \(0\.05 s\)"):
            await js.publish(subject, b"x", timeout=0.05)
        await eventually(lambda: not nc._requests._waiting, "nothing being waited for")


ODD = [
    b"{}",
    b'{"success": "yes", "purged": "many", "streams": 5, "config": 7, "state": [], "message": null}',
    b"[]",
    b"x",
]


@pytest.mark.parametrize("answer", ODD, ids=["empty", "wrong kinds", "a list", "no JSON"])
async def test_odd_answers_are_our_errors(server: Server, unique: Unique, answer: bytes):
    """Whatever answers in the place of JetStream, only errors of ours come out."""
    async with await connect(server.url, api_prefix=unique("odd")) as nc:

        async def odd(message: Msg) -> None:
            await message.respond(answer)

        await nc.subscribe(f"{nc.options.js_prefix}.>", cb=odd)
        await nc.subscribe(subject := unique("subject"), cb=odd)
        js = nc.jetstream(timeout=5)
        for call in (
            lambda: js.stream_info("S"),
            lambda: js.add_stream(name="S", subjects=["s"]),
            lambda: js.update_stream(name="S", subjects=["s"]),
            lambda: js.purge_stream("S"),
            lambda: js.delete_stream("S"),
            lambda: js.get_msg("S", 1),
            lambda: js.get_last_msg("S", "s"),
            lambda: js.delete_msg("S", 1),
            lambda: js.add_consumer("S", durable="d"),
            lambda: js.consumer_info("S", "d"),
            lambda: js.delete_consumer("S", "d"),
            lambda: js.publish(subject, b"x"),
        ):
            with pytest.raises(PenstockError):
                await call()
        if answer != b"{}":
            with pytest.raises(PenstockError):
                await js.find_stream_name_by_subject("s")
