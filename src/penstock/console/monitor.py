"""The monitoring pages of nats-servers, `/varz` and so on, if somebody says where they are."""

from __future__ import annotations

from typing import Any

from penstock.console.http_asking import ask_http, check_http, place_of
from penstock.errors import MonitorError
from penstock.system.fields import read_object

__all__ = ["check_monitor", "monitored"]

_MOST = 64 * 2**20  # bytes of an answer


def check_monitor(url: str) -> str:
    """Give the address of a server's monitoring pages without a slash at its end; refuse what cannot be one."""
    return check_http(url, "a server's monitoring pages", "http://127.0.0.1:8222")


async def monitored(url: str, page: str, timeout: float) -> dict[str, Any]:
    """Ask a server for one of its monitoring pages; MonitorError if it does not give it."""
    status, content = await ask_http("The monitoring port", f"{url}/{page}", timeout=timeout, most=_MOST)
    if status != 200:
        where = place_of(url)
        raise MonitorError(f"The monitoring page {page} of {where} says {status}.", server=where, code=status)
    return read_object(content)
