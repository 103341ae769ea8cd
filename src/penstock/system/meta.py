"""The group that leads JetStream in a cluster: who is in it, and how another server comes to lead it.

Only users of the system account may ask for either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.connection import api_request
from penstock.errors import DeadlineError, InputError, PenstockError
from penstock.system.fields import fields, rows, word
from penstock.system.gathering import ask_servers
from penstock.wire.jetstream.answers import check_done
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["MetaGroup", "meta_group", "step_down_meta"]

_LOOK = 0.25  # seconds between looks at what changes


@dataclass(frozen=True)
class MetaGroup:
    """The servers that decide which of them carries what."""

    name: str
    """The name of the cluster."""
    leader: str | None
    """The server that says of itself that it leads; None if none does."""
    others: tuple[str, ...]
    """The servers that follow it, as far as it knows them."""


async def meta_group(client: Connection) -> MetaGroup:
    """Ask the servers who leads; InputError if they are not a cluster."""
    gathered = await ask_servers(client, "JSZ")
    told = [(word(item, "server", "name"), fields(item, "data", "meta_cluster")) for item in gathered.answers]
    groups = [(name, meta) for name, meta in told if meta]
    if not groups:
        raise InputError("The servers are not a JetStream cluster.", remedy="A single server leads by itself.")
    leading = next(((name, meta) for name, meta in groups if word(meta, "leader") == name), None)
    if leading is None:
        return MetaGroup(word(groups[0][1], "name"), None, ())
    return MetaGroup(word(leading[1], "name"), leading[0], _others(leading[1]))


def _others(meta: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(word(item, "name") for item in rows(meta, "replicas"))


async def step_down_meta(client: Connection, *, preferred: str | None = None, timeout: float = 5.0) -> MetaGroup:
    """Let the leader step down, and wait until another server leads; give who does."""
    before = await meta_group(client)
    if preferred is not None and preferred not in before.others:
        known = ", ".join(before.others) or "none"
        raise InputError(f"{preferred} does not follow the leader.", remedy=f"Those that do are {known}.")
    body = {} if preferred is None else {"placement": {"preferred": preferred}}
    check_done(await api_request(client, "META.LEADER.STEPDOWN", body))
    deadline = Deadline(timeout)
    while deadline.left:
        try:
            now = await meta_group(client)
            if now.leader not in (None, before.leader):
                return now
        except PenstockError:  # servers may not answer while there is no leader
            pass
        await asyncio.sleep(min(_LOOK, deadline.left))
    raise DeadlineError(
        f"JetStream has no new leader after {timeout:g} s; it was {before.leader or 'nobody'}.",
        remedy="See `penstock server report jetstream`, and try again.",
    )
