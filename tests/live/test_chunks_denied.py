"""What the server does not permit is told at once, with the subject, wherever chunks need a permission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import penstock
from penstock.chunks import Archive, Assembler, Publisher
from penstock.connection import Connection
from penstock.errors import DeadlineError, DeniedError, NoRespondersError, UnfinishedError
from penstock.server import Server
from tests.live.reloading import reload
from tests.support import eventually

MB = 1024 * 1024
# Each user may do everything but one thing.
DENIED = {
    "sender": ("publish", "secret.>"),
    "listener": ("subscribe", "secret.>"),
    "nobody": ("subscribe", "_INBOX.>"),
    "quiet": ("subscribe", "_CHUNKS.>"),
    "unasking": ("publish", "_CHUNKS.>"),
    "asker": ("publish", "$JS.API.>"),
    "looker": ("publish", "$JS.API.DIRECT.GET.>"),
    "scanner": ("publish", "$JS.API.CONSUMER.CREATE.>"),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    users = ['{user: all, password: pw, permissions: {publish: ">", subscribe: ">"}}']
    for name, (operation, subject) in DENIED.items():
        users.append(f'{{user: {name}, password: pw, permissions: {{{operation}: {{deny: "{subject}"}}}}}}')
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as running:
        yield running


@pytest.fixture
def by(guarded: Server) -> Any:
    """Connect as one of the users."""

    @asynccontextmanager
    async def connected(user: str, **options: Any) -> AsyncIterator[Connection]:
        nc = await penstock.connect(guarded.url, user=user, password="pw", request_timeout=60.0, **options)
        try:
            async with asyncio.timeout(15):  # nothing here waits for a deadline: those have a minute
                yield nc
        finally:
            await nc.close()

    return connected


@pytest.fixture
async def stream(by: Any, unique: Any) -> AsyncIterator[str]:
    """A stream for payloads on `secret.<stream>`."""
    name = unique("SECRET")
    async with by("all") as nc:
        await Archive.create(nc, name, f"secret.{name}", storage="memory")
        yield name
        await nc.jetstream().delete_stream(name)


@pytest.mark.parametrize("size", [1, 3 * MB, 40 * MB])
async def test_a_publisher_on_a_subject_that_is_denied(by: Any, size: int) -> None:
    """The error names the subject, comes with the first chunk, and is no half message: nobody got anything."""
    sent: list[int] = []
    async with by("sender") as nc:
        with pytest.raises(DeniedError, match=r"secret\.large") as caught:
            await Publisher(nc, timeout=60.0).publish("secret.large", bytes(size), progress=sent.append)
        assert (caught.value.operation, caught.value.subject) == ("publish", "secret.large")
        assert max(sent, default=0) <= 16 * MB, "it noticed while it was sending"
        await Publisher(nc).publish("open.large", b"the connection stays")


MAPPED = """
mappings = {
  "open.mapped": "secret.mapped"
  "open.some": [{destination: "secret.some", weight: 50%}, {destination: "open.others", weight: 50%}]
}
authorization { users: [{user: u, password: pw, permissions: {publish: {deny: "secret.>"}}}] }
"""


async def test_four_publishes_that_are_refused_at_once_all_fail() -> None:
    """By its own name, by bytes that are no text, or by what the server makes of it: none is told as published."""
    with Server(config=MAPPED, auth=False, sync="2m") as server:
        async with await penstock.connect(server.url, user="u", password="pw") as nc, asyncio.timeout(20):
            for subject in ("secret.large", "secret.gr\u00f6\u00dfe", "secret.\udc80", "open.mapped", "open.some"):
                publisher = Publisher(nc, 4)
                sending = (publisher.publish(subject, bytes(400)) for _ in range(4))
                outcomes = await asyncio.gather(*sending, return_exceptions=True)
                kind = DeniedError if subject.startswith("secret") else UnfinishedError
                assert [type(outcome) for outcome in outcomes] == [kind] * 4, ascii(subject)
            assert "secret.some" in str(outcomes[0])
            assert isinstance(outcomes[0].__cause__, DeniedError)
            await publisher.publish("open.large", b"the connection stays")


async def test_a_denial_of_something_else_is_not_taken_for_ones_own(by: Any) -> None:
    """What somebody else publishes on the connection, by the subject's own name, ends no payload."""
    async with by("sender") as nc:

        async def source() -> AsyncIterator[bytes]:
            yield bytes(MB)
            await nc.publish("secret.other", b"x")
            await nc.flush()
            yield bytes(MB)

        await Publisher(nc).publish("open.large", source())
        assert "secret.other" in str(nc.last_error)


async def test_a_publisher_that_may_not_hear_answers_goes_on(by: Any) -> None:
    """Waiting for slower receivers needs an inbox; where that is denied the payload is sent all the same."""
    async with by("nobody") as nc, by("all") as other:
        got: list[int] = []
        async with Assembler(other, handler=lambda message_id, data: got.append(len(data))) as assembler:
            await assembler.subscribe("open.large")
            await Publisher(nc).publish("open.large", bytes(20 * MB))
            await eventually(lambda: got == [20 * MB], "the payload")


async def test_an_assembler_on_a_subject_that_is_denied(by: Any) -> None:
    """Subscribing and opening raise the error; the assembler may listen elsewhere afterwards."""
    async with by("listener") as nc, Assembler(nc, handler=lambda message_id, data: None) as assembler:
        with pytest.raises(DeniedError, match=r"secret\.>") as caught:
            await assembler.subscribe("secret.>")
        assert (caught.value.operation, caught.value.subject) == ("subscribe", "secret.>")
        with pytest.raises(DeniedError, match=r"secret\.large"):
            async with assembler.open("secret.large"):
                pytest.fail("it is open")
        await assembler.subscribe("open.large")


async def test_a_publisher_into_a_stream_on_a_subject_that_is_denied(by: Any, stream: str) -> None:
    """The first chunk is refused at once, by the server and not by a timeout; nothing of the message is there."""
    async with by("sender") as nc, by("all") as other:
        with pytest.raises(DeniedError, match=rf"secret\.{stream}\.m") as caught:
            await Publisher.persistent(nc, stream).publish(f"secret.{stream}", bytes(3 * MB), message_id="m")
        assert caught.value.operation == "publish"
        assert (await other.jetstream().stream_info(stream)).messages == 0


@pytest.mark.parametrize("user", ["asker", "nobody"])
async def test_a_stream_that_may_not_be_asked_for(by: Any, stream: str, user: str) -> None:
    """Without the API, or without an inbox for answers, storing and fetching say so at once."""
    operation, denied = DENIED[user]
    async with by(user) as nc:
        with pytest.raises(DeniedError) as caught:
            await Publisher.persistent(nc, stream).publish(f"secret.{stream}", b"abc")
        assert caught.value.operation == operation
        assert str(caught.value.subject).startswith(denied.rstrip(">"))
        with pytest.raises(DeniedError):
            await Archive(nc, stream).fetch("m")


@pytest.mark.parametrize("user", ["looker", "scanner"])
async def test_a_stored_message_that_may_not_be_read(by: Any, stream: str, user: str) -> None:
    """Whether the look at the headers or the fetching of bodies is denied, reading names the subject that is."""
    async with by("all") as other:
        await Publisher.persistent(other, stream).publish(f"secret.{stream}", bytes(MB), message_id="m")
    async with by(user) as nc:
        with pytest.raises(DeniedError, match=DENIED[user][1].removesuffix(".>").replace("$", r"\$")):
            await Archive(nc, stream, f"secret.{stream}").fetch("m")


async def test_a_permission_that_goes_in_the_middle_leaves_a_part() -> None:
    """Once the server has confirmed something, a denial is the cause of an UnfinishedError that says how much."""
    config = 'authorization { users: [{user: u, password: pw, permissions: {publish: {deny: "other"}}}] }'
    with Server(config=config, auth=False, sync="2m") as server:

        async def source() -> AsyncIterator[bytes]:
            for number in range(60):
                if number == 24:
                    await asyncio.to_thread(reload, server, '"other"', '"open.large"')
                yield bytes(MB)

        async with await penstock.connect(server.url, user="u", password="pw") as nc:
            with pytest.raises(UnfinishedError, match=r"open\.large") as caught:
                await Publisher(nc).publish("open.large", source())
            assert isinstance(caught.value.__cause__, DeniedError)
            assert nc.stretch == 1, "the connection stays"
            assert 4 * MB <= caught.value.confirmed <= caught.value.sent <= 44 * MB


async def test_a_subscription_that_is_denied_later_is_told_to_its_reader() -> None:
    """A reader that waits for messages hears that the server takes its subscription away."""
    config = 'authorization { users: [{user: u, password: pw, permissions: {subscribe: {deny: "other"}}}] }'
    with Server(config=config, auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="u", password="pw") as nc,
            Assembler(nc) as assembler,
            assembler.open("open.large") as inbox,
            asyncio.timeout(20),
        ):
            waiting = asyncio.ensure_future(anext(inbox))
            await asyncio.to_thread(reload, server, '"other"', '"open.large"')
            with pytest.raises(DeniedError, match=r"open\.large"):
                await waiting


async def test_a_receiver_that_may_not_announce_itself_receives(by: Any, unique: Any) -> None:
    """What tells publishers that a receiver answers may be denied: nobody is told of it, and answers are given."""
    subject, got, errors = unique("open"), [], []

    async def handler(message_id: str, data: bytes) -> None:
        got.append(len(data))

    async def failed(error: Exception) -> None:
        errors.append(error)

    async with by("all") as nc, by("quiet", error_cb=failed) as other, Assembler(other, handler=handler) as assembler:
        await assembler.subscribe(subject)
        await Publisher(nc).publish(subject, bytes(20 * MB))
        await eventually(lambda: got == [20 * MB], "the payload")
        assert errors == []


async def test_a_publisher_that_may_not_ask_who_listens_publishes(by: Any, unique: Any) -> None:
    """A publisher that may not ask who answers waits for an answer, and nobody is told of the denial."""
    subject, got, errors = unique("open"), [], []

    async def handler(message_id: str, data: bytes) -> None:
        got.append(len(data))

    async def failed(error: Exception) -> None:
        errors.append(error)

    async with (
        by("unasking", error_cb=failed) as nc,
        by("all") as other,
        Assembler(other, handler=handler) as assembler,
    ):
        await assembler.subscribe(subject)
        await Publisher(nc).publish(subject, bytes(20 * MB))
        await eventually(lambda: got == [20 * MB], "the payload")
        assert errors == []


async def test_an_assembler_that_may_not_listen_for_a_while_goes_on(caplog: Any, monkeypatch: Any) -> None:
    """It says that no message comes any more, and takes payloads again as soon as it may, until it is unsubscribed."""
    monkeypatch.setattr("penstock.connection.subscription.AGAIN", 0.05)
    may, may_not = 'subscribe: {deny: "nothing"}', 'subscribe: {deny: "big"}'
    users = f"{{user: reader, password: pw, permissions: {{{may}}}}}, {{user: all, password: pw}}"
    got: list[bytes] = []

    async def take(message_id: str, data: bytes) -> None:
        got.append(data)

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="all", password="pw") as one,
            await penstock.connect(server.url, user="reader", password="pw") as two,
            asyncio.timeout(60),
        ):
            assembler = Assembler(two, handler=take)
            subscription = await assembler.subscribe("big")

            async def said(text: str, times: int) -> None:
                await eventually(lambda: caplog.text.count(text) == times, f"{text}, {times} times")

            for number in (1, 2):
                await asyncio.to_thread(reload, server, may, may_not)
                await said("No message comes on big any more", number)
                await asyncio.to_thread(reload, server, may_not, may)
                await said("Messages come on big again", number)
                await Publisher(one).publish("big", b"%d" % number + bytes(3 * MB))
            await eventually(lambda: len(got) == 2, "both payloads")
            await asyncio.to_thread(reload, server, may, may_not)
            await said("No message comes on big any more", 3)
            await subscription.unsubscribe()
            await asyncio.to_thread(reload, server, may_not, may)
            await eventually(lambda: not two.asking_again, "the end of asking")
            await said("Messages come on big again", 2)
            await assembler.close()


@pytest.mark.parametrize("denied", ['"big"', '["big", "_CHUNKS.>"]'], ids=["payloads", "payloads and questions"])
async def test_an_assembler_that_listens_again_is_known_to_answer(denied: str, caplog: Any, monkeypatch: Any) -> None:
    """Publishers are told that it answers as soon as it may listen again, also if one of them asked meanwhile."""
    monkeypatch.setattr("penstock.connection.subscription.AGAIN", 0.05)
    may, may_not = 'subscribe: {deny: "nothing"}', f"subscribe: {{deny: {denied}}}"
    users = f"{{user: reader, password: pw, permissions: {{{may}}}}}, {{user: all, password: pw}}"
    got: list[int] = []

    async def take(message_id: str, data: bytes) -> None:
        got.append(len(data))

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="all", password="pw") as one,
            await penstock.connect(server.url, user="reader", password="pw") as two,
            asyncio.timeout(60),
        ):

            async def announced() -> bool:
                """Ask as a publisher does: nobody says anything, but the server if nobody is there."""
                try:
                    await one.request("_CHUNKS.big", timeout=0.2)
                except NoRespondersError:
                    return False
                except DeadlineError:
                    return True
                raise AssertionError("an answer")

            async with Assembler(two, handler=take) as assembler:
                subscription = await assembler.subscribe("big")
                assert await announced()
                await asyncio.to_thread(reload, server, may, may_not)
                await eventually(lambda: "No message comes on big any more" in caplog.text, "the end")
                await Publisher(one).publish("big", bytes(20 * MB))
                assert await announced() == ("_CHUNKS" not in denied)
                await asyncio.to_thread(reload, server, may_not, may)
                await eventually(lambda: "Messages come on big again" in caplog.text, "the next beginning")
                await eventually(announced, "the announcement")
                await Publisher(one).publish("big", bytes(20 * MB))
                await eventually(lambda: got == [20 * MB], "the payload")
                await asyncio.to_thread(reload, server, may, may_not)
                await eventually(lambda: two.asking_again, "the end")
                await subscription.unsubscribe()
                await eventually(lambda: not two.asking_again, "the end of asking, although it is still denied")
                await announced()  # if it was permitted, it ends with the next question
                assert not await announced()
