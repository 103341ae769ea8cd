"""Publishing into a stream: one message after the other, an ack each in flight, atomic batches, fast ingest.

All but the first are the bulk path that Spark's sink writes with. The figures count only if the whole answer of the
stream was right: each message stored, none of them a duplicate.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator

import pyarrow as pa

from penstock.bench.client_job import ClientJob
from penstock.bench.core import check_size
from penstock.bench.pace import Pace
from penstock.bench.results import Sample
from penstock.bench.worker import Gate
from penstock.errors import PublishError
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import read_ack

__all__ = ["publish", "publish_sync"]

_ROWS = 8192  # rows of an Arrow batch, if the way of publishing leaves it to us
_BYTES = 8 * 1024 * 1024
_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))


def publish_sync(job: ClientJob, gate: Gate) -> Sample:
    """Publish, and wait for the ack of each before the next one."""
    pace, taken = Pace(job), array("d")
    with BulkConnection(job.options) as bulk:
        check_size(job, bulk)
        headers = {name: ", ".join(values) for name, values in job.headers.items()}
        gate.ready()
        for number in range(job.first, job.first + job.messages):
            if job.ids:
                headers[names.MSG_ID] = f"{job.mode}-{number}"
            began = time.perf_counter()
            answer = bulk.request(job.subjects.of(number), job.payload, headers=headers)
            ack = read_ack(answer.payload, answer.status)
            taken.append(time.perf_counter() - began)
            if ack.stream != job.name or ack.duplicate:
                raise _other(f"stream {ack.stream} answered, with sequence {ack.sequence}", job)
            gate.step(1)
            pace.keep()
        return gate.done(job, taken)


def _other(what: str, job: ClientJob) -> PublishError:
    return PublishError(f"Not every message is a new one of {job.name}: {what}.", remedy="The figures mean nothing.")


def publish(job: ClientJob, gate: Gate) -> Sample:
    """Publish in a way of the bulk connection; the clock stops with the last ack."""
    with BulkConnection(job.options) as bulk:
        check_size(job, bulk)
        rows = _ROWS if job.mode != "atomic" else job.batch
        batches = _batches(job, gate, min(rows, max(1, _BYTES // max(job.size, 1))))
        made = next(batches)  # the first one is made before the clock starts, as all are that look the same
        gate.ready()

        def every() -> Iterator[pa.RecordBatch]:
            yield made
            yield from batches

        ids = True if job.ids else None if job.mode == "acks" else False
        done = bulk.publish(job.name, every(), job.mode, ids=ids, timeout=job.patience)
        sample = gate.done(job)
        if done.rows != job.messages or done.duplicates:
            raise _other(f"{done.rows:,} rows are stored, {done.duplicates:,} of them were there before", job)
        return sample


def _batches(job: ClientJob, gate: Gate, most: int) -> Iterator[pa.RecordBatch]:
    pace, last = Pace(job), job.first + job.messages
    if not pace.is_free:
        most = min(most, max(1, int((job.throughput or 1000) / 20)))  # so that the pace is kept within the second
    same: pa.RecordBatch | None = None
    for start in range(job.first, last, most):
        count = min(most, last - start)
        if same is None or job.subjects.many or count != same.num_rows:
            same = _batch(job, start, count)
        yield same
        gate.step(count)
        pace.keep(count)


def _batch(job: ClientJob, start: int, count: int) -> pa.RecordBatch:
    columns = {
        "subject": pa.array([job.subjects.of(number) for number in range(start, start + count)], pa.string())
        if job.subjects.many
        else pa.repeat(pa.scalar(job.subjects.base, pa.string()), count),
        "data": pa.repeat(pa.scalar(job.payload, pa.binary()), count),
    }
    if job.headers:
        columns["headers"] = pa.array([list(job.headers.items())] * count, _HEADERS)
    return pa.record_batch(columns)
