"""NATS contexts and environment: where options come from when a program names no server.

A context is a file that the `nats` command and `penstock context` write (`penstock.context_files`). Options that the
`nats` command has no field for are in the field `penstock` of a context, by our names.

What wins, first to last:

1. the URL or the context that the caller names (both: the context, with the URL in place of its own);
2. `NATS_CONTEXT`, with `NATS_URL` in place of its URL if both are set;
3. `NATS_URL`;
4. the selected context;
5. the server that `penstock server run` runs for this user on this machine, if one does (`penstock.local_server`);
6. `nats://127.0.0.1:4222`.

A URL that the caller names is used alone: the login of a context is never sent to a server that the context does not
name, unless the caller, or the environment, names both. Other options that the caller gives win over what was found so;
a login wins whole, so a token that the caller gives takes the place of a context's credentials.

A secret, and the place of a secret, may also be written as a reference: `file://PATH`, `env://NAME` or
`data:;base64,CONTENT`, which `nats context add --embed` writes.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.context_files import (
    LAYOUT,
    context_folder,
    context_path,
    read_context,
    reason,
    selected_context,
)
from penstock.credentials import find_seed
from penstock.errors import ContextError, OptionError
from penstock.local_server import find_local_server
from penstock.options import DEFAULT_URL, MASK, ConnectionOptions, is_hidden, is_seed, is_text, mask_url

__all__ = [
    "change_context",
    "check_context",
    "context_colors",
    "context_folder",
    "embed_files",
    "load_context",
    "load_options",
    "mask_context",
    "resolve",
    "selected_context",
    "shared_form",
    "to_context",
    "used_context",
]

# A context's field, and our option for it.
_FIELDS = {
    "url": "url",
    "socks_proxy": "socks_proxy",
    "token": "token",
    "user": "user",
    "password": "password",
    "creds": "credentials",
    "nkey": "nkey",
    "user_jwt": "jwt",
    "user_seed": "nkey",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "tls_first": "tls_first",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "api_prefix",
    "jetstream_event_prefix": "event_prefix",
    "inbox_prefix": "inbox_prefix",
}
# Our options that a context has no field for, under the name of this one.
_OURS = "penstock"
_OWN = tuple(item.name for item in dataclasses.fields(ConnectionOptions) if item.name not in _FIELDS.values())
_PATHS = ("creds", "nkey", "cert", "key", "ca")
_REFERENCES = ("creds", "nkey", "user_jwt", "user_seed", "token", "password")
_MEND = "Mend it with `penstock context edit`, or remove it and add it anew."
# Fields that change how a connection is made, and that we cannot honour: ignoring one would surprise.
_REFUSED = {"nsc": "an nsc lookup", "windows_cert_store": "the certificate store of Windows"}
_NO_PROXY = ("none", "NONE", "-")


def _wrong(name: str | None, path: Path, what: str, remedy: str) -> ContextError:
    return ContextError(what, remedy=remedy, context=name, path=str(path))


def _path_of(name: str, environ: Mapping[str, str]) -> Path:
    if name.endswith(".json") or os.sep in name:
        return Path(_expand(name, environ)).expanduser()
    return context_path(name, environ)


def load_context(name: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read a context, by name or by the path of its file, as options by our names."""
    path = _path_of(name, environ)
    return _translate(read_context(path, name), name, path, environ)


def _translate(content: Mapping[str, Any], name: str, path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
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
        try:
            options[option] = _meant(field, option, value, environ)
        except OptionError as error:
            raise _wrong(name, path, f"The context {name!r} cannot be used: {error.what}", error.remedy) from None
    if content.get("nkey") and content.get("user_jwt"):
        what = f"The context {name!r} cannot be used: nkey and user_jwt are given together."
        raise _wrong(name, path, what, "The seed of a JWT is user_seed.")
    own = content.get(_OURS) or {}
    if not isinstance(own, dict) or own.keys() - set(_OWN):
        what = f"The context file {path} has a field {_OURS} that is not understood."
        raise _wrong(name, path, what, f"It may hold {', '.join(_OWN)}; other options have fields of their own.")
    return {**options, **own}


def _meant(field: str, option: str, value: Any, environ: Mapping[str, str]) -> Any:
    if field in _PATHS:
        value = _expand(value, environ)
    if field in ("cert", "key", "ca"):
        return _expand(_after_scheme(value, "file://") or value, environ)
    return resolve(value, option, environ) if field in _REFERENCES else value


def to_context(options: ConnectionOptions) -> dict[str, Any]:
    """Give the context that these options are read back from, every one of them, secrets included."""
    told = {option: field for field, option in reversed(_FIELDS.items())}  # of two fields for an option the first
    if options.jwt is not None:
        told["nkey"] = "user_seed"
    given = {told[option]: value for option in told if (value := getattr(options, option)) not in (None, False)}
    given |= {field: _embedded(given[field]) for field in _REFERENCES if _REFERENCE.match(given.get(field, ""))}
    return {**given, _OURS: {option: getattr(options, option) for option in _OWN}}


def _expand(path: str, environ: Mapping[str, str]) -> str:
    """Fill in the home folder and variables, as the `nats` command does; a variable that is not set stays as it is."""
    if is_text(path):
        return path
    path = re.sub(
        r"\$(?:(\w+)|\{(\w+)\})", lambda found: environ.get(found[1] or found[2], found[0]), path, flags=re.ASCII
    )
    return environ.get("HOME", "~") + path[1:] if path.startswith("~/") else path


# -- references to secrets --------------------------------------------------------------------------------------------


_REFERENCE = re.compile(r"(?i)(file|env|op|nsc)://|data:[^,]*;base64,")


def _embedded(content: str | bytes) -> str:
    return "data:;base64," + base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


def _after_scheme(value: str, scheme: str) -> str | None:
    return value[len(scheme) :] if value[: len(scheme)].lower() == scheme else None


def resolve(value: str, option: str, environ: Mapping[str, str] = os.environ) -> str:
    """Give what a secret refers to, or itself if it is not a reference; OptionError if that is not to be had."""
    if (path := _after_scheme(value, "file://")) is not None:
        return _from_file(_expand(path, environ), option)
    if (name := _after_scheme(value, "env://")) is not None:
        if not environ.get(name):
            raise _missing(option, f"the variable {name} is not set", "Set it.")
        return _secret_of(environ[name], option, f"the variable {name}")
    if (rest := _after_scheme(value, "data:")) is not None and ";base64," in rest:
        try:
            content = base64.b64decode(rest.partition(",")[2], validate=True).decode()
        except ValueError:
            raise _missing(option, "what is embedded there is not text in base64", _MEND) from None
        return _secret_of(content, option, "what is embedded there")
    for scheme, what in (("nsc://", "an nsc lookup"), ("op://", "an item of 1Password")):
        if _after_scheme(value, scheme) is not None:
            remedy = "Name a file, or put the secret into a variable and write env://NAME."
            raise OptionError(f"{option} is {what}, which is not supported.", remedy=remedy, option=option)
    return value


def _from_file(path: str, option: str) -> str:
    if option in ("credentials", "nkey", "jwt"):
        return path  # those may be given as paths
    try:
        content = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _missing(option, f"file {path} cannot be read: {reason(error)}", "Check the path.") from None
    return _secret_of(content, option, f"file {path}")


def _secret_of(content: str, option: str, place: str) -> str:
    """Give the secret in a text; it must be whole, or it would be taken for the path of a file."""
    content = content.strip("\r\n")
    if option == "nkey":
        content = find_seed(content)
    wrong = {"credentials": not is_text(content), "nkey": not is_seed(content), "jwt": not is_hidden(content)}
    if not content or wrong.get(option):
        raise _missing(option, f"{place} holds no {option}", "Put it there whole.")
    return content


def _missing(option: str, what: str, remedy: str) -> OptionError:
    return OptionError(f"{option} cannot be found: {what}.", remedy=remedy, option=option)


# -- finding options --------------------------------------------------------------------------------------------------


def used_context(
    url: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    no_context: bool = False,
) -> str | None:
    """Name the context that options are taken from, in the order that the module's head gives; None if from none."""
    if no_context:
        return None
    if context or url is not None:
        return context or None
    return environ.get("NATS_CONTEXT") or (None if environ.get("NATS_URL") else selected_context(environ))


def load_options(
    url: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    no_context: bool = False,
    **changes: Any,
) -> ConnectionOptions:
    """Find the options to connect with, in the order that the module's head gives; `changes` win over all of it.

    `no_context`: neither `NATS_CONTEXT` nor the selected context counts, nor a server that runs for this user.
    """
    changes = {name: value for name, value in changes.items() if value not in (None, "")}
    named, around = used_context(url, context, environ, no_context=no_context), {}
    if url is not None:
        changes["url"] = url
    elif not context and environ.get("NATS_URL"):
        # An address in the environment never takes the place of a context that is named here.
        around = {"url": environ["NATS_URL"]}
    if (
        named is None
        and not changes.get("url")
        and not around
        and not no_context
        and (here := find_local_server(environ))
    ):
        named = str(here)
    found = load_context(named, environ) if named else {"url": DEFAULT_URL}
    if changes.get("socks_proxy") in _NO_PROXY:
        found.pop("socks_proxy", None)
        del changes["socks_proxy"]
    try:
        return ConnectionOptions(**_over(_over(found, around), changes))
    except OptionError:
        if named:
            _check_alone(named, found, environ)
        raise


# Options of one meaning: if the caller gives one, those of the context go, or two logins would contradict.
_LOGIN = {"token", "user", "password", "nkey", "jwt", "credentials"}
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


def _check_alone(name: str, found: dict[str, Any], environ: Mapping[str, str]) -> ConnectionOptions:
    """Blame the context if it cannot be used even by itself."""
    try:
        return ConnectionOptions(**found)
    except OptionError as error:
        what = f"The context {name!r} cannot be used: {error.what}"
        raise _wrong(name, _path_of(name, environ), what, error.remedy) from None


# -- making contexts --------------------------------------------------------------------------------------------------

# The ways to log in, by the fields of a context: one takes the place of another whole.
_WAYS = ({"token"}, {"user", "password"}, {"creds"}, {"nkey"}, {"user_jwt", "user_seed"}, {"nsc"})


def check_context(name: str, fields: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ConnectionOptions:
    """Give the options that a context means; ContextError if nobody can connect with it."""
    return _check_alone(name, _translate(fields, name, _path_of(name, environ), environ), environ)


def change_context(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Give a context with some of its fields changed; an empty value takes one back.

    A login takes the place of another one whole, a domain that of a prefix; fields that we do not know stay.
    """
    found, given = dict(fields), {field for field, value in changes.items() if value}
    in_url = _lifted({"url": changes["url"]}) if changes.get("url") else {}
    given |= {"token"} if "token" in in_url else {"user"} if "user" in in_url else set()
    if any(way & given for way in _WAYS):
        for field in set().union(*(way for way in _WAYS if not way & given)):
            found.pop(field, None)
        for field in {"token", "user", "password"} & in_url.keys():
            found.pop(field, None)
    for one, other in (("jetstream_domain", "jetstream_api_prefix"), ("jetstream_api_prefix", "jetstream_domain")):
        if one in given:
            found.pop(other, None)
    found |= changes
    if found.get("socks_proxy") in _NO_PROXY:
        found["socks_proxy"] = ""
    return found


def shared_form(field: str, value: Any) -> Any:
    """Give a field's value as the `nats` command reads it from anywhere: whole paths, and references if it has none.

    That command takes user_jwt and user_seed for the text itself, and nkey and creds for the path of a file.
    """
    if field not in ("creds", "nkey", "user_jwt", "user_seed", "cert", "key", "ca") or not value:
        return value
    if _REFERENCE.match(value) or value.startswith(("~", "$")):
        return value
    if is_hidden(value):
        return _embedded(value) if field in ("creds", "nkey") and (is_text(value) or is_seed(value)) else value
    return f"{'file://' if field.startswith('user_') else ''}{os.path.abspath(value)}"


def embed_files(fields: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Give a context with the content of its login's files in the place of their paths."""
    found = dict(fields)
    for field in ("creds", "nkey", "user_jwt", "user_seed"):
        value = found.get(field)
        if not isinstance(value, str) or not value or is_hidden(value):
            continue
        if _REFERENCE.match(value) and _after_scheme(value, "file://") is None:
            continue
        path = _expand(_after_scheme(value, "file://") or value, environ)
        try:
            content = Path(path).expanduser().read_bytes()
        except (OSError, ValueError) as error:
            raise _missing(_FIELDS[field], f"file {path} cannot be read: {reason(error)}", "Check the path.") from None
        found[field] = _embedded(content)
    return found


def mask_context(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of a context as they may be shown: all of the `nats` command's, and ours, without secrets."""
    shown = {field: empty if fields.get(field) is None else fields[field] for field, empty in LAYOUT.items()}
    for field, value in shown.items():
        if isinstance(value, str):
            shown[field] = _shown(field, value) if isinstance(LAYOUT[field], str) else MASK
        elif not isinstance(value, list if LAYOUT[field] is None else type(LAYOUT[field])) and value is not None:
            shown[field] = MASK  # of a wrong kind: it may be anything
    if isinstance(fields.get(_OURS), dict):
        shown[_OURS] = {option: value for option, value in fields[_OURS].items() if option in _OWN}
    return shown


def _shown(field: str, value: str) -> str:
    if field not in _REFERENCES:
        return MASK if is_text(value) else mask_url(value)
    if not value or (_REFERENCE.match(value) and not value.lower().startswith("data:")):
        return value
    return MASK if field in ("token", "password") or is_hidden(value) else mask_url(value)


def context_colors(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Tell in which look a context wants tables to be drawn, if it says so."""
    try:
        found = read_context(_path_of(name, environ), name).get("color_scheme")
    except ContextError:
        return None  # whoever connects with it is told
    return found if isinstance(found, str) else None
