"""A writer of the file store of NATS Streaming, for tests of what reads it; see `penstock.channels.old_records`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.channels.old_records import checksum
from penstock.channels.wire import MsgProto

GOLDEN = Path(__file__).parent / "golden" / "nats_streaming_store"
"""A store that the real server, 0.25.6, wrote; `GOLDEN_NOTES` says what is in it."""
_TIME = 1_700_000_000_000_000_000
GOLDEN_NOTES = """
The server ran with -cid old -mm 9 -file_slice_max_msgs 4, and was stopped with all but `billing` and `off` connected.
orders:     messages 1 to 10, `order 1` and so on, in three files; 1 is beyond the limit
            billing/d1   offline, sent 10, 3 5 7 8 9 10 not acknowledged
            audit/d2     sent 10, all acknowledged
            q:workers    w1 has 3 4 7, w2 has 5 6, not acknowledged; sent 7
            two subscriptions that are not durable, and a durable that was unsubscribed
orders.eu:  message 1; the durable queue dq:g without members, 1 not acknowledged
quiet:      no message; durable e of w1
"""


def fields(**numbered: Any) -> bytes:
    """Write a protobuf message: f1=7, f2="text" and so on."""
    made = b""
    for name, value in numbered.items():
        number = int(name.removeprefix("f"))
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            made += _varint(number << 3 | 2) + _varint(len(value)) + value
        elif value:
            made += _varint(number << 3) + _varint(int(value))
    return made


def _varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def record(content: bytes, kind: int = 0, polynomial: int = 0xEDB88320) -> bytes:
    """Write one record."""
    return struct.pack("<II", kind << 24 | len(content), checksum(polynomial)(content)) + content


class StoreWriter:
    """Makes a store in a folder, as the old server does."""

    def __init__(self, folder: Path, cluster: str = "old", *, node: str = "", polynomial: int = 0xEDB88320) -> None:
        self.folder = folder
        self._polynomial = polynomial
        folder.mkdir(parents=True, exist_ok=True)
        self.write("server.dat", [(0, fields(f1=cluster, f2=f"_STAN.discover.{cluster}", f9=node))])
        self.write("clients.dat", [])

    def write(self, name: str, contents: Iterable[tuple[int, bytes]], *, tail: bytes = b"") -> Path:
        """Write a file of records of these types; `tail` stands behind them."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        parts = [record(content, kind, self._polynomial) for kind, content in contents]
        path.write_bytes(b"\x01\0\0\0" + b"".join(parts) + tail)
        return path

    def messages(self, channel: str, numbers: Iterable[int], slice: int = 1, *, data: Any = None) -> Path:
        """Write a file of messages and its index."""
        contents, index, offset = [], b"", 4
        for number in numbers:
            payload = b"%d" % number if data is None else data(number)
            content = MsgProto(
                sequence=number, subject=channel, data=payload, timestamp=1_700_000_000_000_000_000 + number
            )
            contents.append((0, content.SerializeToString()))
            size = len(contents[-1][1])
            entry = struct.pack("<QqqI", number, offset, content.timestamp, size)
            index += entry + struct.pack("<I", checksum(self._polynomial)(entry))
            offset += 8 + size
        path = self.write(f"{channel}/msgs.{slice}.dat", contents)
        path.with_suffix(".idx").write_bytes(b"\x01\0\0\0" + index)
        return path

    def clients(self, *names: str) -> Path:
        """Write who is connected."""
        return self.write("clients.dat", [(1, fields(f1=name, f2=f"_INBOX.{name}")) for name in names])

    def subscriptions(self, channel: str, *contents: tuple[int, bytes]) -> Path:
        """Write what happened to a channel's subscriptions."""
        return self.write(f"{channel}/subs.dat", contents)


def subscription(id: int, client: str = "", queue: str = "", durable: str = "", **more: Any) -> bytes:
    """Write a subscription: `last`, `keep`, and `wait` and `most` in flight."""
    return fields(
        f1=id,
        f2=client,
        f3=queue,
        f4="_INBOX.x",
        f5="_INBOX.y",
        f6=more.get("most", 10),
        f7=more.get("wait", 30),
        f8=durable,
        f9=more.get("last", 0),
        f10=more.get("keep", True),
    )


def sent(id: int, *sequences: int) -> list[tuple[int, bytes]]:
    """Write that messages were sent."""
    return [(5, fields(f1=id, f2=sequence)) for sequence in sequences]


def acked(id: int, *sequences: int) -> list[tuple[int, bytes]]:
    """Write that messages were acknowledged."""
    return [(4, fields(f1=id, f2=sequence)) for sequence in sequences]
