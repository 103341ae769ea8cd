"""A context for people: every setting that it has, whether its files are there, and no secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.output import print_pairs
from penstock.errors import ContextError, InputError

if TYPE_CHECKING:
    import typer

__all__ = ["connection_row", "problem_of", "show_context", "tell_environment"]

_LABELS = {
    "description": "Description",
    "url": "Server URLs",
    "socks_proxy": "SOCKS5 Proxy",
    "user": "Username",
    "password": "Password",
    "token": "Token",
    "creds": "Credentials",
    "user_jwt": "User JWT",
    "user_seed": "User Seed",
    "nkey": "NKey",
    "nsc": "NSC Lookup",
    "cert": "Certificate",
    "key": "Key",
    "ca": "CA",
    "tls_first": "TLS First",
    "windows_cert_store": "Certificate Store",
    "jetstream_domain": "JS Domain",
    "jetstream_api_prefix": "JS API Prefix",
    "jetstream_event_prefix": "JS Event Prefix",
    "inbox_prefix": "Inbox Prefix",
    "color_scheme": "Color Scheme",
}
_FILES = ("creds", "nkey", "user_jwt", "user_seed", "cert", "key", "ca")
# Variables that have a say in a connection, behind NATS_.
_OVERRIDE = ("URL", "CONTEXT", "USER", "PASSWORD", "TOKEN", "CREDS", "NKEY", "JWT", "SEED", "CERT", "KEY", "CA")
_OTHERS = ("TIMEOUT", "SOCKS_PROXY", "COLOR", "DOMAIN")


def show_context(name: str, fields: Mapping[str, Any], path: Path, connection: str | None = None) -> None:
    """Show a context: its settings, those that we do not know by name, what is wrong with it, and where it is."""
    from penstock.context_files import LAYOUT
    from penstock.contexts import mask_context
    from penstock.options import DEFAULT_URL, MASK

    shown = mask_context({**fields, "url": fields.get("url") or DEFAULT_URL})
    rows = []
    for field, label in _LABELS.items():
        value = shown[field]
        if field in _FILES and value == MASK:
            value = "embedded"
        elif field in _FILES and value:
            value = f"{value} ({_state(value)})"
        rows.append((label, value or None))
    ours = shown.get("penstock") or {}
    rows += [(option, value) for option, value in ours.items() if value is not None]
    others = [field for field in fields if field not in LAYOUT and field not in ("name", "penstock")]
    rows += [
        ("Other Settings", others or None),
        ("Selected", True if _is_selected(name) else None),
        ("Path", path),
        ("Problem", problem_of(name, fields)),
        ("Connection", connection),
    ]
    print_pairs(f"NATS context {name}", rows)


def _is_selected(name: str) -> bool:
    from penstock.context_files import selected_context

    try:
        return selected_context() == name
    except ContextError:  # whoever needs the selected one is told
        return False


def _state(value: str) -> str:
    scheme, mark, rest = value.partition("://")
    if mark and scheme.lower() != "file":
        return {"env": "a variable"}.get(scheme.lower(), "not supported here")
    path = os.path.expanduser(os.path.expandvars(rest if mark else value))
    try:
        return "found" if os.access(path, os.R_OK) and os.path.isfile(path) else "missing"
    except ValueError:  # a zero byte, or what is not text
        return "missing"


def problem_of(name: str, fields: Mapping[str, Any]) -> str | None:
    """Say why nobody can connect with a context; None if, as far as its files tell, one can."""
    from penstock.contexts import check_context
    from penstock.credentials import check

    try:
        check(check_context(name, fields))
    except InputError as error:
        return str(error)
    return None


async def connection_row(ctx: typer.Context, name: str, fields: Mapping[str, Any]) -> str:
    """Connect with a context, and say to which server; raises why that failed."""
    from penstock.connection import connect
    from penstock.contexts import check_context
    from penstock.credentials import check

    options = check_context(name, fields)
    check(options)
    seconds = ctx.obj.seconds
    client = await connect(
        options.replace(name="penstock command", connect_timeout=seconds, request_timeout=seconds, reconnect=False)
    )
    try:
        return f"OK, {client.server_info.get('server_name')} {client.connected_server_version}"
    finally:
        await client.close()


def tell_environment() -> None:
    """Say which variables count beside contexts."""
    found = [f"NATS_{name}" for name in (*_OVERRIDE, *_OTHERS) if os.environ.get(f"NATS_{name}")]
    if found:
        typer.echo(f"These variables of the environment count, too: {', '.join(found)}.", err=True)
