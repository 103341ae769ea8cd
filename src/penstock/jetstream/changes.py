"""What would change between the streams that are there and those that are declared. Pure: values in, a plan out.

A field that a declaration leaves open ("the server chooses", such as `ack_wait`) is never a change. What the server
cannot change is a conflict: the plan names it, and nothing of the plan is applied. What would drop messages is a loss:
it is applied only if the caller says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.durations import format_duration
from penstock.errors import InputError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream.rules import filters
from penstock.model import DURATIONS, Consumer, ServerValue, Stream

__all__ = ["Change", "Plan", "Step", "consumer_step", "own_metadata", "stream_step"]

Kind = Literal["stream", "consumer"]
Action = Literal["create", "update", "delete", "none"]

# Fields of streams and consumers that the server fills if a declaration leaves them open.
_OPEN = {
    "ack_wait",
    "consumer_limits",
    "duplicate_window",
    "first_seq",
    "inactive_threshold",
    "max_ack_pending",
    "max_batch",
    "max_waiting",
    "name",
    "num_replicas",
    "pause_until",
    "persist_mode",
    "priority_policy",
    "priority_timeout",
    "subjects",
}
# Fields that no update can change, and fields that can only be switched on.
_FIXED = {
    "ack_policy",
    "allow_msg_counter",
    "deliver_policy",
    "durable",
    "first_seq",
    "flow_control",
    "idle_heartbeat",
    "max_waiting",
    "mem_storage",
    "opt_start_seq",
    "opt_start_time",
    "persist_mode",
    "replay_policy",
    "storage",
}
_ONE_WAY = {"sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_schedules"}
_SERVERS = "_nats."  # what keys of metadata begin with that the server adds
# Values that the server does not mention.
_UNSAID = {"persist_mode": "default", "priority_policy": "none"}
# What the server makes of other fields when it seals a stream.
_SEALED = {"max_age": 0.0, "discard": "new", "deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False}


@dataclass(frozen=True)
class Change:
    """One field that differs."""

    field: str
    old: Any
    new: Any
    conflict: str | None = None
    """Why no update can make this change."""
    loss: str | None = None
    """What the change would drop."""

    def __str__(self) -> str:
        notes = [note for note in (self.conflict, self.loss) if note]
        old, new = _shown(self.field, self.old), _shown(self.field, self.new)
        return f"{self.field}: {old} -> {new}" + (f" ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class Step:
    """What becomes of one stream or consumer."""

    kind: Kind
    stream: str
    name: str
    action: Action
    changes: tuple[Change, ...] = ()
    target: Stream | Consumer | None = field(default=None, repr=False)
    """What is sent to the server."""
    seen: Stream | Consumer | None = field(default=None, repr=False)
    """What was there when this was planned."""

    @property
    def title(self) -> str:
        """The stream's or consumer's full name."""
        return f"stream {self.name}" if self.kind == "stream" else f"consumer {self.stream} > {self.name}"

    @property
    def conflicts(self) -> list[Change]:
        """The changes that no update can make."""
        return [item for item in self.changes if item.conflict]

    @property
    def losses(self) -> list[Change]:
        """The changes that would drop messages."""
        return [item for item in self.changes if item.loss]


@dataclass(frozen=True)
class Plan:
    """All steps, in the order in which they are taken, and what is there without being declared."""

    steps: tuple[Step, ...]
    """What becomes of each stream and consumer."""
    undeclared: tuple[str, ...] = ()
    """Consumers of declared streams that the declaration does not name; they are left alone."""

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return all(step.action == "none" for step in self.steps)

    def check(self, *, may_lose_data: bool = False) -> None:
        """Refuse a plan that cannot be carried out, or would drop messages that nobody gave up."""
        said = [
            f"{step.title}: {change.field} is {_shown(change.field, change.old)} and cannot become "
            f"{_shown(change.field, change.new)}, {change.conflict}"
            for step in self.steps
            for change in step.conflicts
        ]
        if said:
            remedy = "Declare what is there, or delete it yourself and apply again. Nothing was changed."
            raise InputError(f"{'; '.join(said)}.", remedy=remedy)
        lost = [f"{step.title}: {change.loss}" for step in self.steps for change in step.losses]
        if lost and not may_lose_data:
            remedy = "Say --may-lose-data (may_lose_data=True) if that is meant. Nothing was changed."
            raise InputError(f"This would lose data: {'; '.join(lost)}.", remedy=remedy)

    def to_json(self) -> dict[str, Any]:
        """Give the plan for programs."""
        return {
            "steps": [
                {
                    "kind": step.kind,
                    "stream": step.stream,
                    "name": step.name,
                    "action": step.action,
                    "changes": [_plain(vars(change)) for change in step.changes],
                }
                for step in self.steps
            ],
            "undeclared": list(self.undeclared),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.to_json() if hasattr(value, "to_json") else value


def _shown(name: str, value: Any) -> str:
    if name in DURATIONS:
        steps = value if isinstance(value, list) else [value]
        return ", ".join(format_duration(step) for step in steps if step) or "nothing"
    if name == "consumer_limits" and value and isinstance(value.get("inactive_threshold"), int):
        value = {**value, "inactive_threshold": format_duration(value["inactive_threshold"] / 1_000_000_000)}
    value = _plain(value)
    return "nothing" if value in (None, [], {}, "") else str(value)


def own_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Leave out the keys that the server adds."""
    return {key: text for key, text in metadata.items() if not key.startswith(_SERVERS)}


def _is_same(old: Any, new: Any) -> bool:
    """Tell whether nothing that is wanted is missing; what is not known here, and not asked for, does not count."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_is_same(*pair) for pair in zip(old, new, strict=True))
    if not isinstance(old, ServerValue) or not isinstance(new, ServerValue):
        return bool((old or None) == (new or None))
    fields = [name for name in type(new).model_fields if name != "unknown"]
    return not _unknown(old, new) and all(_is_same(getattr(old, name), getattr(new, name)) for name in fields)


def _unknown(there: ServerValue, wanted: ServerValue) -> dict[str, Any]:
    """Give what is wanted of fields that this version does not know, and is not there."""
    return {
        name: value
        for name, value in wanted.unknown.items()
        if name not in there.unknown or there.unknown[name] != value
    }


def _kept(old: Any, new: Any) -> Any:
    """Give an inner value with what the one that is there says in fields that this version does not know."""
    if isinstance(old, list) and isinstance(new, list):
        by_name = {item.name: item for item in old if isinstance(getattr(item, "name", None), str)}
        return [_kept(by_name.get(getattr(item, "name", None)), item) for item in new]
    if isinstance(old, ServerValue) and isinstance(new, ServerValue):
        return new.model_copy(update={"unknown": {**old.unknown, **new.unknown}})
    return new


def _differences(there: Any, wanted: Any) -> list[tuple[str, Any, Any]]:
    found = [(name, there.unknown.get(name), value) for name, value in _unknown(there, wanted).items()]
    for name in type(wanted).model_fields:
        if name == "unknown":
            continue
        old, new = getattr(there, name), getattr(wanted, name)
        if name in _OPEN and (new is None or new == [] or new == {}):
            continue
        if name == "metadata":
            # The server adds keys of its own, and other tools theirs: only what is declared counts.
            old = {key: text for key, text in old.items() if key in new or not key.startswith(_SERVERS)}
        if name in _UNSAID:
            old, new = (None if value == _UNSAID[name] else value for value in (old, new))
        if type(wanted).model_fields[name].default == -1:
            old, new = old or -1, new or -1  # the server reads 0 as no limit, too
        if not _is_same(old, new):
            found.append((name, old, new))
    return found


def _conflict(name: str, old: Any, new: Any) -> str | None:
    """Say why no update can change this field so."""
    if name in _FIXED:
        return "the server never changes it"
    if name in _ONE_WAY and old and not new:
        return "once set, it stays"
    if name == "retention" and "workqueue" in (old, new):
        return "the server cannot change a stream to or from a work queue"
    if name == "mirror" and new is not None:
        return "a mirror can only be removed"
    if name == "deliver_subject" and not (old and new):
        return "the server cannot turn a pull consumer into a push consumer, or back"
    return None


def _target(there: Any, wanted: Any, changes: Iterable[Change], also: dict[str, Any]) -> Any:
    """Give what is there with all changes, and with what follows from them."""
    # What does not change is sent back exactly as the server wrote it, newer fields and nanoseconds included.
    fields = [change.field for change in changes if change.field in type(there).model_fields]
    update = {name: _kept(getattr(there, name), getattr(wanted, name)) for name in fields} | also
    update["unknown"] = {**there.unknown, **wanted.unknown}
    if "metadata" in update:
        kept = {key: text for key, text in there.metadata.items() if key.startswith(_SERVERS)}
        update["metadata"] = {**kept, **update["metadata"]}
    return there.model_copy(update=update)


def stream_step(wanted: Stream, there: StreamInfo | None) -> Step:
    """Compare a declared stream with the one that is there."""
    name = wanted.name
    if there is None:
        return Step("stream", name, name, "create", target=wanted)
    kept = wanted.model_copy(update=_implied(wanted))
    changes = tuple(
        Change(field_, old, new, _conflict(field_, old, new), _loss(field_, new, wanted, there))
        for field_, old, new in _differences(there.config, kept)
        # A mirror follows what it copies in this.
        if not (field_ == "mirror_direct" and wanted.mirror is not None)
    )
    also, window = {}, there.config.duplicate_window
    if wanted.duplicate_window is None and window and wanted.max_age and window > wanted.max_age:
        also["duplicate_window"] = wanted.max_age  # a window that nobody chose follows a shorter age
    target = _target(there.config, wanted, changes, also)
    return Step("stream", name, name, "update" if changes else "none", changes, target, there.config)


def _implied(wanted: Stream) -> dict[str, Any]:
    """Give the fields that the server sets by itself for what is wanted."""
    fields: dict[str, Any] = {}
    if wanted.subject_delete_marker_ttl:
        fields["allow_msg_ttl"] = True
    if (wanted.subject_delete_marker_ttl or wanted.allow_msg_schedules) and not wanted.allow_rollup_hdrs:
        fields |= {"allow_rollup_hdrs": True, "deny_purge": False}
    return fields | (_SEALED if wanted.sealed else {})


def _loss(name: str, new: Any, wanted: Stream, there: StreamInfo) -> str | None:
    """Say what a change of this field would drop from what the stream holds now."""
    held = there.messages
    if not held:
        return None
    if name == "max_msgs" and 0 < new < held and wanted.discard == "old":
        return f"it would drop {held - new:,} of {held:,} messages"
    if name == "max_bytes" and 0 < new < there.bytes and wanted.discard == "old":
        return f"it would drop {there.bytes - new:,} of {there.bytes:,} bytes"
    if name == "max_age" and new and there.first_time is not None:
        age = (datetime.now(UTC) - there.first_time).total_seconds()
        if age > new:
            oldest = format_duration(round(age))
            return f"it would drop messages older than {format_duration(new)}; the oldest is {oldest} old"
    # At the worst, one subject has all messages but one for each other subject.
    if name == "max_msgs_per_subject" and 0 < new < held - max(there.subjects - 1, 0):
        return f"it would drop all but the last {new:,} messages of a subject"
    if name == "retention" and new == "interest":
        return f"it would drop messages that no consumer waits for; the stream holds {held:,}"
    return None


def consumer_step(stream: str, name: str, wanted: Consumer, there: ConsumerInfo | None) -> Step:
    """Compare a declared consumer with the one that is there."""
    if there is None:
        return Step("consumer", stream, name, "create", target=wanted)
    if wanted.ack_policy == "flow_control":  # the server sets what it needs
        wanted = wanted.model_copy(update={"flow_control": True, "idle_heartbeat": 1.0})
    changes = tuple(
        Change(field_, old, new, _conflict(field_, old, new))
        for field_, old, new in _differences(_one_filter(there.config), _one_filter(wanted))
        if not (field_ == "ack_wait" and wanted.backoff)
    )
    refiltered = any(change.field == "filter_subjects" for change in changes)
    target = _target(there.config, wanted, changes, {"filter_subject": wanted.filter_subject} if refiltered else {})
    return Step("consumer", stream, name, "update" if changes else "none", changes, target, there.config)


def _one_filter(consumer: Consumer) -> Consumer:
    """Write one filter, which can be written in two ways, in one."""
    every = sorted({*filters(consumer)})
    return consumer.model_copy(update={"filter_subject": None, "filter_subjects": every})
