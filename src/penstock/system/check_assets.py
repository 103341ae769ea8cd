"""Checks of streams, consumers, messages and buckets, over what JetStream answered. Pure.

Levels are those of `nats server check`. A stream or consumer may carry its own, as metadata such as
`io.nats.monitor.lag-critical`; what the caller gives goes first.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from penstock.durations import format_duration, parse_duration
from penstock.errors import InputError
from penstock.system.fields import fields, figure, moment, rows, seconds, switch, texts, word
from penstock.system.result import CheckResult, judge

__all__ = [
    "BucketLevels",
    "ConsumerLevels",
    "MessageLevels",
    "ReplicaLevels",
    "StreamLevels",
    "check_bucket",
    "check_consumer",
    "check_message",
    "check_replicas",
    "check_stream",
    "with_metadata",
]

_METADATA = "io.nats.monitor."

Levels = TypeVar("Levels", "StreamLevels", "ConsumerLevels")


@dataclass(frozen=True)
class StreamLevels:
    """What a stream must be; None if nothing is asked."""

    lag_critical: int | None = None
    """So many messages behind its mirror or a source is critical."""
    seen_critical: float | None = None
    """So many seconds without word of them is critical."""
    min_sources: int | None = None
    max_sources: int | None = None
    peer_expect: int | None = None
    """How many servers carry it."""
    peer_lag_critical: int | None = None
    peer_seen_critical: float | None = None
    msgs_warn: int | None = None
    msgs_critical: int | None = None
    subjects_warn: int | None = None
    subjects_critical: int | None = None


@dataclass(frozen=True)
class ConsumerLevels:
    """What a consumer must be; None, or nothing above zero, if nothing is asked."""

    outstanding_ack_critical: int | None = None
    waiting_critical: int | None = None
    unprocessed_critical: int | None = None
    last_delivery_critical: float | None = None
    last_ack_critical: float | None = None
    redelivery_critical: int | None = None
    pinned: bool | None = None


def with_metadata(levels: Levels, metadata: Mapping[str, Any]) -> Levels:
    """Give levels with those of the metadata if the caller gave none; InputError for one that cannot be read."""
    added: dict[str, Any] = {}
    for item in dataclasses.fields(levels):
        key = f"{_METADATA}{item.name.replace('_', '-')}"
        if getattr(levels, item.name) is None and key in metadata:
            added[item.name] = _level(str(metadata[key]), str(item.type), key)
    return dataclasses.replace(levels, **added)


def _level(text: str, kind: str, key: str) -> Any:
    if kind.startswith("float"):
        return parse_duration(text, option=key)
    if kind.startswith("bool") and text.lower() in ("1", "t", "true", "0", "f", "false"):
        return text.lower() in ("1", "t", "true")
    try:
        return int(text)
    except ValueError:
        raise InputError(f"The metadata {key} is {text!r}.", remedy="Write a number.") from None


# -- streams ---------------------------------------------------------------------------------------------------------


def check_stream(result: CheckResult, info: Mapping[str, Any], levels: StreamLevels) -> None:
    """Check a stream: its peers, how much it holds, and how far it is behind what it copies."""
    _check_peers(result, info, levels)
    messages, subjects = figure(info, "state", "messages"), figure(info, "state", "num_subjects")
    if levels.msgs_warn or levels.msgs_critical:
        result.measure(
            "messages",
            messages,
            "Messages that the stream holds",
            warning=levels.msgs_warn or 0,
            critical=levels.msgs_critical or 0,
        )
        low = messages <= (levels.msgs_critical or -1), messages <= (levels.msgs_warn or -1)
        result.say("CRITICAL" if low[0] else "WARNING" if low[1] else "OK", f"{messages:,} messages")
    if levels.subjects_warn or levels.subjects_critical:
        result.measure(
            "subjects",
            subjects,
            "Different subjects that the stream holds",
            warning=levels.subjects_warn or 0,
            critical=levels.subjects_critical or 0,
        )
        level = judge(subjects, levels.subjects_warn or None, levels.subjects_critical or None)
        result.say(level, f"{subjects:,} subjects")
    sources = rows(info, "sources")
    _check_sources(result, sources, levels)
    if (levels.lag_critical or levels.seen_critical) and not sources:
        _check_mirror(result, info, levels)


def _check_peers(result: CheckResult, info: Mapping[str, Any], levels: StreamLevels) -> None:
    cluster = fields(info, "cluster")
    if figure(info, "config", "num_replicas") <= 1 or not cluster:
        if levels.peer_expect:
            result.critical("the stream has one replica and no peers")
        return
    if not word(cluster, "leader"):
        result.critical("there is no leader")
        return
    others = rows(cluster, "replicas")
    if levels.peer_expect and len(others) + 1 != levels.peer_expect:
        result.critical(f"{len(others) + 1} peers, and not {levels.peer_expect}")
        return
    result.ok(f"{len(others) + 1} peers, led by {word(cluster, 'leader')}")
    offline = [word(item, "name") for item in others if switch(item, "offline")]
    if offline:
        result.critical(f"offline: {', '.join(offline)}")
    if levels.peer_lag_critical:
        late = [word(item, "name") for item in others if figure(item, "lag") > levels.peer_lag_critical]
        _tell(result, late, f"more than {levels.peer_lag_critical:,} operations behind", "all peers are up to date")
    if levels.peer_seen_critical:
        away = [word(item, "name") for item in others if seconds(item, "active") > levels.peer_seen_critical]
        span = format_duration(levels.peer_seen_critical)
        _tell(result, away, f"not seen for more than {span}", "all peers are active")


def _tell(result: CheckResult, names: Sequence[str], wrong: str, right: str) -> None:
    if names:
        result.critical(f"{wrong}: {', '.join(names)}")
    else:
        result.ok(right)


def _check_sources(result: CheckResult, sources: Sequence[Mapping[str, Any]], levels: StreamLevels) -> None:
    count = len(sources)
    least, most = levels.min_sources or 0, levels.max_sources or 0
    result.measure("sources", count, "Streams that this one takes messages from", warning=least, critical=most)
    few, many = count < least, 0 < most < count
    result.say("CRITICAL" if few or many else "OK", f"{count} sources")
    if not levels.lag_critical and not levels.seen_critical:
        return
    late = [word(item, "name") for item in sources if levels.lag_critical and _lag(item) >= levels.lag_critical]
    away = [word(item, "name") for item in sources if levels.seen_critical and _unseen(item) >= levels.seen_critical]
    result.measure("sources_lagged", len(late), "Sources that the stream is too far behind")
    result.measure("sources_inactive", len(away), "Sources that were not heard of for too long")
    if sources:
        _tell(result, late, "too far behind", "all sources are up to date")
        _tell(result, away, "not seen for too long", "all sources are active")


def _lag(item: Mapping[str, Any]) -> int:
    return int(figure(item, "lag"))


def _unseen(item: Mapping[str, Any]) -> float:
    """Give the seconds since a mirror or source was heard of; the server says -1 of one that never was."""
    active = seconds(item, "active")
    return float("inf") if active < 0 else active


def _check_mirror(result: CheckResult, info: Mapping[str, Any], levels: StreamLevels) -> None:
    mirror = fields(info, "mirror")
    if not fields(info, "config", "mirror"):
        result.critical("the stream is not a mirror and has no sources")
        return
    if not mirror:
        result.critical("the server says nothing of the mirror")
        return
    unseen = _unseen(mirror)
    result.measure("lag", _lag(mirror), "Messages that the mirror is behind", critical=levels.lag_critical or 0)
    result.measure(
        "active",
        unseen if unseen != float("inf") else -1,
        "Seconds since the origin was heard of",
        critical=levels.seen_critical or 0,
        unit="s",
    )
    late = bool(levels.lag_critical) and _lag(mirror) >= (levels.lag_critical or 0)
    away = bool(levels.seen_critical) and unseen >= (levels.seen_critical or 0)
    if late:
        result.critical(f"the mirror is {_lag(mirror):,} messages behind")
    if away:
        never = unseen == float("inf")
        result.critical("the origin was never seen" if never else f"the origin was seen {format_duration(unseen)} ago")
    if not late and not away:
        result.ok(f"mirror of {word(info, 'config', 'mirror', 'name')}")


@dataclass(frozen=True)
class ReplicaLevels:
    """What the replicas of streams must be."""

    seen_critical: float = 5.0
    lag_critical: int = 200


def check_replicas(
    result: CheckResult, infos: Sequence[Mapping[str, Any]], missing: int, levels: ReplicaLevels
) -> None:
    """Check the replicas of all streams; `missing` counts those that nobody answers for."""
    counts = {"ok": 0, "no_leader": 0, "missing_replicas": 0, "lagged": 0, "not_seen": 0, "fail": missing}
    for info in infos:
        for state in _replica_states(info, levels):
            counts[state] += 1
    figures: dict[str, tuple[str, dict[str, Any]]] = {
        "ok": ("Streams whose replicas are well", {}),
        "no_leader": ("Streams without a leader", {}),
        "missing_replicas": ("Streams with fewer replicas than they should have", {}),
        "lagged": ("Replicas that are too far behind", {"critical": levels.lag_critical}),
        "not_seen": ("Replicas that were not seen for too long", {"critical": levels.seen_critical, "unit": "s"}),
        "fail": ("Streams and replicas that are not there", {}),
    }
    for name, (help, about) in figures.items():
        result.measure(f"replicas_{name}", counts[name], help, **about)
    ill = sum(counts.values()) - counts["ok"]
    if ill:
        result.critical(f"{ill:,} unhealthy replicas or streams")


def _replica_states(info: Mapping[str, Any], levels: ReplicaLevels) -> list[str]:
    wanted, cluster = figure(info, "config", "num_replicas"), fields(info, "cluster")
    if wanted <= 1:
        return ["ok"]
    if not cluster:
        return ["fail"]
    if not word(cluster, "leader"):
        return ["no_leader"]
    others = rows(cluster, "replicas")
    if len(others) != wanted - 1:
        return ["missing_replicas"]
    states = [
        "fail"
        if switch(item, "offline")
        else "not_seen"
        if 0 < levels.seen_critical < seconds(item, "active")
        else "lagged"
        if 0 < levels.lag_critical < _lag(item)
        else "ok"
        for item in others
    ]
    return [state for state in states if state != "ok"] or ["ok"]


# -- consumers -------------------------------------------------------------------------------------------------------


def check_consumer(result: CheckResult, info: Mapping[str, Any], levels: ConsumerLevels, now: datetime) -> None:
    """Check a consumer: what waits for acks, for deliveries and for messages, and when it did something last."""
    counted = (
        ("ack_pending", "num_ack_pending", "Messages that wait for their ack", levels.outstanding_ack_critical),
        ("pull_waiting", "num_waiting", "Pull requests that wait for messages", levels.waiting_critical),
        ("pending", "num_pending", "Messages that were not delivered yet", levels.unprocessed_critical),
        ("redelivered", "num_redelivered", "Messages that were delivered more than once", levels.redelivery_critical),
    )
    for name, key, help, critical in counted:
        result.measure(name, figure(info, key), help, critical=critical or 0)
    timed = (
        ("last_delivery", "delivered", "delivery", levels.last_delivery_critical),
        ("last_ack", "ack_floor", "ack", levels.last_ack_critical),
    )
    for name, key, what, critical_seconds in timed:
        if (last := moment(info, key, "last_active")) is not None:
            help = f"Seconds since the last {what}"
            result.measure(name, (now - last).total_seconds(), help, critical=critical_seconds or 0, unit="s")
    for name, key, _, critical in counted:
        if critical and critical > 0:
            count = figure(info, key)
            result.say("CRITICAL" if count >= critical else "OK", f"{count:,} {name.replace('_', ' ')}")
    for _, key, what, critical_seconds in timed:
        if critical_seconds and critical_seconds > 0:
            _check_last(result, moment(info, key, "last_active"), what, critical_seconds, now)
    _check_pinned(result, info, bool(levels.pinned))


def _check_last(result: CheckResult, last: datetime | None, what: str, critical: float, now: datetime) -> None:
    if last is None:
        result.critical(f"no {what} yet")
        return
    passed = (now - last).total_seconds()
    ago = format_duration(max(round(passed, 3), 0))
    result.say("CRITICAL" if passed >= critical else "OK", f"last {what} {ago} ago")


def _check_pinned(result: CheckResult, info: Mapping[str, Any], wanted: bool) -> None:
    groups = texts(info, "config", "priority_groups")
    pins = word(info, "config", "priority_policy") == "pinned_client"
    pinned = sum(bool(word(item, "pinned_client_id")) for item in rows(info, "priority_groups"))
    if pins:
        result.measure("pinned_groups", pinned, "Groups that have a pinned client")
        result.measure("groups", len(groups), "Groups of the consumer")
    if not wanted:
        return
    if not pins or not groups:
        result.critical("the consumer pins no clients")
    else:
        result.say("OK" if pinned == len(groups) else "CRITICAL", f"{pinned} of {len(groups)} groups are pinned")


# -- messages and buckets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageLevels:
    """What a message must be: its age in seconds, and a pattern that its body holds."""

    age_warn: float = 0.0
    age_critical: float = 0.0
    content: str = "."
    body_timestamp: bool = False


def check_message(
    result: CheckResult, subject: str, data: bytes, stored: datetime, levels: MessageLevels, now: datetime
) -> None:
    """Check the last message of a subject: its age, by the server's time or the Unix time in its body, and its body."""
    if levels.body_timestamp:
        try:
            stored = datetime.fromtimestamp(int(data), UTC)
        except (ValueError, OverflowError, OSError):
            result.critical("the body is not a Unix time")
            return
    age = (now - stored).total_seconds()
    about = {"warning": levels.age_warn, "critical": levels.age_critical}
    result.measure("age", round(age, 3), "The age of the message", unit="s", **about)
    result.measure("size", len(data), "The size of the message", unit="B")
    text = f"{format_duration(round(age, 3))} old"
    if 0 < levels.age_critical < age:
        result.critical(text)
    elif 0 < levels.age_warn < age:
        result.warn(text)
    if levels.content and not re.search(levels.content.encode(), data):
        result.critical(f"the body does not match {levels.content}")
    if result.status == "OK":
        result.ok(f"the message on {subject} is valid")


@dataclass(frozen=True)
class BucketLevels:
    """How many values a bucket must hold; None if nothing is asked."""

    values_warn: int | None = None
    values_critical: int | None = None


def check_bucket(result: CheckResult, bucket: str, info: Mapping[str, Any], levels: BucketLevels) -> None:
    """Check how many values a key-value bucket holds, from what the server says of its stream."""
    values = figure(info, "state", "messages")
    result.ok(f"bucket {bucket}")
    result.measure(
        "values",
        values,
        "Values that the bucket holds",
        warning=levels.values_warn or 0,
        critical=levels.values_critical or 0,
    )
    if levels.values_warn is not None or levels.values_critical is not None:
        result.say(judge(values, levels.values_warn, levels.values_critical), f"{values:,} values")
    result.measure("bytes", figure(info, "state", "bytes"), "Bytes that the bucket holds", unit="B")
    result.measure("replicas", figure(info, "config", "num_replicas"), "Replicas of the bucket")
