"""Which streams and consumers can exist, as far as we can say it better than the server: before anything is sent. Pure.

The model checks each field. Here are rules between fields, between streams, and between a consumer and its stream:
those where the server's own word leaves open which subject, source or consumer is meant. Each refusal is one sentence
that names the stream or consumer, the field and the remedy, and nothing is refused that the server takes: a test asks
it. All other rules are the server's own to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.errors import InputError
from penstock.model import Consumer, Stream
from penstock.wire.subjects import covers, overlaps, subject_fault

__all__ = [
    "check_consumer",
    "check_consumers_together",
    "check_stream",
    "check_streams_together",
    "filters",
    "idle_filters",
    "stream_subjects",
]

Faults = Iterator[tuple[str, str]]  # what is wrong, and the remedy
# The server's own subjects, each with the part of it that a stream may capture.
_RESERVED = (("$JS.>", "$JS.EVENT.>"), ("$JSC.>", ""), ("$NRG.>", ""), ("$SYS.>", "$SYS.ACCOUNT.>"))


def stream_subjects(stream: Stream) -> list[str]:
    """Give what a stream captures; its own name if it names no subjects and copies nothing."""
    if stream.subjects or stream.mirror is not None or stream.sources:
        return list(stream.subjects)
    return [stream.name]


def _raise_first(whose: str, faults: Faults) -> None:
    for what, remedy in faults:
        raise InputError(f"{whose}: {what}.", remedy=remedy)


def _subject_faults(kind: str, subjects: list[str], examples: str, collide: Callable[[str, str], bool]) -> Faults:
    for subject in subjects:
        if fault := subject_fault(subject):
            yield f"the {kind} {subject!r} {fault}", f"Write {kind}s such as {examples}."
    for one, other in itertools.combinations(subjects, 2):
        if collide(one, other):
            yield f"its {kind}s {one!r} and {other!r} overlap", "Leave the narrower one out."


# -- streams ---------------------------------------------------------------------------------------------------------


def check_stream(stream: Stream) -> None:
    """Refuse a stream that the server would refuse, or that says two things at once."""
    _raise_first(f"Stream {stream.name}", _stream_faults(stream))


def _stream_faults(stream: Stream) -> Faults:
    yield from _subject_faults("subject", stream.subjects, "ORDERS.new, ORDERS.* or ORDERS.>", overlaps)
    for subject, (reserved, but) in itertools.product(stream.subjects, _RESERVED):
        if overlaps(subject, reserved) and not (but and covers(but, subject)) and not stream.no_ack:
            what = f"the subject {subject!r} overlaps with the server's own {reserved}"
            yield what, "Choose subjects of your own, or set no_ack."
    yield from _copy_faults(stream)
    if stream.deny_purge and stream.allow_rollup_hdrs:
        yield "allow_rollup_hdrs purges, and deny_purge forbids it", "Leave one of them out."


def _copy_faults(stream: Stream) -> Faults:
    if stream.mirror is not None:
        for field in ("subjects", "sources"):
            if getattr(stream, field):
                yield f"a mirror cannot have {field}", f"Leave {field} out, or use sources instead of mirror."
        if stream.mirror.name == stream.name and stream.mirror.external is None:
            yield "it mirrors itself", "Name another stream."
    sources = [
        (item.name, item.filter_subject, str(item.subject_transforms), str(item.external)) for item in stream.sources
    ]
    if len(set(sources)) < len(sources):
        yield "two of its sources are the same", "Leave one of them out."
    for item in [*stream.sources, *([stream.mirror] if stream.mirror else [])]:
        if item.filter_subject and item.subject_transforms:
            yield f"the source {item.name} has a filter and transforms", "Put the filter into the transforms' src."


def check_streams_together(streams: Iterable[Stream]) -> None:
    """Refuse streams that capture the same subject: the server lets each subject go to one stream only."""
    for one, other in itertools.combinations(streams, 2):
        if one.name == other.name:
            raise InputError(f"Stream {one.name} is declared twice.", remedy="Leave one of them out.")
        for left, right in itertools.product(stream_subjects(one), stream_subjects(other)):
            if overlaps(left, right):
                what = f"Streams {one.name} and {other.name} overlap: {left!r} and {right!r} match the same subjects."
                raise InputError(what, remedy="A subject goes to one stream only; use sources to copy it to another.")


# -- consumers -------------------------------------------------------------------------------------------------------


def filters(consumer: Consumer) -> list[str]:
    """Give the subjects a consumer filters by; none if it gets everything."""
    return [item for item in [consumer.filter_subject, *consumer.filter_subjects] if item]


def check_consumer(consumer: Consumer, stream: Stream | None = None) -> None:
    """Refuse a consumer that the server would refuse; rules between it and its stream if that is given."""
    whose = f"Consumer {consumer.durable or consumer.name or '(ephemeral)'}"
    _raise_first(whose, _consumer_faults(consumer))
    if stream is not None:
        _raise_first(whose, _fit_faults(consumer, stream))


def _consumer_faults(consumer: Consumer) -> Faults:
    if consumer.filter_subject and consumer.filter_subjects:
        yield "filter_subject and filter_subjects are both given", "Use filter_subjects for all of them."
    yield from _subject_faults("filter", filters(consumer), "ORDERS.new or ORDERS.>", _one_covers)
    policy = consumer.deliver_policy
    for field, wanted in (("opt_start_seq", "by_start_sequence"), ("opt_start_time", "by_start_time")):
        given = getattr(consumer, field) is not None
        if given and policy != wanted:
            yield f"{field} is given, and deliver_policy is {policy}", f"Set deliver_policy to {wanted}."
        if not given and policy == wanted:
            yield f"deliver_policy is {policy}, and {field} is missing", f"Give {field}."
    if policy == "last_per_subject" and not filters(consumer):
        yield "deliver_policy is last_per_subject, which needs a filter", "Filter by > for all subjects."
    if consumer.backoff and 0 < consumer.max_deliver < len(consumer.backoff):
        steps = len(consumer.backoff)
        what = f"backoff has {steps} steps, and max_deliver allows {consumer.max_deliver} deliveries"
        yield what, "Raise max_deliver, or shorten backoff."
    if consumer.deliver_subject is not None:
        if fault := subject_fault(consumer.deliver_subject, literal=True):
            yield f"deliver_subject {consumer.deliver_subject!r} {fault}", "Give a plain subject."
        if consumer.max_waiting:
            yield "max_waiting is for pull consumers, and this one has a deliver_subject", "Leave one of them out."
    else:
        for field in ("flow_control", "idle_heartbeat", "rate_limit_bps"):
            if getattr(consumer, field):
                yield f"{field} is for push consumers, and this one has no deliver_subject", "Leave one of them out."


def _one_covers(one: str, other: str) -> bool:
    return covers(one, other) or covers(other, one)


def _fit_faults(consumer: Consumer, stream: Stream) -> Faults:
    subjects = stream_subjects(stream)
    if consumer.deliver_subject and any(covers(subject, consumer.deliver_subject) for subject in subjects):
        what = f"it delivers to {consumer.deliver_subject!r}, which stream {stream.name} captures: a cycle"
        yield what, "Deliver to a subject outside of the stream."
    if consumer.num_replicas and consumer.num_replicas > stream.num_replicas:
        what = f"it has {consumer.num_replicas} replicas, and stream {stream.name} has {stream.num_replicas}"
        yield what, "Leave num_replicas out."
    if stream.retention == "workqueue":
        if consumer.ack_policy in ("all", "none"):
            yield f"stream {stream.name} is a work queue, which needs explicit acks", "Set ack_policy to explicit."
        if consumer.deliver_policy != "all":
            what = f"stream {stream.name} is a work queue, whose consumers begin with all"
            yield what, "Set deliver_policy to all."


def check_consumers_together(stream: Stream, consumers: Mapping[str, Consumer]) -> None:
    """Refuse consumers of a work queue that want the same messages: each message there is for one consumer."""
    if stream.retention != "workqueue":
        return
    for (one, left), (other, right) in itertools.combinations(consumers.items(), 2):
        for a, b in itertools.product(filters(left) or [">"], filters(right) or [">"]):
            if overlaps(a, b):
                what = f"Consumers {one} and {other} of the work queue {stream.name} overlap: {a!r} and {b!r}."
                remedy = "Give each consumer of a work queue subjects of its own, or let workers share one consumer."
                raise InputError(what, remedy=remedy)


def idle_filters(consumer: Consumer, stream: Stream) -> list[str]:
    """Give the filters that match none of a stream's subjects: the server takes them, and nothing comes.

    A stream that copies others may hold any subject.
    """
    if stream.mirror is not None or stream.sources:
        return []
    subjects = stream_subjects(stream)
    return [item for item in filters(consumer) if not any(overlaps(item, subject) for subject in subjects)]
