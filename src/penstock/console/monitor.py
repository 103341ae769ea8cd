"""The monitoring pages of nats-servers, `/varz` and so on, if somebody says where they are."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException
from typing import IO, Any
from urllib.parse import urlsplit

from penstock.errors import InputError, MonitorError
from penstock.system.fields import read_object

__all__ = ["check_monitor", "monitored"]

_MOST = 64 * 2**20  # bytes of an answer


class _Stay(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else, whatever a page says."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def check_monitor(url: str) -> str:
    """Give the address of a server's monitoring pages without a slash at its end; refuse what cannot be one."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        shown = "What is given" if "@" in url else repr(url[:80])
        raise InputError(
            f"{shown} is no address of a server's monitoring pages.", remedy="Write it as http://127.0.0.1:8222."
        )
    return url.rstrip("/")


async def monitored(url: str, page: str, timeout: float) -> dict[str, Any]:
    """Ask a server for one of its monitoring pages; MonitorError if it does not give it."""
    return await asyncio.to_thread(_fetch, url, page, timeout)


def _fetch(url: str, page: str, timeout: float) -> dict[str, Any]:
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    # It is asked directly: no proxy lies between a console and the servers that it looks at.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay())
    try:
        with opener.open(f"{url}/{page}", timeout=timeout) as answer:
            content = answer.read(_MOST + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise MonitorError(f"The monitoring page {page} of {where} says {error.code}.", server=where) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        what = f"The monitoring pages of {where} do not answer: {getattr(reason, 'strerror', None) or reason}."
        raise MonitorError(what, remedy="Is the address right, and the server running?", server=where) from None
    if len(content) > _MOST:
        raise MonitorError(f"The monitoring page {page} of {where} is too long.", server=where)
    return read_object(content)
