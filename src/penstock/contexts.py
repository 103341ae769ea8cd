"""NATS contexts and environment: where options come from when a program names no server.

A context is a JSON file that the `nats` command writes, `NAME.json` in `$XDG_CONFIG_HOME/nats/context`
(ADR-21); the selected one is named in `$XDG_CONFIG_HOME/nats/context.txt`. We read them, and write none of the
user's: `to_context` gives one to a child of ours. Options that the `nats` command has no field for are in the field
`penstock` of a context, by our names.

What wins, first to last:

1. the URL or the context that the caller names (both: the context, with the URL in place of its own);
2. `NATS_CONTEXT`, with `NATS_URL` in place of its URL where both are set;
3. `NATS_URL`;
4. the selected context;
5. `nats://127.0.0.1:4222`.

A URL that the caller names is used alone: the login of a context is never sent to a server that the context does not
name, unless the caller, or the environment, names both. Other options that the caller gives win over what was found so;
a login wins whole, so a token that the caller gives takes the place of a context's credentials.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ContextError, OptionError
from penstock.options import DEFAULT_URL, ConnectionOptions

__all__ = ["context_folder", "load_context", "load_options", "selected_context", "to_context"]

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
# Our options that a context has no field for, under the name of this one.
_OURS = "penstock"
_OWN = tuple(item.name for item in dataclasses.fields(ConnectionOptions) if item.name not in _FIELDS.values())
_PATHS = ("creds", "nkey", "cert", "key", "ca")
_MEND = "Mend it, or write it anew with `nats context add`."
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
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        what = f"The file {path} that names the selected context cannot be read: {_reason(error)}."
        raise _wrong(None, path, what, "Mend or remove it, or name a server with --server or NATS_URL.") from None


def _wrong(name: str | None, path: Path, what: str, remedy: str) -> ContextError:
    return ContextError(what, remedy=remedy, context=name, path=str(path))


def _context_path(name: str, environ: Mapping[str, str]) -> Path:
    if name.endswith(".json") or os.sep in name:
        return Path(_expand(name, environ)).expanduser()
    return context_folder(environ) / f"{name}.json"


def load_context(name: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read a context, by name or by the path of its file, as options by our names."""
    path = _context_path(name, environ)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(item.stem for item in path.parent.glob("*.json"))
        remedy = f"Known contexts: {', '.join(known)}." if known else f"There are no contexts in {path.parent}."
        raise _wrong(name, path, f"There is no context {name!r}.", remedy) from None
    except (OSError, ValueError, RecursionError) as error:
        what = f"The context file {path} cannot be read: {_reason(error)}."
        raise _wrong(name, path, what, _MEND) from None
    if not isinstance(content, dict):
        what = f"The context file {path} holds no JSON object."
        raise _wrong(name, path, what, "Write it anew with `nats context add`.")
    return _translate(content, name, path, environ)


def _translate(content: dict[str, Any], name: str, path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    for field, meaning in _REFUSED.items():
        if content.get(field):
            what = f"The context {name!r} asks for {meaning} ({field}), which is not supported."
            raise _wrong(name, path, what, "Use a context with creds, nkey, token or user and password.")
    options: dict[str, Any] = {}
    for field, option in _FIELDS.items():
        value = content.get(field)
        if value in (None, "", False):
            continue
        if not isinstance(value, bool if field == "tls_first" else str):
            raise _wrong(name, path, f"The context file {path} has a {field} of the wrong type.", _MEND)
        options[option] = _expand(value, environ) if field in _PATHS and isinstance(value, str) else value
    own = content.get(_OURS) or {}
    if not isinstance(own, dict) or own.keys() - set(_OWN):
        what = f"The context file {path} has a field {_OURS} that is not understood."
        raise _wrong(name, path, what, f"It may hold {', '.join(_OWN)}; other options have fields of their own.")
    return {**options, **own}


def to_context(options: ConnectionOptions) -> dict[str, Any]:
    """Give the context that these options are read back from, every one of them, secrets included."""
    told = {option: field for field, option in reversed(_FIELDS.items())}  # of two fields for an option the first
    given = {told[option]: value for option in told if (value := getattr(options, option)) not in (None, False)}
    return {**given, _OURS: {option: getattr(options, option) for option in _OWN}}


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _expand(path: str, environ: Mapping[str, str]) -> str:
    return environ.get("HOME", "~") + path[1:] if path.startswith("~/") else path


def load_options(
    url: str | None = None, *, context: str | None = None, environ: Mapping[str, str] = os.environ, **changes: Any
) -> ConnectionOptions:
    """Find the options to connect with, in the order that the module's head gives; `changes` win over all of it."""
    changes = {name: value for name, value in changes.items() if value not in (None, "")}
    named, around = context, {}
    if url is not None:
        changes["url"] = url
    elif not context:  # an address in the environment never takes the place of a context that is named here
        around = {"url": environ["NATS_URL"]} if environ.get("NATS_URL") else {}
        named = environ.get("NATS_CONTEXT") or (None if around else selected_context(environ))
    found = load_context(named, environ) if named else {"url": DEFAULT_URL}
    try:
        return ConnectionOptions(**_over(_over(found, around), changes))
    except OptionError:
        if named:
            _check_alone(named, found, environ)
        raise


# Options of one meaning: where the caller gives one, those of the context go, or two logins would contradict.
_LOGIN = {"token", "user", "password", "nkey", "credentials"}
_RIVALS = {
    **dict.fromkeys(_LOGIN, _LOGIN),
    "password": _LOGIN - {"user"},
    "domain": {"api_prefix"},
    "api_prefix": {"domain"},
}


def _over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Lay some options over others; logins in URLs count like those given apart."""
    lower, upper = _lifted(lower), _lifted(upper)
    gone = {rival for name in upper for rival in _RIVALS.get(name, ())}
    return {**{name: value for name, value in lower.items() if name not in gone}, **upper}


def _lifted(found: dict[str, Any]) -> dict[str, Any]:
    if "url" not in found:
        return found
    alone = ConnectionOptions(url=found["url"])
    login = {name: value for name in ("token", "user", "password") if (value := getattr(alone, name)) is not None}
    for name, value in login.items():
        if found.get(name, value) != value:
            ConnectionOptions(**found)  # tells the contradiction
    return {**found, **login, "url": alone.url}


def _check_alone(name: str, found: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Blame the context where it cannot be used even by itself."""
    try:
        ConnectionOptions(**found)
    except OptionError as error:
        what = f"The context {name!r} cannot be used: {error.what}"
        raise _wrong(name, _context_path(name, environ), what, error.remedy) from None
