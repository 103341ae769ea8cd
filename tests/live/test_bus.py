"""The bus from end to end, our requester with our handler, in the plain protocol and with a window."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus import Request, Response
from penstock.errors import (
    HandlerError,
    InputError,
    LocalProtocolError,
    NoRespondersError,
    OptionError,
)
from tests.live.bus_peers import WINDOWS, read

# -- single responses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response", [Response(data=b'{"a":1}'), Response(404, "", b""), Response(500, "text/plain", b"boom")]
)
async def test_response(bus_pair, response: Response):
    """A handler's single response reaches the requester as it is, and the request the handler."""
    async with bus_pair(3) as bus:
        seen = []

        async def handler(request, sender):
            seen.append(request)
            await sender.respond(response)

        async with bus.served(handler):
            asked = Request(bus.queue, 2, "PUT", "res", 7, {"A": ["b"]}, {"q": ["1"]}, b"body")
            reply = await bus.asking.request(asked)
        assert reply.response == response
        assert seen == [asked]
        with pytest.raises(InputError, match=r"reply\.response"):
            await read(reply)


async def test_a_request_is_answered_once(bus_pair):
    """A second response, or sections after a response, are refused; the first response stands."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            await sender.respond(Response(data=b"1"))
            with pytest.raises(LocalProtocolError, match="answered already"):
                await sender.respond(Response(data=b"2"))
            with pytest.raises(LocalProtocolError, match="answered already"):
                sender.sections()

        async with bus.served(handler):
            assert (await bus.request()).response.data == b"1"
        assert not bus.caught


async def test_sections_are_begun_once(bus_pair):
    """A second sectioned reply to the same request is refused, and so is a response in mid-stream."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                await out.send(b"1")
                with pytest.raises(LocalProtocolError):
                    await sender.respond(Response())
                with pytest.raises(LocalProtocolError):
                    sender.sections()
                await out.send(b"2")

        async with bus.served(handler):
            assert await read(await bus.request()) == [("array", "a", [], [(None, b"1"), (None, b"2")])]
        assert not bus.caught


async def test_unknown_queue_and_partition(bus_pair):
    """A queue or partition that the bus does not know is refused before anything is sent."""
    async with bus_pair(3) as bus:
        with pytest.raises(InputError, match="unknown queue: nobody"):
            await bus.asking.request(Request("nobody"))
        with pytest.raises(InputError, match=r"\[0, 3\)"):
            await bus.request(partition=3)
        with pytest.raises(InputError, match="unknown queue: nobody"):
            bus.serving.serve("nobody", read)
        with pytest.raises(OptionError):
            await bus.request(timeout=0)
        with pytest.raises(InputError, match="async def"):
            bus.serving.serve(bus.queue, lambda request, sender: None)
        with pytest.raises(OptionError):
            bus.serving.serve(bus.queue, read, concurrency=0)


async def test_nobody_serves(bus_pair):
    """Where nobody serves the partition, the requester knows at once, long before its timeout."""
    async with bus_pair() as bus:
        async with asyncio.timeout(10):
            with pytest.raises(NoRespondersError, match="Nobody serves"):
                await bus.request(timeout=60.0)


async def test_handler_raises(bus_pair, caplog):
    """An exception in a handler is a response of 500 with its text; one without text gives its name."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            if request.resource == "silent":
                raise KeyError
            raise ValueError("boom at work")

        async with bus.served(handler):
            assert (await bus.request()).response == Response(500, "text/plain", b"boom at work")
            assert (await bus.request(resource="silent")).response.data == b"KeyError"
    assert "the handler failed" in caplog.text


async def test_handler_says_nothing(bus_pair):
    """A handler that ends without an answer gives a response of 500 instead of a timeout."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            pass

        async with bus.served(handler):
            reply = await bus.request()
            assert (reply.response.status, reply.response.data) == (500, b"the handler ended without an answer")


async def test_what_is_no_request(bus_pair, bus_connections):
    """A message that is no request is answered with 400, and one without a reply subject is passed over."""
    async with bus_pair() as bus:

        async def handler(request, sender):
            await sender.respond(Response(data=b"fine"))

        async with bus.served(handler):
            answer = await bus_connections[0].request(f"{bus.queue}0", b"{", timeout=5)
            assert answer.data.startswith(b"\x00\x0atext/plain\x90\x01")
            await bus_connections[0].publish(f"{bus.queue}0", b"{}")
            assert (await bus.request()).response.data == b"fine"


# -- sections ---------------------------------------------------------------------------------------------------------


@WINDOWS
async def test_sections(bus_pair, window: int):
    """Objects, maps and arrays arrive in order with types, paths and names, then the error of the close."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                assert out.windowed == bool(window)
                await out.object("secObj", {"total": 1}, path=["meta"])
                out.map("secMap", path=["classifier", "2"])
                await out.send({"fld1": "fld1Val"}, name="id1")
                await out.send(b"raw<&>", name="id2")
                with pytest.raises(InputError, match="JSON"):
                    await out.send(object(), name="id3")
                out.array("secArr")
                await out.send("arr<El1>")
                await out.send(42)
                out.map("secDeps", path=("a",))
                await out.send(b"", name="")
                raise ValueError("test error")

        async with bus.served(handler):
            reply = await bus.request()
            seen = []

            async def reader() -> None:
                async for section in reply.sections():
                    elements = [(item.name, item.data) async for item in section]
                    seen.append((section.kind, section.type, section.path, elements))
                    assert [item async for item in section] == [], "a section is read once"

            with pytest.raises(HandlerError, match="test error") as caught:
                await reader()
        assert caught.value.message == "test error"
        assert reply.windowed == bool(window)
        assert seen == [
            ("object", "secObj", ("meta",), [(None, b'{"total":1}')]),
            ("map", "secMap", ("classifier", "2"), [("id1", b'{"fld1":"fld1Val"}'), ("id2", b"raw<&>")]),
            ("array", "secArr", (), [(None, b'"arr\\u003cEl1\\u003e"'), (None, b"42")]),
            ("map", "secDeps", ("a",), [("", b"")]),
        ]


@WINDOWS
async def test_nothing_in_the_sections(bus_pair, window: int):
    """Sections without elements, and elements that are None, never travel: the reply is empty and good."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.array("a")
                out.map("m", path=["p"])
                await out.send(None, name="x")
                await out.object("o", None)

        async with bus.served(handler):
            reply = await bus.request()
            assert reply.response is None
            assert await read(reply) == []


@WINDOWS
async def test_empty_names_types_and_paths(bus_pair, window: int):
    """Empty types, names, path parts and values are values like others."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                out.map("")
                await out.send("", name="")
                out.array("", path=[""])
                await out.send(b"")
                await out.object("", b"")

        async with bus.served(handler):
            assert await read(await bus.request()) == [
                ("map", "", [], [("", b'""')]),
                ("array", "", [""], [(None, b"")]),
                ("object", "", [], [(None, b"")]),
            ]


@WINDOWS
async def test_misuse_of_the_writer(bus_pair, window: int):
    """Elements without a section, with a wrong name, after an object or after the end are refused; nothing breaks."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                with pytest.raises(LocalProtocolError, match="No section"):
                    await out.send(b"1")
                out.map("m")
                with pytest.raises(LocalProtocolError, match="no name"):
                    await out.send(b"1")
                with pytest.raises(LocalProtocolError, match="256 bytes"):
                    await out.send(b"1", name="é" * 128)
                with pytest.raises(LocalProtocolError, match="256 bytes"):
                    out.array("x" * 256)
                out.array("a")
                with pytest.raises(LocalProtocolError, match="named 'n'"):
                    await out.send(b"1", name="n")
                await out.object("o", b"1")
                with pytest.raises(LocalProtocolError, match="No section"):
                    await out.send(b"1")
            with pytest.raises(LocalProtocolError, match="closed"):
                out.array("late")
            with pytest.raises(LocalProtocolError, match="closed"):
                await out.send(b"late")

        async with bus.served(handler):
            assert await read(await bus.request()) == [("object", "o", [], [(None, b"1")])]
        assert not bus.caught


@WINDOWS
async def test_sections_may_be_passed_over(bus_pair, window: int):
    """A reader that does not read a section's elements still gets the next section."""
    async with bus_pair(asking_window=window) as bus:

        async def handler(request, sender):
            async with sender.sections() as out:
                for name in "abc":
                    out.array(name)
                    for number in range(5):
                        await out.send(number)

        async with bus.served(handler):
            reply, seen = await bus.request(), []
            async for section in reply.sections():
                seen.append(section.type)
                if section.type == "b":
                    assert (await anext(section)).json() == 0
            assert seen == ["a", "b", "c"]
        assert not bus.caught
