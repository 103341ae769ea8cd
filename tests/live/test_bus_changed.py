"""The world changes under a reply: two answer one request, a handler starts anew, a permission is taken away.

Sections that end without an error are those of one handler, each element once and in order; anything else is told.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.bus import Bus, Request, Response
from penstock.connection import api_request
from penstock.errors import DeadlineError, DeniedError, NoRespondersError, PenstockError, RemoteProtocolError
from penstock.server import Server
from tests.live.bus_peers import WINDOWS, reached, read
from tests.live.reloading import reload

COUNT = 50


async def numbers(request: Any, sender: Any) -> None:
    async with sender.sections() as out:
        out.array("numbers")
        for number in range(COUNT):
            await out.send(number)


@WINDOWS
@pytest.mark.parametrize("other", ["response", "sections"])
async def test_two_that_answer_one_request_are_not_mixed(server, unique, window, other):
    """Somebody in another queue group answers, too: the reply is that of one of them, or an error that says so."""
    queue = unique("q")
    async with (
        await penstock.connect(server.url) as one,
        await penstock.connect(server.url) as two,
        await penstock.connect(server.url) as three,
        Bus(one, {queue: 1}, window=window) as asking,
        Bus(two, {queue: 1}, window=window) as serving,
        serving.serve(queue, numbers),
    ):

        async def answer(message: Any) -> None:
            if other == "response":
                await message.respond(b"\x00\x00\xc8\x00other")
                return
            inbox = three.new_inbox()
            misc = await three.subscribe(inbox)
            for packet in (b"\x06" + inbox.encode(), b"\x03\x00\x05other1", b"\x052", b"\x01"):
                await message.respond(packet)
            await misc.unsubscribe()

        await three.subscribe(f"{queue}0", "another", cb=answer)
        await three.flush()
        outcomes = set()
        for _ in range(20):
            try:
                reply = await asking.request(Request(queue), timeout=5.0)
                if reply.response is not None:
                    assert reply.response == Response(200, "", b"other")
                    outcomes.add("response")
                    continue
                found = await read(reply)
            except RemoteProtocolError:
                outcomes.add("told")
                continue
            assert found in (
                [("array", "numbers", [], [(None, str(number).encode()) for number in range(COUNT)])],
                [("array", "other", [], [(None, b"1"), (None, b"2")])],
            )
            outcomes.add("sections")
        assert outcomes
        await reached(lambda: asking.conversations == 0)


@WINDOWS
@pytest.mark.parametrize("served", [True, False])
async def test_a_stream_on_the_subject_of_a_partition_is_told(server, unique, window, served):
    """Its ack is no packet of the bus: the reply is the handler's, or an error that asks for the stream."""
    queue = unique("q")
    async with (
        await penstock.connect(server.url) as one,
        await penstock.connect(server.url) as two,
        Bus(one, {queue: 1}, window=window) as asking,
        Bus(two, {queue: 1}, window=window) as serving,
    ):
        await api_request(
            one, f"STREAM.CREATE.{queue}", {"name": queue, "subjects": [f"{queue}0"], "storage": "memory"}
        )
        if served:
            await serving.serve(queue, numbers)
        told, counts = [], []
        for _ in range(10):
            try:
                found = await read(await asking.request(Request(queue), timeout=5.0))
                counts += [len(elements) for *_, elements in found]
            except RemoteProtocolError as error:
                told.append(str(error))
        assert counts == [COUNT] * (10 - len(told))
        assert served or not counts
        assert all("Does a stream" in text or "a run was due" in text for text in told)
        await one.jetstream().delete_stream(queue)


@WINDOWS
async def test_a_handler_that_starts_anew_does_not_go_on_with_a_reply(server, unique, window):
    """What its process had begun ends at the reader with an error, and the next request is answered by the new one."""
    queue, stuck = unique("q"), asyncio.Event()

    async def half(request: Any, sender: Any) -> None:
        async with sender.sections() as out:
            out.array("numbers")
            await out.send(0)
            await stuck.wait()

    async with await penstock.connect(server.url) as one, Bus(one, {queue: 1}, window=window) as asking:
        first = await penstock.connect(server.url)
        await Bus(first, {queue: 1}, window=window).serve(queue, half)
        reply = await asking.request(Request(queue), timeout=1.0)
        got: list[bytes] = []

        async def take() -> None:
            async for section in reply.sections():
                async for element in section:
                    got.append(element.data)

        reading = asyncio.create_task(take())
        await reached(lambda: got)
        await first.close()
        async with (
            await penstock.connect(server.url) as second,
            Bus(second, {queue: 1}, window=window) as serving,
            serving.serve(queue, numbers),
        ):
            with pytest.raises(DeadlineError):
                await reading
            assert got == [b"0"]
            assert len((await read(await asking.request(Request(queue))))[0][3]) == COUNT
        stuck.set()


@pytest.mark.parametrize(("side", "window"), [("requester", 64), ("handler", 64), ("handler", 0)])
async def test_a_permission_that_goes_in_the_middle_of_a_reply_is_told(unique, window, side):
    """Whoever may not publish any more is told so, and the other one that nothing comes: no reply looks complete."""
    queue, went = unique("q"), asyncio.Event()
    users = ", ".join(
        f'{{user: {user}, password: pw, permissions: {{publish: {{deny: "{user}.nothing"}}}}}}'
        for user in ("requester", "handler")
    )
    raised: list[BaseException] = []

    async def slow(request: Any, sender: Any) -> None:
        try:
            async with sender.sections() as out:
                out.array("numbers")
                await out.send(0)
                await went.wait()
                for number in range(1, 10 * COUNT):  # more than a window
                    await out.send(number)
        except BaseException as error:
            raised.append(error)
            raise

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="requester", password="pw") as one,
            await penstock.connect(server.url, user="handler", password="pw") as two,
            Bus(one, {queue: 1}, window=window, grace=1.0) as asking,
            Bus(two, {queue: 1}, window=window, grace=1.0) as serving,
            serving.serve(queue, slow),
        ):
            reply = await asking.request(Request(queue), timeout=1.5)

            async def take() -> list[bytes]:
                return [element.data async for section in reply.sections() async for element in section]

            reading = asyncio.create_task(take())
            await asyncio.to_thread(reload, server, f'"{side}.nothing"', '"_INBOX.>"')
            went.set()
            with pytest.raises(DeniedError if side == "requester" else DeadlineError):
                await reading
            await reached(lambda: raised)
            assert isinstance(raised[0], DeniedError if side == "handler" else DeadlineError)


async def test_a_service_that_may_not_listen_for_a_while_serves_again(unique, caplog, monkeypatch):
    """It says that no request comes any more, tries again by itself, and serves as soon as it may."""
    monkeypatch.setattr("penstock.connection.subscription.AGAIN", 0.05)
    queue, told = unique("q"), []
    may, may_not = 'subscribe: {deny: "nothing"}', f'subscribe: {{deny: "{queue}0"}}'
    users = f"{{user: handler, password: pw, permissions: {{{may}}}}}, {{user: all, password: pw}}"

    async def heard(error: Exception) -> None:
        told.append(error)

    async def answer(request: Any, sender: Any) -> None:
        await sender.respond(Response(data=b"here"))

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="all", password="pw") as one,
            await penstock.connect(server.url, user="handler", password="pw", error_cb=heard) as two,
            Bus(one, {queue: 1}) as asking,
            Bus(two, {queue: 1}) as serving,
            serving.serve(queue, answer),
        ):
            assert (await asking.request(Request(queue))).response == Response(data=b"here")
            await asyncio.to_thread(reload, server, may, may_not)
            await reached(lambda: f"No message comes on {queue}0 any more" in caplog.text)
            with pytest.raises(NoRespondersError):
                await asking.request(Request(queue))
            await asyncio.to_thread(reload, server, may_not, may)
            await reached(lambda: f"Messages come on {queue}0 again" in caplog.text)
            assert (await asking.request(Request(queue))).response == Response(data=b"here")
            assert [type(error) for error in told] == [DeniedError], "told once, not with each try"
            await asyncio.to_thread(reload, server, may, may_not)
            await reached(lambda: len(told) == 2)


@WINDOWS
async def test_a_bus_that_may_not_listen_for_a_while_answers_in_sections_again(unique, caplog, monkeypatch, window):
    """With its service its inbox comes back: whoever asks meanwhile is told at once, and afterwards gets everything."""
    monkeypatch.setattr("penstock.connection.subscription.AGAIN", 0.05)
    queue = unique("q")
    may, inbox, all_of_it = (
        f"subscribe: {{deny: {denied}}}" for denied in ('"nothing"', '"_INBOX.>"', f'["{queue}0", "_INBOX.>"]')
    )
    users = f"{{user: handler, password: pw, permissions: {{{may}}}}}, {{user: all, password: pw}}"

    async def many(request: Any, sender: Any) -> None:
        async with sender.sections() as out:
            out.array("numbers")
            for number in range(10 * COUNT):  # more than a window
                await out.send(number)

    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as server:
        async with (
            asyncio.timeout(60),
            await penstock.connect(server.url, user="all", password="pw") as one,
            await penstock.connect(server.url, user="handler", password="pw") as two,
            Bus(one, {queue: 1}, window=window) as asking,
            Bus(two, {queue: 1}, window=window) as serving,
            serving.serve(queue, many),
        ):

            async def works() -> bool:
                ((*_, elements),) = await read(await asking.request(Request(queue), timeout=300.0))
                return [int(data) for _, data in elements] == list(range(10 * COUNT))

            assert await works()
            await asyncio.to_thread(reload, server, may, all_of_it)
            await reached(lambda: f"No message comes on {queue}0 any more" in caplog.text)
            await reached(lambda: not serving._mail.is_open)
            await asyncio.to_thread(reload, server, all_of_it, may)
            await reached(lambda: f"Messages come on {queue}0 again" in caplog.text)
            assert await works()
            await asyncio.to_thread(reload, server, may, inbox)
            await reached(lambda: not serving._mail.is_open)
            for _ in range(2):
                with pytest.raises(PenstockError, match="Permissions Violation for Subscription"):
                    await works()
            assert serving.conversations == 0
            await asyncio.to_thread(reload, server, inbox, may)
            assert await works()
