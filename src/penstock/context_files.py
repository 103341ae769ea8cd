"""The files of NATS contexts, as the `nats` command reads and writes them (ADR-21).

::

    $XDG_CONFIG_HOME/nats/context/NAME.json     a context: a JSON object
    $XDG_CONFIG_HOME/nats/context.txt           the name of the selected one
    $XDG_CONFIG_HOME/nats/previous-context.txt  the name of the one that was selected before

Each is replaced in one step, so that whoever reads sees the old file or the new one, and only its owner may read it.
What the fields mean is `penstock.contexts`' affair; those that nobody here knows are kept as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ContextError
from penstock.json_text import load_json
from penstock.part_file import write_whole

__all__ = [
    "LAYOUT",
    "MOST",
    "check_name",
    "context_bytes",
    "context_folder",
    "context_path",
    "known_contexts",
    "parse_context",
    "previous_context",
    "read_context",
    "reason",
    "remove_context",
    "replace_file",
    "select_context",
    "selected_context",
    "to_bytes",
    "unselect_context",
    "write_context",
]

LAYOUT: Mapping[str, Any] = {
    **dict.fromkeys(("description", "url", "socks_proxy", "token", "user", "password", "creds", "nkey"), ""),
    **dict.fromkeys(("cert", "key", "ca", "nsc", "jetstream_domain", "jetstream_api_prefix"), ""),
    **dict.fromkeys(("jetstream_event_prefix", "inbox_prefix", "user_jwt", "user_seed", "color_scheme"), ""),
    "tls_first": False,
    **dict.fromkeys(("windows_cert_store", "windows_cert_match_by", "windows_cert_match"), ""),
    "windows_ca_certs_match": None,
}
"""The fields of the `nats` command, in its order, and what it writes for one that says nothing."""

MOST = 1024 * 1024
"""Bytes of a context that are read."""
_MEND = "Mend it with `penstock context edit`, or remove it and add it anew."
# What Go's encoder escapes and Python's does not.
_GO = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def context_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Tell where context files live."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "nats" / "context"


def context_path(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Tell where the context of this name is, or would be; ContextError if no context can have it."""
    check_name(name)
    return context_folder(environ) / f"{name}.json"


def check_name(name: str) -> None:
    """Refuse a name that cannot be that of a file: it must stay in the folder, and be seen as it is."""
    wrong = not name or ".." in name or re.search(r"[/\\]", name) or not name.isprintable()
    if wrong or name.endswith(".json") or len(name.encode("utf-8", "replace")) > 200:
        raise ContextError(
            f"{name!r} cannot be the name of a context.",
            remedy="Use up to 200 bytes of letters, digits, - and _, without / and .., and without .json at the end.",
            context=name,
        )


def known_contexts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Give the names of all contexts, sorted; files that are empty or have another kind of name are none."""
    folder = context_folder(environ)
    names = []
    try:
        for item in folder.iterdir():
            if item.suffix == ".json" and item.is_file() and item.stat().st_size:
                with contextlib.suppress(ContextError):
                    check_name(item.stem)
                    names.append(item.stem)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _wrong(None, folder, f"The folder {folder} cannot be read: {reason(error)}.", "Check it.") from None
    return sorted(names)


# -- contexts ---------------------------------------------------------------------------------------------------------


def read_context(path: Path, name: str) -> dict[str, Any]:
    """Read the fields of a context as they are."""
    return parse_context(context_bytes(path, name), path, name)


def context_bytes(path: Path, name: str) -> bytes:
    """Read the file of a context, whatever it holds."""
    try:
        with path.open("rb") as file:
            return file.read(MOST + 1)
    except FileNotFoundError:
        known = sorted(item.stem for item in path.parent.glob("*.json"))
        remedy = f"Known contexts: {', '.join(known)}." if known else f"There are no contexts in {path.parent}."
        raise _wrong(name, path, f"There is no context {name!r}.", remedy) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        what = f"The context file {path} cannot be read: {reason(error)}."
        raise _wrong(name, path, what, "Check the file.") from None


def parse_context(content: bytes, path: Path, name: str) -> dict[str, Any]:
    """Read a context from the content of its file."""
    try:
        if len(content) > MOST:
            raise ValueError(f"it has more than {MOST:,} bytes")
        fields = load_json(content.decode("utf-8"))
    except ValueError as error:
        raise _wrong(name, path, f"The context file {path} cannot be read: {reason(error)}.", _MEND) from None
    if not isinstance(fields, dict):
        what = f"The context file {path} holds no JSON object."
        raise _wrong(name, path, what, _MEND)
    return fields


def write_context(name: str, fields: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Path:
    """Write a context whole, in the order and the spelling of the `nats` command; give the path of its file."""
    path = context_path(name, environ)
    replace_file(path, name, to_bytes(fields))
    return path


def to_bytes(fields: Mapping[str, Any]) -> bytes:
    """Write fields as a file has them: those of the `nats` command first, each of them, then all others."""
    known = {field: fields.get(field, empty) for field, empty in LAYOUT.items()}
    others = {field: value for field, value in fields.items() if field not in LAYOUT and field != "name"}
    text = json.dumps({**known, **others}, indent=2, ensure_ascii=False)
    return text.translate(_GO).encode("utf-8", "backslashreplace")  # half a character as it was spelled


def remove_context(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Remove a context; one that is selected is selected no longer."""
    path = context_path(name, environ)
    try:
        path.unlink()
    except FileNotFoundError:
        read_context(path, name)  # tells which ones there are
        raise
    except OSError as error:
        what = f"The context file {path} cannot be removed: {reason(error)}."
        raise _wrong(name, path, what, "Check the folder.") from None
    if selected_context(environ) == name:
        unselect_context(environ)


# -- the selected one -------------------------------------------------------------------------------------------------


def selected_context(environ: Mapping[str, str] = os.environ) -> str | None:
    """Tell which context is selected, if any."""
    return _read_name(_selected(environ), "selected")


def previous_context(environ: Mapping[str, str] = os.environ) -> str | None:
    """Tell which context was selected before, if any."""
    return _read_name(_previous(environ), "previous")


def select_context(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Select a context that is there, and give the one that was selected before."""
    read_context(context_path(name, environ), name)
    before = _remember(environ)
    replace_file(_selected(environ), name, name.encode())
    return before


def unselect_context(environ: Mapping[str, str] = os.environ) -> str | None:
    """Select none, and give the one that was selected before."""
    before, path = _remember(environ), _selected(environ)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _wrong(None, path, f"{path} cannot be removed: {reason(error)}.", "Check the folder.") from None
    return before


def _selected(environ: Mapping[str, str]) -> Path:
    return context_folder(environ).parent / "context.txt"


def _previous(environ: Mapping[str, str]) -> Path:
    return context_folder(environ).parent / "previous-context.txt"


def _remember(environ: Mapping[str, str]) -> str | None:
    try:
        before = selected_context(environ)
    except ContextError:  # a name that cannot be read is replaced
        before = None
    if before is not None:
        replace_file(_previous(environ), before, before.encode())
    return before


def _read_name(path: Path, which: str) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        what = f"The file {path} that names the {which} context cannot be read: {reason(error)}."
        raise _wrong(None, path, what, "Select one anew with `penstock context select`, or name a server.") from None


# -- writing ----------------------------------------------------------------------------------------------------------


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Put a file for its owner alone in the place of an old one, in one step; what a link leads to is replaced."""
    try:
        folder = path.parent if path.parent.name != "context" else path.parent.parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        for each in (folder, path.parent):
            each.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, content, mode=0o600)
    except OSError as error:
        raise _wrong(name, path, f"{path} cannot be written: {reason(error)}.", "Check the folder.") from None


def reason(error: Exception) -> str:
    """Give what is wrong with a file in a few words."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _wrong(name: str | None, path: Path, what: str, remedy: str) -> ContextError:
    return ContextError(what, remedy=remedy, context=name, path=str(path))
