"""The overview: the server, what the account uses, a picture of what flows where, and what needs attention.

Everything but the server's own line is read from the survey, which looks at every stream, consumer and pipeline in the
background: the page costs nothing, however many there are, and says what was not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.connection import Connection
from penstock.console.backend import Backend, Data, PageRequest, iso, page
from penstock.console.picture import draw
from penstock.survey import Snapshot, Survey, Trouble

__all__ = ["overview"]

_BUSY = 8  # streams that are shown here
_NOTES = 8  # notes that are all shown; of more of them,
_EACH = 3  # of each kind
_FIRST = 3.0  # seconds that a page waits for the first round


@page("/overview", refresh=3, menu=True)
async def overview(backend: Backend, request: PageRequest) -> Data:
    """The server, what the account uses, what flows where, the streams written to last, and what needs attention."""
    client = await backend.upstream.client()
    server = await _server(backend, client)
    snapshot = await _surveyed(backend.survey)
    if backend.survey.error is not None and not snapshot.covered.rounds:
        raise backend.survey.error
    shown = snapshot.trouble[: backend.settings.rows]
    recent = sorted(snapshot.streams.values(), key=lambda state: iso(state.last_time) or "", reverse=True)
    return {
        "server": server,
        "jetstream": _account(snapshot.account) if snapshot.jetstream and snapshot.account else None,
        "problem": snapshot.problem,
        "is_on": snapshot.jetstream is not False,
        "streams": [
            {
                "name": state.name,
                "messages": state.messages,
                "markers": state.markers,
                "bytes": state.bytes,
                "last_time": iso(state.last_time),
                "rate": state.rate,
            }
            for state in recent[:_BUSY]
        ],
        "attention": _folded([_note(trouble, backend) for trouble in shown]),
        "attention_left_out": len(snapshot.trouble) - len(shown),
        "severe": sum(trouble.severe for trouble in snapshot.trouble),
        "looked_at": _covered(snapshot, backend),
        "picture": vars(draw(snapshot, backend.mask.plain)),
    }


async def _surveyed(survey: Survey) -> Snapshot:
    """Give the newest snapshot; just after the start, wait a little for the first round."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST):
            while not survey.snapshot.covered.rounds and survey.error is None:
                await survey.next()
    return survey.snapshot


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


def _account(account: Mapping[str, Any]) -> Data:
    limits, api = account.get("limits") or {}, account.get("api") or {}
    used = {
        name: {"used": account.get(name, 0), "limit": max(limits.get(f"max_{name}") or 0, 0) or None}
        for name in ("memory", "storage", "streams", "consumers")
    }
    calls = {"requests": api.get("total", 0), "errors": api.get("errors", 0)}
    return {"domain": account.get("domain"), **used, "api": calls}


def _note(trouble: Trouble, backend: Backend) -> Data:
    return {
        "kind": trouble.subject[0],
        "rule": trouble.kind,
        "about": trouble.about,
        "link": trouble.page,
        "what": backend.mask.text(trouble.says),
        "since": _moment(trouble.since),
        "severe": trouble.severe,
    }


def _folded(notes: list[Data]) -> list[Data]:
    """Say of each note whether it is folded away: a hundred of one kind must not hide the one of another."""
    of = Counter[str]()
    for note in notes:
        of[note["rule"]] += 1
        note["folded"] = len(notes) > _NOTES and of[note["rule"]] > _EACH
    return notes


def _covered(snapshot: Snapshot, backend: Backend) -> Data:
    """Say how much was looked at, and what was not; what is left out is counted."""
    covered = snapshot.covered
    unseen = covered.unseen[: backend.settings.rows]
    return {
        "streams": covered.streams,
        "of": covered.streams_of,
        "consumers": covered.consumers,
        "consumers_of": covered.consumers_of,
        "pipelines": covered.pipelines,
        "whole": covered.whole,
        "rounds": covered.rounds,
        "seconds": covered.seconds,
        "oldest": None if covered.oldest is None else _moment(covered.oldest),
        "unseen": [{"what": item.what, "why": backend.mask.text(item.why)} for item in unseen],
        "unseen_left_out": len(covered.unseen) - len(unseen),
    }


def _moment(seconds: float) -> str | None:
    return iso(datetime.fromtimestamp(seconds, UTC))
