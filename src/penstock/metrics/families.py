"""What a survey saw, as families of Prometheus.

Streams, consumers and accounts have the names and labels of prometheus-nats-exporter, acks and advisories those of
nats-surveyor, so that dashboards and alerts for these work; whatever they have no name for begins with `penstock_`. The
figures are those of leaders: `is_stream_leader` and `is_consumer_leader` say so to dashboards that ask for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.metrics.text import Family, labels, write
from penstock.survey import ConsumerState, PipelineSeen, Snapshot, StreamState, Survey
from penstock.survey.ears import BUCKETS, Heard

if TYPE_CHECKING:
    from penstock.metrics.programs import Program

__all__ = ["exposition"]

_NANO = 1_000_000_000

Stream = Callable[[StreamState], float | None]
Consumer = Callable[[ConsumerState, float], float | None]

_STREAM: dict[str, tuple[str, Stream]] = {
    "jetstream_stream_total_messages": (
        "Messages that a stream holds, markers of the Spark sink included",
        lambda state: state.messages + (state.markers or 0),
    ),
    "jetstream_stream_total_bytes": ("Bytes that a stream holds", lambda state: state.bytes),
    "jetstream_stream_first_seq": ("First sequence of a stream", lambda state: state.first_sequence),
    "jetstream_stream_last_seq": ("Last sequence of a stream", lambda state: state.last_sequence),
    "jetstream_stream_consumer_count": ("Consumers of a stream", lambda state: state.consumers),
    "jetstream_stream_subject_count": ("Subjects that a stream holds messages of", lambda state: state.subjects_held),
    "jetstream_stream_limit_bytes": (
        "The most bytes that a stream may hold, -1 if there is no limit",
        lambda state: state.max_bytes or -1,
    ),
    "jetstream_stream_limit_messages": (
        "The most messages that a stream may hold, -1 if there is no limit",
        lambda state: state.max_messages or -1,
    ),
    "penstock_stream_created_timestamp_seconds": (
        "When a stream was made: another one of the same name has another time",
        lambda state: None if state.created is None else state.created.timestamp(),
    ),
    "penstock_stream_markers": ("Markers of the Spark sink that a stream holds", lambda state: state.markers),
    "penstock_stream_damaged_messages": ("Messages that the server cannot read any more", lambda state: state.lost),
    "penstock_stream_dead_letters": (
        "Dead letters that a stream holds",
        lambda state: state.messages if state.dead_letters else None,
    ),
    "penstock_stream_leaderless": (
        "1 if no server of the cluster leads the stream",
        lambda state: float(state.leader is None) if state.cluster else None,
    ),
    "penstock_stream_replicas_behind": (
        "Replicas of a stream that are offline or not up to date",
        lambda state: float(sum(item.offline or not item.current for item in state.others)) if state.cluster else None,
    ),
}
_CONSUMER: dict[str, tuple[str, Consumer]] = {
    "jetstream_consumer_num_pending": ("Messages that were never delivered", lambda state, now: state.lag),
    "jetstream_consumer_num_ack_pending": ("Deliveries that wait for their ack", lambda state, now: state.ack_pending),
    "jetstream_consumer_num_redelivered": ("Messages delivered again", lambda state, now: state.redelivered),
    "jetstream_consumer_num_waiting": ("Pull requests that wait for messages", lambda state, now: state.waiting),
    "jetstream_consumer_delivered_consumer_seq": (
        "Deliveries so far, repeats included",
        lambda state, now: state.delivered.consumer,
    ),
    "jetstream_consumer_delivered_stream_seq": (
        "Sequence of the last delivery in the stream",
        lambda state, now: state.delivered.stream,
    ),
    "jetstream_consumer_ack_floor_consumer_seq": (
        "Deliveries up to which everything is acknowledged",
        lambda state, now: state.acked.consumer,
    ),
    "jetstream_consumer_ack_floor_stream_seq": (
        "Sequence up to which everything is acknowledged",
        lambda state, now: state.acked.stream,
    ),
    "jetstream_consumer_last_delivery_seconds": (
        "Seconds since the last delivery",
        lambda state, now: _since(state.delivered.last, now),
    ),
    "jetstream_consumer_last_ack_seconds": (
        "Seconds since the last ack",
        lambda state, now: _since(state.acked.last, now),
    ),
    "penstock_consumer_created_timestamp_seconds": (
        "When a consumer was made: another one of the same name has another time",
        lambda state, now: None if state.created is None else state.created.timestamp(),
    ),
    "penstock_consumer_lag_seconds": (
        "Age of the oldest message that was never delivered, 0 if there is none",
        lambda state, now: state.lag_seconds,
    ),
    "penstock_consumer_still_seconds": (
        "Seconds for which nothing moved although something waits",
        lambda state, now: 0.0 if state.bookmark or state.sourcing else state.still,
    ),
    "penstock_consumer_paused": ("1 if the consumer is paused", lambda state, now: float(state.paused)),
}
_ADVISORIES = {
    "max_deliver": ("nats_jetstream_delivery_exceeded_count", "Messages that ran out of deliveries"),
    "terminated": ("nats_jetstream_delivery_terminated_count", "Messages that were refused for good"),
    "nak": ("nats_jetstream_consumer_nak", "Messages that were given back"),
    "consumer_leader_elected": ("nats_jetstream_consumer_leader_elected", "Leaders that were chosen for consumers"),
    "consumer_quorum_lost": ("nats_jetstream_consumer_quorum_lost", "How often a consumer lost its quorum"),
    "stream_leader_elected": ("nats_jetstream_stream_leader_elected", "Leaders that were chosen for streams"),
    "stream_quorum_lost": ("nats_jetstream_stream_quorum_lost", "How often a stream lost its quorum"),
}
_STATES = ("never run", "running", "troubled", "done", "stopped", "failed", "cut off")


def exposition(survey: Survey | None = None, programs: Mapping[str, Program] | None = None) -> bytes:
    """Write what a survey knows in the text format of Prometheus; nothing that is old, if NATS does not answer.

    `programs` are things that run in this process, each under a name: `Assembler`s of chunks, `Service`s of the bus,
    `Gateway`s of channels, `Worker`s of JetStream.
    """
    families = _surveyed(survey) if survey is not None else []
    if programs:
        from penstock.metrics.programs import program_families

        families += program_families(programs)
    return write(families)


def _surveyed(survey: Survey) -> list[Family]:
    snapshot, now = survey.snapshot, time.time()
    families = [*_survey(snapshot, survey, now), *_pipelines(snapshot.pipelines), *_troubles(snapshot)]
    if snapshot.jetstream is not None:
        families += _account(snapshot)
    if snapshot.problem is None:
        families += [
            *_streams(snapshot.streams.values()),
            *_consumers(snapshot, now),
            *_heard(dict(survey.ears.heard)),
            *_channels(snapshot.streams.values()),
        ]
    return families


def _one(name: str, kind: str, said: str, value: float | None, written: str = "") -> Family:
    family = Family(name, kind, said)
    family.add(written, value)
    return family


def _survey(snapshot: Snapshot, survey: Survey, now: float) -> Iterator[Family]:
    covered = snapshot.covered
    up = float(snapshot.problem is None and covered.rounds > 0)
    yield _one("penstock_up", "gauge", "1 if NATS answered in the last round", up)
    for name, seen, there in (
        ("streams", covered.streams, covered.streams_of),
        ("consumers", covered.consumers, covered.consumers_of),
    ):
        yield _one(f"penstock_survey_{name}", "gauge", f"{name.capitalize()} that were looked at", seen)
        yield _one(f"penstock_survey_{name}_expected", "gauge", f"{name.capitalize()} that there are", there)
    yield _one("penstock_survey_unseen", "gauge", "Things that could not be looked at", len(covered.unseen))
    yield _one("penstock_survey_rounds", "counter", "Rounds since the start", covered.rounds)
    yield _one("penstock_survey_round_seconds", "gauge", "How long the last round took", covered.seconds)
    oldest = None if covered.oldest is None else max(0.0, now - covered.oldest)
    yield _one("penstock_survey_oldest_seconds", "gauge", "Age of the oldest look", oldest)
    yield _one("penstock_survey_events_missed", "counter", "Events that were not read", survey.ears.missed)


def _account(snapshot: Snapshot) -> Iterator[Family]:
    account, limits = snapshot.account, snapshot.account.get("limits") or {}
    if snapshot.jetstream is not None:
        yield _one(
            "jetstream_server_jetstream_disabled", "gauge", "1 if JetStream is off", float(not snapshot.jetstream)
        )
    if not account:
        return
    written = labels({"domain": _text(account.get("domain"))})
    for name, word in (("storage", "storage"), ("memory", "memory")):
        used, most = account.get(name), limits.get(f"max_{name}")
        yield _one(f"jetstream_account_{name}_used", "gauge", f"Bytes of {word} that are used", used, written)
        yield _one(f"jetstream_account_max_{name}", "gauge", f"Bytes of {word} that may be used", most, written)
    api = account.get("api") or {}
    yield _one("penstock_api_requests", "counter", "Requests to the JetStream API", api.get("total"), written)
    yield _one("penstock_api_errors", "counter", "Requests that the API refused", api.get("errors"), written)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _stream_labels(state: StreamState) -> dict[str, str | None]:
    return {
        "cluster": state.cluster,
        "stream_name": state.name,
        "stream_leader": state.leader,
        "is_stream_leader": "true",
    }


def _streams(states: Iterable[StreamState]) -> Iterator[Family]:
    known = [(state, _stream_labels(state)) for state in states]
    lines = [(state, labels(found)) for state, found in known]
    for name, (said, value) in _STREAM.items():
        family = Family(name, "gauge", said)
        for state, written in lines:
            family.add(written, value(state))
        yield family
    for kind in ("source", "mirror"):
        lag = Family(f"jetstream_stream_{kind}_lag", "gauge", f"Messages that a {kind} is behind")
        active = Family(
            f"jetstream_stream_{kind}_active_duration_ns", "gauge", f"Nanoseconds since the {kind} was heard of, or -1"
        )
        for state, found in known:
            for copy in state.copies:
                if (copy.name == state.mirror) == (kind == "mirror"):
                    written = labels({**found, f"{kind}_name": copy.name, f"{kind}_api": copy.external})
                    lag.add(written, copy.lag)
                    active.add(written, -1 if copy.active is None else round(copy.active * _NANO))
        yield from (lag, active)


def _consumers(snapshot: Snapshot, now: float) -> Iterator[Family]:
    lines = []
    streams = {name: _stream_labels(state) for name, state in snapshot.streams.items()}
    for state in snapshot.consumers.values():
        found = {
            **streams.get(state.stream, {"stream_name": state.stream}),
            "consumer_name": state.name,
            "consumer_leader": state.leader,
            "is_consumer_leader": "true",
        }
        lines.append((state, labels(found)))
    for name, (said, value) in _CONSUMER.items():
        family = Family(name, "gauge", said)
        for state, written in lines:
            family.add(written, value(state, now))
        yield family


def _since(moment: datetime | None, now: float) -> float | None:
    return None if moment is None else max(0.0, now - moment.timestamp())


def _heard(heard: Mapping[tuple[str, str], Heard]) -> Iterator[Family]:
    took = Family("nats_jetstream_acknowledgement_duration", "histogram", "Seconds from a delivery to its sampled ack")
    deliveries = Family("nats_jetstream_acknowledgement_deliveries", "counter", "Deliveries that sampled acks took")
    told = {kind: Family(name, "counter", said) for kind, (name, said) in _ADVISORIES.items()}
    other = Family("nats_jetstream_total_advisories", "counter", "Advisories about streams and consumers")
    for (stream, consumer), item in heard.items():
        names = {"stream": stream, "consumer": consumer}
        written = labels(names)
        if item.acks:
            total = 0
            for most, amount in zip((*map(repr, BUCKETS), "+Inf"), item.buckets, strict=True):
                total += amount
                took.samples.append(("_bucket", labels({**names, "le": most}), total))
            took.samples += [("_sum", written, item.seconds), ("_count", written, item.acks)]
            deliveries.add(written, item.deliveries)
        for kind, amount in dict(item.told).items():  # it goes on being counted while we write
            if kind in told:
                told[kind].add(written, amount)
        if item.told:
            other.add(written, sum(item.told.values()))
    yield from (took, deliveries, *told.values(), other)


def _channels(states: Iterable[StreamState]) -> Iterator[Family]:
    families = [
        Family("penstock_channel_messages", "gauge", "Messages that a channel of NATS Streaming holds"),
        Family("penstock_channel_bytes", "gauge", "Bytes that a channel of NATS Streaming holds"),
        Family("penstock_channel_last_sequence", "gauge", "Last sequence of a channel of NATS Streaming"),
    ]
    for state in states:
        if state.channel is not None:
            written = labels({"cluster_id": state.channel[0], "channel": state.channel[1]})
            for family, value in zip(families, (state.messages, state.bytes, state.last_sequence), strict=True):
                family.add(written, value)
    yield from families


def _pipelines(states: Iterable[PipelineSeen]) -> Iterator[Family]:
    state_of = Family("penstock_pipeline_state", "gauge", "1 for the state that a pipeline is in")
    told = Family("penstock_pipeline_told_timestamp_seconds", "gauge", "When its newest run last told how far it is")
    figures = {
        "rows": Family("penstock_flow_rows", "counter", "Rows that a flow read in its newest run"),
        "rows_out": Family("penstock_flow_rows_out", "counter", "Rows that a flow wrote in its newest run"),
        "rate": Family("penstock_flow_rows_per_second", "gauge", "Rows a second in its newest micro-batch"),
        "batch_seconds": Family("penstock_flow_batch_seconds", "gauge", "How long its newest micro-batch took"),
        "lag": Family("penstock_flow_lag_messages", "gauge", "Messages that wait in the streams that it reads"),
        "state_bytes": Family("penstock_flow_state_bytes", "gauge", "Bytes of state that it keeps"),
        "failed": Family("penstock_flow_failed", "gauge", "1 if Spark said last that the flow failed"),
    }
    for state in states:
        names = {"pipeline": state.name, "replay": state.replay}
        for word in _STATES:
            state_of.add(labels({**names, "state": word}), float(word == state.state))
        told.add(labels(names), state.told)
        for flow in state.flows:
            written = labels({**names, "flow": flow.name})
            for name, family in figures.items():
                value = getattr(flow, name)
                family.add(written, float(value) if isinstance(value, bool) else value)
    yield from (state_of, told, *figures.values())


def _troubles(snapshot: Snapshot) -> Iterator[Family]:
    family = Family("penstock_trouble", "gauge", "1 for each thing that needs attention")
    seen = set[str]()
    for trouble in snapshot.trouble:
        what, *names = trouble.subject
        known = dict(zip(("stream", "consumer") if what in ("stream", "consumer") else (what,), names, strict=False))
        written = labels(
            {"kind": trouble.kind, "about": what, "severity": "bad" if trouble.severe else "warning", **known}
        )
        if written not in seen:  # a stream may have several replicas behind
            seen.add(written)
            family.add(written, 1.0)
    yield family
