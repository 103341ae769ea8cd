"""What the driver finds out about a stream before tasks read it: its state, places in time, counts between sequences.

Everything here is a request or two to the JetStream API. Whatever decides on what is read is asked of the stream's
leader. Counting uses direct get: asked for one message from a sequence on, the server says how many follow it. If a
stream does not allow that, or a mirror answers for it, a short-lived consumer tells.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.buckets.key_wire import stream_of_bucket
from penstock.buckets.object_wire import stream_of_objects
from penstock.errors import DataLossError, InputError, NotFoundError
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import MARKER_ROOT, is_marker
from penstock.spark.offsets import Mark, Range
from penstock.spark.partition import NatsPartition
from penstock.spark.planning import Point, Profile, cut, how_many, spread
from penstock.spark.positions import Position
from penstock.spark.source_options import SourceOptions
from penstock.wire.jetstream import direct, names
from penstock.wire.jetstream.answers import check_done, number, text
from penstock.wire.subjects import overlaps

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

__all__ = ["CLOCK_MARGIN", "Probed", "Survey", "stream_names"]

# A plan is worth some milliseconds, not seconds: no range is looked at in more places than this.
MOST_PROBES = 256
# So many messages are looked at if the size of many is to be known.
SAMPLES = 16
# A trigger that is limited to so many messages may have a little less, if that saves requests.
CLOSE_ENOUGH = 0.9
EXACT = 100  # a smaller limit is met to the message
# The clocks of a cluster's servers differ a little, so times may step back when a leader changes.
CLOCK_MARGIN = timedelta(seconds=10)


def stream_names(bulk: TaskConnection, options: SourceOptions) -> list[str]:
    """Give the streams that the options name; those of a pattern are looked up."""
    if options.stream is not None:
        return [options.stream]
    if options.bucket is not None:
        return [stream_of_bucket(options.bucket)]
    if options.objects is not None:
        return [stream_of_objects(options.objects)]
    if options.channel is not None:
        from penstock.channels.names import stream_name  # the package brings the whole gateway with it

        return [stream_name(options.cluster_id, options.channel)]
    given = options.streams or ()
    found = [name for name in given if not any(mark in name for mark in "*?")]
    if len(found) < len(given):
        there = bulk.list_names("STREAM.NAMES", "streams")
        found += [name for pattern in given for name in there if fnmatch.fnmatchcase(name, pattern)]
    return sorted(set(found))


@dataclass(frozen=True)
class Probed:
    """A message that a probe hit: where it is, how large, and how many match from it on, itself included."""

    sequence: int
    size: int
    remaining: int


class Survey:
    """A stream as the server described it, and questions about it, with the subjects that the query reads.

    `mark`: where the query stands in it. InputError if there is no such stream.
    """

    aside = ""
    """What else holds messages of the stream, as a sentence for people."""

    def __init__(
        self, bulk: TaskConnection, name: str, subjects: tuple[str, ...] | None, mark: Mark | None = None
    ) -> None:
        try:
            info = bulk.stream_info(name, mark.created, mark.reach) if mark else bulk.stream_info(name)
        except NotFoundError:
            raise self._absent(bulk, name) from None
        self.bulk = bulk
        self.name = name
        self.created: str = info["created"]
        self.asked = _parsed(info["ts"]) if "ts" in info else datetime.now(UTC)
        """When the stream was described, by the server's clock."""
        self.config: dict[str, Any] = info["config"]
        self.retention: str = self.config.get("retention", "limits")
        self.allow_direct: bool = self.config.get("allow_direct", False)
        state = info["state"]
        self.last: int = state.get("last_seq", 0)
        self.last_time: str = state.get("last_ts", "")
        self.messages: int = state.get("messages", 0)
        self.deleted: int = state.get("num_deleted", 0)
        self.mean_size: int = state.get("bytes", 0) // self.messages if self.messages else 0
        """How many bytes a message takes on the average, as it is stored."""
        # What is copied or transformed has other subjects than those that the stream takes: they tell nothing then.
        mapped = any(self.config.get(name) for name in ("mirror", "sources", "subject_transform"))
        own = () if mapped else tuple(self.config.get("subjects") or ())
        shown_subjects = tuple(subject for subject in own if not is_marker(subject))
        self.data_subjects = None if shown_subjects == own else shown_subjects
        """The stream's subjects without those of the sink's markers; None if it has none, or they do not tell."""
        self.subjects = self.data_subjects if subjects is None else subjects
        """The subjects to read: those of the query, or all but the sink's markers; None for all."""
        self.hides = _hides(own, subjects)
        """Whether markers must be picked out of what is read."""
        self.head: int = max(1, state.get("first_seq", 0))
        """The first message."""
        self.first: int = self.head
        """The first message that is data."""
        if self.data_subjects and self.config.get("max_age") and self.messages:
            # A marker that never expires stands at the head, and says nothing about the data behind it.
            self.first = self._first_data()

    def _absent(self, bulk: TaskConnection, name: str, noun: str = "stream", prefix: str = "") -> InputError:
        """Say that there is no such stream, and which there are; of buckets only those of the kind."""
        known = [
            item.removeprefix(prefix) for item in bulk.list_names("STREAM.NAMES", "streams") if item.startswith(prefix)
        ]
        more = " …" if len(known) > 10 else ""
        shown = f"There are {', '.join(known[:10])}{more}." if known else "There is none."
        return InputError(
            f"The {noun} {name.removeprefix(prefix)} does not exist at {bulk.options.url}.",
            remedy=f"{shown} Check the name, the account and the domain.",
        )

    @property
    def next(self) -> int:
        """The sequence that the next message will get."""
        return max(self.last + 1, self.first)

    def _first_data(self) -> int:
        return self._following(self.data_subjects or (), self.head)

    def following(self, place: int) -> int:
        """Give the first sequence from a place on that holds a message which the query reads; `next` if none does."""
        return place if self._is_dense(place) else self._following(self.subjects or (">",), place)

    def _following(self, subjects: tuple[str, ...], place: int) -> int:
        """Ask the leader, which lags behind nobody."""
        found = [self.bulk.following(self.name, subject, place) for subject in subjects]
        return min([self.next, *(item.sequence for item in found if item)])

    # -- losses -------------------------------------------------------------------------------------------------

    def beginning(self, place: int) -> int:
        """Give the sequence before which messages are gone, as it matters to who stands at a place."""
        return self.first

    def stretch(self, place: int) -> int:
        """Give the sequence up to which one micro-batch may reach from a place on."""
        return self.next

    def pieces(self, wanted: Range) -> Iterator[Range]:
        """Give the parts of a range that are read in different ways, each of them looked at by itself."""
        yield wanted

    def lacks(self, place: int) -> bool:
        """Tell whether messages of ours from a place on are gone.

        If acks remove messages and we read some subjects only, others' acks move the head of the stream; there the
        query's bookmark keeps ours, and the head says nothing.
        """
        return self.beginning(place) > place and (self.retention == "limits" or self.subjects is None)

    def expired(self, place: int) -> int:
        """Give the sequence up to which messages of ours from a place on may have expired; the place if none can have.

        Messages that outlive the stream's age limit, by a TTL of their own, keep its first sequence where it is.
        """
        age = self.config.get("max_age", 0)
        if not age or not self.config.get("allow_msg_ttl") or place >= self.next:
            return place
        kept = self.at_time(self.asked - timedelta(seconds=age / 1e9)) or self.next
        if kept <= place or (self.subjects is None and self.count(place, kept) == kept - place):
            return place
        return kept

    def loss(self, start: int, end: int) -> DataLossError:
        """Say which messages are gone, and what to do."""
        named = self.subjects if self.subjects != self.data_subjects else None
        doubt = f" Nobody knows whether any of them was on {', '.join(named)}." if named else ""
        return DataLossError(
            f"The messages [{start}, {end}) of the stream {self.name} are gone before they were read; it holds "
            f"[{self.first}, {self.next}).{self.aside}{doubt}",
            remedy="Limits, a purge or a deletion took them. Raise the stream's limits or read faster; to go on "
            "without them, set failOnDataLoss to false, and they are skipped and counted.",
            stream=self.name,
            start=start,
            end=end,
            first=self.first,
            last=self.last,
        )

    def set_back(self, mark: Mark) -> int | None:
        """Give the sequence from which on the stream holds other messages than it once did, or none; None if all are.

        A stream that is restored from a backup keeps its time of creation, and so does one whose server came up with an
        older store. It is shorter then; or, once as many came again, others stand where those that were seen stood.
        """
        if not mark.last or (self.last == mark.last and self.last_time == mark.time):
            return None
        if self.last < mark.last:
            return self.next
        found = self.bulk.at(self.name, mark.last)
        if found is not None:
            same = found.time == mark.time
        else:  # it was deleted, or limits took it: what came after it must still come after it
            later = self.at_time(_parsed(mark.time) + CLOCK_MARGIN)
            same = later is None or later > mark.last
        return None if same else min(self.at_time(_parsed(mark.time)) or self.next, mark.last)

    def lost_after(self, mark: Mark, place: int) -> DataLossError:
        """Say that the stream was set back to a place."""
        return DataLossError(
            f"The stream {self.name} was set back: it once held messages up to {mark.last}, the last of them stored at "
            f"{mark.time}; those from {place} on are gone, and others may stand in their place.",
            remedy="It was restored from a backup, or its server came up with an older store. Start anew with another "
            "checkpoint, or set failOnDataLoss to false to go on with what there is.",
            stream=self.name,
            start=place,
            end=mark.last + 1,
            first=self.first,
            last=self.last,
        )

    def check_there(self, wanted: Range, options: SourceOptions) -> None:
        """Refuse a range whose beginning is gone, unless the loss is allowed."""
        if options.fail_on_data_loss and self.lacks(wanted.start):
            raise self.loss(wanted.start, min(wanted.end, self.beginning(wanted.start)))

    # -- places -------------------------------------------------------------------------------------------------

    def start_place(self, options: SourceOptions, now: datetime) -> int:
        """Turn the start of a read into a sequence."""
        position = options.position("start", self.name, "all")
        time = position.at(now)
        if time is not None and time > now:
            raise InputError(
                f"The option start is {_written(time)}, which is yet to come.",
                remedy="Give a time that has passed, or new.",
            )
        found = self._place(position, time)
        if time is not None and found is None and options.start_strategy == "error":
            raise InputError(
                f"The stream {self.name} holds no message from {_written(time)} on.",
                remedy="Give an earlier start, or let startStrategy be latest, which begins with the next message.",
            )
        if position.sequence is not None and position.sequence > self.next:
            raise InputError(
                f"The option start is {position.sequence}, and the stream {self.name} ends with {self.last}.",
                remedy=f"Give a sequence up to {self.next}, or new.",
            )
        return self.next if found is None else found

    def end_place(self, options: SourceOptions, now: datetime) -> int:
        """Turn the end of a batch into a sequence, exclusive; what is not there yet is left out."""
        position = options.position("end", self.name, "new")
        found = self._place(position, position.at(now))
        return self.next if found is None else min(found, self.next)

    def _place(self, position: Position, time: datetime | None) -> int | None:
        if time is not None:
            return self.at_time(time)
        if position.kind == "all":
            return self.beginning(1)
        return self._last() if position.kind == "last" else position.sequence

    def _last(self) -> int:
        if self.subjects is None:
            return max(self.last, self.first)
        found = [self.bulk.last(self.name, subject) for subject in self.subjects]
        return max((item.sequence for item in found if item), default=self.next)

    def at_time(self, time: datetime) -> int | None:
        """Give the first sequence stored at a time or later; None if there is none."""
        found = self.bulk.since(self.name, _written(time)) if self.messages else None
        return None if found is None else found.sequence

    # -- counting -----------------------------------------------------------------------------------------------

    def probe(self, sequence: int) -> Probed | None:
        """Find the first message at a sequence or behind it that the query reads; None if there is none."""
        if not self.allow_direct:
            made = self._consumer({"deliver_policy": "by_start_sequence", "opt_start_seq": sequence})
            pending = number(made, "num_pending")
            return Probed(sequence, self.mean_size, pending) if pending else None
        asked = (None,) if self.subjects is None else self.subjects
        hits = [self._direct(direct.question(sequence, subject=subject, batch=1)) for subject in asked]
        found = [hit for hit in hits if hit is not None]
        if not found and self.following(sequence) < self.next:
            self.allow_direct = False  # whoever answered lacks what the leader has
        if not self.allow_direct:
            return self.probe(sequence)
        if not found:
            return None
        first = min(found, key=lambda hit: hit.sequence)
        return replace(first, remaining=sum(hit.remaining for hit in found))

    def count(self, start: int, end: int) -> int:
        """Count the messages of a range that the query reads."""
        if self._is_dense(start):
            return max(0, min(end, self.next) - start)
        return self._remaining(start) - self._remaining(end)

    def _is_dense(self, start: int) -> bool:
        """Tell whether every sequence from a place on is a message that the query reads."""
        return self.subjects is None and self.deleted == 0 and start >= self.first

    def seek(self, start: int, end: int, count: int, *, exact: bool = False) -> int:
        """Give a place such that `count` messages or a little less lie between `start` and it; `end` if fewer do."""
        if end - start <= count:
            return end
        if self._is_dense(start):
            return min(end, start + count)
        base = self._remaining(start)
        high, high_count = end, base - self._remaining(end)
        if high_count <= count:
            return end
        # Every sequence is at most one message, so the first `count` sequences are always within the limit.
        low = start + count
        low_count = base - self._remaining(low)
        enough = count if exact or count < EXACT else int(count * CLOSE_ENOUGH)
        for step in range(64):
            if low_count >= enough or high - low <= 1:
                break
            # Guess by proportion, and halve now and then, for messages may sit at one end.
            guess = low + (high - low) * (count - low_count) // max(1, high_count - low_count)
            middle = (low + high) // 2 if step % 3 == 2 else guess
            middle = min(max(middle, low + 1), high - 1)
            found = base - self._remaining(middle)
            if found <= count:
                low, low_count = middle, found
            else:
                high, high_count = middle, found
        return low

    def seek_bytes(self, start: int, end: int, volume: int) -> int:
        """Give a place such that about `volume` bytes lie between `start` and it, one message at the least."""
        if start >= end:
            return start
        size = max(1, self.mean_size)
        for _ in range(3):
            stop = max(start + 1, self.seek(start, end, max(1, volume // size)))
            sampled = self._sampled_size(start, stop)
            if sampled <= size:
                break
            size = sampled
        return stop

    def _sampled_size(self, start: int, end: int) -> int:
        if not self.allow_direct:
            return self.mean_size
        found = [hit for place in (start, *spread(start, end, SAMPLES)) if (hit := self.probe(place))]
        sizes = [hit.size for hit in found if hit.sequence < end]
        return sum(sizes) // len(sizes) if sizes else self.mean_size

    def _remaining(self, sequence: int) -> int:
        found = self.probe(sequence) if sequence < self.next else None
        return 0 if found is None else found.remaining

    # -- cutting ------------------------------------------------------------------------------------------------

    def tasks(self, wanted: Range, options: SourceOptions) -> Iterator[InputPartition]:
        """Cut a range into tasks, balanced by what is really there."""
        held = self.retention != "limits" and self.subjects is not None
        for item in self._cut(wanted, options):
            yield NatsPartition(self.name, item.start, item.end, self.created, self.subjects, self.hides, held)

    def _cut(self, wanted: Range, options: SourceOptions) -> list[Range]:
        start, end = max(wanted.start, self.first), min(wanted.end, self.next)
        if start >= end:
            return [wanted] if wanted.width else []
        profile = Profile.even(start, end, self.count(start, end), self.mean_size)
        parts = how_many(profile, options)
        if parts > 1:
            profile = self._look_closer(start, end, profile.count, parts)
            parts = how_many(profile, options)
        ranges = cut(self.name, profile, parts) or [Range(self.name, start, end)]
        if (records := options.max_records_per_partition) is not None:
            ranges = [piece for item in ranges for piece in self._within(profile, item, records)]
        # What is gone already belongs to the first task, which reports it.
        return [replace(ranges[0], start=wanted.start), *ranges[1:]]

    def _look_closer(self, start: int, end: int, total: int, parts: int) -> Profile:
        beyond = self._remaining(end)

        def point(sequence: int, left: Point, most: int) -> Point:
            found = self.probe(sequence)
            before = total if found is None else total - (found.remaining - beyond)
            return Point(sequence, min(max(before, left.before), most), left.size if found is None else found.size)

        points = [Point(start, 0, self.mean_size)]
        for sequence in spread(start, end, min(4 * parts, MOST_PROBES // 2)):
            points.append(point(sequence, points[-1], total))
        profile = Profile([Point(start, 0, points[1].size), *points[1:], Point(end, total, points[-1].size)])
        while len(profile.points) < MOST_PROBES:
            number = profile.heaviest(above=profile.weight // (2 * parts))
            if number is None:
                break
            left, right = profile.points[number], profile.points[number + 1]
            middle = (left.sequence + right.sequence) // 2
            if middle == left.sequence:
                break
            profile = profile.with_point(point(middle, left, right.before))
        return profile

    def _within(self, profile: Profile, item: Range, records: int) -> Iterator[Range]:
        start = item.start
        while start < item.end:
            if profile.most_between(start, item.end) <= records:
                stop = item.end
            else:
                stop = self.seek(start, item.end, records, exact=True)
            yield Range(item.stream, start, stop)
            start = stop

    # -- requests -----------------------------------------------------------------------------------------------

    def _direct(self, body: dict[str, Any]) -> Probed | None:
        get, bulk = direct.DirectGet(self.name, body), self.bulk
        subject = f"{bulk.options.js_prefix}.{names.direct_get(self.name)}"
        answer = bulk.patiently(lambda: bulk.request(subject, get.payload), bulk.patience, nobody=True)
        get.hear(answer.payload, answer.header)
        for content, block in get.result():
            if direct.answers_for(block) != self.name:
                self.allow_direct = False  # a mirror: what it holds says nothing
                return None
            found = direct.read_found(content, block)
            own = found.header.rfind(f"\r\n{names.STREAM}:".encode()) - len("NATS/1.0")  # the publisher's headers
            return Probed(found.sequence, len(content) + own, 1 + (found.pending or 0))
        return None

    def _consumer(self, config: dict[str, Any]) -> dict[str, Any]:
        config = {
            **config,
            **({"filter_subjects": list(self.subjects)} if self.subjects else {}),
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 5_000_000_000,
        }
        made = self.bulk.ask(f"CONSUMER.CREATE.{self.name}", {"stream_name": self.name, "config": config})
        check_done(self.bulk.ask(f"CONSUMER.DELETE.{self.name}.{text(made, 'name')}"))
        return made


def _hides(own: tuple[str, ...], wanted: tuple[str, ...] | None) -> bool:
    """Tell whether markers may lie among the data, so that only their subjects tell them from it.

    Who names them by their root wants them. `own` is empty if the stream's own subjects do not tell what it holds.
    """
    asked = [item for item in own or (">",) if not item.startswith(MARKER_ROOT)] if wanted is None else wanted
    named = any(item.startswith(MARKER_ROOT) for item in asked)
    return not named and any(overlaps(item, f"{MARKER_ROOT}.>") for item in asked)


def _parsed(time: str) -> datetime:
    from penstock.model import parse_time  # as below

    return parse_time(time)


def _written(time: datetime) -> str:
    # Imported when a time is named: every Python worker of Spark imports this module, and most need none.
    from penstock.model import format_time

    return format_time(time)
