"""Core NATS: publishing, subscribing, requests and their answers, on a blocking connection each.

A blocking connection takes the least of our CPU time for a message, so that the server is what is measured. Messages of
one subject are framed once and sent in blocks.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Iterator

from penstock.bench.client_job import ClientJob
from penstock.bench.pace import Pace
from penstock.bench.results import Sample
from penstock.bench.worker import Gate
from penstock.errors import DeadlineError, DisconnectedError, LocalProtocolError, NoRespondersError
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.dispatch import Taker, hand_out
from penstock.wire.patience import Deadline

__all__ = ["flush", "headers_of", "publish", "request", "serve", "subscribe"]

_BLOCK = 128 * 1024  # bytes that are sent at once
_QUEUE = "bench"  # who serves requests shares them


def headers_of(job: ClientJob) -> bytes | None:
    """Give the header block of every message, if there is one."""
    return protocol.encode_headers(job.headers) if job.headers else None


def check_size(job: ClientJob, bulk: BulkConnection) -> None:
    """Refuse messages that the server does not take, before the first one: it would close the connection."""
    whole = job.size + len(headers_of(job) or b"")
    if whole > bulk.max_payload:
        what = f"A message has {whole:,} bytes, and the server takes {bulk.max_payload:,}."
        raise LocalProtocolError(what, remedy="Lower --size, or raise the server's max_payload.")


def flush(bulk: BulkConnection, deadline: Deadline) -> None:
    """Wait until the server has handled everything; raise what it complained of."""
    wire = bulk.wire
    wire.send(b"PING\r\n", deadline)
    while True:
        event = wire.parser.next_event()
        if event is None:
            wire.receive(deadline)
        elif isinstance(event, protocol.Pong):
            return
        else:
            wire.handle(event, deadline)


def publish(job: ClientJob, gate: Gate) -> Sample:
    """Publish messages; the clock stops when the server has handled the last one."""
    pace = Pace(job)
    with BulkConnection(job.options) as bulk:
        check_size(job, bulk)
        gate.ready()
        for block, count in _blocks(job, 1 if not pace.is_free else max(1, _BLOCK // (job.size + 64))):
            deadline = Deadline(job.patience)
            bulk.wire.send(block, deadline)
            while (event := bulk.wire.parser.next_event()) is not None:
                bulk.wire.handle(event, deadline)
            gate.step(count)
            pace.keep(count)
        flush(bulk, Deadline(job.patience))
        return gate.done(job)


def _blocks(job: ClientJob, most: int) -> Iterator[tuple[bytes, int]]:
    header, subjects = headers_of(job), job.subjects
    numbers = iter(range(job.first, job.first + job.messages))
    if subjects.many:
        while part := list(itertools.islice(numbers, most)):
            yield b"".join(protocol.publish(subjects.of(one), job.payload, None, header) for one in part), len(part)
        return
    frame = protocol.publish(subjects.base, job.payload, None, header)
    whole, rest = divmod(job.messages, most)
    block = frame * most
    for _ in range(whole):
        yield block, most
    if rest:
        yield frame * rest, rest


def subscribe(job: ClientJob, gate: Gate) -> Sample:
    """Count messages as they come; the clock starts with the first ones."""
    got, size = 0, 0

    def take(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        nonlocal size
        size += len(payload)

    with BulkConnection(job.options) as bulk:
        wire = bulk.wire
        takers: dict[int, Taker] = {bulk.subscribe(job.subjects.pattern, Deadline(job.patience)): take}
        flush(bulk, Deadline(job.patience))
        gate.ready()
        while got < job.messages:
            parser = wire.parser
            place, count, _ = hand_out(parser.buffer, parser.start, parser.end, takers, {})
            parser.take(place)
            if count and not got:
                gate.begin()
            got += count
            gate.step(count)
            if (event := parser.next_event()) is not None:
                if not wire.handle(event, Deadline(job.patience)):
                    got += 1  # a message that only the parser takes
                continue
            if got < job.messages:
                _receive(bulk, got, job)
        sample = gate.done(job)
        sample.bytes = size * job.messages // got
        return sample


def _receive(bulk: BulkConnection, got: int, job: ClientJob) -> None:
    """Wait for more; without an end before the first message."""
    while True:
        try:
            bulk.wire.receive(Deadline(job.patience))
            return
        except DeadlineError:
            if got:
                raise _short(got, job) from None
        except DisconnectedError as error:
            raise DisconnectedError(f"{_came(got, job)} {error}") from None


def _came(got: int, job: ClientJob) -> str:
    return f"{got:,} of {job.messages:,} messages came."


def _short(got: int, job: ClientJob) -> DeadlineError:
    what = f"{_came(got, job)} Nothing more came for {job.patience:g} s."
    remedy = "Core NATS drops what a slow subscriber does not take in time; or fewer were published."
    return DeadlineError(what, remedy=remedy, seconds=job.patience)


def request(job: ClientJob, gate: Gate) -> Sample:
    """Send requests one after the other, and wait for the answer of each."""
    pace, taken = Pace(job), array("d")
    with BulkConnection(job.options) as bulk:
        check_size(job, bulk)
        headers = {name: ", ".join(values) for name, values in job.headers.items()}
        gate.ready()
        for number in range(job.first, job.first + job.messages):
            began = time.perf_counter()
            try:
                bulk.request(job.subjects.of(number), job.payload, headers=headers)
            except NoRespondersError as error:
                remedy = f"Run `penstock bench service serve {job.subjects.base}` beside it."
                raise NoRespondersError(error.what, remedy=remedy, **error.facts) from None
            taken.append(time.perf_counter() - began)
            gate.step(1)
            pace.keep()
        return gate.done(job, taken)


def serve(job: ClientJob, gate: Gate) -> Sample:
    """Answer requests until it is told to stop; what waits is answered in one write."""
    served = 0
    with BulkConnection(job.options) as bulk:
        wire = bulk.wire
        check_size(job, bulk)
        wire.send(protocol.subscribe(job.subjects.base, 2, _QUEUE), Deadline(job.patience))
        flush(bulk, Deadline(job.patience))
        gate.ready()
        answers: list[bytes] = []
        while not gate.stopped.is_set():
            deadline = Deadline(job.patience)
            event = wire.parser.next_event()
            if event is None:
                if answers:
                    wire.send(b"".join(answers), deadline)
                    served += len(answers)
                    gate.step(len(answers))
                    answers.clear()
                try:
                    wire.receive(Deadline(0.25))
                except DeadlineError:
                    continue
            elif isinstance(event, protocol.Message):
                if job.sleep:
                    time.sleep(job.sleep)
                if event.reply:
                    answers.append(protocol.publish(event.reply, job.payload))
            else:
                wire.handle(event, deadline)
        return gate.done(job, messages=served)
