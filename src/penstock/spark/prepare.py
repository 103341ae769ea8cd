"""What a stream needs before the sink can write to it, found out on the driver and, with consent, mended."""

from __future__ import annotations

import re
import shlex
from typing import Any

from penstock.buckets.key_wire import key_subjects
from penstock.buckets.object_wire import chunk_subjects
from penstock.buckets.object_wire import description_subjects as described
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import MARKER_ROOT, marker_filter, marker_headers, origin_body, origin_subject
from penstock.spark.messages import SinkStream
from penstock.spark.options import refuse
from penstock.spark.sink_options import SinkOptions
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.answers import check_stream_answer
from penstock.wire.jetstream.names import CONDITION_FAILED, EXPECTED_LAST_SUBJECT_SEQUENCE
from penstock.wire.subjects import covers, overlaps

__all__ = ["prepare"]

ATOMIC = (2, 12)  # the server that first had atomic batches
SMALLEST = 4096  # bytes that the largest message must have room for, so that journals fit


def prepare(bulk: TaskConnection, options: SinkOptions) -> SinkStream:
    """Check the stream, change it if it is allowed to, and give what the tasks must know."""
    name = options.stream
    try:
        info = check_stream_answer(bulk.api(f"STREAM.INFO.{name}"))
    except NotFoundError:
        if options.is_keyed:
            kind, noun = ("bucket", "kv") if options.bucket else ("object bucket", "object")
            named = options.bucket or options.objects
            raise InputError(
                f"There is no {kind} {named}.", remedy=f"Create it: penstock {noun} add {named}."
            ) from None
        raise InputError(
            f"There is no stream {name}.",
            remedy=f"Create it: penstock stream add {name} --subjects '...' --defaults.",
        ) from None
    config, domain = info["config"], info.get("domain") or ""
    if config.get("mirror"):
        raise InputError(f"Stream {name} is a mirror, which takes no messages.", remedy="Write to what it mirrors.")
    if config.get("sealed"):
        raise InputError(f"Stream {name} is sealed, for ever.", remedy="Write to another one.")
    if config.get("no_ack"):
        raise InputError(
            f"Stream {name} sends no acks, so that nobody would know whether a row is stored.",
            remedy="Let it send them, or write to another one.",
        )
    if options.is_keyed:
        _refuse_no_bucket(config, options)
    if options.exactly_once:
        _refuse_unsafe(bulk, config)
    elif config.get("retention") == "interest" and not info["state"].get("consumer_count"):
        raise InputError(
            f"Stream {name} keeps what a consumer wants, and has no consumer: it would drop every row at once.",
            remedy="Make the consumer first.",
        )
    if changes := _missing(config, options):
        config = _mend(bulk, config, changes, options)
    keep = bool(config.get("max_age")) and bool(config.get("allow_msg_ttl"))
    if options.exactly_once and info["state"]["messages"] == 0:
        _lay_origin(bulk, name, domain, marker_headers(keep), options.patience)
    limit = bulk.max_payload
    if (most := config.get("max_msg_size", -1)) > 0:
        limit = min(limit, most)
    subjects = tuple(item for item in config.get("subjects") or () if not item.startswith(f"{MARKER_ROOT}."))
    return SinkStream(
        name,
        subjects,
        limit,
        keep=keep,
        fast=bool(config.get("allow_batched")),
        dead_letter_stream=_dead_letter_stream(bulk, options),
        domain=domain,
    )


def _refuse_no_bucket(config: dict[str, Any], options: SinkOptions) -> None:
    """Refuse a stream that has the name of a bucket and is not one."""
    if options.bucket is not None:
        needed = [key_subjects(options.bucket)]
    else:
        needed = [described(options.objects or ""), chunk_subjects(options.objects or "")]
    if not all(any(covers(item, subject) for item in config.get("subjects") or ()) for subject in needed):
        raise InputError(
            f"Stream {config['name']} does not take {' and '.join(needed)}: it is not a bucket to write to.",
            remedy="Make the bucket with penstock or another client, and write to that.",
        )
    if not config.get("allow_rollup_hdrs"):
        raise InputError(
            f"Stream {config['name']} does not allow rollups, as a bucket does.",
            remedy=f"Run: penstock stream edit {config['name']} --allow-rollup --force.",
        )


def _refuse_unsafe(bulk: TaskConnection, config: dict[str, Any]) -> None:
    """Refuse what exactly-once cannot be had with, each with its reason."""
    name = config["name"]
    other = 'Or accept repeats: .option("guarantee", "at-least-once").'
    version = tuple(int(part) for part in re.findall(r"\d+", bulk.version)[:2])
    if version < ATOMIC:
        raise InputError(
            f"The server is nats-server {bulk.version}, and atomic batches came with 2.12: exactly-once needs them.",
            remedy=f"Update the server. {other}",
        )
    transform = config.get("subject_transform")  # without a source it is for all subjects
    own = [item for item in config.get("sources") or () if item.get("name") == name]  # in another domain or account
    reasons = {
        "interest retention drops the sink's markers at once": config.get("retention") == "interest",
        "in a work queue whoever consumes everything would remove the sink's markers": config.get("retention")
        == "workqueue",
        "its messages are counters": config.get("allow_msg_counter"),
        "it forbids to purge, and the sink must remove its markers": config.get("deny_purge"),
        "it refuses new messages of a subject at a limit, markers too": config.get("discard_new_per_subject"),
        "it acknowledges before it writes": config.get("persist_mode") == "async",
        "it renames the subjects of the sink's markers": transform
        and overlaps(transform.get("src") or ">", f"{MARKER_ROOT}.>"),
        "it sources a stream of the same name, whose markers would be taken for its own": any(
            overlaps(item.get("filter_subject") or ">", marker_filter(name)) for item in own
        ),
        f"it takes no messages of {SMALLEST} bytes": 0 < config.get("max_msg_size", -1) < SMALLEST,
    }
    for reason, holds in reasons.items():
        if holds:
            remedy = "Change it, or write to another stream"
            if config.get("retention") in ("interest", "workqueue"):
                remedy = "Write to a stream with limits, and let this one source the data subjects from it"
            raise InputError(f"Stream {name} cannot be written to exactly once: {reason}.", remedy=f"{remedy}. {other}")


def _missing(config: dict[str, Any], options: SinkOptions) -> dict[str, Any]:
    """Give the changes that the write needs."""
    changes: dict[str, Any] = {}
    subjects, markers = config.get("subjects") or [], marker_filter(config["name"])
    if options.exactly_once and not config.get("allow_atomic"):
        changes["allow_atomic"] = True
    if options.exactly_once and not any(covers(item, markers) for item in subjects):
        changes["subjects"] = [*subjects, markers]
    expires = bool(config.get("max_age")) and options.exactly_once  # then markers must say that they do not
    if not config.get("allow_msg_ttl") and (expires or options.ttl or options.ttl_column):
        changes["allow_msg_ttl"] = True
    return changes


def _mend(
    bulk: TaskConnection, config: dict[str, Any], changes: dict[str, Any], options: SinkOptions
) -> dict[str, Any]:
    name = config["name"]
    if not options.prepare:
        flags = {
            "allow_atomic": ["--allow-batch"],
            "subjects": ["--subjects", ",".join(changes.get("subjects", []))],
            "allow_msg_ttl": ["--allow-msg-ttl"],
        }
        words = [word for change in changes for word in flags[change]]
        raise InputError(
            f"Stream {name} is not ready for this write ({options.guarantee}): it lacks {' and '.join(changes)}.",
            remedy=f"Run: penstock stream edit {name} {shlex.join(words)} --force. "
            'Or let the sink do it: .option("prepare", "true").',
        )
    found: dict[str, Any] = bulk.api(f"STREAM.UPDATE.{name}", {**config, **changes})["config"]
    return found


def _lay_origin(bulk: TaskConnection, name: str, domain: str, headers: dict[str, str], patience: float) -> None:
    """Store a first message that stays: purging markers must not look like the loss of the stream's beginning.

    A stream that has just been made, or has just got the subject, may have nobody yet who listens there.
    """
    headers = {EXPECTED_LAST_SUBJECT_SEQUENCE: "0", **headers}
    answer = bulk.patiently(
        lambda: bulk.request(origin_subject(name), origin_body(), headers=headers), patience, nobody=True
    )
    try:
        confirm(answer.payload, answer.status, name, domain)
    except JetStreamError as error:
        if error.err_code not in CONDITION_FAILED:  # another query was faster
            raise


def _dead_letter_stream(bulk: TaskConnection, options: SinkOptions) -> str | None:
    subject = options.dead_letter_subject
    if subject is None:
        return None
    names = bulk.api("STREAM.NAMES", {"subject": subject}).get("streams") or []
    if not names:
        raise InputError(
            f"No stream takes the dead letters' subject {subject}.",
            remedy="Add it to a stream; one of the stream that takes the rows makes dead letters exactly once.",
        )
    if options.is_keyed and options.stream in names:
        refuse("deadLetterSubject", subject, "Name a subject of another stream.", "is one of the bucket's own.")
    return None if options.stream in names else str(names[0])
