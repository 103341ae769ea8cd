"""How streams, messages and deliveries are shown to people, and which messages are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.output import local, print_bytes, print_headers, print_sections
from penstock.cli.tables import plain
from penstock.durations import format_duration
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo, Copy, Placed, StreamInfo
    from penstock.jetstream.delivery import Delivery
    from penstock.model import Consumer, Message, Stream

__all__ = [
    "Sieve",
    "bucket_note",
    "delivery_json",
    "info_json",
    "is_internal",
    "show_delivery",
    "show_message",
    "show_stream",
]

_ABOUT_THE_ANSWER = {"type", "total", "offset", "limit", "did_create"}
# Streams that are something else's: what their names begin with, and whose they are.
_BUCKETS = {"KV_": "key-value bucket", "OBJ_": "object bucket", "$MQTT_": "state of MQTT"}

Rows = list[tuple[str, Any]]


def info_json(info: StreamInfo | ConsumerInfo) -> dict[str, Any]:
    """Give a server's answer as the `nats` command prints it: without what is about the answer."""
    return {name: value for name, value in info.raw.items() if name not in _ABOUT_THE_ANSWER}


def is_internal(stream: str) -> bool:
    """Tell whether a stream only keeps the data of something else."""
    return stream.startswith(tuple(_BUCKETS))


def bucket_note(stream: str) -> str:
    """Say whose stream it is, for a question before it changes; nothing of a plain one."""
    kind = next((kind for prefix, kind in _BUCKETS.items() if stream.startswith(prefix)), None)
    return "" if kind is None else f" (it is a {kind}, which may break)"


def limit(value: int | None) -> str:
    """Write a limit; none is unlimited."""
    return "unlimited" if value is None or value <= 0 else f"{value:,}"


def size_limit(value: int | None) -> str:
    """Write a limit in bytes."""
    return "unlimited" if value is None or value <= 0 else format_size(value)


def time_or_none(seconds: float | None) -> str | None:
    """Write a duration; none, and one of no length, is left out."""
    return format_duration(seconds) if seconds else None


def metadata_rows(metadata: Mapping[str, str]) -> Rows:
    """Give metadata without what the server keeps there."""
    return [(key, text) for key, text in metadata.items() if not key.startswith("_nats.")]


def unknown_rows(config: Stream | Consumer) -> Rows:
    """Give what a server says in fields that this version does not know."""
    return [(name, json.dumps(value)) for name, value in config.unknown.items()]


def version_rows(metadata: Mapping[str, str]) -> Rows:
    """Say which server carries it, and which level of the API it needs."""
    level, needed = metadata.get("_nats.level"), metadata.get("_nats.req.level")
    hosted = "" if level is None else f" hosted at level {level}"
    return [
        ("Host Version", metadata.get("_nats.ver")),
        ("Required API Level", f"{needed or 0}{hosted}" if level or needed else None),
    ]


def placed_rows(placed: Placed, raw: Mapping[str, Any] | None = None) -> Rows:
    """Say which servers carry it, and how they stand; nothing for a lone server. `raw` is the whole answer."""
    if placed.cluster is None:
        return []
    said = (raw or {}).get("cluster") or {}
    group = said.get("raft_group")
    rows: Rows = [("Name", placed.cluster), ("Cluster Group", group if isinstance(group, str) else None)]
    rows.append(("Leader", placed.leader or "none: there is no quorum"))
    peers = said.get("replicas") or [{"name": name, "current": current} for name, current in placed.replicas]
    return [*rows, *(("Replica", _peer(peer)) for peer in peers)]


def _peer(peer: Mapping[str, Any]) -> str:
    words = [str(peer.get("name")), "current" if peer.get("current") else "outdated"]
    if peer.get("offline"):
        words.append("OFFLINE")
    active, lag = peer.get("active"), peer.get("lag")
    if isinstance(active, int):
        words.append(f"seen {format_duration(round(active / 1e9, 2))} ago" if 0 < active < 2**63 - 1 else "not seen")
    if peer.get("pending"):
        words.append("pending")
    if isinstance(lag, int) and lag > 0:
        words.append(f"{lag:,} operation{'s' if lag > 1 else ''} behind")
    return ", ".join(words)


# -- streams ---------------------------------------------------------------------------------------------------------


def _source(source: Any) -> str:
    parts = [source.name]
    if source.filter_subject:
        parts.append(f"subject {source.filter_subject}")
    parts += [f"{item.src} to {item.dest}" for item in source.subject_transforms]
    if source.opt_start_seq:
        parts.append(f"from sequence {source.opt_start_seq}")
    if source.opt_start_time:
        parts.append(f"since {local(source.opt_start_time)}")
    if source.external:
        parts.append(f"through {source.external.api}")
    if source.consumer:
        parts.append(f"by consumer {source.consumer.name} ({source.consumer.deliver_subject})")
    parts += [f"{name} {json.dumps(value)}" for name, value in source.unknown.items()]
    return ", ".join(parts)


def _consumer_limits(limits: Mapping[str, Any]) -> Rows:
    rows: Rows = []
    for name, value in limits.items():
        if name == "inactive_threshold" and isinstance(value, int):
            rows.append(("Consumer Inactive Threshold", time_or_none(value / 1e9)))
        else:
            rows.append((f"Consumer {name.replace('_', ' ').title()}", value or None))
    return rows


def config_sections(config: Stream) -> list[tuple[str, Rows]]:
    """Give a stream's configuration as it is shown."""
    discard = config.discard.capitalize() + (" per subject" if config.discard_new_per_subject else "")
    transform, republish = config.subject_transform, config.republish
    placement = config.placement
    return [
        (
            "",
            [
                ("Description", config.description),
                ("Subjects", config.subjects or None),
                ("Replicas", config.num_replicas),
                ("Sealed", True if config.sealed else None),
                ("Storage", config.storage.capitalize()),
                ("Compression", config.compression if config.compression != "none" else None),
                ("Persistence Mode", config.persist_mode if config.persist_mode == "async" else None),
                ("First Sequence", config.first_seq),
                ("Placement Cluster", placement.cluster if placement else None),
                ("Placement Tags", placement.tags or None if placement else None),
                ("Preferred", placement.preferred if placement else None),
            ],
        ),
        (
            "Options",
            [
                ("Subject Transform", f"{transform.src} to {transform.dest}" if transform else None),
                (
                    "Republishing Headers" if republish and republish.headers_only else "Republishing",
                    f"{republish.src} to {republish.dest}" if republish else None,
                ),
                ("Retention", {"workqueue": "WorkQueue"}.get(config.retention, config.retention.capitalize())),
                ("Acknowledgments", not config.no_ack),
                ("Discard Policy", discard),
                ("Duplicate Window", format_duration(config.duplicate_window or 0)),
                ("Direct Get", config.allow_direct),
                ("Mirror Direct Get", True if config.mirror_direct else None),
                ("Allows Atomic Batch Publish", config.allow_atomic),
                ("Allows Fast Batch Publish", config.allow_batched),
                ("Allows Counters", config.allow_msg_counter),
                ("Allows Msg Delete", not config.deny_delete),
                ("Allows Per-Message TTL", config.allow_msg_ttl),
                ("Allows Purge", not config.deny_purge),
                ("Allows Schedules", config.allow_msg_schedules),
                ("Allows Rollups", config.allow_rollup_hdrs),
                ("Subject Delete Markers TTL", time_or_none(config.subject_delete_marker_ttl)),
            ],
        ),
        (
            "Limits",
            [
                ("Maximum Messages", limit(config.max_msgs)),
                ("Maximum Per Subject", limit(config.max_msgs_per_subject)),
                ("Maximum Bytes", size_limit(config.max_bytes)),
                ("Maximum Age", time_or_none(config.max_age) or "unlimited"),
                ("Maximum Message Size", size_limit(config.max_msg_size)),
                ("Maximum Consumers", limit(config.max_consumers)),
                *_consumer_limits(config.consumer_limits),
            ],
        ),
        (
            "Replication",
            [
                ("Mirror", _source(config.mirror) if config.mirror else None),
                *(("Sources", _source(source)) for source in config.sources),
            ],
        ),
        ("Metadata", metadata_rows(config.metadata)),
        ("Unknown to this version", unknown_rows(config)),
    ]


def show_stream(info: StreamInfo, *, state_only: bool = False, markers: int = 0) -> None:
    """Print a stream: configuration, where it lives, how it stands; how many messages are the Spark sink's markers."""
    state: list[tuple[str, Rows]] = [
        ("Cluster Information", placed_rows(info.placed, info.raw)),
        ("Copies", [(copy.name, _copy(copy)) for copy in info.copies]),
        (
            "State",
            [
                *version_rows(info.config.metadata),
                ("Messages", info.messages),
                ("Markers of the Spark sink", markers or None),
                ("Bytes", format_size(info.bytes)),
                ("Lost Messages", _lost(info)),
                ("First Sequence", _at(info.first_sequence, info.first_time)),
                ("Last Sequence", _at(info.last_sequence, info.last_time)),
                ("Deleted Messages", info.deleted or None),
                ("Active Consumers", info.consumers),
                ("Number of Subjects", info.subjects or None),
                *(("Alternates", text) for text in _alternates(info)),
            ],
        ),
    ]
    if state_only:
        print_sections(f"State for Stream {info.name} created {local(info.created)}", state)
    else:
        title = f"Information for Stream {info.name} created {local(info.created)}"
        print_sections(title, [*config_sections(info.config), *state])


def _copy(copy: Copy) -> str:
    seen = "never seen" if copy.active is None else f"{copy.active:.1f}s ago"
    return f"lag {copy.lag:,}, {seen}" + (f", {copy.error}" if copy.error else "")


def _lost(info: StreamInfo) -> str | None:
    return f"{info.lost:,} ({format_size(info.lost_bytes)})" if info.lost else None


def _alternates(info: StreamInfo) -> list[str]:
    found = info.raw.get("alternates") or []
    return [
        f"{item.get('name')}, cluster {item.get('cluster')}"
        + (f", domain {item['domain']}" if item.get("domain") else "")
        for item in found
        if isinstance(item, dict)
    ]


def _at(sequence: int, time: datetime | None) -> str:
    return f"{sequence:,}" + (f" @ {local(time)}" if time is not None else "")


# -- messages --------------------------------------------------------------------------------------------------------


class Sieve:
    """Lets messages of the data through, counts markers; a filter that names markers is a way to ask for them."""

    def __init__(self, everything: bool, pattern: str | None = None) -> None:
        from penstock.spark.markers import MARKER_ROOT

        self.open = everything or (pattern is not None and pattern.split(".")[0] == MARKER_ROOT)
        self.hidden = 0

    def shows(self, subject: str) -> bool:
        """Tell whether to show a message of this subject."""
        from penstock.spark.markers import is_marker

        if self.open or not is_marker(subject):
            return True
        self.hidden += 1
        return False

    def tell(self) -> None:
        """Say what was left out, beside the output."""
        if self.hidden:
            what = "1 marker" if self.hidden == 1 else f"{self.hidden:,} markers"
            typer.echo(f"Not shown: {what} of the Spark sink; see --all.", err=True)


def show_message(message: Message, *, raw: bool = False, data: bytes | None = None) -> None:
    """Print a stored message; `data` is what to show for its payload, if a program made something of that."""
    body = message.data if data is None else data.removesuffix(b"\n")
    if not raw:
        typer.echo(f"[{message.sequence}] Subject: {plain(message.subject)} Received: {local(message.time)}")
        for name, values in message.headers.items():
            for value in values:
                typer.echo(plain(f"  {name}: {value}"))
        typer.echo("")
    print_bytes(body if raw else body + b"\n")


def show_delivery(delivery: Delivery, *, raw: bool = False) -> None:
    """Print a delivery."""
    if not raw:
        place = delivery.place
        typer.echo(
            f"--- received on {plain(delivery.subject)} (stream sequence {place.sequence}, consumer sequence "
            f"{place.consumer_sequence}, delivery {place.delivered}, {place.pending} pending)"
        )
        print_headers(delivery.header_block)
    print_bytes(delivery.data if raw else delivery.data + b"\n")


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Give a delivery for programs; the payload is base64."""
    from penstock.model import Message
    from penstock.wire.protocol import decode_headers

    place = delivery.place
    message = Message(
        subject=delivery.subject,
        data=delivery.data,
        headers={} if delivery.header_block is None else decode_headers(delivery.header_block)[2],
        sequence=place.sequence,
        time=place.time,
        stream=place.stream,
    )
    return {
        **message.to_json(),
        "consumer": place.consumer,
        "consumer_sequence": place.consumer_sequence,
        "delivered": place.delivered,
        "pending": place.pending,
    }
