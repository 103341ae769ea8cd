"""A TCP peer on loopback that plays a script: what a server says, and does not say, step by step.

A script is a tuple of steps. Each connection that comes plays it from the start, in a thread of its own::

    script = (say(GREETING), hear(rb"PING\r\n"), say(b"PONG\r\n"), flood(b"+OK\r\n"))
    with playing(*script) as server:
        BulkConnection(f"nats://127.0.0.1:{server.port}")

The last step decides how it ends: `hang_up`, `half_close`, `reset`; a script without one keeps the connection and stays
silent. `serve` answers what a client asks as a small server would, and any answer of it can be replaced by another one.
Whatever a script does ends with the client, with `playing`, or after `LIFE` seconds, and no thread outlives it.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "GREETING",
    "INFO",
    "Asked",
    "Scripted",
    "Step",
    "flood",
    "greeting",
    "half_close",
    "hang_up",
    "headed",
    "hear",
    "js",
    "log_in",
    "message",
    "play",
    "playing",
    "reset",
    "say",
    "secure",
    "serve",
    "status",
    "then",
]

LIFE = 5.0  # seconds that a connection lives at most
KEPT = 1024 * 1024  # bytes of what was heard that are kept
WRITE = 256 * 1024  # bytes handed to the socket at once by a flood

INFO: dict[str, Any] = {
    "server_id": "SCRIPTED",
    "server_name": "scripted",
    "version": "2.15.1",
    "proto": 1,
    "headers": True,
    "max_payload": 1048576,
    "jetstream": True,
    "client_id": 7,
}


def greeting(**changed: Any) -> bytes:
    """Write an INFO with fields changed, or left out where they are `...`."""
    fields = {name: value for name, value in {**INFO, **changed}.items() if value is not ...}
    return b"INFO " + json.dumps(fields).encode() + b"\r\n"


GREETING = greeting()


class Over(Exception):
    """The client is gone, or the time of the script is over."""


@dataclass(frozen=True)
class Asked:
    """A message of a client that wants an answer: `sid` is the subscription that the answer belongs to."""

    subject: str
    reply: str
    sid: int
    payload: bytes
    header: bytes = b""
    number: int = 1
    """How many messages came on this subject, this one included."""

    @property
    def json(self) -> dict[str, Any]:
        """What the client asks, where it asks in JSON."""
        return dict(json.loads(self.payload or b"{}"))


# What is sent for an answer; or a step that is played instead, such as a flood.
Answer = Callable[[Asked], "bytes | Step"]


# -- answers ---------------------------------------------------------------------------------------------------------


def message(asked: Asked, payload: bytes, *, subject: str | None = None, reply: str = "") -> bytes:
    """Write a message for whoever asked, on the subject where the answer is wanted unless told another."""
    words = f"{subject or asked.reply} {asked.sid} {reply}".rstrip()
    return b"MSG %s %d\r\n%s\r\n" % (words.encode(), len(payload), payload)


def headed(asked: Asked, block: bytes, payload: bytes = b"", *, subject: str | None = None, reply: str = "") -> bytes:
    """Write a message with a header block."""
    words = f"{subject or asked.reply} {asked.sid} {reply}".rstrip()
    size = len(block) + len(payload)
    return b"HMSG %s %d %d\r\n%s%s\r\n" % (words.encode(), len(block), size, block, payload)


def js(content: Any) -> Callable[[Asked], bytes]:
    """Answer with JSON, or with bytes as they are."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda asked: message(asked, payload)


def then(*steps: Step) -> Answer:
    """Answer by playing steps."""
    return lambda asked: play(*steps)


def status(line: str, **headers: str) -> Callable[[Asked], bytes]:
    """Answer with a status and no payload, such as `404 No Messages`."""
    lines = [f"NATS/1.0 {line}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()), "", ""]
    return lambda asked: headed(asked, "\r\n".join(lines).encode())


# -- one connection --------------------------------------------------------------------------------------------------


class Peer:
    """One client's connection, as a step sees it."""

    def __init__(self, sock: socket.socket, stop: threading.Event) -> None:
        self.socket = sock
        self.heard = bytearray()
        self.subscriptions: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self._stop = stop
        self._until = time.monotonic() + LIFE
        sock.setblocking(False)

    def _wait(self, what: int, most: float = 0.05) -> bool:
        if self._stop.is_set() or time.monotonic() > self._until:
            raise Over
        poll = select.poll()
        poll.register(self.socket, what)
        return bool(poll.poll(int(most * 1000)))

    def send(self, content: bytes) -> None:
        """Send everything, throwing away what comes meanwhile only where the client's buffers are full."""
        view = memoryview(content)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._wait(select.POLLOUT | select.POLLIN)
                self.receive(wait=False)
            except OSError:
                raise Over from None

    def receive(self, *, wait: bool = True) -> bool:
        """Take what comes; False where nothing is there."""
        while True:
            try:
                data = self.socket.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not wait:
                    return False
                self._wait(select.POLLIN)
                continue
            except OSError:
                raise Over from None
            if not data:
                raise Over
            self.heard += data
            del self.heard[:-KEPT]
            return True

    def stay(self) -> None:
        """Say nothing until the client goes."""
        while True:
            self.receive()
            self.heard.clear()

    def pause(self, seconds: float) -> None:
        """Wait, unless the end comes first."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._wait(select.POLLIN, min(left, 0.02)):
                self.receive(wait=False)

    def command(self) -> tuple[list[str], bytes, bytes]:
        """Give the next thing that the client says: its words, and header block and payload where it publishes."""
        while b"\r\n" not in self.heard:
            self.receive()
        line, _, _ = bytes(self.heard).partition(b"\r\n")
        words = line.decode("utf-8", "replace").split()
        size, head = 0, 0
        if words and words[0] in ("PUB", "HPUB"):
            size = int(words[-1]) + 2
            head = int(words[-2]) if words[0] == "HPUB" else 0
        start = len(line) + 2
        while len(self.heard) < start + size:
            self.receive()
        body = bytes(self.heard[start : start + max(0, size - 2)])
        del self.heard[: start + size]
        return words, body[:head], body[head:]

    def asked(self, words: list[str], header: bytes, payload: bytes) -> Asked:
        """Make what a client published into a question, with the subscription that gets the answer."""
        reply = words[2] if len(words) == (5 if words[0] == "HPUB" else 4) else ""
        subject = words[1]
        self.counts[subject] = self.counts.get(subject, 0) + 1
        sid = next((sid for sid, pattern in self.subscriptions.items() if _matches(pattern, reply)), 0)
        return Asked(subject, reply, sid, payload, header, self.counts[subject])


def _matches(pattern: str, subject: str) -> bool:
    tokens = [{"*": r"[^.]+", ">": r".+"}.get(token) or re.escape(token) for token in pattern.split(".")]
    return re.fullmatch(r"\.".join(tokens), subject) is not None


# -- steps -----------------------------------------------------------------------------------------------------------

Step = Callable[[Peer], None]


def play(*steps: Step) -> Step:
    """Make one step of several, after which nothing is said any more."""

    def step(peer: Peer) -> None:
        for one in steps:
            one(peer)
        peer.stay()

    return step


def say(*pieces: bytes, every: float = 0.0) -> Step:
    """Send pieces, with a pause of so many seconds before each."""

    def step(peer: Peer) -> None:
        for piece in pieces:
            if every:
                peer.pause(every)
            peer.send(piece)

    return step


def hear(pattern: bytes) -> Step:
    """Wait for something from the client, and forget everything up to its end."""
    wanted = re.compile(pattern, re.DOTALL)

    def step(peer: Peer) -> None:
        while not (found := wanted.search(peer.heard)):
            peer.receive()
        del peer.heard[: found.end()]

    return step


def log_in(**info: Any) -> Step:
    """Greet and take the login."""

    def step(peer: Peer) -> None:
        peer.send(greeting(**info))
        hear(rb"PING\r\n")(peer)
        peer.send(b"PONG\r\n")

    return step


def flood(frame: bytes, *, every: float = 0.0) -> Step:
    """Send a piece again and again without end, at full speed or one every so many seconds."""
    block = frame if every else frame * max(1, WRITE // len(frame))

    def step(peer: Peer) -> None:
        while True:
            if every:
                peer.pause(every)
            peer.send(block)

    return step


def hang_up(peer: Peer) -> None:
    """Close the connection."""
    with contextlib.suppress(OSError):
        peer.socket.shutdown(socket.SHUT_RDWR)
    peer.socket.close()
    raise Over


def half_close(peer: Peer) -> None:
    """Send no more, and go on listening."""
    with contextlib.suppress(OSError):
        peer.socket.shutdown(socket.SHUT_WR)


def reset(peer: Peer) -> None:
    """Close the connection with a reset."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    peer.socket.close()
    raise Over


def secure(context: ssl.SSLContext) -> Step:
    """Shake hands for TLS, as a good server does."""

    def step(peer: Peer) -> None:
        peer.socket = context.wrap_socket(peer.socket, server_side=True, do_handshake_on_connect=False)
        while True:
            try:
                peer.socket.do_handshake()
                return
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                peer.pause(0.005)
            except OSError:
                raise Over from None

    return step


def serve(**answers: Answer | None) -> Step:
    """Answer what the client asks as a server with a stream `S` of three messages does, or as `answers` say.

    A name in `answers` is that of a method of `tests.scripted_stream.Good`, or `ping`, or `subscribe`; None gives no
    answer at all. The step ends with the client.
    """
    from tests.scripted_stream import Good

    good = Good()

    def step(peer: Peer) -> None:
        while True:
            words, header, payload = peer.command()
            kind = words[0].upper() if words else ""
            if kind == "PING":
                name, asked = "ping", Asked("", "", 0, b"")
            elif kind == "SUB":
                peer.subscriptions[int(words[-1])] = words[1]
                name, asked = "subscribe", Asked(words[1], words[1], int(words[-1]), b"")
            elif kind == "UNSUB":
                peer.subscriptions.pop(int(words[1]), None)
                continue
            elif kind in ("PUB", "HPUB"):
                asked = peer.asked(words, header, payload)
                name = good.name_of(asked)
            else:
                continue
            answer = answers[name] if name in answers else getattr(good, name)
            content = b"" if answer is None else answer(asked)
            if callable(content):
                content(peer)
            else:
                peer.send(content)

    return step


# -- the server ------------------------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """A listener that plays a script to everybody who comes."""

    script: tuple[Step, ...]
    connections: int = 0
    gone: int = 0
    """How many connections have ended."""
    failure: BaseException | None = None
    """A mistake in the script itself."""
    _left: threading.Condition = field(default_factory=threading.Condition)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen."""
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, name=f"scripted {self.port}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._stop.is_set():
                client.close()
                return
            with self._left:
                self.connections += 1
            self._begin(self._play, client)

    def _play(self, client: socket.socket) -> None:
        peer = Peer(client, self._stop)
        try:
            play(*self.script)(peer)
        except Over:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            with contextlib.suppress(OSError):
                peer.socket.close()
            with self._left:
                self.gone += 1
                self._left.notify_all()

    def is_left(self, within: float) -> bool:
        """Tell whether every client has closed its connections, waiting a little for it."""
        with self._left:
            return self._left.wait_for(lambda: self.gone == self.connections, within)

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:  # the first one accepts: when it is over, no other comes
            thread.join(10)
        if self.failure is not None:
            raise self.failure


@contextmanager
def playing(*script: Step) -> Iterator[Scripted]:
    """Play a script on a free port of loopback until the end of the block."""
    server = Scripted(script)
    server.start()
    try:
        yield server
    finally:
        server.close()
