"""A program that publishes payloads in chunks as natsChunked does: all at once, as fast as the socket takes them.

    python -m tests.live.flood URL SUBJECT PAYLOADS BYTES [CHUNK]

It knows nothing of receivers and waits for none. Every payload has the bytes `pattern` gives for its number, and its
number as its id. It ends when the server has taken everything.
"""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

__all__ = ["pattern"]


def pattern(number: int, size: int) -> bytes:
    """Give the payload of a number: no two are the same, and none is the same backwards."""
    line = b"".join(b"%08d" % (number * 4096 + place) for place in range(4096))
    return (line * (size // len(line) + 1))[:size]


def main(url: str, subject: str, payloads: int, size: int, chunk: int = 512 * 1024) -> None:
    parts = urlsplit(url)
    bodies = [pattern(number, size) for number in range(payloads)]
    with socket.create_connection((parts.hostname or "", parts.port or 4222)) as wire:
        heard = wire.makefile("rb")
        heard.readline()
        login = b'"auth_token":"%s",' % (parts.username or "").encode() if parts.username else b""
        wire.sendall(b'CONNECT {%s"verbose":false,"headers":true,"lang":"raw","version":"1"}\r\n' % login)
        for offset in range(0, size, chunk):
            for number, body in enumerate(bodies):
                piece = memoryview(body)[offset : offset + chunk]
                last = b"1\r\nX-Total-Size: %d" % size if offset + chunk >= size else b"0"
                head = b"NATS/1.0\r\nX-Msg-Id: %d\r\nX-Offset: %d\r\nX-Flags: %s\r\n\r\n" % (number, offset, last)
                sizes = b"%d %d" % (len(head), len(head) + len(piece))
                wire.sendall(b"HPUB %s %s\r\n%s" % (subject.encode(), sizes, head))
                wire.sendall(piece)
                wire.sendall(b"\r\n")
        wire.sendall(b"PING\r\n")
        while (line := heard.readline()) and not line.startswith(b"PONG"):
            if line.startswith(b"PING"):
                wire.sendall(b"PONG\r\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
