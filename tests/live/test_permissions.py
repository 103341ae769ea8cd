"""The least permissions of each role: with them all its work is done, and what is missing is told at once, by name."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.conf_file import read_conf
from penstock.connection import connect
from penstock.console.act_pages import ACTS
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.complaints import permission
from penstock.wire.subjects import covers
from tests.live import console_roles, roles
from tests.support import eventually

CONF = Path(__file__).resolve().parents[1] / "golden" / "permissions" / "roles.conf"
LONG = 120.0  # what a deadline would take: no test waits for one
BOUND = 60.0
USERS = {user["user"]: user["permissions"] for user in read_conf(CONF).values["authorization"]["users"]}


@dataclass(frozen=True)
class Missing:
    """A login that has all permissions of a role but one."""

    role: str
    operation: str
    subject: str

    @property
    def user(self) -> str:
        """Its name."""
        return f"{self.role} without {self.operation} {self.subject}"


MISSING = [
    Missing(role, operation, subject)
    for role, permissions in USERS.items()
    for operation, lists in permissions.items()
    if operation in ("publish", "subscribe")
    for subject in lists["allow"]
]


def login(user: str, permissions: dict[str, Any]) -> str:
    return f"{{user: {json.dumps(user)}, password: pw, permissions: {json.dumps(permissions)}}}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """One server with every role, every role that lacks something, and somebody who may do everything."""
    users = ["{user: admin, password: pw}", *(login(role, given) for role, given in USERS.items())]
    for item in MISSING:
        lists = USERS[item.role][item.operation]["allow"]
        # An empty list would allow everything.
        rest = [subject for subject in lists if subject != item.subject] or ["nothing"]
        users.append(login(item.user, {**USERS[item.role], item.operation: {"allow": rest}}))
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as running:

        async def furnish() -> None:
            async with await connect(options(running, "admin")) as nc:
                await roles.furnish(nc)
            # Clients of channels acknowledge to the inbox of the gateway that served the cluster first, for good.
            await roles.gateway(options(running, "gateway", "gateway"), options(running, "admin"))

        asyncio.run(furnish())
        yield running


def options(server: Server, user: str, role: str = "admin") -> ConnectionOptions:
    return ConnectionOptions(
        server.url, user=user, password="pw", inbox_prefix=f"_INBOX.{role}", request_timeout=LONG, connect_timeout=30.0
    )


def test_every_role_is_on_the_page_and_in_the_test():
    """What is documented is what is tested."""
    assert USERS.keys() == roles.ROLES.keys()
    done = {name for name, *_ in console_roles.acts("1", "1", "2")}
    assert not done & console_roles.ELSEWHERE.keys()
    assert done | console_roles.ELSEWHERE.keys() == ACTS.keys(), "an act of the console that nobody tried"


@pytest.mark.parametrize("role", USERS)
async def test_a_role_does_its_work(guarded: Server, role: str, caplog: pytest.LogCaptureFixture):
    """With exactly the subjects of the page, all of it is done, and the server denies nothing."""
    async with asyncio.timeout(BOUND):
        await roles.ROLES[role](options(guarded, role, role), options(guarded, "admin"))
    assert "Permissions Violation" not in caplog.text


# What a role can do without, and why: nothing of its work is lost. What is denied is in the log, at the level debug.
GOES_ON = {
    ("source", "$JS.API.CONSUMER.DELETE.ORDERS.*"): "the server removes the reader's consumer after a minute",
    ("pipeline", "$JS.API.CONSUMER.DELETE.ORDERS.*"): "the same",
    ("values-read", "$JS.API.CONSUMER.DELETE.KV_prices.*"): "the same",
    ("values-read", "$JS.FC.KV_prices.>"): "for buckets that are larger than this one",
    ("objects-write", "$JS.API.STREAM.PURGE.OBJ_pictures"): "the chunks of what was replaced stay",
    ("chunks-send", "_CHUNKS.large"): "it waits a second for an answer instead",
    ("chunks-send", "_INBOX.chunks-send.>"): "it sends at its own pace",
    ("chunks-receive", "_CHUNKS.large"): "senders wait a second for an answer",
    ("gateway", "$JS.API.STREAM.PURGE.*"): "for limits; tests/live/test_channels_permissions.py",
    ("gateway", "$JS.API.STREAM.DELETE.*"): "for channels that nobody uses any more",
    ("channels-client", "_STAN.discover.test-cluster.pings"): "for pings; tests/live/test_channels_permissions.py",
}
# What the work of these tests never needs: larger buckets, limits, old channels and pings do.
UNTRIED = {
    ("values-read", "$JS.FC.KV_prices.>"),
    ("gateway", "$JS.API.STREAM.PURGE.*"),
    ("gateway", "$JS.API.STREAM.DELETE.*"),
    ("channels-client", "_STAN.discover.test-cluster.pings"),
}
# What may be missing because something else does as well: then that is what the error names.
INSTEAD = {
    ("objects-read", "$JS.API.STREAM.MSG.GET.OBJ_pictures"): "$JS.API.DIRECT.GET.OBJ_pictures.>",
    ("objects-write", "$JS.API.STREAM.MSG.GET.OBJ_pictures"): "$JS.API.DIRECT.GET.OBJ_pictures.>",
}
OPERATIONS = {"Publish": "publish", "Subscription": "subscribe"}
DENIAL = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]+)"')


def _denials(text: str, item: Missing, wanted: str = "") -> list[str]:
    """Give the subjects of which a text says that the server denied them to this login."""
    found = [name for operation, name in DENIAL.findall(text) if OPERATIONS[operation] == item.operation]
    return [name for name in found if covers(wanted or item.subject, name)]


@pytest.mark.parametrize("item", MISSING, ids=lambda item: item.user)
async def test_a_subject_that_is_missing_is_told(guarded: Server, item: Missing, caplog: pytest.LogCaptureFixture):
    """It is told at once which subject is missing and what to add: in an error, or in the log of who only answers."""
    place = (item.role, item.subject)
    if place in GOES_ON:
        caplog.set_level("DEBUG")  # what nobody misses is no warning
    work = asyncio.ensure_future(
        roles.ROLES[item.role](options(guarded, item.user, item.role), options(guarded, "admin"))
    )
    if place in GOES_ON:
        async with asyncio.timeout(BOUND):
            await work
        assert bool(_denials(caplog.text, item)) == (place not in UNTRIED), caplog.text
        for subject in _denials(caplog.text, item):
            assert f'{item.operation}: {{ allow: ["{permission(subject, f"_INBOX.{item.role}")}"] }}' in caplog.text
        return

    def told() -> str:
        return str(work.exception() or "") + caplog.text if work.done() else caplog.text

    # The console tells of streams of other roles as well, whose messages it may not read.
    wanted = INSTEAD.get(place, item.subject)

    def denied(text: str) -> str:
        return next(iter(_denials(text, item, wanted)), "")

    # Whoever is not answered waits for a deadline, and cannot know better: the other side has told it by then.
    await eventually(lambda: denied(told()) or work.done(), "the denial", timeout=BOUND)
    if not work.done():
        await asyncio.wait([work], timeout=0.2)
        work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    text = str(work.exception() or "") if not work.cancelled() else ""
    text = text if DENIAL.search(text) and "Add " in text else caplog.text
    subject = denied(text)
    assert subject, text or repr(work.exception())
    add = permission(subject, f"_INBOX.{item.role}")
    assert covers(add, subject)
    assert f'{item.operation}: {{ allow: ["{add}"] }}' in text, text
