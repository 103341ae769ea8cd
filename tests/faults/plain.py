"""A plain NATS client of one socket, which shares no code with what is under test: it reads what is really there.

It asks the leader alone: streams are read through a consumer, never through direct gets, for which others may answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit


class PlainError(Exception):
    """The server did not answer, or answered with an error; `code` is JetStream's number where it gave one."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Stored:
    """One message as it stands in a stream."""

    sequence: int
    subject: str
    headers: dict[str, str]
    data: bytes

    @property
    def id(self) -> str:
        """The id under which it was stored."""
        return self.headers.get("nats-msg-id", "")


@dataclass(frozen=True)
class Message:
    """One message as it comes over the wire."""

    subject: str
    reply: str
    headers: bytes
    data: bytes

    @property
    def status(self) -> int:
        """The status that the server gives in place of a message; 0 for a message."""
        line = self.headers.partition(b"\r\n")[0].split(b" ", 2)
        return int(line[1]) if len(line) > 1 and line[1][:3].isdigit() else 0

    def fields(self) -> dict[str, str]:
        """Give the headers, their names in small letters."""
        found = {}
        for line in self.headers.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                found[name.decode().strip().lower()] = value.decode(errors="replace").strip()
        return found


class Plain:
    """One connection, one thread, every wait with an end."""

    def __init__(self, url: str, timeout: float = 10.0, *, inbox: str = "", name: str = "plain reader") -> None:
        self.timeout, self._name = timeout, name
        self.inbox = inbox or f"_INBOX.{os.urandom(9).hex()}"
        self._count = 0
        failures = []
        for one in url.split(","):
            try:
                self._open(one.strip())
                return
            except (OSError, PlainError) as error:
                failures.append(str(error))
        raise PlainError(f"no server answers: {'; '.join(failures)}")

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- the protocol ----------------------------------------------------------------------------------------------

    def _open(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=self.timeout)
        self._held = b""
        deadline = time.monotonic() + self.timeout
        try:
            line = self._line(deadline)
            if not line.startswith(b"INFO "):
                raise PlainError(f"it greets with {line[:40]!r}")
            asked: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "plain", "version": "0"}
            asked |= {"protocol": 1, "headers": True, "no_responders": True, "name": self._name}
            if parts.password:
                asked |= {"user": unquote(parts.username or ""), "pass": unquote(parts.password)}
            elif parts.username:
                asked["auth_token"] = unquote(parts.username)
            self._say(b"CONNECT " + json.dumps(asked).encode() + b"\r\nPING\r\n")
            while (line := self._line(deadline)) != b"PONG":
                if line.startswith(b"-ERR"):
                    raise PlainError(line.decode())
            self._say(f"SUB {self.inbox}.> 1\r\n".encode())
        except BaseException:
            self._socket.close()
            raise

    def _say(self, data: bytes) -> None:
        self._socket.settimeout(self.timeout)
        self._socket.sendall(data)

    def _more(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PlainError("no answer in time")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise PlainError("no answer in time") from None
        except OSError as error:
            raise PlainError(f"the connection broke: {error}") from None
        if not data:
            raise PlainError("the server hung up")
        self._held += data

    def _line(self, deadline: float) -> bytes:
        while (end := self._held.find(b"\r\n")) < 0:
            self._more(deadline)
        line, self._held = self._held[:end], self._held[end + 2 :]
        return line

    def _bytes(self, size: int, deadline: float) -> bytes:
        while len(self._held) < size + 2:
            self._more(deadline)
        data, self._held = self._held[:size], self._held[size + 2 :]
        return data

    def _next(self, deadline: float) -> Message:
        while True:
            line = self._line(deadline)
            if line == b"PING":
                self._say(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise PlainError(line.decode())
            elif line.startswith((b"MSG ", b"HMSG ")):
                words = line.decode().split(" ")
                headed = words[0] == "HMSG"
                sizes = 2 if headed else 1
                reply = words[3] if len(words) == 4 + sizes else ""
                body = self._bytes(int(words[-1]), deadline)
                head = int(words[-2]) if headed else 0
                return Message(words[1], reply, body[:head], body[head:])

    # -- asking ----------------------------------------------------------------------------------------------------

    def post(self, subject: str, data: bytes = b"", reply: str = "") -> None:
        """Publish without waiting for anything."""
        self._say(f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n".encode() + data + b"\r\n")

    def next(self, timeout: float) -> Message | None:
        """Give the next message that comes to any inbox of ours; None if none does in time."""
        deadline = time.monotonic() + timeout
        try:
            return self._next(deadline)
        except PlainError:
            if time.monotonic() >= deadline:
                return None
            raise

    def request(self, subject: str, data: bytes = b"") -> bytes:
        """Ask, and give the answer."""
        self._count += 1
        reply = f"{self.inbox}.{self._count}"
        self.post(subject, data, reply)
        deadline = time.monotonic() + self.timeout
        while True:
            message = self._next(deadline)
            if message.subject == reply:
                if message.status == 503:
                    raise PlainError(f"nobody listens on {subject}", 503)
                return message.data

    def api(self, method: str, body: Any = None) -> dict[str, Any]:
        """Ask JetStream."""
        answer = json.loads(self.request(f"$JS.API.{method}", json.dumps(body).encode() if body is not None else b""))
        if error := answer.get("error"):
            raise PlainError(f"{method}: {error.get('description')}", int(error.get("err_code", 0)))
        return answer

    def state(self, stream: str) -> dict[str, Any]:
        """Give the state of a stream, with the time at which it was created."""
        answer = self.api(f"STREAM.INFO.{stream}")
        leader = (answer.get("cluster") or {}).get("leader")
        return {**answer["state"], "created": answer["created"], "config": answer["config"], "leader": leader}

    def read(self, stream: str, batch: int = 500) -> list[Stored]:
        """Read all of a stream in its order, through a consumer that goes by itself."""
        config = {"ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant", "mem_storage": True}
        config |= {"inactive_threshold": 5_000_000_000, "num_replicas": 1}
        made = self.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        name, pending = made["name"], int(made["num_pending"])
        found: list[Stored] = []
        try:
            while pending:
                self._count += 1
                reply = f"{self.inbox}.{self._count}"
                asked = {"batch": batch, "expires": int(self.timeout * 1e9)}
                self.post(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", json.dumps(asked).encode(), reply)
                deadline = time.monotonic() + self.timeout
                for _ in range(min(batch, pending)):
                    message = self._next(deadline)
                    if message.status:
                        raise PlainError(f"reading {stream}: status {message.status}")
                    words = message.reply.split(".")
                    place = words[2:] if len(words) == 9 else words[4:]
                    sequence, count, pending = int(place[3]), int(place[4]), int(place[6])
                    if count != len(found) + 1:
                        raise PlainError(f"reading {stream}: message {count} came as number {len(found) + 1}")
                    found.append(Stored(sequence, message.subject, message.fields(), message.data))
                    deadline = time.monotonic() + self.timeout
        finally:
            with contextlib.suppress(PlainError):
                self.api(f"CONSUMER.DELETE.{stream}.{name}")
        return found
