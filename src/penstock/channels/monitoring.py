"""The monitoring pages, as the old server had them: /streaming/serverz, storez, clientsz, channelsz, isFTActive.

Beside them stand those of the NATS server, /varz and so on, if it is ours to ask. Only GET, only these pages; anything
else gets a status and a line of text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import resource
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from penstock import __version__
from penstock.durations import format_duration
from penstock.http_pages import (
    JSON,
    NOT_FOUND,
    OK,
    TEXT,
    UNAVAILABLE,
    HttpAnswer,
    HttpPages,
    HttpRefused,
    HttpRequest,
)
from penstock.wire.numbers import read_count

if TYPE_CHECKING:
    from penstock.channels.channel import Channel
    from penstock.channels.clients import Connected
    from penstock.channels.delivery import Member
    from penstock.channels.gateway import Gateway
    from penstock.channels.service import Service

__all__ = ["Monitor"]

log = logging.getLogger("penstock.channels")

_LIMIT = 1024
_SECONDS = 10.0
_PASSED_ON_BYTES = 64 * 1024 * 1024
_PAGES = ("serverz", "storez", "clientsz", "channelsz")
_PASSED_ON = {f"/{name}" for name in ("", "varz", "connz", "routez", "subsz", "gatewayz", "leafz", "accountz", "jsz")}
_HTML = "text/html"

Show = Callable[["Service", Any, bool], Awaitable[dict[str, Any]]]


class Monitor:
    """A small HTTP server beside a gateway."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        host, _, port = address.rpartition(":")
        self._pages = HttpPages("The monitoring pages", host.strip("[]"), int(port), self._answer)
        self._started = datetime.now(UTC)

    @property
    def url(self) -> str:
        """Where the pages are."""
        return f"{self._pages.url}/streaming"

    async def start(self) -> None:
        """Listen."""
        await self._pages.start()

    async def stop(self) -> None:
        """Listen no more."""
        await self._pages.stop()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        parts = request.parts
        path = parts.path.rstrip("/")
        if path == "/healthz":
            return await self._health(parts)
        if f"/{path.lstrip('/')}" in _PASSED_ON:
            return await self._pass_on(parts)
        if path == "/streaming":
            links = "".join(f'<a href="/streaming/{name}">{name}</a><br>' for name in _PAGES)
            return HttpAnswer(OK, _HTML, f"<!doctype html><title>NATS Streaming</title>{links}\n".encode())
        if path == "/streaming/isFTActive":
            return HttpAnswer(OK if self._state == "FT_ACTIVE" else "204 No Content", TEXT, b"")
        page = await self._page(path, {name: values[-1] for name, values in parse_qs(parts.query).items()})
        return HttpAnswer(OK, JSON, f"{json.dumps(page, indent=2)}\n".encode())

    async def _page(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        service = self._gateway.service
        name = path.removeprefix("/streaming/")
        if name not in _PAGES or name == path:
            raise HttpRefused(NOT_FOUND, f"Pages: {' '.join(f'/streaming/{name}' for name in _PAGES)}")
        if name == "serverz" and self._state:
            return await self._server_page(service)
        if service is None:
            raise HttpRefused(UNAVAILABLE, "This gateway stands by." if self._state else "This gateway is starting.")
        if name == "storez":
            return await self._store_page(service)
        if name == "clientsz":
            return await self._list("client", service.clients.by_id, _client, service, query)
        return await self._list("channel", service.channels, _channel, service, query)

    @property
    def _state(self) -> str:
        """What the old server called its state; empty while we can serve nobody and do not stand by."""
        if self._gateway.options.standby:
            return "FT_ACTIVE" if self._gateway.leading else "FT_STANDBY"
        return "STANDALONE" if self._gateway.leading else ""

    # -- the pages of the NATS server --------------------------------------------------------------------------------

    async def _health(self, parts: SplitResult) -> HttpAnswer:
        """Tell whether we are well; if the NATS server is ours to ask, whether that is, too."""
        if not self._state:
            return HttpAnswer(UNAVAILABLE, JSON, b'{"status":"unavailable","error":"The gateway does not serve."}\n')
        if self._gateway.options.nats_monitor is None:
            return HttpAnswer(OK, JSON, b'{"status":"ok"}\n')
        return await self._pass_on(parts)

    async def _pass_on(self, parts: SplitResult) -> HttpAnswer:
        if (base := self._gateway.options.nats_monitor) is None:
            raise HttpRefused(NOT_FOUND, "The NATS server is another one: its pages are at its own monitoring port.")
        url = f"{base.rstrip('/')}/{parts.path.strip('/')}{f'?{parts.query}' if parts.query else ''}"
        answer = await asyncio.to_thread(_fetch, url)
        # Below this path an embedded server shows all of its pages, also those that are not passed on.
        hidden = json.dumps(urlsplit(base).path.rstrip("/")).encode()
        return answer._replace(body=answer.body.replace(hidden, b'"***"'))

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
            "go": f"python{platform.python_version()}",
            "state": self._state,
            "start_time": _time(self._started),
            "uptime": format_duration(int((datetime.now(UTC) - self._started).total_seconds())),
        }
        counted = dict.fromkeys(("clients", "subscriptions", "channels", "total_msgs", "total_bytes"), 0)
        moved = dict.fromkeys(("in_msgs", "in_bytes", "out_msgs", "out_bytes"), 0)
        if service is not None:
            counted = {
                "clients": len(service.clients.by_id),
                "subscriptions": sum(len(channel.subscribers) for channel in service.channels.values()),
                "channels": len(service.channels),
                **await _totals(service),
            }
            moved = {
                "in_msgs": service.in_messages,
                "in_bytes": service.in_bytes,
                "out_msgs": service.writer.messages,
                "out_bytes": service.writer.bytes,
            }
        return {**page, **counted, **moved, **_files()}

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
                raise HttpRefused(NOT_FOUND, f"{kind.capitalize()} {name} not found")
            return await show(service, known[name], subs)
        numbers = {name: read_count(text) or 0 for name, text in query.items()}
        offset, limit = numbers.get("offset", 0), numbers.get("limit") or _LIMIT
        listed = sorted(known)[offset : offset + limit]
        page = self._common() | {"offset": offset, "limit": limit, "count": len(listed), "total": len(known)}
        if kind == "channel" and not listed:
            return page  # the old server leaves empty lists of channels out, and shows those of clients
        if kind == "channel" and not subs:
            return page | {"names": listed}
        return page | {f"{kind}s": [await show(service, known[name], subs) for name in listed]}


def _fetch(url: str) -> HttpAnswer:
    """Ask the NATS server for a page, and give what it answers."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is beside us, and no proxy between
    try:
        with direct.open(url, timeout=_SECONDS / 2) as page:
            return HttpAnswer(
                f"{page.status} {page.reason}", page.headers.get_content_type(), page.read(_PASSED_ON_BYTES)
            )
    except urllib.error.HTTPError as error:
        with error:
            kind = error.headers.get_content_type()
            return HttpAnswer(f"{error.code} {error.reason}", kind, error.read(_PASSED_ON_BYTES))
    except (OSError, ValueError, HTTPException) as error:
        log.debug("Channels: a page of the NATS server did not come: %r", error)
        raise HttpRefused("502 Bad Gateway", "The NATS server does not show its page.") from None


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
