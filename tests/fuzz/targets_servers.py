"""What servers say of themselves, of their accounts and of what they hold: to the system account, and by themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from penstock.cli.account import _jetstream_sections, _permission_sections, _user_rows
from penstock.cli.account_report import _accounts, _moved
from penstock.cli.server_account import _sections
from penstock.cli.server_report_cluster import _gateway_rows, _jetstream_rows, _links, _meta_tables
from penstock.connection import Connection, Msg
from penstock.console.cluster import _meta, _ours, node_of
from penstock.errors import JetStreamError, NotFoundError, PenstockError, RemoteProtocolError
from penstock.jetstream.letter import read_exhausted, read_note
from penstock.jetstream.samples import Samples
from penstock.survey.ears import Ears
from penstock.survey.known import Known
from penstock.survey.last_hour import LastHour
from penstock.survey.pace import SurveyPace
from penstock.survey.rounds import Round
from penstock.system import check_assets, check_servers
from penstock.system.fields import fields
from penstock.system.gathering import _Answers, data_of
from penstock.system.reports import (
    ACCOUNT_SORTS,
    CONNECTION_SORTS,
    accounts_of,
    connections_in,
    leaders_of,
    needing_more,
    sort_rows,
    subscriptions_of,
    without_jwts,
)
from penstock.system.result import CheckResult
from penstock.system.seen import SORTS, ServerSeen, clusters_of, known_servers, sort_servers
from penstock.wire.jetstream.answers import part, read_answer
from tests.fuzz.target import target

_NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
_MOST = 10  # answers
_ABOUT = ("name", "id", "host", "cluster", "version", "jetstream", "routes", "gateways", "started", "uptime")


def _try(*reads: Callable[[], object]) -> None:
    """Do each of these; what is refused keeps nobody from the next one."""
    for read in reads:
        with suppress(PenstockError):
            read()


@target("system")
def system(content: bytes) -> None:
    """Answers of servers, with an empty line between two: as reports, tables and checks take them."""
    found = asyncio.run(_heard(content))
    seen = [ServerSeen(item, 0.1) for item in found]
    _try(
        lambda: known_servers(seen),
        lambda: clusters_of(seen),
        lambda: connections_in(found),
        lambda: leaders_of(found),
        lambda: needing_more(found, 1, with_consumers=True),
        lambda: _jetstream_rows(found, "name", ""),
        lambda: _meta_tables(found),
        lambda: _links(found, "routes", "name", False, {"name": "remote_name"}),
        lambda: _links(found, "leafs", "name", False, {"name": "name"}),
        *(partial(sort_servers, seen, by) for by in SORTS),
    )
    _try(lambda: _sorted(found))
    for server in seen:
        _try(*(partial(getattr, server, name) for name in _ABOUT))
    for answer in found:
        json.dumps(without_jwts(answer))
        _try(partial(_gateway_rows, answer), partial(_account, answer), partial(_statistics, answer))
        for about in (answer, answer.get("data")):
            if isinstance(about, dict):
                _checks(about)
    told = [item["data"] for item in found if isinstance(item.get("data"), dict)]
    _try(lambda: [node_of(item) for item in told], lambda: _meta(told), lambda: _ours(told, [], {"cluster": "c"}))


async def _heard(content: bytes) -> list[dict[str, Any]]:
    answers = _Answers(lambda found: False)
    for item in content.split(b"\n\n")[:_MOST]:
        answers.hear(item, None)
    return answers.found


def _sorted(found: list[dict[str, Any]]) -> None:
    connections = connections_in(found)
    for by, field in CONNECTION_SORTS.items():
        _try(partial(sort_rows, connections, field, top=3, reverse=by == "cid"))
    accounts = accounts_of(connections)
    for field in ACCOUNT_SORTS.values():
        sort_rows(accounts, field)
    sum(map(subscriptions_of, connections))


def _account(answer: dict[str, Any]) -> None:
    _sections(fields(data_of(answer), "account_detail"))


def _statistics(answer: dict[str, Any]) -> None:
    for item in _accounts(answer):
        _moved(item.get("sent"))


def _checks(about: dict[str, Any]) -> None:
    """Judge an answer as each kind of thing that is checked."""
    streams = check_assets.StreamLevels(5, 5.0, 1, 2, 3, 5, 5.0, 5, 9, 5, 9)
    consumers = check_assets.ConsumerLevels(5, 5, 5, 5.0, 5.0, 5, True)
    servers = check_servers.ServerLevels(*(5,) * 8, 5.0, 5.0, auth_required=True, tls_required=True)
    noted = fields_of(about, "config", "metadata")
    checks: list[Callable[[CheckResult], object]] = [
        lambda result: check_assets.check_stream(result, about, check_assets.with_metadata(streams, noted)),
        lambda result: check_assets.check_consumer(result, about, consumers, _NOW),
        lambda result: check_assets.check_replicas(result, [about], 0, check_assets.ReplicaLevels()),
        lambda result: check_assets.check_bucket(result, "b", about, check_assets.BucketLevels(5, 9)),
        lambda result: check_servers.check_server(result, about, servers),
        lambda result: check_servers.check_meta(result, about, check_servers.MetaLevels(3, 5, 5.0)),
        lambda result: check_servers.check_account(result, about, check_servers.AccountLevels()),
    ]
    for check in checks:
        result = CheckResult("suite", "name")
        with suppress(PenstockError):
            check(result)
        assert "\n" not in result.nagios()
        result.text()
        result.prometheus("penstock")
        json.dumps(result.to_json(), allow_nan=False)


def fields_of(about: dict[str, Any], *path: str) -> dict[str, Any]:
    """Give the object at the end of a path; an empty one if there is none."""
    try:
        return fields(about, *path)
    except PenstockError:
        return {}


@target("accounts")
def accounts(content: bytes) -> None:
    """What a server tells of the user that asks, and of the account."""
    answer = read_answer(content)
    user = part(answer, "data") if "data" in answer else answer
    _try(
        lambda: _user_rows(user, None),
        lambda: _permission_sections(user),
        lambda: _jetstream_sections(answer, None, {"max_payload": 5}),
        lambda: _accounts(answer),
        lambda: connections_in([answer]),
    )


@target("advisories")
def advisories(content: bytes) -> None:
    """What a server tells by itself, or anybody in its name: who listens goes on, whatever it is."""
    _try(lambda: read_exhausted(content), lambda: read_note(content))
    message = cast("Msg", _Heard(content))
    ears, samples = Ears(), Samples(cast("Connection", None))

    async def hear() -> None:
        await ears._hear(message)
        await samples._heard(message)

    asyncio.run(hear())
    for heard in ears.heard.values():
        heard.percentiles(0.0)
    for figures in samples.figures.values():
        json.dumps(figures.to_json(), allow_nan=False)


class _Heard:
    """A message of which the payload alone is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Round(Round):
    """A round of a survey whose answers stand in bytes."""

    def __init__(self, answers: Iterable[bytes]) -> None:
        pace, ears = SurveyPace(1e9, 4), Ears()
        nobody = cast("Connection", None)
        super().__init__(nobody, Known(LastHour(room=10_000)), pace, ears, most=50, ages=5, news=lambda: None)
        self._answers = dict(zip(("INFO", "STREAM.LIST", "CONSUMER.LIST", "STREAM.INFO"), answers, strict=False))
        self._asked = 0

    async def _ask(self, method: str, body: object = None) -> dict[str, Any]:
        self._asked += 1
        name = next((name for name in self._answers if method.startswith(name)), None)
        if name is None or self._asked > 20:  # a list whose pages never end
            raise NotFoundError("gone", code=404)
        try:
            return read_answer(self._answers[name])
        except JetStreamError as error:
            raise NotFoundError(error.what, code=404) from None  # what other refusals do is told by their own tests
        except RemoteProtocolError:
            if name == "INFO":
                return {}  # the connection answers nothing that can be read: the round ends
            raise

    async def _ages(self) -> None:
        pass  # it asks for messages


@target("lists")
def lists(content: bytes) -> None:
    """The account, a page of streams, one of consumers and a stream, with an empty line between two.

    A survey goes round them: what cannot be read is told, and the round goes on.
    """
    survey = _Round(content.split(b"\n\n"))
    try:
        asyncio.run(survey.go())
    except NotFoundError:
        return  # the account is refused
    except PenstockError as error:
        raise AssertionError("the round ended") from error
    survey.known.snapshot(1, 1e9, problem=None, jetstream=True)
    assert all(says.encode() for says in survey.known.unseen.values())
