"""`penstock consumer info|state|ls|find|report`: looking at consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_show import info_json
from penstock.cli.consumer_show import api_level, show_consumer, titled
from penstock.cli.flags import AnyConsumer, AnyStream, Json, Names, NoSelect, flag, flag_table, table_flag
from penstock.cli.late import assets
from penstock.cli.output import ago, counts, local, print_json
from penstock.cli.questions import check_named, picked_consumer, picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import plain, print_table
from penstock.cli.values import refuse_both
from penstock.durations import format_duration, parse_duration
from penstock.errors import NotFoundError
from penstock.wire.numbers import read_count

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo, StreamInfo

__all__ = ["find", "info", "ls", "report", "state"]


async def info(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    no_select: NoSelect = False,
    json: Json = False,
) -> None:
    """Show a consumer: configuration and state."""
    await _show(ctx, stream, name, no_select, json, state_only=False)


async def state(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    no_select: NoSelect = False,
    json: Json = False,
) -> None:
    """Show how a consumer stands."""
    await _show(ctx, stream, name, no_select, json, state_only=True)


async def _show(
    ctx: typer.Context, stream: str | None, name: str | None, no_select: bool, json: bool, *, state_only: bool
) -> None:
    check_named(no_select, stream=stream, consumer=name)
    async with connected(ctx) as client:
        found = await picked_consumer(client, stream, name)
    print_json(info_json(found)) if json else show_consumer(found, state_only=state_only)


async def _found(ctx: typer.Context, stream: str | None) -> tuple[str, list[ConsumerInfo]]:
    async with connected(ctx) as client:
        stream = await picked_stream(client, stream)
        try:
            return stream, await assets.consumers(client, stream)
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None


async def ls(
    ctx: typer.Context,
    stream: AnyStream = None,
    names: Names = False,
    no_select: NoSelect = False,
    json: Json = False,
) -> None:
    """List the consumers of a stream; --json gives their names."""
    check_named(no_select, stream=stream)
    stream, found = await _found(ctx, stream)
    if json or names:
        _print_names(found, json)
        return
    if not found:
        typer.echo(plain(f"No Consumers are defined for stream {stream}"))
        return
    columns = ("Name", "~Description", "Created", "#Ack Pending", "#Unprocessed", "#Last Delivery")
    rows = [
        (one.name, one.description, local(one.created), *counts(one.ack_pending, one.pending), ago(one.delivered.last))
        for one in found
    ]
    print_table(f"Consumers of {stream}", columns, rows)


def _print_names(found: list[ConsumerInfo], json: bool) -> None:
    if json:
        print_json([one.name for one in found])
    else:
        typer.echo("".join(f"{plain(one.name)}\n" for one in found), nl=False)


# -- finding ---------------------------------------------------------------------------------------------------------


@flag_table
class Criteria:
    """What consumers are looked for by; all that are given must hold."""

    pull: bool = table_flag("Pull consumers.", default=False)
    push: bool = table_flag("Push consumers.", default=False)
    bound: bool = table_flag("Those that somebody reads: push with interest, pull with waiting pulls.", default=False)
    waiting: int | None = table_flag("Those with fewer waiting pulls.", "COUNT", min=1)
    ack_pending: int | None = table_flag("Those with fewer outstanding acks.", "COUNT", min=1)
    pending: int | None = table_flag("Those with fewer unprocessed messages.", "COUNT", min=1)
    idle: str | None = table_flag("Those that delivered nothing for this long.", "DURATION")
    created: str | None = table_flag("Those that are older.", "DURATION")
    replicas: int | None = table_flag("Those with this many replicas, or fewer.", "COUNT", min=1)
    leader: str | None = table_flag("Those that this server leads.", "SERVER")
    pinned: bool = table_flag("Those all of whose groups are pinned to a client.", default=False)
    api_level: int | None = table_flag("Those that need this API level, or a higher one.", "LEVEL", min=1)
    invert: bool = table_flag("Turn each of these into its opposite.", default=False)

    def tests(self) -> list[Callable[[ConsumerInfo], bool]]:
        """Give what must hold of a consumer."""
        refuse_both("--pull", self.pull, "--push", self.push)
        most, now = float("inf"), datetime.now(UTC)
        idle = parse_duration(self.idle, option="--idle") if self.idle else None
        age = parse_duration(self.created, option="--created") if self.created else None

        def since(time: datetime | None) -> float:
            return most if time is None else (now - time).total_seconds()

        found: dict[Callable[[ConsumerInfo], bool], object] = {
            lambda one: one.config.deliver_subject is None: self.pull,
            lambda one: one.config.deliver_subject is not None: self.push,
            lambda one: one.push_bound or one.waiting > 0: self.bound,
            lambda one: one.waiting < (self.waiting or 0): self.waiting,
            lambda one: one.ack_pending < (self.ack_pending or 0): self.ack_pending,
            lambda one: one.pending < (self.pending or 0): self.pending,
            lambda one: since(one.delivered.last) >= (idle or 0): idle,
            lambda one: since(one.created) >= (age or 0): age,
            lambda one: len(one.placed.replicas) + 1 <= (self.replicas or 0): self.replicas,
            lambda one: one.placed.leader == self.leader: self.leader,
            _is_pinned: self.pinned,
            lambda one: _level(one) >= (self.api_level or 0): self.api_level,
        }
        return [holds for holds, wanted in found.items() if wanted]

    def holds(self, one: ConsumerInfo, tests: list[Callable[[ConsumerInfo], bool]]) -> bool:
        """Tell whether a consumer is one of those that are looked for."""
        return all(test(one) is not self.invert for test in tests)


def _is_pinned(one: ConsumerInfo) -> bool:
    return one.config.priority_policy == "pinned_client" and all(group.pin for group in one.groups)


def _level(one: ConsumerInfo) -> int:
    return read_count(api_level(one.config.metadata)) or 0


async def find(ctx: typer.Context, criteria: Criteria, stream: AnyStream = None, json: Json = False) -> None:
    """Find consumers of a stream by what they are and how they stand; prints their names."""
    tests = criteria.tests()
    _, found = await _found(ctx, stream)
    _print_names([one for one in found if criteria.holds(one, tests)], json)


# -- reporting -------------------------------------------------------------------------------------------------------


async def report(
    ctx: typer.Context,
    stream: AnyStream = None,
    raw: Annotated[bool, flag("Plain numbers.", "-r", "--raw")] = False,
    leaders: Annotated[bool, flag("Show how many each server leads.", "-l", "--leaders")] = False,
    json: Json = False,
) -> None:
    """Report on the consumers of a stream: how they ack, and how far they are."""
    async with connected(ctx) as client:
        whole = await assets.stream_info(client, await picked_stream(client, stream))
        found = await assets.consumers(client, whole.name)
    if json:
        print_json([info_json(one) for one in found])
        return
    columns = ("Consumer", "Mode", "Ack Policy", "#Ack Wait", "#Ack Pending", "#Redelivered", "#Unprocessed")
    rows = [
        (
            one.name,
            "Push" if one.config.deliver_subject else "Pull",
            titled(one.config.ack_policy),
            format_duration(one.config.ack_wait or 0),
            *_figures(raw, one.ack_pending, one.redelivered),
            str(one.pending) if raw else _share(one, whole),
            *_figures(raw, one.ack_floor.stream),
            api_level(one.config.metadata),
            one.placed.leader or "",
        )
        for one in found
    ]
    title = f"Consumer report for {whole.name} with {len(found)} consumers"
    print_table(title, (*columns, "#Ack Floor", "#API Level", "Leader"), rows)
    if leaders and (led := Counter(one.placed.leader for one in found if one.placed.leader)):
        print_table("Leaders", ("Server", "#Consumers"), [(name, *_figures(raw, led[name])) for name in sorted(led)])


def _figures(raw: bool, *numbers: int) -> list[str]:
    return [str(number) for number in numbers] if raw else counts(*numbers)


def _share(one: ConsumerInfo, whole: StreamInfo) -> str:
    """Say how many messages wait, and how much of the stream that is."""
    if not one.pending or not whole.messages:
        return f"{one.pending:,}"
    return f"{one.pending:,} / {min(100 * one.pending // whole.messages, 100)}%"
