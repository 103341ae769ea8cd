"""What one answer of the server becomes: the state of a stream or of a consumer, seen after the look before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.channels.names import CHANNEL, CLUSTER
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream.letter import is_dead_letter
from penstock.spark.markers import is_marker
from penstock.spark.source_options import BOOKMARK
from penstock.survey.state import ConsumerState, StreamState
from penstock.wire.jetstream.answers import number, part, text, texts

__all__ = ["has_markers", "see_consumer", "see_stream"]

_SUBJECTS = 20  # of a stream's configuration that are kept
_FILTERS = 20
_NANO = 1_000_000_000
_FOLLOWS = 5.0  # seconds
_LEAST = 0.01  # messages a second: what fades away below that is over


def _limit(config: Mapping[str, Any], name: str) -> int | None:
    """Give a limit; none, 0 and -1 all mean that there is none."""
    found = config.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _gone(before: StreamState | ConsumerState | None, info: StreamInfo | ConsumerInfo) -> bool:
    """Whether what was seen before is another thing of the same name."""
    return before is not None and before.created != info.created


def has_markers(info: StreamInfo) -> bool:
    """Whether a stream takes markers of the Spark sink beside its messages."""
    return any(is_marker(subject) for subject in texts(part(info.raw, "config"), "subjects"))


def see_stream(info: StreamInfo, before: StreamState | None, looked: float, markers: int | None = None) -> StreamState:
    """Make the state of a stream: `markers` is how many of its messages are markers, None if nobody counted."""
    config = part(info.raw, "config")
    subjects = [subject for subject in texts(config, "subjects") if not is_marker(subject)]
    mirror = config.get("mirror")
    at = _seconds(info.time, looked)
    return StreamState(
        name=info.name,
        created=info.created,
        looked=at,
        description=text(config, "description", ""),
        subjects=tuple(subjects[:_SUBJECTS]),
        more_subjects=max(0, len(subjects) - _SUBJECTS),
        storage=text(config, "storage", ""),
        retention=text(config, "retention", ""),
        replicas=number(config, "num_replicas", 1),
        messages=max(0, info.messages - (markers or 0)),
        markers=markers,
        bytes=info.bytes,
        first_sequence=info.first_sequence,
        first_time=info.first_time,
        last_sequence=info.last_sequence,
        last_time=info.last_time,
        deleted=info.deleted,
        lost=info.lost,
        subjects_held=info.subjects,
        consumers=info.consumers,
        max_messages=_limit(config, "max_msgs"),
        max_bytes=_limit(config, "max_bytes"),
        max_age=None if (age := _limit(config, "max_age")) is None else age / _NANO,
        discard=text(config, "discard", "old"),
        dead_letters=any(is_dead_letter(subject) for subject in subjects),
        rate=None if before is None or _gone(before, info) else _stored_rate(before, info, markers, at),
        cluster=info.placed.cluster,
        leader=info.placed.leader,
        others=info.placed.others,
        copies=info.copies,
        mirror=text(mirror, "name", "") or None if isinstance(mirror, dict) else None,
        channel=_channel(config),
    )


def _channel(config: Mapping[str, Any]) -> tuple[str, str] | None:
    noted = config.get("metadata")
    if not isinstance(noted, dict) or not noted.get(CHANNEL):
        return None
    return str(noted.get(CLUSTER, "")), str(noted[CHANNEL])


def _stored_rate(before: StreamState, info: StreamInfo, markers: int | None, at: float) -> float | None:
    """Give how many messages a second were stored since the look before; None if the stream went back."""
    passed = at - before.looked
    if passed <= 0:
        return before.rate
    stored = info.last_sequence - before.last_sequence
    if stored < 0:
        return None  # restored from an older copy
    if markers is not None and before.markers is not None:
        # Markers have sequences, too: what it holds without them tells more, as long as nothing was removed.
        stored = min(stored, max(0, info.messages - markers - before.messages))
    return _smooth(before.rate, stored / passed, passed)


def see_consumer(
    info: ConsumerInfo,
    before: ConsumerState | None,
    looked: float,
    *,
    lag_seconds: float | None = None,
    acks: tuple[int, float | None, float | None] = (0, None, None),
) -> ConsumerState:
    """Make the state of a consumer; `acks` are the sampled acks so far, and two percentiles of the newest ones."""
    config = part(info.raw, "config")
    if _gone(before, info):
        before = None
    push = bool(config.get("deliver_subject"))
    filters = texts(config, "filter_subjects") or [item for item in [text(config, "filter_subject", "")] if item]
    at = _seconds(info.time, looked)
    return ConsumerState(
        stream=info.stream,
        name=info.name,
        created=info.created,
        looked=at,
        description=text(config, "description", ""),
        kind="push" if push else "pull",
        durable=bool(config.get("durable_name")),
        filter=tuple(filters[:_FILTERS]),
        ack_policy=text(config, "ack_policy", ""),
        max_ack_pending=_limit(config, "max_ack_pending"),
        max_deliver=_limit(config, "max_deliver"),
        ack_wait=(_limit(config, "ack_wait") or 0) / _NANO,
        lag=info.pending,
        lag_seconds=0.0 if not info.pending else lag_seconds,
        ack_pending=info.ack_pending,
        redelivered=info.redelivered,
        waiting=info.waiting,
        delivered=info.delivered,
        acked=info.ack_floor,
        listened_to=info.push_bound if push else info.waiting > 0,
        paused=info.paused,
        rate=None if before is None else _delivery_rate(before, info, at),
        still=_still(info, before, at, lag_seconds),
        ack_p50=acks[1],
        ack_p99=acks[2],
        acks=acks[0],
        sourcing=info.is_sourcing,
        bookmark=config.get("description") == BOOKMARK,
        cluster=info.placed.cluster,
        leader=info.placed.leader,
        others=info.placed.others,
    )


def _delivery_rate(before: ConsumerState, info: ConsumerInfo, at: float) -> float | None:
    passed = at - before.looked
    if passed <= 0:
        return before.rate
    delivered = info.delivered.consumer - before.delivered.consumer
    return None if delivered < 0 else _smooth(before.rate, delivered / passed, passed)  # it was reset


def _smooth(before: float | None, now: float, passed: float) -> float:
    """Let a rate follow what is seen over some seconds: to two looks close together, one message looks like many."""
    if before is None:
        return now
    share = -math.expm1(-passed / _FOLLOWS)
    followed = before + share * (now - before)
    return followed if followed >= _LEAST else now


def _still(info: ConsumerInfo, before: ConsumerState | None, at: float, lag_seconds: float | None) -> float:
    """Give for how long nothing has moved although something waits."""
    if not info.pending and not info.ack_pending:
        return 0.0
    moves = (info.delivered.last, info.ack_floor.last, info.created)
    quiet = max(0.0, at - max((_seconds(moment, 0.0) for moment in moves), default=at))
    if info.ack_pending:
        return quiet
    # Nothing may have moved because nothing was there: what waits may have come a moment ago.
    if lag_seconds is not None:
        return min(quiet, lag_seconds)
    waited = at - before.looked + before.still if before is not None and before.lag else 0.0
    return min(quiet, waited)


def _seconds(moment: datetime | None, default: float) -> float:
    return default if moment is None else moment.timestamp()
