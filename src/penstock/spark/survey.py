"""What the driver finds out about streams before tasks read them: state, places in time, counts between sequences.

Everything here is a request or two to the JetStream API. Counting uses direct get: asked for one message from a
sequence on, the server says how many follow it. Where a stream does not allow that, a short-lived consumer tells.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import InputError, NotFoundError
from penstock.spark.markers import MARKER_ROOT
from penstock.spark.offsets import Range
from penstock.spark.options import SourceOptions
from penstock.spark.planning import Point, Profile, TaskLimits, cut, how_many, spread
from penstock.spark.positions import Position
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream import direct, names
from penstock.wire.subjects import overlaps

__all__ = ["Probed", "StreamState", "Survey", "utc_now"]

# A plan is worth some milliseconds, not seconds: no range is looked at in more places than this.
MOST_PROBES = 256
# So many messages are looked at where the size of many is to be known.
SAMPLES = 16
# A trigger that is limited to so many messages may have a little less, if that saves requests.
CLOSE_ENOUGH = 0.9
EXACT = 100  # a smaller limit is met to the message


@dataclass(frozen=True)
class StreamState:
    """A stream as the server describes it; `head` is its first message, `first` its first one that is data."""

    name: str
    created: str
    head: int
    first: int
    last: int
    messages: int
    bytes: int
    deleted: int
    retention: str
    allow_direct: bool
    deny_purge: bool
    config: dict[str, Any]

    @classmethod
    def from_info(cls, info: dict[str, Any]) -> StreamState:
        """Read the answer of STREAM.INFO."""
        config, state = info["config"], info["state"]
        return cls(
            name=config["name"],
            created=info["created"],
            head=max(1, state.get("first_seq", 0)),
            first=max(1, state.get("first_seq", 0)),
            last=state.get("last_seq", 0),
            messages=state.get("messages", 0),
            bytes=state.get("bytes", 0),
            deleted=state.get("num_deleted", 0),
            retention=config.get("retention", "limits"),
            allow_direct=config.get("allow_direct", False),
            deny_purge=config.get("deny_purge", False),
            config=config,
        )

    @property
    def data_subjects(self) -> tuple[str, ...] | None:
        """The stream's subjects without those of the sink's markers; None where it has no markers."""
        own = tuple(self.config.get("subjects") or ())
        shown = tuple(subject for subject in own if not subject.startswith(f"{MARKER_ROOT}."))
        return None if shown == own else shown

    @property
    def hides_markers(self) -> bool:
        """Whether the sink's markers may lie among the data, so that only their subjects tell them from it."""
        own = self.config.get("subjects") or (">",)  # a mirror has the subjects of whatever it copies
        return any(overlaps(subject, f"{MARKER_ROOT}.>") for subject in own if not subject.startswith(MARKER_ROOT))

    @property
    def next(self) -> int:
        """The sequence that the next message will get."""
        return max(self.last + 1, self.first)

    @property
    def mean_size(self) -> int:
        """How many bytes a message takes on the average, as it is stored."""
        return self.bytes // self.messages if self.messages else 0


@dataclass(frozen=True)
class Probed:
    """A message that a probe hit: where it is, how large, and how many match from it on, itself included."""

    sequence: int
    size: int
    remaining: int


class Survey:
    """Questions about streams, on one connection, with the subjects that the query reads."""

    def __init__(self, bulk: BulkConnection, subjects: tuple[str, ...] | None) -> None:
        self.bulk = bulk
        self.subjects = subjects

    # -- which streams ------------------------------------------------------------------------------------------

    def names(self, options: SourceOptions) -> list[str]:
        """Give the streams that the options name; those of a pattern are looked up."""
        if options.stream is not None:
            return [options.stream]
        if options.channel is not None:
            from penstock.channels.names import stream_name  # the package brings the whole gateway with it

            return [stream_name(options.cluster_id, options.channel)]
        given = options.streams or ()
        found = [name for name in given if not any(mark in name for mark in "*?")]
        if len(found) < len(given):
            there = list(self._all_names())
            found += [name for pattern in given for name in there if fnmatch.fnmatchcase(name, pattern)]
        return sorted(set(found))

    def _all_names(self) -> Iterator[str]:
        seen = 0
        while True:
            answer = self.bulk.api("STREAM.NAMES", {"offset": seen})
            names = answer.get("streams") or []
            yield from names
            seen += len(names)
            if not names or seen >= answer.get("total", 0):
                return

    def subjects_of(self, state: StreamState) -> tuple[str, ...] | None:
        """Give the subjects to read of a stream: those of the query, or all but the sink's markers; None for all."""
        return state.data_subjects if self.subjects is None else self.subjects

    def lacks(self, state: StreamState, place: int) -> bool:
        """Tell whether messages of ours from a place on are gone.

        Where acks remove messages and we read some subjects only, others' acks move the head of the stream; there the
        query's bookmark keeps ours, and the head says nothing.
        """
        return state.first > place and (state.retention == "limits" or self.subjects_of(state) is None)

    def hides(self, state: StreamState) -> bool:
        """Tell whether markers must be picked out of what is read; who names them by their root wants them."""
        if self.subjects is None:
            return state.hides_markers
        named = any(item.startswith(MARKER_ROOT) for item in self.subjects)
        return not named and any(overlaps(item, f"{MARKER_ROOT}.>") for item in self.subjects)

    def state(self, name: str) -> StreamState:
        """Ask for a stream's state; InputError where it does not exist."""
        try:
            state = StreamState.from_info(self.bulk.api(f"STREAM.INFO.{name}"))
            if state.data_subjects and state.config.get("max_age") and state.messages:
                # A marker that never expires stands at the head, and says nothing about the data behind it.
                state = replace(state, first=self._first_data(state))
            return state
        except NotFoundError:
            known = list(self._all_names())
            shown = (
                f"There are {', '.join(known[:10])}{' …' if len(known) > 10 else ''}." if known else "There is none."
            )
            raise InputError(
                f"The stream {name} does not exist at {self.bulk.options.url}.",
                remedy=f"{shown} Check the name, the account and the domain.",
            ) from None

    def _first_data(self, state: StreamState) -> int:
        """Ask the leader, which lags behind nobody, for the first message that is no marker."""
        found = [state.next]
        for subject in state.data_subjects or ():
            body = direct.question(state.head, subject=subject)
            try:
                found.append(direct.read_message(self.bulk.api(names.message_get(state.name), body)).sequence)
            except NotFoundError:
                continue
        return min(found)

    # -- places -------------------------------------------------------------------------------------------------

    def place(self, state: StreamState, position: Position, strategy: str, now: datetime) -> int:
        """Turn a position into a sequence."""
        if position.kind == "all":
            return state.first
        if position.kind == "new":
            return state.next
        if position.kind == "last":
            return self._last(state)
        if position.sequence is not None:
            if position.sequence > state.next:
                raise InputError(
                    f"The option start is {position.sequence}, and the stream {state.name} ends with {state.last}.",
                    remedy=f"Give a sequence up to {state.next}, or new.",
                )
            return position.sequence
        time = position.at(now)
        assert time is not None
        if time > now:
            raise InputError(
                f"The option start is {_written(time)}, which is yet to come.",
                remedy="Give a time that has passed, or new.",
            )
        found = self._at_time(state, time)
        if found is None and strategy == "error":
            raise InputError(
                f"The stream {state.name} holds no message from {_written(time)} on.",
                remedy="Give an earlier start, or let startStrategy be latest, which begins with the next message.",
            )
        return state.next if found is None else found

    def end_place(self, state: StreamState, position: Position, now: datetime) -> int:
        """Turn the end of a batch into a sequence, exclusive; what is not there yet is left out."""
        if position.kind == "new":
            return state.next
        if position.kind == "last":
            return self._last(state)
        if position.sequence is not None:
            return min(position.sequence, state.next)
        time = position.at(now)
        assert time is not None
        found = self._at_time(state, time)
        return state.next if found is None else found

    def at_time(self, state: StreamState, time: datetime) -> int:
        """Give the first sequence stored at a time or later, the next one where there is none."""
        found = self._at_time(state, time)
        return state.next if found is None else found

    def _last(self, state: StreamState) -> int:
        subjects = self.subjects_of(state)
        if subjects is None:
            return max(state.last, state.first)
        found = []
        for subject in subjects:
            try:
                answer = self.bulk.api(names.message_get(state.name), direct.question(last=subject))
                found.append(direct.read_message(answer).sequence)
            except NotFoundError:
                continue
        return max(found, default=state.next)

    def _at_time(self, state: StreamState, time: datetime) -> int | None:
        if state.messages == 0:
            return None
        if state.allow_direct:
            found = self._direct(state.name, {"start_time": _written(time), "batch": 1})
            return None if found is None else found.sequence
        made = self._consumer(state, {"deliver_policy": "by_start_time", "opt_start_time": _written(time)})
        return int(made["delivered"]["stream_seq"]) + 1 if made["num_pending"] else None

    # -- counting -----------------------------------------------------------------------------------------------

    def probe(self, state: StreamState, sequence: int) -> Probed | None:
        """Find the first message at a sequence or behind it that the query reads; None where there is none."""
        if not state.allow_direct:
            return self._probe_by_consumer(state, sequence)
        hits = []
        subjects = self.subjects_of(state)
        for subject in (None,) if subjects is None else subjects:
            body = direct.question(sequence, subject=subject or None, batch=1)
            if hit := self._direct(state.name, body):
                hits.append(hit)
        if not hits:
            return None
        first = min(hits, key=lambda hit: hit.sequence)
        return Probed(first.sequence, first.size, sum(hit.remaining for hit in hits))

    def count(self, state: StreamState, start: int, end: int) -> int:
        """Count the messages of a range that the query reads."""
        if self.is_dense(state) and start >= state.first:
            return max(0, min(end, state.next) - start)
        return self._remaining(state, start) - self._remaining(state, end)

    def is_dense(self, state: StreamState) -> bool:
        """Tell whether every sequence of the stream is a message that the query reads."""
        return self.subjects_of(state) is None and state.deleted == 0

    def seek(self, state: StreamState, start: int, end: int, count: int, *, exact: bool = False) -> int:
        """Give a place such that `count` messages or a little less lie between `start` and it; `end` if fewer do."""
        if end - start <= count:
            return end
        if self.is_dense(state) and start >= state.first:
            return min(end, start + count)
        base = self._remaining(state, start)
        if base - self._remaining(state, end) <= count:
            return end
        low, low_count, high, high_count = start, 0, end, base - self._remaining(state, end)
        # Every sequence is at most one message, so the first `count` sequences are always within the limit.
        low = start + count
        low_count = base - self._remaining(state, low)
        enough = count if exact or count < EXACT else int(count * CLOSE_ENOUGH)
        for number in range(64):
            if low_count >= enough or high - low <= 1:
                break
            # Guess by proportion, and halve now and then, for messages may sit at one end.
            guess = low + (high - low) * (count - low_count) // max(1, high_count - low_count)
            middle = (low + high) // 2 if number % 3 == 2 else guess
            middle = min(max(middle, low + 1), high - 1)
            found = base - self._remaining(state, middle)
            if found <= count:
                low, low_count = middle, found
            else:
                high, high_count = middle, found
        return low

    def seek_bytes(self, state: StreamState, start: int, end: int, volume: int) -> int:
        """Give a place such that about `volume` bytes lie between `start` and it, one message at the least."""
        if start >= end:
            return start
        size = max(1, state.mean_size)
        for _ in range(3):
            stop = max(start + 1, self.seek(state, start, end, max(1, volume // size)))
            sampled = self._mean_size(state, start, stop)
            if sampled <= size:
                break
            size = sampled
        return stop

    def _mean_size(self, state: StreamState, start: int, end: int) -> int:
        if not state.allow_direct:
            return state.mean_size
        found = [hit for place in (start, *spread(start, end, SAMPLES)) if (hit := self.probe(state, place))]
        sizes = [hit.size for hit in found if hit.sequence < end]
        return sum(sizes) // len(sizes) if sizes else state.mean_size

    def _remaining(self, state: StreamState, sequence: int) -> int:
        if sequence >= state.next:
            return 0
        found = self.probe(state, sequence)
        return 0 if found is None else found.remaining

    # -- cutting ------------------------------------------------------------------------------------------------

    def cut(self, state: StreamState, wanted: Range, limits: TaskLimits) -> list[Range]:
        """Cut a range into tasks, balanced by what is really there."""
        start, end = max(wanted.start, state.first), min(wanted.end, state.next)
        if start >= end:
            return [wanted] if wanted.width else []
        profile = Profile.even(start, end, self.count(state, start, end), state.mean_size)
        parts = how_many(profile, limits)
        if parts > 1:
            profile = self._look_closer(state, profile, parts)
            parts = how_many(profile, limits)
        ranges = cut(wanted.stream, profile, parts) or [Range(wanted.stream, start, end)]
        if limits.records is not None:
            ranges = [piece for item in ranges for piece in self._within(state, profile, item, limits.records)]
        # What is gone already belongs to the first task, which reports it.
        return [Range(wanted.stream, wanted.start, ranges[0].end), *ranges[1:]]

    def _look_closer(self, state: StreamState, profile: Profile, parts: int) -> Profile:
        start, end = profile.points[0].sequence, profile.points[-1].sequence
        total, probes = profile.count, min(4 * parts, MOST_PROBES // 2)
        points, size = [], state.mean_size
        for sequence in spread(start, end, probes):
            found = self.probe(state, sequence)
            before = total if found is None else total - (found.remaining - self._beyond(state, end))
            size = size if found is None else found.size
            points.append(Point(sequence, min(max(before, 0), total), size))
        first = points[0].size if points else size
        profile = Profile([Point(start, 0, first), *points, Point(end, total, size)])
        while len(profile.points) < MOST_PROBES:
            number = profile.heaviest(above=profile.weight // (2 * parts))
            if number is None:
                break
            left, right = profile.points[number], profile.points[number + 1]
            middle = (left.sequence + right.sequence) // 2
            if middle in (left.sequence, right.sequence):
                break
            found = self.probe(state, middle)
            before = total if found is None else total - (found.remaining - self._beyond(state, end))
            before = min(max(before, left.before), right.before)
            profile = profile.with_point(Point(middle, before, left.size if found is None else found.size))
        return profile

    def _beyond(self, state: StreamState, end: int) -> int:
        """Tell how many messages lie behind a range; asked once a range."""
        if getattr(self, "_beyond_memory", (None, 0))[0] != (state, end):
            self._beyond_memory = ((state, end), self._remaining(state, end))
        return self._beyond_memory[1]

    def _within(self, state: StreamState, profile: Profile, item: Range, records: int) -> Iterator[Range]:
        start = item.start
        while start < item.end:
            if profile.most_between(start, item.end) <= records:
                stop = item.end
            else:
                stop = self.seek(state, start, item.end, records, exact=True)
            yield Range(item.stream, start, stop)
            start = stop

    # -- requests -----------------------------------------------------------------------------------------------

    def _direct(self, stream: str, body: dict[str, Any]) -> Probed | None:
        get = direct.DirectGet(stream, body)
        answer = self.bulk.request(f"{self.bulk.options.js_prefix}.{names.direct_get(stream)}", get.payload)
        get.hear(answer.payload, answer.header)
        for content, block in get.result():
            found = direct.read_found(content, block)
            own = found.header.rfind(f"\r\n{names.STREAM}:".encode()) - len("NATS/1.0")  # the publisher's headers
            return Probed(found.sequence, len(content) + own, 1 + (found.pending or 0))
        return None

    def _probe_by_consumer(self, state: StreamState, sequence: int) -> Probed | None:
        made = self._consumer(state, {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence})
        return Probed(sequence, state.mean_size, int(made["num_pending"])) if made["num_pending"] else None

    def _consumer(self, state: StreamState, config: dict[str, Any]) -> dict[str, Any]:
        stream, subjects = state.name, self.subjects_of(state)
        filters: dict[str, Any] = {"filter_subjects": list(subjects)} if subjects else {}
        config = {
            **config,
            **filters,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 5_000_000_000,
        }
        made = self.bulk.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        self.bulk.api(f"CONSUMER.DELETE.{stream}.{made['name']}")
        return made


def utc_now() -> datetime:
    """Give the time on this machine's clock."""
    return datetime.now(UTC)


def _written(time: datetime) -> str:
    # Imported when a time is named: every Python worker of Spark imports this module, and most need none.
    from penstock.model import format_time

    return format_time(time)
