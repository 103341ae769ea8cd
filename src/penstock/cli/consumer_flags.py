"""The flags of `consumer add` and `consumer edit`, as a table, and the consumer made of them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cli.flags import flag_table, given_fields, option_name, table_flag
from penstock.cli.late import model
from penstock.cli.questions import accepted, ask_missing, number, one_of, yes
from penstock.cli.values import duration, parse_pairs, parse_until, refuse_both, words
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.sizes import parse_size

__all__ = ["ConsumerFlags", "ask_for_consumer", "consumer_from"]

_START = {
    "all": "all",
    "last": "last",
    "new": "new",
    "next": "new",
    "subject": "last_per_subject",
    "last_per_subject": "last_per_subject",
}
# What only one kind of consumer has, and a copy of the other kind does not take over.
_PUSHING = ("deliver_subject", "deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps")
_PULLING = (
    "max_waiting",
    "max_batch",
    "max_expires",
    "max_bytes",
    "priority_policy",
    "priority_groups",
    "priority_timeout",
)
_GROUPS = {"overflow_groups": "overflow", "pinned_groups": "pinned_client", "prioritized_groups": "prioritized"}


def _time(text: str, option: str) -> float | None:
    return duration(text, option) or None


def _share(text: str, option: str) -> str | None:
    share = text.removesuffix("%")
    if text != "-1" and (not share.isdecimal() or not share.isascii() or int(share) > 100):
        raise OptionError(f"{option} is {text!r}.", remedy="Give a percentage, 0 to 100.", option=option, value=text)
    return share if share not in ("0", "-1") else None


@flag_table
class ConsumerFlags:
    """What was said on the command line; None if nothing was."""

    ack: str | None = table_flag("How messages are acked.", "explicit|all|none|flow_control", to="ack_policy")
    bps: int | None = table_flag("Most bits a second to push.", to="rate_limit_bps")
    backoff: str | None = table_flag("Waits before repeats: linear, or such as 1s,5s,1m.", "linear|none|LIST", to="")
    backoff_steps: int = table_flag("Steps of a linear backoff; 10 by default.", default=10, show_default=False, to="")
    backoff_min: str = table_flag(
        "Its shortest wait; 1m by default.", "DURATION", default="1m", show_default=False, to=""
    )
    backoff_max: str = table_flag(
        "Its longest wait; 20m by default.", "DURATION", default="20m", show_default=False, to=""
    )
    deliver: str | None = table_flag(
        "Where to begin: all, new, last, subject, a sequence, 1h, a time.", "POLICY", to=""
    )
    deliver_group: str | None = table_flag("Push to members of this queue group.", "GROUP")
    description: str | None = table_flag("A description for people.")
    ephemeral: bool = table_flag("Let the server remove it when nobody uses it.", default=False, to="")
    filter: list[str] | None = table_flag("Only these subjects; repeat, or use commas.", "SUBJECT", to="")
    flow_control: bool | None = table_flag("Push no faster than the client reads.")
    heartbeat: str | None = table_flag(
        "Send a heartbeat this often while there is nothing to push.", "DURATION", to="idle_heartbeat", read=_time
    )
    headers_only: bool | None = table_flag("Leave payloads out.")
    inactive_threshold: str | None = table_flag("How long it lives unused.", "DURATION", read=_time)
    max_deliver: int | None = table_flag("Most deliveries of a message.")
    max_pending: int | None = table_flag("Most deliveries that wait for acks.", to="max_ack_pending")
    max_waiting: int | None = table_flag("Most pulls that wait.")
    max_pull_batch: int | None = table_flag("Most messages of one pull.", to="max_batch")
    max_pull_expire: str | None = table_flag("Longest wait of one pull.", "DURATION", to="max_expires", read=_time)
    max_pull_bytes: str | None = table_flag("Most bytes of one pull.", "SIZE", to="max_bytes", read=parse_size)
    memory: bool | None = table_flag("Keep its state in memory.", to="mem_storage")
    metadata: list[str] | None = table_flag(
        "Metadata, a text by its key; may be repeated.", "KEY=VALUE", read=parse_pairs
    )
    overflow_groups: list[str] | None = table_flag("Serve these groups by overflow.", "GROUP", to="")
    pinned_groups: list[str] | None = table_flag("Serve one client of each group.", "GROUP", to="")
    pinned_ttl: str | None = table_flag(
        "How long a pinned client may be silent.", "DURATION", to="priority_timeout", read=_time
    )
    prioritized_groups: list[str] | None = table_flag("Serve these groups by priority.", "GROUP", to="")
    pause: str | None = table_flag(
        "Deliver nothing until a time, or for a duration.", "UNTIL", to="pause_until", read=parse_until
    )
    pull: bool = table_flag("Deliver when asked; the default without --target.", default=False, to="")
    replay: str | None = table_flag("At once, or at the pace of storing.", "instant|original", to="replay_policy")
    replicas: int | None = table_flag("How many servers keep its state.", to="num_replicas")
    sample: str | None = table_flag("Share of acks to sample.", "PERCENT", to="sample_freq", read=_share)
    target: str | None = table_flag("Push to this subject.", "SUBJECT", to="")
    wait: str | None = table_flag("How long a delivery waits for its ack.", "DURATION", to="ack_wait", read=_time)


def start_from(text: str, option: str = "--deliver") -> dict[str, Any]:
    """Turn --deliver into fields: a policy, a sequence, a duration back from now, or a time."""
    nothing = {"opt_start_seq": None, "opt_start_time": None}
    if text in _START:
        return {**nothing, "deliver_policy": _START[text]}
    if text.isdecimal():
        return {**nothing, "deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    from penstock.times import parse_time

    try:
        if "T" in text and "-" in text:
            begin = parse_time(text)
        else:
            begin = datetime.now(UTC) - timedelta(seconds=parse_duration(text, option=option))
    except (InputError, OverflowError):
        raise OptionError(
            f"{option} is {text!r}.",
            remedy="Use all, last, new, subject, a sequence such as 10, a duration such as 2m, or a time.",
            option=option,
            value=text,
        ) from None
    return {**nothing, "deliver_policy": "by_start_time", "opt_start_time": begin}


def _backoff(flags: ConsumerFlags) -> list[float]:
    if flags.backoff in (None, "none", ""):
        return []
    if flags.backoff != "linear":
        return [parse_duration(text, option="--backoff") for text in words([str(flags.backoff)])]
    low = parse_duration(flags.backoff_min, option="--backoff-min")
    high = parse_duration(flags.backoff_max, option="--backoff-max")
    if flags.backoff_steps < 1 or high < low or not low:
        raise InputError(
            f"A linear backoff of {flags.backoff_steps} steps from {flags.backoff_min} to {flags.backoff_max} "
            "is not possible.",
            remedy="Give a step or more, and the longest wait last.",
        )
    # As the `nats` command has it: the longest wait is where the steps lead to, and none of them.
    width = (high - low) / flags.backoff_steps
    return [round(low + step * width, 3) for step in range(flags.backoff_steps)]


def fields_from(flags: ConsumerFlags) -> dict[str, Any]:
    """Turn the flags that were given into fields of a consumer."""
    fields = given_fields(flags)
    if flags.backoff is not None:
        fields["backoff"] = _backoff(flags)
    if flags.deliver is not None:
        fields |= start_from(flags.deliver)
    if flags.filter is not None:
        subjects = words(flags.filter)
        fields["filter_subject"] = subjects[0] if len(subjects) == 1 else None
        fields["filter_subjects"] = subjects if len(subjects) > 1 else []
    refuse_both("--pull", flags.pull, "--target", bool(flags.target))
    refuse_both("--pull", flags.pull, "--deliver-group", bool(flags.deliver_group))
    if flags.target:
        fields["deliver_subject"] = flags.target
    groups = {name: getattr(flags, name) for name in _GROUPS if getattr(flags, name)}
    if len(groups) > 1:
        given = " and ".join(map(option_name, groups))
        raise InputError(f"{given} are given together.", remedy="A consumer serves groups in one way.")
    for name, listed in groups.items():
        fields |= {"priority_policy": _GROUPS[name], "priority_groups": words(listed)}
    return fields


def consumer_from(name: str | None, flags: ConsumerFlags, base: dict[str, Any] | None = None) -> model.Consumer:
    """Make a consumer of the flags, over a configuration that is there."""
    begun, given = base or {}, fields_from(flags)
    other_kind = _PULLING if flags.target else _PUSHING if flags.pull else ()
    fields = {**{name: value for name, value in begun.items() if name not in other_kind}, **given}
    if fields.get("deliver_policy") == "last_per_subject" and not fields.get("filter_subjects"):
        fields["filter_subject"] = fields.get("filter_subject") or ">"  # the server wants to be told
    if name is not None:
        ephemeral = flags.ephemeral or bool(base and base.get("name") and not base.get("durable"))
        fields |= {"name": name, "durable": None} if ephemeral else {"durable": name, "name": None}
    return model.Consumer(**fields)


def ask_for_consumer(flags: ConsumerFlags) -> ConsumerFlags:
    """Ask for what `nats consumer add` asks for, if no flag says it."""

    def filters(text: str) -> list[str]:
        return [text]

    def most(text: str) -> int | None:
        return number(text) or None

    def backoff(text: str) -> list[float]:
        return _backoff(dataclasses.replace(flags, backoff=text))

    def ask(*questions: tuple[str, str, str, Any]) -> None:
        nonlocal flags
        flags = dataclasses.replace(flags, **ask_missing(flags, *questions))

    if not flags.pull:
        ask(("target", "Delivery target (empty for Pull Consumers)", "", str))
    ask(
        ("deliver", "Start policy (all, new, last, subject, 1h, msg sequence)", "all", accepted(start_from)),
        ("ack", "Acknowledgment policy (explicit, all, none)", "explicit", one_of("explicit", "all", "none")),
        ("replay", "Replay policy (instant, original)", "instant", one_of("instant", "original")),
        ("filter", "Filter Stream by subjects (blank for all)", "", filters),
    )
    if flags.ack != "none":
        ask(
            ("max_deliver", "Maximum Allowed Deliveries", "-1", number),
            ("max_pending", "Maximum Acknowledgments Pending", "0", most),
            ("backoff", "Backoff policy (none, linear, or a list such as 1s,5s,1m)", "none", accepted(backoff)),
        )
    if flags.target:
        ask(("heartbeat", "Idle Heartbeat (-1 for none)", "-1", accepted(duration, option="heartbeat")))
        if duration(flags.heartbeat or "-1", "--heartbeat") > 0:
            ask(("flow_control", "Enable Flow Control (y, n)", "n", yes))
    ask(("headers_only", "Deliver headers only without bodies (y, n)", "n", yes))
    return flags
