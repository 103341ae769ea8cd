"""Subscriptions that the server serves or does not, and who is told that nothing will come any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest

from penstock.connection import connect
from penstock.connection.connecting import check_connection
from penstock.connection.subscription import served
from penstock.errors import DeniedError, DisconnectedError, InputError, PenstockError
from penstock.server import Server
from tests.live.cable import relay
from tests.support import eventually

CONFIG = """
authorization { users: [
  {user: some, password: pw, permissions: {publish: ">", subscribe: {deny: "secret.>"}}}
] }
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(config=CONFIG, auth=False, sync="2m") as running:
        yield running


def ignore(*about: object) -> None:
    """Take a message."""


async def test_a_subscription_that_is_denied_is_told_by_waiting_for_it(guarded: Server) -> None:
    """`served` raises the DeniedError that names the subject, and ends those that it waited for, permitted ones too."""
    ended: list[PenstockError] = []
    async with await connect(guarded.url, user="some", password="pw") as nc:
        fine = await nc.tap("fine", ignore, on_end=ended.append)
        denied = await nc.tap("secret.one", ignore, queue="group", on_end=ended.append)
        with pytest.raises(DeniedError, match=r"secret\.one") as caught:
            await served(fine, denied, timeout=60)
        assert (caught.value.subject, caught.value.operation) == ("secret.one", "subscribe")
        assert fine.ended
        assert denied.ended
        assert ended == [caught.value], "who ends a subscription itself is not told"
        await served(await nc.subscribe("fine"))
        await served()


async def test_a_subscription_that_cannot_be_confirmed_is_ended(server: Server, unique) -> None:
    """Where the connection breaks before the server has spoken, `served` says so, and nothing is left behind."""
    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=0.05)
        subscription = await nc.tap(unique("served"), ignore)
        wire.cut_up_at = 0
        with pytest.raises(DisconnectedError):
            await served(subscription)
        assert subscription.ended
        await eventually(lambda: nc.is_connected, "the connection")
        assert not nc._subscriptions
        await nc.close()


@pytest.mark.parametrize("lend", [False, True])
async def test_the_end_of_a_connection_is_told_to_its_taps(server: Server, unique, lend: bool) -> None:
    """A tap hears that the connection is closed for good; one that was unsubscribed before hears nothing."""
    told: list[PenstockError] = []
    nc = await connect(server.url)
    await nc.tap(unique("tap"), ignore, lend=lend, on_end=told.append)
    left = await nc.tap(unique("tap"), ignore, lend=lend, on_end=told.append)
    await left.unsubscribe()
    await nc.close()
    assert [type(error) for error in told] == [DisconnectedError]


async def test_a_lost_connection_that_comes_back_ends_no_tap(server: Server, unique) -> None:
    """A break that is mended is no end: the tap goes on, and hears nothing of it."""
    told: list[PenstockError] = []
    got: list[bytes] = []
    subject = unique("tap")
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as nc:
        await nc.tap(subject, lambda name, reply, data, block: got.append(data), on_end=told.append)
        wire.cut()
        await eventually(lambda: nc.stretch == 2, "the next stretch")
        await nc.publish(subject, b"after")
        await eventually(lambda: got == [b"after"], "the message")
        assert not told


async def test_listeners_for_denials_come_and_go() -> None:
    """Everybody who expects to publish on a subject is told of the denial, and nobody who does not any more."""
    config = 'authorization { users: [{user: u, password: p, permissions: {publish: {deny: "secret"}}}] }'
    with Server(config=config, auth=False, sync="2m") as strict:
        async with await connect(strict.url, user="u", password="p") as nc:
            first: list[DeniedError] = []
            second: list[DeniedError] = []
            with nc.expecting("secret", first.append):
                with nc.expecting("secret", first.append), nc.expecting("secret", second.append):
                    await nc.publish("secret")
                    await nc.flush()
                await nc.publish("secret")
                await nc.flush()
            assert (len(first), len(second)) == (3, 1)
            assert {error.subject for error in first} == {"secret"}
            await nc.publish("secret")
            await nc.flush()
            assert (len(first), len(second)) == (3, 1)


async def test_a_password_that_is_part_of_the_subject_hides_nothing() -> None:
    """Secrets are taken out of what is shown, and of nothing that is compared: the denial finds whom it concerns."""
    config = 'authorization { users: [{user: u, password: secret, permissions: {publish: {deny: "secret.>"}}}] }'
    with Server(config=config, auth=False, sync="2m") as strict:
        async with await connect(strict.url, user="u", password="secret") as nc, asyncio.timeout(20):
            with pytest.raises(DeniedError) as caught:
                await nc.request("secret.one", timeout=60)
            assert caught.value.subject == "secret.one"
            assert "secret" not in str(caught.value)


async def test_a_client_of_nats_py_is_no_connection(server: Server) -> None:
    """What is no connection of ours is refused with what to do instead."""
    async with await connect(server.url) as nc:
        assert check_connection(nc) is nc
    client = await nats.connect(server.url)
    try:
        with pytest.raises(InputError, match=r"nats\.aio\.client\.Client is not a connection.*penstock\.connect"):
            check_connection(client)
    finally:
        await client.close()
    with pytest.raises(InputError, match=r"builtins\.str"):
        check_connection(server.url)
