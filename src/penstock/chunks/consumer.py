"""Hands stored payloads to a handler, each once, after a crash again from the start of the one it was at.

The consumer sees headers only. The last chunk of a message is the sign that the message is whole: then it is read from
the stream, given to the handler, and that one chunk is acknowledged, twice over. Nothing is kept between messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self

from penstock.chunks.handler import ErrorFunction, Handler, HandlerFunction, tell
from penstock.chunks.limits import Limits, check_count, check_seconds
from penstock.chunks.store import MemoryStore, SpoolStore, fill
from penstock.chunks.wire import Chunk, Reason, Refusal, decode, message_id_of, size_of
from penstock.connection import Connection, api_request
from penstock.connection.tasks import end
from penstock.errors import AssemblyError, InputError, JetStreamError, NotFoundError, PenstockError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.delivery import Delivery
from penstock.wire.jetstream import names
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    from penstock.chunks.archive import Archive

__all__ = ["StoredConsumer"]

log = logging.getLogger("penstock.chunks")

_NANO = 1_000_000_000
_PATIENCE = 60.0  # seconds that a start waits for a leader, as long as its deliveries do later
_EXISTS = 10148  # a consumer of that name has another configuration
_CLEANUP = 1.0  # seconds that a handler which was cancelled has for what it does last
_KNOWN = ("max_message_bytes", "max_spool_bytes", "max_total_bytes", "spool_above", "spool_dir")


class StoredConsumer:
    """Delivers the messages of an archive; `Archive.consume` makes one.

    A message is acknowledged when its handler returns. A handler that raises gets it again, `attempts` times at most;
    then the message is given up and reported. A message whose process died comes again after `ack_wait` seconds; a
    handler may take longer, the stream is told that it is at work. `on_error`, `spool_above`, `spool_dir` and
    `max_message_bytes` mean what they mean for an `Assembler`.
    """

    def __init__(
        self,
        nc: Connection,
        archive: Archive,
        handler: HandlerFunction,
        durable: str | None = None,
        *,
        on_error: ErrorFunction | None = None,
        attempts: int = 5,
        ack_wait: float = 30.0,
        **limits: Any,
    ) -> None:
        self._nc, self._archive, self._durable, self._on_error = nc, archive, durable, on_error
        self._handler = Handler(handler, 1)
        self._attempts = check_count("attempts", attempts)
        self._ack_wait = check_seconds("ack_wait", ack_wait, 0.1)
        self._limits = Limits.of("A consumer of stored messages", _KNOWN, **limits)
        self._deliveries: Deliveries | None = None
        # A name of our own making lets us ask twice; whoever crashes leaves the consumer to inactive_threshold.
        self._name = durable or f"penstock-chunks-{secrets.token_hex(8)}"
        self._task: asyncio.Task[None] | None = None
        self.delivered = 0
        """Messages whose handler returned, and that are acknowledged."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find or declare the consumer in the stream, and begin."""
        stream, config = self._archive.stream, await self._archive.config()
        if config.get("retention", "limits") != "limits":
            raise InputError(
                f"The stream {stream} has {config['retention']} retention, which removes the chunks of a message "
                "before the message can be read.",
                remedy="Use limits retention, and Archive.delete for a message that is done with.",
            )
        wanted: dict[str, Any] = {
            "name": self._name,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait * _NANO),
            "deliver_policy": "all",
            "filter_subjects": await self._filters(config),
            "headers_only": True,
            "max_ack_pending": 10_000,
        }
        if self._durable is not None:
            wanted["durable_name"] = self._name
        else:
            wanted |= {"inactive_threshold": 60 * _NANO, "mem_storage": True, "num_replicas": 1}
        await self._declare(stream, wanted)
        if self._durable is not None:
            await self._tell_gap(stream, wanted["filter_subjects"])
        # What waits, and what a handler is at, is kept alive by these.
        self._deliveries = Deliveries(self._nc, stream, self._name, batch=100)
        await self._deliveries.open()
        self._task = asyncio.ensure_future(self._run(self._deliveries))

    async def _ask(self, method: str, body: object = None, *, again: bool = False) -> Any:
        """Ask JetStream, and wait out what passes: a consumer may start while a leader is being chosen."""
        return await api_request(self._nc, method, body, again=again, patience=_PATIENCE)

    async def _declare(self, stream: str, wanted: dict[str, Any]) -> None:
        """Create the consumer, or set right the one that is there; InputError if it is one for something else."""
        body = {"stream_name": stream, "config": wanted}
        try:
            await self._ask(names.consumer_create(stream, self._name), {**body, "action": "create"}, again=True)
            return
        except JetStreamError as error:
            if error.err_code != _EXISTS:
                raise
        there = ConsumerInfo.from_json(await self._ask(names.consumer_info(stream, self._name))).config
        filters = there.filter_subjects or [there.filter_subject or ">"]
        if not there.headers_only or set(filters) != set(wanted["filter_subjects"]):
            raise InputError(
                f"The consumer {self._name} of stream {stream} is not one for the stored messages of "
                f"{await self._archive.subject()}: it reads {', '.join(filters)}"
                f"{'' if there.headers_only else ', whole messages'}.",
                remedy="Give another durable name, or delete that consumer.",
            )
        await self._ask(names.consumer_create(stream, self._name), body, again=True)

    async def _tell_gap(self, stream: str, filters: list[str]) -> None:
        """Tell what was removed from the stream before this consumer, which was away, was given it."""
        about = ConsumerInfo.from_json(await self._ask(names.consumer_info(stream, self._name)))
        held = StreamInfo.from_json(await self._ask(names.stream_info(stream)))
        delivered, first = about.delivered.stream, held.first_sequence
        others = [item for item in held.config.subjects or [">"] if not any(covers(f, item) for f in filters)]
        if delivered and first > delivered + 1 and not others:
            error = AssemblyError(
                f"Messages {delivered + 1} to {first - 1} of stream {stream} were removed before the consumer "
                f"{self._name} was given them, and stored messages with them ({Reason.MISSING}).",
                remedy="Were they purged? Else its limits are too narrow for the time that the consumer was away.",
                subject=await self._archive.subject(),
                reason=Reason.MISSING,
            )
            await tell(self._on_error, error)

    async def _filters(self, config: dict[str, Any]) -> list[str]:
        subject = await self._archive.subject()
        found = [item for item in (subject, f"{subject}.*") if await self._archive.may_hold(item)]
        if not found:
            held = ", ".join(config.get("subjects") or [])
            raise InputError(
                f"The stream {self._archive.stream} holds {held}, nothing under {subject}.",
                remedy="Name the subject that the messages were published under.",
            )
        return found

    async def wait(self) -> None:
        """Wait until the consumer ends: it does so only by an error, which is raised here."""
        if self._task is None:
            raise InputError("This consumer does not run.", remedy="Use it with `async with`.")
        await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop, and give back the message that is with its handler, and those that wait: they are delivered again."""
        if self._task is not None:
            await end([self._task], again=_CLEANUP)
            self._task = None
        if self._deliveries is not None:
            deliveries, self._deliveries = self._deliveries, None
            await deliveries.close()
            if self._durable is None and self._nc.is_connected:
                try:
                    await self._nc.jetstream().delete_consumer(self._archive.stream, self._name)
                except PenstockError as error:
                    log.warning("The consumer %s is left for the server to remove: %s", self._name, error)
        self._handler.close()

    async def _run(self, deliveries: Deliveries) -> None:
        try:
            async for delivery in deliveries:
                await self._take(delivery)
        except PenstockError as error:
            log.error("Stored messages of %s are not delivered any more: %s", self._archive.stream, error)
            raise

    async def _take(self, message: Delivery) -> None:
        message_id = message_id_of(message.headers)
        try:
            chunk = None if message_id is None else decode(message.headers, size_of(message.headers))
        except Refusal as refusal:
            await self._give_up(message, self._fault(message_id, message.subject, refusal.reason, str(refusal)))
            return
        if chunk is None or not chunk.last:
            await self._settle(message.ack())
            return
        try:
            delivered = await self._deliver(chunk, message.subject, message.sequence)
        except asyncio.CancelledError:
            await self._settle(message.nak())
            raise
        except Exception as error:
            await self._failed(message, chunk, error)
        else:
            await self._settle(message.ack_sync(timeout=10.0))
            self.delivered += delivered

    async def _failed(self, message: Delivery, chunk: Chunk, error: Exception) -> None:
        if isinstance(error, NotFoundError):
            error = self._fault(
                chunk.message_id, message.subject, Reason.MISSING, "its chunks are gone from the stream"
            )
        elif isinstance(error, OSError) and not isinstance(error, PenstockError):
            error = self._fault(chunk.message_id, message.subject, Reason.SPOOL, f"the spool failed: {error}")
        if not isinstance(error, AssemblyError):  # the way to the server: no fault of the message, however often
            log.warning("Message %s is read again: %s", chunk.message_id, error)
        elif message.delivered >= self._attempts or error.reason in (Reason.DIGEST, Reason.TOO_LARGE):
            await self._give_up(message, error)
            return
        else:
            await tell(self._on_error, error)
        await self._settle(message.nak(delay=min(0.1 * 2**message.delivered, 10.0)))

    async def _give_up(self, message: Delivery, error: AssemblyError) -> None:
        await self._settle(message.term())
        await tell(self._on_error, error)

    async def _deliver(self, chunk: Chunk, subject: str, sequence: int) -> bool:
        """Hand a message to the handler; not if its publisher mended it and stored another end, which comes later."""
        largest = self._limits.largest(streamed=False)
        stored = await self._archive.stored_on(subject, chunk.message_id)
        if any(item.chunk.last and item.sequence > sequence for item in stored.values()):
            return False
        async with self._archive.reading(chunk.message_id, subject, stored) as message:
            if message.size > largest:
                raise AssemblyError(
                    f"Message {chunk.message_id} has {message.size} bytes, and {largest} are allowed.",
                    remedy="Raise max_message_bytes, or give spool_above.",
                    subject=subject,
                    message_id=chunk.message_id,
                    reason=Reason.TOO_LARGE,
                    received=0,
                    total=message.size,
                )
            store = SpoolStore(self._limits.folder) if self._limits.spools(message.size) else MemoryStore()
            try:
                await fill(store, message)
                data = store.take()
                # The chunks are on `<subject>.<id>`; whoever publishes and handles knows the subject.
                try:
                    await self._handler(chunk.message_id, data, subject.removesuffix(f".{chunk.message_id}"))
                except Exception as error:
                    what = f"the handler raised {type(error).__name__}: {error}"
                    raise self._fault(chunk.message_id, subject, Reason.HANDLER, what) from error
            finally:
                store.close()
        return True

    async def _settle(self, answer: Coroutine[Any, Any, None]) -> None:
        try:
            await answer
        except PenstockError as error:
            log.warning("An acknowledgement did not reach the stream, so the message comes again: %s", error)

    def _fault(self, message_id: str | None, subject: str, reason: Reason, why: str) -> AssemblyError:
        return AssemblyError(
            f"Message {message_id} on {subject} was given up ({reason}): {why}.",
            subject=subject,
            message_id=message_id,
            reason=reason,
        )
