"""One question over HTTP to another program that tells figures: a monitoring port, or a Prometheus.

It is asked directly, without a proxy, and nobody is followed elsewhere. The time is that of the whole answer: whoever
sends a byte now and then is cut off, too. A login may stand in the address; it is sent as a header, and told nobody.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Lock
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import InputError, MonitorError

__all__ = ["ask_http", "check_http", "place_of"]


def check_http(url: str, what: str, example: str) -> str:
    """Give an address without a slash at its end; refuse one that cannot be an address of `what`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not (url.isascii() and url.isprintable() and " " not in url):
        shown = "What is given" if "@" in url else repr(url[:80])
        raise InputError(f"{shown} is not an address of {what}.", remedy=f"Write it as {example}.")
    return url.rstrip("/")


def place_of(url: str) -> str:
    """Give the host and port of an address, without a login."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None and parts.password is None:
        return {}
    said = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(said.encode()).decode()}"}


class _Asking:
    """A question under way in a thread, which another one may end."""

    def __init__(self, url: str, timeout: float, most: int) -> None:
        self._url, self._timeout, self._most = url, timeout, most
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._over = False

    def run(self) -> tuple[int, bytes]:
        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        link = kind(parts.hostname or "", parts.port, timeout=self._timeout)
        target = parts.path or "/"
        try:
            link.connect()
            with self._lock:
                if self._over:
                    raise TimeoutError
                self._socket = link.sock
            headers = {"Accept": "application/json", "Connection": "close", **_login(parts)}
            link.request("GET", f"{target}?{parts.query}" if parts.query else target, headers=headers)
            answer = link.getresponse()
            return answer.status, answer.read(self._most + 1)
        finally:
            with self._lock:
                self._socket = None
            link.close()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the other side was faster
                    self._socket.shutdown(socket.SHUT_RDWR)


async def ask_http(whom: str, url: str, *, timeout: float, most: int) -> tuple[int, bytes]:
    """Give the status and the body of an answer; MonitorError if there is none in time, or one over `most` bytes.

    `whom` begins the sentence that says what went wrong.
    """
    where, asking = place_of(url), _Asking(url, timeout, most)
    try:
        async with asyncio.timeout(timeout):
            status, body = await asyncio.to_thread(asking.run)
    except (OSError, ValueError, HTTPException) as error:
        why = f"no answer in {timeout:g} s" if isinstance(error, TimeoutError) else _reason(error)
        remedy = "Is the address right, and is it running?"
        raise MonitorError(f"{whom} at {where} does not answer: {why}.", remedy=remedy, server=where) from None
    finally:
        asking.end()
    if len(body) > most:
        raise MonitorError(f"{whom} at {where} answers with more than {most:,} bytes.", server=where)
    return status, body


def _reason(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(said).rstrip(".")[:200]
