"""`penstock consumer next|sub|redeliver`: what a consumer delivers, and what it gave up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import confirm, connected
from penstock.cli.consumer_show import delivery_json, show_delivery
from penstock.cli.global_flags import Globals
from penstock.cli.markers import All, Sieve
from penstock.cli.output import Json, first, print_json, print_table, run, until_signal
from penstock.cli.stream_show import local
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, DisconnectedError, InputError

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg
    from penstock.info import ConsumerInfo
    from penstock.jetstream.delivery import Delivery

__all__ = ["next_", "redeliver", "sub"]

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]
Name = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer.")]
Raw = Annotated[bool, typer.Option("-r", "--raw", help="Print payloads and nothing else.")]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what is shown.")]


# -- next and sub ----------------------------------------------------------------------------------------------------


def next_(
    ctx: typer.Context,
    stream: StreamName,
    name: Name,
    count: Annotated[int, typer.Option("--count", min=1, help="How many messages.")] = 1,
    ack: Ack = True,
    nak: Annotated[bool, typer.Option("--nak", help="Give them back instead.")] = False,
    term: Annotated[bool, typer.Option("--term", help="Refuse them for good instead.")] = False,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="How long to wait; --timeout otherwise.")
    ] = None,
    raw: Raw = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Take the next messages of a pull consumer, and acknowledge them."""
    if nak and term:
        raise InputError("--nak and --term are given together.", remedy="Leave one of them out.")
    answer = "nak" if nak else "term" if term else "ack" if ack else "none"
    seconds = parse_duration(wait, option="--wait") if wait else ctx.obj.seconds
    run(_next(ctx.obj, stream, name, count, answer, seconds, raw, Sieve(everything), json))


async def _next(
    given: Globals,
    stream: str,
    name: str,
    count: int,
    answer: str,
    seconds: float,
    raw: bool,
    sieve: Sieve,
    json: bool,
) -> None:
    from penstock.jetstream.consume import Deliveries

    shown: list[Delivery] = []
    async with connected(given) as client:
        expires = max(seconds, 1.0)
        more = True
        while more and len(shown) < count:  # once more where markers came instead
            hidden = sieve.hidden
            async with Deliveries(
                client,
                stream,
                name,
                batch=count - len(shown),
                limit=count - len(shown),
                wait=seconds,
                expires=expires,
                heartbeat=min(5.0, expires / 2),
            ) as deliveries:
                assert deliveries.info is not None
                acks = deliveries.info.config.ack_policy != "none"
                async for delivery in deliveries:
                    if not sieve.shows(delivery.subject):
                        await _pass_over(delivery, acks and answer != "none")
                        continue
                    shown.append(delivery)
                    if not json:
                        show_delivery(delivery, raw=raw)
                    said = await _answer(delivery, answer if acks else "none")
                    if said and not raw and not json:
                        typer.echo(f"{said}\n")
            more = sieve.hidden > hidden
    sieve.tell()
    if json:
        print_json([delivery_json(delivery) for delivery in shown])
    if len(shown) < count:
        raise DeadlineError(
            f"{'No' if not shown else f'Only {len(shown)} of {count}'} messages came in {seconds:g} s.",
            remedy=f"`penstock consumer info {stream} {name}` tells what waits.",
        )


async def _pass_over(marker: Delivery, ack: bool) -> None:
    """Acknowledge a marker whatever becomes of messages: given back, it would come again and again."""
    if ack:
        await marker.ack_sync()


async def _answer(delivery: Delivery, answer: str) -> str | None:
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


def sub(
    ctx: typer.Context,
    stream: StreamName,
    name: Name,
    ack: Ack = True,
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0 for never.")] = 0,
    deliver_group: Annotated[
        str | None, typer.Option("--deliver-group", "--queue", metavar="GROUP", help="Queue group of a push consumer.")
    ] = None,
    raw: Raw = False,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="Stop when nothing came for so long.")
    ] = None,
    everything: All = False,
) -> None:
    """Show what a consumer delivers, push or pull, until Ctrl-C."""
    silence = parse_duration(wait, option="--wait") if wait else None
    run(_sub(ctx.obj, stream, name, ack, count, deliver_group, _Screen(raw, Sieve(everything)), silence))


async def _sub(
    given: Globals,
    stream: str,
    name: str,
    ack: bool,
    count: int,
    group: str | None,
    screen: _Screen,
    silence: float | None,
) -> None:
    from penstock.jetstream import assets

    with until_signal() as stop:
        async with connected(given) as client:
            info = await assets.consumer_info(client, stream, name)
            ack = ack and info.config.ack_policy != "none"
            reader = _pushed if info.config.deliver_subject else _pulled
            typer.echo(f"Reading {stream} > {name}", err=True)
            await first(stop.wait(), reader(client, info, ack, count, group, screen, silence))
    screen.sieve.tell()


class _Screen:
    """Shows deliveries and counts them; markers of the Spark sink are acknowledged, and that is all."""

    def __init__(self, raw: bool, sieve: Sieve) -> None:
        self.raw, self.sieve, self.shown = raw, sieve, 0

    async def show(self, delivery: Delivery, ack: bool) -> None:
        if self.sieve.shows(delivery.subject):
            show_delivery(delivery, raw=self.raw)
            self.shown += 1
        if ack:
            await delivery.ack()


async def _pulled(
    client: Connection,
    info: ConsumerInfo,
    ack: bool,
    count: int,
    group: str | None,
    screen: _Screen,
    silence: float | None,
) -> None:
    from penstock.jetstream.consume import Deliveries

    if group:
        raise InputError(f"{info.name} is a pull consumer and has no deliver group.", remedy="Leave it out.")
    more = True
    while more:  # once more where markers came instead
        limit, hidden = count - screen.shown if count else None, screen.sieve.hidden
        async with Deliveries(client, info.stream, info.name, limit=limit, wait=silence) as deliveries:
            async for delivery in deliveries:
                await screen.show(delivery, ack)
            await client.flush()
        more = screen.shown < count and screen.sieve.hidden > hidden


async def _pushed(
    client: Connection,
    info: ConsumerInfo,
    ack: bool,
    count: int,
    group: str | None,
    screen: _Screen,
    silence: float | None,
) -> None:
    from penstock.jetstream.delivery import Delivery, is_delivery
    from penstock.wire.jetstream.names import CONSUMER_STALLED

    config = info.config
    queue: asyncio.Queue[Msg] = asyncio.Queue()

    async def heard(message: Msg) -> None:
        queue.put_nowait(message)

    assert config.deliver_subject is not None
    await client.subscribe(config.deliver_subject, queue=group or config.deliver_group or "", cb=heard)
    beat = 3 * config.idle_heartbeat if config.idle_heartbeat else None
    idle = 0.0
    while not count or screen.shown < count:
        limit = min((item for item in (beat, None if silence is None else silence - idle) if item), default=None)
        try:
            async with asyncio.timeout(limit):
                message = await queue.get()
        except TimeoutError:
            if beat is not None and limit == beat:
                raise DisconnectedError(
                    f"Consumer {info.name} sent no heartbeat for {beat:g} s.", remedy="Is it there, and the server?"
                ) from None
            return
        if is_delivery(message):
            idle = 0.0
            await screen.show(Delivery.of(message), ack)
        else:
            idle += config.idle_heartbeat or 0.0
            # A flow control request is answered; a heartbeat may carry one that we missed.
            stalled = (message.headers or {}).get(CONSUMER_STALLED)
            if target := message.reply or stalled:
                await client.publish(target)
            if silence is not None and idle >= silence:
                return
    await client.flush()


# -- dead letters ----------------------------------------------------------------------------------------------------


def redeliver(
    ctx: typer.Context,
    stream: StreamName,
    name: Annotated[str | None, typer.Argument(metavar="CONSUMER", help="Only what this consumer gave up.")] = None,
    seq: Annotated[
        list[int] | None, typer.Option("--seq", metavar="SEQUENCE", help="Only these of the stream; repeat.")
    ] = None,
    dead: Annotated[
        str | None, typer.Option("--dead", metavar="STREAM", help="Dead-letter stream, if not STREAM-DEAD.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the dead letters, and put nothing back.")] = False,
    force: Annotated[bool, typer.Option("-f", "--force", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Put dead letters back into their stream, on their old subject."""
    run(_redeliver(ctx.obj, stream, name, seq or [], dead, show, force, json))


async def _redeliver(
    given: Globals,
    stream: str,
    name: str | None,
    seq: list[int],
    dead: str | None,
    show: bool,
    force: bool,
    json: bool,
) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.deadletter import DeadLetters

    async with connected(given) as client:
        await assets.stream_info(client, stream)
        letters = DeadLetters(client, stream, dead)
        await letters.collect()
        found = [letter async for letter in letters.letters(name) if not seq or letter.sequence in seq]
        if missing := set(seq) - {letter.sequence for letter in found}:
            raise InputError(
                f"No dead letter for {', '.join(map(str, sorted(missing)))}.", remedy="--list shows what is there."
            )
        if show and json:
            print_json([letter.to_json() for letter in found])
            return
        if not json:
            print_table(
                f"Dead letters of {stream}",
                ("#Sequence", "Consumer", "Subject", "#Deliveries", "Died", "Reason"),
                [
                    (
                        letter.sequence,
                        letter.consumer,
                        letter.subject,
                        letter.deliveries,
                        local(letter.died),
                        letter.reason,
                    )
                    for letter in found
                ],
            )
        if show or not found:
            return
        confirm(f"Really put {len(found)} messages back into Stream {stream}", force)
        done = [(letter, await letters.redeliver(letter)) for letter in found]
    if json:
        print_json([{"sequence": letter.sequence, "new_sequence": new} for letter, new in done])
    else:
        for letter, new in done:
            typer.echo(f"Message {letter.sequence} is back as {new}.")
