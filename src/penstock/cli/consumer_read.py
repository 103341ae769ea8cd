"""`penstock consumer next|sub|redeliver`: what a consumer delivers, and what it gave up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.consumer_show import delivery_json, show_delivery
from penstock.cli.flags import All, ConsumerName, Force, Json, Raw, StopAfter, StreamName, Wait, argument, flag
from penstock.cli.late import assets
from penstock.cli.markers import Sieve
from penstock.cli.output import local, print_json, print_table
from penstock.cli.questions import confirm
from penstock.cli.running import connected, first, until_signal
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, DisconnectedError, InputError

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg
    from penstock.info import ConsumerInfo
    from penstock.jetstream.delivery import Delivery

__all__ = ["next_", "redeliver", "sub"]

Ack = Annotated[bool, flag("Acknowledge what is shown.")]


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
) -> None:
    """Take the next messages of a pull consumer, and acknowledge them."""
    from penstock.jetstream.consume import Deliveries

    refuse_both("--nak", nak, "--term", term)
    answer = "nak" if nak else "term" if term else "ack" if ack else "none"
    seconds = parse_duration(wait, option="--wait") if wait else ctx.obj.seconds
    expires = max(seconds, 1.0)
    beat = min(5.0, expires / 2)
    shown: list[Delivery] = []
    sieve, more = Sieve(everything), True
    async with connected(ctx) as client:
        while more and len(shown) < count:  # once more where markers came instead
            hidden, left = sieve.hidden, count - len(shown)
            async with Deliveries(
                client, stream, name, batch=left, limit=left, wait=seconds, expires=expires, heartbeat=beat
            ) as deliveries:
                assert deliveries.info is not None
                acks = deliveries.info.config.ack_policy != "none"
                async for delivery in deliveries:
                    if not sieve.shows(delivery.subject):
                        # Acknowledged whatever becomes of messages: given back, it would come again and again.
                        if acks and answer != "none":
                            await delivery.ack_sync()
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


async def sub(
    ctx: typer.Context,
    stream: StreamName,
    name: ConsumerName,
    ack: Ack = True,
    count: StopAfter = 0,
    deliver_group: Annotated[
        str | None, flag("Queue group of a push consumer.", "GROUP", "--deliver-group", "--queue")
    ] = None,
    raw: Raw = False,
    wait: Wait = None,
    everything: All = False,
) -> None:
    """Show what a consumer delivers, push or pull, until Ctrl-C."""
    silence = parse_duration(wait, option="--wait") if wait else None
    with until_signal() as stop:
        async with connected(ctx) as client:
            info = await assets.consumer_info(client, stream, name)
            ack = ack and info.config.ack_policy != "none"
            reader = _Reader(client, info, ack, count, deliver_group, raw, silence, Sieve(everything))
            typer.echo(f"Reading {stream} > {name}", err=True)
            await first(stop.wait(), reader.pushed() if info.config.deliver_subject else reader.pulled())
    reader.sieve.tell()


@dataclass
class _Reader:
    """Shows what a consumer delivers; markers of the Spark sink are acknowledged, and that is all."""

    client: Connection
    info: ConsumerInfo
    ack: bool
    count: int
    group: str | None
    raw: bool
    silence: float | None
    sieve: Sieve
    shown: int = 0

    async def show(self, delivery: Delivery) -> None:
        if self.sieve.shows(delivery.subject):
            show_delivery(delivery, raw=self.raw)
            self.shown += 1
        if self.ack:
            await delivery.ack()

    async def pulled(self) -> None:
        from penstock.jetstream.consume import Deliveries

        name = self.info.name
        if self.group:
            raise InputError(f"{name} is a pull consumer and has no deliver group.", remedy="Leave it out.")
        more = True
        while more:  # once more where markers came instead
            limit, hidden = self.count - self.shown if self.count else None, self.sieve.hidden
            async with Deliveries(self.client, self.info.stream, name, limit=limit, wait=self.silence) as deliveries:
                async for delivery in deliveries:
                    await self.show(delivery)
                await self.client.flush()
            more = self.shown < self.count and self.sieve.hidden > hidden

    async def pushed(self) -> None:
        from penstock.jetstream.delivery import Delivery, is_delivery
        from penstock.wire.jetstream.names import CONSUMER_STALLED

        config, silence = self.info.config, self.silence
        queue: asyncio.Queue[Msg] = asyncio.Queue()

        async def heard(message: Msg) -> None:
            queue.put_nowait(message)

        assert config.deliver_subject is not None
        group = self.group or config.deliver_group or ""
        await self.client.subscribe(config.deliver_subject, queue=group, cb=heard)
        beat = 3 * config.idle_heartbeat if config.idle_heartbeat else None
        idle = 0.0
        while not self.count or self.shown < self.count:
            limit = min((item for item in (beat, None if silence is None else silence - idle) if item), default=None)
            try:
                async with asyncio.timeout(limit):
                    message = await queue.get()
            except TimeoutError:
                if beat is not None and limit == beat:
                    what = f"Consumer {self.info.name} sent no heartbeat for {beat:g} s."
                    raise DisconnectedError(what, remedy="Is it there, and the server?") from None
                return
            if is_delivery(message):
                idle = 0.0
                await self.show(Delivery.of(message))
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
    name: Annotated[str | None, argument("Only what this consumer gave up.", "CONSUMER")] = None,
    seq: Annotated[list[int] | None, flag("Only these of the stream; repeat.", "SEQUENCE")] = None,
    dead: Annotated[str | None, flag("Dead-letter stream, if not STREAM-DEAD.", "STREAM")] = None,
    show: Annotated[bool, flag("Show the dead letters, and put nothing back.", "--list")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Put dead letters back into their stream, on their old subject."""
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
            columns = ("#Sequence", "Consumer", "Subject", "#Deliveries", "Died", "Reason")
            print_table(f"Dead letters of {stream}", columns, rows)
        if show or not found:
            return
        confirm(f"Really put {len(found)} messages back into Stream {stream}", force)
        done = [(letter, await letters.redeliver(letter)) for letter in found]
    if json:
        print_json([{"sequence": letter.sequence, "new_sequence": new} for letter, new in done])
    else:
        for letter, new in done:
            typer.echo(f"Message {letter.sequence} is back as {new}.")
