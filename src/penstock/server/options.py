"""What a server can be asked for, checked before anything is started."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from penstock.durations import parse_duration
from penstock.errors import OptionError
from penstock.server.records import stream_folders

__all__ = ["Routes", "ServerOptions", "Statement", "inlined", "statements", "take_blocks"]

_LARGEST_PAYLOAD = 64 * 1024 * 1024  # nats-server's max_pending, which it does not let max_payload pass
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{1,512}")
# What the text in `config` must leave to us, and which option says it instead.
_CLUSTER_NOTES = Path("jetstream", "$SYS", "_js_", "_meta_")
_INCLUDES = 8  # how deep files may include each other
_INCLUDE = re.compile(r"""["']?include["']?[\s:=]*(?:"([^"\n]*)"|'([^'\n]*)'|([^\s;,]+))""", re.I)
_OURS = {
    **dict.fromkeys(("host", "net", "addr", "port", "listen"), "Use the options host and port."),
    **dict.fromkeys(
        ("http", "https", "http_port", "https_port", "monitor_port", "http_base_path"),
        "The monitoring port belongs to Penstock, which reads the server's health there.",
    ),
    **dict.fromkeys(("log_file", "logfile", "ports_file_dir"), "Penstock keeps these files itself; see Node.log."),
    **dict.fromkeys(("server_name", "cluster"), "Use the option nodes."),
}
_OUR_JETSTREAM = {
    **dict.fromkeys(("store_dir", "storedir"), "Use the option store."),
    **dict.fromkeys(("sync", "sync_interval"), "Use the option sync."),
    "enabled": "JetStream is always on.",
}


def _refuse(option: str, value: Any, remedy: str, what: str | None = None) -> NoReturn:
    raise OptionError(what or f"{option} is {value!r}.", remedy=remedy, option=option, value=value)


@dataclass(frozen=True, kw_only=True, repr=False)
class ServerOptions:
    """The options of `Server`, checked. `docs/reference/server.md` says what each one means."""

    nodes: int = 1
    store: str | Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    sync: str = "always"
    max_payload: int | None = None
    token: str | None = None
    auth: bool = True
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    tls_ca: str | Path | None = None
    config: str = ""
    binary: str | Path | None = None
    start_timeout: float = 30.0
    on_loss: str = "refuse"

    def __post_init__(self) -> None:
        if isinstance(self.nodes, bool) or self.nodes not in (1, 3):
            _refuse("nodes", self.nodes, "Give 1, or 3 for a JetStream cluster.")
        config: Any = self.config
        if not isinstance(config, str):  # it may hold passwords: it is not shown
            kind = type(config).__name__
            _refuse("config", None, "Give the text of a server configuration.", f"config is of the type {kind}.")
        object.__setattr__(self, "config", inlined(config))
        self._check_address()
        self._check_store()
        sync = self.sync
        if not isinstance(sync, str) or (sync != "always" and parse_duration(sync, option="sync") < 1e-3):
            _refuse("sync", sync, 'Give "always", or a duration such as "2m".')
        if self.max_payload is not None and not _is_int(self.max_payload, 1, _LARGEST_PAYLOAD):
            remedy = f"Give a number of bytes from 1 to {_LARGEST_PAYLOAD}; larger messages travel in chunks."
            _refuse("max_payload", self.max_payload, remedy)
        if self.on_loss not in ("refuse", "tell"):
            _refuse("on_loss", self.on_loss, 'Give "refuse" or "tell".')
        self._check_login()
        self._check_tls()
        self._check_config()
        timeout = self.start_timeout
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout < float("inf"):
            _refuse("start_timeout", timeout, "Give seconds above zero.")

    @property
    def secure(self) -> bool:
        """Whether clients must speak TLS."""
        return self.tls_cert is not None

    @property
    def root(self) -> Path | None:
        """The store folder as an absolute path, None for a temporary one."""
        return None if self.store is None else Path(self.store).expanduser().absolute()

    @property
    def reach(self) -> str:
        """The address that clients on this machine use, bracketed if IPv6 asks for it."""
        address = ipaddress.ip_address(self.bind)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "[::1]"
        return f"[{address}]" if address.version == 6 else str(address)

    @property
    def bind(self) -> str:
        """The address to listen on."""
        return "127.0.0.1" if self.host == "localhost" else self.host

    # -- checking ----------------------------------------------------------------------------------

    def _check_address(self) -> None:
        try:
            ipaddress.ip_address(self.bind)
        except ValueError:
            remedy = "Give an address of this machine, 127.0.0.1 for this machine alone."
            _refuse("host", self.host, remedy, f"host is {self.host!r}, which is not an IP address.")
        highest = 65536 - self.nodes
        if not _is_int(self.port, 0, highest):
            _refuse("port", self.port, f"Give a number from 1 to {highest}, or 0 for a free one.")

    def _check_store(self) -> None:
        root = self.root
        if root is None:
            return
        if root.exists() and not root.is_dir():
            _refuse("store", str(root), "Name a folder, or a new one.", f"store {root} is not a folder.")
        nearest = next(folder for folder in (root, *root.parents) if folder.exists())
        if not os.access(nearest, os.W_OK | os.X_OK):
            _refuse("store", str(root), "Name another.", f"store {root} cannot be written (see {nearest}).")
        # One node keeps its streams in the folder itself, three in a folder each: opened the other way all
        # streams would seem to be gone.
        other, count, wrote = (("n1", 3, "3 nodes"), ("jetstream", 1, "1 node"))[self.nodes == 3]
        if (root / other).exists():
            what = f"store {root} was written by a server of {wrote}."
            _refuse("store", str(root), f"Use nodes={count}, or another folder.", what)
        if self.nodes == 1:
            # One that extends another domain over a leaf node keeps such notes, too.
            extends = any(statement.key.startswith("leafnode") for statement in statements(self.config))
            if (root / _CLUSTER_NOTES).exists() and not extends:
                what = f"store {root} was written by one node of a cluster: alone it cannot bring up its streams."
                _refuse("store", str(root), "Open the folder that holds all nodes, with nodes=3.", what)
            return
        for node in (root / f"n{count}" for count in (1, 2, 3)):
            # A cluster deletes streams that its own notes do not name.
            if any(stream_folders(str(node)).values()) and not (node / _CLUSTER_NOTES).exists():
                what = f"store {node} was written by a server of 1 node: a cluster would delete its streams."
                _refuse("store", str(root), f"Open {node} itself with nodes=1.", what)

    def _check_login(self) -> None:
        if self.token is not None and not (isinstance(self.token, str) and _TOKEN.fullmatch(self.token)):
            remedy = "Use 1 to 512 of the characters A-Z a-z 0-9 . _ ~ -, or leave it out for a generated one."
            # The value is a secret, so it is not shown.
            _refuse("token", None, remedy, "token cannot be written into a URL as it is.")
        if self.token is not None and not self.auth:
            _refuse("auth", False, "Leave one of them out.", "auth is off and a token is given.")
        open_door = not self.auth and not self.config.strip() and self.tls_ca is None
        if open_door and not ipaddress.ip_address(self.bind).is_loopback:
            what = f"auth is off and host is {self.host}: anybody on the network could use the server."
            _refuse("auth", False, "Keep auth on, listen on 127.0.0.1, or define the logins in config.", what)

    def _check_tls(self) -> None:
        given = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "tls_ca")}
        for missing, present in (("tls_key", "tls_cert"), ("tls_cert", "tls_key"), ("tls_cert", "tls_ca")):
            if given[present] is not None and given[missing] is None:
                _refuse(missing, None, "Give both.", f"{present} is given without {missing}.")
        for name, file in given.items():
            if file is not None and not os.access(path := Path(file).expanduser(), os.R_OK):
                why = "cannot be read" if path.exists() else "does not exist"
                _refuse(name, str(file), "Name a PEM file.", f"{name} {file} {why}.")

    def _check_config(self) -> None:
        ours = dict(_OURS)
        if self.auth:
            ours["authorization"] = "Pass auth=False if config defines the logins."
        if self.secure:
            ours["tls"] = "Use the options tls_cert, tls_key and tls_ca."
        if self.max_payload is not None:
            ours["max_payload"] = "Say it once."
        for statement in statements(self.config):
            _refuse_ours(statement.key, statement.key, ours)
            if statement.key == "jetstream":
                if statement.body is None:
                    _refuse("config", "jetstream", "It is always on.", "config has jetstream, not as a block.")
                for inner in statements(statement.body):
                    _refuse_ours(inner.key, f"jetstream.{inner.key}", _OUR_JETSTREAM)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _refuse_ours(key: str, shown: str, ours: dict[str, str]) -> None:
    if key in ours:
        _refuse("config", shown, ours[key], f"config sets {shown}, which Penstock sets.")


# -- the configuration text ------------------------------------------------------------------------


class Statement(NamedTuple):
    """One top-level `key value` of a configuration: its place `[start, end)`, and the inside of its block."""

    key: str
    start: int
    end: int
    body: str | None


_PIECE = re.compile(
    r"""(?P<newline>\n) | (?P<blank>[^\S\n]+ | \#[^\n]* | (?<![:\w])//[^\n]*)
      | (?P<quoted>"(?:\\.|[^"\\])*" | '[^']*') | (?P<open>[\[{(]) | (?P<close>[\]})])
      | (?P<word>[^\s{}\[\]():=,;"'\#]+) | (?P<other>.)""",
    re.X | re.S,
)


def statements(text: str) -> Iterator[Statement]:
    """Find the top-level statements of a configuration; what is not one is nats-server's to refuse."""
    depth, fresh = 0, True
    key, start, inside, body = "", -1, -1, None
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "open":
            depth += 1
            if depth == 1 and piece.group() == "{":
                inside = piece.end()
        elif kind == "close":
            depth = max(depth - 1, 0)
            if depth == 0:
                fresh = True
                if inside >= 0:
                    body, inside = text[inside : piece.start()], -1
        elif depth == 0 and (kind == "newline" or piece.group() in ",;"):
            fresh = True
        elif depth == 0 and fresh and kind in ("word", "quoted"):
            if start >= 0:
                yield Statement(key, start, piece.start(), body)
            key, start, body, fresh = piece.group().strip("\"'").lower(), piece.start(), None, False
    if start >= 0:
        yield Statement(key, start, len(text), body)


@dataclass(frozen=True, repr=False)
class Routes:
    """How the nodes of a cluster find each other: their route ports, and the password of the routes."""

    ports: tuple[int, ...]
    password: str


def inlined(text: str, folder: Path | None = None, depth: int = 0) -> str:
    """Put included files in the place of their `include`, so that what they say is checked and joined as well.

    nats-server would let them override what stands before. If a block other than `jetstream` includes a file,
    that is left to nats-server.
    """
    for statement in reversed(list(statements(text))):
        if statement.key == "include":
            new = _included(text[statement.start : statement.end], folder, depth)
        elif statement.key == "jetstream" and "include" in [inner.key for inner in statements(statement.body or "")]:
            new = f"jetstream {{\n{inlined(statement.body or '', folder, depth)}\n}}\n"
        else:
            continue
        text = text[: statement.start] + new + text[statement.end :]
    return text


def _included(text: str, folder: Path | None, depth: int) -> str:
    found = _INCLUDE.match(text)
    name = next(filter(None, found.groups()), "") if found else ""
    path = Path(name).expanduser() if folder is None else folder / name
    what = f"config includes {name!r}, "
    if not name or not path.is_absolute():
        _refuse("config", name, "Give its absolute path.", f"{what}which does not say in which folder it is.")
    if depth >= _INCLUDES:
        _refuse("config", name, "Include it once.", f"{what}which includes others without end.")
    try:
        inside = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        _refuse("config", name, "Check the path.", f"{what}which cannot be read: {reason}.")
    return f"\n{inlined(inside, path.parent, depth + 1)}\n"


def take_blocks(text: str, key: str) -> tuple[str, list[str]]:
    """Take the blocks of a key out of a configuration: give the rest, and the inside of each of them."""
    inner = []
    for statement in reversed(list(statements(text))):
        if statement.key == key:
            inner.append(statement.body or "")
            text = text[: statement.start] + text[statement.end :]
    return text, inner
