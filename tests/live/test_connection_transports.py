"""The same connection over TCP, TLS and WebSocket, on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.connection import Connection, Msg, connect
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    LinkError,
    LocalProtocolError,
    LoginError,
    NoRespondersError,
    TlsError,
    UnreachableError,
)
from penstock.server import Server
from tests.live.connecting import free_port, nothing_left_open, works
from tests.live.peer import Talk, info, peer
from tests.live.socks import proxy
from tests.scripted import hear, log_in, playing, say
from tests.support import Authority, eventually

Unique = Callable[..., str]
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class Place:
    """A server, and how to reach it."""

    def __init__(self, server: Server, url: str, options: dict[str, Any]) -> None:
        self.server, self.url, self.options = server, url, {"token": "t0ken", "reconnect_wait": 0.05, **options}

    async def connect(self, **more: Any) -> Connection:
        return await connect(self.url, **{**self.options, **more})


@pytest.fixture(scope="module", params=["tcp", "tls", "tls_first", "ws", "wss"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server on each way."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.issue("server", "127.0.0.1")
    tls = f'cert_file: "{pair.cert}", key_file: "{pair.key}"'
    port, trust = free_port(), {"tls_ca": str(authority.ca)}
    blocks = {
        "tcp": ("", {}),
        "tls": (f"tls {{ {tls} }}", trust),
        "tls_first": (f"tls {{ {tls}, handshake_first: true }}", {**trust, "tls_first": True}),
        "ws": (f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}', {}),
        "wss": (f'websocket {{ listen: "127.0.0.1:{port}", tls {{ {tls} }} }}', trust),
    }
    block, options = blocks[request.param]
    with Server(sync="2m", auth=False, config=f'{block}\nauthorization {{ token: "t0ken" }}') as server:
        url = f"{request.param}://127.0.0.1:{port}" if "ws" in request.param else f"nats://{server.nodes[0].address}"
        yield Place(server, url, options)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function on one of the event loops."""

    def on(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        factory = None
        if request.param == "uvloop":
            factory = pytest.importorskip("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body())

    return on


def test_every_way_goes_through_a_proxy(place: Place, run: Run):
    """A SOCKS proxy carries TCP, TLS and WebSocket alike; the certificate is that of the server behind it."""

    async def body() -> None:
        with proxy() as socks:
            client = await place.connect(socks_proxy=f"socks5://{socks.address}")
            try:
                assert await works(client)
            finally:
                await client.close()
            assert len(socks.asked) == 1

    run(body)


def test_messages_of_all_sizes_go_both_ways(place: Place, run: Run, unique: Unique):
    """What is published arrives, whole and in order, from nothing to the largest message."""

    async def body() -> None:
        sizes = [0, 1, 100, 16_383, 16_384, 65_535, 65_536, 300_000, 1024 * 1024, 5]
        async with await place.connect() as nc, await place.connect() as other:
            subject, got = unique("sizes"), []

            async def received(message: Msg) -> None:
                got.append(message.data)

            await nc.subscribe(subject, cb=received)
            await nc.flush()
            sent = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
            for payload in sent:
                await other.publish(subject, payload)
            for number in range(2000):
                await other.publish(subject, b"%d" % number)
            await other.flush()
            await eventually(lambda: len(got) == len(sent) + 2000, "all messages")
            assert got == [*sent, *(b"%d" % number for number in range(2000))]
            with pytest.raises(LocalProtocolError):
                await other.publish(subject, bytes(1024 * 1024 + 1))

    run(body)


def test_requests(place: Place, run: Run, unique: Unique):
    """Many requests in flight each get their answer; nobody, silence and time are told as everywhere."""

    async def body() -> None:
        async with await place.connect() as nc, await place.connect() as other:
            subject = unique("service")

            async def answer(message: Msg) -> None:
                await message.respond(message.data)

            await other.subscribe(subject, cb=answer)
            await other.subscribe(f"{subject}.silent")
            await other.flush()
            answers = await asyncio.gather(*(nc.request(subject, b"%d" % number, timeout=20) for number in range(200)))
            assert [answer.data for answer in answers] == [b"%d" % number for number in range(200)]
            with pytest.raises(NoRespondersError):
                await nc.request(f"{subject}.nobody", timeout=20)
            with pytest.raises(DeadlineError):
                await nc.request(f"{subject}.silent", timeout=0.05)
            asking = asyncio.create_task(nc.request(f"{subject}.silent", timeout=20))
            await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await works(nc)

    run(body)


def test_a_server_that_comes_back(place: Place, run: Run, unique: Unique):
    """A lost connection is made again in the same way, with its subscriptions; a flush at the break is told."""

    async def body() -> None:
        node = place.server.nodes[0]
        nc = await place.connect()
        subscription = await nc.subscribe(unique("back"))
        await nc.flush()
        broken = nc.broken
        await asyncio.to_thread(node.kill)
        assert isinstance(await asyncio.wait_for(asyncio.shield(broken), 20), DisconnectedError)
        await nc.publish(subscription.subject, b"kept")
        await asyncio.to_thread(node.start)
        assert (await subscription.next_msg(timeout=20)).data == b"kept"
        assert nc.stretch == 2
        await nc.drain()
        assert nc.is_closed

    run(body)


def test_back_pressure_of_a_tap(place: Place, run: Run, unique: Unique):
    """A tap that waits stops the reading on every way, and nothing is lost by it."""

    async def body() -> None:
        async with await place.connect() as nc, await place.connect() as other:
            subject, got, gate = unique("held"), [], asyncio.Event()

            def slow(name: bytes, reply: bytes, payload: memoryview, block: bytes | None) -> Any:
                got.append(bytes(payload[:4]))
                return gate.wait() if not gate.is_set() else None

            await nc.tap(subject, slow, lend=True)
            await nc.flush()
            for number in range(100):
                await other.publish(subject, b"%04d" % number + bytes(10_000))
            await other.flush()
            await eventually(lambda: got, "the first one")
            with pytest.raises(DeadlineError):
                await nc.flush(0.05)
            assert got == [b"0000"]
            gate.set()
            await nc.flush(20)
            assert got == [b"%04d" % number for number in range(100)]

    run(body)


def test_publishing_much_and_closing(place: Place, run: Run, unique: Unique):
    """What was published is sent before the connection is closed, however much it is."""

    async def body() -> None:
        async with await place.connect() as other:
            subject, got = unique("much"), 0

            def count(name: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
                nonlocal got
                got += 1

            await other.tap(subject, count)
            await other.flush()
            nc = await place.connect()
            for _ in range(300):
                await nc.publish(subject, bytes(20_000))
            await nc.close()
            await eventually(lambda: got == 300, "all of them")

    run(body)


def test_refusals_and_cancelled_attempts(place: Place, run: Run):
    """A wrong token is a LoginError on every way; an attempt that is cancelled leaves nothing behind."""

    async def body() -> None:
        with pytest.raises(LoginError, match="refuses the login with a token"):
            await place.connect(token="wr0ng")
        before = asyncio.all_tasks()
        for milliseconds in (0, 1, 2, 3, 5, 8):
            attempt = asyncio.create_task(place.connect())
            await asyncio.sleep(milliseconds / 1000)
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await attempt).close()
        await eventually(lambda: asyncio.all_tasks() == before, "every task ending")

    run(body)


# -- never down from TLS -----------------------------------------------------------------------------------------------


async def test_a_reconnection_never_goes_down_from_tls(tmp_path):
    """A server that wanted TLS and comes back without it, at the same address, gets no login of ours."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    port = free_port()
    failures: list[Exception] = []

    async def failed(error: Exception) -> None:
        failures.append(error)

    config = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}\nauthorization {{ token: "s3cret" }}'
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"X","version":"2.15.1","headers":true,"max_payload":1000}\r\n')
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                heard.extend(data)
        writer.close()

    with Server(sync="2m", auth=False, config=config, port=port) as server:
        context = ssl.create_default_context(cafile=str(authority.ca))
        nc = await connect(
            f"nats://127.0.0.1:{port}", token="s3cret", tls=context, reconnect_wait=0.05, error_cb=failed
        )
        assert await works(nc)
        await asyncio.to_thread(server.stop)
    listener = await asyncio.start_server(plain, "127.0.0.1", port)
    await eventually(lambda: any(isinstance(error, TlsError) for error in failures), "the refusal")
    assert "does not offer TLS, and this connection insists on it" in str(failures[-1])
    assert not nc.is_connected
    assert heard == b""
    await nc.close()
    listener.close()
    await listener.wait_closed()


async def test_plain_text_behind_the_greeting_is_refused(tmp_path):
    """What follows the greeting before the handshake may be anybody's, and ends the attempt."""

    async def play(talk: Talk) -> None:
        await talk.say(
            b'INFO {"server_id":"X","headers":true,"tls_required":true}\r\n',
            b"PONG\r\nMSG a 1 1\r\nx\r\n",
        )
        await talk.hear(b"never")

    async with peer(play) as (url, talks):
        with pytest.raises(TlsError, match="sent more than its greeting before the TLS handshake"):
            await connect(url, token="s3cret")
        assert all(b"s3cret" not in talk.heard for talk in talks)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"\x00\xff" * 50]
)
async def test_what_is_no_websocket(answer: bytes):
    """A peer that is no WebSocket server, or half of one, is told as such, at once and with nothing left open."""

    async def play(talk: Talk) -> None:
        await talk.hear(b"\r\n\r\n")
        await talk.say(answer)

    async with peer(play) as (url, _):
        with pytest.raises(LinkError, match=r"is not the WebSocket port of a NATS server|answers at"):
            await connect(url.replace("nats://", "ws://"), connect_timeout=10)


@asynccontextmanager
async def websocket_peer(*frames: bytes | str) -> AsyncIterator[str]:
    """A WebSocket server that lets in, and sends these frames once it hears of a subscription."""
    from websockets.asyncio.server import ServerConnection, serve

    async def play(socket: ServerConnection) -> None:
        await socket.send(info())
        heard = b""
        with contextlib.suppress(ConnectionError, ConnectionClosed):
            while b"SUB" not in heard:
                data = await socket.recv()
                heard += data if isinstance(data, bytes) else data.encode()
                if b"PING" in heard:
                    heard = heard.replace(b"PING", b"")
                    await socket.send(b"PONG\r\n")
            for frame in frames:
                await socket.send(frame)
            async for data in socket:
                if b"PING" in data:
                    await socket.send("PONG\r\n")

    async with serve(play, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_frames_of_a_websocket_are_no_messages():
    """However a server cuts its bytes into frames, of text or of bytes, the same messages arrive."""
    payload = bytes(range(256)) * 3000
    stream = b"MSG a 1 5\r\nhello\r\nMSG a 1 %d\r\n%b\r\nMSG a 1 1\r\nx\r\n" % (len(payload), payload)
    cuts = [0, 3, 30, 31, 5000, 5001, 700_000, len(stream)]
    frames: list[bytes | str] = [stream[start:end] for start, end in itertools.pairwise(cuts)]
    async with websocket_peer("MSG a 1 4\r\ntext\r\n", b"", *frames) as url:
        nc = await connect(url)
        subscription = await nc.subscribe("a")
        got = [(await subscription.next_msg(timeout=20)).data for _ in range(4)]
        assert got == [b"text", b"hello", payload, b"x"]
        await nc.flush()
        assert nc.stretch == 1
        await nc.close()


@pytest.mark.parametrize("frame", [b"NONSENSE\r\n", b"MSG a 1 99999999999\r\n", "\ud7ff\r\n", b"\xff" * 300_000])
async def test_nonsense_in_a_websocket_ends_it(frame: bytes | str):
    """Bytes that are no protocol break the connection, which is told, and nothing is left running."""
    async with websocket_peer(frame) as url, nothing_left_open():
        nc = await connect(url, reconnect=False)
        broken = nc.broken
        await nc.subscribe("a")
        async with asyncio.timeout(20):
            assert isinstance(await asyncio.shield(broken), DisconnectedError)
        await eventually(lambda: nc.is_closed, "the end")
        await nc.close()


async def test_a_websocket_that_cannot_send_ends(monkeypatch: pytest.MonkeyPatch):
    """Whatever the library raises when it sends, the connection is over, which is told with it, and no writer waits."""
    from websockets.asyncio.client import ClientConnection

    async def failing(*given: object) -> None:
        raise RuntimeError("no frame can be made")

    async with websocket_peer() as url, nothing_left_open():
        nc = await connect(url, reconnect=False)
        broken = nc.broken
        monkeypatch.setattr(ClientConnection, "send", failing)

        async def write_on() -> None:
            while True:
                await nc.publish("a", b"x" * 500_000)

        async with asyncio.timeout(20):
            with pytest.raises(LinkError):
                await write_on()
            error = await asyncio.shield(broken)
        assert "no frame can be made" in str(error)
        await eventually(lambda: nc.is_closed, "the end")
        await nc.close()


@pytest.mark.parametrize("through", [False, True], ids=["directly", "through a proxy"])
@pytest.mark.parametrize(
    "where", ["https://127.0.0.1/", "wss://127.0.0.1:1/", "ws://127.0.0.1:{port}/", "/there", "::"]
)
async def test_a_websocket_that_leads_elsewhere_is_not_followed(where: str, through: bool) -> None:
    """A port that redirects, as of a web server, is an error of ours; no login goes to where it leads."""
    with playing(log_in()) as other:
        said = f"HTTP/1.1 301 Moved\r\nLocation: {where.format(port=other.port)}\r\nContent-Length: 0\r\n\r\n"
        with playing(hear(rb"\r\n\r\n"), say(said.encode())) as server:
            url = server.url.replace("nats://", "ws://")
            with proxy() as socks:
                options: Any = {"socks_proxy": f"socks5://{socks.address}"} if through else {}
                with pytest.raises(UnreachableError, match="is not the WebSocket port of a NATS server"):
                    await connect(url, token="secret", connect_timeout=5, **options)
        assert other.connections == 0


async def test_a_websocket_that_ends_with_its_last_write_is_made_again():
    """A peer that says goodbye before it takes what waits is left when it has it all, and the connection comes back."""
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

    leave, read_on = asyncio.Event(), asyncio.Event()
    talks: list[asyncio.Task[Any]] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(mine := asyncio.current_task())  # type: ignore[arg-type]  # it is one
        protocol, heard = ServerProtocol(), b""

        async def hear(words: bytes) -> None:
            nonlocal heard
            while words not in heard:
                if not (data := await reader.read(65536)):
                    raise ConnectionResetError("the client left")
                protocol.receive_data(data)
                for event in protocol.events_received():
                    if isinstance(event, Request):
                        protocol.send_response(protocol.accept(event))
                        protocol.send_binary(info())
                    elif isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                        heard += bytes(event.data)
                writer.write(b"".join(protocol.data_to_send()))
            heard = heard.partition(words)[2]

        async def answer() -> None:
            await hear(b"PING\r\n")
            protocol.send_binary(b"PONG\r\n")
            writer.write(b"".join(protocol.data_to_send()))

        try:
            await answer()
            if mine is talks[0]:
                await leave.wait()
                writer.write_eof()
                await read_on.wait()
                while await reader.read(1 << 20):
                    pass
            else:
                while True:
                    await answer()
        finally:
            writer.close()

    async with await asyncio.start_server(play, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        nc = await connect(url, reconnect_wait=0.05)
        wire, broken = nc._lifeline.wire, nc.broken
        assert wire is not None
        tcp = wire._transport._socket.transport
        while not tcp.get_write_buffer_size():
            nc.send("a", bytes(900_000))
            await asyncio.sleep(0.01)  # for the tasks between to hand it on
        leave.set()
        await eventually(tcp.is_closing, "the goodbye of the peer")
        assert tcp.get_write_buffer_size()
        read_on.set()
        async with asyncio.timeout(20):
            assert isinstance(await asyncio.shield(broken), DisconnectedError)
        await eventually(lambda: nc.is_connected and nc.stretch == 2, "the next connection")
        await nc.flush()
        await nc.close()
        await asyncio.gather(*talks, return_exceptions=True)
