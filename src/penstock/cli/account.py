"""`account info` and `account tls`: who we are to the server, what we may do, and how we are connected."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_show import size_limit
from penstock.cli.flags import Json, flag
from penstock.cli.output import local, print_json, print_sections
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.durations import format_duration, parse_duration
from penstock.errors import (
    DeadlineError,
    DeniedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
)
from penstock.sizes import format_size
from penstock.wire.jetstream.answers import number, part, texts

if TYPE_CHECKING:
    from penstock.cli.output import Rows
    from penstock.connection import Connection

__all__ = ["info", "tls"]

_NAMES = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
_LONGEST_CHAIN = 10
# What says that something is not to be known, and not that the connection is gone.
_UNKNOWN = (DeniedError, DeadlineError, JetStreamError, RemoteProtocolError)


async def info(ctx: typer.Context, json: Json = False) -> None:
    """Show user, account, permissions, the connection, and what JetStream allows and holds."""
    from penstock.account import user_info
    from penstock.connection import api_request

    user: dict[str, Any] | None = None
    account: dict[str, Any] | None = None
    problems: dict[str, str] = {}
    async with connected(ctx) as client:
        seconds = await client.rtt()
        try:
            user = await user_info(client)
        except _UNKNOWN as error:
            problems["user"] = _problem(error)
        try:
            account = await api_request(client, "INFO")
        except _UNKNOWN as error:
            problems["jetstream"] = _problem(error)
        connection = _connection_facts(client, seconds)
    if json:
        print_json({"user": user, "connection": connection, "jetstream": account, "problems": problems})
        return
    print_sections(
        "Account information",
        [
            ("", _user_rows(user, problems.get("user"))),
            ("Connection", _connection_rows(connection)),
            *_permission_sections(user or {}),
            *_jetstream_sections(account, problems.get("jetstream"), connection),
        ],
    )


def _problem(error: PenstockError) -> str:
    """Say why something is not known: what is denied, or not there."""
    if isinstance(error, DeniedError):
        return f"not known: we may not {error.operation} to {error.subject}"
    if isinstance(error, NoRespondersError):
        return "not there: nobody answers"
    return f"not known: {error.what}"


def _connection_facts(client: Connection, seconds: float) -> dict[str, Any]:
    about, secured = client.server_info, client.ssl_object
    names = ("client_id", "client_ip", "headers", "max_payload", "server_id", "server_name", "version", "cluster")
    facts = {name: about[name] for name in names if about.get(name) is not None}
    facts |= {"url": client.connected_url, "host": about.get("host"), "port": about.get("port"), "rtt": seconds}
    if secured is not None:
        cipher = secured.cipher()
        facts["tls"] = {
            "version": secured.version(),
            "cipher": cipher[0] if cipher else None,
            "server_name": secured.server_hostname,
            "issuer": _name((secured.getpeercert() or {}).get("issuer", ())),
        }
    return facts


def _user_rows(user: Mapping[str, Any] | None, problem: str | None) -> Rows:
    if user is None:
        return [("User", problem)]
    left = round(number(user, "expires", 0) / 1e9)
    known = f"{local(datetime.now(UTC) + timedelta(seconds=left))}, in {format_duration(left)}" if left else "never"
    return [
        ("User", _both(user.get("user_name"), user.get("user"))),
        ("Account", _both(user.get("account_name"), user.get("account"))),
        ("Expires", known),
    ]


def _both(name: object, key: object) -> str | None:
    shown = [str(item) for item in (name, key) if item]
    return f"{shown[0]} ({shown[1]})" if len(set(shown)) == 2 else shown[0] if shown else None


def _connection_rows(facts: Mapping[str, Any]) -> Rows:
    secured = facts.get("tls")
    return [
        ("Client ID", str(facts.get("client_id"))),
        ("Client IP", facts.get("client_ip")),
        ("Round Trip", format_duration(round(facts["rtt"], 6))),
        ("Headers Supported", bool(facts.get("headers"))),
        ("Maximum Payload", format_size(facts.get("max_payload") or 0)),
        ("Cluster", facts.get("cluster")),
        ("Server URL", facts["url"]),
        ("Server Host", f"{facts.get('host')}:{facts.get('port')}"),
        ("Server Name", facts.get("server_name")),
        ("Server ID", facts.get("server_id")),
        ("Server Version", facts.get("version")),
        ("TLS", f"{secured['version']} using {secured['cipher']}" if secured else "no"),
        ("TLS Server Name", secured["server_name"] if secured else None),
        ("TLS Verified", f"issuer {secured['issuer']}" if secured else None),
    ]


def _permission_sections(user: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    permissions = user.get("permissions")
    sections: list[tuple[str, Rows]] = []
    for verb in ("publish", "subscribe"):
        about = permissions.get(verb) if isinstance(permissions, dict) else None
        if isinstance(about, dict):
            lists = [(word.capitalize(), sorted(texts(about, word))) for word in ("allow", "deny")]
            sections.append((f"May {verb}", [(word, subjects or None) for word, subjects in lists]))
    answers = permissions.get("responses") if isinstance(permissions, dict) else None
    if isinstance(answers, dict):
        most, within = number(answers, "max", -1, least=-1), number(answers, "ttl", 0) / 1e9
        sections.append(("May answer", [("Messages", most), ("Within", format_duration(within) if within else None)]))
    return sections


# -- JetStream --------------------------------------------------------------------------------------------------------


def _jetstream_sections(
    account: Mapping[str, Any] | None, problem: str | None, connection: Mapping[str, Any]
) -> list[tuple[str, Rows]]:
    if account is None:
        return [("JetStream", [("JetStream", problem)])]
    api = part(account, "api") if account.get("api") else {}
    sections: list[tuple[str, Rows]] = [
        (
            "JetStream",
            [
                ("Domain", account.get("domain") or None),
                ("API Level", number(api, "level", 0)),
                ("API Requests", number(api, "total", 0)),
                ("API Errors", number(api, "errors", 0)),
                ("Storage", format_size(number(account, "storage", 0))),
                ("Memory", format_size(number(account, "memory", 0))),
                ("Streams", number(account, "streams", 0)),
                ("Consumers", number(account, "consumers", 0)),
                ("Max Message Payload", format_size(connection.get("max_payload") or 0)),
            ],
        )
    ]
    tiers = part(account, "tiers") if account.get("tiers") else {"Default": account}
    return sections + [(f"Tier {plain(name)}", _tier_rows(part(tiers, name))) for name in sorted(tiers)]


def _tier_rows(tier: Mapping[str, Any]) -> Rows:
    limits = part(tier, "limits") if tier.get("limits") else {}

    def most(name: str) -> int:
        return number(limits, name, -1, least=-1)

    def used(what: str) -> str:
        kept, bound = number(tier, f"reserved_{what}", 0), most(f"max_{what}")
        text = f"{format_size(number(tier, what, 0))} of {'unlimited' if bound < 0 else format_size(bound)}"
        return f"{text} ({format_size(kept)} reserved)" if kept else text

    streams, consumers, acks = most("max_streams"), most("max_consumers"), most("max_ack_pending")
    return [
        ("Memory", used("memory")),
        ("Memory Per Stream", size_limit(most("memory_max_stream_bytes"))),
        ("Storage", used("storage")),
        ("Storage Per Stream", size_limit(most("storage_max_stream_bytes"))),
        ("Streams", f"{number(tier, 'streams', 0):,} of {'unlimited' if streams < 0 else f'{streams:,}'}"),
        ("Consumers", "unlimited" if consumers < 0 else f"at most {consumers:,} per stream"),
        ("Ack Pending", "unlimited" if acks <= 0 else f"at most {acks:,} per consumer"),
        ("Stream Needs Max Bytes", bool(limits.get("max_bytes_required"))),
    ]


# -- certificates -----------------------------------------------------------------------------------------------------


async def tls(
    ctx: typer.Context,
    expire_warn: Annotated[str, flag("Fail if a certificate ends within this time; 0s for never.", "DURATION")] = "1w",
    ocsp: Annotated[bool, flag("Refused: what a server staples of OCSP cannot be read here.")] = False,
    pem: Annotated[bool, flag("Show the certificates as PEM, too.")] = True,
) -> None:
    """Show the server's certificate and the authorities that vouch for it; exit status 1 if one ends soon."""
    soon = parse_duration(expire_warn, option="--expire-warn")
    if ocsp:
        remedy = "Leave --ocsp out, or ask the server's monitoring port."
        raise InputError("What a server staples of OCSP cannot be read here.", remedy=remedy)
    async with connected(ctx) as client:
        secured = client.ssl_object
        if secured is None:
            what = f"The connection to {client.connected_url} has no TLS."
            raise TlsError(what, remedy="Connect with a tls:// address.", urls=client.options.urls)
        chain = _chain(secured)
    typer.echo(plain(f"# {secured.version()} with {(secured.cipher() or ('?',))[0]}, for {secured.server_hostname}"))
    ending = [
        subject
        for place, (about, content) in enumerate(chain, 1)
        if (subject := _show(place, about, content, pem, soon))
    ]
    if ending:
        typer.echo(plain(f"penstock: A certificate ends within {expire_warn}: {', '.join(ending)}."), err=True)
        raise typer.Exit(1)


def _chain(secured: ssl.SSLObject) -> list[tuple[dict[str, Any], bytes]]:
    """Give the server's certificate, and those of trusted authorities above it as far as they are known."""
    about, content = secured.getpeercert(), secured.getpeercert(binary_form=True)
    if not about or content is None:
        raise TlsError("The server's certificate was not verified.", remedy="Connect with a tls:// address.")
    chain: list[tuple[dict[str, Any], bytes]] = [(about, content)]
    trusted = list(zip(secured.context.get_ca_certs(), secured.context.get_ca_certs(binary_form=True), strict=True))
    while len(chain) < _LONGEST_CHAIN and (issuer := chain[-1][0].get("issuer")) != chain[-1][0].get("subject"):
        above = next(((item, binary) for item, binary in trusted if item.get("subject") == issuer), None)
        if above is None:
            break
        chain.append(above)
    return chain


def _show(place: int, about: Mapping[str, Any], content: bytes, pem: bool, soon: float) -> str | None:
    """Show one certificate, and give its subject if it ends too soon."""
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(about["notAfter"]), UTC)
    subject = _name(about.get("subject", ()))
    lines = [f"# certificate {place}: {subject}", f"#   Issuer: {_name(about.get('issuer', ()))}"]
    left = (ends - datetime.now(UTC)).total_seconds()
    lines.append(f"#   Expiration: {ends.isoformat()}, in {format_duration(max(round(left), 0))}")
    kinds: dict[str, list[str]] = {}
    for kind, value in about.get("subjectAltName", ()):
        kinds.setdefault(str(kind), []).append(str(value))
    lines += [f"#   SAN {kind}: {', '.join(values)}" for kind, values in kinds.items()]
    lines.append(f"#   Serial: {about.get('serialNumber')}")
    typer.echo("\n".join(["", *map(plain, lines)]))
    if pem:
        typer.echo(ssl.DER_cert_to_PEM_cert(content), nl=False)
    return subject if left < soon else None


def _name(parts: Any) -> str:
    pairs = [pair for part in parts for pair in part]
    return ",".join(f"{_NAMES.get(str(kind), kind)}={value}" for kind, value in pairs)
