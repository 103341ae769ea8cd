"""`Connection.jetstream()`: JetStream under nats-py's names, on the domain or prefix of the connection."""

from __future__ import annotations

import asyncio
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
from penstock.jetstream import Schedule, Schedules
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
    whole = await js.stream_info(name, subjects_filter=">", deleted_details=True)
    assert (whole.held, whole.gaps) == ({f"{name}.0": 2, f"{name}.1": 2}, ())
    assert (await js.stream_info(name, f"{name}.1")).held == {f"{name}.1": 2}
    assert (await js.stream_info(name)).held == {}
    assert whole.time is not None
    assert await js.delete_msg(name, 2)
    assert (await js.stream_info(name, deleted_details=True)).gaps == (2,)
    await js.publish(f"{name}.1", b"4")
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


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
async def test_messages_that_are_looked_for(js: JetStream, unique: Unique, direct: bool, allowed: bool):
    """By sequence, as the last or the next of a subject, the same from the leader and by direct get, allowed or not."""
    name = unique("G")
    await js.add_stream(name=name, subjects=[f"{name}.*"], allow_direct=allowed)
    await js.publish(f"{name}.a", b"1", headers={"Many": ["x", "y"], "Nats-Stream": "mine", "Nats-Num-Pending": "7"})
    await js.publish(f"{name}.b", b"2")
    await js.publish(f"{name}.a", b"3")
    first = await js.get_msg(name, 1, direct=direct)
    assert (first.subject, first.data, first.sequence, first.stream) == (f"{name}.a", b"1", 1, name)
    assert first.headers == {"Many": ["x", "y"], "Nats-Stream": ["mine"], "Nats-Num-Pending": ["7"]}
    assert first == await js.get_msg(name, 1, direct=not direct)
    assert (await js.get_last_msg(name, f"{name}.a", direct=direct)).data == b"3"
    assert (await js.get_last_msg(name, f"{name}.*", direct=direct)).data == b"3"
    assert (await js.get_msg(name, 2, f"{name}.a", direct=direct, next=True)).data == b"3"
    assert (await js.get_msg(name, subject=f"{name}.b", direct=direct, next=True)).data == b"2"
    assert (await js.get_msg(name, 2, direct=direct, next=True)).data == b"2"
    for missing in ({"seq": 9}, {"subject": f"{name}.c"}, {"seq": 3, "subject": f"{name}.b", "next": True}):
        with pytest.raises(NotFoundError) as caught:
            await js.get_msg(name, direct=direct, **missing)
        assert (caught.value.code, caught.value.err_code) == (404, 10037)
    with pytest.raises(NotFoundError, match="stream not found"):
        await js.get_msg(unique("nothing"), 1, direct=direct)
    last = {message.subject: message async for message in js.get_last_msgs(name, [">", f"{name}.a"], direct=direct)}
    assert {subject: message.data for subject, message in last.items()} == {f"{name}.a": b"3", f"{name}.b": b"2"}
    assert last[f"{name}.a"] == await js.get_last_msg(name, f"{name}.a")
    listed = [message.data async for message in js.get_last_msgs(name, [f"{name}.b", f"{name}.c"], direct=direct)]
    assert listed == [b"2"]
    assert [message async for message in js.get_last_msgs(name, f"{name}.c", direct=direct)] == []
    for wrong in ({}, {"seq": 0}, {"seq": 1, "subject": "a"}, {"subject": "a..b"}, {"seq": "1"}):
        with pytest.raises(InputError):
            await js.get_msg(name, direct=direct, **wrong)
    with pytest.raises(InputError):
        [message async for message in js.get_last_msgs(name, [f"{name}.a", "a b"], direct=direct)]


async def test_the_last_messages_of_many_subjects(
    nc: Connection, js: JetStream, unique: Unique, monkeypatch: pytest.MonkeyPatch
):
    """More subjects than the server gives at once, and more bytes, come all the same, each once."""
    name = unique("L")
    await js.add_stream(name=name, subjects=[f"{name}.>"], storage="memory")
    for number in range(2100):
        await nc.publish(f"{name}.{number}", b"old")
    for number in range(2100):
        await nc.publish(f"{name}.{number}", b"%d" % number)
    while (await js.stream_info(name)).messages < 4200:  # what is published without an ack is stored later
        await asyncio.sleep(0.01)
    subjects = [f"{name}.{number}" for number in range(2100)]
    for asked in (f"{name}.*", subjects):
        found = [(message.subject, message.data) async for message in js.get_last_msgs(name, asked)]
        assert sorted(found) == sorted((subject, b"%d" % number) for number, subject in enumerate(subjects))
        monkeypatch.setattr("penstock.connection.stored._PAGE_BYTES", 5000)


async def test_a_mirror_does_not_answer_for_its_origin(js: JetStream, unique: Unique):
    """What a mirror says of its origin is not taken: it may hold less, and nothing says that it is up to date."""
    name = unique("O")
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    for number in range(6):
        await js.publish(f"{name}.{number % 3}", b"%d" % number)
    await js.add_stream(name=f"{name}-M", mirror={"name": name, "filter_subject": f"{name}.1"}, mirror_direct=True)

    async def copied() -> bool:
        return (await js.stream_info(f"{name}-M")).messages == 2

    await eventually(copied, "the mirror's copy")
    for _ in range(12):  # the server picks who answers by chance
        assert (await js.get_msg(name, 1, direct=True)).data == b"0"
        assert (await js.get_last_msg(name, f"{name}.2", direct=True)).data == b"5"
        found = [message.data async for message in js.get_last_msgs(name, [">"])]
        assert sorted(found) == [b"3", b"4", b"5"]


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
                assert (await js.get_msg("HUB", 1, direct=True)).data == b"x"
                assert [message.data async for message in js.get_last_msgs("HUB", ">")] == [b"x"]
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
        js, quick = nc.jetstream(timeout=5), nc.jetstream(timeout=0.05)
        for call in (
            lambda: js.stream_info("S"),
            lambda: js.stream_info("S", ">", deleted_details=True),
            lambda: js.get_msg("S", 1, direct=True),
            lambda: js.get_last_msg("S", "s", direct=True),
            lambda: anext(quick.get_last_msgs("S", ">")),
            lambda: anext(js.get_last_msgs("S", ">", direct=False)),
            lambda: Schedules(nc, "S").put("s", b"", Schedule.after("1s", "t")),
            lambda: Schedules(nc, "S").cancel("s"),
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
