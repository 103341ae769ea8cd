"""`penstock server account`: what a server knows of an account, for the system account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import ago, local, print_json, print_sections
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import NotFoundError

__all__ = ["info"]

_SHOWN = 20  # entries of a list; --json has them all


async def info(
    ctx: typer.Context,
    account: Annotated[str, argument("The account.", "ACCOUNT")],
    host: Annotated[str, flag("Ask the server of this name.", "NAME")] = "",
    json: Json = False,
) -> None:
    """Show an account: whether it is valid, its connections, mappings, imports, exports and revoked users."""
    from penstock.system import ServerFilter, ask_servers
    from penstock.system.fields import fields
    from penstock.system.gathering import data_of

    async with connected(ctx) as client:
        where = ServerFilter(name=host)
        got = await ask_servers(client, "ACCOUNTZ", {"account": account}, where=where, expect=0 if host else 1)
    found = fields(data_of(got.answers[0]), "account_detail")
    if not found:
        raise NotFoundError(
            f"The server knows no account {account}.", remedy="`penstock server request accounts` lists those it knows."
        )
    if json:
        print_json(found)
    else:
        print_sections(f"Account {account}", _sections(found))


def _sections(found: dict[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    from penstock.system.fields import fields, figure, moment, rows, switch, word

    updated = moment(found, "update_time")
    details = [
        ("Complete", switch(found, "complete")),
        ("Expired", switch(found, "expired")),
        ("System account", switch(found, "is_system")),
        ("Updated", f"{local(updated)} ({ago(updated)})" if updated else None),
        ("JetStream", switch(found, "jetstream_enabled")),
        ("Clients", figure(found, "client_connections")),
        ("Leaf nodes", figure(found, "leafnode_connections")),
        ("Subscriptions", figure(found, "subscriptions")),
        ("Issuer", word(found, "issuer_key") or None),
        ("Name tag", word(found, "name_tag") or None),
        ("Tags", found.get("tags") or None),
    ]
    mapped = [
        (subject, _destination(item))
        for subject in fields(found, "mappings")
        for item in rows(found, "mappings", subject)
    ]
    imports, exports = rows(found, "imports"), rows(found, "exports")
    revoked = [(user, str(when)) for user, when in fields(found, "revoked_user").items()]
    return [
        ("Details", details),
        ("Mappings", _cut(mapped)),
        ("Imports", _cut([(word(item, "local_subject") or word(item, "to"), _from(item)) for item in imports])),
        ("Exports", _cut([(word(item, "subject"), word(item, "type")) for item in exports])),
        ("Revoked users", _cut(revoked)),
    ]


def _destination(item: Mapping[str, Any]) -> str:
    from penstock.system.fields import figure, word

    cluster = f" in cluster {word(item, 'cluster')}" if word(item, "cluster") else ""
    return f"{word(item, 'subject')}, {figure(item, 'weight')}%{cluster}"


def _from(item: Mapping[str, Any]) -> str:
    from penstock.system.fields import switch, word

    wrong = ", invalid" if switch(item, "invalid") else ""
    return f"{word(item, 'type')} {word(item, 'subject')} of {word(item, 'account')}{wrong}"


def _cut(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    more, pairs = len(pairs) - _SHOWN, [(plain(name), value) for name, value in pairs[:_SHOWN]]
    return [*pairs, ("…", f"{more:,} more; --json shows all")] if more > 0 else pairs
