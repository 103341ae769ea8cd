"""Other nats-servers of this machine that use a folder: nats-server locks nothing, so they must be looked for.

What can be known is read from `/proc`: the files that a server holds open, the folder that its command line or its
configuration names, and what its monitoring port says. A server of another user or in another container may be
hidden from us; then nothing is found.

The guard loads this file by its path, so it imports nothing of Penstock.
"""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

__all__ = ["process_holding", "server_using"]

_STORE_DIR = re.compile(r"""\bstore_?dir["']?\s*[:=\s]\s*(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"',;}]+))""", re.I)
_STORE_FLAGS = ("sd", "store_dir")
_CONFIG_FLAGS = ("c", "config")
_CONFIG_LIMIT = 1 << 20
_LISTENING = "0A"  # a state of /proc/net/tcp
_PORTS = 8  # a server has one or two; a bound for whatever else carries the name
_GREETING = 0.1
_ANSWER_TIMEOUT = 0.5


def server_using(folder: str | Path, *, but: Collection[int] = (), ask: bool = True) -> int | None:
    """Give the process of a nats-server that stores its streams in this folder, None if none is known.

    `but` are processes that may. With `ask`, servers that show it in no other way are asked over their monitoring port.
    """
    streams = Path(folder) / "jetstream"  # nats-server puts its own folder into the one that it is given
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            process = Path("/proc", name)
            if int(name) not in but and _is_nats_server(process) and _uses(process, streams, ask):
                return int(name)
    return None


def process_holding(folder: str | Path) -> int | None:
    """Give a process that has a file in this folder open, None if none is known."""
    inside = f"{os.path.realpath(folder)}/"
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            if int(name) != os.getpid() and any(file.startswith(inside) for file in _open_files(Path("/proc", name))):
                return int(name)
    return None


def _is_nats_server(process: Path) -> bool:
    with suppress(OSError):
        return (process / "comm").read_text(errors="replace").startswith("nats-server")
    return False


def _uses(process: Path, streams: Path, ask: bool) -> bool:
    inside = f"{os.path.realpath(streams)}/"
    if any(file.startswith(inside) for file in _open_files(process)):
        return True
    if named := list(_named_folders(process)):
        return any(_same(path, streams) for path in named)
    return ask and any(_same(_seen_by(process, said), streams) for said in _told_folders(process))


def _same(path: Path, streams: Path) -> bool:
    """Tell whether two paths lead to one folder, by whatever names and mounts."""
    with suppress(OSError):
        return os.path.samefile(path, streams)
    return False


def _open_files(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(entry)


def _seen_by(process: Path, path: str) -> Path:
    """Give a path as this process means it: from its own folder, below its own root."""
    if not path.startswith("/"):
        with suppress(OSError):
            path = f"{os.readlink(process / 'cwd')}/{path}"
    return process / "root" / path.lstrip("/")


def _named_folders(process: Path) -> Iterator[Path]:
    """Give the folders that the command line of a server names, itself or by a configuration file."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[1:]
    except OSError:
        return
    for place, word in enumerate(words):
        flag, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        value = value if equals else next(iter(words[place + 1 :]), "")
        if flag in _STORE_FLAGS:
            yield _seen_by(process, value) / "jetstream"
        elif flag in _CONFIG_FLAGS:
            with suppress(OSError), _seen_by(process, value).open(errors="replace") as file:
                for found in _STORE_DIR.finditer(file.read(_CONFIG_LIMIT)):
                    yield _seen_by(process, next(filter(None, found.groups()))) / "jetstream"


def _told_folders(process: Path) -> Iterator[str]:
    """Ask every port on which a server listens where it stores its streams; the monitoring port knows."""
    for port in sorted(_ports(process))[:_PORTS]:
        connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWER_TIMEOUT)
        with closing(connection), suppress(OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError):
            connection.connect()
            if select.select([connection.sock], [], [], _GREETING)[0]:
                continue  # a port that greets is for clients, and would log our question as an error
            connection.request("GET", "/jsz")
            folder = str(json.loads(connection.getresponse().read(_CONFIG_LIMIT))["config"]["store_dir"])
            yield folder


def _ports(process: Path) -> set[int]:
    sockets = {file[8:-1] for file in _open_files(process) if file.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError, ValueError):
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                row = line.split()
                if row[3] == _LISTENING and row[9] in sockets:
                    found.add(int(row[1].rpartition(":")[2], 16))
    return found
