"""The console while NATS refuses, is slow, goes or comes back, and what its page of transfers makes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from penstock.chunks.wire import Chunk, encode
from penstock.console.settings import Settings
from penstock.jetstream import assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.browser import client_of
from tests.live.visitor import Visitor, visiting
from tests.support import eventually as until

Unique = Callable[..., str]
MENU = ("/overview", "/streams", "/consumers", "/pipelines", "/transfers", "/dead-letters", "/buckets", "/channels")

ACCOUNTS = """
accounts {
  SMALL { jetstream { max_file: 100MB, max_streams: 2, max_consumers: 10 }, users: [{ user: small, password: pass }] }
  PLAIN { users: [{ user: plain, password: pass }] }
  SHARED {
    jetstream: enabled
    users: [
      { user: owner, password: pass }
      { user: mute, password: pass, permissions: { publish: { deny: "$JS.API.>" } } }
      { user: nosy, password: pass, permissions: { publish: { deny: ["$JS.API.CONSUMER.CREATE.>"] } } }
      { user: deaf, password: pass, permissions: { subscribe: { deny: ">" } } }
    ]
  }
}
"""


@pytest.fixture(scope="module")
def accounts() -> Iterator[Server]:
    """A server whose logins may do different things."""
    with Server(sync="2m", auth=False, config=ACCOUNTS) as running:
        yield running


def login(accounts: Server, user: str) -> ConnectionOptions:
    return ConnectionOptions(f"nats://{accounts.nodes[0].address}", user=user, password="pass")


# -- what an account may do --------------------------------------------------------------------------------------------


async def test_an_account_near_its_limits_needs_attention(accounts: Server):
    """The overview shows what an account uses of what it may, and names the limit that is nearly reached."""
    async with visiting(login(accounts, "small")) as visitor:
        client = await visitor.nats()
        for name in ("ONE", "TWO"):
            await assets.add_stream(client, Stream(name=name, subjects=[name], max_bytes=1000))
        await visitor.survey.fresh()
        text, data = await visitor.both("/overview")
        assert data["jetstream"]["streams"] == {"used": 2, "limit": 2}
        assert data["jetstream"]["storage"]["limit"] == 100 * 2**20
        assert data["jetstream"]["memory"]["limit"] is None
        assert data["server"]["login"] == "user and password"
        notes = [note for note in data["attention"] if note["kind"] == "account"]
        assert [(note["about"], note["what"], note["link"]) for note in notes] == [
            ("streams", "100 % of the account's limit is used", None)
        ]
        assert "login: user and password" in text


async def test_an_account_without_jetstream_still_has_an_overview(accounts: Server):
    """The server is shown, with a sentence instead of streams; pages of streams say 503, and nothing fails."""
    async with visiting(login(accounts, "plain"), Settings(timeout=1.0)) as visitor:
        text, data = await visitor.both("/overview")
        assert (data["jetstream"], data["streams"], data["attention"]) == (None, [], [])
        assert data["server"]["version"] == accounts.version
        assert "JetStream is not on, or not for this account" in text
        for path in MENU[1:]:
            assert (await visitor.twin(path, 503))["error"]["kind"] == "JetStreamError", path


@pytest.mark.parametrize("user", ["mute", "deaf"])
async def test_a_login_that_may_not_ask_is_told_so(accounts: Server, user: str):
    """A login that may not ask JetStream, or not hear the answer, is told so on every page, as what it is."""
    async with visiting(login(accounts, user)) as visitor:
        for path in MENU:
            data = await visitor.twin(path, 503)
            assert data["error"]["kind"] == "DeniedError", path
            assert "pass" not in data["error"]["what"].split()
            assert "The login may not do this" in (await visitor.get(path)).text
        assert (await visitor.get("/about")).status == 200


async def test_a_login_that_may_not_make_consumers_sees_all_but_transfers(accounts: Server, unique: Unique):
    """Where looking through a stream is not allowed, the page of transfers names the stream; the others are as ever."""
    name = unique("CLOSED")
    async with client_of(f"nats://owner:pass@{accounts.nodes[0].address}") as owner:
        await assets.add_stream(owner, Stream(name=name, subjects=[name]))
        await owner.jetstream().publish(name, b"x")
    async with visiting(login(accounts, "nosy"), Settings(timeout=2.0)) as visitor:
        for path in MENU[:4]:
            await visitor.both(path)
        text, data = await visitor.both("/transfers")
        assert [item["stream"] for item in data["failed"]] == [name]
        assert "does not permit this" in data["failed"][0]["why"]
        assert "does not permit this" in text


# -- a server that goes and comes --------------------------------------------------------------------------------------


async def test_pages_come_back_with_the_server(caplog: pytest.LogCaptureFixture):
    """While NATS is away every page says 503 at once; once it is back they are as before, and one line is logged."""
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(timeout=2.0)) as visitor:
            await assets.add_stream(await visitor.nats(), Stream(name="KEPT", subjects=["kept"]))
            first = await visitor.nats()
            own.nodes[0].kill()
            await until(lambda: first.is_closed, "the connection being gone")
            for path in MENU:
                data = await visitor.twin(path, 503)
                assert data["error"]["kind"] == "UnreachableError", path
            text = (await visitor.get("/streams/KEPT")).text
            assert "NATS does not answer" in text
            assert "This page tries again by itself." in text
            assert own.token not in text
            own.nodes[0].start()
            with caplog.at_level(logging.WARNING, "penstock.console"):

                async def back() -> bool:
                    return (await visitor.get("/streams/KEPT")).status == 200

                await until(back, "the page coming back")
                assert await back()
            assert [record.getMessage() for record in caplog.records if record.name == "penstock.console"] == [
                f"Connected to nats://{own.nodes[0].address} again."
            ]
            assert await visitor.nats() is not first


async def test_many_pages_make_one_attempt(unused_tcp_port: int):
    """Pages that are asked for together while NATS is away get the same answer from one attempt to connect."""
    tries = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", unused_tcp_port)
    async with listener, visiting(f"nats://127.0.0.1:{unused_tcp_port}", Settings(timeout=1.0)) as visitor:
        answers = await asyncio.gather(*(visitor.get(path) for path in MENU))
        assert {answer.status for answer in answers} == {503}
        assert tries == 1


async def test_many_pages_share_one_connection():
    """Pages that are asked for together, the first ones ever, are made over one connection."""
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(pages=3)) as visitor:
            answers = await asyncio.gather(*(visitor.get(path) for path in MENU * 4))
            assert {answer.status for answer in answers} == {200}
            status, body = own.nodes[0]._monitor("/connz")
            assert (status, body["num_connections"]) == (200, 1)


async def test_a_page_that_takes_too_long_is_given_up():
    """A page has its own time, beside that of each answer: then it is 504, and what it was asking for ends."""
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(timeout=30.0, page_timeout=0.3)) as visitor:
            await visitor.nats()
            own.nodes[0].pause()
            try:
                data = await visitor.twin("/streams", 504)
                assert data["error"]["kind"] == "DeadlineError"
                assert "within 0.3 s" in data["error"]["what"]
                assert (await visitor.get("/about")).status == 200
            finally:
                own.nodes[0].resume()
            left = [task for task in asyncio.all_tasks() if "in_turn" in repr(task.get_coro())]
            assert left == []
            await visitor.both("/streams")


async def test_pages_wait_for_their_turn():
    """With one page in the making the next one waits, although it needs no NATS; then both are there."""
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(pages=1, timeout=50.0, page_timeout=60.0)) as visitor:
            await visitor.nats()
            own.nodes[0].pause()
            try:
                first, second = (asyncio.create_task(visitor.get(path)) for path in ("/streams", "/about"))
                done, _ = await asyncio.wait({first, second}, timeout=0.3)
                assert not done
            finally:
                own.nodes[0].resume()
            assert [answer.status for answer in await asyncio.gather(first, second)] == [200, 200]


async def test_the_end_answers_who_waits():
    """Pages in the making when the console ends are answered with 503, and so is whoever asks afterwards."""
    with Server(sync="2m") as own:
        async with visiting(own.url, Settings(timeout=30.0, page_timeout=60.0)) as visitor:
            await visitor.nats()
            own.nodes[0].pause()
            try:
                waiting = asyncio.create_task(visitor.get("/streams.json"))
                await asyncio.sleep(0)
                visitor.backend.closing.set()
                answer = await waiting
                assert answer.status == 503
                assert "is ending" in answer.json()["error"]["what"]
            finally:
                own.nodes[0].resume()


async def test_a_mistake_of_ours_is_told_without_its_details(
    visitor: Visitor, unique: Unique, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Where the console itself fails the page says so with 500, and only the log has the details."""

    def broken(*_: object) -> float:
        raise ValueError("the secret inside")

    await assets.add_stream(await visitor.nats(), Stream(name=unique("BROKEN"), subjects=[unique("broken")]))
    monkeypatch.setattr("penstock.console.streams.stream_row", broken)
    data = await visitor.twin("/streams", 500)
    assert data["error"]["what"] == "The console made a mistake."
    assert "the secret inside" not in str(data)
    assert "the secret inside" in caplog.text


# -- transfers ---------------------------------------------------------------------------------------------------------


async def chunk(visitor: Visitor, subject: str, message: str, offset: int, size: int, total: int | None = None) -> None:
    """Store one chunk of a payload."""
    client = await visitor.nats()
    await client.jetstream().publish(subject, bytes(size), headers=encode(Chunk(message, offset, total)))


async def test_a_look_that_begins_late_says_that_chunks_may_stand_before_it(server: Server, unique: Unique):
    """Of a payload whose first chunks are older than the newest messages that are looked at, the rest is shown."""
    name = unique("LATE")
    async with visiting(server.url, Settings(scan_messages=2, scan_streams=1)) as visitor:
        await assets.add_stream(await visitor.nats(), Stream(name=name, subjects=[name]))
        for offset in (0, 100, 200):
            await chunk(visitor, name, "long", offset, 100, 300 if offset == 200 else None)
        text, data = await visitor.both("/transfers")
        (found,) = data["transfers"]
        assert (found["state"], found["received"], found["total"]) == ("begins earlier", 200, 300)
        assert (found["first"], found["last"], found["chunks"]) == (2, 3, 2)
        assert data["looked_at"]["messages"] == 2
        assert data["looked_at"]["streams"] == 1
        assert "begins earlier" in text
        await chunk(visitor, name, "whole", 0, 50, 50)
        await chunk(visitor, name, "hole", 10, 10, 20)
        states = {item["id"]: item["state"] for item in (await visitor.twin("/transfers"))["transfers"]}
        assert states == {"whole": "whole", "hole": "begins earlier"}


@pytest.fixture
def alone() -> Iterator[Server]:
    """A server on which no other test writes: the page looks at the streams that were written to last."""
    with Server(sync="2m") as running:
        yield running


async def test_chunks_that_contradict_each_other_are_broken(alone: Server, unique: Unique):
    """Chunks that overlap, pass the end or name two totals make a broken transfer with the reason; repeats do not."""
    name = unique("WRONG")
    async with visiting(alone.url, Settings(scan_streams=1)) as visitor:
        await assets.add_stream(await visitor.nats(), Stream(name=name, subjects=[name]))
        await chunk(visitor, name, "again", 0, 100)
        await chunk(visitor, name, "again", 0, 100)
        await chunk(visitor, name, "overlap", 0, 100)
        await chunk(visitor, name, "overlap", 50, 100)
        await chunk(visitor, name, "totals", 20, 10, 30)
        await chunk(visitor, name, "totals", 10, 10, 20)
        await chunk(visitor, name, "past", 0, 10, 10)
        await chunk(visitor, name, "past", 10, 10)
        text, data = await visitor.both("/transfers")
        found = {item["id"]: item for item in data["transfers"]}
        assert (found["again"]["state"], found["again"]["chunks"], found["again"]["received"]) == ("in part", 1, 100)
        assert {found[key]["state"] for key in ("overlap", "past", "totals")} == {"broken"}
        assert "overlaps another one" in found["overlap"]["wrong"]
        assert "the total is 10" in found["past"]["wrong"]
        assert "different totals" in found["totals"]["wrong"]
        assert '<span class="chip bad">broken</span>' in text


async def test_transfers_are_bounded_and_leave_nothing_behind(alone: Server, unique: Unique):
    """The table has its rows and counts the rest; a stream that takes no more consumers is named; none is left over."""
    name, full = unique("BOUND"), unique("TAKEN")
    async with visiting(alone.url, Settings(rows=2, scan_streams=2)) as visitor:
        client = await visitor.nats()
        await assets.add_stream(client, Stream(name=name, subjects=[name]))
        await assets.add_stream(client, Stream(name=full, subjects=[full], max_consumers=1))
        await assets.add_consumer(client, full, Consumer(durable="only"))
        await client.jetstream().publish(full, b"x")
        for number in range(5):
            await chunk(visitor, name, f"m{number}", 0, 10, 10)
        text, data = await visitor.both("/transfers")
        assert [item["id"] for item in data["transfers"]] == ["m4", "m3"], "the newest first"
        assert data["left_out"] == 3
        assert "3 older transfers are left out" in text
        assert [(item["stream"], "(10026)" in item["why"]) for item in data["failed"]] == [(full, True)]
        assert [info.name for info in await assets.consumers(client, name)] == []
        assert [info.name for info in await assets.consumers(client, full)] == ["only"]
