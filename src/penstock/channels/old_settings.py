"""What the old server was told, by its command line and its configuration files, as settings by name.

The command line is Go's: one dash or two, `-flag value` or `-flag=value`, a switch alone or with `=false`. It counts
more than the files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.channels.limits import ChannelLimits
from penstock.channels.old_words import FLAGS, KEYS, SERVER_KEYS, Word
from penstock.conf_file import Conf, read_conf, read_conf_text
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError

__all__ = ["OldSettings", "read_settings"]

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
_FALSE = {"0", "f", "F", "FALSE", "false", "False"}
_BLOCKS = {
    "limits": "limits",
    "store_limits": "limits",
    "storelimits": "limits",
    "tls": "tls",
    "file": "file",
    "file_options": "file",
    "cluster": "cluster",
    "sql": "sql",
    "sql_options": "sql",
}
_PER_CHANNEL = ("channels", "channels_limits", "channelslimits", "per_channel", "per_channel_limits")
_SHARED = ("tls", "cluster")  # blocks that nats-server has, too
# What nats-server knows at the top of its file and an operator may also use as a variable.
_OPTIONS = re.compile(r"(max|write|ping|lame|disable|no|reconnect|client|system|allow)_\w+|operator|resolver\w*")
_GO_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)")


@dataclass
class OldSettings:
    """Settings by name, what is left to the embedded server, and what has no effect here."""

    given: dict[str, Any] = field(default_factory=dict)
    channels: list[tuple[str, ChannelLimits]] = field(default_factory=list)
    """Limits of some channels."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the configuration says to the embedded NATS server."""
    notes: list[str] = field(default_factory=list)
    """What has no effect, a sentence each."""


def read_settings(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> OldSettings:
    """Read a command line of the old server, and the files that it names; OptionError or InputError if it is wrong."""
    made = OldSettings()
    flags = _flags(arguments, made)
    streaming, server = flags.pop("stan_config", None), flags.pop("config", None)
    if streaming or server:
        # One file serves both; two, each its own.
        main = Path(str(server or streaming))
        conf = read_conf(main, environment)
        _take_server(conf, main, made)
        if streaming and server:
            conf = read_conf(Path(streaming), environment)
        _take_streaming(conf, Path(str(streaming or server)), made, alone=bool(streaming and server))
    made.given |= flags
    return made


def _note(made: OldSettings, shown: str, word: Word) -> None:
    note = f"{shown} has no effect: {word.nothing}."
    if note not in made.notes:
        made.notes.append(note)


# -- the command line --------------------------------------------------------------------------------------------------


def _flags(arguments: Sequence[str], made: OldSettings) -> dict[str, Any]:
    known = {name: word for word in FLAGS for name in word.names}
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        text = rest.pop(0)
        name, equals, value = text.removeprefix("-").removeprefix("-").partition("=")
        if not text.startswith("-") or not name:
            if text.lower() in ("version", "help"):
                found[text.lower()] = True
                continue
            remedy = "Write a switch as -flag, or -flag=false; what follows a flag is its value."
            raise OptionError(f"{text!r} is neither a flag nor a value of one.", remedy=remedy, option=text)
        word = known.get(name)
        if word is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean -{near[0]}? " if near else ""
            remedy = f"{hint}`penstock channels old-server -- -h` lists them."
            raise OptionError(f"nats-streaming-server has no flag -{name}.", remedy=remedy, option=f"-{name}")
        if not equals and word.kind == "switch":
            value = "true"
        elif not equals:
            if not rest:
                raise OptionError(f"-{name} has no value.", remedy="Give one.", option=f"-{name}")
            value = rest.pop(0)
        read = _parse(word.kind, value, f"-{name}")
        if word.refused and read is not False and read != "":
            raise OptionError(f"-{name} cannot be used here.", remedy=word.refused, option=f"-{name}")
        if word.nothing:
            _note(made, f"-{name}", word)
        elif word.setting:
            found[word.setting] = read
    return found


def _parse(kind: str, value: str, name: str) -> Any:
    if kind in ("text", "secret"):
        return value
    if kind == "switch":
        if value not in _TRUE | _FALSE:
            raise OptionError(f"{name} is neither on nor off.", remedy=f"Write {name} or {name}=false.", option=name)
        return value in _TRUE
    if kind == "duration":
        return _duration(value, name)
    number = read_conf_text(f"value: {value}").values["value"] if kind == "size" and value.strip() else value
    try:
        return int(number)
    except ValueError:
        remedy = "Write a number, or one with KB, MB or GB." if kind == "size" else "Write digits."
        raise OptionError(f"{name} is {value!r}, which is not a number.", remedy=remedy, option=name) from None


def _duration(value: Any, name: str) -> float:
    """Read a duration as Go writes it; a negative one switches something off."""
    text = str(value).strip()
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-")
    if text == "0":
        return 0.0
    parts = _GO_DURATION.findall(text)
    if not isinstance(value, str) or not parts or "".join(parts) != text:
        raise OptionError(
            f"{name} is {value!r}, which is not a duration.", remedy='Write "10s", "1h30m" or "1.5h".', option=name
        )
    clean = (f"0{part}" if part.startswith(".") else re.sub(r"\.(?=\D)", "", part) for part in parts)
    return sign * parse_duration("".join(clean), option=name)


# -- the configuration -------------------------------------------------------------------------------------------------


def _take_server(conf: Conf, path: Path, made: OldSettings) -> None:
    """Take what the file says outside of `streaming`; what only nats-server knows is left to it."""
    known = {name: word for word in SERVER_KEYS for name in word.names}
    block = any(name.lower() == "streaming" for name in conf.values)
    ours = {} if block else {name for word in KEYS[""] for name in word.names} | _BLOCKS.keys() - set(_SHARED)
    for name, value in conf.values.items():
        key = name.lower()
        word = known.get(key)
        if key == "streaming" or key in ours:
            continue
        if word is None:
            if name not in conf.variables or _OPTIONS.fullmatch(key):
                made.server[key] = value
        elif word.refused:
            raise InputError(f"{path} sets {name}, which cannot be used here.", remedy=word.refused)
        elif word.nothing:
            _note(made, name, word)
        else:
            made.given[word.setting] = value


def _take_streaming(conf: Conf, path: Path, made: OldSettings, *, alone: bool) -> None:
    """Take the `streaming` block, or, as the old server does, the whole file if it has none."""
    blocks = [value for name, value in conf.values.items() if name.lower() == "streaming"]
    if blocks:
        if not isinstance(blocks[-1], dict):
            raise InputError(f"{path} has streaming, and not as a block.", remedy="Write streaming { ... }.")
        _take_keys(blocks[-1], "", path, made)
        return
    names = {name for word in KEYS[""] for name in word.names} | _BLOCKS.keys() - set(() if alone else _SHARED)
    _take_keys({key: value for key, value in conf.values.items() if key.lower() in names}, "", path, made)
    left = [key for key in conf.values if key.lower() not in names and key not in conf.variables]
    if alone and left:
        raise InputError(f"{path} sets {left[0]}, which NATS Streaming does not know.", remedy="Leave it out.")


def _take_keys(values: Mapping[str, Any], block: str, path: Path, made: OldSettings) -> None:
    known = {name: word for word in KEYS[block] for name in word.names}
    for name, value in values.items():
        key = name.lower()
        if block == "" and key in _BLOCKS:
            _take_block(key, value, path, made)
        elif block == "limits" and key in _PER_CHANNEL:
            _take_channels(_as_block(value, name, path), path, made)
        elif (word := known.get(key)) is None:
            near = difflib.get_close_matches(key, known, 1)
            where = f"{block}.{name}" if block else name
            raise InputError(
                f"{path} sets streaming.{where}, which NATS Streaming does not know.",
                remedy=f"Did you mean {near[0]}?" if near else "Leave it out.",
            )
        else:
            _take_key(word, name, value, path, made)


def _take_key(word: Word, name: str, value: Any, path: Path, made: OldSettings) -> None:
    read = _typed(word.kind, name, value, path)
    if word.refused and read is not False:
        raise InputError(f"{path} sets {name}, which cannot be used here.", remedy=word.refused)
    if word.nothing:
        _note(made, name, word)
    elif word.setting:
        made.given[word.setting] = read
        if word.setting == "encryption_key":
            made.given["encrypt"] = True


def _take_block(key: str, value: Any, path: Path, made: OldSettings) -> None:
    block = _BLOCKS[key]
    inner = _as_block(value, key, path)
    if block == "sql":
        raise InputError(f"{path} sets {key}, which cannot be used here.", remedy="Use store: file, with dir.")
    if block == "cluster":
        made.given["clustered"] = True
    _take_keys(inner, block, path, made)


def _as_block(value: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path} has {name}, and not as a block.", remedy=f"Write {name} {{ ... }}.")
    return value


def _take_channels(values: Mapping[str, Any], path: Path, made: OldSettings) -> None:
    """Take limits of some channels: zero means no limit there, and what is not named is inherited."""
    known = {name: word for word in KEYS["limits"] for name in word.names if word.setting != "max_channels"}
    for pattern, limits in values.items():
        fields: dict[str, Any] = dict.fromkeys(("max_msgs", "max_bytes", "max_age", "max_subs", "max_inactivity"), 0)
        for name, value in _as_block(limits, pattern, path).items():
            word = known.get(name.lower())
            if word is None:
                raise InputError(
                    f"{path} limits {pattern} by {name}, which NATS Streaming does not know.",
                    remedy=f"Use {', '.join(fields)}.",
                )
            fields[word.setting] = _typed(word.kind, name, value, path) or -1
        made.channels.append((pattern, ChannelLimits(**fields)))


_PYTHON = {"text": str, "secret": str, "switch": bool, "int": int, "size": int, "duration": str, "list": list}


def _typed(kind: str, name: str, value: Any, path: Path) -> Any:
    if kind == "text" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a name of digits
    if not isinstance(value, _PYTHON[kind]) or (kind in ("int", "size") and isinstance(value, bool)):
        words = {"switch": "true or false", "list": "a list", "duration": 'a duration such as "10s"'}
        wanted = words.get(kind, "a number" if kind in ("int", "size") else "a text")
        raise InputError(f"{path} sets {name} to something else than {wanted}.", remedy=f"Give {wanted}.")
    return _duration(value, name) if kind == "duration" else value
