"""All streams and consumers as states: a small account is asked at once, a large one is told from the survey.

Whoever makes a stream and opens the page wants to see it there, so what fits on one page of the server's lists is read
anew for every look. Beyond that the survey, which goes round in the background, has all of it, some seconds old.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, all_of, consumers_of, if_there, stream_page
from penstock.info import ConsumerInfo, StreamInfo
from penstock.spark.markers import marker_filter
from penstock.survey import ConsumerState, StreamState
from penstock.survey.looks import has_markers, see_consumer, see_stream

__all__ = [
    "all_consumers",
    "all_streams",
    "consumer_states",
    "count_markers",
    "coverage",
    "series",
    "stream_state",
    "troubles",
]

_LISTS = 16  # streams whose consumers are listed for one look at a page
_LEARNED = ("rate", "still", "ack_p50", "ack_p99", "acks")  # what takes more than one look
_DIGITS = 3


async def all_streams(backend: Backend, client: Connection) -> tuple[list[StreamState], bool]:
    """Give every stream by name, and whether that is as of now."""
    found, total = await stream_page(client)
    fresh = await all_of(found, lambda info: stream_state(backend, client, info))
    if len(found) >= total:
        return fresh, True
    known = dict(backend.survey.snapshot.streams) | {state.name: state for state in fresh}
    return [known[name] for name in sorted(known)], False


async def all_consumers(backend: Backend, client: Connection) -> tuple[list[ConsumerState], bool]:
    """Give the consumers of all streams, and whether that is as of now."""
    streams, now = await all_streams(backend, client)
    read = [state.name for state in streams if state.consumers]
    if now and len(read) <= _LISTS:
        answers = await all_of(read, lambda stream: consumers_of(client, stream))
        if all(len(found) >= total for found, total in answers):
            return [state for found, _ in answers for state in consumer_states(backend, found)], True
    known = backend.survey.snapshot.consumers
    return [known[key] for key in sorted(known)], False


async def stream_state(backend: Backend, client: Connection, info: StreamInfo) -> StreamState:
    """Give the state of a stream as of now, with what only the survey can know."""
    before, now = backend.survey.snapshot.streams.get(info.name), time.time()
    if before is None or before.created != info.created:
        return see_stream(info, None, now, await count_markers(client, info))
    # Between the survey's look and this one is hardly any time: its rate tells more than ours would.
    return replace(see_stream(info, None, now, before.markers), rate=before.rate)


async def count_markers(client: Connection, info: StreamInfo) -> int | None:
    """Count the markers of the Spark sink in a stream: they are not messages of anybody's."""
    if not has_markers(info):
        return None
    body = {"subjects_filter": marker_filter(info.name)}
    answer = await if_there(api_request(client, f"STREAM.INFO.{info.name}", body))
    return None if answer is None else sum(StreamInfo.from_json(answer).held.values())


def consumer_states(backend: Backend, found: Sequence[ConsumerInfo]) -> list[ConsumerState]:
    """Give the states of consumers as of now, with what only the survey can know."""
    now, known = time.time(), backend.survey.snapshot.consumers
    states = []
    for info in found:
        state, before = see_consumer(info, None, now), known.get((info.stream, info.name))
        if before is not None and before.created == info.created:
            learned = {name: getattr(before, name) for name in _LEARNED}
            if state.lag and before.lag_seconds and before.delivered.stream == info.delivered.stream:
                learned["lag_seconds"] = before.lag_seconds + max(0.0, state.looked - before.looked)
            state = replace(state, **learned)
        states.append(state)
    return states


def troubles(backend: Backend, subject: tuple[str, ...]) -> list[Data]:
    """Give what the survey found about one thing that needs attention."""
    return [
        {"kind": item.kind, "says": backend.mask.text(item.says), "severe": item.severe}
        for item in backend.survey.snapshot.trouble
        if item.subject == subject
    ]


def coverage(backend: Backend, now: bool) -> Data | None:
    """Say how much of what is there a table from the survey covers, and how old that is; None if it is as of now."""
    covered = backend.survey.snapshot.covered
    if now:
        return None
    return {
        "streams": covered.streams,
        "streams_of": covered.streams_of,
        "consumers": covered.consumers,
        "consumers_of": covered.consumers_of,
        "seconds": None if covered.oldest is None else max(0.0, time.time() - covered.oldest),
        "whole": covered.whole,
        "unseen": [{"what": item.what, "why": item.why} for item in covered.unseen],
    }


def series(backend: Backend, subject: tuple[str, ...], *names: str, seconds: float | None = None) -> Data:
    """Give the last hour of some figures of a thing: pairs of a time and a value for each of them."""
    since = 0.0 if seconds is None else time.time() - seconds
    return {
        name: [
            (round(when, _DIGITS), round(value, _DIGITS))
            for when, value in backend.survey.series(subject, name)
            if when >= since
        ]
        for name in names
    }
