"""The flags of `stream add`, `copy` and `edit`, as tables, and the stream made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.asset_names import checked
from penstock.cli.flags import flag_table, given_fields, table_flag
from penstock.cli.late import model
from penstock.cli.questions import accepted, ask, ask_missing, number, one_of, yes
from penstock.cli.values import choice, duration, opposite, parse_pairs, words
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.json_text import load_json
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.model import Stream

__all__ = ["Removing", "StreamFlags", "ask_for_stream", "placement_from", "republish_from", "stream_from"]

_STORAGE = {"file": "file", "f": "file", "memory": "memory", "m": "memory"}
_RETENTION = {
    "limits": "limits",
    "interest": "interest",
    "work": "workqueue",
    "workq": "workqueue",
    "workqueue": "workqueue",
}


def _source(text: str, option: str) -> model.StreamSource:
    """Read a stream to copy: its name, or a JSON object as the server's configuration has it."""
    if not text.lstrip().startswith("{"):
        return model.StreamSource(name=checked(text, "stream"))
    try:
        return model.StreamSource.from_json(load_json(text))
    except ValueError as error:
        raise InputError(
            f"{option} {text!r} is not JSON: {error}.", remedy='Write such as {"name":"ORDERS"}.'
        ) from None


def _sources(texts: list[str], option: str) -> list[model.StreamSource]:
    return [_source(name, option) for text in texts for name in _apart(text)]


def _apart(text: str) -> Iterator[str]:
    """Give the names that are written with commas; JSON has commas of its own."""
    yield from [text] if text.lstrip().startswith("{") else words([text])


@flag_table
class StreamFlags:
    """What was said on the command line; None if nothing was."""

    subjects: list[str] | None = table_flag("Subjects to capture; repeat, or use commas.", read=words)
    description: str | None = table_flag("A description for people.")
    storage: str | None = table_flag("Where messages are kept.", "file|memory", read=choice(_STORAGE))
    compression: str | None = table_flag("Compress the files.", "none|s2")
    replicas: int | None = table_flag("How many servers keep a copy.", to="num_replicas")
    tag: list[str] | None = table_flag("Tag that servers must carry; may be repeated.", "--tag", "--tags", to="")
    cluster: str | None = table_flag("Cluster to live in.", to="")
    ack: bool | None = table_flag("Acknowledge what is stored.", to="no_ack", read=opposite)
    retention: str | None = table_flag("What removes messages.", "limits|interest|work", read=choice(_RETENTION))
    discard: str | None = table_flag("Which messages are dropped at a limit.", "old|new")
    discard_per_subject: bool | None = table_flag("Refuse at a subject's own limit, too.", to="discard_new_per_subject")
    first_sequence: int | None = table_flag("Sequence of the first message.", to="first_seq")
    max_age: str | None = table_flag("How old messages may become.", "DURATION", read=duration)
    max_bytes: str | None = table_flag("Most bytes to keep.", "SIZE", read=parse_size)
    max_consumers: int | None = table_flag("Most consumers.")
    max_msg_size: str | None = table_flag("Largest message.", "SIZE", read=parse_size)
    max_msgs: int | None = table_flag("Most messages to keep.")
    max_msgs_per_subject: int | None = table_flag("Most messages to keep of a subject.")
    dupe_window: str | None = table_flag(
        "How long message ids are remembered.", "DURATION", to="duplicate_window", read=duration
    )
    mirror: str | None = table_flag("Stream to copy, sequences included; a name, or JSON.", "STREAM", read=_source)
    source: list[str] | None = table_flag(
        "Stream to collect from; a name, or JSON; may be repeated.", "STREAM", to="sources", read=_sources
    )
    allow_batch: bool | None = table_flag("Take atomic batches.", to="allow_atomic")
    allow_fast: bool | None = table_flag("Take fast batches.", to="allow_batched")
    allow_counter: bool | None = table_flag("Messages are increments of a counter.", to="allow_msg_counter")
    allow_rollup: bool | None = table_flag("Let a message replace earlier ones.", to="allow_rollup_hdrs")
    allow_direct: bool | None = table_flag("Let any replica answer reads; on by default.")
    allow_mirror_direct: bool | None = table_flag("Let a mirror answer reads, too.", to="mirror_direct")
    allow_msg_ttl: bool | None = table_flag("Let messages say how long they live.")
    allow_schedules: bool | None = table_flag("Take messages for later.", to="allow_msg_schedules")
    deny_delete: bool | None = table_flag("Refuse to delete messages.")
    deny_purge: bool | None = table_flag("Refuse to purge.")
    subject_del_markers_ttl: str | None = table_flag(
        "Keep a marker of expired subjects this long.", "DURATION", to="subject_delete_marker_ttl", read=duration
    )
    transform_source: str | None = table_flag("Subjects to rename.", "SUBJECT", to="")
    transform_destination: str | None = table_flag("Their new name.", "SUBJECT", to="")
    republish_source: str | None = table_flag("Subjects to publish again.", "SUBJECT", to="")
    republish_destination: str | None = table_flag("Where to publish them.", "SUBJECT", to="")
    republish_headers: bool | None = table_flag("Publish headers only.", to="")
    limit_consumer_inactive: str | None = table_flag("Longest inactive threshold.", "DURATION", to="")
    limit_consumer_max_pending: int | None = table_flag("Most pending acks of a consumer.", to="")
    persist_mode: str | None = table_flag("async acks before it writes.", "default|async")
    metadata: list[str] | None = table_flag(
        "Metadata, a text by its key; may be repeated.", "KEY=VALUE", read=parse_pairs
    )


@flag_table
class Removing:
    """The flags of `edit` that take something away."""

    no_mirror: bool = table_flag("Stop copying: the mirror becomes a stream of its own.", "--no-mirror", default=False)
    no_transform: bool = table_flag("Rename no subjects any more.", "--no-transform", default=False)
    no_republish: bool = table_flag("Publish nothing again.", "--no-republish", default=False)

    def fields(self) -> dict[str, Any]:
        """Give the fields that are to hold nothing."""
        named = {"mirror": self.no_mirror, "subject_transform": self.no_transform, "republish": self.no_republish}
        return {name: None for name, gone in named.items() if gone}


def fields_from(flags: StreamFlags, base: Stream | None = None) -> dict[str, Any]:
    """Turn the flags that were given into fields of a stream."""
    fields = given_fields(flags)
    if flags.tag is not None or flags.cluster is not None:
        fields["placement"] = placement_from(flags.cluster, flags.tag, None if base is None else base.placement)
    _pair(fields, "subject_transform", "transform", flags.transform_source, flags.transform_destination)
    _pair(fields, "republish", "republish", flags.republish_source, flags.republish_destination)
    if flags.republish_headers and "republish" in fields:
        fields["republish"]["headers_only"] = True
    limits: dict[str, int] = {}
    if flags.limit_consumer_inactive is not None:
        seconds = parse_duration(flags.limit_consumer_inactive, option="--limit-consumer-inactive")
        limits["inactive_threshold"] = round(seconds * 1_000_000_000)
    if flags.limit_consumer_max_pending is not None:
        limits["max_ack_pending"] = flags.limit_consumer_max_pending
    if limits:
        fields["consumer_limits"] = {**({} if base is None else base.consumer_limits), **limits}
    return fields


def placement_from(
    cluster: str | None, tags: list[str] | None, base: model.Placement | None = None
) -> model.Placement | None:
    """Give where a stream may live: what is not said stays, and nothing, said, takes away."""
    made = (base or model.Placement()).changed(
        cluster=(None if base is None else base.cluster) if cluster is None else cluster or None,
        tags=([] if base is None else base.tags) if tags is None else words(tags),
    )
    return made if made.to_json() else None


def _pair(fields: dict[str, Any], field: str, prefix: str, source: str | None, destination: str | None) -> None:
    if source is None and destination is None:
        return
    if destination is None:
        raise InputError(f"--{prefix}-source is given alone.", remedy=f"Give --{prefix}-destination, too.")
    fields[field] = {"src": source if source is not None else ">", "dest": destination}


def republish_from(source: str | None, destination: str | None, headers_only: bool) -> model.Republish | None:
    """Give what is to be published again, and where; None if nothing was said."""
    fields: dict[str, Any] = {}
    _pair(fields, "republish", "republish", source, destination)
    return model.Republish(**fields["republish"], headers_only=headers_only) if fields else None


def stream_from(name: str, flags: StreamFlags, base: Stream | None = None, **more: Any) -> Stream:
    """Make a stream of the flags, over a configuration that is there; `more` wins over the flags."""
    fields = {**fields_from(flags, base), **more, "name": name}
    if fields.get("mirror") and "subjects" not in fields:
        fields["subjects"] = []
    return model.Stream(**fields) if base is None else base.changed(**fields)


def ask_for_stream(flags: StreamFlags) -> StreamFlags:
    """Ask for what `nats stream add` asks for, if no flag says it."""
    answers: dict[str, Any] = {}
    if flags.subjects is None and flags.mirror is None and not flags.source:
        answers["subjects"] = ask("Subjects", "", _some_subjects)
    answers |= ask_missing(
        flags,
        ("storage", "Storage (file, memory)", "file", one_of(*_STORAGE)),
        ("replicas", "Replication", "1", number),
        ("retention", "Retention Policy (limits, interest, work)", "limits", one_of(*_RETENTION)),
        ("discard", "Discard Policy (old, new)", "old", one_of("old", "new")),
        ("max_msgs", "Stream Messages Limit", "-1", number),
        ("max_msgs_per_subject", "Per Subject Messages Limit", "-1", number),
        ("max_bytes", "Total Stream Size", "-1", accepted(parse_size, option="Total Stream Size")),
        ("max_age", "Message TTL", "-1", accepted(duration, option="duration")),
        ("max_msg_size", "Max Message Size", "-1", accepted(parse_size, option="Max Message Size")),
        ("dupe_window", "Duplicate tracking time window", "2m0s", accepted(duration, option="duration")),
        ("allow_rollup", "Allow message Roll-ups (y, n)", "n", yes),
        ("deny_delete", "Deny message deletion (y, n)", "n", yes),
        ("deny_purge", "Deny purging (y, n)", "n", yes),
    )
    if answers.get("dupe_window") == "2m0s":
        answers["dupe_window"] = None  # the server's own default, shorter if the messages live shorter
    return dataclasses.replace(flags, **answers)


def _some_subjects(text: str) -> list[str]:
    subjects = words([text])
    if not subjects:
        raise InputError("A stream captures at least one subject.", remedy="Write such as ORDERS.*")
    return subjects
