"""What a login may not do is told at once, by the subject that it lacks: to gateways, clients and whoever runs them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.channels import ChannelLimits, Client, Gateway, Limits
from penstock.channels.catalog import Catalog
from penstock.cli.app import main
from penstock.connection import api_request, connect
from penstock.errors import ChannelError, DeniedError, DisconnectedError
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.reloading import reload
from tests.live.stan import Got, until

LONG = 120.0  # what a deadline would take; no test waits for it
BOUND = 30.0
OPEN = 'subscribe: {deny: "nothing"}'
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "channels.md"

# Who may do all but one thing, and that thing.
DENIED = {
    "noinfo": {"publish": "$JS.API.STREAM.INFO.>"},
    "nocreate": {"publish": "$JS.API.STREAM.CREATE.>"},
    "nostate": {"publish": "_PENSTOCK.>"},
    "nopurge": {"publish": "$JS.API.STREAM.PURGE.>"},
    "noread": {"publish": "$JS.API.DIRECT.GET.>"},
    "noget": {"publish": "$JS.API.STREAM.MSG.GET.>"},
    "nolist": {"publish": "$JS.API.STREAM.LIST"},
    "noprobe": {"publish": "_STAN.discover.*"},
    "nolisten": {"subscribe": "_STAN.sub.*"},
    "noinbox": {"subscribe": "_INBOX.>"},
    "nosecret": {"publish": "secret.>"},
    "noshut": {"publish": "$JS.API.STREAM.CREATE.shut:secret"},
    "noacks": {"subscribe": "_STAN.acks.>"},
    "nopublish": {"publish": "_STAN.pub.*.secret"},
    "nosubscribe": {"publish": "_STAN.sub.*"},
    "noleave": {"publish": "_STAN.unsub.*"},
    "noack": {"publish": "_INBOX.>"},
    "noping": {"publish": "_STAN.discover.*.pings"},
}


@pytest.fixture(scope="module")
def guarded():
    users = ["{user: anybody, password: pw}"]
    for name, denied in DENIED.items():
        [(operation, subject)] = denied.items()
        users.append(f'{{user: {name}, password: pw, permissions: {{{operation}: {{deny: "{subject}"}}}}}}')
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as made:
        yield made


@pytest.fixture
async def as_user(guarded: Server, unique: Callable[..., str]) -> AsyncIterator[Any]:
    """Give what connects as one of the users, and the name of a cluster of its own."""
    cluster = unique("c")

    def options(user: str) -> ConnectionOptions:
        return ConnectionOptions(guarded.url, user=user, password="pw")

    options.cluster = cluster
    yield options
    async with await connect(options("anybody")) as cleaner:
        for name in (await api_request(cleaner, "STREAM.NAMES")).get("streams") or []:
            await api_request(cleaner, f"STREAM.DELETE.{name}")


def gateway(as_user: Any, user: str, **options: Any) -> Gateway:
    return Gateway(as_user(user), cluster_id=as_user.cluster, timeout=LONG, **options)


@asynccontextmanager
async def client(as_user: Any, user: str, **options: Any) -> AsyncIterator[Client]:
    made = Client(
        as_user(user), cluster_id=as_user.cluster, client_id="me", connect_timeout=LONG, ack_timeout=LONG, **options
    )
    try:
        yield await made.connect()
    finally:
        await made.close()


# -- gateways ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "operation", "subject"),
    [
        ("noinfo", "publish", "$JS.API.STREAM.INFO.{}=state"),
        ("nocreate", "publish", "$JS.API.STREAM.CREATE.{}=state"),
        ("nostate", "publish", "_PENSTOCK.channels.{}.lead"),
        ("noread", "publish", "$JS.API.DIRECT.GET.{}=state"),
        ("noget", "publish", "$JS.API.STREAM.MSG.GET.{}=state"),
        ("nolist", "publish", "$JS.API.STREAM.LIST"),
        ("noprobe", "publish", "_STAN.discover.{}"),
        ("nolisten", "subscribe", "_STAN.sub.{}"),
    ],
)
async def test_a_gateway_that_lacks_a_permission_does_not_start(as_user, user, operation, subject):
    """Whatever a gateway needs at its start and may not do is told by name, and nothing is left running."""
    made = gateway(as_user, user)
    with pytest.raises(DeniedError) as error:
        async with asyncio.timeout(BOUND):
            await made.start()
    assert (error.value.operation, error.value.subject) == (operation, subject.format(as_user.cluster))
    assert made._task is None
    async with gateway(as_user, "anybody") as other:
        assert other.leading, "and it has left the cluster to others"


async def test_a_gateway_that_may_not_hear_answers(as_user):
    """Where the inbox of answers is denied, the first question says so."""
    with pytest.raises(DeniedError, match="_INBOX") as error:
        async with asyncio.timeout(BOUND):
            await gateway(as_user, "noinbox").start()
    assert error.value.operation == "subscribe"


@pytest.mark.parametrize("user", ["noget", "noinfo"])
async def test_a_standby_that_may_not_watch(as_user, user):
    """A standby that may not look at its leader's pulse, or at the state, ends, and says what it lacks."""
    async with gateway(as_user, "anybody") as leader:
        standby = gateway(as_user, user, standby=True)
        await standby.start()
        try:
            with pytest.raises(DeniedError, match=r"\$JS\.API\.STREAM"):
                async with asyncio.timeout(BOUND):
                    await standby.wait()
        finally:
            await standby.stop()
        assert leader.leading


async def test_a_standby_that_may_not_lead(as_user):
    """A standby whose turn it is, and that may not write the state, ends and says so instead of trying for ever."""
    async with gateway(as_user, "anybody"):
        standby = gateway(as_user, "nostate", standby=True)
        await standby.start()
        await until(lambda: standby._state.ready)
    try:
        with pytest.raises(DeniedError, match="_PENSTOCK"):
            async with asyncio.timeout(BOUND):
                await standby.wait()
    finally:
        await standby.stop()


async def test_a_channel_that_the_gateway_may_not_write(as_user):
    """The publisher of a channel that the gateway may not store is told what it lacks; other channels go on."""
    async with gateway(as_user, "nosecret"), client(as_user, "anybody") as publisher:
        await publisher.publish("open.a", b"x")
        for _ in range(2):
            with pytest.raises(ChannelError, match=r"secret\.a"):
                async with asyncio.timeout(BOUND):
                    await publisher.publish("secret.a", b"x")
        await publisher.publish("open.a", b"y")


async def test_a_channel_that_the_gateway_may_not_make(as_user):
    """Publishers and subscribers of a channel whose stream the gateway may not create are told so."""
    as_user.cluster = "shut"
    async with gateway(as_user, "noshut"), client(as_user, "anybody") as user, asyncio.timeout(BOUND):
        with pytest.raises(ChannelError, match=r"\$JS\.API\.STREAM\.CREATE\.shut:secret"):
            await user.publish("secret", b"x")
        with pytest.raises(ChannelError, match=r"\$JS\.API\.STREAM\.CREATE\.shut:secret"):
            await user.subscribe("secret", Got())
        await user.publish("open", b"x")


async def test_a_gateway_that_may_not_drop_what_is_too_much(as_user, caplog):
    """What was stored counts as stored, though the oldest messages cannot be dropped for it; the log says so."""
    limits = Limits(default=ChannelLimits(max_bytes=500))
    async with gateway(as_user, "nopurge", limits=limits), client(as_user, "anybody") as publisher:
        async with asyncio.timeout(BOUND):
            for _ in range(10):
                await publisher.publish("foo", b"x" * 100)
            await publisher.subscribe("foo", got := Got(), sequence=10)
            await got.count(1)
    assert "The oldest messages of foo stay for now".lower() in caplog.text.lower()


@pytest.mark.parametrize(("operation", "subject"), [("subscribe", "_STAN.sub.*"), ("publish", "_PENSTOCK.>")])
async def test_a_permission_that_goes_and_comes_back(unique, caplog, operation, subject):
    """A gateway that has served, and may not any more, says what it lacks, and serves again when it may."""
    config = f'authorization {{ users: [{{user: g, password: pw, permissions: {{{operation}: {{deny: "x.>"}}}}}}] }}'
    with Server(config=config, auth=False, sync="2m") as server:

        def permit(before: str, after: str) -> None:
            node = server.nodes[0]
            node._config.write_text(node._config.read_text().replace(f'"{before}"', f'"{after}"'))
            os.kill(node.pid, signal.SIGHUP)  # the server reads its configuration again

        options, cluster = ConnectionOptions(server.url, user="g", password="pw"), unique("c")
        made = Gateway(options, cluster_id=cluster, lease=1.0)
        async with made, Client(options, cluster_id=cluster, client_id="me", ping_interval=600) as user:
            await user.publish("foo", b"x")
            permit("x.>", subject)
            await until(lambda: "not serving any more" in caplog.text or "is not written" in caplog.text)
            wanted = subject.partition(".")[0]
            await until(lambda: any(f'to "{wanted}.' in message for message in caplog.messages))
            assert made._task is not None
            assert not made._task.done()
            permit(subject, "x.>")
            user._connect_timeout = BOUND
            async with asyncio.timeout(BOUND):
                await user.subscribe("foo", got := Got(), start="First")
                await got.count(1)


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def served(as_user):
    async with gateway(as_user, "anybody") as made:
        yield made


@pytest.mark.parametrize(
    ("user", "operation", "words"),
    [
        ("noprobe", "publish", "_STAN.discover"),
        ("noinbox", "subscribe", "_INBOX"),
        ("noacks", "subscribe", "_STAN.acks"),
    ],
)
async def test_a_client_that_may_not_connect(as_user, served, user, operation, words):
    """A client that may not ask the server, or not hear it, is told so; whoever may takes its id."""
    with pytest.raises(DeniedError, match=words) as error:
        async with asyncio.timeout(BOUND), client(as_user, user):
            pass
    assert error.value.operation == operation
    async with client(as_user, "anybody", ping_interval=600):
        assert list(served.service.clients.by_id) == ["me"]


async def test_a_client_that_may_not_hear_acks_takes_its_leave(as_user, served):
    """A client that was registered, and then found that it cannot hear acks, is not left behind at the gateway."""
    with pytest.raises(DeniedError):
        async with client(as_user, "noacks"):
            pass
    await until(lambda: not len(served.service.clients.by_id))


async def test_a_publish_that_is_denied(as_user, served):
    """Each message on a denied subject fails at once, in flight or awaited; those on others are stored."""
    async with client(as_user, "nopublish") as publisher:
        async with asyncio.timeout(BOUND):
            with pytest.raises(DeniedError) as error:
                await publisher.publish("secret", b"x")
            assert error.value.subject == f"_STAN.pub.{as_user.cluster}.secret"
            channels = ["secret", "open"] * 20
            futures = [await publisher.publish_async(channel, b"x") for channel in channels]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for channel, outcome in zip(channels, outcomes, strict=True):
            assert isinstance(outcome, DeniedError) if channel == "secret" else outcome is None
        assert served.service.channels["open"].stream.last == 20
        assert len(publisher._unacked) == 0
        assert publisher.connection._expecting.keys() == {f"_STAN.discover.{as_user.cluster}.pings"}


async def test_denied_messages_make_room(as_user, served):
    """A message that was denied does not count as in flight: the next one goes out."""
    async with client(as_user, "nopublish", max_pub_acks_in_flight=1) as publisher:
        async with asyncio.timeout(BOUND):
            for _ in range(3):
                denied = await publisher.publish_async("secret", b"x")
                await publisher.publish("open", b"x")
                with pytest.raises(DeniedError):
                    await denied


async def test_a_subscribe_that_is_denied(as_user, served):
    """A subscription that may not be asked for, or ended, raises what is lacking, at once."""
    async with client(as_user, "nosubscribe") as reader:
        with pytest.raises(DeniedError, match=r"_STAN\.sub\."):
            async with asyncio.timeout(BOUND):
                await reader.subscribe("foo", Got())
        assert not reader._subscriptions
    async with client(as_user, "noleave") as reader:
        subscription = await reader.subscribe("foo", Got())
        with pytest.raises(DeniedError, match=r"_STAN\.unsub\."):
            async with asyncio.timeout(BOUND):
                await subscription.unsubscribe()


async def test_acks_that_are_denied(as_user, served):
    """Who may not acknowledge hears it with the next message: the iteration raises it, or on_error gets it."""
    heard: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def failed(error: Exception) -> None:
        heard.set_result(error)

    async with client(as_user, "noack", on_error=failed) as reader, asyncio.timeout(BOUND):
        reading = await reader.subscribe("foo", max_in_flight=1)
        got = Got()
        working = await reader.subscribe("foo", got, max_in_flight=1)
        await reader.publish("foo", b"x")
        assert (await anext(reading)).sequence == 1
        with pytest.raises(DeniedError) as error:
            await anext(reading)
        assert error.value.subject == reading.ack_inbox
        with pytest.raises(DeniedError):
            await reading.next(BOUND)
        assert (await heard).subject == working.ack_inbox
        assert got.sequences == [1]
        # The server is told, and sends there no more what nobody can acknowledge.
        await until(lambda: not len(served.service.channels["foo"].subscribers))
        await reading.close()
        await working.unsubscribe()


async def test_a_durable_whose_acks_are_denied(as_user, served):
    """A durable that ended because acks are denied is closed, not unsubscribed, and says so if that is asked for."""
    async with client(as_user, "noack") as reader, asyncio.timeout(BOUND):
        durable = await reader.subscribe("foo", durable="d", max_in_flight=1)
        await reader.publish("foo", b"x")
        await anext(durable)
        with pytest.raises(DeniedError):
            await anext(durable)
        with pytest.raises(DisconnectedError, match="the server keeps its position"):
            await durable.unsubscribe()


@pytest.fixture
def narrowed() -> Iterator[Server]:
    """A server on which somebody may listen to inboxes of two kinds, until it is told otherwise."""
    users = f"{{user: anybody, password: pw}}, {{user: me, password: pw, permissions: {{{OPEN}}}}}"
    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as made:
        yield made


async def test_a_subscription_that_may_not_receive_any_more(narrowed: Server):
    """If the permission goes while it reads, it ends with what is denied, the server is told, and others go on."""
    async with (
        Gateway(ConnectionOptions(narrowed.url, user="anybody", password="pw"), cluster_id="c") as served,
        await connect(narrowed.url, user="me", password="pw", inbox_prefix="_INBOX.one") as nc,
        Client(nc, cluster_id="c", client_id="me") as made,
        asyncio.timeout(BOUND),
    ):
        nc.options = dataclasses.replace(nc.options, inbox_prefix="_INBOX.two")
        reading = await made.subscribe("foo")
        await made.publish("foo", b"x")
        assert (await anext(reading)).sequence == 1
        await asyncio.to_thread(reload, narrowed, OPEN, 'subscribe: {deny: "_INBOX.two.>"}')
        with pytest.raises(DeniedError) as error:
            await anext(reading)
        assert error.value.subject == reading.inbox
        await until(lambda: not len(served.service.channels["foo"].subscribers))
        await made.publish("foo", b"y")


async def test_a_client_that_may_not_hear_the_server_any_more(narrowed: Server):
    """It is lost at once, and says what it may not do: its publishes do not wait for acks that cannot come."""
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def hear(error: Exception) -> None:
        lost.set_result(error)

    async with (
        Gateway(ConnectionOptions(narrowed.url, user="anybody", password="pw"), cluster_id="c"),
        await connect(narrowed.url, user="me", password="pw", inbox_prefix="_INBOX.one") as nc,
        Client(nc, cluster_id="c", client_id="me", ack_timeout=LONG, on_lost=hear) as made,
        asyncio.timeout(BOUND),
    ):
        await asyncio.to_thread(reload, narrowed, OPEN, 'subscribe: {deny: "_INBOX.one.>"}')
        assert isinstance(await lost, DeniedError)
        with pytest.raises(DeniedError, match=r"_INBOX\.one"):
            await made.publish("foo", b"x")


async def test_pings_that_are_denied(as_user, served):
    """A client that may not ping is lost at once, not after as many pings as it may miss, and on_lost hears why."""
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def hear(error: Exception) -> None:
        lost.set_result(error)

    async with client(as_user, "noping", ping_interval=-20, ping_max_out=10_000, on_lost=hear) as made:
        error = await asyncio.wait_for(lost, BOUND)
        assert isinstance(error, DeniedError)
        assert error.subject == f"_STAN.discover.{as_user.cluster}.pings"
        with pytest.raises(DeniedError):
            await made.publish("foo", b"x")


# -- those who run them -----------------------------------------------------------------------------------------------


async def test_the_catalog_of_a_login_that_may_not_look(as_user):
    """Whoever lists channels without the permission is told so."""
    with pytest.raises(DeniedError, match=r"\$JS\.API\.STREAM\.LIST"):
        async with asyncio.timeout(BOUND), Catalog(as_user("nolist"), as_user.cluster, timeout=LONG) as catalog:
            await catalog.channels()


@pytest.mark.parametrize(
    ("user", "arguments", "words"),
    [
        ("nolist", ("channels", "ls"), "$JS.API.STREAM.LIST"),
        ("nostate", ("channels", "serve", "--cluster-id", "told"), "_PENSTOCK.channels.told.lead"),
        ("nolisten", ("channels", "serve", "--cluster-id", "told"), "_STAN.sub.told"),
    ],
)
def test_commands_say_what_is_lacking(guarded, capsys, user, arguments, words):
    """The commands end with a sentence that names the subject."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "-s", guarded.url, "--user", user, "--password", "pw"])
    assert ended.value.code == 1
    assert words in capsys.readouterr().err


# -- what the page says -----------------------------------------------------------------------------------------------


def permissions(who: str, cluster: str, *more: str) -> str:
    """Read what the reference page says that somebody needs, as a server's configuration."""
    [row] = re.findall(rf"^\| {who} \|(.*)\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    publish, subscribe = (
        [re.sub(r"\bC\b", cluster, subject) for subject in re.findall(r"`([^`]+)`", cell)] for cell in row
    )
    listed = [", ".join(f'"{subject}"' for subject in subjects) for subjects in ([*publish, *more], subscribe)]
    return f"permissions: {{publish: {{allow: [{listed[0]}]}}, subscribe: {{allow: [{listed[1]}]}}}}"


async def test_the_permissions_of_the_page_are_enough(unique, caplog):
    """With what the reference page lists, and nothing else, everything works: limits, restarts, standby, inactivity."""
    cluster = unique("c")
    users = [
        f"{{user: g, password: pw, {permissions('a gateway', cluster, 'ch.>')}}}",
        f"{{user: c, password: pw, {permissions('a client', cluster)}}}",
    ]
    limits = Limits(default=ChannelLimits(max_bytes=500, max_inactivity=0.5))
    options = {"cluster_id": cluster, "subject_prefix": "ch.", "standby": True, "timeout": 5.0}
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as server:
        as_gateway = ConnectionOptions(server.url, user="g", password="pw")
        as_client = ConnectionOptions(server.url, user="c", password="pw")
        first = await Gateway(as_gateway, limits=limits, **options).start()
        await first.wait_leading()
        second = await Gateway(as_gateway, limits=limits, **options).start()
        pings = {"ping_interval": -50, "ping_max_out": 10_000}
        async with second, Client(as_client, cluster_id=cluster, client_id="me", **pings) as made:
            subscription = await made.subscribe("foo", got := Got(), durable="d")
            for _ in range(20):
                await made.publish("foo", b"x" * 100)
            await got.count(20)
            await subscription.close()
            await first.stop()
            await asyncio.wait_for(second.wait_leading(), BOUND)
            await made.subscribe("foo", got, durable="d")
            await made.publish("foo", b"x")
            await got.count(21)
            await made.publish("idle", b"x")
            await until(lambda: "idle" not in second.service.channels)
            resumed = await made.subscribe("foo", Got(), start="First")
            await resumed.unsubscribe()
    assert "Permissions Violation" not in caplog.text
    assert "denie" not in caplog.text
