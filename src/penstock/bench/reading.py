"""Reading from a stream: a consumer with a callback, a consumer by fetches, in order by a range, and by gets."""

from __future__ import annotations

import json
import time
from array import array

from penstock.bench.client_job import ClientJob
from penstock.bench.core import flush
from penstock.bench.pace import Pace
from penstock.bench.results import Sample
from penstock.bench.worker import Gate
from penstock.connection import connect
from penstock.errors import DataLossError, DeadlineError, JetStreamError, RemoteProtocolError
from penstock.jetstream import Deliveries, Delivery, assets
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.dispatch import Taker, hand_out
from penstock.wire.jetstream import direct
from penstock.wire.jetstream.answers import StatusKind, read_answer, read_status
from penstock.wire.jetstream.names import SEQUENCE, consumer_next
from penstock.wire.patience import Deadline

__all__ = ["consume", "fetch", "get_batch", "get_sync", "ordered"]

_NANO = 1_000_000_000
_SEQUENCE = f"\r\n{SEQUENCE}:".encode()


async def consume(job: ClientJob, gate: Gate) -> Sample:
    """Give each message of a consumer to a callback, which acknowledges it as the job says."""
    every = {"explicit": 1, "all": max(1, job.batch // 4), "none": 0}[job.acks]
    nc = await connect(job.options)
    try:
        reading = Deliveries(
            nc, job.name, job.consumer, batch=job.batch, limit=job.messages, keep_alive=False, patience=job.patience
        )
        seen, pace = 0, Pace(job)

        async def handle(delivery: Delivery) -> None:
            nonlocal seen
            seen += 1
            if every and (seen % every == 0 or seen == job.messages):
                if job.double_ack:
                    await delivery.ack_sync(timeout=job.patience)
                else:
                    await delivery.ack()
            if seen % 64 == 0:
                gate.step(64)
            if not pace.is_free:
                await pace.keep_async()

        await assets.consumer_info(nc, job.name, job.consumer)  # loads what reading needs before the clock starts
        await gate.ready_async()
        async with reading:
            await reading.consume(handle)
            await nc.flush(timeout=max(1, round(job.patience)))  # the acks are with the server
            sample = gate.done(job)
        if seen != job.messages:
            raise DataLossError(f"{seen:,} of {job.messages:,} messages came.", stream=job.name)
        return sample
    finally:
        await nc.close()


def fetch(job: ClientJob, gate: Gate) -> Sample:
    """Ask for a batch, take it, acknowledge it, and ask for the next one."""
    pace, taken = Pace(job), array("d")
    with BulkConnection(job.options) as bulk:
        wire, deadline = bulk.wire, Deadline(job.patience)
        inbox = bulk.new_subject()
        incoming = _Incoming(bulk, bulk.subscribe(inbox, deadline))
        flush(bulk, deadline)
        subject = f"{job.options.js_prefix}.{consumer_next(job.name, job.consumer)}"
        gate.ready()
        got = 0
        while got < job.messages:
            began, deadline = time.perf_counter(), Deadline(job.patience)
            wanted = min(job.batch, job.messages - got)
            body = json.dumps({"batch": wanted, "expires": int(job.patience * _NANO)}).encode()
            wire.send(protocol.publish(subject, body, inbox), deadline)
            replies = _delivered(incoming, wanted, deadline, job)
            acked = {"explicit": replies, "all": replies[-1:], "none": []}[job.acks]
            if job.double_ack:
                for reply in acked:
                    bulk.request(reply.decode(), b"+ACK", timeout=job.patience)
            elif acked:
                wire.send(b"".join(b"PUB %s 4\r\n+ACK\r\n" % reply for reply in acked), deadline)
            taken.append(time.perf_counter() - began)
            got += len(replies)
            gate.step(len(replies))
            pace.keep(len(replies))
        flush(bulk, Deadline(job.patience))
        return gate.done(job, taken)


class _Incoming:
    """Takes the messages of one subscription out of a buffer, many at a time."""

    def __init__(self, bulk: BulkConnection, sid: int) -> None:
        self._wire = bulk.wire
        self._takers: dict[int, Taker] = {sid: self._take}
        self.messages: list[tuple[bytes, int, bytes | None]] = []
        """Reply subject, bytes of the payload and header block of each that nobody looked at yet."""

    def _take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self.messages.append((reply, len(payload), block))

    def receive(self, deadline: Deadline) -> list[tuple[bytes, int, bytes | None]]:
        """Give the next ones; at least one."""
        self.messages = []
        while True:
            parser = self._wire.parser
            place, _, _ = hand_out(parser.buffer, parser.start, parser.end, self._takers, {})
            parser.take(place)
            if self.messages:
                return self.messages
            event = parser.next_event()
            if event is None:
                self._wire.receive(deadline)
            else:
                self._wire.handle(event, deadline)


def _delivered(incoming: _Incoming, wanted: int, deadline: Deadline, job: ClientJob) -> list[bytes]:
    """Give the reply subjects of a fetch's messages, until it has all or the server ends it."""
    replies: list[bytes] = []
    while len(replies) < wanted:
        try:
            came = incoming.receive(deadline)
        except DeadlineError as error:
            what = f"The consumer gave nothing for {job.patience:g} s."
            raise DeadlineError(what, remedy="Do others read from it, too?", seconds=job.patience) from error
        for reply, _, block in came:
            if reply:
                replies.append(reply)
            else:
                _check(block or b"", job)
                wanted = 0  # this request is over
    return replies


def _check(block: bytes, job: ClientJob) -> None:
    """Raise what a status says, if no other request would do better."""
    code, description = protocol.decode_status(block)
    status = read_status(code or 0, description)
    if status.kind not in (StatusKind.EXPIRED, StatusKind.COMPLETED, StatusKind.LATER, StatusKind.NONE):
        raise JetStreamError(f"Consumer {job.consumer} of {job.name}: {status.code} {status.description}".rstrip())


def ordered(job: ClientJob, gate: Gate) -> Sample:
    """Read the stream from its first message, in order and each once, as Spark's tasks do."""
    with BulkConnection(job.options) as bulk:
        gate.ready()
        got, size, pace = 0, 0, Pace(job)
        for batch in bulk.read(job.name, job.first, None, job.filters, timeout=job.patience):
            rows = min(batch.num_rows, job.messages - got)
            size += batch.column("data").slice(0, rows).nbytes
            got += rows
            gate.step(rows)
            pace.keep(rows)
            if got == job.messages:
                break
        sample = gate.done(job)
        sample.bytes = size
        if got != job.messages:
            raise DataLossError(f"{got:,} of {job.messages:,} messages came.", stream=job.name)
        return sample


def get_sync(job: ClientJob, gate: Gate) -> Sample:
    """Get one message after the other by its sequence."""
    taken, size, pace = array("d"), 0, Pace(job)
    with BulkConnection(job.options) as bulk:
        prefix = job.options.js_prefix
        straight = job.mode == "direct"
        subject = f"{prefix}.DIRECT.GET.{job.name}" if straight else f"{prefix}.STREAM.MSG.GET.{job.name}"
        gate.ready()
        for sequence in range(job.first, job.first + job.messages):
            began = time.perf_counter()
            answer = bulk.request(subject, json.dumps({"seq": sequence}).encode())
            if not straight:
                read_answer(answer.payload)
            elif answer.status:
                what = f"Message {sequence} of {job.name}: {answer.status} {answer.description}."
                raise JetStreamError(what, remedy="Was the stream trimmed meanwhile?")
            taken.append(time.perf_counter() - began)
            size += len(answer.payload)
            gate.step(1)
            pace.keep()
        sample = gate.done(job, taken)
        sample.bytes = size
        return sample


def get_batch(job: ClientJob, gate: Gate) -> Sample:
    """Get batches of messages by direct gets, each from behind the last message of the one before."""
    taken, got, size, start, pace = array("d"), 0, 0, job.first, Pace(job)
    with BulkConnection(job.options) as bulk:
        inbox = bulk.new_subject()
        incoming = _Incoming(bulk, bulk.subscribe(inbox, Deadline(job.patience)))
        flush(bulk, Deadline(job.patience))
        subject = f"{job.options.js_prefix}.DIRECT.GET.{job.name}"
        gate.ready()
        while got < job.messages:
            began, deadline = time.perf_counter(), Deadline(job.patience)
            asked = direct.question(start, subject=job.filters[0], batch=min(job.batch, job.messages - got))
            bulk.wire.send(protocol.publish(subject, json.dumps(asked).encode(), inbox), deadline)
            before, ended = got, False
            while not ended:
                for _, length, block in incoming.receive(deadline):
                    if number := direct.value(block or b"", _SEQUENCE):
                        got, size, start = got + 1, size + length, int(number) + 1
                    else:
                        ended = _is_end(block or b"", job, start)
            if got == before:
                raise RemoteProtocolError(f"A direct get of {job.name} from {start} on gave nothing.")
            taken.append(time.perf_counter() - began)
            gate.step(got - before)
            pace.keep(got - before)
        sample = gate.done(job, taken)
        sample.bytes = size
        return sample


def _is_end(block: bytes, job: ClientJob, start: int) -> bool:
    """Tell the end of a batch from an error, which is raised."""
    code, description = protocol.decode_status(block)
    if read_status(code or 0, description).kind is not StatusKind.END:
        what = f"A direct get of {job.name} from {start} on: {code or 'no answer'} {description}".rstrip()
        raise JetStreamError(what, remedy="Does the stream allow direct gets, and hold so many messages?")
    return True
