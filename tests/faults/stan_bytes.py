"""An old client of NATS Streaming, byte by byte: what stan.go sends, written here by hand, on the plain client."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from tests.faults.history import Told
from tests.faults.plain import Message, Plain, PlainError


def varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def record(**fields: Any) -> bytes:
    """Write fields by their numbers, `f1="me", f5=3`; what is empty is left out."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, int):
            out += varint(number << 3) + varint(value) if value else b""
        elif value:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def parse(data: bytes) -> dict[int, Any]:
    """Read fields by their numbers."""
    found: dict[int, Any] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(data):
        key = number()
        if key & 7 == 0:
            found[key >> 3] = number()
        elif key & 7 == 2:
            size = number()
            found[key >> 3], place = data[place : place + size], place + size
        else:
            raise PlainError(f"a field of a kind that is not used: {key & 7}")
    return found


class OldClient:
    """One connection of an old client; it keeps its inboxes when its connection is made again."""

    def __init__(self, url: str, cluster: str, client: str) -> None:
        self.url, self.cluster, self.client = url, cluster, client
        self.conn_id = os.urandom(8).hex()
        self.inbox = f"_INBOX.{os.urandom(9).hex()}"
        self.prefix: dict[str, str] = {}
        self.plain = Plain(url, inbox=self.inbox, name=client)

    def again(self) -> None:
        """Make the connection again, until that succeeds."""
        self.plain.close()
        deadline = time.monotonic() + 60
        while True:
            try:
                self.plain = Plain(self.url, inbox=self.inbox, name=self.client)
                return
            except (PlainError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def ask(self, subject: str, body: bytes, patience: float = 60.0) -> dict[int, Any]:
        """Ask until somebody answers."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return parse(self.plain.request(subject, body))
            except (PlainError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
                self.again()

    def connect(self) -> None:
        """Become known to the gateway; an earlier life of ours may still be, so it is asked again."""
        body = record(f1=self.client, f2=f"{self.inbox}.hb", f3=1, f4=self.conn_id, f5=5, f6=3)
        for _ in range(60):
            answer = self.ask(f"_STAN.discover.{self.cluster}", body)
            if not answer.get(5):
                names = {"pub": 1, "sub": 2, "close": 4, "subclose": 6, "ping": 7}
                self.prefix = {name: answer[number].decode() for name, number in names.items()}
                return
            time.sleep(0.5)
        raise PlainError(f"the gateway refuses: {answer[5].decode()}")

    def ping(self) -> None:
        """Ask whether the gateway still knows us, and end if it says that it does not."""
        if reason := self.ask(self.prefix["ping"], record(f1=self.conn_id)).get(1):
            raise Told("ChannelError", reason.decode())

    def close(self) -> None:
        """Leave in order."""
        self.ask(self.prefix["close"], record(f1=self.client), patience=20.0)
        self.plain.close()

    def heard(self, timeout: float) -> Iterator[Message]:
        """Give what comes to our inboxes; heartbeats are answered here."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self.plain.next(left)
                if message is None:
                    return
                if message.subject.endswith(".hb"):
                    self.plain.post(message.reply)
                    continue
            except (PlainError, OSError):
                self.again()
                continue
            yield message
