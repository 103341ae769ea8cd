"""All connections of all servers, page by page; for a login outside of the system account those of its own account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.system.fields import figure
from penstock.system.gathering import Gathered, ask_servers, data_of, in_system_account
from penstock.system.questions import ServerFilter

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["GatheredConnections", "ask_connections"]

_PAGE = 1024  # what a server gives at a time
_MOST_PAGES = 1000
_UNKNOWN = 10_000  # servers, if nobody tells how many there are
_WHILE = 1.0  # seconds that they then have to answer


@dataclass(frozen=True)
class GatheredConnections(Gathered):
    """What servers answered of their connections."""

    own_account: bool = False
    """Whether they told of the account of this login alone."""


async def ask_connections(
    client: Connection, about: Mapping[str, Any], *, where: ServerFilter, expect: int = 0, timeout: float | None = None
) -> GatheredConnections:
    """Ask for the connections of all servers, all pages of them; MonitorError if a server refuses.

    A login outside of the system account hears of its own account. How many servers there are it does not hear: those
    that answer within a second are those that are told.
    """
    own_account = not expect and not await in_system_account(client, timeout)
    if own_account:
        expect, timeout = _UNKNOWN, min(client.options.request_timeout if timeout is None else timeout, _WHILE)
    answers: list[dict[str, Any]] = []
    missing: set[str] = set()
    absent = 0
    for page in range(_MOST_PAGES):
        question = {**about, "limit": _PAGE, "offset": page * _PAGE}
        got = await ask_servers(client, "CONNZ", question, where=where, expect=expect, timeout=timeout)
        answers += got.answers
        missing.update(got.missing)
        absent = max(absent, got.absent)
        if all(figure(data_of(answer), "total") <= (page + 1) * _PAGE for answer in got.answers):
            break
    return GatheredConnections(tuple(answers), tuple(sorted(missing)), absent, own_account)
