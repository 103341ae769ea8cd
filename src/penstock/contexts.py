"""NATS contexts and environment: where options come from when a program names no server.

A context is a JSON file that the `nats` command writes, `NAME.json` in `$XDG_CONFIG_HOME/nats/context` (ADR-21); the
selected one is named in `$XDG_CONFIG_HOME/nats/context.txt`. We read them and never write them.

What wins, first to last:

1. the URL or the context that the caller names (both: the context, with the URL in place of its own);
2. `NATS_CONTEXT`, with `NATS_URL` in place of its URL where both are set;
3. `NATS_URL`;
4. the selected context;
5. `nats://127.0.0.1:4222`.

A URL that the caller names is used alone: the login of a context is never sent to a server that the context does not
name, unless the caller names both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ContextError
from penstock.options import DEFAULT_URL, ConnectionOptions

__all__ = ["context_folder", "load_context", "load_options", "selected_context"]

# A context's field, and our option for it.
_FIELDS = {
    "url": "url",
    "token": "token",
    "user": "user",
    "password": "password",
    "creds": "credentials",
    "nkey": "nkey",
    "user_seed": "nkey",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "tls_first": "tls_first",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "api_prefix",
    "inbox_prefix": "inbox_prefix",
}
_PATHS = ("creds", "nkey", "cert", "key", "ca")
# Fields that change how a connection is made, and that we cannot honour: ignoring one would surprise.
_REFUSED = {"socks_proxy": "a SOCKS proxy", "nsc": "an nsc lookup", "user_jwt": "a bare JWT"}


def context_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Tell where context files live."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "nats" / "context"


def selected_context(environ: Mapping[str, str] = os.environ) -> str | None:
    """Tell which context `nats context select` chose, if any."""
    path = context_folder(environ).parent / "context.txt"
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ContextError(
            f"The file {path} that names the selected context cannot be read: {error}.",
            remedy="Mend or remove it, or name a server with --server or NATS_URL.",
            path=str(path),
        ) from error


def load_context(name: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read a context, by name or by the path of its file, as options by our names."""
    path = Path(name).expanduser() if name.endswith(".json") or os.sep in name else context_folder(environ) / f"{name}.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        known = sorted(item.stem for item in path.parent.glob("*.json"))
        remedy = f"Known contexts: {', '.join(known)}." if known else f"There are no contexts in {path.parent}."
        raise ContextError(f"There is no context {name!r}.", remedy=remedy, context=name, path=str(path)) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ContextError(
            f"The context file {path} cannot be read: {error}.",
            remedy="Mend it, or write it anew with `nats context add`.",
            context=name,
            path=str(path),
        ) from None
    if not isinstance(content, dict):
        raise ContextError(
            f"The context file {path} holds no JSON object.",
            remedy="Write it anew with `nats context add`.",
            context=name,
            path=str(path),
        )
    return _translate(content, name, path, environ)


def _translate(content: dict[str, Any], name: str, path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    for field, meaning in _REFUSED.items():
        if content.get(field):
            raise ContextError(
                f"The context {name!r} asks for {meaning} ({field}), which is not supported.",
                remedy="Use a context with creds, nkey, token or user and password.",
                context=name,
                path=str(path),
            )
    options: dict[str, Any] = {}
    for field, option in _FIELDS.items():
        value = content.get(field)
        if value in (None, "", False):
            continue
        if not isinstance(value, bool if field == "tls_first" else str):
            raise ContextError(
                f"The context file {path} has a {field} that is no {'boolean' if field == 'tls_first' else 'text'}.",
                remedy="Mend it, or write it anew with `nats context add`.",
                context=name,
                path=str(path),
            )
        if field in _PATHS and isinstance(value, str):
            value = _expand(value, environ)
        options[option] = value
    return options


def _expand(path: str, environ: Mapping[str, str]) -> str:
    return environ.get("HOME", "~") + path[1:] if path.startswith("~/") else path


def load_options(
    url: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    **changes: Any,
) -> ConnectionOptions:
    """Find the options to connect with, in the order that the module's head gives; `changes` win over all of it."""
    if url is not None:
        found = {**load_context(context, environ), "url": url} if context else {"url": url}
    elif context := context or environ.get("NATS_CONTEXT"):
        found = load_context(context, environ)
        if environ.get("NATS_URL"):
            found["url"] = environ["NATS_URL"]
    elif environ.get("NATS_URL"):
        found = {"url": environ["NATS_URL"]}
    elif chosen := selected_context(environ):
        found = load_context(chosen, environ)
    else:
        found = {"url": DEFAULT_URL}
    changes = {name: value for name, value in changes.items() if value is not None}
    return ConnectionOptions(**{**found, **changes})
