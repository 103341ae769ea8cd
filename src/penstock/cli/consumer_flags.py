"""The flags of `consumer add` and `consumer edit`, as data, and the consumer made of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import ask, parse_pairs, parse_until
from penstock.cli.stream_flags import duration_or_none, split_commas
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.model import Consumer

__all__ = ["ConsumerFlags", "ask_for_consumer", "consumer_from"]

_START = {"all": "all", "last": "last", "new": "new", "subject": "last_per_subject"}


def _option(*names: str, metavar: str | None = None, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


@dataclass(frozen=True)
class ConsumerFlags:
    """What was said on the command line; None where nothing was."""

    ack: Annotated[str | None, _option("--ack", metavar="explicit|all|none", help="How messages are acked.")] = None
    bps: Annotated[int | None, _option("--bps", help="Most bits a second to push.")] = None
    backoff: Annotated[
        str | None,
        _option("--backoff", metavar="linear|none|LIST", help="Waits before repeats: linear, or such as 1s,5s,1m."),
    ] = None
    backoff_steps: Annotated[int, _option("--backoff-steps", help="Steps of a linear backoff; 10 by default.")] = 10
    backoff_min: Annotated[
        str, _option("--backoff-min", metavar="DURATION", help="Its shortest wait; 1m by default.")
    ] = "1m"
    backoff_max: Annotated[
        str, _option("--backoff-max", metavar="DURATION", help="Its longest wait; 20m by default.")
    ] = "20m"
    deliver: Annotated[
        str | None,
        _option("--deliver", metavar="POLICY", help="Where to begin: all, new, last, subject, a sequence, 1h, a time."),
    ] = None
    deliver_group: Annotated[
        str | None, _option("--deliver-group", metavar="GROUP", help="Push to members of this queue group.")
    ] = None
    description: Annotated[str | None, _option("--description", help="A sentence for people.")] = None
    ephemeral: Annotated[bool, _option("--ephemeral", help="Let it go when nobody uses it.")] = False
    filter: Annotated[
        list[str] | None, _option("--filter", metavar="SUBJECT", help="Only these subjects; repeat, or use commas.")
    ] = None
    flow_control: Annotated[
        bool | None, _option("--flow-control/--no-flow-control", help="Push no faster than is read.")
    ] = None
    heartbeat: Annotated[
        str | None, _option("--heartbeat", metavar="DURATION", help="Show life so often while pushing nothing.")
    ] = None
    headers_only: Annotated[bool | None, _option("--headers-only/--no-headers-only", help="Leave payloads out.")] = None
    inactive_threshold: Annotated[
        str | None, _option("--inactive-threshold", metavar="DURATION", help="How long it lives unused.")
    ] = None
    max_deliver: Annotated[int | None, _option("--max-deliver", help="Most deliveries of a message.")] = None
    max_pending: Annotated[int | None, _option("--max-pending", help="Most deliveries that wait for acks.")] = None
    max_waiting: Annotated[int | None, _option("--max-waiting", help="Most pulls that wait.")] = None
    max_pull_batch: Annotated[int | None, _option("--max-pull-batch", help="Most messages of one pull.")] = None
    max_pull_expire: Annotated[
        str | None, _option("--max-pull-expire", metavar="DURATION", help="Longest wait of one pull.")
    ] = None
    max_pull_bytes: Annotated[
        str | None, _option("--max-pull-bytes", metavar="SIZE", help="Most bytes of one pull.")
    ] = None
    memory: Annotated[bool | None, _option("--memory/--no-memory", help="Keep its state in memory.")] = None
    metadata: Annotated[
        list[str] | None, _option("--metadata", metavar="KEY=VALUE", help="Text by key; may be repeated.")
    ] = None
    overflow_groups: Annotated[
        list[str] | None, _option("--overflow-groups", metavar="GROUP", help="Serve these groups by overflow.")
    ] = None
    pinned_groups: Annotated[
        list[str] | None, _option("--pinned-groups", metavar="GROUP", help="Serve one client of each group.")
    ] = None
    pinned_ttl: Annotated[
        str | None, _option("--pinned-ttl", metavar="DURATION", help="How long a pinned client may be silent.")
    ] = None
    prioritized_groups: Annotated[
        list[str] | None, _option("--prioritized-groups", metavar="GROUP", help="Serve these groups by priority.")
    ] = None
    pause: Annotated[
        str | None, _option("--pause", metavar="UNTIL", help="Deliver nothing until a time, or for a duration.")
    ] = None
    pull: Annotated[bool, _option("--pull", help="Deliver when asked; the default without --target.")] = False
    replay: Annotated[
        str | None, _option("--replay", metavar="instant|original", help="At once, or at the pace of storing.")
    ] = None
    replicas: Annotated[int | None, _option("--replicas", help="How many servers keep its state.")] = None
    sample: Annotated[str | None, _option("--sample", metavar="PERCENT", help="Share of acks to sample.")] = None
    target: Annotated[str | None, _option("--target", metavar="SUBJECT", help="Push to this subject.")] = None
    wait: Annotated[
        str | None, _option("--wait", metavar="DURATION", help="How long a delivery waits for its ack.")
    ] = None


_PLAIN = {
    "ack": "ack_policy",
    "bps": "rate_limit_bps",
    "deliver_group": "deliver_group",
    "description": "description",
    "flow_control": "flow_control",
    "headers_only": "headers_only",
    "max_deliver": "max_deliver",
    "max_pending": "max_ack_pending",
    "max_waiting": "max_waiting",
    "max_pull_batch": "max_batch",
    "memory": "mem_storage",
    "replay": "replay_policy",
    "replicas": "num_replicas",
}
_DURATIONS = {
    "heartbeat": "idle_heartbeat",
    "inactive_threshold": "inactive_threshold",
    "max_pull_expire": "max_expires",
    "pinned_ttl": "priority_timeout",
    "wait": "ack_wait",
}
_GROUPS = {"overflow_groups": "overflow", "pinned_groups": "pinned_client", "prioritized_groups": "prioritized"}


def start_from(text: str) -> dict[str, Any]:
    """Turn --deliver into fields: a policy, a sequence, a duration back from now, or a time."""
    if text in _START:
        return {"deliver_policy": _START[text]}
    if text.isdecimal():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    from penstock.times import parse_time

    try:
        if "T" in text and "-" in text:
            return {"deliver_policy": "by_start_time", "opt_start_time": parse_time(text)}
        begin = datetime.now(UTC) - timedelta(seconds=parse_duration(text, option="--deliver"))
    except (InputError, OverflowError):
        raise OptionError(
            f"--deliver is {text!r}.",
            remedy="Use all, last, new, subject, a sequence such as 10, a duration such as 2m, or a time.",
            option="--deliver",
            value=text,
        ) from None
    return {"deliver_policy": "by_start_time", "opt_start_time": begin}


def _backoff(flags: ConsumerFlags) -> list[float]:
    if flags.backoff in (None, "none", ""):
        return []
    if flags.backoff != "linear":
        return [parse_duration(text, option="--backoff") for text in split_commas([str(flags.backoff)])]
    low = parse_duration(flags.backoff_min, option="--backoff-min")
    high = parse_duration(flags.backoff_max, option="--backoff-max")
    if flags.backoff_steps < 2 or high < low:
        raise InputError(
            f"A linear backoff of {flags.backoff_steps} steps from {flags.backoff_min} to {flags.backoff_max} is none.",
            remedy="Give two steps or more, and the longest wait last.",
        )
    return [low + (high - low) * step / (flags.backoff_steps - 1) for step in range(flags.backoff_steps)]


def fields_from(flags: ConsumerFlags) -> dict[str, Any]:
    """Turn the flags that were given into fields of a consumer."""
    fields: dict[str, Any] = {}
    for name, field in _PLAIN.items():
        if (value := getattr(flags, name)) is not None:
            fields[field] = value
    for name, field in _DURATIONS.items():
        if (text := getattr(flags, name)) is not None:
            fields[field] = duration_or_none(text, f"--{name.replace('_', '-')}") or None
    if flags.max_pull_bytes is not None:
        fields["max_bytes"] = parse_size(flags.max_pull_bytes, option="--max-pull-bytes")
    if flags.backoff is not None:
        fields["backoff"] = _backoff(flags)
    if flags.deliver is not None:
        fields |= start_from(flags.deliver)
    if flags.filter is not None:
        subjects = split_commas(flags.filter)
        fields["filter_subject"] = subjects[0] if len(subjects) == 1 else None
        fields["filter_subjects"] = subjects if len(subjects) > 1 else []
    if flags.metadata:
        fields["metadata"] = parse_pairs(flags.metadata, "--metadata")
    if flags.pause is not None:
        fields["pause_until"] = parse_until(flags.pause, "--pause")
    if flags.sample is not None:
        fields["sample_freq"] = flags.sample if flags.sample not in ("0", "-1") else None
    if flags.target:
        if flags.pull:
            raise InputError("--pull and --target are given together.", remedy="Leave one of them out.")
        fields["deliver_subject"] = flags.target
    groups = {name: getattr(flags, name) for name in _GROUPS if getattr(flags, name)}
    if len(groups) > 1:
        given = " and ".join(f"--{name.replace('_', '-')}" for name in groups)
        raise InputError(f"{given} are given together.", remedy="A consumer serves groups in one way.")
    for name, listed in groups.items():
        fields |= {"priority_policy": _GROUPS[name], "priority_groups": split_commas(listed)}
    return fields


def consumer_from(name: str | None, flags: ConsumerFlags, base: dict[str, Any] | None = None) -> Consumer:
    """Make a consumer of the flags, over a configuration that is there."""
    from penstock.model import Consumer

    fields = {**(base or {}), **fields_from(flags)}
    if name is not None:
        ephemeral = flags.ephemeral or bool(base and base.get("name") and not base.get("durable"))
        fields |= {"name": name, "durable": None} if ephemeral else {"durable": name, "name": None}
    return Consumer(**fields)


def ask_for_consumer(flags: ConsumerFlags) -> ConsumerFlags:
    """Ask for what `nats consumer add` asks for, where no flag says it."""

    def one_of(*known: str) -> Any:
        def read(text: str) -> str:
            if text not in known:
                raise InputError(f"{text!r} is none of them.", remedy=f"Use one of {', '.join(known)}.")
            return text

        return read

    def number(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{text!r} is no number.", remedy="Give a whole number, -1 for no limit.") from None

    def start(text: str) -> str:
        start_from(text)
        return text

    def yes(text: str) -> bool:
        return one_of("y", "n", "yes", "no")(text.lower()).startswith("y")  # type: ignore[no-any-return]  # text

    def heartbeat(text: str) -> str:
        duration_or_none(text, "heartbeat")
        return text

    def backoff(text: str) -> str:
        _backoff(dataclasses.replace(flags, backoff=text))
        return text

    answers: dict[str, Any] = {}
    if flags.target is None and not flags.pull:
        answers["target"] = ask("Delivery target (empty for Pull Consumers)", "", str)
    push = bool(flags.target or answers.get("target"))
    questions: list[tuple[str, str, str, Any]] = [
        ("deliver", "Start policy (all, new, last, subject, 1h, msg sequence)", "all", start),
        ("ack", "Acknowledgment policy (explicit, all, none)", "explicit", one_of("explicit", "all", "none")),
        ("replay", "Replay policy (instant, original)", "instant", one_of("instant", "original")),
        ("filter", "Filter Stream by subjects (blank for all)", "", lambda text: [text]),
    ]
    for name, question, default, read in questions:
        if getattr(flags, name) is None:
            answers[name] = ask(question, default, read)
    if (flags.ack or answers.get("ack")) != "none":
        further: list[tuple[str, str, str, Any]] = [
            ("max_deliver", "Maximum Allowed Deliveries", "-1", number),
            ("max_pending", "Maximum Acknowledgments Pending", "0", number),
            ("backoff", "Backoff policy (none, linear, or a list such as 1s,5s,1m)", "none", backoff),
        ]
        for name, question, default, read in further:
            if getattr(flags, name) is None:
                answers[name] = ask(question, default, read)
        answers["max_pending"] = answers.get("max_pending") or flags.max_pending
    if push:
        if flags.heartbeat is None:
            beat = ask(
                "Idle Heartbeat (-1 for none)", "-1", lambda text: (duration_or_none(text, "heartbeat"), text)[1]
            )
            answers["heartbeat"] = beat
        if flags.flow_control is None and duration_or_none(answers.get("heartbeat") or flags.heartbeat or "-1", "") > 0:
            answers["flow_control"] = ask("Enable Flow Control (y, n)", "n", yes)
    if flags.headers_only is None:
        answers["headers_only"] = ask("Deliver headers only without bodies (y, n)", "n", yes)
    return dataclasses.replace(flags, **answers)
