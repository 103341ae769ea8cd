"""How consumers and deliveries are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.output import ago, local, print_bytes, print_headers, print_sections
from penstock.cli.stream_show import metadata_rows, placed_rows, time_or_none
from penstock.durations import format_duration
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo, SequenceInfo
    from penstock.jetstream.delivery import Delivery
    from penstock.model import Consumer

__all__ = ["delivery_json", "show_consumer", "show_delivery"]


def _start(config: Consumer) -> str:
    if config.deliver_policy == "by_start_sequence":
        return f"From Sequence {config.opt_start_seq}"
    if config.deliver_policy == "by_start_time":
        return f"Since {local(config.opt_start_time)}"
    return config.deliver_policy.replace("_", " ").title()


def _position(position: SequenceInfo, what: str) -> str:
    text = f"Consumer sequence: {position.consumer:,} Stream sequence: {position.stream:,}"
    return text + (f" {what}: {ago(position.last)}" if position.last else "")


def _config_rows(info: ConsumerInfo) -> list[tuple[str, Any]]:
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
        ("Ack Policy", config.ack_policy.capitalize()),
        ("Ack Wait", time_or_none(config.ack_wait) if config.ack_policy != "none" else None),
        ("Replay Policy", config.replay_policy.capitalize()),
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


def show_consumer(info: ConsumerInfo) -> None:
    """Print a consumer: configuration, where it lives, how it stands."""
    config = info.config
    acks = config.ack_policy != "none"
    most = f" out of maximum {config.max_ack_pending:,}" if (config.max_ack_pending or 0) > 0 else ""
    state: list[tuple[str, Any]] = [
        ("Last Delivered Message", _position(info.delivered, "Last delivery")),
        ("Acknowledgment Floor", _position(info.ack_floor, "Last Ack") if acks else None),
        ("Outstanding Acks", f"{info.ack_pending:,}{most}" if acks else None),
        ("Redelivered Messages", info.redelivered if acks else None),
        ("Unprocessed Messages", info.pending),
    ]
    if config.deliver_subject is None:
        state.append(("Waiting Pulls", f"{info.waiting:,} of maximum {config.max_waiting or 0:,}"))
    else:
        state.append(("Active Interest", "Active" if info.push_bound else "No interest"))
    print_sections(
        f"Information for Consumer {info.stream} > {info.name} created {local(info.created)}",
        [
            ("Configuration", _config_rows(info)),
            ("Metadata", metadata_rows(config.metadata)),
            ("Cluster Information", placed_rows(info.placed)),
            ("State", state),
        ],
    )


def show_delivery(delivery: Delivery, *, raw: bool = False) -> None:
    """Print a delivery."""
    if not raw:
        place = delivery.place
        typer.echo(
            f"--- received on {delivery.subject} (stream sequence {place.sequence}, consumer sequence "
            f"{place.consumer_sequence}, delivery {place.delivered}, {place.pending} pending)"
        )
        print_headers(delivery.headers)
    print_bytes(delivery.data if raw else delivery.data + b"\n")


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Give a delivery for programs; the payload is base64."""
    from penstock.model import Message

    place = delivery.place
    message = Message(
        subject=delivery.subject,
        data=delivery.data,
        headers={name: [value] for name, value in delivery.headers.items()},
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
