"""Which streams and consumers can exist: the server's rules, checked before anything is sent. Pure.

The model checks each field; here are the rules between fields, and between a consumer and its stream. Each refusal is
one sentence that names the stream or consumer, the field and the remedy. What only the server can know, such as
account limits, stays its own to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

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
_SHORTEST = 0.1  # the server's lower bound of ages, windows and heartbeats
# The server's own subjects, each with the part of it that a stream may capture.
_RESERVED = (("$JS.>", "$JS.EVENT.>"), ("$JSC.>", ""), ("$NRG.>", ""), ("$SYS.>", "$SYS.ACCOUNT.>"))


def stream_subjects(stream: Stream) -> list[str]:
    """Give what a stream captures; its own name where it names no subjects and copies nothing."""
    if stream.subjects or stream.mirror is not None or stream.sources:
        return list(stream.subjects)
    return [stream.name]


def _raise_first(whose: str, faults: Faults) -> None:
    for what, remedy in faults:
        raise InputError(f"{whose}: {what}.", remedy=remedy)


def _subject_faults(kind: str, subjects: list[str], examples: str) -> Faults:
    for subject in subjects:
        if fault := subject_fault(subject):
            yield f"the {kind} {subject!r} {fault}", f"Write {kind}s such as {examples}."
    for one, other in itertools.combinations(subjects, 2):
        if overlaps(one, other):
            yield f"its {kind}s {one!r} and {other!r} overlaps", "Leave the narrower one out."


# -- streams ---------------------------------------------------------------------------------------------------------


def check_stream(stream: Stream) -> None:
    """Refuse a stream that the server would refuse, or that says two things at once."""
    _raise_first(f"Stream {stream.name}", _stream_faults(stream))


def _stream_faults(stream: Stream) -> Faults:
    yield from _subject_faults("subject", stream.subjects, "ORDERS.new, ORDERS.* or ORDERS.>")
    for subject, (reserved, but) in itertools.product(stream.subjects, _RESERVED):
        if overlaps(subject, reserved) and not (but and covers(but, subject)) and not stream.no_ack:
            what = f"the subject {subject!r} reaches into the server's own {reserved}"
            yield what, "Choose subjects of your own, or set no_ack."
    yield from _copy_faults(stream)
    if stream.discard_new_per_subject and (stream.discard != "new" or stream.max_msgs_per_subject <= 0):
        what = "discard_new_per_subject needs discard = new and a limit in max_msgs_per_subject"
        yield what, "Set both, or leave discard_new_per_subject out."
    for field in ("max_age", "duplicate_window"):
        value = getattr(stream, field)
        if value and value < _SHORTEST:
            yield f"{field} is {value:g} s, shorter than the server's 100ms", f"Give {field} 100ms or more."
    if stream.max_age and stream.duplicate_window and stream.duplicate_window > stream.max_age:
        what = f"duplicate_window ({stream.duplicate_window:g} s) is longer than max_age ({stream.max_age:g} s)"
        yield what, "Ids cannot be remembered longer than messages are kept: shorten duplicate_window."
    if stream.deny_purge and stream.allow_rollup_hdrs:
        yield "allow_rollup_hdrs purges, and deny_purge forbids it", "Leave one of them out."
    if stream.subject_delete_marker_ttl:
        if stream.subject_delete_marker_ttl < 1:
            yield "subject_delete_marker_ttl is shorter than a second", "Give it a second or more."
        if not (stream.allow_msg_ttl and stream.allow_rollup_hdrs):
            yield "subject_delete_marker_ttl needs allow_msg_ttl and allow_rollup_hdrs", "Set both."
    if stream.allow_msg_schedules and (stream.discard == "new" or not stream.allow_rollup_hdrs):
        yield "allow_msg_schedules needs discard = old and allow_rollup_hdrs", "Set both."
    if stream.allow_msg_counter and (
        stream.discard == "new" or stream.allow_msg_ttl or stream.allow_msg_schedules or stream.retention != "limits"
    ):
        what = "allow_msg_counter needs retention = limits and discard = old, and neither message TTLs nor schedules"
        yield what, "Leave what contradicts it out."
    if stream.persist_mode == "async" and (stream.storage != "file" or stream.num_replicas > 1 or stream.allow_atomic):
        yield "persist_mode = async is for file storage, one replica, and no atomic batches", "Leave it out."
    if stream.compression == "s2" and stream.storage == "memory":
        yield "compression is for file storage only", "Leave compression out, or use storage = file."
    if stream.republish is not None and any(overlaps(stream.republish.dest, item) for item in stream_subjects(stream)):
        yield f"republish to {stream.republish.dest!r} would come back to the stream", "Choose another destination."


def _copy_faults(stream: Stream) -> Faults:
    if stream.mirror is not None:
        for field in ("subjects", "sources", "first_seq", "allow_atomic", "allow_batched", "allow_msg_counter"):
            if getattr(stream, field):
                yield f"a mirror cannot have {field}", f"Leave {field} out, or use sources instead of mirror."
        if stream.mirror.name == stream.name and stream.mirror.external is None:
            yield "it mirrors itself", "Name another stream."
    elif stream.mirror_direct:
        yield "mirror_direct is for mirrors", "Leave it out, or set mirror."
    names = [(item.name, item.filter_subject, str(item.external)) for item in stream.sources]
    if len(set(names)) < len(names):
        yield "two of its sources are the same", "Leave one of them out."
    for item in [*stream.sources, *([stream.mirror] if stream.mirror else [])]:
        if item.opt_start_seq and item.opt_start_time:
            yield f"the source {item.name} has a start sequence and a start time", "Leave one of them out."
        if item.filter_subject and item.subject_transforms:
            yield f"the source {item.name} has a filter and transforms", "Put the filter into the transforms' src."
        if item.filter_subject and (fault := subject_fault(item.filter_subject)):
            yield f"the source {item.name} filters by {item.filter_subject!r}, which {fault}", "Mend the filter."


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
    """Give the subjects a consumer filters by; none where it gets everything."""
    return [item for item in [consumer.filter_subject, *consumer.filter_subjects] if item]


def check_consumer(consumer: Consumer, stream: Stream | None = None) -> None:
    """Refuse a consumer that the server would refuse; rules between it and its stream where that is given."""
    whose = f"Consumer {consumer.durable or consumer.name or '(ephemeral)'}"
    _raise_first(whose, _consumer_faults(consumer))
    if stream is not None:
        _raise_first(whose, _fit_faults(consumer, stream))


def _consumer_faults(consumer: Consumer) -> Faults:
    if consumer.durable and consumer.name and consumer.durable != consumer.name:
        yield f"its name {consumer.name!r} and durable name {consumer.durable!r} differ", "Leave name out."
    if consumer.filter_subject and consumer.filter_subjects:
        yield "filter_subject and filter_subjects are both given", "Use filter_subjects for all of them."
    yield from _subject_faults("filter", filters(consumer), "ORDERS.new or ORDERS.>")
    policy = consumer.deliver_policy
    for field, wanted in (("opt_start_seq", "by_start_sequence"), ("opt_start_time", "by_start_time")):
        given = getattr(consumer, field) is not None
        if given and policy != wanted:
            yield f"{field} is given, and deliver_policy is {policy}", f"Set deliver_policy to {wanted}."
        if not given and policy == wanted:
            yield f"deliver_policy is {policy}, and {field} is missing", f"Give {field}."
    if policy == "last_per_subject" and not filters(consumer):
        yield "deliver_policy is last_per_subject, which needs a filter", "Filter by > for all subjects."
    yield from _delivery_faults(consumer)
    if consumer.backoff and 0 <= consumer.max_deliver < len(consumer.backoff):
        steps = len(consumer.backoff)
        what = f"backoff has {steps} steps, and max_deliver allows {consumer.max_deliver} deliveries"
        yield what, "Raise max_deliver, or shorten backoff."
    if consumer.ack_policy == "none" and (consumer.backoff or consumer.max_deliver > 0):
        what = "with ack_policy = none nothing is delivered again, so backoff and max_deliver say nothing"
        yield what, "Leave them out."
    share = "0" if consumer.sample_freq is None else consumer.sample_freq.removesuffix("%")
    if not share.isdecimal() or int(share) > 100:
        yield f"sample_freq is {consumer.sample_freq!r}", "Give a whole percentage, 0 to 100."


def _delivery_faults(consumer: Consumer) -> Faults:
    if consumer.deliver_subject is not None:
        if fault := subject_fault(consumer.deliver_subject, literal=True):
            yield f"deliver_subject {consumer.deliver_subject!r} {fault}", "Give a plain subject."
        for field in ("max_waiting", "max_batch", "max_expires", "max_bytes", "priority_groups"):
            if getattr(consumer, field):
                yield f"{field} is for pull consumers, and this one has a deliver_subject", "Leave one of them out."
        if consumer.max_ack_pending and consumer.max_ack_pending > 0 and consumer.ack_policy == "none":
            yield "max_ack_pending is given, and ack_policy is none", "Leave one of them out."
        if consumer.flow_control and not consumer.idle_heartbeat:
            yield "flow_control needs idle_heartbeat", "Give idle_heartbeat, such as 5s."
        if consumer.idle_heartbeat and consumer.idle_heartbeat < _SHORTEST:
            yield "idle_heartbeat is shorter than the server's 100ms", "Give 100ms or more."
    else:
        for field in ("flow_control", "idle_heartbeat", "rate_limit_bps", "deliver_group"):
            if getattr(consumer, field):
                yield f"{field} is for push consumers, and this one has no deliver_subject", "Leave one of them out."
    if consumer.priority_groups and consumer.priority_policy in (None, "none"):
        yield "priority_groups are given without a priority_policy", "Set priority_policy."
    if consumer.priority_policy not in (None, "none") and not consumer.priority_groups:
        yield f"priority_policy is {consumer.priority_policy}, and there are no priority_groups", "Name a group."
    if consumer.priority_timeout and consumer.priority_policy != "pinned_client":
        yield "priority_timeout is for priority_policy = pinned_client", "Leave it out."


def _fit_faults(consumer: Consumer, stream: Stream) -> Faults:
    subjects = stream_subjects(stream)
    if stream.mirror is None and not stream.sources:
        for item in filters(consumer):
            if not any(overlaps(item, subject) for subject in subjects):
                what = f"its filter {item!r} matches none of the subjects of stream {stream.name}"
                yield what, f"They are {', '.join(subjects)}."
    if consumer.deliver_subject and any(covers(subject, consumer.deliver_subject) for subject in subjects):
        what = f"it delivers to {consumer.deliver_subject!r}, which stream {stream.name} captures: a cycle"
        yield what, "Deliver to a subject outside of the stream."
    if consumer.num_replicas and consumer.num_replicas > stream.num_replicas:
        what = f"it has {consumer.num_replicas} replicas, and stream {stream.name} has {stream.num_replicas}"
        yield what, "Leave num_replicas out."
    if stream.retention == "workqueue":
        if consumer.ack_policy != "explicit":
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
