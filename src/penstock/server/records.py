"""What nats-server says and writes down of its streams, and the record that is kept of it.

A record says what a store holds, so that the next start can tell what is missing. While a node runs it is what the
node's monitoring port says now and then; when the node ended in order, it is what the node wrote down last::

    {"closed": BOOL, "streams": {ACCOUNT: {STREAM: {"created": TIME, "messages": N, "first_seq": N, "last_seq": N}}}}

A stream whose files cannot be read, as if they are encrypted, has only what could be read of it. After an end in
order each has its durable consumers as well, with the sequence up to which all is acknowledged:
`"consumers": {NAME: N}`, and `"index"`, the end of the file in which the server wrote that down: who finds another one
there knows that another server has used the store since. If a start was refused because of what is missing, the record
stays and says `"refused": true`: it was our own server that wrote the index then.

The guard loads this file by its path, so it imports nothing of Penstock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

__all__ = [
    "acknowledged",
    "index_end",
    "index_head",
    "stored_streams",
    "stream_folders",
    "told_streams",
    "write_record",
]

_PAGE_LIMIT = 64 << 20
_META_LIMIT = 1 << 20
_INDEX_MAGIC, _INDEX_VERSIONS = 11, range(1, 5)  # of a stream's index.db
_INDEX_HEAD = 64  # two bytes and six numbers of at most ten
_CHECKSUM = 8
_CONSUMER_MAGIC, _CONSUMER_VERSION = 22, 2  # of a consumer's o.dat


def told_streams(port: int, base: str, timeout: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Ask the monitoring port of a node, whose pages are below `base`, for its streams, by account and name."""
    page = read_page(port, f"{base}/jsz?accounts=true&streams=true", timeout)
    return {
        account["id"]: {
            stream["name"]: {
                "created": stream["created"],
                **{key: stream["state"][key] for key in ("messages", "first_seq", "last_seq")},
            }
            for stream in account.get("stream_detail") or []
        }
        for account in page.get("account_details") or []
    }


def read_page(port: int, page: str, timeout: float) -> Any:
    """Read a page of a monitoring port."""
    with socket.create_connection(("127.0.0.1", port), timeout) as link:
        link.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        parts, size = [], 0
        while part := link.recv(1 << 16):
            parts.append(part)
            size += len(part)
            if size > _PAGE_LIMIT:
                raise ValueError("the page is too long")
    return json.loads(b"".join(parts).partition(b"\r\n\r\n")[2])


def stored_streams(store: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Read what nats-server wrote down of each stream of a store when it ended, by account and name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for account, folders in stream_folders(store).items():
        for name, folder in folders.items():
            facts = found.setdefault(account, {}).setdefault(name, {})
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
                facts["created"] = json.loads(_head(folder, "meta.inf", _META_LIMIT))["Created"]
            with contextlib.suppress(OSError, ValueError, LookupError):
                facts.update(index_head(_head(folder, "msgs/index.db", _INDEX_HEAD)))
                facts["index"] = index_end(folder)
            facts["consumers"] = dict(_stored_consumers(folder))
    return found


def _stored_consumers(folder: str) -> Iterator[tuple[str, int]]:
    """Give the consumers that outlive whoever uses them, and the sequence up to which each has acknowledged all."""
    for name, consumer in _folders(os.path.join(folder, "obs")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            config = json.loads(_head(consumer, "meta.inf", _META_LIMIT))
            if config.get("durable_name") and not config.get("inactive_threshold"):
                yield name, acknowledged(_head(consumer, "o.dat", _INDEX_HEAD))


def stream_folders(store: str) -> dict[str, dict[str, str]]:
    """Give the folder of each stream of a store, by account and name."""
    accounts = _folders(os.path.join(store, "jetstream"))
    return {account: dict(_folders(os.path.join(folder, "streams"))) for account, folder in accounts}


def _folders(path: str) -> list[tuple[str, str]]:
    try:
        # A name that begins with a dot is of a stream that is being deleted.
        return [(entry.name, entry.path) for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != "."]
    except OSError:
        return []


def _head(folder: str, name: str, size: int) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read(size)


def index_end(folder: str) -> str:
    """Give the checksum at the end of a stream's index.db."""
    with open(os.path.join(folder, "msgs", "index.db"), "rb") as file:
        file.seek(-_CHECKSUM, os.SEEK_END)
        return file.read(_CHECKSUM).hex()


def index_head(data: bytes) -> dict[str, int]:
    """Read how many messages a stream holds, the first and the last, from the beginning of its index.db."""
    if len(data) < _INDEX_HEAD // 2 or data[0] != _INDEX_MAGIC or data[1] not in _INDEX_VERSIONS:
        raise ValueError("not an index of a stream")
    messages, _, first, _, last = _numbers(data[2:], 5)
    if messages > max(last - first + 1, 0):
        raise ValueError("not an index of a stream")
    return {"messages": messages, "first_seq": first, "last_seq": last}


def acknowledged(data: bytes) -> int:
    """Read the sequence up to which a consumer has acknowledged everything from the beginning of its o.dat."""
    if len(data) < 2 or data[0] != _CONSUMER_MAGIC or data[1] != _CONSUMER_VERSION:
        raise ValueError("not the state of a consumer")
    return _numbers(data[2:], 2)[1]


def _numbers(data: bytes, count: int) -> list[int]:
    """Read so many numbers, seven bits a byte, the lowest first."""
    numbers, place = [], 0
    for _ in range(count):
        value = shift = 0
        while True:
            value |= (data[place] & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if not data[place - 1] & 0x80:
                break
        numbers.append(value)
    return numbers


def write_record(path: str, streams: dict[str, dict[str, dict[str, Any]]], **more: bool) -> None:
    """Write a record whole or not at all."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(json.dumps({**more, "streams": streams}).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
