"""The overview: the server, what the account uses, and what needs somebody's attention."""

from __future__ import annotations

import time
from typing import Any

from penstock.connection import Connection
from penstock.console.backend import Backend, Data, PageRequest, all_of, consumers_of, iso, page, stream_page
from penstock.errors import JetStreamError, NoRespondersError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream import assets

__all__ = ["overview"]

_NO_JETSTREAM = (10039, 10076)  # not on for the account, not on at all
_FULL = 0.9  # the share of a limit from which on somebody should look
_BUSY = 8  # streams that are shown here
_NEEDED_STREAMS = 50  # whose consumers are looked at


@page("/overview", refresh=3, menu=True)
async def overview(backend: Backend, request: PageRequest) -> Data:
    """The server, what the account uses, the streams written to last, and what needs attention."""
    client = await backend.upstream.client()
    data: Data = {"server": await _server(backend, client), "jetstream": None, "streams": [], "attention": []}
    try:
        account = await assets.account_info(client)
    except (NoRespondersError, JetStreamError) as error:
        if isinstance(error, JetStreamError) and error.err_code not in _NO_JETSTREAM:
            raise
        return data  # there is no JetStream, and the page says so
    data["jetstream"] = _account(account)
    found, total = await stream_page(client)
    for info in found:
        backend.rates.take(info.name, iso(info.created), info.last_sequence)
    used = [info for info in found if info.consumers][:_NEEDED_STREAMS]
    answers = await all_of(used, lambda info: consumers_of(client, info.name))
    consumers = [item for items, _ in answers for item in items]
    recent = sorted(found, key=lambda info: iso(info.last_time) or "", reverse=True)
    data["streams"] = [
        {
            "name": info.name,
            "messages": info.messages,
            "bytes": info.bytes,
            "last_time": iso(info.last_time),
            "rate": backend.rates.rate(info.name),
        }
        for info in recent[:_BUSY]
    ]
    notes = [*_full(account), *(note for info in found for note in _stream(info)), *_late(consumers)]
    data["attention"] = notes[: backend.settings.rows]
    data["attention_left_out"] = len(notes) - len(data["attention"])
    data["looked_at"] = {
        "streams": len(found),
        "of": total,
        "consumers": len(consumers),
        "consumers_of": sum(info.consumers for info in found),
    }
    return data


async def _server(backend: Backend, client: Connection) -> Data:
    info = client.server_info
    begun = time.perf_counter()
    await client.flush(timeout=max(1, round(backend.settings.timeout)))
    return {
        "url": backend.upstream.options.url,
        "name": info.get("server_name"),
        "version": info.get("version"),
        "cluster": info.get("cluster"),
        "domain": info.get("domain"),
        "tls": bool(info.get("tls_required")),
        "login": _login(backend),
        "max_payload": info.get("max_payload"),
        "round_trip": time.perf_counter() - begun,
    }


def _login(backend: Backend) -> str:
    options = backend.upstream.options
    ways = {"credentials": "credentials", "jwt": "JWT", "nkey": "nkey", "token": "token", "user": "user and password"}
    return next((text for name, text in ways.items() if getattr(options, name) is not None), "none")


def _account(account: dict[str, Any]) -> Data:
    limits, api = account.get("limits") or {}, account.get("api") or {}
    used = {
        name: {"used": account.get(name, 0), "limit": max(limits.get(f"max_{name}") or 0, 0) or None}
        for name in ("memory", "storage", "streams", "consumers")
    }
    calls = {"requests": api.get("total", 0), "errors": api.get("errors", 0)}
    return {"domain": account.get("domain"), **used, "api": calls}


def _note(kind: str, about: str, link: str | None, what: str) -> Data:
    return {"kind": kind, "about": about, "link": link, "what": what}


def _full(account: dict[str, Any]) -> list[Data]:
    known = _account(account)
    return [
        _note("account", name, None, f"{100 * part['used'] / part['limit']:.0f} % of the account's limit is used")
        for name in ("memory", "storage", "streams", "consumers")
        if (part := known[name])["limit"] and part["used"] >= _FULL * part["limit"]
    ]


def _stream(info: StreamInfo) -> list[Data]:
    notes = []
    config = info.config
    if info.placed.cluster and info.placed.leader is None:
        notes.append("no server leads it: it neither takes nor gives messages")
    if late := [name for name, current in info.placed.replicas if not current]:
        notes.append(f"{', '.join(late)} is down, or not up to date")
    # A stream that discards old messages is full by design.
    if config.discard == "new":
        for what, used, most in (("messages", info.messages, config.max_msgs), ("bytes", info.bytes, config.max_bytes)):
            if most > 0 and used >= _FULL * most:
                notes.append(f"{100 * used / most:.0f} % of its limit of {what} is used, and then it refuses new ones")
    notes += [f"is {copy.lag:,} messages behind {copy.name}" for copy in info.copies if copy.lag]
    return [_note("stream", info.name, info.name, note) for note in notes]


def _late(consumers: list[ConsumerInfo]) -> list[Data]:
    notes = []
    for info in sorted(consumers, key=lambda item: -item.pending):
        found = []
        most = info.config.max_ack_pending or 0
        if most > 0 and info.ack_pending >= most:
            found.append(f"{info.ack_pending:,} deliveries wait for their ack, as many as may: it gets no more")
        if info.redelivered:
            found.append(f"{info.redelivered:,} messages were delivered again")
        if info.paused:
            found.append("is paused")
        notes += [
            _note("consumer", f"{info.stream} › {info.name}", f"{info.stream}/consumers/{info.name}", text)
            for text in found
        ]
    return notes
