"""`penstock consumer next|sub|redeliver|samples`: what a consumer delivers, what it gave up, and how it acks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_show import Sieve, delivery_json, show_delivery
from penstock.cli.flags import (
    All,
    AnyConsumer,
    AnyStream,
    ConsumerName,
    Force,
    Json,
    Raw,
    StopAfter,
    StreamName,
    Wait,
    argument,
    consumer_name,
    flag,
    flag_table,
    option_name,
    table_flag,
)
from penstock.cli.late import assets
from penstock.cli.output import counts, local, print_json
from penstock.cli.questions import confirm, picked_consumer
from penstock.cli.running import connected, first, until_signal
from penstock.cli.tables import make_table, plain, print_table
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, DeniedError, DisconnectedError, InputError

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg
    from penstock.jetstream.delivery import Delivery
    from penstock.jetstream.samples import AckSample, Advisory, Samples
    from penstock.model import Consumer

__all__ = ["next_", "redeliver", "samples", "sub"]

Ack = Annotated[bool, flag("Acknowledge what is shown.")]


@flag_table
class GroupFlags:
    """How a consumer with priority groups is read."""

    group: str | None = table_flag("Read in this priority group.", "GROUP")
    min_pending: int | None = table_flag("Only if this many messages wait (overflow).", "COUNT", min=1)
    min_ack_pending: int | None = table_flag("Only if this many wait for acks (overflow).", "COUNT", min=1)
    priority: int | None = table_flag("Before those with a higher number (prioritized).", "0-9", min=0, max=9)

    def options(self) -> dict[str, Any]:
        """Give what was said as options of `Deliveries`."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if given and self.group is None:
            raise InputError(f"{option_name(next(iter(given)))} means nothing without a group.", remedy="Give --group.")
        return given


_OTHER = "Make a consumer of your own."


# -- next and sub ----------------------------------------------------------------------------------------------------


async def next_(
    ctx: typer.Context,
    stream: StreamName,
    name: ConsumerName,
    count: Annotated[int, flag("How many messages.", min=1)] = 1,
    ack: Ack = True,
    nak: Annotated[bool, flag("Give them back instead.")] = False,
    term: Annotated[bool, flag("Refuse them for good instead.")] = False,
    wait: Annotated[str | None, flag("How long to wait; --timeout otherwise.", "DURATION")] = None,
    raw: Raw = False,
    everything: All = False,
    json: Json = False,
    *,
    group: GroupFlags,
) -> None:
    """Take the next messages of a pull consumer, and acknowledge them."""
    refuse_both("--nak", nak, "--term", term)
    answer = "nak" if nak else "term" if term else "ack" if ack else "none"
    seconds = parse_duration(wait, option="--wait") if wait else ctx.obj.seconds
    expires, options, holder = max(seconds, 1.0), group.options(), None
    async with connected(ctx) as client:
        reader = _Reader(client, stream, name, answer, count, raw, Sieve(everything), confirmed=True, json=json)
        await reader.pulled(wait=seconds, expires=expires, heartbeat=min(5.0, expires / 2), patience=seconds, **options)
        if options and not reader.shown:
            groups = (await assets.consumer_info(client, stream, name)).groups
            holder = next((state.pin for state in groups if state.name == group.group), None)
    reader.sieve.tell()
    if json:
        print_json([delivery_json(delivery) for delivery in reader.kept])
    if reader.shown < count:
        what = f"{'No' if not reader.shown else f'Only {reader.shown} of {count}'} messages came in {seconds:g} s"
        remedy = f"`penstock consumer info {stream} {name}` tells what waits."
        if holder is not None:
            what = f"{what}: client {holder} holds the pin of group {group.group}"
            remedy = f"`penstock consumer unpin {stream} {name} {group.group}` takes it away."
        raise DeadlineError(f"{what}.", remedy=remedy)


async def sub(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    ack: Ack = True,
    count: StopAfter = 0,
    deliver_group: Annotated[
        str | None, flag("Queue group of a push consumer.", "GROUP", "--deliver-group", "--queue")
    ] = None,
    raw: Raw = False,
    wait: Wait = None,
    everything: All = False,
    *,
    group: GroupFlags,
) -> None:
    """Show what a consumer delivers, push or pull, until Ctrl-C."""
    silence, options = parse_duration(wait, option="--wait") if wait else None, group.options()
    refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def refused(error: Exception) -> None:
        if isinstance(error, DeniedError) and not refusal.done():  # such as an ack: it would all come again
            refusal.set_exception(error)

    with until_signal() as stop:
        async with connected(ctx, on_error=refused) as client:
            found = await picked_consumer(client, stream, name)
            config, whose = found.config, f"{found.stream} > {found.name}"
            answer = "ack" if ack else "none"
            reader = _Reader(client, found.stream, found.name, answer, count, raw, Sieve(everything))
            if found.is_sourcing or config.ack_policy == "flow_control":
                raise InputError(f"{whose} feeds another stream, which would miss what is read here.", remedy=_OTHER)
            pushed = config.deliver_subject is not None
            if deliver_group and not pushed:
                raise InputError(f"{whose} is a pull consumer and has no deliver group.", remedy="Leave it out.")
            if options and pushed:
                raise InputError(f"{whose} is a push consumer and has no priority groups.", remedy="Leave --group out.")
            typer.echo(plain(f"Reading {whose}"), err=True)
            reading = (
                reader.pushed(config, deliver_group, silence) if pushed else reader.pulled(wait=silence, **options)
            )
            await first(stop.wait(), refusal, reading)
    reader.sieve.tell()


@dataclass
class _Reader:
    """Shows and answers what a consumer delivers; markers of the Spark sink are acknowledged, and that is all."""

    client: Connection
    stream: str
    name: str
    answer: str
    """What becomes of a message: ack, nak, term or none."""
    count: int
    """How many are wanted; 0 for any number."""
    raw: bool
    sieve: Sieve
    confirmed: bool = False
    """Whether to wait until the server has confirmed each answer, and to say so."""
    json: bool = False
    """Whether to keep deliveries, and show none."""
    shown: int = 0
    kept: list[Delivery] = field(default_factory=list)

    async def take(self, delivery: Delivery, config: Consumer) -> None:
        """Show and answer a delivery."""
        answer = self.answer if config.ack_policy != "none" else "none"
        if not self.sieve.shows(delivery.subject):
            # Given back, a marker would come again and again.
            await self._reply(delivery, "none" if answer == "none" else "ack")
            return
        self.shown += 1
        if self.json:
            self.kept.append(delivery)
        else:
            show_delivery(delivery, raw=self.raw)
        said = await self._reply(delivery, answer)
        if said and not self.raw and not self.json:
            typer.echo(f"{said}\n")

    async def _reply(self, delivery: Delivery, answer: str) -> str | None:
        if answer == "ack" and not self.confirmed:
            await delivery.ack()
            return None
        if answer == "ack":
            await delivery.ack_sync()
            return "Acknowledged message"
        if answer == "nak":
            await delivery.nak(sync=True)
            return "Gave the message back"
        if answer == "term":
            await delivery.term("refused on the command line", sync=True)
            return "Refused the message for good"
        return None

    async def pulled(self, **pulling: Any) -> None:
        """Read a pull consumer; once more if markers came instead."""
        from penstock.jetstream.consume import Deliveries

        more = True
        while more:
            limit, hidden = self.count - self.shown if self.count else None, self.sieve.hidden
            async with Deliveries(self.client, self.stream, self.name, limit=limit, **pulling) as deliveries:
                assert deliveries.info is not None
                async for delivery in deliveries:
                    await self.take(delivery, deliveries.info.config)
                await self.client.flush()
            more = self.shown < self.count and self.sieve.hidden > hidden

    async def pushed(self, config: Consumer, group: str | None, silence: float | None) -> None:
        """Read a push consumer, until it has been silent for so long."""
        from penstock.jetstream.delivery import Delivery, is_delivery
        from penstock.wire.jetstream.names import CONSUMER_STALLED

        queue: asyncio.Queue[Msg] = asyncio.Queue()

        async def heard(message: Msg) -> None:
            queue.put_nowait(message)

        assert config.deliver_subject is not None
        await self.client.subscribe(config.deliver_subject, queue=group or config.deliver_group or "", cb=heard)
        beat = 3 * config.idle_heartbeat if config.idle_heartbeat else None
        idle = 0.0
        while not self.count or self.shown < self.count:
            limit = min((item for item in (beat, None if silence is None else silence - idle) if item), default=None)
            try:
                async with asyncio.timeout(limit):
                    message = await queue.get()
            except TimeoutError:
                if beat is not None and limit == beat:
                    what = f"Consumer {self.name} sent no heartbeat for {beat:g} s."
                    raise DisconnectedError(what, remedy="Check that the consumer and the server are there.") from None
                return
            if is_delivery(message):
                idle = 0.0
                await self.take(Delivery.of(message), config)
            else:
                idle += config.idle_heartbeat or 0.0
                # A flow control request is answered; a heartbeat may carry one that we missed.
                stalled = (message.headers or {}).get(CONSUMER_STALLED)
                if target := message.reply or stalled:
                    await self.client.publish(target)
                if silence is not None and idle >= silence:
                    return
        await self.client.flush()


# -- dead letters ----------------------------------------------------------------------------------------------------


async def redeliver(
    ctx: typer.Context,
    stream: StreamName,
    name: Annotated[
        str | None, argument("Only what this consumer gave up.", "CONSUMER", callback=consumer_name)
    ] = None,
    seq: Annotated[list[int] | None, flag("Only these of the stream; repeat.", "SEQUENCE")] = None,
    dead: Annotated[str | None, flag("Dead-letter stream, if not STREAM-DEAD.", "STREAM")] = None,
    show: Annotated[bool, flag("Show the dead letters, and put nothing back.", "--list")] = False,
    again: Annotated[bool, flag("Put back also what an earlier attempt may have put back.", "--again")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Put dead letters back into their stream, on their old subject, each once."""
    from penstock.jetstream.deadletter import DeadLetters

    async with connected(ctx) as client:
        await assets.stream_info(client, stream)
        letters = DeadLetters(client, stream, dead)
        await letters.collect()
        found = [letter async for letter in letters.letters(name) if not seq or letter.sequence in seq]
        if missing := set(seq or ()) - {letter.sequence for letter in found}:
            raise InputError(
                f"No dead letter for {', '.join(map(str, sorted(missing)))}.", remedy="--list shows what is there."
            )
        if show and json:
            print_json([letter.to_json() for letter in found])
            return
        if not json:
            rows = [
                (one.sequence, one.consumer, one.subject, one.deliveries, local(one.died), one.reason) for one in found
            ]
            columns = ("#Sequence", "Consumer", "Subject", "#Deliveries", "Died", "~Reason")
            print_table(f"Dead letters of {stream}", columns, rows)
        if show or not found:
            return
        confirm(f"Really put {len(found)} messages back into Stream {stream}", force)
        done: list[dict[str, int]] = []
        try:
            for letter in found:
                done.append({"sequence": letter.sequence, "new_sequence": await letters.redeliver(letter, again=again)})
                if not json:
                    typer.echo("Message {sequence} is back as {new_sequence}.".format(**done[-1]))
        finally:  # whatever fails, these are back
            if json:
                print_json(done)


# -- samples of acks -------------------------------------------------------------------------------------------------


_COLUMNS = ("Consumer", "#Samples", "#Redelivered", "#Most Deliveries", "#Naks", "#Refused", "#Ran Out")
_TIMES = ("#p50", "#p90", "#p99", "#Max")


async def samples(
    ctx: typer.Context,
    stream: StreamName,
    name: Annotated[str, argument("The consumer; all of the stream without.", "CONSUMER")] = "*",
    watch: Annotated[bool, flag("Draw the figures live, until Ctrl-C.", "-w", "--watch")] = False,
    count: Annotated[int, flag("Stop after this many events; 0 for never.", min=0)] = 0,
    wait: Wait = None,
    json: Json = False,
) -> None:
    """Show sampled acks and advisories as they come, and what they add up to."""
    from penstock.jetstream.samples import Samples

    silence = parse_duration(wait, option="--wait") if wait else None
    with until_signal() as stop:
        async with connected(ctx) as client:
            if name == "*":
                await assets.stream_info(client, stream)
            elif not (await assets.consumer_info(client, stream, name)).config.sample_freq:
                typer.echo(
                    f"Consumer {name} samples no acks; `penstock consumer edit {stream} {name} --sample 100` "
                    "turns it on. Advisories are shown.",
                    err=True,
                )
            async with Samples(client, stream, name) as events:
                typer.echo(f"Listening for samples of {stream} > {name}", err=True)
                coming = _events(events, count, silence)
                await first(stop.wait(), _watch(events, coming) if watch else _print(coming, json))
    if json:
        print_json({f"{one} > {other}": figures.to_json() for (one, other), figures in events.figures.items()})
        return
    print_table("Ack samples", (*_COLUMNS, *_TIMES), _rows(events))
    if events.missed:
        typer.echo(f"{events.missed:,} events came too fast to be shown; the figures count them.", err=True)
    if events.forgotten:
        typer.echo(f"The figures of {events.forgotten:,} consumers heard before these are left out.", err=True)


async def _events(events: Samples, count: int, silence: float | None) -> AsyncIterator[AckSample | Advisory]:
    seen = 0
    while not count or seen < count:
        try:
            async with asyncio.timeout(silence):
                event = await anext(events)
        except TimeoutError:
            return
        seen += 1
        yield event


async def _print(events: AsyncIterator[AckSample | Advisory], json: bool) -> None:
    from penstock.jetstream.samples import AckSample

    async for event in events:
        if json:
            continue
        if isinstance(event, AckSample):
            text = f"ack of {event.sequence} after {event.ack_time * 1000:.3f}ms, delivered {event.deliveries} times"
        else:
            text = f"{event.kind}: {event.summary}"
        typer.echo(plain(f"[{local(event.time)}] {event.stream} > {event.consumer}: {text}"))


def _rows(events: Samples) -> list[tuple[str, ...]]:
    from penstock.jetstream.samples import PERCENTILES

    rows = []
    for (stream, consumer), one in sorted(events.figures.items()):
        times = [one.percentile(share) for share in PERCENTILES.values()]
        rows.append(
            (
                f"{stream} > {consumer}",
                *counts(one.samples, one.redelivered, one.most_deliveries, one.naks, one.terminated, one.exceeded),
                *("" if value is None else f"{value * 1000:.3f}ms" for value in times),
            )
        )
    return rows


async def _watch(events: Samples, coming: AsyncIterator[AckSample | Advisory]) -> None:
    """Draw the table anew a few times a second while events come."""
    from rich import box
    from rich.live import Live
    from rich.table import Table

    def draw() -> Table:
        return make_table(
            (*_COLUMNS, *_TIMES), _rows(events), title="Ack samples", box=box.ROUNDED, title_justify="left"
        )

    with Live(get_renderable=draw, refresh_per_second=4, transient=True):
        async for _ in coming:
            pass
