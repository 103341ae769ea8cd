"""Asking all servers at once, and waiting no longer than until all that are known have answered.

The user who asks must be in the system account. Other users are told so at once, not after a timeout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    DeadlineError,
    DeniedError,
    MonitorError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.system.fields import fields, read_object, word
from penstock.system.questions import PING, ServerFilter, is_server_id, subject_of
from penstock.system.seen import ServerSeen, known_servers
from penstock.wire import protocol

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Gathered", "ask_server", "ask_servers", "data_of", "in_system_account", "not_system", "servers"]

_NOBODY = b"NATS/1.0 503"
_MOST_ANSWERS = 10_000
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Gathered:
    """What servers answered to one question."""

    answers: tuple[dict[str, Any], ...]
    """Each server's whole answer: `server` says who it is, `data` is what it said, `error` why it did not."""
    missing: tuple[str, ...] = ()
    """The names of servers that were there and did not answer this."""
    absent: int = 0
    """How many more servers are known, and did not even say that they are there."""


@dataclass
class _Answers:
    """Answers as they come, until enough of them have."""

    enough: Callable[[list[dict[str, Any]]], bool]
    found: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: PenstockError | None = None
    nobody: bool = False
    size: int = 0

    def hear(self, payload: bytes, block: bytes | None) -> bool:
        if block is not None and not payload and block.startswith(_NOBODY):
            self.nobody = True
            return True
        self.size += len(payload)
        try:
            self.found.append(read_object(payload))
            self.times.append(asyncio.get_running_loop().time())
            if len(self.found) > _MOST_ANSWERS or self.size > _MOST_BYTES:
                much = f"{_MOST_ANSWERS:,} answers" if self.size <= _MOST_BYTES else f"{_MOST_BYTES >> 20:,} MiB"
                raise RemoteProtocolError(f"The servers answered with more than {much}.")
            return self.enough(self.found)
        except PenstockError as error:
            self.error = error
            return True


def not_system(subject: str) -> DeniedError:
    """Give the error for a login that may not ask servers about themselves."""
    return DeniedError(
        "Servers tell this to users of the system account alone, and this login is not one of them.",
        remedy="Log in as one, with --user and --password, --creds or --context; the server's configuration names "
        "the account: system_account.",
        subject=subject,
        operation="publish",
    )


async def in_system_account(client: Connection, timeout: float | None = None) -> bool:
    """Tell whether servers tell this login about themselves."""
    try:
        await _exchange(client, PING, {}, lambda found: True, timeout)
    except DeniedError:
        return False
    return True


async def _exchange(
    client: Connection,
    subject: str,
    body: Mapping[str, Any],
    enough: Callable[[list[dict[str, Any]]], bool],
    timeout: float | None,
) -> _Answers:
    """Ask, and give what was answered until it was enough or the time was over."""
    answers = _Answers(enough)
    payload = json.dumps(body).encode()
    try:
        await client.exchange(
            lambda reply: protocol.publish(subject, payload, reply.decode()), answers.hear, (subject,), timeout
        )
    except DeadlineError:
        pass  # what came until now is what there is
    except DeniedError as error:
        if error.operation == "publish":
            raise not_system(subject) from None
        raise
    if answers.nobody and not answers.found:
        raise not_system(subject)
    if answers.error is not None:
        raise answers.error
    return answers


async def servers(
    client: Connection, where: ServerFilter | None = None, *, expect: int = 0, timeout: float | None = None
) -> tuple[list[ServerSeen], int]:
    """Ask who is there: the servers that answered, and how many more are known that did not.

    It ends as soon as all known servers have answered, or `expect` of them, and after `timeout` at the latest.
    DeniedError at once for a login outside of the system account, DeadlineError if nobody answers.
    """
    timeout = client.options.request_timeout if timeout is None else timeout
    began = asyncio.get_running_loop().time()

    def all_there(found: list[dict[str, Any]]) -> bool:
        return len(found) >= (expect or known_servers([ServerSeen(item, 0.0) for item in found]))

    answers = await _exchange(client, PING, {}, all_there, timeout)
    if not answers.found:
        raise DeadlineError(
            f"No server answered within {timeout:g} s.",
            remedy="A longer --timeout may help.",
            seconds=timeout,
            subject=PING,
        )
    seen = [ServerSeen(item, time - began) for item, time in zip(answers.found, answers.times, strict=True)]
    absent = max((expect or known_servers(seen)) - len(seen), 0)
    if not where:
        return seen, absent
    meant = [item for item in seen if where.takes(item.raw)]
    if not meant:
        raise NotFoundError(
            f"There is no server with {where}.",
            remedy=f"Those that answered are {_listed(item.name for item in seen)}; `penstock server list` tells more.",
        )
    return meant, 0 if where.name else absent


async def ask_servers(
    client: Connection,
    kind: str,
    about: Mapping[str, Any] | None = None,
    *,
    where: ServerFilter | None = None,
    expect: int = 0,
    timeout: float | None = None,
) -> Gathered:
    """Ask all servers, or those that `where` takes, one question: "VARZ", "CONNZ", "JSZ" and so on.

    `about` says what is wanted, in the server's words. It is known who is there, so that it ends when all have answered
    and names those that have not; with `expect`, it ends after so many answers. DeniedError at once for a login outside
    of the system account.
    """
    timeout = client.options.request_timeout if timeout is None else timeout
    where = where or ServerFilter()
    names: dict[str, str] = {}
    absent = 0
    if not expect:
        seen, absent = await servers(client, where, timeout=timeout)
        names = {item.id: item.name for item in seen}

    def all_there(found: list[dict[str, Any]]) -> bool:
        return len(found) >= expect if expect else names.keys() <= _ids(found)

    answers = await _exchange(client, subject_of(kind), {**(about or {}), **where.to_json()}, all_there, timeout)
    missing = tuple(sorted(names[item] for item in names.keys() - _ids(answers.found)))
    if not answers.found:
        raise DeadlineError(
            f"No server answered the question for {kind} within {timeout:g} s.",
            remedy="A longer --timeout may help.",
            seconds=timeout,
            subject=subject_of(kind),
        )
    return Gathered(tuple(sorted(answers.found, key=lambda item: word(item, "server", "name"))), missing, absent)


async def ask_server(
    client: Connection,
    kind: str,
    server: str,
    about: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Ask one server, by name or id, and give what it said."""
    timeout = client.options.request_timeout if timeout is None else timeout
    if not is_server_id(server):
        found, _ = await servers(client, ServerFilter(name=server), timeout=timeout)
        server = found[0].id
    subject = subject_of(kind, server)
    answers = await _exchange(client, subject, about or {}, lambda found: True, timeout)
    if not answers.found:
        raise DeadlineError(
            f"The server {server} did not answer within {timeout:g} s.",
            remedy="Is it there? `penstock server list` shows those that are.",
            seconds=timeout,
            subject=subject,
        )
    return data_of(answers.found[0])


def data_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a server said; MonitorError if it refused."""
    error = fields(answer, "error")
    if error:
        name, said = word(answer, "server", "name"), word(error, "description") or "it did not say why"
        raise MonitorError(f"The server {name} refused: {said}.", server=name, code=error.get("code"), description=said)
    return fields(answer, "data")


def _ids(found: Collection[Mapping[str, Any]]) -> set[str]:
    return {word(item, "server", "id") for item in found}


def _listed(names: Any, most: int = 10) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"
