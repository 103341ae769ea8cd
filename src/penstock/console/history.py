"""Figures over time for charts: the last hour from memory, more from a Prometheus if one was named.

In Prometheus a name is a name: another NATS may have a stream that is called the same, and so may have this one, before
it was deleted and made anew. When a stream or a consumer was made tells them apart, and is served as a figure of its
own; only what was told of the very thing that a page shows is drawn, and what is left out is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.console.backend import Backend, Data, PageRequest, all_of
from penstock.console.formatting import seconds
from penstock.console.prometheus import SPANS, Prometheus, PrometheusLine, PrometheusSpan, selector
from penstock.console.seen import series
from penstock.errors import InputError, PenstockError

if TYPE_CHECKING:
    from penstock.survey import ConsumerState, StreamState

__all__ = ["HOUR", "consumer_history", "flow_history", "stream_history"]

HOUR = "1h"
_SAME = 0.001  # seconds within which two times are one
_LATE = 900.0  # seconds without a figure at the end that are told
_NAMED = 5  # others of the same name that are named
_NOTHING = "Prometheus at {} has nothing of it: it must ask /metrics of this console, or of penstock metrics serve."
_NO_PROMETHEUS = "More than an hour is shown if a Prometheus is named: penstock console --prometheus URL."


@dataclass(frozen=True)
class _Questions:
    """What is asked of Prometheus about one thing."""

    lines: Mapping[str, str]
    """A question for each line that is drawn."""
    made: str = ""
    """The question when it was made, for each who told of it; empty if nothing tells that."""
    created: float = 0.0


_Asking = Callable[[PrometheusSpan], _Questions]


@dataclass
class _Found:
    lines: dict[str, list[PrometheusLine]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def stream_history(backend: Backend, request: PageRequest, state: StreamState) -> tuple[Data, Data]:
    """Give the history of a stream, and what a page says of it."""
    names = ("rate", "messages", "bytes")
    return await _history(backend, request, state.subject, names, lambda span: _of_stream(state, span))


async def consumer_history(backend: Backend, request: PageRequest, state: ConsumerState) -> tuple[Data, Data]:
    """Give the history of a consumer, and what a page says of it."""
    names = ("lag", "lag_seconds", "rate", "redelivered", "ack_pending", "ack_p50", "ack_p99")
    return await _history(backend, request, state.subject, names, lambda span: _of_consumer(state, span))


async def flow_history(
    backend: Backend, request: PageRequest, pipeline: tuple[str, str | None], memory: Data
) -> tuple[Data, Data]:
    """Give how many messages waited for each flow of a pipeline; `memory` has the last hour of it."""
    span, about = _asked(backend, request)
    if span is None or backend.prometheus is None:
        return memory, about
    chosen = selector({"pipeline": pipeline[0], "replay": pipeline[1] or ""})
    question = f"max by (flow) (max_over_time(penstock_flow_lag_messages{chosen}[{span.window}]))"
    try:
        found = await backend.prometheus.ask(question, span, timeout=backend.settings.timeout)
    except PenstockError as error:
        return memory, _failed(backend, about, error)
    if not found:
        about["notes"].append(_NOTHING.format(backend.prometheus.where))
    return {line.labels.get("flow", ""): line.points for line in found}, about


def _asked(backend: Backend, request: PageRequest) -> tuple[PrometheusSpan | None, Data]:
    """Give the stretch of time that is asked for, None for the hour in memory, and what a page says of it."""
    wanted = request.query.get("range", "") or HOUR
    if wanted != HOUR and wanted not in SPANS:
        raise InputError(f"range is {wanted[:20]!r}.", remedy=f"Known: {', '.join((HOUR, *SPANS))}.")
    about: Data = {
        "range": wanted,
        "choices": [(HOUR, "1 hour"), *((span.name, span.says) for span in SPANS.values())],
        "source": "memory",
        "trouble": None,
        "notes": [],
        "since": None,
        "until": None,
    }
    if backend.prometheus is None:
        about["choices"] = []
        if wanted != HOUR:
            about |= {"range": HOUR, "trouble": f"The last hour is shown. {_NO_PROMETHEUS}"}
        return None, about
    if wanted == HOUR:
        return None, about
    now = time.time()
    return SPANS[wanted], about | {"source": "Prometheus", "since": now - SPANS[wanted].seconds, "until": now}


def _failed(backend: Backend, about: Data, error: PenstockError) -> Data:
    said = f"{backend.mask.text(str(error))} The hour from memory is shown."
    return about | {"source": "memory", "trouble": said, "since": None, "until": None}


async def _history(
    backend: Backend, request: PageRequest, subject: tuple[str, ...], names: Sequence[str], asking: _Asking
) -> tuple[Data, Data]:
    span, about = _asked(backend, request)
    if span is None or backend.prometheus is None:
        return series(backend, subject, *names), about
    try:
        found = await _from_prometheus(backend, backend.prometheus, span, asking(span))
    except PenstockError as error:
        return series(backend, subject, *names), _failed(backend, about, error)
    about["notes"] += [backend.mask.text(note) for note in found.notes]
    return {name: _first(found.lines.get(name, [])) for name in names}, about


def _first(lines: list[PrometheusLine]) -> list[tuple[float, float | None]]:
    return lines[0].points if lines else []


async def _from_prometheus(
    backend: Backend, prometheus: Prometheus, span: PrometheusSpan, questions: _Questions
) -> _Found:
    asked = {**questions.lines, "": questions.made}

    async def ask(name: str) -> list[PrometheusLine]:
        return await prometheus.ask(asked[name], span, timeout=backend.settings.timeout)

    found = dict(zip(asked, await all_of(asked, ask), strict=True))
    told = found.pop("")
    return _Found(found, list(_notes(prometheus, told, questions.created)))


def _notes(prometheus: Prometheus, told: list[PrometheusLine], created: float) -> list[str]:
    """Say what Prometheus has under the same name that is not this thing, and if it has heard nothing lately."""
    ours: dict[str, float] = {}
    others: dict[str, float] = {}
    for line in told:
        who = ", ".join(f"{name} {value}" for name, value in sorted(line.labels.items())) or "nobody knows whom"
        for when, value in line.points:
            if value is not None:
                held = ours if abs(value - created) < _SAME else others
                held[who] = max(held.get(who, 0.0), when)
    notes = []
    if not ours:
        notes.append(_NOTHING.format(prometheus.where))
    elif (late := time.time() - max(ours.values())) > _LATE:
        notes.append(f"Prometheus at {prometheus.where} was told of it {seconds(late)} ago for the last time.")
    for who, last in list(others.items())[:_NAMED]:
        ago = seconds(max(0.0, time.time() - last))
        if who in ours:
            notes.append(f"Up to {ago} ago another one had this name, and was deleted: its figures are left out.")
        else:
            notes.append(f"Another one of this name is known to Prometheus, told by {who}: its figures are left out.")
    if len(others) > _NAMED:
        notes.append(f"And {len(others) - _NAMED:,} more have this name.")
    return notes


# -- questions ---------------------------------------------------------------------------------------------------------


class _Of:
    """Questions about one thing: only what was told together with the time at which that very thing was made."""

    def __init__(self, chosen: str, figure: str, created: datetime | None, span: PrometheusSpan) -> None:
        self.created = 0.0 if created is None else created.timestamp()
        self._chosen, self._window = chosen, span.window
        made = f"last_over_time({figure}{chosen}[{span.window}])"
        self.made = f"max by (job, instance) ({made})"
        self._mine = f"and on (job, instance) (abs({made} - {self.created!r}) < {_SAME})"

    def highest(self, figure: str) -> str:
        return f"max(max_over_time({figure}{self._chosen}[{self._window}]) {self._mine})"

    def each_second(self, counter: str) -> str:
        return f"max(rate({counter}{self._chosen}[{self._window}]) {self._mine})"

    def quantile(self, share: float, buckets: str, chosen: str) -> str:
        return f"histogram_quantile({share}, sum by (le) (rate({buckets}{chosen}[{self._window}]) {self._mine}))"

    def asked(self, lines: Mapping[str, str]) -> _Questions:
        return _Questions(lines, self.made, self.created)


def _of_stream(state: StreamState, span: PrometheusSpan) -> _Questions:
    of = _Of(selector({"stream_name": state.name}), "penstock_stream_created_timestamp_seconds", state.created, span)
    messages, markers = of.highest("jetstream_stream_total_messages"), of.highest("penstock_stream_markers")
    return of.asked(
        {
            "rate": of.each_second("jetstream_stream_last_seq"),
            "messages": f"({messages} - {markers}) or {messages}" if state.markers is not None else messages,
            "bytes": of.highest("jetstream_stream_total_bytes"),
        }
    )


def _of_consumer(state: ConsumerState, span: PrometheusSpan) -> _Questions:
    chosen = selector({"stream_name": state.stream, "consumer_name": state.name})
    of = _Of(chosen, "penstock_consumer_created_timestamp_seconds", state.created, span)
    acks, heard = "nats_jetstream_acknowledgement_duration_bucket", {"stream": state.stream, "consumer": state.name}
    return of.asked(
        {
            "lag": of.highest("jetstream_consumer_num_pending"),
            "lag_seconds": of.highest("penstock_consumer_lag_seconds"),
            "rate": of.each_second("jetstream_consumer_delivered_consumer_seq"),
            "redelivered": of.highest("jetstream_consumer_num_redelivered"),
            "ack_pending": of.highest("jetstream_consumer_num_ack_pending"),
            "ack_p50": of.quantile(0.5, acks, selector(heard)),
            "ack_p99": of.quantile(0.99, acks, selector(heard)),
        }
    )
