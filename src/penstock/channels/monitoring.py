"""The monitoring pages, as the old server had them: /streaming/serverz, storez, clientsz, channelsz.

Only GET, only these pages, only JSON; anything else gets a status and a line of text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from penstock import __version__
from penstock.durations import format_duration
from penstock.errors import InputError, PenstockError

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.clients import Connected
    from penstock.channels.delivery import Member
    from penstock.channels.gateway import Gateway
    from penstock.channels.service import Service

__all__ = ["Monitor"]

log = logging.getLogger("penstock.channels")

_LIMIT = 1024
_REQUEST_BYTES = 16 * 1024
_SECONDS = 10.0
_NOT_FOUND = "404 Not Found"
_UNAVAILABLE = "503 Service Unavailable"

Show = Callable[["Service", Any, bool], Awaitable[dict[str, Any]]]


class _Refused(Exception):
    """There is no page to show: a status of HTTP, and a line of text."""


class Monitor:
    """A small HTTP server beside a gateway."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._started = datetime.now(UTC)

    @property
    def url(self) -> str:
        """Where the pages are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/streaming"

    async def start(self) -> None:
        """Listen."""
        host = self._host.strip("[]")
        try:
            self._server = await asyncio.start_server(self._serve, host, self._port, limit=_REQUEST_BYTES)
        except OSError as error:
            raise InputError(
                f"The monitoring pages cannot be at {self._host}:{self._port}: {error.strerror}.",
                remedy="Choose another port, or 0 for a free one.",
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                try:
                    status, kind, text = "200 OK", "application/json", json.dumps(await self._page(head), indent=2)
                except _Refused as refused:
                    status, kind, text = refused.args[0], "text/plain", refused.args[1]
                except PenstockError as error:
                    status, kind, text = _UNAVAILABLE, "text/plain", str(error)
                body = f"{text}\n".encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                )
                if not head.startswith(b"HEAD"):
                    writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("Channels: a monitoring request broke off: %r", error)
        finally:
            writer.close()

    async def _page(self, head: bytes) -> dict[str, Any]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            raise _Refused("405 Method Not Allowed", "Only GET.")
        parts = urlsplit(words[1])
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        path, service = parts.path.rstrip("/"), self._gateway.service
        if path == "/streaming/serverz":
            return await self._server_page(service)
        if path not in ("/streaming/storez", "/streaming/clientsz", "/streaming/channelsz"):
            raise _Refused(_NOT_FOUND, "Pages: /streaming/serverz storez clientsz channelsz")
        if service is None:
            raise _Refused(_UNAVAILABLE, "This gateway stands by.")
        if path == "/streaming/storez":
            return await self._store_page(service)
        if path == "/streaming/clientsz":
            return await self._list("client", service.clients.by_id, _client, service, query)
        return await self._list("channel", service.channels, _channel, service, query)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _common(self) -> dict[str, Any]:
        return {
            "cluster_id": self._gateway.options.cluster_id,
            "server_id": self._gateway.identity,
            "now": _time(datetime.now(UTC)),
        }

    async def _server_page(self, service: Service | None) -> dict[str, Any]:
        page = self._common() | {
            "version": __version__,
            "state": "STANDBY" if service is None else "STANDALONE",
            "start_time": _time(self._started),
            "uptime": format_duration(int((datetime.now(UTC) - self._started).total_seconds())),
        }
        if service is None:
            return page
        return {
            **page,
            "clients": len(service.clients.by_id),
            "subscriptions": sum(len(channel.subscribers) for channel in service.channels.values()),
            "channels": len(service.channels),
            **await _totals(service),
            "in_msgs": service.in_messages,
            "in_bytes": service.in_bytes,
            "out_msgs": service.writer.messages,
            "out_bytes": service.writer.bytes,
            **_files(),
        }

    async def _store_page(self, service: Service) -> dict[str, Any]:
        limits = service.options.limits
        return {
            **self._common(),
            "type": "JETSTREAM",
            "limits": {
                "max_channels": limits.channels,
                "max_msgs": limits.default.max_msgs,
                "max_bytes": limits.default.max_bytes,
                "max_age": round(limits.default.max_age * 1e9),
                "max_subscriptions": limits.default.max_subs,
                "max_inactivity": round(limits.default.max_inactivity * 1e9),
            },
            **await _totals(service),
        }

    async def _list(
        self, kind: str, known: dict[str, Any], show: Show, service: Service, query: dict[str, str]
    ) -> dict[str, Any]:
        """Show the one that the query names, or as many as it asks for."""
        subs = query.get("subs") == "1"
        if name := query.get(kind):
            if name not in known:
                raise _Refused(_NOT_FOUND, f"{kind.capitalize()} {name} not found")
            return await show(service, known[name], subs)
        numbers = {name: int(text) for name, text in query.items() if text.isdecimal()}
        offset, limit = numbers.get("offset", 0), numbers.get("limit") or _LIMIT
        listed = sorted(known)[offset : offset + limit]
        page = self._common() | {"offset": offset, "limit": limit, "count": len(listed), "total": len(known)}
        if kind == "channel" and not subs:
            return page | {"names": listed}
        return page | {f"{kind}s": [await show(service, known[name], subs) for name in listed]}


def _files() -> dict[str, int]:
    """Count the files and sockets that are open, and those that may be."""
    try:
        return {"open_fds": len(os.listdir("/dev/fd")), "max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    except OSError:
        return {}  # a machine that does not tell


def _time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def _totals(service: Service) -> dict[str, int]:
    states = [(await service.store.refresh(channel.stream))["state"] for channel in list(service.channels.values())]
    return {
        "total_msgs": sum(state["messages"] for state in states),
        "total_bytes": sum(state["bytes"] for state in states),
    }


async def _client(service: Service, client: Connected, subs: bool) -> dict[str, Any]:
    page = {"id": client.record.id, "hb_inbox": client.record.heartbeat_inbox, "subs_count": len(client.members)}
    by_channel: dict[str, list[dict[str, Any]]] = {}
    for member, channel in client.members.items():
        by_channel.setdefault(channel.name, []).append(_subscription(member))
    return page | {"subscriptions": by_channel} if subs and by_channel else page


async def _channel(service: Service, channel: Channel, subs: bool) -> dict[str, Any]:
    state = (await service.store.refresh(channel.stream))["state"]
    page: dict[str, Any] = {
        "name": channel.name,
        "msgs": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "subs_count": len(channel.subscribers),
    }
    if subs:
        page["subscriptions"] = [_subscription(member) for member in channel.subscribers.members]
    return page


def _subscription(member: Member) -> dict[str, Any]:
    group = member.group
    assert group is not None, "only members of a group are shown"
    names = {"durable_name": group.durable, "queue_name": group.queue}
    return {
        "client_id": member.client,
        "inbox": member.inbox,
        "ack_inbox": member.ack_inbox,
        **{kind: name for kind, name in names.items() if name},
        "is_durable": group.keep,
        "is_offline": not member.online,
        "max_inflight": member.max_in_flight,
        "ack_wait": member.ack_wait,
        "last_sent": group.last,
        "pending_count": len(member.pending),
        "is_stalled": member.stalled,
    }
