"""How consumers are shown to people, and to programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.asset_show import Rows, metadata_rows, placed_rows, time_or_none, unknown_rows, version_rows
from penstock.cli.output import ago, local, print_sections
from penstock.durations import format_duration
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo, SequenceInfo
    from penstock.model import Consumer

__all__ = ["api_level", "show_consumer", "titled"]

# Where the server notes what a consumer of its own feeds.
_COPIES = {"_nats.mirror": "Mirror Target", "_nats.src": "Source Target"}


def titled(word: str) -> str:
    """Write a word of the server for people: last_per_subject is Last Per Subject."""
    return word.replace("_", " ").title()


def api_level(metadata: dict[str, str]) -> str:
    """Give the level of the server's API that something needs."""
    return metadata.get("_nats.req.level") or "0"


def show_consumer(info: ConsumerInfo, *, state_only: bool = False) -> None:
    """Print a consumer: configuration, where it lives, how it stands; or only the last two."""
    what = "State" if state_only else "Information"
    config = [
        ("Configuration", _config_rows(info)),
        *((title, _copy_rows(info, keys)) for keys, title in _COPIES.items()),
        ("Metadata", metadata_rows(info.config.metadata)),
        ("Unknown to this version", unknown_rows(info.config)),
    ]
    print_sections(
        f"{what} for Consumer {info.stream} > {info.name} created {local(info.created)}",
        [
            *([] if state_only else config),
            ("Cluster Information", placed_rows(info.placed, info.raw)),
            ("State", _state_rows(info)),
        ],
    )


def _config_rows(info: ConsumerInfo) -> Rows:
    config = info.config
    push = config.deliver_subject is not None
    filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
    paused = None
    if config.pause_until is not None:
        left = f"{format_duration(round(info.pause_remaining or 0))} remaining" if info.paused else "passed"
        paused = f"{local(config.pause_until)} ({left})"
    return [
        ("Name", info.name),
        ("Durable", config.durable is not None),
        ("Description", config.description),
        ("Delivery Subject", config.deliver_subject),
        ("Pull Mode", True if not push else None),
        ("Filter Subject" if len(filters) == 1 else "Filter Subjects", filters or None),
        ("Deliver Policy", _start(config)),
        ("Deliver Queue Group", config.deliver_group),
        ("Ack Policy", titled(config.ack_policy)),
        ("Ack Wait", time_or_none(config.ack_wait) if config.ack_policy != "none" else None),
        ("Replay Policy", titled(config.replay_policy)),
        ("Maximum Deliveries", config.max_deliver if config.max_deliver > 0 else None),
        ("Sampling Rate", config.sample_freq),
        ("Rate Limit", f"{format_size(config.rate_limit_bps // 8)} / second" if config.rate_limit_bps else None),
        ("Max Ack Pending", config.max_ack_pending or None),
        ("Max Waiting Pulls", config.max_waiting or None),
        ("Idle Heartbeat", time_or_none(config.idle_heartbeat)),
        ("Flow Control", config.flow_control if push else None),
        ("Headers Only", True if config.headers_only else None),
        ("Inactive Threshold", time_or_none(config.inactive_threshold)),
        ("Max Pull Expire", time_or_none(config.max_expires)),
        ("Max Pull Batch", config.max_batch or None),
        ("Max Pull MaxBytes", config.max_bytes or None),
        ("Backoff", ", ".join(format_duration(step) for step in config.backoff) or None),
        ("Replicas", config.num_replicas or None),
        ("Memory Storage", True if config.mem_storage else None),
        ("Paused Until Deadline", paused),
        ("Priority Policy", config.priority_policy if config.priority_policy not in (None, "none") else None),
        ("Priority Groups", config.priority_groups or None),
        ("Pinned TTL", time_or_none(config.priority_timeout)),
    ]


def _copy_rows(info: ConsumerInfo, keys: str) -> Rows:
    rows = [("Stream", "stream"), ("Account", "acc"), ("Domain", "domain")]
    return [(name, info.config.metadata.get(f"{keys}.{key}") or None) for name, key in rows]


def _state_rows(info: ConsumerInfo) -> Rows:
    config = info.config
    acks = config.ack_policy != "none"
    most = f" out of maximum {config.max_ack_pending:,}" if (config.max_ack_pending or 0) > 0 else ""
    rows: Rows = [
        *version_rows(config.metadata),
        ("Last Delivered Message", _position(info.delivered, "Last delivery")),
        ("Acknowledgment Floor", _position(info.ack_floor, "Last Ack") if acks else None),
        ("Outstanding Acks", f"{info.ack_pending:,}{most}" if acks else None),
        ("Redelivered Messages", info.redelivered if acks else None),
        ("Unprocessed Messages", info.pending),
    ]
    if config.deliver_subject is None:
        rows.append(("Waiting Pulls", f"{info.waiting:,} of maximum {config.max_waiting or 0:,}"))
    else:
        active = f"Active using Queue Group {config.deliver_group}" if config.deliver_group else "Active"
        rows.append(("Active Interest", active if info.push_bound else "No interest"))
    if config.priority_policy == "pinned_client":
        rows += [
            (
                f"Priority Group {group.name}",
                f"pinned {group.pin} at {local(group.since)}" if group.pin else "No client",
            )
            for group in info.groups
        ]
    return rows


def _start(config: Consumer) -> str:
    if config.deliver_policy == "by_start_sequence":
        return f"From Sequence {config.opt_start_seq}"
    if config.deliver_policy == "by_start_time":
        return f"Since {local(config.opt_start_time)}"
    return titled(config.deliver_policy)


def _position(position: SequenceInfo, what: str) -> str:
    text = f"Consumer sequence: {position.consumer:,} Stream sequence: {position.stream:,}"
    return text + (f" {what}: {ago(position.last)}" if position.last else "")
