"""Counters: whole numbers of any size that a stream keeps, in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import DeadlineError, InputError, JetStreamError, NotFoundError, RemoteProtocolError
from penstock.jetstream import Counters, Publisher, assets
from penstock.model import Stream
from penstock.server import Server
from tests.live.inprocess import Done, invoke

HUGE = 10**40 + 7


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server.url) as client:
        yield client


@pytest.fixture
def made(nc: Connection, unique: Callable[..., str]) -> Any:
    """Make a stream, which counts unless it is told not to."""

    async def make(**fields: Any) -> str:
        name = unique("CNT")
        await assets.add_stream(
            nc, Stream(**{"name": name, "subjects": [f"{name}.>"], "allow_msg_counter": True} | fields)
        )
        return name

    return make


async def test_a_counter_is_a_whole_number_of_any_size(nc: Connection, made: Any):
    """What is added and taken away sums up exactly, beyond what 64 bits hold; each subject is a counter."""
    stream = await made()
    counters = Counters(nc, stream)
    assert await counters.add(f"{stream}.a") == 1
    assert await counters.add(f"{stream}.a", HUGE) == HUGE + 1
    assert await counters.add(f"{stream}.a", -2 * HUGE) == 1 - HUGE
    ack = await counters.publish(f"{stream}.b", 5)
    assert (ack.stream, ack.sequence, ack.value) == (stream, 4, "5")
    assert await counters.value(f"{stream}.a") == 1 - HUGE
    found = await counters.get(f"{stream}.a")
    assert (found.value, found.increment, found.sequence, found.sources) == (1 - HUGE, -2 * HUGE, 3, {})
    assert await counters.subjects() == [f"{stream}.a", f"{stream}.b"]
    assert await counters.subjects(f"{stream}.b") == [f"{stream}.b"]


async def test_a_publisher_hears_the_value_too(nc: Connection, made: Any):
    """The ack of a message that is an increment says what the counter stands at."""
    stream = await made()
    ack = await nc.jetstream().publish(f"{stream}.a", headers={"Nats-Incr": "+3"})
    assert ack.value == "3"


async def test_what_has_an_id_counts_once(nc: Connection, made: Any):
    """An addition that is sent again with its id adds nothing, and still says what the counter stands at."""
    stream = await made()
    counters = Counters(nc, stream)
    assert [await counters.add(f"{stream}.a", 2, id="one") for _ in range(3)] == [2, 2, 2]
    assert (await counters.publish(f"{stream}.a", 2, id="one")).duplicate


async def test_an_id_that_is_used_again_for_something_else_is_refused(nc: Connection, made: Any):
    """Another amount, or another counter, under an id that was used is told: it is not counted."""
    stream = await made()
    counters = Counters(nc, stream)
    assert await counters.add(f"{stream}.a", 5, id="one") == 5
    for subject, amount in ((f"{stream}.a", 7), (f"{stream}.b", 5)):
        with pytest.raises(InputError, match=f"{subject} did not count {amount}: the id 'one' was used before"):
            await counters.add(subject, amount, id="one")
    assert await counters.value(f"{stream}.a") == 5


async def test_a_counter_that_keeps_its_last_message_only(nc: Connection, made: Any):
    """What is sent again is counted once, also where the message that had the id is gone meanwhile."""
    stream = await made(max_msgs_per_subject=1)
    counters = Counters(nc, stream)
    await counters.add(f"{stream}.a", 5, id="one")
    await counters.add(f"{stream}.a", 1)
    assert await counters.add(f"{stream}.a", 5, id="one") == 6


async def test_counters_that_are_collected(nc: Connection, made: Any):
    """A stream that copies counters adds them up, and says what it has from whom."""
    east, west = await made(), await made()
    for stream, amount in ((east, 10), (west, HUGE)):
        await Counters(nc, stream).add(f"{stream}.hits", amount)
    transforms = [{"src": f"{stream}.hits", "dest": "all.hits"} for stream in (east, west)]
    sources = [
        {"name": stream, "subject_transforms": [rule]} for stream, rule in zip((east, west), transforms, strict=True)
    ]
    whole = Counters(nc, await made(subjects=[], sources=sources))
    while len(await whole.subjects()) < 1 or await whole.value("all.hits") < HUGE + 10:
        await nc.flush()
    found = await whole.get("all.hits")
    assert found.value == HUGE + 10
    assert found.sources == {east: {f"{east}.hits": 10}, west: {f"{west}.hits": HUGE}}
    assert found.to_json()["sources"][west] == {f"{west}.hits": str(HUGE)}


async def test_what_is_no_counter(nc: Connection, made: Any):
    """A stream that counts nothing, a counter that is not there, and numbers that are none, are told."""
    plain = await made(allow_msg_counter=False)
    stream = await made()
    with pytest.raises(
        JetStreamError, match=f"Stream {plain} counts nothing. Make one with allow_msg_counter"
    ) as caught:
        await Counters(nc, plain).add(f"{plain}.a")
    assert caught.value.err_code == 10168
    with pytest.raises(JetStreamError, match="counts nothing"):
        await Counters(nc, plain).check()
    async with Publisher(nc, plain) as publisher:
        await publisher.publish(f"{plain}.a", b'{"val": 5}')
    with pytest.raises(RemoteProtocolError, match=f"Message 1 of stream {plain} is not a counter"):
        await Counters(nc, plain).get(f"{plain}.a")
    counters = Counters(nc, stream)
    with pytest.raises(NotFoundError, match=f"Stream {stream} has no counter {stream}.a"):
        await counters.get(f"{stream}.a")
    with pytest.raises(NotFoundError, match="There is no stream NOPE"):
        await Counters(nc, "NOPE").get("a")
    with pytest.raises(JetStreamError, match=f"Stream {stream} counted .* and stream {plain} was meant"):
        await Counters(nc, plain).add(f"{stream}.a")
    for amount in (1.5, True, "5", 10**5000):
        with pytest.raises(InputError):
            await counters.add(f"{stream}.a", amount)  # type: ignore[arg-type]  # what a caller may try
    with pytest.raises(InputError, match="has a wildcard"):
        await counters.get(f"{stream}.*")


async def test_an_addition_that_may_have_been_counted(nc: Connection, made: Any):
    """Where no ack comes, the error says that nobody knows, and not that nothing was counted."""
    stream = await made(no_ack=True)
    counters = Counters(await connect(nc.options.replace(request_timeout=0.1)), stream)
    with pytest.raises(DeadlineError, match=rf"Nobody knows whether {stream}\.a counted 5"):
        await counters.add(f"{stream}.a", 5)
    assert await Counters(nc, stream).value(f"{stream}.a") == 5
    await counters._client.close()


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    def call(*words: str, status: int = 0) -> Done:
        done = invoke(server.url, *words)
        assert done.status == status, done.stderr
        assert done.stderr.count("\n") == (0 if not status else 1), done.stderr
        return done

    return call


def test_the_command_counts(run: Callable[..., Done], unique: Callable[..., str]):
    """increment and decrement print what the counter stands at; get, view and list show it, for programs as well."""
    name = unique("CNT")
    run("stream", "add", name, "--subjects", f"{name}.>", "--allow-counter", "--defaults")
    assert run("counter", "increment", f"{name}.a", "5").stdout == "5\n"
    assert run("ctr", "incr", f"{name}.a", str(HUGE)).stdout == f"{HUGE + 5}\n"
    assert json.loads(run("counter", "dec", f"{name}.a", str(HUGE), "--json").stdout) == {
        "stream": name,
        "seq": 3,
        "val": "5",
    }
    assert run("counter", "get", f"{name}.a").stdout == "5\n"
    assert json.loads(run("counter", "get", f"{name}.a", "--json").stdout) == {"subject": f"{name}.a", "value": "5"}
    shown = run("counter", "view", f"{name}.a", "--stream", name).stdout
    assert "Value: 5\n" in shown
    assert f"Increment: -{HUGE:,}\n" in shown
    assert json.loads(run("counter", "view", f"{name}.a", "--json").stdout) == {
        "subject": f"{name}.a",
        "value": "5",
        "increment": f"-{HUGE}",
        "sources": {},
    }
    assert run("counter", "list", f"{name}.*").stdout == f"{name}.a\n"
    assert json.loads(run("counter", "ls", "--stream", name, "--json").stdout) == [f"{name}.a"]


def test_what_the_command_cannot_count(run: Callable[..., Done], unique: Callable[..., str]):
    """A stream that counts nothing, a counter that is not there and a subject of no stream are status 1."""
    name, plain = unique("CNT"), unique("CNT")
    run("stream", "add", name, "--subjects", f"{name}.>", "--allow-counter", "--defaults")
    run("stream", "add", plain, "--subjects", f"{plain}.>", "--defaults")
    for words in (["get", f"{plain}.a"], ["incr", f"{plain}.a", "1"], ["list", "--stream", plain]):
        assert "counts nothing" in run("counter", *words, status=1).stderr
    assert f"has no counter {name}.a" in run("counter", "view", f"{name}.a", status=1).stderr
    assert f"Stream {name} has no counters." in run("counter", "list", "--stream", name, status=1).stderr
    assert json.loads(run("counter", "list", "--stream", name, "--json").stdout) == []
    assert "No stream captures" in run("counter", "incr", unique("nobody"), "1", status=1).stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["get", "a.*"], "has a wildcard"),
        (["incr", "a..b", "1"], "empty token"),
        (["incr", "a", "1.5"], "VALUE is '1.5'"),
        (["decr", "a", "many"], "VALUE is 'many'"),
        (["incr", "a", ""], "VALUE is ''"),
        (["list"], "Whose counters?"),
        (["get", "a", "--stream", "x.y"], "cannot be the name of a stream"),
    ],
)
def test_bad_input_is_refused_before_a_connection(words: list[str], says: str):
    """What makes no sense is status 2 and said at once: the server named here is not there."""
    done = invoke("nats://127.0.0.1:1", "counter", *words)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert says in done.stderr
