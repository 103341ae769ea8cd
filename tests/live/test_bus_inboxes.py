"""Each side of the bus publishes where the other says. That is checked: an inbox of bounded length, nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

import penstock
from penstock.bus import Bus, Request, Response
from penstock.errors import OptionError, RemoteProtocolError
from penstock.server import Server
from tests.live.bus_peers import WINDOWS, raw_handler, raw_request, read

ARRAY = b"\x03\x00\x04typ142"
FOREIGN = ["orders.new", "orders", "_INBOXES", "INBOX.a", "_inbox.a", "$JS.API.STREAM.DELETE.ORDERS", "$SYS.REQ.X"]
LONG = "_INBOX." + "a" * 5000


@pytest.fixture
async def queue(unique):
    return unique("q")


async def sections(request: Any, sender: Any) -> None:
    async with sender.sections() as out:
        out.array("numbers")
        for number in range(3):
            await out.send(number)


async def hear_all(nc: Any, *subjects: str) -> list[str]:
    """Note what is published on these subjects from now on."""
    heard: list[str] = []

    async def note(message: Any) -> None:
        heard.append(message.subject)

    for subject in subjects:
        await nc.subscribe(subject, cb=note)
    await nc.flush()
    return heard


@pytest.mark.parametrize("name", [*FOREIGN, LONG, "_INBOX." + "a" * 600], ids=lambda name: name[:20] + str(len(name)))
async def test_what_a_handler_names_must_be_an_inbox(bus_connections, server, queue, name):
    """Else the reply ends with RemoteProtocolError, nothing is published there, and the connection stays."""
    nc, other = bus_connections
    async with (
        await penstock.connect(server.url) as third,
        Bus(nc, {queue: 1}) as bus,
        raw_handler(other, f"{queue}0") as handler,
    ):
        heard = await hear_all(third, *(item for item in FOREIGN if item != "_INBOXES"))
        stretch = nc.stretch
        task = asyncio.create_task(bus.request(Request(queue), timeout=5.0))
        talk = await handler.accept()
        await talk.publish(b"\x06" + name.encode())
        await talk.publish(ARRAY)
        with pytest.raises(RemoteProtocolError, match="as its inbox") as caught:
            await task
        assert len(str(caught.value)) < 500
        await nc.flush()
        await third.flush()
        assert heard == []
        assert nc.is_connected
        assert nc.stretch == stretch, "no break in between"
        assert bus.conversations == 0


@pytest.mark.parametrize("name", ["orders.new", LONG], ids=["foreign", "long"])
async def test_a_late_handler_is_not_answered_elsewhere(bus_connections, server, queue, name):
    """A handler that begins when nobody waits any more is told so, but only on an inbox."""
    nc, other = bus_connections
    async with (
        await penstock.connect(server.url) as third,
        Bus(nc, {queue: 1}) as bus,
        raw_handler(other, f"{queue}0") as handler,
    ):
        heard, stretch = await hear_all(third, "orders.new"), nc.stretch
        task = asyncio.create_task(bus.request(Request(queue), timeout=5.0))
        talk = await handler.accept()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await talk.publish(b"\x06" + name.encode())
        await talk.open()  # an inbox is answered: by then the other name was read, too
        assert await talk.signal() == b"\x01"
        await third.flush()
        assert (heard, nc.stretch) == ([], stretch)


async def test_what_a_requester_names_must_be_an_inbox(bus_connections, server, queue, caplog):
    """A request that wants its answer elsewhere is not handled, and the log says why; the next one is served."""
    nc, other = bus_connections
    handled = []

    async def handler(request: Any, sender: Any) -> None:
        handled.append(request.resource)
        await sender.respond(Response(data=b"1"))

    async with await penstock.connect(server.url) as third, Bus(nc, {queue: 1}) as bus, bus.serve(queue, handler):
        names = ["orders.new", "_INBOXES", "$SYS.REQ.X", "_INBOX." + "a" * 600]
        heard = await hear_all(third, "orders.new", "$SYS.REQ.X", "_INBOX.>")
        with caplog.at_level(logging.WARNING, logger="penstock.bus"):
            for name in names:
                request = {"Method": 0, "QueueID": queue, "WSID": 1, "PartitionNumber": 0, "Resource": name}
                await other.publish(f"{queue}0", json.dumps(request).encode(), reply=name)
            async with raw_request(other, queue, Resource="good") as good:
                assert await good.packet() == b"\x00\x10application/json\xc8\x001"
        await third.flush()
        assert handled == ["good"]
        assert heard == [good.inbox]
        assert caplog.text.count("which is not an inbox") == len(names)


@WINDOWS
@pytest.mark.parametrize(
    ("mine", "theirs", "known"),
    [
        ("_INBOX_alice", "_INBOX_bob", ()),
        ("acme.inbox", "acme.inbox", ()),
        ("acme.alice", "acme.bob", ("acme",)),
        ("_INBOX", "acme.bob", ("acme.bob", "other")),
    ],
)
async def test_peers_may_have_inboxes_of_other_names(server, queue, mine, theirs, known, window):
    """Those that begin with _INBOX, those of the own prefix, and those that the bus was told of."""
    async with (
        await penstock.connect(server.url, inbox_prefix=mine) as one,
        await penstock.connect(server.url, inbox_prefix=theirs) as two,
        Bus(one, {queue: 1}, inboxes=known, window=window) as asking,
        Bus(two, {queue: 1}, inboxes=[*known, mine], window=window) as serving,
        serving.serve(queue, sections),
    ):
        reply = await asking.request(Request(queue))
        assert await read(reply) == [("array", "numbers", [], [(None, b"0"), (None, b"1"), (None, b"2")])]


async def test_requests_from_another_account_are_answered(queue):
    """For an import the server makes up the reply subject; that is an inbox as well."""
    accounts = f"""accounts {{
        SERVICE: {{users: [{{user: service, password: pw}}], exports: [{{service: "{queue}0"}}]}}
        CLIENT: {{users: [{{user: client, password: pw}}],
                  imports: [{{service: {{account: SERVICE, subject: "{queue}0"}}}}]}}
    }}"""
    seen: list[str] = []

    async def handler(request: Any, sender: Any) -> None:
        seen.append(sender._target)
        await sender.respond(Response(data=b"1"))

    with Server(config=accounts, auth=False, sync="2m") as server:
        async with (
            await penstock.connect(server.url, user="service", password="pw") as one,
            await penstock.connect(server.url, user="client", password="pw") as two,
            Bus(one, {queue: 1}) as serving,
            Bus(two, {queue: 1}) as asking,
            serving.serve(queue, handler),
        ):
            assert (await asking.request(Request(queue))).response == Response(data=b"1")
    assert not seen[0].startswith("_INBOX")


@pytest.mark.parametrize("inboxes", [["a.*"], [""], ["$JS"], "acme", [1], [".a"]])
async def test_prefixes_of_inboxes_are_checked(bus_connections, inboxes):
    """One that could be a subject of the server's, or is no beginning of a subject, is refused."""
    with pytest.raises(OptionError) as caught:
        Bus(bus_connections[0], {}, inboxes=inboxes)
    assert caught.value.option == "inboxes"
