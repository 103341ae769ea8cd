"""Programs written for nats-py's core client run with `import penstock as nats`, and see the same.

Each program here is run twice, with nats-py itself and with penstock under its name, and must give the same results.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import nats as stock
import pytest

import penstock
from penstock import errors
from penstock.errors import OptionError
from penstock.server import Server
from tests.live.cable import relay
from tests.live.connecting import free_port, plain
from tests.support import Authority, Key, Operator, eventually

Unique = Callable[..., str]


async def hello(nats: Any, url: str, name: str) -> Any:
    """The first example of every tutorial."""
    nc = await nats.connect(url)
    received: list[Any] = []
    done = asyncio.Event()

    async def message_handler(msg: Any) -> None:
        received.append((msg.subject, msg.reply, msg.data.decode(), msg.headers, msg.header))
        if len(received) == 3:
            done.set()

    sub = await nc.subscribe(f"{name}.*", cb=message_handler)
    await nc.publish(f"{name}.a", b"Hello")
    await nc.publish(f"{name}.b", b"World", reply="answers")
    await nc.publish(f"{name}.c", b"!", headers={"Kind": "end", "Other": " spaced "})
    await asyncio.wait_for(done.wait(), 10)
    await sub.unsubscribe()
    await nc.drain()
    return received, nc.is_closed


async def reading(nats: Any, url: str, name: str) -> Any:
    """Messages read one by one and with `async for`, limits included."""
    seen: list[Any] = []
    nc = await nats.connect(servers=[url], name="reader")
    sub = await nc.subscribe(name)
    await nc.flush()
    for number in range(5):
        await nc.publish(name, b"%d" % number)
    await nc.flush()
    msg = await sub.next_msg(timeout=5)
    seen += [msg.data, sub.pending_msgs, sub.pending_bytes, sub.delivered, sub.subject, sub.queue]
    async for msg in sub.messages:
        seen.append(msg.data)
        if len(seen) > 9:
            break
    try:
        await sub.next_msg(timeout=0.1)
    except nats.errors.TimeoutError:
        seen.append("timeout")
    await sub.unsubscribe(limit=7)
    for number in range(5, 10):
        await nc.publish(name, b"%d" % number)
    await nc.flush()
    async for msg in sub.messages:
        seen.append(msg.data)
    limited = await nc.subscribe(name, max_msgs=2)
    for number in range(3):
        await nc.publish(name, b"%d" % number)
    await nc.flush()
    seen += [(await limited.next_msg(timeout=5)).data for _ in range(2)]
    await nc.close()
    return seen


async def asking(nats: Any, url: str, name: str) -> Any:
    """Requests, with a queue group that answers, headers, and every way to get no answer."""
    seen: list[Any] = []
    async with await nats.connect(url) as nc:

        async def help_request(msg: Any) -> None:
            await msg.respond(b"I can help with " + msg.data)

        async def with_headers(msg: Any) -> None:
            await nc.publish(msg.reply, b"headed", headers={"Got": msg.headers["Asked"]})

        async def silent(msg: Any) -> None:
            seen.append("heard")

        for _ in range(2):
            await nc.subscribe(name, "workers", help_request)
        await nc.subscribe(f"{name}.headers", cb=with_headers)
        await nc.subscribe(f"{name}.silent", cb=silent)
        response = await nc.request(name, b"this", timeout=5)
        seen += [response.data, response.headers, response.subject.startswith("_INBOX.")]
        response = await nc.request(f"{name}.headers", b"", timeout=5, headers={"Asked": "yes"})
        seen += [response.data, response.headers]
        response = await nc.request(name, b"the old way", timeout=5, old_style=True)
        seen.append(response.data)
        try:
            await nc.request(f"{name}.nobody", timeout=5)
        except nats.errors.NoRespondersError:
            seen.append("nobody")
        try:
            await nc.request(f"{name}.silent", timeout=0.1)
        except nats.errors.TimeoutError:
            seen.append("timeout")
        try:
            await nc.request(f"{name}.silent", timeout=0.1)
        except TimeoutError:
            seen.append("Python's timeout")
        inbox = nc.new_inbox()
        seen += [inbox.startswith("_INBOX."), inbox != nc.new_inbox()]
    return seen


async def states(nats: Any, url: str, name: str) -> Any:
    """What a connection says of itself through its life, and what it refuses after it."""
    seen: list[Any] = []

    async def closed_cb() -> None:
        seen.append("closed")

    nc = await nats.connect(url, closed_cb=closed_cb, name=None, verbose=False, pedantic=False, no_echo=True)

    def note() -> None:
        seen.append((nc.is_connected, nc.is_closed, nc.is_connecting, nc.is_reconnecting, nc.is_draining))

    note()
    sub = await nc.subscribe(name)
    await nc.publish(name, b"not heard by itself")
    await nc.flush(timeout=5)
    seen += [sub.pending_msgs, nc.max_payload, nc.client_id is not None, nc.pending_data_size, nc.last_error]
    seen += [nc.stats["out_msgs"], nc.stats["out_bytes"], nc.stats["in_msgs"], nc.stats["reconnects"]]
    seen.append(await nc.rtt() > 0)
    await nc.drain()
    note()
    for call in (nc.publish(name), nc.subscribe(name), nc.flush(), nc.request(name)):
        try:
            await call
        except nats.errors.ConnectionClosedError:
            seen.append("closed already")
    await nc.close()
    return seen


async def mistakes(nats: Any, url: str, name: str) -> Any:
    """What a program does wrong is refused, under nats-py's names for it."""
    seen: list[Any] = []
    nc = await nats.connect(url)

    async def tried(what: str, kind: type[Exception], call: Any) -> None:
        try:
            await call
        except kind as error:
            seen.append((what, isinstance(error, nats.errors.Error)))

    await tried("payload", nats.errors.MaxPayloadError, nc.publish(name, bytes(nc.max_payload + 1)))
    await tried("subject", nats.errors.BadSubjectError, nc.publish(""))
    await tried("blank", nats.errors.BadSubjectError, nc.publish("a b"))
    await tried("subscription", nats.errors.BadSubjectError, nc.subscribe("a b"))
    await tried("callback", nats.errors.Error, nc.subscribe(name, cb=print))
    await tried("header", nats.errors.Error, nc.publish(name, headers={"a b": "x"}))
    sub = await nc.subscribe(name)
    await nc.publish(name, b"no reply wanted")
    await tried("respond", nats.errors.Error, (await sub.next_msg(timeout=5)).respond(b"x"))
    await nc.close()
    nobody = f"nats://127.0.0.1:{free_port()}"

    async def quiet(error: Exception) -> None:
        """It is raised, too."""

    options = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0.05, "connect_timeout": 2, "error_cb": quiet}
    await tried("nobody", nats.errors.NoServersError, nats.connect(nobody, **options))
    await tried("login", nats.errors.Error, nats.connect(url.replace("//", "//wrong-"), **options))
    return seen


async def losing(nats: Any, url: str, name: str) -> Any:
    """The callbacks of a connection that breaks and comes back, and what is kept meanwhile."""
    seen: list[Any] = []

    def note(what: str) -> Callable[[], Any]:
        async def callback() -> None:
            seen.append(what)

        return callback

    async def error_cb(error: Exception) -> None:
        """Attempts that fail differ in number."""

    nc = await nats.connect(
        servers=[url],
        reconnect_time_wait=0.1,
        max_reconnect_attempts=-1,
        ping_interval=20,
        max_outstanding_pings=5,
        dont_randomize=True,
        allow_reconnect=True,
        disconnected_cb=note("disconnected"),
        reconnected_cb=note("reconnected"),
        closed_cb=note("closed"),
        error_cb=error_cb,
    )
    sub = await nc.subscribe(name)
    await nc.flush()
    wire = CUTTING[0]
    wire.refuse = True
    wire.cut()
    await eventually(lambda: nc.is_reconnecting, "the break")
    await nc.publish(name, b"meanwhile")
    wire.refuse = False
    await eventually(lambda: nc.is_connected, "the connection coming back")
    seen.append((await sub.next_msg(timeout=10)).data)
    seen.append(nc.stats["reconnects"])
    await eventually(lambda: "reconnected" in seen, "the callback")
    await nc.close()
    await eventually(lambda: "closed" in seen, "the callback")
    return [item for item in seen if isinstance(item, str)], [item for item in seen if not isinstance(item, str)]


CUTTING: list[Any] = []


async def failing(nats: Any, url: str, name: str) -> Any:
    """A callback that raises is told to error_cb, and gets the next message."""
    seen: list[Any] = []
    told = asyncio.Event()

    async def error_cb(error: Exception) -> None:
        seen.append((type(error).__name__, str(error)))
        told.set()

    async def handler(msg: Any) -> None:
        seen.append(msg.data)
        if msg.data == b"bad":
            raise ValueError("bad message")

    nc = await nats.connect(url, error_cb=error_cb)
    await nc.subscribe(name, cb=handler)
    await nc.publish(name, b"bad")
    await nc.publish(name, b"good")
    await asyncio.wait_for(told.wait(), 10)
    await nc.drain()
    return sorted(map(str, seen))


async def slow(nats: Any, url: str, name: str) -> Any:
    """A subscription that is full drops what comes, and tells."""
    seen: list[Any] = []
    told = asyncio.Event()

    async def error_cb(error: Exception) -> None:
        told.set()

    nc = await nats.connect(url, error_cb=error_cb)
    sub = await nc.subscribe(name, pending_msgs_limit=3)
    for number in range(6):
        await nc.publish(name, b"%d" % number)
    await nc.flush()
    await asyncio.wait_for(told.wait(), 10)
    seen += [sub.pending_msgs, *[(await sub.next_msg(timeout=5)).data for _ in range(3)]]
    await nc.close()
    return seen


async def draining(nats: Any, url: str, name: str) -> Any:
    """What has arrived is handled before a drained connection is closed."""
    got: list[bytes] = []
    other = await nats.connect(url)
    nc = await nats.connect(url, drain_timeout=10)

    async def handler(msg: Any) -> None:
        await asyncio.sleep(0.001)
        got.append(msg.data)

    await nc.subscribe(f"{name}.in", cb=handler)
    await nc.flush()
    for number in range(50):
        await other.publish(f"{name}.in", b"%d" % number)
    await other.flush()
    await nc.flush()  # and so it has arrived: nats-py loses what is on its way
    await nc.drain()
    await other.close()
    return got, nc.is_closed


PROGRAMS = [hello, reading, asking, states, mistakes, failing, slow, draining]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_a_program_sees_the_same(server: Server, unique: Unique, program: Any):
    """The program gives the same results with nats-py and with penstock."""
    name = unique("same")
    theirs = await program(stock, server.url, name)
    ours = await program(penstock, server.url, name)
    assert ours == theirs
    assert ours


async def test_a_program_that_loses_its_connection_sees_the_same(server: Server, unique: Unique):
    """Callbacks come in the same order, and what was published meanwhile arrives, with both.

    One thing differs: nats-py tells disconnected_cb of a close that the program asked for, too.
    """
    name = unique("same")
    found = []
    for nats in (stock, penstock):
        async with relay(server) as wire:
            CUTTING[:] = [wire]
            found.append(await losing(nats, wire.url, name))
    assert found[0] == (["disconnected", "reconnected", "disconnected", "closed"], [b"meanwhile", 1])
    assert found[1] == (["disconnected", "reconnected", "closed"], [b"meanwhile", 1])


# -- ways to log in ----------------------------------------------------------------------------------------------------


async def test_logins_under_their_names(tmp_path, unique: Unique):
    """User and password, nkeys, credentials and a TLS context are given as to nats-py, and work with both."""
    key, operator, authority = Key.make(), Operator(), Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    seed, creds = tmp_path / "user.nk", tmp_path / "user.creds"
    seed.write_text(key.seed)
    creds.write_text(operator.credentials())
    users = f"authorization {{ users: [ {{ user: ann, password: p4ss }}, {{ nkey: {key.public} }} ] }}"
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    trust = ssl.create_default_context(cafile=str(authority.ca))
    with (
        Server(sync="2m", auth=False, config=users) as by_user,
        Server(sync="2m", auth=False, config=operator.config()) as by_credentials,
        Server(sync="2m", auth=False, config=tls) as by_tls,
    ):
        for server, options in (
            (by_user, {"user": "ann", "password": "p4ss"}),
            (by_user, {"nkeys_seed": str(seed)}),
            (by_user, {"nkeys_seed_str": key.seed}),
            (by_credentials, {"user_credentials": str(creds)}),
            (by_tls, {"tls": trust}),
            (by_tls, {"tls": trust, "tls_hostname": "127.0.0.1"}),
        ):
            for nats in (stock, penstock):
                nc = await nats.connect(plain(server), inbox_prefix=b"_MINE", **options)
                assert nc.new_inbox().startswith("_MINE.")
                await nc.flush()
                await nc.close()


# -- names -------------------------------------------------------------------------------------------------------------


def test_every_error_of_nats_py_has_a_name_here():
    """What a program catches by nats-py's name is one of ours; what nats-py calls a timeout is one."""
    for name, kind in vars(stock.errors).items():
        if isinstance(kind, type) and kind.__module__ == "nats.errors" and name != "SlowConsumerError":
            ours = getattr(errors, name)
            assert issubclass(ours, errors.PenstockError), name
            if issubclass(kind, asyncio.TimeoutError):
                assert issubclass(ours, asyncio.TimeoutError), name
    assert errors.NATS_PY["TimeoutError"] is errors.DeadlineError
    with pytest.raises(AttributeError, match="no attribute 'NothingError'"):
        _ = errors.NothingError


def test_the_errors_are_reached_from_the_package():
    """`import penstock as nats` is enough for `nats.errors`, with nothing else imported."""
    code = (
        "import penstock as nats; print(nats.errors.TimeoutError.__name__); from penstock.errors import NoServersError"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "DeadlineError\n"


def test_every_option_of_nats_py_is_taken_or_refused_by_name():
    """Each parameter of nats-py's connect has the same meaning, none, or an error that says what to do."""
    from penstock.connection import connecting

    known = set(inspect.signature(connecting.connect).parameters) | set(penstock.ConnectionOptions.__dataclass_fields__)
    known |= set(connecting.FOREIGN) | connecting.NEEDLESS | connecting.THEIRS | {"servers"}
    theirs = set(inspect.signature(stock.aio.client.Client.connect).parameters) - {"self"}
    assert theirs - known == set()


@pytest.mark.parametrize(
    "name", ["signature_cb", "user_jwt_cb", "ws_connection_headers", "reconnect_to_server_handler"]
)
async def test_what_only_nats_py_has(name: str):
    """An option that we have not is refused, and the error names the way to nats-py's own client."""
    with pytest.raises(OptionError, match=f"{name} is an option of nats-py that this connection has not") as caught:
        await penstock.connect("nats://127.0.0.1:1", **{name: object()})
    assert "connect_nats_py" in caught.value.remedy


@pytest.mark.parametrize(
    ("theirs", "ours"), [("max_reconnect_attempts", "reconnect_attempts"), ("allow_reconnect", "reconnect")]
)
async def test_one_option_under_two_names(theirs: str, ours: str):
    """Giving both names of one option is a mistake."""
    with pytest.raises(OptionError, match=f"{ours} and {theirs} are one option"):
        await penstock.connect("nats://127.0.0.1:1", **{theirs: 1, ours: 1})
