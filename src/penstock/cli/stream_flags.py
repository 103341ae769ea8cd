"""The flags of `stream add` and `stream edit`, as data, and the stream made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import ask, parse_pairs
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.model import Stream

__all__ = ["StreamFlags", "ask_for_stream", "stream_from"]

_RETENTION = {"limits": "limits", "interest": "interest", "work": "workqueue", "workq": "workqueue"}
_RETENTION["workqueue"] = "workqueue"
_STORAGE = {"file": "file", "f": "file", "memory": "memory", "m": "memory"}


def _option(*names: str, metavar: str | None = None, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


@dataclass(frozen=True)
class StreamFlags:
    """What was said on the command line; None where nothing was."""

    subjects: Annotated[list[str] | None, _option("--subjects", help="Subjects to capture; repeat, or use commas.")] = (
        None
    )
    description: Annotated[str | None, _option("--description", help="A sentence for people.")] = None
    storage: Annotated[str | None, _option("--storage", metavar="file|memory", help="Where messages are kept.")] = None
    compression: Annotated[str | None, _option("--compression", metavar="none|s2", help="Compress the files.")] = None
    replicas: Annotated[int | None, _option("--replicas", help="How many servers keep a copy.")] = None
    tag: Annotated[list[str] | None, _option("--tag", help="Tag that servers must carry; may be repeated.")] = None
    cluster: Annotated[str | None, _option("--cluster", help="Cluster to live in.")] = None
    ack: Annotated[bool | None, _option("--ack/--no-ack", help="Acknowledge what is stored.")] = None
    retention: Annotated[
        str | None, _option("--retention", metavar="limits|interest|work", help="What removes messages.")
    ] = None
    discard: Annotated[str | None, _option("--discard", metavar="old|new", help="What gives way at a limit.")] = None
    discard_per_subject: Annotated[
        bool | None,
        _option("--discard-per-subject/--no-discard-per-subject", help="Refuse at a subject's own limit, too."),
    ] = None
    first_sequence: Annotated[int | None, _option("--first-sequence", help="Sequence of the first message.")] = None
    max_age: Annotated[str | None, _option("--max-age", metavar="DURATION", help="How old messages may become.")] = None
    max_bytes: Annotated[str | None, _option("--max-bytes", metavar="SIZE", help="Most bytes to keep.")] = None
    max_consumers: Annotated[int | None, _option("--max-consumers", help="Most consumers.")] = None
    max_msg_size: Annotated[str | None, _option("--max-msg-size", metavar="SIZE", help="Largest message.")] = None
    max_msgs: Annotated[int | None, _option("--max-msgs", help="Most messages to keep.")] = None
    max_msgs_per_subject: Annotated[
        int | None, _option("--max-msgs-per-subject", help="Most messages to keep of a subject.")
    ] = None
    dupe_window: Annotated[
        str | None, _option("--dupe-window", metavar="DURATION", help="How long message ids are remembered.")
    ] = None
    mirror: Annotated[str | None, _option("--mirror", metavar="STREAM", help="Stream to copy, sequences included.")] = (
        None
    )
    source: Annotated[
        list[str] | None, _option("--source", metavar="STREAM", help="Stream to collect from; may be repeated.")
    ] = None
    allow_batch: Annotated[bool | None, _option("--allow-batch/--no-allow-batch", help="Take atomic batches.")] = None
    allow_fast: Annotated[bool | None, _option("--allow-fast/--no-allow-fast", help="Take fast batches.")] = None
    allow_counter: Annotated[
        bool | None, _option("--allow-counter/--no-allow-counter", help="Messages are increments of a counter.")
    ] = None
    allow_rollup: Annotated[
        bool | None, _option("--allow-rollup/--no-allow-rollup", help="Let a message replace earlier ones.")
    ] = None
    allow_direct: Annotated[
        bool | None, _option("--allow-direct/--no-allow-direct", help="Let any replica answer reads; on by default.")
    ] = None
    allow_mirror_direct: Annotated[
        bool | None,
        _option("--allow-mirror-direct/--no-allow-mirror-direct", help="Let a mirror answer reads, too."),
    ] = None
    allow_msg_ttl: Annotated[
        bool | None, _option("--allow-msg-ttl/--no-allow-msg-ttl", help="Let messages say how long they live.")
    ] = None
    allow_schedules: Annotated[
        bool | None, _option("--allow-schedules/--no-allow-schedules", help="Take messages for later.")
    ] = None
    deny_delete: Annotated[
        bool | None, _option("--deny-delete/--no-deny-delete", help="Refuse to delete messages.")
    ] = None
    deny_purge: Annotated[bool | None, _option("--deny-purge/--no-deny-purge", help="Refuse to purge.")] = None
    subject_del_markers_ttl: Annotated[
        str | None,
        _option("--subject-del-markers-ttl", metavar="DURATION", help="Keep a marker of expired subjects so long."),
    ] = None
    transform_source: Annotated[
        str | None, _option("--transform-source", metavar="SUBJECT", help="Subjects to rename.")
    ] = None
    transform_destination: Annotated[
        str | None, _option("--transform-destination", metavar="SUBJECT", help="Their new name.")
    ] = None
    republish_source: Annotated[
        str | None, _option("--republish-source", metavar="SUBJECT", help="Subjects to publish again.")
    ] = None
    republish_destination: Annotated[
        str | None, _option("--republish-destination", metavar="SUBJECT", help="Where to publish them.")
    ] = None
    republish_headers: Annotated[
        bool | None, _option("--republish-headers/--no-republish-headers", help="Publish headers only.")
    ] = None
    limit_consumer_inactive: Annotated[
        str | None, _option("--limit-consumer-inactive", metavar="DURATION", help="Longest inactive threshold.")
    ] = None
    limit_consumer_max_pending: Annotated[
        int | None, _option("--limit-consumer-max-pending", help="Most pending acks of a consumer.")
    ] = None
    persist_mode: Annotated[
        str | None, _option("--persist-mode", metavar="default|async", help="async acks before it writes.")
    ] = None
    metadata: Annotated[
        list[str] | None, _option("--metadata", metavar="KEY=VALUE", help="Text by key; may be repeated.")
    ] = None


# Flags that are a field under another name, or under the same.
_PLAIN = {
    "description": "description",
    "compression": "compression",
    "replicas": "num_replicas",
    "discard": "discard",
    "discard_per_subject": "discard_new_per_subject",
    "first_sequence": "first_seq",
    "max_consumers": "max_consumers",
    "max_msgs": "max_msgs",
    "max_msgs_per_subject": "max_msgs_per_subject",
    "allow_batch": "allow_atomic",
    "allow_fast": "allow_batched",
    "allow_counter": "allow_msg_counter",
    "allow_rollup": "allow_rollup_hdrs",
    "allow_direct": "allow_direct",
    "allow_mirror_direct": "mirror_direct",
    "allow_msg_ttl": "allow_msg_ttl",
    "allow_schedules": "allow_msg_schedules",
    "deny_delete": "deny_delete",
    "deny_purge": "deny_purge",
    "persist_mode": "persist_mode",
}
_DURATIONS = {
    "max_age": "max_age",
    "dupe_window": "duplicate_window",
    "subject_del_markers_ttl": "subject_delete_marker_ttl",
}
_SIZES = {"max_bytes": "max_bytes", "max_msg_size": "max_msg_size"}


def _choice(text: str, known: dict[str, str], option: str) -> str:
    if text not in known:
        raise OptionError(f"{option} is {text!r}.", remedy=f"Use one of {', '.join(known)}.", option=option, value=text)
    return known[text]


def duration_or_none(text: str, option: str) -> float:
    """Read a duration; -1 means none, as with the `nats` command."""
    return 0.0 if text in ("-1", "-1s", "") else parse_duration(text, option=option)


def split_commas(texts: list[str]) -> list[str]:
    """Read a list that may be repeated, or written with commas."""
    return [item.strip() for text in texts for item in text.split(",") if item.strip()]


def fields_from(flags: StreamFlags) -> dict[str, Any]:
    """Turn the flags that were given into fields of a stream."""
    fields: dict[str, Any] = {}
    for name, field in _PLAIN.items():
        if (value := getattr(flags, name)) is not None:
            fields[field] = value
    for name, field in _DURATIONS.items():
        if (text := getattr(flags, name)) is not None:
            fields[field] = duration_or_none(text, f"--{name.replace('_', '-')}")
    for name, field in _SIZES.items():
        if (text := getattr(flags, name)) is not None:
            fields[field] = parse_size(text, option=f"--{name.replace('_', '-')}")
    if flags.subjects is not None:
        fields["subjects"] = split_commas(flags.subjects)
    if flags.storage is not None:
        fields["storage"] = _choice(flags.storage, _STORAGE, "--storage")
    if flags.retention is not None:
        fields["retention"] = _choice(flags.retention, _RETENTION, "--retention")
    if flags.ack is not None:
        fields["no_ack"] = not flags.ack
    if flags.tag or flags.cluster:
        fields["placement"] = {"cluster": flags.cluster, "tags": flags.tag or []}
    if flags.mirror is not None:
        fields["mirror"] = {"name": flags.mirror}
    if flags.source:
        fields["sources"] = [{"name": name} for name in split_commas(flags.source)]
    if flags.metadata:
        fields["metadata"] = parse_pairs(flags.metadata, "--metadata")
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
        fields["consumer_limits"] = limits
    return fields


def _pair(fields: dict[str, Any], field: str, prefix: str, source: str | None, destination: str | None) -> None:
    if source is None and destination is None:
        return
    if destination is None:
        raise InputError(f"--{prefix}-source is given alone.", remedy=f"Give --{prefix}-destination, too.")
    fields[field] = {"src": source if source is not None else ">", "dest": destination}


def stream_from(name: str, flags: StreamFlags, base: dict[str, Any] | None = None) -> Stream:
    """Make a stream of the flags, over a configuration that is there."""
    from penstock.model import Stream

    fields = fields_from(flags)
    if "mirror" in fields and "subjects" not in fields:
        fields["subjects"] = []
    return Stream(**{**(base or {}), **fields, "name": name})


def ask_for_stream(flags: StreamFlags) -> StreamFlags:
    """Ask for what `nats stream add` asks for, where no flag says it."""
    import dataclasses

    def size(option: str) -> Any:
        return lambda text: str(parse_size(text, option=option))

    def number(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{text!r} is no number.", remedy="Give a whole number, -1 for no limit.") from None

    def duration(text: str) -> str:
        duration_or_none(text, "duration")
        return text

    def yes(text: str) -> bool:
        if text.lower() not in ("y", "yes", "n", "no"):
            raise InputError(f"{text!r} is neither yes nor no.", remedy="Answer y or n.")
        return text.lower().startswith("y")

    def one_of(known: dict[str, str]) -> Any:
        return lambda text: _choice(text, known, "the answer")

    questions: list[tuple[str, str, str, Any]] = [
        ("storage", "Storage (file, memory)", "file", one_of(_STORAGE)),
        ("replicas", "Replication", "1", number),
        ("retention", "Retention Policy (limits, interest, work)", "limits", one_of(_RETENTION)),
        ("discard", "Discard Policy (old, new)", "old", one_of({"old": "old", "new": "new"})),
        ("max_msgs", "Stream Messages Limit", "-1", number),
        ("max_msgs_per_subject", "Per Subject Messages Limit", "-1", number),
        ("max_bytes", "Total Stream Size", "-1", size("Total Stream Size")),
        ("max_age", "Message TTL", "-1", duration),
        ("max_msg_size", "Max Message Size", "-1", size("Max Message Size")),
        ("dupe_window", "Duplicate tracking time window", "2m0s", duration),
        ("allow_rollup", "Allow message Roll-ups (y, n)", "n", yes),
        ("deny_delete", "Deny message deletion (y, n)", "n", yes),
        ("deny_purge", "Deny purging (y, n)", "n", yes),
    ]
    answers: dict[str, Any] = {}
    if flags.subjects is None and flags.mirror is None and not flags.source:
        answers["subjects"] = ask("Subjects", "", _some_subjects)
    for name, question, default, read in questions:
        if getattr(flags, name) is None:
            answers[name] = ask(question, default, read)
    if answers.get("dupe_window") == "2m0s":
        answers["dupe_window"] = None  # the server's own default, shorter where the messages live shorter
    return dataclasses.replace(flags, **answers)


def _some_subjects(text: str) -> list[str]:
    subjects = split_commas([text])
    if not subjects:
        raise InputError("A stream captures at least one subject.", remedy="Write such as ORDERS.*")
    return subjects
