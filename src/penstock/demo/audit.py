"""The audit: every stage counted against the generator's own ledger, message by message."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.demo.ledger import Ledger
from penstock.demo.traffic import CHANNEL_STREAM
from penstock.errors import InputError, NotFoundError, PipelineError
from penstock.options import ConnectionOptions
from penstock.pipelines.tables import Table
from penstock.wire.bulk import BulkConnection

__all__ = ["Stage", "audit_answers", "audit_streams", "audit_tables", "compare", "read_revenue"]


@dataclass(frozen=True)
class Stage:
    """What one place should hold, and what it holds. A changed message counts as lost and as repeated."""

    name: str
    expected: int
    found: int
    lost: int
    repeated: int
    """Found more often than expected: sent or written twice, or nobody's."""

    @property
    def ok(self) -> bool:
        """Whether nothing is off."""
        return self.lost == self.repeated == 0


def compare(name: str, expected: Iterable[Hashable], found: Iterable[Hashable]) -> Stage:
    """Compare two bags."""
    wanted, there = Counter(expected), Counter(found)
    return Stage(name, wanted.total(), there.total(), (wanted - there).total(), (there - wanted).total())


def audit_streams(ledger: Ledger, options: ConnectionOptions) -> list[Stage]:
    """Look into the streams: what producers stored, and what the pipeline wrote."""
    today = (order.encode() for order in ledger.orders if order.way != "legacy")
    old = (order.encode() for order in ledger.legacy)
    documents = ((name, size) for name, (size, _, _) in ledger.digests.items())
    revenue = ((*key, *sums) for key, sums in ledger.revenue().items())
    customers = ((customer, *sums) for customer, sums in ledger.top().items())
    with BulkConnection(options) as bulk:
        return [
            compare("orders in the stream ORDERS", today, _data(bulk, "ORDERS")),
            compare("orders of old clients in their channel", old, _data(bulk, CHANNEL_STREAM)),
            compare("documents in the stream DOCUMENTS", documents, _documents(bulk)),
            compare("revenue in the stream REVENUE", revenue, _revenue(bulk)),
            compare("customers with their sums in the bucket", customers, _sums(bulk)),
        ]


def _data(bulk: BulkConnection, stream: str, subjects: str | None = None) -> Iterator[bytes]:
    # Messages that are gone are not an error here, nor is a stream: the comparison counts what is lost.
    with contextlib.suppress(NotFoundError):
        for batch in bulk.read(stream, subjects=subjects, headers=False, on_loss=lambda lost: None):
            yield from batch["data"].to_pylist()


def _documents(bulk: BulkConnection) -> list[tuple[str, int]]:
    """Give each whole document in the stream with its size; a chunk that is there twice makes it too large."""
    sizes: Counter[str] = Counter()
    whole: list[str] = []
    for batch in bulk.read("DOCUMENTS", batch_bytes=16 * 2**20, on_loss=lambda lost: None):
        for headers, data in zip(batch["headers"].to_pylist(), batch["data"].to_pylist(), strict=True):
            named = dict(headers)
            name = named["X-Msg-Id"][0]
            sizes[name] += len(data)
            if int(named["X-Flags"][0]) & 1:
                whole.append(name)
    return [(name, sizes[name]) for name in whole]


def _revenue(bulk: BulkConnection) -> Iterator[tuple[str, str, int, int]]:
    for data in _data(bulk, "REVENUE", "revenue.*"):
        row = json.loads(data)
        yield row["region"], row["minute"], row["cents"], row["orders"]


def _sums(bulk: BulkConnection) -> Iterator[tuple[str, int, int]]:
    for data in _data(bulk, "KV_SUMS", "$KV.SUMS.>"):
        row = json.loads(data)
        yield row["customer"], row["cents"], row["orders"]


def read_revenue(options: ConnectionOptions) -> list[tuple[str, str, int, int]]:
    """Give what the stream REVENUE holds: region, minute, cents and orders of each message."""
    with BulkConnection(options) as bulk:
        return list(_revenue(bulk))


def audit_tables(ledger: Ledger, warehouse: Path) -> list[Stage]:
    """Look into the tables that the pipeline wrote."""
    regions = ledger.regions()
    messages = ((order.encode().decode(),) for order in ledger.orders)
    whole = ((o.order_id, o.customer, regions[o.customer], o.cents, o.ordered) for o in ledger.whole)
    broken = ((order.encode().decode(), order.fault) for order in ledger.orders if order.fault is not None)
    documents = ((name, *facts, True) for name, facts in ledger.digests.items())

    def rows(table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        # No whole table, no row: the comparison says how many are lost.
        with contextlib.suppress(InputError, PipelineError):
            for row in Table(warehouse / table, patience=0.0).rows(columns.split()):
                yield tuple(_utc(row[column]) for column in columns.split())

    return [
        compare("messages read by the pipeline", messages, rows("incoming", "text")),
        compare("whole orders, joined with customers", whole, rows("orders", "order_id customer region cents ordered")),
        compare("broken ones in quarantine", broken, rows("quarantine", "text fault")),
        compare(
            "documents put together and verified", documents, rows("documents", "document size sha256 pages verified")
        ),
    ]


def _utc(value: Any) -> Any:
    """Give a time that Spark wrote as one that says its zone; anything else as it is."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def audit_answers(
    ledger: Ledger, customer: str, orders: Sequence[dict[str, Any]], top: Sequence[dict[str, Any]]
) -> list[Stage]:
    """Look at what the service on the bus answered."""
    sums = ledger.top()
    best = sorted(sums, key=lambda name: (-sums[name][0], name))[: len(top) or 10]
    theirs = ((order.order_id, order.cents) for order in ledger.whole if order.customer == customer)
    answered = ((row["order_id"], row["cents"]) for row in orders)
    most = ((name, sums[name][0]) for name in best)
    return [
        compare(f"bus: orders of customer {customer}", theirs, answered),
        compare("bus: top customers", most, ((row["customer"], row["cents"]) for row in top)),
    ]
