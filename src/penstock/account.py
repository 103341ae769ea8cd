"""What the servers tell a user of the account that it belongs to: who it is, who is connected, what was moved.

::

    $SYS.REQ.USER.INFO             the server that we are connected to: user, account, permissions, expiry
    $SYS.REQ.SERVER.PING.CONNZ     every server: the connections of our account there, by pages
    $SYS.REQ.ACCOUNT.PING.STATZ    every server: the figures of our account there

Users of the system account are told of the connections of all accounts. How many servers there are is not told: the
answers end when none came for a moment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import DeadlineError, NoRespondersError
from penstock.system.reports import connections_in
from penstock.wire.jetstream.answers import number, part, read_answer

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg

__all__ = ["account_connections", "account_statistics", "user_info"]

USER_INFO = "$SYS.REQ.USER.INFO"
CONNECTIONS = "$SYS.REQ.SERVER.PING.CONNZ"
STATISTICS = "$SYS.REQ.ACCOUNT.PING.STATZ"
SILENCE = 0.3  # seconds without an answer after which all servers have answered
PAGE = 1024  # connections that a server tells at once
MOST_PAGES = 1000
MOST_ANSWERS = 10_000


async def user_info(client: Connection, timeout: float | None = None) -> dict[str, Any]:
    """Give what the server knows of us: `user`, `account`, `permissions`, `expires` in nanoseconds."""
    try:
        return part(read_answer((await client.request(USER_INFO, b"", timeout)).data), "data")
    except NoRespondersError:
        raise _nobody(USER_INFO) from None


async def account_statistics(client: Connection, timeout: float | None = None) -> list[dict[str, Any]]:
    """Give the figures of our account, one answer of each server: `server` says who it is, `data` what it said."""
    return await _gather(client, STATISTICS, {}, timeout)


async def account_connections(
    client: Connection, about: Mapping[str, Any], timeout: float | None = None
) -> list[dict[str, Any]]:
    """Give the connections of our account, on all servers and of all pages; each has its server in `server`.

    `about` says which ones, in the words of the server: `state`, `user`, `filter_subject`, `subscriptions`, `auth`.
    """
    found: list[dict[str, Any]] = []
    for page in range(MOST_PAGES):
        more = False
        for answer in await _gather(client, CONNECTIONS, {**about, "limit": PAGE, "offset": page * PAGE}, timeout):
            found += connections_in([answer])
            more = more or number(part(answer, "data"), "total", 0) > (page + 1) * PAGE
        if not more:
            break
    return found


async def _gather(
    client: Connection, subject: str, body: Mapping[str, Any], timeout: float | None
) -> list[dict[str, Any]]:
    """Ask all servers, and give their answers; NoRespondersError or DeniedError at once if they are not to be had."""
    timeout = client.options.request_timeout if timeout is None else timeout
    deadline = asyncio.get_running_loop().time() + timeout
    subscription = await client.subscribe(inbox := client.new_inbox())
    found: list[dict[str, Any]] = []
    try:
        with client.expecting(subject, subscription.end):
            await client.publish(subject, json.dumps(body).encode(), reply=inbox)
            while len(found) < MOST_ANSWERS:
                left = deadline - asyncio.get_running_loop().time()
                message: Msg = await subscription.next_msg(max(min(left, SILENCE) if found else left, 0.001))
                if message.status == 503 and not message.data:
                    raise _nobody(subject)
                found.append(read_answer(message.data))
    except NoRespondersError:
        raise
    except DeadlineError:
        if not found:
            raise DeadlineError(
                f"No server answered within {timeout:g} s.",
                remedy="A longer --timeout may help.",
                seconds=timeout,
                subject=subject,
            ) from None
    finally:
        if subscription.error is None:
            await subscription.unsubscribe()
    return found


def _nobody(subject: str) -> NoRespondersError:
    return NoRespondersError(
        f"Nobody answers on {subject}.",
        remedy="Does the server have a system account, and is it 2.10 or newer?",
        subject=subject,
    )
