"""What `penstock sub` reads from a stream: through a consumer of its own, a durable one, or by direct gets."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.arrivals import Arrival, Stored
from penstock.cli.asset_show import Sieve
from penstock.cli.late import assets, model
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.cli.sub import FromStream, Taking
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo, StreamInfo

__all__ = ["Start", "StreamReading"]

BATCH = 100
POLL = 0.5  # seconds between direct gets, when there is nothing new
UNUSED = 120.0  # seconds after which the server deletes a consumer of ours that we could not


@dataclass(frozen=True)
class Start:
    """Where to begin: a deliver policy of a consumer, and what belongs to it."""

    policy: str | None
    sequence: int | None
    since: datetime | None

    @property
    def fields(self) -> dict[str, Any]:
        """Give the fields of a consumer that begins there."""
        fields = {"deliver_policy": self.policy, "opt_start_seq": self.sequence, "opt_start_time": self.since}
        return {name: value for name, value in fields.items() if value is not None}


class StreamReading:
    """Reads a stream, and hands over what it holds and what it is given."""

    def __init__(
        self, client: Connection, flags: FromStream, start: Start, subjects: list[str], *, headers_only: bool
    ) -> None:
        self._client, self._flags, self._start, self._subjects = client, flags, start, subjects
        self._headers_only = headers_only
        self._sieve = Sieve(False, subjects[0] if len(subjects) == 1 else None)

    async def run(self, taking: Taking, *, quiet: bool) -> None:
        """Read until there is nothing more, or for ever."""
        flags, client = self._flags, self._client
        name = flags.stream or await client.jetstream().find_stream_name_by_subject(self._subjects[0])
        info = await assets.stream_info(client, name)
        consumed = info.config.retention != "limits"
        direct = flags.direct or (consumed and flags.durable is None)
        if not quiet:
            how = f"through {flags.durable}" if flags.durable else "by direct gets" if direct else ""
            what = f" for {', '.join(self._subjects)}" if self._subjects else ""
            typer.echo(f"Reading stream {name}{what} {how}".rstrip(), err=True)
        await (self._directly(info, taking) if direct else self._consume(name, taking))
        if self._sieve.hidden and not quiet:
            what = f"Not shown: {self._sieve.hidden:,} markers of the Spark sink; name their subject to see them."
            typer.echo(what, err=True)

    async def _take(self, arrival: Arrival, taking: Taking) -> None:
        if self._sieve.shows(arrival.subject):
            await taking.take(arrival)

    # -- through a consumer ----------------------------------------------------------------------------------------

    async def _consume(self, stream: str, taking: Taking) -> None:
        from penstock.jetstream.consume import Deliveries

        at_end = self._flags.terminate_at_end
        async with self._consumer(stream) as consumer:
            acks, left = consumer.config.ack_policy != "none", consumer.pending
            while not taking.end.done() and (left or not at_end):
                # No more than is wanted: what is given back has one delivery less before it is given up.
                limit = taking.count - taking.seen if taking.count else None
                async with Deliveries(self._client, stream, consumer.name, batch=BATCH, limit=limit) as deliveries:
                    async for delivery in deliveries:
                        place = delivery.place
                        stored = Stored(place.stream, place.sequence, place.time, left := place.pending)
                        await self._take(
                            Arrival(
                                delivery.subject, delivery.data, delivery.header_block, delivery.reply, stored=stored
                            ),
                            taking,
                        )
                        if taking.end.done() and taking.end.exception() is not None:
                            return
                        if acks:
                            await delivery.ack()
                        if taking.end.done() or (at_end and not left):
                            break
                await self._client.flush()

    @asynccontextmanager
    async def _consumer(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        client, durable = self._client, self._flags.durable
        if durable is not None:
            yield await self._durable(stream, durable)
            return
        made = await assets.add_consumer(client, stream, self._declared(f"penstock-sub-{secrets.token_hex(8)}"))
        try:
            yield made
        finally:
            if client.is_connected:
                with suppress(NotFoundError):  # the stream is gone, and the consumer with it
                    await assets.delete_consumer(client, stream, made.name)

    def _declared(self, name: str) -> Any:
        filters: dict[str, Any] = {"filter_subject": self._subjects[0]} if self._subjects else {}
        if len(self._subjects) > 1:
            filters = {"filter_subjects": self._subjects}
        return model.Consumer(
            name=name,
            ack_policy="none",
            headers_only=self._headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=UNUSED,
            **filters,
            **self._start.fields,
        )

    async def _durable(self, stream: str, name: str) -> ConsumerInfo:
        try:
            found = await assets.consumer_info(self._client, stream, name)
        except NotFoundError:
            # Explicit acks: what was not shown is not lost.
            return await assets.add_consumer(self._client, stream, model.Consumer(durable=name, **self._start.fields))
        if self._start.policy is not None:
            raise InputError(
                f"Consumer {name} of {stream} is there, and goes on where it stopped.",
                remedy="Leave out where to begin, or name a new one.",
            )
        if found.config.deliver_subject:
            raise InputError(
                f"Consumer {name} of {stream} is a push consumer.",
                remedy=f"Read it with `penstock consumer sub {stream} {name}`.",
            )
        return found

    # -- by direct gets --------------------------------------------------------------------------------------------

    async def _directly(self, info: StreamInfo, taking: Taking) -> None:
        if not info.config.allow_direct:
            why = (
                "" if self._flags.direct else f" A consumer would take messages away from it: {info.config.retention}."
            )
            raise InputError(
                f"Stream {info.name} allows no direct get.{why}",
                remedy=f"`penstock stream edit {info.name} --allow-direct`, or name a consumer with --durable.",
            )
        if len(self._subjects) > 1:
            raise InputError("A direct get has one subject.", remedy="Give one, or a wildcard.")
        subject = self._subjects[0] if self._subjects else None
        following, since = await self._begin(info, subject, taking)
        while True:
            found = await self._get(info.name, following, subject=subject or ">", since=since, batch=BATCH)
            for arrival in found:
                await self._take(arrival, taking)
                following, since = _next(arrival), None
            if not found:
                if self._flags.terminate_at_end:
                    return
                await asyncio.sleep(POLL)

    async def _begin(self, info: StreamInfo, subject: str | None, taking: Taking) -> tuple[int | None, str | None]:
        """Show what comes before all that follows; give the sequence or the time to go on with."""
        from penstock.times import format_time

        start, end = self._start, info.last_sequence + 1
        if start.sequence is not None:
            return start.sequence, None
        if start.since is not None:
            return None, format_time(start.since)
        if start.policy == "new":
            return end, None
        if start.policy not in ("last", "last_per_subject"):
            return max(info.first_sequence, 1), None
        subjects = [subject or ">"]
        if start.policy == "last_per_subject":
            subjects = list(await assets.stream_subjects_held(self._client, info.name, subject or ">"))
        found = [item for one in subjects for item in await self._get(info.name, last=one)]
        for arrival in sorted(found, key=_next):
            if _next(arrival) <= end:  # what came meanwhile follows
                await self._take(arrival, taking)
        return end, None

    async def _get(self, stream: str, sequence: int | None = None, **how: Any) -> list[Arrival]:
        from penstock.connection.asking import direct_get
        from penstock.times import parse_time
        from penstock.wire.jetstream.direct import question, read_found

        answers = await direct_get(self._client, stream, question(sequence, **how))
        found = [(read_found(payload, block), block) for payload, block in answers]
        return [
            Arrival(
                one.subject,
                one.payload,
                block,
                stored=Stored(stream, one.sequence, parse_time(one.time), one.pending),
            )
            for one, block in found
        ]


def _next(arrival: Arrival) -> int:
    assert arrival.stored is not None
    return arrival.stored.sequence + 1
